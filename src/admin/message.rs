//! A message of the store, as answers show it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::problem::Problem;
use super::router::Admin;
use super::times::rfc3339;
use crate::domain::{HeaderValue, Message as Sent, RouteName, Text};
use crate::store::{StoredMessage, StoredState};

/// A message of the store, without its body.
#[derive(Serialize, ToSchema)]
pub(super) struct Message {
    /// Its producer's name for it, or the `~` id that Postdate gave it.
    id: String,
    /// The route.
    route: String,
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
    /// Where it stands.
    state: Standing,
    /// Which hand-out comes next or is under way; the first is 1.
    attempt: u32,
    /// How many of its publishes failed.
    failures: u32,
    /// Why the last of them did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    last_error: Option<LastError>,
    /// Where it goes: a topic, or `exchange/routing-key`.
    target: String,
    /// Kafka's record key or AMQP's routing key, as text (not UTF-8: base64, and `key_is_base64`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    key: Option<String>,
    /// Whether `key` is base64.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    key_is_base64: bool,
    /// Length of its body, bytes.
    size: usize,
    /// Its headers, in their order, repeats kept.
    headers: Vec<Header>,
    /// Its id among the dead letters, if it is dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    dead_id: Option<String>,
}

/// A failed publish.
#[derive(Serialize, ToSchema)]
pub(super) struct LastError {
    /// When, Unix ms.
    at_ms: i64,
    /// Its reason: a label of `publish_failures_total`.
    reason: String,
    /// What the broker or its client said, cut to 200 bytes.
    error: String,
}

/// One header.
#[derive(Serialize, ToSchema)]
pub(super) struct Header {
    /// Its name.
    name: String,
    /// Its value: text, number, bool, null, table or array; bytes that are not UTF-8 as
    /// `{"base64": "..."}`.
    #[schema(value_type = Option<Value>)]
    value: Value,
}

/// Where a message stands: `published` only until the rest of its bundle has gone, too; `dead`: see `/api/v1/dead`.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Standing {
    Pending,
    InFlight,
    Published,
    Dead,
}

/// The last dead letter of this message.
pub(super) async fn dead(admin: &Admin, route: &RouteName, id: &str) -> Result<Option<Message>, Problem> {
    let graves = &admin.state.graves;
    let ids = admin.browse(graves.find(route, id)).await?;
    let Some(dead) = ids.last() else { return Ok(None) };
    let body = admin.browse(graves.read(std::slice::from_ref(dead))).await?.pop().flatten();
    let Some(bundle) = body.and_then(|body| body.bundle.ok()) else { return Ok(None) };
    let Some(entry) = bundle.entries.first().cloned() else { return Ok(None) };
    let (route, id, target) = (route.as_str().to_owned(), id.into(), bundle.target.clone());
    let found =
        StoredMessage { route, id, state: StoredState::Published, version: Text::default(), target, entry };
    let shown = message(admin, &found);
    Ok(Some(Message { state: Standing::Dead, dead_id: Some(dead.to_string()), ..shown }))
}

pub(super) fn message(admin: &Admin, found: &StoredMessage) -> Message {
    let (entry, sent) = (&found.entry, &found.entry.message);
    let target = match admin.route(&found.route) {
        Ok(route) if found.target == TargetRef::Own => route.to.name(),
        _ => found.target.as_str().to_owned(),
    };
    let key = sent.key.as_ref().map(|key| match std::str::from_utf8(key) {
        Ok(text) => (text.to_owned(), false),
        Err(_) => (STANDARD.encode(key), true),
    });
    Message {
        id: found.id.to_string(),
        route: found.route.clone(),
        due_ms: entry.due.0,
        due: rfc3339(entry.due),
        asked_ms: entry.asked_due().0,
        asked: rfc3339(entry.asked_due()),
        state: match found.state {
            StoredState::Pending => Standing::Pending,
            StoredState::InFlight => Standing::InFlight,
            StoredState::Published => Standing::Published,
        },
        attempt: entry.handouts + 1,
        failures: entry.failures,
        last_error: entry.history.last().map(|failure| LastError {
            at_ms: failure.at.0,
            reason: failure.reason.to_string(),
            error: failure.error.to_string(),
        }),
        target,
        key_is_base64: key.as_ref().is_some_and(|(_, coded)| *coded),
        key: key.map(|(text, _)| text),
        size: sent.body_len(),
        headers: headers(sent),
        dead_id: None,
    }
}

/// A message's headers for people.
pub(super) fn headers(of: &Sent) -> Vec<Header> {
    of.headers.iter().map(|h| Header { name: h.name.to_string(), value: value(&h.value) }).collect()
}

/// A header's value for people: its wire type is not shown.
fn value(header: &HeaderValue) -> Value {
    match header {
        HeaderValue::Null => Value::Null,
        HeaderValue::Bytes(bytes) | HeaderValue::LongString(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
        },
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
        HeaderValue::Table(fields) => {
            fields.iter().map(|field| (field.name.to_string(), value(&field.value))).collect()
        }
        HeaderValue::Array(items) => items.iter().map(value).collect(),
    }
}
