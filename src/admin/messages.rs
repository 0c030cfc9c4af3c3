//! Messages that wait: list them, show one, cancel it, reschedule it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State as Extract;
use axum::http::{HeaderName, StatusCode, header};
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::IntoParams;

use super::audit_note::AuditNote;
use super::auth::Caller;
use super::conditions::{Selection, searched};
use super::context::Admin;
use super::extract::{
    IdPath, IfMatch, JsonBody, MessageId, MessagePath, NamedMessage, QueryParams, acting_body,
};
use super::message::{dead_message, message_view, single_message_view};
use super::page::limit;
use super::problem::{Problem, StoreAway};
use super::times::{LAST_MOMENT, unix_ms};
use super::trail::{
    event_views, last_told, message_trail, reach, read_trail, record_cancel, record_move,
};
use crate::api::{
    CommandAnswer, CommandResult, MessageAnswer, MessageView, MessagesPage, Page, RescheduleRequest,
};
use crate::domain::duration::{parse_header, render};
use crate::domain::{InvalidReason, Route, RouteName, Text, UnixMs, nearest};
use crate::store::{
    BrowseQuery, IntendedMessage, MessageFilter, StoredState, TrailReading, WriteOp, WriteResult,
};

/// Longest look at a message that is to be cancelled. Nothing depends on it but what the trail tells.
const LOOK_DEADLINE: Duration = Duration::from_secs(1);

/// Query of the list of messages.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct MessageQuery {
    /// Of this route only.
    route: Option<String>,
    /// Due at this moment or later: RFC 3339 with an offset, or Unix ms.
    from: Option<String>,
    /// Due at this moment or earlier.
    to: Option<String>,
    /// Whose id begins so.
    id_prefix: Option<String>,
    /// Whose key is this.
    key: Option<String>,
    /// That have this header, `NAME:VALUE`: the name in any case, the value whole. May be repeated: that have all of them.
    #[serde(default)]
    #[param(required = false)]
    header: Vec<String>,
    /// Whose bodies have this text in them. Needs a write token, and is audited.
    contains: Option<String>,
    /// `next` of the page before, with the same filters.
    cursor: Option<String>,
    /// Items of a page, 1 to 1000; 100 if not given.
    #[param(minimum = 1, maximum = 1000, value_type = Option<u32>)]
    limit: Option<String>,
}

/// Messages that wait, in due order
///
/// Over all routes and partitions. A page may be short, even empty, while `next` is there: no single read costs the
/// store more than some hundred microseconds. With a condition on what they are (`id_prefix`, `key`, `header`, `contains`) a page
/// looks at 10,000 messages at most, or for 50 ms.
/// Messages that are claimed meanwhile are left out.
#[utoipa::path(
    get, path = "/api/v1/messages", operation_id = "listMessages", params(MessageQuery),
    responses(
        (status = 200, description = "The messages.", body = MessagesPage),
        (status = 400, description = "A moment, a query, a limit or a cursor that is none."),
        (status = 403, description = "Bodies are for write tokens. Or no token is configured, and the request came by a \
            host name other than localhost."),
        (status = 404, description = "No such route."),
        StoreAway,
    )
)]
pub(super) async fn list(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    QueryParams(query): QueryParams<MessageQuery>,
) -> Result<(Option<Extension<AuditNote>>, Json<MessagesPage>), Problem> {
    let route = query
        .route
        .as_deref()
        .map(|name| admin.route(name).map(|r| r.name.clone()))
        .transpose()?;
    let selection = Selection {
        route: query.route,
        state: None,
        from: query.from,
        to: query.to,
        id_prefix: query.id_prefix,
        key: query.key,
        header: query.header,
        contains: query.contains,
    };
    let limit = limit(query.limit.as_deref())?;
    let store_query = selection.query(&caller, route, query.cursor.as_deref(), limit)?;
    let looked = searched(&caller, &store_query.filter);
    let browsed = admin.browse(admin.store()?.browse(&store_query)).await?;
    let next = browsed.next.map(|after| selection.cursor(after));
    let items = browsed
        .found
        .iter()
        .map(|found| message_view(&admin, found))
        .collect();
    let page = MessagesPage {
        items,
        next: next.transpose()?,
        scanned: browsed.scanned,
    };
    Ok((looked, Json(page)))
}

