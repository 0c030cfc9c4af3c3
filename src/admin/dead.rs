//! Dead letters: what they are.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State as Extract;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::{IntoParams, ToSchema};

use super::extract::{Asked, Segments};
use super::page::{Page, read_cursor, write_cursor};
use super::problem::Problem;
use super::router::Admin;
use super::times::rfc3339;
use crate::domain::{DeadReason, Entry, Flags, HeaderValue, UnixMs, moment, nearest};
use crate::store::{DeadBody, DeadFilter, DeadId, DeadMark, StoreError};

/// Longest wait for the store.
const DEADLINE: Duration = Duration::from_secs(8);
/// Items of a page, and most of them.
const PAGE: usize = 100;
const MOST: usize = 1000;

/// Which dead letters. All of it holds together; what is not given does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    /// Of this route.
    #[schema(nullable = false)]
    #[param(nullable = false)]
    pub(super) route: Option<String>,
    /// Dead for this reason, in the contract's word.
    #[schema(nullable = false)]
    #[param(nullable = false)]
    pub(super) reason: Option<String>,
    /// Dead since this moment: RFC 3339, or Unix milliseconds as text.
    #[schema(nullable = false)]
    #[param(nullable = false)]
    pub(super) from: Option<String>,
    /// Dead before this moment.
    #[schema(nullable = false)]
    #[param(nullable = false)]
    pub(super) to: Option<String>,
}

/// What a list is asked for.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Listing {
    /// Of this route.
    #[param(nullable = false)]
    route: Option<String>,
    /// Dead for this reason, in the contract's word.
    #[param(nullable = false)]
    reason: Option<String>,
    /// Dead since this moment: RFC 3339, or Unix milliseconds.
    #[param(nullable = false)]
    from: Option<String>,
    /// Dead before this moment.
    #[param(nullable = false)]
    to: Option<String>,
    /// With headers and bodies.
    #[serde(default)]
    body: bool,
    /// `next` of the page before.
    #[param(nullable = false)]
    cursor: Option<String>,
    /// Items at most; 100 if not given.
    #[param(nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

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
    #[schema(nullable = false, value_type = Vec<Object>)]
    headers: Option<Vec<Value>>,
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
enum Much {
    Outline,
    Headers,
    Body,
}

/// Dead letters, oldest first
///
/// Over all partitions. A page of a narrow filter may have fewer items than asked for, even none, and still
/// not be the last: `next` tells.
#[utoipa::path(
    get, path = "/api/v1/dead", operation_id = "listDead", params(Listing),
    responses(
        (status = 200, description = "Some of them.", body = Page<Letter>),
        (status = 400, description = "A filter, a cursor or a limit that cannot be."),
        (status = 404, description = "No such route."),
        (status = 503, description = "The store did not answer in time."),
    )
)]
pub(super) async fn list(
    Extract(admin): Extract<Arc<Admin>>,
    Asked(listing): Asked<Listing>,
) -> Result<Json<Page<Letter>>, Problem> {
    let Listing { route, reason, from, to, body, cursor, limit } = listing;
    let which = Which { route, reason, from, to };
    let filter = filter(&admin, &which)?;
    let limit = match limit {
        None => PAGE,
        Some(limit @ 1..=MOST) => limit,
        Some(_) => return Err(Problem::bad(format!("`limit` is 1 to {MOST}"))),
    };
    let after = cursor.map(|cursor| read_mark(&cursor, &which)).transpose()?;
    let mut page = within(admin.state.graves.page(&filter, after.as_ref(), limit)).await?;
    let ids: Vec<DeadId> = page.marks.iter().map(|mark| mark.id.clone()).collect();
    let bodies = within(admin.state.graves.read(&ids)).await?;
    if bodies.len() < page.marks.len() {
        // The rest would be too much at once: the next page begins with it.
        page.marks.truncate(bodies.len());
        page.next = page.marks.last().cloned();
    }
    let much = if body { Much::Body } else { Much::Outline };
    let items = page.marks.iter().zip(bodies);
    let items = items.filter_map(|(mark, body)| Some(letter(&mark.id, mark.at, &body?, much))).collect();
    let next = page.next.map(|mark| write_mark(&mark, &which)).transpose()?;
    Ok(Json(Page { items, next }))
}

/// One of the dead letters.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct InDead {
    /// A dead letter's id, or that of its message.
    id: String,
}

/// How one letter is asked for.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Showing {
    /// The route, where a message's id is not unique.
    #[param(nullable = false)]
    route: Option<String>,
    /// With its body.
    #[serde(default)]
    body: bool,
}

/// One dead letter, with its headers
///
/// By its own id or by its message's.
#[utoipa::path(
    get, path = "/api/v1/dead/{id}", operation_id = "getDead", params(InDead, Showing),
    responses(
        (status = 200, description = "The dead letter.", body = Letter),
        (status = 400, description = "An id that cannot be."),
        (status = 404, description = "No such dead letter, or no such route."),
        (status = 409, description = "Several dead letters have this message id; `detail` names them."),
        (status = 503, description = "The store did not answer in time."),
    )
)]
pub(super) async fn one(
    Extract(admin): Extract<Arc<Admin>>,
    Segments(InDead { id }): Segments<InDead>,
    Asked(Showing { route, body }): Asked<Showing>,
) -> Result<Json<Letter>, Problem> {
    let unknown = || Problem::not_found(format!("there is no dead letter `{}`", id.escape_debug()));
    let dead = match &find(&admin, &id, route.as_deref()).await?[..] {
        [] => return Err(unknown()),
        [one] => one.clone(),
        several => {
            let detail = format!("several dead letters have this message id: {}", list_of(several));
            return Err(Problem::new(axum::http::StatusCode::CONFLICT, detail));
        }
    };
    let at = within(admin.state.graves.at(&dead)).await?.ok_or_else(unknown)?;
    let found = within(admin.state.graves.read(std::slice::from_ref(&dead))).await?;
    let found = found.into_iter().next().flatten().ok_or_else(unknown)?;
    Ok(Json(letter(&dead, at, &found, if body { Much::Body } else { Much::Headers })))
}

