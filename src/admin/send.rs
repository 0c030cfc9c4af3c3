//! Send: publishes a test message to a route's own ingress, and follows it to its end on request.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;

use super::audit_note::AuditNote;
use super::auth::Caller;
use super::content::{self, not_taken};
use super::context::Admin;
use super::extract::{JsonBody, NamedRoute, RoutePath, acting_body};
use super::inject::InjectError;
use super::problem::Problem;
use super::times::rfc3339;
use super::troubles::obstacles;
use crate::api::{AcceptedMessage, SendAnswer, SendOutcome, SendRequest};
use crate::domain::{Clock, Message, Origin, Route};
use crate::telemetry::{MessageEnd, MessageFollower};

/// Longest wait for the broker's confirm, a little longer than lanes wait themselves.
const INJECT_DEADLINE: Duration = Duration::from_secs(35);
/// Longest wait until the other replicas watch for the message too: some heartbeats.
const WATCHERS_DEADLINE: Duration = Duration::from_secs(3);
/// Time past its due time for which a message is followed, ms.
const FOLLOW_MARGIN_MS: i64 = 30_000;
/// Longest delay that is waited for, ms.
const MAX_WAIT_MS: i64 = 3_600_000;

acting_body!(SendRequest);

/// Send a test message to the route's own ingress
///
/// The message is published, with its delay headers, to the topic or queue that the route reads, and takes
/// the way of any other. With `wait` the answer comes when its target has confirmed it (or it is dead), at
/// most 30 s past its due time. At most 2 MiB.
#[utoipa::path(
    post, path = "/api/v1/routes/{route}/messages", operation_id = "send", params(RoutePath),
    request_body = SendRequest,
    responses(
        (status = 200, description = "With `wait`: how it ended.", body = SendAnswer),
        (status = 202, description = "The broker has confirmed it in the route's ingress.", body = AcceptedMessage),
        (status = 400, description = "Not the JSON asked for, or a message that the route would call invalid: \
            `reason` then holds the contract's word (`bad_delay`, `too_far`, ...). Nothing was sent."),
        (status = 404, description = "No such route."),
        (status = 502, description = "The broker refused the message; `id` names it. Nothing was sent."),
        (status = 503, description = "The broker cannot be reached, too many messages are waited for, or this \
            replica drains. Nothing was sent, unless `detail` says that it was."),
        (status = 504, description = "The broker did not confirm in time, or the message was sent and was not \
            seen to end in time. It may have been published; `id` names it."),
    )
)]
pub(super) async fn send(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    NamedRoute(route): NamedRoute,
    JsonBody(mut request): JsonBody<SendRequest>,
) -> Result<Response, Problem> {
    if admin.state.health.is_draining() {
        return Err(Problem::unavailable(
            "this replica is draining; nothing was sent",
        ));
    }
    let route = route
        .at_topic(request.topic.as_deref())
        .map_err(|why| Problem::bad(format!("{why} (`topic`); nothing was sent")))?;
    let wait = request.wait;
    let id = request
        .id
        .take()
        .unwrap_or_else(|| fresh_id(admin.state.clock));
    caller.is_about(&id);
    let message = message(&route, request, &id)?;
    let admitted = admin.state.inject.admit(&route, message.clone());
    let due = admitted.map_err(|unfit| not_taken(&unfit))?.due;
    let due = due.plus(route.policy.jitter_ms);
    if !wait {
        inject(&admin, &route, message, &id).await?;
        let sent = AcceptedMessage {
            id,
            route: route.name.to_string(),
        };
        return Ok((
            StatusCode::ACCEPTED,
            Extension(AuditNote::new("sent")),
            Json(sent),
        )
            .into_response());
    }
    let left_ms = due.since(admin.state.clock.wall()).max(0);
    if left_ms > MAX_WAIT_MS {
        return Err(Problem::bad(
            "`wait` is for messages that are due within an hour; nothing was sent",
        ));
    }
    let follower = admin.state.watch.follow(&route.name, &id).ok_or_else(|| {
        Problem::unavailable("too many messages are being waited for; send it without `wait`")
    })?;
    // A replica that hangs does not answer. The wait ends without it: the others publish its messages.
    drop(tokio::time::timeout(WATCHERS_DEADLINE, follower.watched_everywhere()).await);
    inject(&admin, &route, message, &id).await?;
    let patience = Duration::from_millis((left_ms + FOLLOW_MARGIN_MS) as u64);
    let outcome = follow(&admin, &route, follower, patience, &id).await?;
    let ended = ended(&route, id, &outcome);
    Ok((Extension(AuditNote::new("sent and followed")), Json(ended)).into_response())
}

