//! Who did what, and what came of it: for every call that may change something a line of log, and an entry
//! in a bounded stream that all replicas share.
//!
//! `router::around` writes it, so that no handler can forget to. A handler says more by returning a
//! [`Noted`] beside its answer; a problem notes its own sentence.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::State as Extract;
use axum::http::Method;
use axum::http::request::Parts;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tracing::info;
use utoipa::{IntoParams, ToSchema};

use super::extract::Asked;
use super::page::{Page, limit, read_cursor, write_cursor};
use super::problem::Problem;
use super::router::Admin;
use super::times::rfc3339;
use crate::domain::UnixMs;
use crate::store::AuditLogEntry;

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

/// What is kept of a call.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    who: String,
    from: String,
    call: String,
    subject: String,
    result: String,
    status: String,
}

impl Entry {
    /// As the trail keeps it.
    pub(super) fn fields(&self) -> [(&str, &str); 6] {
        [
            ("who", &self.who),
            ("from", &self.from),
            ("call", &self.call),
            ("subject", &self.subject),
            ("result", &self.result),
            ("status", &self.status),
        ]
    }
}

/// A call under way. Dropped before its end (the caller went away), it says so.
pub(super) struct Audited {
    admin: Arc<Admin>,
    entry: Option<Entry>,
}

impl Audited {
    /// Begins the entry of a call that may change something; `None` for one that only reads.
    pub(super) fn begin(admin: &Arc<Admin>, parts: &Parts, who: &str) -> Option<Self> {
        if matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS) {
            return None;
        }
        let from = parts.extensions.get::<Peer>().map_or_else(String::new, |peer| peer.0.to_string());
        let call = clipped(&format!("{} {}", parts.method, parts.uri));
        let entry = Entry { who: who.to_owned(), from, call, ..Entry::default() };
        Some(Self { admin: Arc::clone(admin), entry: Some(entry) })
    }

    /// Ends it with the call's answer: what is to be kept.
    pub(super) fn end(mut self, response: &Response) -> Entry {
        let mut entry = self.entry.take().unwrap_or_default();
        if let Some(noted) = response.extensions().get::<Noted>() {
            entry.subject = clipped(&noted.subject);
            entry.result = clipped(&noted.result);
        }
        entry.status = response.status().as_u16().to_string();
        log(&entry);
        entry
    }
}

impl Drop for Audited {
    fn drop(&mut self) {
        if let Some(mut entry) = self.entry.take() {
            "the caller went away before the end; it may have been done".clone_into(&mut entry.result);
            log(&entry);
            self.admin.tasks.spawn("admin:audit", Arc::clone(&self.admin).keep(entry));
        }
    }
}

fn log(entry: &Entry) {
    let Entry { who, from, call, subject, result, status } = entry;
    info!(who, from, call, subject, result, status, "a call of the admin API");
}

/// An entry of the audit: one call that may have changed something.
#[derive(Serialize, ToSchema)]
pub(super) struct Kept {
    /// When, Unix ms.
    at_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    at: Option<String>,
    /// By which token (`write token 2`: the second one configured), or `anybody at this machine`.
    who: String,
    /// From which address.
    from: String,
    /// Method and path.
    call: String,
    /// What the path does not say.
    subject: String,
    /// What came of it.
    result: String,
    /// The HTTP status; empty if the caller went away before.
    status: String,
}

/// Which part of the audit.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Part {
    /// `next` of the page before.
    cursor: Option<String>,
    /// Items of a page, 1 to 1000; 100 if not given.
    #[param(minimum = 1, maximum = 1000, value_type = Option<u32>)]
    limit: Option<String>,
}

/// Who did what, newest first
///
/// The last ten thousand calls that may have changed something, over all replicas. The log has all of them.
#[utoipa::path(
    get, path = "/api/v1/audit", operation_id = "listAudit", params(Part),
    responses(
        (status = 200, description = "The entries.", body = Page<Kept>),
        (status = 400, description = "A limit or a cursor that is none."),
        (status = 503, description = "Redis is away."),
        (status = 504, description = "Redis did not answer in time."),
    )
)]
pub(super) async fn list(
    Extract(admin): Extract<Arc<Admin>>,
    Asked(part): Asked<Part>,
) -> Result<Json<Page<Kept>>, Problem> {
    let (limit, query) = (limit(part.limit.as_deref())?, "audit".to_owned());
    let before = part.cursor.as_deref().map(|c| read_cursor::<_, (u64, u64)>(c, &query)).transpose()?;
    let before = before.map(|(ms, n)| format!("{ms}-{n}"));
    let trail = admin.browse(admin.store()?.audit_log(before.as_deref(), limit)).await?;
    let at = |id: &str| id.split_once('-').and_then(|(ms, n)| Some((ms.parse().ok()?, n.parse().ok()?)));
    let more = trail.last().filter(|_| trail.len() == limit).and_then(|(id, _)| at(id));
    let next = more.map(|after: (u64, u64)| write_cursor(&query, after)).transpose()?;
    let kept = |(id, fields): &AuditLogEntry| {
        let field = |name| fields.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone()).unwrap_or_default();
        let at_ms = at(id).map_or(0, |(ms, _): (u64, u64)| ms as i64);
        Kept {
            at_ms,
            at: rfc3339(UnixMs(at_ms)),
            who: field("who"),
            from: field("from"),
            call: field("call"),
            subject: field("subject"),
            result: field("result"),
            status: field("status"),
        }
    };
    Ok(Json(Page { items: trail.iter().map(kept).collect(), next }))
}

/// Cut to a length that a line of log and an entry can bear.
fn clipped(text: &str) -> String {
    let end = (0..=TEXT.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text[..end].to_owned()
}
