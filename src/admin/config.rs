//! Configuration of the admin listener, checked.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::domain::Secret;
use crate::tls::IdentityFiles;

/// Fewest characters of a token where the listener is not on loopback.
pub const MIN_TOKEN_CHARS: usize = 16;

/// Address of the API, and the tokens that open it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen on. An address other than loopback needs a token.
    pub listen: SocketAddr,
    /// Address that has the probes alone, beside `listen`. It speaks no TLS.
    pub probe_listen: Option<SocketAddr>,
    /// Certificate and key of `listen`. `None`: it speaks no TLS.
    pub tls: Option<IdentityFiles>,
    /// Tokens that may read.
    pub read_tokens: TokenList,
    /// Tokens that may read and write.
    pub write_tokens: TokenList,
}

/// Tokens of one role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenList {
    /// The tokens, as they were at the start.
    pub tokens: Vec<Secret>,
    /// The file that they are from, one a line. It is read again when it changes.
    pub file: Option<PathBuf>,
}

impl From<Vec<Secret>> for TokenList {
    fn from(tokens: Vec<Secret>) -> Self {
        Self { tokens, file: None }
    }
}

/// What is wrong with the characters of a token, if anything. The text quotes nothing of it.
pub fn token_fault(token: &str) -> Option<&'static str> {
    let fits = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    (!fits).then_some("is empty or has other than visible ASCII characters")
}

/// What is wrong with the length of a token at this address, if anything.
pub fn token_length_fault(token: &str, listen: SocketAddr) -> Option<String> {
    let is_short = !listen.ip().is_loopback() && token.len() < MIN_TOKEN_CHARS;
    is_short
        .then(|| format!("has fewer than {MIN_TOKEN_CHARS} characters; `listen` is not loopback"))
}
