//! A message of the store, as answers show it: without its body.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::context::Admin;
use super::problem::Problem;
use super::times::rfc3339;
use super::trail::TrailEventView;
use super::troubles::lateness;
use crate::domain::{
    Entry, Failure, HeaderValue, KafkaPosition, Message, RequestedTime, RouteName, TargetRef, Text,
};
use crate::store::{StoredMessage, StoredState};

/// A message of the store, without its body.
#[derive(Serialize, ToSchema)]
#[schema(as = Message)]
pub(super) struct MessageView {
    /// Its producer's name for it, or the `~` id that Postdate gave it.
    id: String,
    /// The route.
    route: String,
    /// Which message this is, as it is now: in quotes an `If-Match` of a cancel or a reschedule.
    version: String,
    /// When it is to be published, Unix ms; after a failed publish: when next.
    due_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    due: Option<String>,
    /// When it was to be delivered, Unix ms: a failed publish moves `due_ms`, not this.
    asked_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    asked: Option<String>,
    #[serde(flatten)]
    request: RequestView,
    /// Its state.
    state: ShownState,
    /// Number of the hand-out that comes next or is under way; the first is 1.
    attempt: u32,
    /// How many of its publishes failed.
    failures: u32,
    /// How late it is, ms; absent while it is not late.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    late_by_ms: Option<i64>,
    /// Why it is late, as far as is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    why: Option<String>,
    /// The last of these failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    last_error: Option<LastError>,
    /// Its target: a topic, or `exchange/routing-key`.
    target: String,
    /// Kafka's record key or AMQP's routing key, as text (not UTF-8: base64, and `key_is_base64`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    key: Option<String>,
    /// True if `key` is base64.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    key_is_base64: bool,
    /// Length of its body, bytes.
    size: usize,
    /// Its headers, in their order, repeats kept.
    headers: Vec<HeaderView>,
    /// Position that it was read at: Kafka's partition and offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    position: Option<PositionView>,
    /// The last of its failures, oldest first; where a single message is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    history: Option<Vec<FailureView>>,
    /// Its id among the dead letters, if it is dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    dead_id: Option<String>,
    /// The newest of its events that its route's trail has, at most 20, oldest first; where a single message is asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    trail: Vec<TrailEventView>,
}

/// When a message came, and what its producer asked for. Absent of messages that an earlier version stored.
#[derive(Default, Serialize, ToSchema)]
pub(super) struct RequestView {
    /// When it was read from its source, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    received_ms: Option<i64>,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    received: Option<String>,
    /// The delay that was asked for, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    delay_ms: Option<i64>,
    /// The moment that was asked for, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    deliver_at_ms: Option<i64>,
}

impl RequestView {
    /// What is known of a message's request.
    pub(super) fn of(entry: &Entry) -> Self {
        let Some(request) = entry.request else {
            return Self::default();
        };
        let (delay_ms, deliver_at_ms) = match request.time {
            RequestedTime::Delay(ms) => (Some(ms), None),
            RequestedTime::At(at) => (None, Some(at.0)),
        };
        Self {
            received_ms: Some(request.received.0),
            received: rfc3339(request.received),
            delay_ms,
            deliver_at_ms,
        }
    }
}

/// A failed publish.
#[derive(Serialize, ToSchema)]
pub(super) struct LastError {
    /// When, Unix ms.
    at_ms: i64,
    /// Its reason: a label of `publish_failures_total`.
    reason: String,
    /// The words of the broker or its client, cut to 200 bytes.
    error: String,
}

/// A position in a Kafka topic.
#[derive(Serialize, ToSchema)]
#[schema(as = Position)]
pub(super) struct PositionView {
    /// The partition.
    pub(super) partition: i32,
    /// The offset.
    pub(super) offset: i64,
}

impl From<KafkaPosition> for PositionView {
    fn from(at: KafkaPosition) -> Self {
        Self {
            partition: at.partition,
            offset: at.offset,
        }
    }
}

/// One failure.
#[derive(Serialize, ToSchema)]
#[schema(as = Failure)]
pub(super) struct FailureView {
    /// When, Unix ms.
    at_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    at: Option<String>,
    /// The reason, in the contract's word.
    reason: String,
    /// The words of the broker or of Postdate.
    error: String,
}

/// One header.
#[derive(Serialize, ToSchema)]
#[schema(as = Header)]
pub(super) struct HeaderView {
    /// Its name.
    name: String,
    /// Its value: text, number, bool, null, table or array; bytes that are not UTF-8 as
    /// `{"base64": "..."}`.
    #[schema(value_type = Option<Value>)]
    value: Value,
}

/// State of a message: `published` only until the rest of its bundle has gone, too; `dead`: see `/api/v1/dead`.
#[derive(Serialize, ToSchema)]
#[schema(as = StoredState)]
#[serde(rename_all = "snake_case")]
enum ShownState {
    Pending,
    InFlight,
    Published,
    Dead,
}

