//! A dead letter, as answers show it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Serialize;
use utoipa::ToSchema;

use super::message::{Header, headers};
use super::times::rfc3339;
use crate::domain::{Entry, Failure, Flags, UnixMs};
use crate::store::{DeadBody, DeadId};

/// A dead letter.
#[derive(Serialize, ToSchema)]
#[schema(as = DeadLetter)]
pub(super) struct Letter {
    /// Its own id.
    dead_id: String,
    /// Its message's id within the route.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    id: Option<String>,
    /// The route.
    route: String,
    /// Always `dead`.
    state: &'static str,
    /// Why it is dead, in the contract's word.
    reason: &'static str,
    /// The last error, or why it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<String>,
    /// When it became one, Unix ms.
    dead_at_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    dead_at: Option<String>,
    /// Bytes that it takes in the store.
    stored_bytes: usize,
    /// What is known of its message, unless it cannot be read.
    #[serde(flatten)]
    message: Option<Known>,
}

/// What is known of a dead letter's message.
#[derive(Serialize, ToSchema)]
struct Known {
    /// The due time that was asked for, Unix ms.
    due_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    due: Option<String>,
    /// How often it was handed out.
    attempt: u32,
    /// The target it was for; empty: the route's own.
    target: String,
    /// Kafka's key, or the routing key; as text where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    key: Option<String>,
    /// Length of the body.
    size: usize,
    /// Whether the body was too large to be kept.
    left_out: bool,
    /// Where it was read: Kafka's partition and offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    position: Option<Position>,
    /// Its last failures, oldest first.
    history: Vec<Failed>,
    /// Its headers: name and value, in their order.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    headers: Option<Vec<Header>>,
    /// Its body, where it is text and was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    body: Option<String>,
    /// Its body, where it is no text and was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, content_encoding = "base64")]
    body_base64: Option<String>,
}

/// A place in a Kafka topic.
#[derive(Serialize, ToSchema)]
struct Position {
    /// The partition.
    partition: i32,
    /// The offset.
    offset: i64,
}

/// One failure.
#[derive(Serialize, ToSchema)]
#[schema(as = Failure)]
struct Failed {
    /// When, Unix ms.
    at_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    at: Option<String>,
    /// Why, in the contract's word.
    reason: String,
    /// What the broker or Postdate said.
    error: String,
}

/// How much of a letter is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Much {
    Outline,
    Headers,
    Body,
}

/// What is shown of one.
pub(super) fn letter(id: &DeadId, at: UnixMs, body: &DeadBody, much: Much) -> Letter {
    let mut letter = Letter {
        dead_id: id.to_string(),
        id: None,
        route: id.route().to_owned(),
        state: "dead",
        reason: id.reason().as_str(),
        error: None,
        dead_at_ms: at.0,
        dead_at: rfc3339(at),
        stored_bytes: body.bytes,
        message: None,
    };
    match &body.bundle {
        Err(why) => letter.error = Some(why.to_string()),
        Ok(bundle) => match bundle.entries.first() {
            None => letter.error = Some("its content was not in the store".to_owned()),
            Some(entry) => {
                letter.id = entry.id.as_ref().map(ToString::to_string);
                letter.error = entry.history.last().map(|failure| failure.error.to_string());
                letter.message = Some(known(entry, bundle.target.as_str(), much));
            }
        },
    }
    letter
}

fn known(entry: &Entry, target: &str, much: Much) -> Known {
    let message = &entry.message;
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).ok();
    let wanted = message.body.as_ref().filter(|_| much == Much::Body);
    let body = wanted.and_then(text);
    let failed = |failure: &Failure| Failed {
        at_ms: failure.at.0,
        at: rfc3339(failure.at),
        reason: failure.reason.to_string(),
        error: failure.error.to_string(),
    };
    Known {
        due_ms: entry.asked_due().0,
        due: rfc3339(entry.asked_due()),
        attempt: entry.handouts,
        target: target.to_owned(),
        key: message.key.as_ref().map(|key| String::from_utf8_lossy(key).into_owned()),
        size: message.body_len(),
        left_out: entry.flags.has(Flags::LEFT_OUT),
        position: entry.position.map(|at| Position { partition: at.partition, offset: at.offset }),
        history: entry.history.iter().map(failed).collect(),
        headers: (much != Much::Outline).then(|| headers(message)),
        body_base64: wanted.filter(|_| body.is_none()).map(|bytes| STANDARD.encode(bytes)),
        body,
    }
}
