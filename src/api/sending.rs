//! Messages that callers send, or put in the place of others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Timestamp, Word};
use crate::domain::Because;

/// A message to be sent.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Send)]
#[serde(deny_unknown_fields)]
pub struct SendRequest {
    /// As `x-delay`: `"2s"`, `"PT1.5S"`, or milliseconds. Without `delay` and `at`: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub delay: Option<Timestamp>,
    /// As `x-deliver-at`: RFC 3339, or Unix milliseconds. Not together with `delay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub at: Option<Timestamp>,
    /// The producer's own name for it, as `x-delay-id`; a fresh one if none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_length = 1, max_length = 256)]
    pub id: Option<String>,
    /// The topic, where the route reads several.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub topic: Option<String>,
    /// Kafka's record key. Only on routes from Kafka.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub key: Option<String>,
    /// Further headers; `x-delay-target` and `x-delay-expires` may be among them, the other delay headers not.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The body, as text; empty if none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub body: Option<String>,
    /// The body, as bytes. Not together with `body`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, content_encoding = "base64")]
    pub body_base64: Option<String>,
    /// Answer when it has ended. For messages due within an hour.
    #[serde(default)]
    pub wait: bool,
    /// Why, in the caller's own words: one line of at most 500 bytes, for audit, trail and log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, max_length = 500)]
    pub because: Option<Because>,
}

/// What a message gets instead of what it has. What is not named stays. At least one of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Replace)]
#[serde(deny_unknown_fields)]
pub struct ReplaceRequest {
    /// Due so long from now, as `x-delay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub delay: Option<Timestamp>,
    /// Due at this moment, as `x-deliver-at`. Not together with `delay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub at: Option<Timestamp>,
    /// Kafka's record key. Only on routes from Kafka.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub key: Option<String>,
    /// All of its headers; `x-delay-target` and `x-delay-expires` may be among them and give it another target or another
    /// expiry, the other delay headers not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub headers: Option<BTreeMap<String, String>>,
    /// The body, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub body: Option<String>,
    /// The body, as bytes. Not together with `body`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, content_encoding = "base64")]
    pub body_base64: Option<String>,
    /// Why, in the caller's own words: one line of at most 500 bytes, for audit, trail and log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, max_length = 500)]
    pub because: Option<Because>,
}

/// A message that is in its route's ingress.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Sent)]
pub struct AcceptedMessage {
    /// The message's id within the route.
    pub id: String,
    /// The route.
    pub route: String,
}

/// The end of a message that was followed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = MessageEnd)]
pub struct SendAnswer {
    /// The message's id within the route.
    pub id: String,
    /// The route.
    pub route: String,
    /// The outcome; `dead`: kept as a dead letter, or dropped by policy.
    #[schema(value_type = SendOutcome)]
    pub result: Word<SendOutcome>,
    /// When its target confirmed it, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub published_at_ms: Option<i64>,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub published_at: Option<String>,
    /// When it was due, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub due_ms: Option<i64>,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub due: Option<String>,
    /// Confirm minus due time, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub lateness_ms: Option<f64>,
    /// Number of the hand-out; the first is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub attempt: Option<u32>,
    /// Of a dead one: the contract's reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
}

/// How a message ended that was followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SendOutcome {
    /// Its target has confirmed it.
    Published,
    /// It is a dead letter, or was dropped by policy.
    Dead,
}
