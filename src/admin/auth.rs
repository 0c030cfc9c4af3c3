//! Authorisation: bearer tokens with two roles. A token is judged before anything else of a request. What is not named as
//! open is closed.

use std::sync::{Arc, OnceLock};

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::config::{Config, NamedToken};
use super::console;
use super::problem::Problem;
use crate::api::BECAUSE_HEADER;
use crate::domain::{Actor, Because, percent_decoded};

/// Role that a call needs, or that a token gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AccessRole {
    /// Looks, but at nothing that a message says.
    Read,
    /// Looks and acts.
    Write,
}

/// Caller of a request that has a right.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    /// Its role: the one of its token.
    pub(super) role: AccessRole,
    /// How audit, trail and log call it: the name of its token.
    pub(super) name: Arc<str>,
    /// The call may change something.
    pub(super) acts: bool,
    /// Why it makes the call, in its own words. Shared by all that serve the call.
    because: Arc<OnceLock<Because>>,
    /// What the call is about, as far as its path does not show it.
    subject: Arc<OnceLock<String>>,
}

impl Caller {
    pub(super) fn new(role: AccessRole, name: Arc<str>, acts: bool) -> Self {
        Self {
            role,
            name,
            acts,
            because: Arc::default(),
            subject: Arc::default(),
        }
    }

    /// Notes for the audit log what the call is about, which its path does not show: a filter, or ids of its body. To be
    /// said before the call does anything: the entry has it however the call ends.
    pub(super) fn is_about(&self, subject: impl Into<String>) {
        // A call says this once. If it says more, the first word holds.
        self.subject.get_or_init(|| subject.into());
    }

    /// What the call is about, if it has said so.
    pub(super) fn subject(&self) -> Option<&str> {
        self.subject.get().map(String::as_str)
    }

    /// Takes down why the caller makes this call. It may say so once.
    pub(super) fn say_why(&self, because: Because) -> Result<(), Problem> {
        let said = self.because.set(because);
        said.map_err(|_| {
            Problem::bad("give the reason once: as `because` in the body, or as `Postdate-Because`")
        })
    }

    /// Takes down what the header [`BECAUSE_HEADER`] says, if it is there.
    pub(super) fn hear_why(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let Some(value) = headers.get(BECAUSE_HEADER) else {
            return Ok(());
        };
        let because = std::str::from_utf8(value.as_bytes())
            .map_err(|_| "it is not UTF-8".to_owned())
            .and_then(|text| match percent_decoded(text) {
                Some(decoded) => decoded.parse(),
                None => text.parse(),
            });
        self.say_why(because.map_err(|why| Problem::bad(format!("`{BECAUSE_HEADER}`: {why}")))?)
    }

    /// Who makes the call, and why.
    pub(super) fn actor(&self) -> Actor {
        Actor {
            name: (*self.name).into(),
            because: self.because.get().cloned(),
        }
    }

    /// Refuses a caller who may not see what messages say.
    pub(super) fn may_see_content(&self) -> Result<(), Problem> {
        if self.role < AccessRole::Write {
            return Err(may_only_read());
        }
        Ok(())
    }
}

/// The path of the description.
pub(super) const OPENAPI_PATH: &str = "/api/v1/openapi.json";
/// What anybody may ask for by GET, beside the console's files.
const OPEN_PATHS: [&str; 4] = ["/livez", "/readyz", "/metrics", OPENAPI_PATH];

/// The tokens of the moment, as digests: neither a token's text nor its length can leak from a comparison.
pub(super) struct AccessTokens {
    digests: RwLock<TokenDigests>,
    /// No token is configured.
    is_open: bool,
}

/// Digests of the tokens of each role, with the names of those who have them.
struct TokenDigests {
    read: Vec<TokenDigest>,
    write: Vec<TokenDigest>,
}

type TokenDigest = ([u8; 32], Arc<str>);

impl AccessTokens {
    pub(super) fn new(config: &Config) -> Self {
        let read = digests(&config.read_tokens.tokens);
        let write = digests(&config.write_tokens.tokens);
        let lists = [&config.read_tokens, &config.write_tokens];
        Self {
            digests: RwLock::new(TokenDigests { read, write }),
            is_open: lists
                .iter()
                .all(|list| list.tokens.is_empty() && list.file.is_none()),
        }
    }

