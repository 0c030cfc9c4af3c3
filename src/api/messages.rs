//! Messages of the store, and commands on them.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

use super::{TrailEventView, Word};
use crate::domain::Because;

/// A message of the store, without its body.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Message)]
pub struct MessageView {
    /// Its producer's name for it, or the `~` id that Postdate gave it.
    pub id: String,
    /// The route.
    pub route: String,
    /// Which message this is, as it is now: in quotes an `If-Match` of a cancel, a reschedule or a replace.
    pub version: String,
    /// When it is to be published, Unix ms; after a failed publish: when next.
    pub due_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub due: Option<String>,
    /// When it was to be delivered, Unix ms: a failed publish moves `due_ms`, not this.
    pub asked_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub asked: Option<String>,
    #[serde(flatten)]
    pub(crate) request: RequestView,
    /// Its state.
    #[schema(value_type = ShownState)]
    pub state: Word<ShownState>,
    /// Number of the hand-out that comes next or is under way; the first is 1.
    pub attempt: u32,
    /// How many of its publishes failed.
    pub failures: u32,
    /// How late it is, ms; absent while it is not late.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub late_by_ms: Option<i64>,
    /// Why it is late, as far as is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub why: Option<String>,
    /// The last of these failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub last_error: Option<LastError>,
    /// Its target: a topic, or `exchange/routing-key`.
    pub target: String,
    /// Kafka's record key or AMQP's routing key, as text (not UTF-8: base64, and `key_is_base64`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub key: Option<String>,
    /// True if `key` is base64.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub key_is_base64: bool,
    /// Length of its body, bytes.
    pub size: usize,
    /// Its headers, in their order, repeats kept.
    pub headers: Vec<HeaderView>,
    /// Position that it was read at: Kafka's partition and offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub position: Option<PositionView>,
    /// The last of its failures, oldest first; where a single message is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub history: Option<Vec<FailureView>>,
    /// Its id among the dead letters, if it is dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub dead_id: Option<String>,
    /// The newest of its events that its route's trail has, at most 20, oldest first; where a single message is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub trail: Vec<TrailEventView>,
}

/// State of a message: `published` only until the rest of its bundle has gone, too; `dead`: see `/api/v1/dead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = StoredState)]
#[serde(rename_all = "snake_case")]
pub enum ShownState {
    /// It waits.
    Pending,
    /// It is being published.
    InFlight,
    /// Its target has confirmed it.
    Published,
    /// It is a dead letter.
    Dead,
}

/// When a message came, and what its producer asked for. Absent of messages that an earlier version stored.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct RequestView {
    /// When it was read from its source, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub received_ms: Option<i64>,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub received: Option<String>,
    /// The delay that was asked for, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub delay_ms: Option<i64>,
    /// The moment that was asked for, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub deliver_at_ms: Option<i64>,
    /// How often its consumers have given it back. Absent: never, or its route does not count (`consumer_retry`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub given_back: Option<u32>,
    /// The last moment at which it is wanted, Unix ms. Absent: for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub expires_ms: Option<i64>,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub expires: Option<String>,
}

/// A failed publish.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LastError {
    /// When, Unix ms.
    pub at_ms: i64,
    /// Its reason: a label of `publish_failures_total`.
    pub reason: String,
    /// The words of the broker or its client, cut to 200 bytes.
    pub error: String,
}

/// A position in a Kafka topic.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Position)]
pub struct PositionView {
    /// The topic, of what was read by a route that reads several.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub topic: Option<String>,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
}

/// One failure.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Failure)]
pub struct FailureView {
    /// When, Unix ms.
    pub at_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub at: Option<String>,
    /// The reason, in the contract's word.
    pub reason: String,
    /// The words of the broker or of Postdate.
    pub error: String,
}

/// One header.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Header)]
pub struct HeaderView {
    /// Its name.
    pub name: String,
    /// Its value: text, number, bool, null, table or array; bytes that are not UTF-8 as
    /// `{"base64": "..."}`.
    #[schema(value_type = Option<Value>)]
    pub value: Value,
}

/// Messages that wait.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MessagesPage {
    /// Items of this page, in the list's order.
    pub items: Vec<MessageView>,
    /// `cursor` of the next page; null: this is the last.
    #[schema(required)]
    pub next: Option<String>,
    /// Number of messages that were looked at for this page.
    pub scanned: usize,
}

/// Answer to a command that was carried out.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CommandAnswer {
    /// The message's id within the route.
    pub id: String,
    /// The route.
    pub route: String,
    /// The command's result.
    #[schema(value_type = CommandResult)]
    pub result: Word<CommandResult>,
}

/// Result of a command that was carried out.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommandResult {
    /// It will not be published.
    Cancelled,
    /// It has its new due time.
    Rescheduled,
    /// It is what the call made of it.
    Replaced,
}

/// Most ids of one call that cancels many.
pub const MAX_CANCELLED: usize = 1000;

/// Messages to be cancelled.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = CancelMany)]
#[serde(deny_unknown_fields)]
pub struct CancelManyRequest {
    /// Their own ids, or their `~` ids.
    #[schema(min_items = 1, max_items = 1000)]
    pub ids: Vec<String>,
    /// Why, in the caller's own words: one line of at most 500 bytes, for audit, trail and log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, max_length = 500)]
    pub because: Option<Because>,
}

/// What became of a message that was to be cancelled.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CancelAnswer {
    /// The id, as the request has it.
    pub id: String,
    /// The route.
    pub route: String,
    /// What became of it.
    #[schema(value_type = CancelResult)]
    pub result: Word<CancelResult>,
}

/// What became of messages that were to be cancelled.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Cancelled)]
pub struct CancelledPage {
    /// One item for each id, in the order of the request.
    pub items: Vec<CancelAnswer>,
}

/// What becomes of a message that is to be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelResult {
    /// It will not be published.
    Cancelled,
    /// It is being published right now.
    InFlight,
    /// It was published, as far as the route remembers names.
    Published,
    /// No message of this id waits.
    Unknown,
}

/// A new due time: exactly one of the two.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Reschedule)]
#[serde(deny_unknown_fields)]
pub struct RescheduleRequest {
    /// The moment, Unix ms; a past one: at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 100_000_000_000_i64)]
    pub due_ms: Option<i64>,
    /// So long from now, as `x-delay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub delay: Option<Timestamp>,
    /// Why, in the caller's own words: one line of at most 500 bytes, for audit, trail and log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, max_length = 500)]
    pub because: Option<Because>,
}

/// Value of a delay header: a text, or a whole number of milliseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a delay or a moment is a text or a whole number of milliseconds"
)]
pub enum Timestamp {
    /// Milliseconds.
    Ms(u64),
    /// A text, as a producer would write it.
    Text(String),
}

impl PartialSchema for Timestamp {
    fn schema() -> RefOr<Schema> {
        let kinds = SchemaType::Array(vec![Type::String, Type::Integer]);
        let meaning = "As a delay header holds it: a text, or a whole number of milliseconds.";
        ObjectBuilder::new()
            .schema_type(kinds)
            .minimum(Some(0))
            .description(Some(meaning))
            .into()
    }
}

impl ToSchema for Timestamp {}

impl Timestamp {
    /// The text of the header.
    pub fn text(&self) -> String {
        match self {
            Self::Ms(ms) => ms.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

/// A body, or its beginning.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = MessageBody)]
pub struct MessageBodyView {
    /// Length of the whole body, bytes.
    pub size: usize,
    /// Bytes of it that are in `base64`: all of it, or its first 256 KiB.
    pub shown: usize,
    /// These bytes.
    #[schema(content_encoding = "base64")]
    pub base64: String,
}