/// One message
///
/// Its metadata, while the store has it, as a dead letter too; then what became of it, as far as its route's trail
/// (`history`) has it. By its own id, or by its `~` id.
#[utoipa::path(
    get, path = "/api/v1/routes/{route}/messages/{id}", operation_id = "getMessage", params(MessagePath),
    responses(
        (status = 200, description = "The message, or the trail of one that is gone: that has no `due_ms`. The `ETag` of \
            a message that waits changes whenever it is moved, replaced or tried: `If-Match` of a cancel, a reschedule or \
            a replace takes it.", body = MessageAnswer,
            headers(("ETag" = Option<String>, description = "Which message this is, as it is now."))),
        (status = 400, description = "An id that none can be."),
        (status = 404, description = "No such route; or the store has no such message, and the route's trail knows \
            nothing of it: it was never there, or is gone. `detail` says how far back the trail goes. `nearest` names \
            one that waits and looks like it."),
        StoreAway,
    )
)]
pub(super) async fn one(
    Extract(admin): Extract<Arc<Admin>>,
    NamedMessage { route, id }: NamedMessage,
) -> Result<(Option<[(HeaderName, String); 1]>, Json<MessageAnswer>), Problem> {
    let LookedUp {
        answer,
        version,
        reading,
    } = look_up(&admin, &route, &id).await?;
    let tag = version.map(|version| [(header::ETAG, format!("\"{version}\""))]);
    match answer {
        Some(answer) => Ok((tag, Json(answer))),
        None => Err(unknown(&admin, &route, &id, reading.as_ref()).await),
    }
}

/// The messages of an id, on whatever route
///
/// What each route that has or had a message of this id tells of it, by the names of the routes.
#[utoipa::path(
    get, path = "/api/v1/messages/{id}", operation_id = "findMessage", params(IdPath),
    responses(
        (status = 200, description = "The messages, one at least. There is one page: `next` is null.",
            body = Page<MessageAnswer>),
        (status = 400, description = "An id that none can be."),
        (status = 404, description = "No route has such a message (`result`: `unknown`), and no trail knows of it. `nearest` \
            names one that waits and looks like it."),
        StoreAway,
    )
)]
pub(super) async fn anywhere(
    Extract(admin): Extract<Arc<Admin>>,
    MessageId(id): MessageId,
) -> Result<Json<Page<MessageAnswer>>, Problem> {
    let mut items = Vec::new();
    for route in admin.routes() {
        items.extend(look_up(&admin, route, &id).await?.answer);
    }
    if !items.is_empty() {
        return Ok(Json(Page { items, next: None }));
    }
    // The nearest id is a hint only: an error while it is looked for is no error of the call.
    let nearest = nearest_waiting_id(&admin, None, &id)
        .await
        .unwrap_or_default();
    let id_text = id.escape_debug();
    let detail =
        format!("no message `{id_text}` waits on any route: it was never there, or is gone");
    Err(Problem::not_found(detail)
        .id(&id)
        .result("unknown")
        .nearest(nearest))
}

/// What a route tells of an id.
struct LookedUp {
    answer: Option<MessageAnswer>,
    /// The version of a message that waits.
    version: Option<Text>,
    /// What was read of the route's trail.
    reading: Option<TrailReading>,
}

