//! Dead letters, and what is done with them.

use std::fmt;

use base64::Engine;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::{FailureView, HeaderView, PositionView, RequestView, Timestamp, Word};
use crate::domain::{Because, Text};

/// A dead letter, as answers show it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = DeadLetter)]
pub struct DeadLetterView {
    /// Its own id.
    pub dead_id: String,
    /// Its message's id within the route.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub id: Option<String>,
    /// The route.
    pub route: String,
    /// Always `dead`.
    pub state: String,
    /// Reason of its death, in the contract's word.
    pub reason: String,
    /// The last error, or why it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
    /// When it became one, Unix ms.
    pub dead_at_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub dead_at: Option<String>,
    /// Bytes that it takes in the store.
    pub stored_bytes: usize,
    /// Content of its message, unless it cannot be read.
    #[serde(flatten)]
    pub(crate) message: Option<DeadLetterMessage>,
}

/// Content of a dead letter's message.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadLetterMessage {
    /// The due time that was asked for, Unix ms; absent of an invalid message, which has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub due_ms: Option<i64>,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub due: Option<String>,
    #[serde(flatten)]
    pub(crate) request: RequestView,
    /// How often it was handed out.
    pub attempt: u32,
    /// The target it was for; empty: the route's own.
    pub target: String,
    /// Kafka's record key or AMQP's routing key, as text (not UTF-8: base64, and `key_is_base64`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub key: Option<String>,
    /// True if `key` is base64.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub key_is_base64: bool,
    /// Length of the body.
    pub size: usize,
    /// True if the body was not kept: it was too large, or its record could not be opened (`undecodable`).
    pub left_out: bool,
    /// Position that it was read at: Kafka's partition and offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub position: Option<PositionView>,
    /// Its last failures, oldest first.
    pub history: Vec<FailureView>,
    /// Its headers: name and value, in their order.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub headers: Option<Vec<HeaderView>>,
    /// Its body, where it is text and was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = String, required = false)]
    pub body: Option<TextBody>,
    /// Its body, where it is no text, or one that JSON would write longer than this, and was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, content_encoding = "base64", value_type = String, required = false)]
    pub body_base64: Option<Base64Body>,
}

/// A body that is text.
#[derive(Clone, Debug)]
pub struct TextBody(pub Text);

impl Serialize for TextBody {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.0.as_str())
    }
}

impl<'de> Deserialize<'de> for TextBody {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from).map(|text| Self(text.into()))
    }
}

/// A body that is written as base64, straight into the answer: it is not held a second time.
#[derive(Clone, Debug)]
pub struct Base64Body(pub Bytes);

impl fmt::Display for Base64Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Base64Display::new(&self.0, &STANDARD).fmt(f)
    }
}

impl Serialize for Base64Body {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Base64Body {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bytes = STANDARD.decode(String::deserialize(from)?);
        bytes
            .map(|bytes| Self(bytes.into()))
            .map_err(D::Error::custom)
    }
}

/// Filter of dead letters. All given conditions hold together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadLetterFilter {
    /// Of this route.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub route: Option<String>,
    /// Dead for this reason, in the contract's word.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
    /// Dead since this moment: RFC 3339, or Unix milliseconds as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub from: Option<String>,
    /// Dead before this moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub to: Option<String>,
    /// Whose message's id begins so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub id_prefix: Option<String>,
    /// Whose message's key is this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub key: Option<String>,
    /// Whose messages have all of these headers, each `NAME:VALUE`: the name in any case, the value whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub header: Vec<String>,
    /// Whose messages' bodies have this text in them. Needs the right to see bodies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub contains: Option<String>,
}

/// Selection of dead letters: `ids`, or `filter`. An empty filter means all of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = DeadAct)]
#[serde(deny_unknown_fields)]
pub struct DeadActionRequest {
    /// Ids of dead letters, or of their messages; at most 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_items = 100)]
    pub ids: Option<Vec<String>>,
    /// The route, where a message's id is not unique. Only with `ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub route: Option<String>,
    /// Conditions that select them. Acts on at most 100 a call: `next` of the answer is `cursor` of the next call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub filter: Option<DeadLetterFilter>,
    /// Where to go on. Only with `filter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub cursor: Option<String>,
    /// Redrive only: another target of the route, as `allow_targets` writes it, or its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub target: Option<String>,
    /// Redrive only: due so long from now, as `x-delay`; now, if neither this nor `at` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub delay: Option<Timestamp>,
    /// Redrive only: due at this moment, as `x-deliver-at`; a past one: now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub at: Option<Timestamp>,
    /// Redrive only: due evenly over so long from then on, in their order, as `x-delay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub spread: Option<Timestamp>,
    /// With `spread`: the number of messages that it is for, where several calls redrive them; those of this call, if not
    /// given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub spread_over: Option<u64>,
    /// With `spread_over`: how many of them the calls before this one have taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub spread_begins: Option<u64>,
    /// Why, in the caller's own words: one line of at most 500 bytes, for audit, trail and log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, max_length = 500)]
    pub because: Option<Because>,
}

/// Results of an action on dead letters.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadLetterResults {
    /// One item for each that was asked for or found.
    pub items: Vec<DeadActionItem>,
    /// `cursor` of the next call; null: there is no more.
    #[schema(required)]
    pub next: Option<String>,
}

/// Result of an action on one dead letter.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = DeadActResult)]
pub struct DeadActionItem {
    /// As it was asked for: a dead letter's id, or a message's.
    pub id: String,
    /// The dead letter, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub dead_id: Option<String>,
    /// Its route.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub route: Option<String>,
    /// The result.
    #[schema(value_type = DeadActionEnd)]
    pub result: Word<DeadActionEnd>,
    /// Why it was not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
}

/// Result of an action on one dead letter. `unknown`: it is not there (any more); `ambiguous`: several dead letters have
/// this message id; `refused`: a rule of its route keeps it where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = DeadActEnd)]
#[serde(rename_all = "snake_case")]
pub enum DeadActionEnd {
    /// It is due again.
    Redriven,
    /// It is gone for good.
    Dropped,
    /// It is not there (any more).
    Unknown,
    /// Several dead letters have this message id.
    Ambiguous,
    /// A rule of its route keeps it where it is.
    Refused,
}