/// The last dead letter of a message id, shown as a message; `None` if there is none that can be read.
pub(super) async fn dead_message(
    admin: &Admin,
    route: &RouteName,
    id: &str,
) -> Result<Option<MessageView>, Problem> {
    let store = admin.store()?;
    let ids = admin.browse(store.dead_of_message(route, id)).await?;
    let Some(dead) = ids.last() else {
        return Ok(None);
    };
    let body = admin
        .browse(store.dead_outlines(std::slice::from_ref(dead)))
        .await?
        .pop()
        .flatten();
    let Some(body) = body else { return Ok(None) };
    let size = body.size;
    let Ok(bundle) = body.bundle else {
        return Ok(None);
    };
    let Some(entry) = bundle.entries.first().cloned() else {
        return Ok(None);
    };
    let found = StoredMessage {
        route: route.as_str().to_owned(),
        id: id.into(),
        state: StoredState::Published,
        version: Text::default(),
        target: bundle.target.clone(),
        size,
        entry,
    };
    let shown = single_message_view(admin, &found);
    Ok(Some(MessageView {
        late_by_ms: None,
        why: None,
        state: ShownState::Dead,
        dead_id: Some(dead.to_string()),
        ..shown
    }))
}

/// The same for a message that was asked for by itself.
pub(super) fn single_message_view(admin: &Admin, found: &StoredMessage) -> MessageView {
    MessageView {
        history: Some(failure_views(&found.entry)),
        ..message_view(admin, found)
    }
}

impl MessageView {
    /// The same with what the trail has of it.
    pub(super) fn with_trail(self, trail: Vec<TrailEventView>) -> Self {
        Self { trail, ..self }
    }
}

/// The failures that a message remembers, oldest first.
pub(super) fn failure_views(entry: &Entry) -> Vec<FailureView> {
    let view = |failure: &Failure| FailureView {
        at_ms: failure.at.0,
        at: rfc3339(failure.at),
        reason: failure.reason.to_string(),
        error: failure.error.to_string(),
    };
    entry.history.iter().map(view).collect()
}

/// Where a message was read.
pub(super) fn position_view(entry: &Entry) -> Option<PositionView> {
    entry.position.map(PositionView::from)
}

/// A message that the store found, as answers show it.
pub(super) fn message_view(admin: &Admin, found: &StoredMessage) -> MessageView {
    let entry = &found.entry;
    let message = &entry.message;
    let route = admin.route(&found.route).ok();
    let late = route.and_then(|route| lateness(admin, route, found));
    let target = match route {
        Some(route) if found.target == TargetRef::Own => route.to.name(),
        _ => found.target.as_str().to_owned(),
    };
    let key = message
        .key
        .as_ref()
        .map(|key| match std::str::from_utf8(key) {
            Ok(text) => (text.to_owned(), false),
            Err(_) => (STANDARD.encode(key), true),
        });
    MessageView {
        id: found.id.to_string(),
        route: found.route.clone(),
        version: found.version.to_string(),
        due_ms: entry.due.0,
        due: rfc3339(entry.due),
        asked_ms: entry.asked_due().0,
        asked: rfc3339(entry.asked_due()),
        request: RequestView::of(entry),
        state: match found.state {
            StoredState::Pending => ShownState::Pending,
            StoredState::InFlight => ShownState::InFlight,
            StoredState::Published => ShownState::Published,
        },
        attempt: entry.handouts + 1,
        failures: entry.failures,
        late_by_ms: late.as_ref().map(|late| late.by_ms),
        why: late.map(|late| late.why),
        last_error: entry.history.last().map(|failure| LastError {
            at_ms: failure.at.0,
            reason: failure.reason.to_string(),
            error: failure.error.to_string(),
        }),
        target,
        key_is_base64: key.as_ref().is_some_and(|(_, coded)| *coded),
        key: key.map(|(text, _)| text),
        size: found.size,
        headers: header_views(message),
        position: position_view(entry),
        history: None,
        dead_id: None,
        trail: Vec::new(),
    }
}

/// A message's headers for people.
pub(super) fn header_views(message: &Message) -> Vec<HeaderView> {
    message
        .headers
        .iter()
        .map(|h| HeaderView {
            name: h.name.to_string(),
            value: value_view(&h.value),
        })
        .collect()
}

/// A header's value for people: its wire type is not shown.
fn value_view(header: &HeaderValue) -> Value {
    match header {
        HeaderValue::Null => Value::Null,
        HeaderValue::Bytes(bytes) | HeaderValue::LongString(bytes) => {
            match std::str::from_utf8(bytes) {
                Ok(text) => text.into(),
                Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
            }
        }
        HeaderValue::Bool(b) => (*b).into(),
        HeaderValue::I8(n) => (*n).into(),
        HeaderValue::U8(n) => (*n).into(),
        HeaderValue::I16(n) => (*n).into(),
        HeaderValue::U16(n) => (*n).into(),
        HeaderValue::I32(n) => (*n).into(),
        HeaderValue::U32(n) => (*n).into(),
        HeaderValue::I64(n) => (*n).into(),
        HeaderValue::F32(n) => (*n).into(),
        HeaderValue::F64(n) => (*n).into(),
        HeaderValue::Decimal { scale, value } => json!({ "scale": scale, "value": value }),
        HeaderValue::Timestamp(seconds) => (*seconds).into(),
        HeaderValue::Table(fields) => fields
            .iter()
            .map(|field| (field.name.to_string(), value_view(&field.value)))
            .collect(),
        HeaderValue::Array(items) => items.iter().map(value_view).collect(),
    }
}