async fn look_up(admin: &Admin, route: &Route, id: &str) -> Result<LookedUp, Problem> {
    let found = admin.browse(admin.store()?.find(&route.name, id)).await?;
    let kept = match &found {
        Some(found) => Some(single_message_view(admin, found)),
        None => dead_message(admin, &route.name, id).await?,
    };
    let reading = read_trail(admin, route, id).await?;
    let answer = match kept {
        Some(kept) => {
            let trail = reading.as_ref().map(event_views).unwrap_or_default();
            Some(MessageAnswer::Kept(Box::new(MessageView { trail, ..kept })))
        }
        None => reading
            .as_ref()
            .and_then(|reading| message_trail(route, id, reading))
            .map(MessageAnswer::Gone),
    };
    Ok(LookedUp {
        answer,
        version: found.map(|found| found.version),
        reading,
    })
}

/// Cancel a message
///
/// A definite answer: `cancelled` means that it will not be published. Any other answer is a problem, whose
/// `result` says why nothing was cancelled. A `504` says that nobody knows: ask again, and then a `404` may mean that the
/// first call has cancelled it. `GET` tells what became of a message that is gone.
#[utoipa::path(
    delete, path = "/api/v1/routes/{route}/messages/{id}", operation_id = "cancelMessage",
    params(MessagePath,
        ("If-Match" = Option<String>, Header,
            description = "The message's `ETag`, with its quotes: only if it is unchanged since."),
        ("Postdate-Because" = Option<String>, Header,
            description = "Why, in the caller's own words: one line of at most 500 bytes, UTF-8 or percent-encoded, for \
                audit, trail and log.")),
    responses(
        (status = 200, description = "It will not be published: `cancelled`.", body = CommandAnswer),
        (status = 400, description = "An id that none can be, or an `If-Match` that is none."),
        (status = 404, description = "No such route; or no such message waits (`result`: `unknown`)."),
        (status = 409, description = "`result`: `in_flight`: it is being published right now; `published`: it was, as far as \
            that is known: for a moment, and for as long as the route's `dedupe` remembers its name."),
        (status = 412, description = "`result`: `changed`: it is not as `If-Match` says. Nothing was done."),
        (status = 503, description = "Redis is away. Nothing was done."),
        (status = 504, description = "Redis did not answer in time. It may have been done."),
    )
)]
pub(super) async fn cancel(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    NamedMessage { route, id }: NamedMessage,
    IfMatch(seen): IfMatch,
) -> Result<(Extension<AuditNote>, Json<CommandAnswer>), Problem> {
    let conditional = seen.is_some();
    let cancel = |of: Option<&Text>| WriteOp::Cancel {
        route: route.name.clone(),
        id: id.as_str().into(),
        of: of.cloned().map(IntendedMessage::Seen),
    };
    // Cancelled as it was seen here, its trail can say when it was to be due. What cannot be read soon is cancelled unseen.
    let look = admin.store()?.find(&route.name, &id);
    let found = tokio::time::timeout(LOOK_DEADLINE, look).await;
    let found = found.ok().and_then(Result::ok).flatten();
    let version = found.as_ref().map(|found| &found.version);
    let of = seen.as_ref().or(version);
    let mut due = found
        .as_ref()
        .filter(|_| of == version)
        .map(|found| found.entry.asked_due());
    let mut answer = command(&admin, &route.name, &id, cancel(of)).await?;
    if answer == WriteResult::Unknown && !conditional && of.is_some() {
        due = None;
        answer = command(&admin, &route.name, &id, cancel(None)).await?;
    }
    let result = match answer {
        WriteResult::Unknown => match admin.browse(admin.store()?.find(&route.name, &id)).await? {
            // The message is confirmed already, while the rest of its bundle is still under way.
            Some(found) if found.state == StoredState::Published => "published",
            Some(_) if conditional => "changed",
            _ => "unknown",
        },
        WriteResult::Cancelled => "cancelled",
        WriteResult::InFlight => "in_flight",
        WriteResult::Published => "published",
        other => return Err(unexpected_result(&id, other)),
    };
    count(&admin, &route, "cancel", result);
    match result {
        "cancelled" => {
            record_cancel(&admin, &route, &id, due, &caller.actor())?;
            Ok(commanded(&route, id, CommandResult::Cancelled, result))
        }
        "unknown" | "changed" => Err(missed(&admin, &route, &id, result).await),
        "published" => Err(conflict(&id, result, "has been published already")),
        _ => Err(conflict(&id, result, "is being published right now")),
    }
}