/// An id that no producer uses: time and 64 random bits.
fn fresh_id(clock: Clock) -> String {
    format!("send-{:x}-{:016x}", clock.wall().0, fastrand::u64(..))
}

/// Builds the message as a producer of the route's own technology would.
fn message(route: &Route, request: SendRequest, id: &str) -> Result<Message, Problem> {
    if id.starts_with(['~', '"']) {
        return Err(Problem::bad(
            "an id cannot begin with `~`, which is for Postdate's own ids, or with a quote",
        ));
    }
    let names = &route.policy.headers;
    let origin = content::origin(route);
    let key = content::key(origin, request.key)?;
    let time = content::time(origin, names, request.delay, request.at)?;
    let mut headers = content::headers(origin, names, request.headers)?;
    headers.push(match time {
        Some(time) => time,
        // At once.
        None => content::header(origin, names.delay.clone(), "0".to_owned()),
    });
    headers.push(content::header(origin, names.id.clone(), id.to_owned()));
    let body = content::body(request.body, request.body_base64)?;
    Ok(Message {
        origin,
        key: match origin {
            Origin::Kafka => key,
            Origin::Rabbitmq => Some(Bytes::new()),
        },
        body: Some(body.unwrap_or_default()),
        headers,
        properties: content::properties(origin),
    })
}

async fn inject(
    admin: &Admin,
    route: &Arc<Route>,
    message: Message,
    id: &str,
) -> Result<(), Problem> {
    let injected =
        tokio::time::timeout(INJECT_DEADLINE, admin.state.inject.inject(route, message)).await;
    let injected = match injected {
        Ok(injected) => injected,
        Err(_) => Err(InjectError::Unconfirmed(format!(
            "no answer in {} s",
            INJECT_DEADLINE.as_secs()
        ))),
    };
    injected.map_err(|error| {
        let status = match error {
            InjectError::Unreachable(_) => StatusCode::SERVICE_UNAVAILABLE,
            InjectError::Refused(_) => StatusCode::BAD_GATEWAY,
            InjectError::Unconfirmed(_) => StatusCode::GATEWAY_TIMEOUT,
        };
        Problem::new(status, error.to_string()).id(id)
    })
}

async fn follow(
    admin: &Admin,
    route: &Route,
    mut follower: MessageFollower,
    patience: Duration,
    id: &str,
) -> Result<MessageEnd, Problem> {
    let ended = |status, detail: &str| Err(Problem::new(status, detail).id(id));
    tokio::select! {
        outcome = follower.end() => Ok(outcome),
        () = tokio::time::sleep(patience) => {
            let detail = "the message was sent, but was not seen to be published within 30 s of its due time";
            let reasons = obstacles(admin, route).join("; ");
            let detail = if reasons.is_empty() { detail.to_owned() } else { format!("{detail}: {reasons}") };
            ended(StatusCode::GATEWAY_TIMEOUT, &detail)
        }
        () = admin.shutdown.draining() => {
            let detail = "the message was sent, but this replica is draining and follows it no longer";
            ended(StatusCode::SERVICE_UNAVAILABLE, detail)
        }
    }
}

fn ended(route: &Route, id: String, outcome: &MessageEnd) -> SendAnswer {
    let route = route.name.to_string();
    match outcome.clone() {
        MessageEnd::Published {
            published_at,
            due,
            lateness_ms,
            attempt,
        } => SendAnswer {
            id,
            route,
            result: SendOutcome::Published.into(),
            published_at_ms: Some(published_at.0),
            published_at: rfc3339(published_at),
            due_ms: Some(due.0),
            due: rfc3339(due),
            lateness_ms: Some(lateness_ms),
            attempt: Some(attempt),
            reason: None,
        },
        MessageEnd::Dead { reason } => SendAnswer {
            id,
            route,
            result: SendOutcome::Dead.into(),
            published_at_ms: None,
            published_at: None,
            due_ms: None,
            due: None,
            lateness_ms: None,
            attempt: None,
            reason: Some(reason),
        },
    }
}
