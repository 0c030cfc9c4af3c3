//! Dead letters, and what is done with them.

use std::fmt;

use base64::Engine;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::{FailureView, HeaderView, PositionView, RequestView};
use crate::domain::Text;

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
    /// Kafka's key, or the routing key; as text where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub key: Option<String>,
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
