//! Configuration of the admin listener, checked.

use std::net::SocketAddr;

use crate::domain::Secret;

/// Fewest characters of a token where the listener is not on loopback.
pub const MIN_TOKEN_CHARS: usize = 16;

/// Address of the API, and the tokens that open it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen on. An address other than loopback needs a token.
    pub listen: SocketAddr,
    /// Address that has the probes alone, beside `listen`.
    pub probe_listen: Option<SocketAddr>,
    /// Tokens that may read.
    pub read_tokens: Vec<Secret>,
    /// Tokens that may read and write.
    pub write_tokens: Vec<Secret>,
}
