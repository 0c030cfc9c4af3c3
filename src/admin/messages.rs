//! Messages: what waits, one of them, cancel and reschedule.

use std::sync::Arc;

use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::{Extension, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use super::audit::Noted;
use super::extract::{Asked, Body, InMessage, OfMessage};
use super::page::{Page, limit, read_cursor, write_cursor};
use super::problem::Problem;
use super::router::Admin;
use super::times::{LAST, Moment, moment, rfc3339};
use crate::domain::duration::{parse_header, render};
use crate::domain::{HeaderValue, InvalidReason, Partition, Route, RouteName, UnixMs, nearest};
use crate::store::{BrowseKey, BrowseQuery, Found, MessageState, WriteOp, WriteResult};

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
    /// Where it stands.
    state: Standing,
    /// Which hand-out comes next or is under way; the first is 1.
    attempt: u32,
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

/// Where a message stands: `published` only until the rest of its bundle has gone, too.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Standing {
    Pending,
    InFlight,
    Published,
}

/// Which messages.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Window {
    /// Of this route only.
    route: Option<String>,
    /// Due at this moment or later: RFC 3339 with an offset, or Unix ms.
    from: Option<String>,
    /// Due at this moment or earlier.
    to: Option<String>,
    /// `next` of the page before, with the same filters.
    cursor: Option<String>,
    /// Items of a page, 1 to 1000; 100 if not given.
    #[param(minimum = 1, maximum = 1000, value_type = Option<u32>)]
    limit: Option<String>,
}

/// What waits, in due order
///
/// Over all routes and partitions. A page may be short, even empty, while `next` is there: nothing that is
/// read costs the store more than some hundred microseconds at a time. What is claimed meanwhile is left out.
#[utoipa::path(
    get, path = "/api/v1/messages", operation_id = "listMessages", params(Window),
    responses(
        (status = 200, description = "The messages.", body = Page<Message>),
        (status = 400, description = "A moment, a window, a limit or a cursor that is none."),
        (status = 404, description = "No such route."),
        (status = 503, description = "Redis is away."),
        (status = 504, description = "Redis did not answer in time."),
    )
)]
pub(super) async fn list(
    Extract(admin): Extract<Arc<Admin>>,
    Asked(window): Asked<Window>,
) -> Result<Json<Page<Message>>, Problem> {
    let route = window.route.as_deref().map(|name| admin.route(name).map(|r| r.name.clone())).transpose()?;
    let bound = |name, text: Option<&str>, or| text.map_or(Ok(or), |text| moment(name, text));
    let from = bound("from", window.from.as_deref(), UnixMs(0))?;
    let to = bound("to", window.to.as_deref(), LAST)?;
    if from > to {
        return Err(Problem::bad("`from` is later than `to`: exchange them"));
    }
    let query = (window.route.clone(), from.0, to.0);
    let limit = limit(window.limit.as_deref())?;
    let after = window.cursor.as_deref().map(|cursor| read_cursor(cursor, &query)).transpose()?;
    let after = after.map(|(due, p, bundle, index)| BrowseKey {
        due: UnixMs(due),
        partition: Partition(p),
        bundle,
        index,
    });
    let query_of_store = BrowseQuery { route, from, to, after, limit };
    let browsed = admin.browse(admin.store()?.browse(&query_of_store)).await?;
    let next = browsed.next.map(|k| write_cursor(&query, (k.due.0, k.partition.0, k.bundle, k.index)));
    let items = browsed.found.iter().map(|found| message(&admin, found)).collect();
    Ok(Json(Page { items, next: next.transpose()? }))
}

