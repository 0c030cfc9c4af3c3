//! The admin listener's part of the configuration, checked.

use std::net::SocketAddr;

use crate::domain::Secret;

/// Where the API listens and who may use it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Anything but loopback needs a token.
    pub listen: SocketAddr,
    /// May read.
    pub read_tokens: Vec<Secret>,
    /// May read and write.
    pub write_tokens: Vec<Secret>,
}