acting_body!(RescheduleRequest);

/// Move a message to another moment
///
/// Only its due time changes. A message that waits for its retry is moved too, and keeps its attempts.
#[utoipa::path(
    patch, path = "/api/v1/routes/{route}/messages/{id}", operation_id = "rescheduleMessage",
    params(MessagePath, ("If-Match" = Option<String>, Header,
        description = "The message's `ETag`, with its quotes: only if it is unchanged since.")),
    request_body = RescheduleRequest,
    responses(
        (status = 200, description = "It has its new due time: `rescheduled`.", body = CommandAnswer),
        (status = 400, description = "Not the JSON asked for, an id that none can be, an `If-Match` that is none, or a \
            moment that is too far (`reason`). Nothing was done."),
        (status = 404, description = "No such route; or no such message waits (`result`: `unknown`). Nothing is stored."),
        (status = 409, description = "`result`: `too_late`: it is being published, or was, or it is not wanted any more by then."),
        (status = 412, description = "`result`: `changed`: it is not as `If-Match` says. Nothing was done."),
        (status = 503, description = "Redis is away. Nothing was done."),
        (status = 504, description = "Redis did not answer in time. It may have been done."),
    )
)]
pub(super) async fn reschedule(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    NamedMessage { route, id }: NamedMessage,
    IfMatch(seen): IfMatch,
    JsonBody(body): JsonBody<RescheduleRequest>,
) -> Result<(Extension<AuditNote>, Json<CommandAnswer>), Problem> {
    let now = admin.store()?.clock().arrival().latest;
    let due = match (body.due_ms, body.delay) {
        (Some(due), None) => unix_ms("due_ms", due)?,
        (None, Some(delay)) => {
            let delay =
                parse_header(&delay.text()).map_err(|e| Problem::bad(format!("`delay`: {e}")))?;
            UnixMs(now.0.saturating_add(delay))
        }
        _ => return Err(Problem::bad("give either `due_ms` or `delay`")),
    };
    if due.since(now) > route.policy.max_delay_ms {
        let max = render(route.policy.max_delay_ms);
        let detail = format!("that is further ahead than the route's `max_delay`, {max}");
        return Err(Problem::bad(detail).reason(InvalidReason::TooFar.as_str()));
    }
    caller.is_about(format!("due_ms={due}"));
    let conditional = seen.is_some();
    let op = WriteOp::Reschedule {
        route: route.name.clone(),
        id: id.as_str().into(),
        due,
        fallback: None,
        of: seen.map(IntendedMessage::Seen),
    };
    // Due at once it may be delivered before the answer is here: its move comes first in the trail.
    let moved_at = admin.store()?.clock().now();
    let result = match command(&admin, &route.name, &id, op).await? {
        WriteResult::Unknown if conditional => {
            let found = admin.browse(admin.store()?.find(&route.name, &id)).await?;
            if found.is_some() {
                "changed"
            } else {
                "unknown"
            }
        }
        WriteResult::Rescheduled => "rescheduled",
        WriteResult::TooLate => "too_late",
        WriteResult::Unknown => "unknown",
        other => return Err(unexpected_result(&id, other)),
    };
    count(&admin, &route, "reschedule", result);
    match result {
        "rescheduled" => {
            record_move(&admin, &route, &id, moved_at, due, &caller.actor())?;
            Ok(commanded(
                &route,
                id,
                CommandResult::Rescheduled,
                &format!("rescheduled to {}", due.0),
            ))
        }
        "unknown" | "changed" => Err(missed(&admin, &route, &id, result).await),
        _ => Err(conflict(
            &id,
            result,
            "is being published right now, or was, or is not wanted any more by then",
        )),
    }
}

