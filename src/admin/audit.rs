//! Audit log of the API: who did what, with which result. Every call that may change something gets a line in the log and
//! an entry in a bounded stream of the store, which all replicas share.
//!
//! `router::guard_call` writes both, so that no handler can forget to. A handler adds details by returning an [`AuditNote`]
//! beside its answer; a problem notes its own sentence.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use serde::Deserialize;
use tracing::{info, warn};
use utoipa::IntoParams;

use super::audit_note::AuditNote;
use super::auth::Caller;
use super::context::Admin;
use super::extract::QueryParams;
use super::page::{limit, read_cursor, write_cursor};
use super::problem::{Problem, StoreAway};
use super::times::rfc3339;
use crate::api::{AuditEntry, Page};
use crate::domain::UnixMs;
use crate::store::{AuditLogEntry, AuditPlace};

/// Longest text of a record, bytes. Callers choose paths and ids, so these have no other limit.
const MAX_TEXT_BYTES: usize = 512;
/// The same for what a call is about, in the log alone: a hundred ids.
const MAX_LOGGED_SUBJECT_BYTES: usize = 16 << 10;

/// Address of a connection's other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerAddress(pub(super) SocketAddr);

/// Record of one call, as the audit log keeps it.
#[derive(Clone, Debug, Default)]
pub(super) struct AuditRecord {
    who: String,
    from: String,
    call: String,
    because: String,
    subject: String,
    result: String,
    status: String,
}

impl AuditRecord {
    /// The record as fields of the store's stream.
    fn fields(&self) -> [(&str, &str); 7] {
        [
            ("who", &self.who),
            ("from", &self.from),
            ("call", &self.call),
            ("because", &self.because),
            ("subject", &self.subject),
            ("result", &self.result),
            ("status", &self.status),
        ]
    }

    fn log(&self) {
        let Self {
            who,
            from,
            call,
            because,
            subject,
            result,
            status,
        } = self;
        info!(
            who,
            from, call, because, subject, result, status, "a call of the admin API"
        );
    }
}

/// A caller's call under way. A write that is dropped before its end (the caller went away) is audited as unfinished.
pub(super) struct AuditedCall {
    admin: Arc<Admin>,
    caller: Caller,
    record: Option<AuditRecord>,
}

impl AuditedCall {
    /// Begins the record of a caller's call.
    pub(super) fn begin(admin: &Arc<Admin>, parts: &Parts, caller: &Caller) -> Self {
        let peer = parts.extensions.get::<PeerAddress>();
        let record = AuditRecord {
            who: caller.name.to_string(),
            from: peer.map_or_else(String::new, |peer| peer.0.to_string()),
            call: clipped(&format!("{} {}", parts.method, parts.uri), MAX_TEXT_BYTES),
            ..AuditRecord::default()
        };
        Self {
            admin: Arc::clone(admin),
            caller: caller.clone(),
            record: Some(record),
        }
    }

    /// Completes the record with the call's answer, logs it, and returns it for the store. `None` for a call that only
    /// looked, at nothing that is noted, and was not refused.
    pub(super) fn end(mut self, response: &Response) -> Option<AuditRecord> {
        let mut record = self.take()?;
        let note = response.extensions().get::<AuditNote>();
        let status = response.status();
        let looked = note.is_some() && (status.is_success() || status == StatusCode::FORBIDDEN);
        if !(self.caller.acts || looked) {
            return None;
        }
        if let Some(note) = note {
            if record.subject.is_empty() {
                record.subject = clipped(&note.subject, MAX_LOGGED_SUBJECT_BYTES);
            }
            record.result = clipped(&note.result, MAX_TEXT_BYTES);
        }
        record.status = status.as_u16().to_string();
        record.log();
        Some(record)
    }

    /// The record, with what the call is about and why the caller has made it.
    fn take(&mut self) -> Option<AuditRecord> {
        let mut record = self.record.take()?;
        let subject = self.caller.subject().unwrap_or_default();
        record.subject = clipped(subject, MAX_LOGGED_SUBJECT_BYTES);
        let because = self.caller.actor().because;
        record.because = because.map_or_else(String::new, String::from);
        Some(record)
    }
}