    /// Replaces the tokens of a role. Calls that have been judged go on.
    pub(super) fn replace(&self, role: AccessRole, tokens: &[NamedToken]) {
        let new = digests(tokens);
        let mut current = self.digests.write();
        match role {
            AccessRole::Write => current.write = new,
            AccessRole::Read => current.read = new,
        }
    }

    /// Reports whether no token is configured. Then everybody who can reach the listener may do everything. Where tokens are
    /// configured and none is left, nobody may do anything.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Judges a request by the role that it needs and its headers: who calls, if that is somebody with a right, and whether
    /// the call may be made. Once a token is configured, what is not open needs one, whether it is there or not; a call that
    /// changes nothing needs a read token. A page of another site may call nothing, whatever token the browser holds, and
    /// without a token neither may who comes by another name than this machine's.
    pub(super) fn judge(
        &self,
        parts: &Parts,
        needed: Option<AccessRole>,
    ) -> (Option<Caller>, Result<(), Problem>) {
        if let Err(problem) = judge_site(parts, needed) {
            return (None, Err(problem));
        }
        let acts = needed == Some(AccessRole::Write);
        if self.is_open {
            let caller = Caller::new(AccessRole::Write, "anybody at this machine".into(), acts);
            return match judge_host(parts) {
                Ok(()) => (Some(caller), Ok(())),
                Err(problem) => (None, Err(problem)),
            };
        }
        let known = bearer(&parts.headers).and_then(|token| self.holder(token));
        let caller = known.map(|(role, name)| Caller::new(role, name, acts));
        let role = caller.as_ref().map(|caller| caller.role);
        let verdict = match needed {
            needed if role >= needed => Ok(()),
            _ if role.is_none() => {
                let detail = "a valid bearer token is needed (POSTDATE_TOKEN)";
                Err(Problem::new(StatusCode::UNAUTHORIZED, detail))
            }
            _ => Err(may_only_read()),
        };
        (caller, verdict)
    }

    /// The role and the name of whoever has this token. It is compared with every configured one, even after a match: the
    /// time taken says nothing.
    fn holder(&self, token: &[u8]) -> Option<(AccessRole, Arc<str>)> {
        let presented = digest(token);
        let among = |digests: &[TokenDigest]| {
            let place = digests
                .iter()
                .zip(1u64..)
                .fold(0, |found, ((digest, _), place)| {
                    u64::conditional_select(&found, &place, digest.ct_eq(&presented))
                });
            let index = usize::try_from(place).ok()?.checked_sub(1)?;
            Some(digests.get(index)?.1.clone())
        };
        let current = self.digests.read();
        let (write, read) = (among(&current.write), among(&current.read));
        let role = if write.is_some() {
            AccessRole::Write
        } else {
            AccessRole::Read
        };
        Some((role, write.or(read)?))
    }
}

fn may_only_read() -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "this token may read only; the call needs a write token",
    )
}

/// The role that a call needs; `None` if anybody may make it. Calls that need write are audited.
pub(super) fn needed_role(method: &Method, path: &str) -> Option<AccessRole> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Some(AccessRole::Write);
    }
    let is_open = OPEN_PATHS.contains(&path) || console::has_file(path);
    (!is_open).then_some(AccessRole::Read)
}

/// Refuses a call that a browser says comes from a page of another site. Whoever follows a link comes to the page itself.
fn judge_site(parts: &Parts, needed: Option<AccessRole>) -> Result<(), Problem> {
    let said = |name: &str| parts.headers.get(name).map(HeaderValue::as_bytes);
    let is_other = matches!(said("sec-fetch-site"), Some(b"cross-site" | b"same-site"));
    let is_link = parts.method == Method::GET
        && said("sec-fetch-mode") == Some(b"navigate")
        && needed.is_none();
    if is_other && !is_link {
        let detail =
            "pages of other sites may call nothing; open the console at this address itself";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    Ok(())
}

fn digests(tokens: &[NamedToken]) -> Vec<TokenDigest> {
    tokens
        .iter()
        .map(|named| (digest(named.token.expose().as_bytes()), named.name.clone()))
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