/// Has the store carry out a command on the message of this id.
pub(super) async fn command(
    admin: &Admin,
    route: &RouteName,
    id: &str,
    op: WriteOp,
) -> Result<WriteResult, Problem> {
    let store = admin.store()?;
    let home = store.home_of(route, id);
    let done = async {
        store
            .command(store.locate(route, id, home).await?, op)
            .await
    };
    admin.ask(done).await.map_err(|problem| problem.id(id))
}

pub(super) fn unexpected_result(id: &str, result: WriteResult) -> Problem {
    let detail = format!("the store answered {result:?}, which is no answer to this command");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail).id(id)
}

pub(super) fn count(admin: &Admin, route: &Route, op: &'static str, result: &'static str) {
    if let Some(metrics) = admin.state.metrics.route(&route.name) {
        metrics.command(op, result);
    }
}

pub(super) fn commanded(
    route: &Route,
    id: String,
    result: CommandResult,
    note: &str,
) -> (Extension<AuditNote>, Json<CommandAnswer>) {
    let body = CommandAnswer {
        id,
        route: route.name.to_string(),
        result: result.into(),
    };
    (Extension(AuditNote::new(note)), Json(body))
}

/// The problem of a command that missed its message, which is gone or another one than was meant. The trail tells who
/// was there before. Its answer is a help only: an error while it is read is no error of the command.
pub(super) async fn missed(
    admin: &Admin,
    route: &Route,
    id: &str,
    result: &'static str,
) -> Problem {
    let reading = read_trail(admin, route, id).await.unwrap_or_default();
    match (result, reading.as_ref().and_then(last_told)) {
        ("changed", told) => changed(id, told.as_deref()),
        (_, None) => unknown(admin, route, id, reading.as_ref()).await,
        (_, Some(told)) => {
            let id_text = id.escape_debug();
            let name = &route.name;
            let detail = format!("no message `{id_text}` of the route `{name}` waits: {told}");
            Problem::not_found(detail).id(id).result("unknown")
        }
    }
}

/// The problem of a message that is not there, and that the trail does not have.
async fn unknown(
    admin: &Admin,
    route: &Route,
    id: &str,
    reading: Option<&TrailReading>,
) -> Problem {
    let detail = format!(
        "no message `{}` of the route `{}` waits: it was never there, or is gone; {}",
        id.escape_debug(),
        route.name,
        reach(reading)
    );
    // The nearest id is a hint only: an error while it is looked for is no error of the call.
    let nearest = nearest_waiting_id(admin, Some(&route.name), id)
        .await
        .unwrap_or_default();
    Problem::not_found(detail)
        .id(id)
        .result("unknown")
        .nearest(nearest)
}

/// The id most like this one among the first hundred that wait, of one route or of all.
async fn nearest_waiting_id(
    admin: &Admin,
    route: Option<&RouteName>,
    id: &str,
) -> Result<Option<String>, Problem> {
    let query = BrowseQuery {
        route: route.cloned(),
        from: UnixMs(0),
        to: LAST_MOMENT,
        after: None,
        limit: 100,
        filter: MessageFilter::default(),
    };
    let browsed = admin.browse(admin.store()?.browse(&query)).await?;
    Ok(nearest(id, browsed.found.iter().map(|found| found.id.as_str())).map(str::to_owned))
}

fn changed(id: &str, told: Option<&str>) -> Problem {
    let id_text = id.escape_debug();
    let last = told.map(|told| format!("; last known of it: {told}"));
    let last = last.unwrap_or_default();
    let detail = format!(
        "the message `{id_text}` is not the one that `If-Match` speaks of: it was moved, replaced or tried \
         since{last}; look at it again; nothing was changed"
    );
    Problem::new(StatusCode::PRECONDITION_FAILED, detail)
        .id(id)
        .result("changed")
}

pub(super) fn conflict(id: &str, result: &'static str, how: &str) -> Problem {
    let detail = format!(
        "the message `{}` {how}; nothing was changed",
        id.escape_debug()
    );
    Problem::new(StatusCode::CONFLICT, detail)
        .id(id)
        .result(result)
}