/// Some ids in a row, for a sentence.
pub(super) fn list_of(ids: &[DeadId]) -> String {
    ids.iter().take(10).map(DeadId::as_str).collect::<Vec<_>>().join(", ")
}

/// The dead letters that an id means: itself, or those of its message.
pub(super) async fn find(admin: &Admin, id: &str, route: Option<&str>) -> Result<Vec<DeadId>, Problem> {
    if id.is_empty() || id.len() > 400 {
        return Err(Problem::bad("an id has 1 to 256 bytes"));
    }
    let of_route = route.map(|route| admin.route(route)).transpose()?;
    if let Some(dead) = DeadId::parse(id)
        && of_route.is_none_or(|route| route.name.as_str() == dead.route())
        && within(admin.state.graves.at(&dead)).await?.is_some()
    {
        return Ok(vec![dead]);
    }
    let mut found = Vec::new();
    for route in admin.routes().filter(|route| of_route.is_none_or(|of| of.name == route.name)) {
        found.extend(within(admin.state.graves.find(&route.name, id)).await?);
    }
    Ok(found)
}

/// Waits for the store, but not for ever.
pub(super) async fn within<T>(asked: impl Future<Output = Result<T, StoreError>>) -> Result<T, Problem> {
    match tokio::time::timeout(DEADLINE, asked).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(why)) => Err(Problem::unavailable(why.to_string())),
        Err(_) => Err(Problem::unavailable("the store did not answer in time; try again")),
    }
}

/// What a filter means; 400 or 404 if it means nothing.
pub(super) fn filter(admin: &Admin, which: &Which) -> Result<DeadFilter, Problem> {
    let route = which.route.as_deref().map(|route| admin.route(route).map(|r| r.name.clone())).transpose()?;
    let reason = which.reason.as_deref().map(|word| {
        DeadReason::parse(word).ok_or_else(|| {
            let near = nearest(word, DeadReason::all().map(DeadReason::as_str)).map(str::to_owned);
            Problem::bad(format!("`reason` cannot be `{}`", word.escape_debug())).nearest(near)
        })
    });
    let at = |name: &str, text: &Option<String>| {
        let parsed = text.as_deref().map(|text| text.parse().map(UnixMs).or_else(|_| moment::parse(text)));
        parsed.transpose().map_err(|why| {
            Problem::bad(format!("`{name}` is no moment: {why}; write RFC 3339 with an offset, or Unix ms"))
        })
    };
    let (from, to) = (at("from", &which.from)?, at("to", &which.to)?);
    if from.zip(to).is_some_and(|(from, to)| from >= to) {
        return Err(Problem::bad("`from` is not before `to`"));
    }
    Ok(DeadFilter { route, invalid: None, reason: reason.transpose()?, from, to })
}

pub(super) fn write_mark(mark: &DeadMark, which: &Which) -> Result<String, Problem> {
    write_cursor(which, (mark.at.0, mark.id.as_str()))
}

pub(super) fn read_mark(cursor: &str, which: &Which) -> Result<DeadMark, Problem> {
    let (at, id): (i64, String) = read_cursor(cursor, which)?;
    let id = DeadId::parse(&id).ok_or_else(|| Problem::bad("`cursor` is not one that this list gave"))?;
    Ok(DeadMark { at: UnixMs(at), id })
}

fn letter(id: &DeadId, at: UnixMs, body: &DeadBody, much: Much) -> Letter {
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
    let failed = |failure: &crate::domain::Failure| Failed {
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
        position: entry.position.map(|(partition, offset)| Position { partition, offset }),
        history: entry.history.iter().map(failed).collect(),
        headers: (much != Much::Outline).then(|| {
            let pair =
                |h: &crate::domain::Header| json!({ "name": h.name.as_str(), "value": shown(&h.value) });
            message.headers.iter().map(pair).collect()
        }),
        body_base64: wanted.filter(|_| body.is_none()).map(|bytes| STANDARD.encode(bytes)),
        body,
    }
}

/// A header's value for a reader: bytes as text where they are one, else `{"base64": ...}`.
fn shown(value: &HeaderValue) -> Value {
    match value {
        HeaderValue::Null => Value::Null,
        HeaderValue::Bytes(bytes) | HeaderValue::LongString(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
        },
        HeaderValue::Bool(v) => (*v).into(),
        HeaderValue::I8(v) => (*v).into(),
        HeaderValue::U8(v) => (*v).into(),
        HeaderValue::I16(v) => (*v).into(),
        HeaderValue::U16(v) => (*v).into(),
        HeaderValue::I32(v) => (*v).into(),
        HeaderValue::U32(v) => (*v).into(),
        HeaderValue::I64(v) => (*v).into(),
        HeaderValue::F32(v) => (*v).into(),
        HeaderValue::F64(v) => (*v).into(),
        HeaderValue::Decimal { scale, value } => json!({ "value": value, "scale": scale }),
        HeaderValue::Timestamp(seconds) => (*seconds).into(),
        HeaderValue::Table(fields) => {
            let fields = fields.iter().map(|h| (h.name.to_string(), shown(&h.value)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        HeaderValue::Array(items) => items.iter().map(shown).collect(),
    }
}
