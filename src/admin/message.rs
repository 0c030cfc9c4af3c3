//! A message of the store, as answers show it: without its body.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::context::Admin;
use super::problem::Problem;
use super::times::rfc3339;
use super::troubles::lateness;
use crate::api::{
    FailureView, HeaderView, LastError, MessageView, PositionView, RequestView, ShownState,
};
use crate::domain::{
    Entry, Failure, HeaderValue, KafkaPosition, Message, RequestedTime, RouteName, TargetRef, Text,
};
use crate::store::{StoredMessage, StoredState};

/// What is known of a message's request.
pub(super) fn request_view(entry: &Entry) -> RequestView {
    let Some(request) = entry.request else {
        return RequestView::default();
    };
    let (delay_ms, deliver_at_ms) = match request.time {
        RequestedTime::Delay(ms) => (Some(ms), None),
        RequestedTime::At(at) => (None, Some(at.0)),
    };
    let expires = entry.wanted_until();
    RequestView {
        received_ms: Some(request.received.0),
        received: rfc3339(request.received),
        delay_ms,
        deliver_at_ms,
        given_back: Some(request.given_back).filter(|count| *count > 0),
        expires_ms: expires.map(|last| last.0),
        expires: expires.and_then(rfc3339),
    }
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
        state: ShownState::Dead.into(),
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

/// The failures that a message remembers, oldest first.
pub(super) fn failure_views(entry: &Entry) -> Vec<FailureView> {
    entry.history.iter().map(failure_view).collect()
}

fn failure_view(failure: &Failure) -> FailureView {
    FailureView {
        at_ms: failure.at.0,
        at: rfc3339(failure.at),
        reason: failure.reason.to_string(),
        error: failure.error.to_string(),
    }
}

/// Where a message was read.
pub(super) fn position_view(entry: &Entry) -> Option<PositionView> {
    let position = entry.position?;
    Some(place_view(position, entry.source_topic.as_ref()))
}

/// A place in a topic. `topic` is there if the route has several.
pub(super) fn place_view(at: KafkaPosition, topic: Option<&Text>) -> PositionView {
    PositionView {
        topic: topic.map(ToString::to_string),
        partition: at.partition,
        offset: at.offset,
    }
}

/// A key as text, and whether that is base64: then the key is not UTF-8.
pub(super) fn key_text(key: &[u8]) -> (String, bool) {
    match std::str::from_utf8(key) {
        Ok(text) => (text.to_owned(), false),
        Err(_) => (STANDARD.encode(key), true),
    }
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
    let key = message.key.as_ref().map(|key| key_text(key));
    MessageView {
        id: found.id.to_string(),
        route: found.route.clone(),
        version: found.version.to_string(),
        due_ms: entry.due.0,
        due: rfc3339(entry.due),
        asked_ms: entry.asked_due().0,
        asked: rfc3339(entry.asked_due()),
        request: request_view(entry),
        state: match found.state {
            StoredState::Pending => ShownState::Pending,
            StoredState::InFlight => ShownState::InFlight,
            StoredState::Published => ShownState::Published,
        }
        .into(),
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
