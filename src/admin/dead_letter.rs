//! A dead letter, as answers show it.

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::message::{
    FailureView, HeaderView, PositionView, RequestView, failure_views, header_views, position_view,
};
use super::times::rfc3339;
use crate::domain::{DeadReason, Entry, Flags, Text, UnixMs};
use crate::store::{DeadBody, DeadId};

/// Bytes that escapes may add to a short text of whatever content.
const SHORT_BYTES: usize = 4096;

/// A dead letter, as answers show it.
#[derive(Serialize, ToSchema)]
#[schema(as = DeadLetter)]
pub(super) struct DeadLetterView {
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
    /// Reason of its death, in the contract's word.
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
    /// Content of its message, unless it cannot be read.
    #[serde(flatten)]
    message: Option<DeadLetterMessage>,
}

/// Content of a dead letter's message.
#[derive(Serialize, ToSchema)]
struct DeadLetterMessage {
    /// The due time that was asked for, Unix ms; absent of an invalid message, which has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    due_ms: Option<i64>,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    due: Option<String>,
    #[serde(flatten)]
    request: RequestView,
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
    /// True if the body was not kept: it was too large, or its record could not be opened (`undecodable`).
    left_out: bool,
    /// Position that it was read at: Kafka's partition and offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    position: Option<PositionView>,
    /// Its last failures, oldest first.
    history: Vec<FailureView>,
    /// Its headers: name and value, in their order.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    headers: Option<Vec<HeaderView>>,
    /// Its body, where it is text and was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = String, required = false)]
    body: Option<TextBody>,
    /// Its body, where it is no text, or one that JSON would write longer than this, and was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, content_encoding = "base64", value_type = String, required = false)]
    body_base64: Option<Base64Body>,
}

/// Level of detail at which a dead letter is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DetailLevel {
    Outline,
    Headers,
    Body,
}

/// A dead letter, as answers show it at this level of detail.
pub(super) fn dead_letter_view(
    id: &DeadId,
    at: UnixMs,
    body: &DeadBody,
    detail: DetailLevel,
) -> DeadLetterView {
    let mut view = DeadLetterView {
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
        Err(why) => {
            let holds = body
                .unopened
                .as_ref()
                .map(|unopened| format!("; it holds {} messages", unopened.count()));
            view.error = Some(format!("{why}{}", holds.unwrap_or_default()));
        }
        Ok(bundle) => match bundle.entries.first() {
            None => view.error = Some("its content was not in the store".to_owned()),
            Some(entry) => {
                view.id = entry.id.as_ref().map(ToString::to_string);
                view.error = entry
                    .history
                    .last()
                    .map(|failure| failure.error.to_string());
                let target = bundle.target.as_str();
                view.message = Some(message_of(id.reason(), entry, body.size, target, detail));
            }
        },
    }
    view
}

/// The content of a dead letter's message, at this level of detail.
fn message_of(
    reason: DeadReason,
    entry: &Entry,
    size: usize,
    target: &str,
    detail: DetailLevel,
) -> DeadLetterMessage {
    let due = match reason {
        DeadReason::Invalid(_) => None,
        _ => Some(entry.asked_due()),
    };
    let message = &entry.message;
    let wanted = message
        .body
        .as_ref()
        .filter(|_| detail == DetailLevel::Body);
    let body = wanted
        .cloned()
        .and_then(Text::from_utf8)
        .filter(is_short_in_json)
        .map(TextBody);
    DeadLetterMessage {
        due_ms: due.map(|due| due.0),
        due: due.and_then(rfc3339),
        request: RequestView::of(entry),
        attempt: entry.handouts,
        target: target.to_owned(),
        key: message
            .key
            .as_ref()
            .map(|key| String::from_utf8_lossy(key).into_owned()),
        size,
        left_out: entry.flags.has(Flags::LEFT_OUT),
        position: position_view(entry),
        history: failure_views(entry),
        headers: (detail != DetailLevel::Outline).then(|| header_views(message)),
        body_base64: wanted.filter(|_| body.is_none()).cloned().map(Base64Body),
        body,
    }
}

/// Reports whether JSON writes this text no longer than base64 would: a control character takes six bytes.
fn is_short_in_json(text: &Text) -> bool {
    let extra: usize = text
        .as_str()
        .bytes()
        .map(|byte| match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 1,
            0..0x20 => 5,
            _ => 0,
        })
        .sum();
    extra <= text.as_str().len() / 3 + SHORT_BYTES
}

/// A body that is text.
struct TextBody(Text);

impl Serialize for TextBody {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.0.as_str())
    }
}

/// A body that is written as base64, straight into the answer: it is not held a second time.
struct Base64Body(Bytes);

impl Serialize for Base64Body {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&Base64Display::new(&self.0, &STANDARD))
    }
}