/// One message
///
/// Its metadata, while the store has it. By its own id, or by its `~` id.
#[utoipa::path(
    get, path = "/api/v1/routes/{route}/messages/{id}", operation_id = "getMessage", params(InMessage),
    responses(
        (status = 200, description = "The message.", body = Message),
        (status = 400, description = "An id that none can be."),
        (status = 404, description = "No such route; or the store has no such message: it was never there, or \
            is published, cancelled or dead. `nearest` names one that waits and looks like it."),
        (status = 503, description = "Redis is away."),
        (status = 504, description = "Redis did not answer in time."),
    )
)]
pub(super) async fn one(
    Extract(admin): Extract<Arc<Admin>>,
    OfMessage { route, id }: OfMessage,
) -> Result<Json<Message>, Problem> {
    let found = admin.browse(admin.store()?.find(&route.name, &id)).await?;
    if let Some(found) = found {
        return Ok(Json(message(&admin, &found)));
    }
    let name = Some(route.name.clone());
    let query = BrowseQuery { route: name, from: UnixMs(0), to: LAST, after: None, limit: 100 };
    let browsed = admin.browse(admin.store()?.browse(&query)).await?;
    let near = nearest(&id, browsed.found.iter().map(|found| found.id.as_str())).map(str::to_owned);
    Err(unknown(&route, &id).nearest(near))
}

/// What became of a command.
#[derive(Serialize, ToSchema)]
pub(super) struct Commanded {
    /// The message's id within the route.
    id: String,
    /// The route.
    route: String,
    /// What was done.
    result: Done,
}

/// What a command did.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Done {
    Cancelled,
    Rescheduled,
}

/// Cancel a message
///
/// A definite answer: `cancelled` means that it will not be published. Any other answer is a problem, whose
/// `result` says why nothing was cancelled. A `504` says that nobody knows: ask again.
#[utoipa::path(
    delete, path = "/api/v1/routes/{route}/messages/{id}", operation_id = "cancelMessage", params(InMessage),
    responses(
        (status = 200, description = "It will not be published: `cancelled`.", body = Commanded),
        (status = 400, description = "An id that none can be."),
        (status = 404, description = "No such route; or no such message waits (`result`: `unknown`)."),
        (status = 409, description = "`result`: `in_flight`: it is being published right now; `published`: it was."),
        (status = 503, description = "Redis is away. Nothing was done."),
        (status = 504, description = "Redis did not answer in time. It may have been done."),
    )
)]
pub(super) async fn cancel(
    Extract(admin): Extract<Arc<Admin>>,
    OfMessage { route, id }: OfMessage,
) -> Result<(Extension<Noted>, Json<Commanded>), Problem> {
    let op = WriteOp::Cancel { route: route.name.clone(), id: id.as_str().into() };
    let result = match command(&admin, &route.name, &id, op).await? {
        WriteResult::Unknown => match admin.browse(admin.store()?.find(&route.name, &id)).await? {
            // Confirmed already, while the rest of its bundle is still under way.
            Some(found) if found.state == MessageState::Published => "published",
            _ => "unknown",
        },
        WriteResult::Cancelled => "cancelled",
        WriteResult::InFlight => "in_flight",
        other => return Err(strange(&id, other)),
    };
    count(&admin, &route, "cancel", result);
    match result {
        "cancelled" => Ok(commanded(&route, id, Done::Cancelled, result)),
        "unknown" => Err(unknown(&route, &id)),
        "published" => Err(conflict(&id, result, "has been published already")),
        _ => Err(conflict(&id, result, "is being published right now")),
    }
}

/// A new due time: exactly one of the two.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Reschedule {
    /// The moment, Unix ms; a past one: at once.
    #[schema(nullable = false, minimum = 0)]
    due_ms: Option<i64>,
    /// So long from now, as `x-delay`.
    #[schema(nullable = false)]
    delay: Option<Moment>,
}

