//! Configuration of the admin listener, checked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use sha2::{Digest, Sha256};

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
    pub tokens: Vec<NamedToken>,
    /// The file that they are from, one a line. It is read again when it changes.
    pub file: Option<PathBuf>,
}

/// A token, and how the audit log, the trail and the log call whoever has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedToken {
    /// The name: the one given before the token, or the first eight hex digits of the token's SHA-256.
    pub name: Arc<str>,
    /// The token.
    pub token: Secret,
}

impl NamedToken {
    /// Reads `TOKEN` or `NAME TOKEN`. `Err` says what is wrong with it and quotes nothing of it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (name, token) = match text.split_once(' ') {
            Some((name, token)) => (Some(name), token),
            None => (None, text),
        };
        if name.is_some_and(|name| !is_caller_name(name)) {
            return Err(
                "has a name before it that is not 1 to 64 letters, digits, `.`, `_`, `@` or `-`",
            );
        }
        if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("is empty or has other than visible ASCII characters");
        }
        let name = name.map_or_else(|| beginning_of_digest(token), str::to_owned);
        Ok(Self {
            name: name.into(),
            token: Secret::new(token),
        })
    }

    /// What is wrong with the length of the token at this address, if anything.
    pub fn length_fault(&self, listen: SocketAddr) -> Option<String> {
        let is_short = !listen.ip().is_loopback() && self.token.expose().len() < MIN_TOKEN_CHARS;
        is_short.then(|| {
            format!("has fewer than {MIN_TOKEN_CHARS} characters; `listen` is not loopback")
        })
    }
}

fn is_caller_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._@-".contains(&b))
}

fn beginning_of_digest(token: &str) -> String {
    let digest = Sha256::digest(token.as_bytes());
    let beginning = digest.first_chunk::<4>().copied().unwrap_or_default();
    format!("{:08x}", u32::from_be_bytes(beginning))
}
