//! Who may: bearer tokens with two roles, judged before a request is looked at any further.

use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::config::Config;
use super::problem::Problem;
use crate::domain::Secret;

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// Nothing: probes, metrics, the description of the API.
    Open,
    /// Any token.
    Read,
    /// A write token.
    Write,
}

/// The one path under `/api` that is open.
pub(super) const OPENAPI: &str = "/api/v1/openapi.json";

/// The tokens, as digests: neither their text nor its length can leak from a comparison.
pub(super) struct Tokens {
    read: Vec<[u8; 32]>,
    write: Vec<[u8; 32]>,
}

impl Tokens {
    pub(super) fn new(config: &Config) -> Self {
        let digests = |tokens: &[Secret]| tokens.iter().map(|t| digest(t.expose().as_bytes())).collect();
        Self { read: digests(&config.read_tokens), write: digests(&config.write_tokens) }
    }

    /// Whether none is configured: then everybody who can reach the listener may do everything.
    pub(super) fn is_empty(&self) -> bool {
        self.read.is_empty() && self.write.is_empty()
    }

    /// Judges a request by its path, method and headers alone. Whatever is under `/api`, known or not,
    /// needs a token once one is configured; what changes nothing needs a read token.
    ///
    /// Answers who it is, for the audit: a token's kind and place among its like, never a part of it.
    pub(super) fn judge(&self, parts: &Parts) -> Result<String, Problem> {
        let path = parts.uri.path();
        if !path.starts_with("/api") || path == OPENAPI {
            return Ok("anybody".to_owned());
        }
        if self.is_empty() {
            return judge_host(parts).map(|()| "anybody at this machine".to_owned());
        }
        let needed =
            if matches!(parts.method, Method::GET | Method::HEAD) { Role::Read } else { Role::Write };
        let (role, place) = bearer(&parts.headers).map_or((Role::Open, 0), |token| self.role(token));
        match role {
            Role::Open => {
                Err(Problem::new(StatusCode::UNAUTHORIZED, "a valid bearer token is needed (POSTDATE_TOKEN)"))
            }
            role if role < needed => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "this token may read only; the call needs a write token",
            )),
            Role::Read => Ok(format!("read token {place}")),
            Role::Write => Ok(format!("write token {place}")),
        }
    }

    /// What a token is good for, and its place among those of its role, from 1. Compares with every token,
    /// whatever it finds on the way.
    fn role(&self, token: &[u8]) -> (Role, u64) {
        let presented = digest(token);
        let among = |digests: &[[u8; 32]]| {
            digests.iter().zip(1u64..).fold(0, |found, (digest, place)| {
                u64::conditional_select(&found, &place, digest.ct_eq(&presented))
            })
        };
        match (among(&self.write), among(&self.read)) {
            (0, 0) => (Role::Open, 0),
            (0, place) => (Role::Read, place),
            (place, _) => (Role::Write, place),
        }
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The bearer token; `None` unless there is exactly one `Authorization` header, and it holds one.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let (value, None) = (all.next()?.as_bytes(), all.next()) else { return None };
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

/// Without tokens the listener is on loopback, and a web page must not reach it through the browser of
/// somebody at this machine by a name that resolves to it (DNS rebinding).
fn judge_host(parts: &Parts) -> Result<(), Problem> {
    let header = parts.headers.get(header::HOST).map(|h| h.to_str().unwrap_or("?"));
    let hosts = [header, parts.uri.authority().map(axum::http::uri::Authority::as_str)];
    if hosts.into_iter().flatten().all(is_local_name) {
        return Ok(());
    }
    let detail =
        "without a token the API answers to localhost and IP addresses only, not to other host names";
    Err(Problem::new(StatusCode::FORBIDDEN, detail))
}

fn is_local_name(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<axum::http::uri::Authority>() else { return false };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<std::net::IpAddr>().is_ok()
}
