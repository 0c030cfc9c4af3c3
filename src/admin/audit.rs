//! Who did what, and what came of it: a line of log for every call that may change something.
//!
//! `router::around` writes it, so that no handler can forget to. A handler says more by returning a
//! [`Noted`] beside its answer; a problem notes its own sentence.

use std::net::SocketAddr;

use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use tracing::info;

/// Longest text of an entry, bytes: callers choose paths and ids.
const TEXT: usize = 512;

/// What a handler tells the audit: on which message, route or filter, with what result. Returned as
/// `(Extension(Noted), ...)` beside the answer.
#[derive(Clone, Debug)]
pub(super) struct Noted {
    subject: String,
    result: String,
}

impl Noted {
    /// `subject`: what the path does not say already (a filter, ids in a body), or empty.
    pub(super) fn new(subject: impl Into<String>, result: impl Into<String>) -> Self {
        Self { subject: subject.into(), result: result.into() }
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

/// A call under way. Dropped before its end (the caller went away), it says so.
pub(super) struct Audited {
    who: String,
    from: String,
    call: String,
    ended: bool,
}

impl Audited {
    /// Begins the entry of a call that may change something; `None` for one that only reads.
    pub(super) fn begin(parts: &Parts, who: &str) -> Option<Self> {
        if matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS) {
            return None;
        }
        let from = parts.extensions.get::<Peer>().map_or_else(String::new, |peer| peer.0.to_string());
        let call = clipped(&format!("{} {}", parts.method, parts.uri));
        Some(Self { who: who.to_owned(), from, call, ended: false })
    }

    /// Ends it with the call's answer.
    pub(super) fn end(mut self, response: &Response) {
        let noted = response.extensions().get::<Noted>();
        let (subject, result) = noted.map_or(("", ""), |noted| (&noted.subject, &noted.result));
        self.write(Some(response.status()), &clipped(subject), &clipped(result));
    }

    fn write(&mut self, status: Option<StatusCode>, subject: &str, result: &str) {
        self.ended = true;
        let (who, from, call) = (&self.who, &self.from, &self.call);
        let status = status.map_or(0, |status| status.as_u16());
        info!(who, from, call, subject, result, status, "a call of the admin API");
    }
}

impl Drop for Audited {
    fn drop(&mut self) {
        if !self.ended {
            self.write(None, "", "the caller went away before the end; it may have been done");
        }
    }
}

/// Cut to a length that a line of log and an entry can bear.
fn clipped(text: &str) -> String {
    let end = (0..=TEXT.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text[..end].to_owned()
}
