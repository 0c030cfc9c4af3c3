//! Authorisation: bearer tokens with two roles. A token is judged before anything else of a request.

use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::config::Config;
use super::problem::Problem;
use crate::domain::Secret;

/// Role that a call needs, or that a token gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AccessRole {
    /// No token: probes, metrics, the OpenAPI document.
    Open,
    /// Any token.
    Read,
    /// A write token.
    Write,
}

/// Caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    /// Its role: the one of its token.
    pub(super) role: AccessRole,
    /// Name of it for the audit log: the token's role and its place in the configuration, never a part of the token.
    pub(super) name: Arc<str>,
}

/// The single path under `/api` that needs no token.
pub(super) const OPENAPI_PATH: &str = "/api/v1/openapi.json";

/// The tokens of the moment, as digests: neither a token's text nor its length can leak from a comparison.
pub(super) struct AccessTokens {
    digests: RwLock<TokenDigests>,
}

/// Digests of the tokens of each role.
struct TokenDigests {
    read: Vec<[u8; 32]>,
    write: Vec<[u8; 32]>,
}

impl AccessTokens {
    pub(super) fn new(config: &Config) -> Self {
        let read = digests(&config.read_tokens.tokens);
        let write = digests(&config.write_tokens.tokens);
        Self {
            digests: RwLock::new(TokenDigests { read, write }),
        }
    }

    /// Replaces the tokens of a role. Calls that have been judged go on.
    pub(super) fn replace(&self, role: AccessRole, tokens: &[Secret]) {
        let new = digests(tokens);
        let mut current = self.digests.write();
        match role {
            AccessRole::Write => current.write = new,
            AccessRole::Read | AccessRole::Open => current.read = new,
        }
    }

    /// Reports whether no token is configured. Then everybody who can reach the listener may do everything.
    pub(super) fn is_empty(&self) -> bool {
        let current = self.digests.read();
        current.read.is_empty() && current.write.is_empty()
    }

    /// Judges a request by its path, method and headers alone. Once a token is configured, every path under `/api` needs
    /// one, known or not; a call that changes nothing needs a read token, but for bodies. A page of another site may call
    /// nothing, whatever token the browser holds.
    pub(super) fn judge(&self, parts: &Parts) -> Result<Caller, Problem> {
        let caller = |role, name: String| Caller {
            role,
            name: name.into(),
        };
        if !is_guarded(parts.uri.path()) {
            return Ok(caller(AccessRole::Open, "anybody".to_owned()));
        }
        judge_site(&parts.headers)?;
        if self.is_empty() {
            judge_host(parts)?;
            return Ok(caller(
                AccessRole::Write,
                "anybody at this machine".to_owned(),
            ));
        }
        let needed = needed_role(&parts.method, parts.uri.path());
        let (role, place) =
            bearer(&parts.headers).map_or((AccessRole::Open, 0), |token| self.role(token));
        match role {
            AccessRole::Open => Err(Problem::new(
                StatusCode::UNAUTHORIZED,
                "a valid bearer token is needed (POSTDATE_TOKEN)",
            )),
            role if role < needed => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "this token may read only; the call needs a write token",
            )),
            role @ AccessRole::Read => Ok(caller(role, format!("read token {place}"))),
            role @ AccessRole::Write => Ok(caller(role, format!("write token {place}"))),
        }
    }

    /// The role of a token, and its place among the tokens of that role, from 1. The token is compared with every
    /// configured one, even after a match: the time taken says nothing.
    fn role(&self, token: &[u8]) -> (AccessRole, u64) {
        let presented = digest(token);
        let among = |digests: &[[u8; 32]]| {
            digests
                .iter()
                .zip(1u64..)
                .fold(0, |found, (digest, place)| {
                    u64::conditional_select(&found, &place, digest.ct_eq(&presented))
                })
        };
        let current = self.digests.read();
        match (among(&current.write), among(&current.read)) {
            (0, 0) => (AccessRole::Open, 0),
            (0, place) => (AccessRole::Read, place),
            (place, _) => (AccessRole::Write, place),
        }
    }
}

/// Reports whether a path needs a token once one is configured: every path under `/api`, known or not, but for the
/// description.
pub(super) fn is_guarded(path: &str) -> bool {
    path.starts_with("/api") && path != OPENAPI_PATH
}

/// The role that a guarded call needs. Calls that need write are audited.
pub(super) fn needed_role(method: &Method, path: &str) -> AccessRole {
    let only_reads = matches!(*method, Method::GET | Method::HEAD) && !shows_body(path);
    if only_reads {
        AccessRole::Read
    } else {
        AccessRole::Write
    }
}

/// Reports whether a path shows the body of a message that waits: it is nobody's business but theirs who may change it.
fn shows_body(path: &str) -> bool {
    let mut segments = path.split('/').skip(1);
    let mut next = || segments.next();
    [next(), next(), next()] == [Some("api"), Some("v1"), Some("routes")]
        && next().is_some()
        && next() == Some("messages")
        && next().is_some()
        && [next(), next()] == [Some("body"), None]
}

/// Refuses a call that a browser says comes from a page of another site.
fn judge_site(headers: &HeaderMap) -> Result<(), Problem> {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if matches!(site, Some(b"cross-site" | b"same-site")) {
        let detail =
            "pages of other sites may not call the API; open the console at this address itself";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    Ok(())
}

fn digests(tokens: &[Secret]) -> Vec<[u8; 32]> {
    tokens
        .iter()
        .map(|token| digest(token.expose().as_bytes()))
        .collect()
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The bearer token; `None` unless there is exactly one `Authorization` header, and it holds one.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let value = all.next()?;
    if all.next().is_some() {
        return None;
    }
    let (scheme, token) = value.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

/// Refuses host names other than localhost. Without tokens the listener is on loopback; a web page must not reach it
/// through the browser of somebody at this machine, by a name that resolves to loopback (DNS rebinding).
fn judge_host(parts: &Parts) -> Result<(), Problem> {
    let header = parts
        .headers
        .get(header::HOST)
        .map(|h| h.to_str().unwrap_or("?"));
    let hosts = [
        header,
        parts
            .uri
            .authority()
            .map(axum::http::uri::Authority::as_str),
    ];
    if hosts.into_iter().flatten().all(is_local_name) {
        return Ok(());
    }
    let detail = "without a token the API answers to localhost and IP addresses only, not to other host names";
    Err(Problem::new(StatusCode::FORBIDDEN, detail))
}

fn is_local_name(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<axum::http::uri::Authority>() else {
        return false;
    };
    let host = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<std::net::IpAddr>().is_ok()
}