impl Drop for AuditedCall {
    fn drop(&mut self) {
        if let Some(mut record) = self.take().filter(|_| self.caller.acts) {
            "the caller went away before the end; it may have been done"
                .clone_into(&mut record.result);
            record.log();
            self.admin
                .tasks
                .spawn("admin:audit", Arc::clone(&self.admin).keep(record));
        }
    }
}

impl Admin {
    /// Appends a record to the audit log of the store. A failure is logged as a warning beside the record's own line.
    pub(super) async fn keep(self: Arc<Self>, mut record: AuditRecord) {
        record.subject = clipped(&record.subject, MAX_TEXT_BYTES);
        let kept = match self.store() {
            Ok(store) => {
                let fields = record.fields();
                self.ask(store.append_to_audit_log(&record.who, &fields))
                    .await
            }
            Err(problem) => Err(problem),
        };
        if let Err(problem) = kept {
            warn!(
                error = problem.detail(),
                "an audit entry could not be stored; it is in the log only"
            );
        }
    }
}

/// Query of the audit log.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditQuery {
    /// `next` of the page before.
    cursor: Option<String>,
    /// Items of a page, 1 to 1000; 100 if not given.
    #[param(minimum = 1, maximum = 1000, value_type = Option<u32>)]
    limit: Option<String>,
}

/// Audited calls, newest first
///
/// Of each caller the last ten thousand calls that may have changed something, showed a body, or were refused, over all
/// replicas, for ninety days after the last one. The log has all of them.
#[utoipa::path(
    get, path = "/api/v1/audit", operation_id = "listAudit", params(AuditQuery),
    responses(
        (status = 200, description = "The entries.", body = Page<AuditEntry>),
        (status = 400, description = "A limit or a cursor that is none."),
        StoreAway,
    )
)]
pub(super) async fn list(
    Extract(admin): Extract<Arc<Admin>>,
    QueryParams(query): QueryParams<AuditQuery>,
) -> Result<Json<Page<AuditEntry>>, Problem> {
    let limit = limit(query.limit.as_deref())?;
    let cursor_scope = "audit".to_owned();
    let before = query
        .cursor
        .as_deref()
        .map(|c| read_cursor::<_, (u64, u64, String)>(c, &cursor_scope))
        .transpose()?;
    let before = before.map(|(at_ms, number, caller)| AuditPlace {
        at_ms,
        number,
        caller,
    });
    let entries = admin
        .browse(admin.store()?.audit_log(before.as_ref(), limit))
        .await?;
    let last = entries.last().filter(|_| entries.len() == limit);
    let next = last
        .map(|AuditLogEntry { place, .. }| {
            write_cursor(&cursor_scope, (place.at_ms, place.number, &place.caller))
        })
        .transpose()?;
    Ok(Json(Page {
        items: entries.iter().map(audit_entry).collect(),
        next,
    }))
}

/// An entry of the store, as answers show it.
fn audit_entry(AuditLogEntry { place, fields }: &AuditLogEntry) -> AuditEntry {
    let field = |name| fields.get(name).cloned().unwrap_or_default();
    let at_ms = i64::try_from(place.at_ms).unwrap_or(i64::MAX);
    AuditEntry {
        at_ms,
        at: rfc3339(UnixMs(at_ms)),
        who: field("who"),
        from: field("from"),
        call: field("call"),
        because: field("because"),
        subject: field("subject"),
        result: field("result"),
        status: field("status"),
    }
}

/// A text of this many bytes at most. One that is longer is cut, and ends with `…`.
fn clipped(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let mut end = most - '…'.len_utf8();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_two_characters_and_shows_it() {
        for most in 3..12 {
            let text = "aé€𝄞".repeat(3);
            let cut = clipped(&text, most);
            assert!(cut.len() <= most && cut.ends_with('…'), "{cut}");
            assert!(text.starts_with(cut.trim_end_matches('…')), "{cut}");
        }
        assert_eq!(clipped("aé€", 6), "aé€");
        assert_eq!(clipped("", 0), "");
    }
}