/// Move a message to another moment
///
/// Only its due time changes. A message that waits for its retry is moved too, and keeps its attempts.
#[utoipa::path(
    patch, path = "/api/v1/routes/{route}/messages/{id}", operation_id = "rescheduleMessage",
    params(InMessage), request_body = Reschedule,
    responses(
        (status = 200, description = "It has its new due time: `rescheduled`.", body = Commanded),
        (status = 400, description = "Not the JSON asked for, an id that none can be, or a moment that is too \
            far (`reason`). Nothing was done."),
        (status = 404, description = "No such route; or no such message waits (`result`: `unknown`). Nothing is stored."),
        (status = 408, description = "The body did not come within 10 s. Nothing was done."),
        (status = 409, description = "`result`: `too_late`: it is being published, or was."),
        (status = 413, description = "The body is too large. Nothing was done."),
        (status = 415, description = "The body is not said to be `application/json`. Nothing was done."),
        (status = 503, description = "Redis is away. Nothing was done."),
        (status = 504, description = "Redis did not answer in time. It may have been done."),
    )
)]
pub(super) async fn reschedule(
    Extract(admin): Extract<Arc<Admin>>,
    OfMessage { route, id }: OfMessage,
    Body(body): Body<Reschedule>,
) -> Result<(Extension<Noted>, Json<Commanded>), Problem> {
    let now = admin.store()?.clock().now();
    let due = match (body.due_ms, body.delay) {
        (Some(due), None) if due >= 0 => UnixMs(due),
        (None, Some(delay)) => {
            let delay = parse_header(&delay.text()).map_err(|e| Problem::bad(format!("`delay`: {e}")))?;
            UnixMs(now.0.saturating_add(delay))
        }
        (Some(_), None) => return Err(Problem::bad("`due_ms` is before 1970")),
        _ => return Err(Problem::bad("give either `due_ms` or `delay`")),
    };
    if due.since(now) > route.policy.max_delay_ms {
        let max = render(route.policy.max_delay_ms);
        let detail = format!("that is further ahead than the route's `max_delay`, {max}");
        return Err(Problem::bad(detail).reason(InvalidReason::TooFar.as_str()));
    }
    let op = WriteOp::Reschedule { route: route.name.clone(), id: id.as_str().into(), due, fallback: None };
    let result = match command(&admin, &route.name, &id, op).await? {
        WriteResult::Rescheduled => "rescheduled",
        WriteResult::TooLate => "too_late",
        WriteResult::Unknown => "unknown",
        other => return Err(strange(&id, other)),
    };
    count(&admin, &route, "reschedule", result);
    match result {
        "rescheduled" => Ok(commanded(&route, id, Done::Rescheduled, &format!("rescheduled to {}", due.0))),
        "unknown" => Err(unknown(&route, &id)),
        _ => Err(conflict(&id, result, "is being published right now, or was")),
    }
}

async fn command(admin: &Admin, route: &RouteName, id: &str, op: WriteOp) -> Result<WriteResult, Problem> {
    let store = admin.store()?;
    let results =
        admin.ask(store.write(store.home_of(route, id), vec![op])).await.map_err(|problem| problem.id(id))?;
    results.first().and_then(|results| results.first()).copied().ok_or_else(|| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the store answered nothing to a command").id(id)
    })
}

fn strange(id: &str, result: WriteResult) -> Problem {
    let detail = format!("the store answered {result:?}, which is no answer to this command");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail).id(id)
}

fn count(admin: &Admin, route: &Route, op: &'static str, result: &'static str) {
    if let Some(metrics) = admin.state.metrics.route(&route.name) {
        metrics.command(op, result);
    }
}

fn commanded(route: &Route, id: String, result: Done, noted: &str) -> (Extension<Noted>, Json<Commanded>) {
    let body = Commanded { id, route: route.name.to_string(), result };
    (Extension(Noted::new("", noted)), Json(body))
}

fn unknown(route: &Route, id: &str) -> Problem {
    let (name, id_text) = (&route.name, id.escape_debug());
    let detail =
        format!("no message `{id_text}` of the route `{name}` waits: it was never there, or is gone");
    Problem::not_found(detail).id(id).result("unknown")
}

fn conflict(id: &str, result: &'static str, how: &str) -> Problem {
    let detail = format!("the message `{}` {how}; nothing was changed", id.escape_debug());
    Problem::new(StatusCode::CONFLICT, detail).id(id).result(result)
}

fn message(admin: &Admin, found: &Found) -> Message {
    let (entry, sent) = (&found.entry, &found.entry.message);
    let target = match admin.route(&found.route) {
        Ok(route) if found.target.is_empty() => route.to.name(),
        _ => found.target.to_string(),
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
        state: match found.state {
            MessageState::Pending => Standing::Pending,
            MessageState::InFlight => Standing::InFlight,
            MessageState::Published => Standing::Published,
        },
        attempt: entry.handouts + 1,
        target,
        key_is_base64: key.as_ref().is_some_and(|(_, coded)| *coded),
        key: key.map(|(text, _)| text),
        size: sent.body_len(),
        headers: sent
            .headers
            .iter()
            .map(|h| Header { name: h.name.to_string(), value: value(&h.value) })
            .collect(),
    }
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
