//! Send: publishes a test message to a route's own ingress, and follows it to its end on request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::audit_note::AuditNote;
use super::context::Admin;
use super::extract::{JsonBody, NamedRoute, RoutePath, acting_body};
use super::inject::InjectError;
use super::problem::Problem;
use super::times::rfc3339;
use super::troubles::obstacles;
use crate::api::Timestamp;
use crate::domain::{
    Because, Clock, Endpoint, Header, HeaderValue, Message, Origin, Properties, Route,
};
use crate::telemetry::{MessageEnd, MessageFollower};

/// Longest wait for the broker's confirm, a little longer than lanes wait themselves.
const INJECT_DEADLINE: Duration = Duration::from_secs(35);
/// Longest wait until the other replicas watch for the message too: some heartbeats.
const WATCHERS_DEADLINE: Duration = Duration::from_secs(3);
/// Time past its due time for which a message is followed, ms.
const FOLLOW_MARGIN_MS: i64 = 30_000;
/// Longest delay that is waited for, ms.
const MAX_WAIT_MS: i64 = 3_600_000;

/// A message to be sent.
#[derive(Deserialize, ToSchema)]
#[schema(as = Send)]
#[serde(deny_unknown_fields)]
pub(super) struct SendRequest {
    /// As `x-delay`: `"2s"`, `"PT1.5S"`, or milliseconds. Without `delay` and `at`: 0.
    #[schema(nullable = false)]
    delay: Option<Timestamp>,
    /// As `x-deliver-at`: RFC 3339, or Unix milliseconds. Not together with `delay`.
    #[schema(nullable = false)]
    at: Option<Timestamp>,
    /// The producer's own name for it, as `x-delay-id`; a fresh one if none is given.
    #[schema(nullable = false, min_length = 1, max_length = 256)]
    id: Option<String>,
    /// Kafka's record key. Only on routes from Kafka.
    #[schema(nullable = false)]
    key: Option<String>,
    /// Further headers; `x-delay-target` and `x-delay-expires` may be among them, the other delay headers not.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// The body, as text; empty if none is given.
    #[schema(nullable = false)]
    body: Option<String>,
    /// The body, as bytes. Not together with `body`.
    #[schema(nullable = false, content_encoding = "base64")]
    body_base64: Option<String>,
    /// Answer when it has ended. For messages due within an hour.
    #[serde(default)]
    wait: bool,
    /// Why, in the caller's own words: one line of at most 500 bytes, for audit, trail and log.
    #[schema(nullable = false, value_type = Option<String>, max_length = 500)]
    because: Option<Because>,
}

acting_body!(SendRequest);

/// A message that is in its route's ingress.
#[derive(Serialize, ToSchema)]
#[schema(as = Sent)]
struct AcceptedMessage {
    /// The message's id within the route.
    id: String,
    /// The route.
    route: String,
}

/// The end of a message that was followed.
#[derive(Serialize, ToSchema)]
#[schema(as = MessageEnd)]
struct SendAnswer {
    /// The message's id within the route.
    id: String,
    /// The route.
    route: String,
    /// The outcome; `dead`: kept as a dead letter, or dropped by policy.
    result: SendOutcome,
    /// When its target confirmed it, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    published_at_ms: Option<i64>,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    published_at: Option<String>,
    /// When it was due, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    due_ms: Option<i64>,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    due: Option<String>,
    /// Confirm minus due time, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    lateness_ms: Option<f64>,
    /// Number of the hand-out; the first is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    attempt: Option<u32>,
    /// Of a dead one: the contract's reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
}

/// MessageEnd of a message.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum SendOutcome {
    Published,
    Dead,
}

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
    NamedRoute(route): NamedRoute,
    JsonBody(mut request): JsonBody<SendRequest>,
) -> Result<Response, Problem> {
    if admin.state.health.is_draining() {
        return Err(Problem::unavailable(
            "this replica is draining; nothing was sent",
        ));
    }
    let wait = request.wait;
    let id = request
        .id
        .take()
        .unwrap_or_else(|| fresh_id(admin.state.clock));
    let message = message(&route, request, &id)?;
    let due = admin
        .state
        .inject
        .judge(&route, &message)
        .map_err(|unfit| {
            let detail = format!("the route would not take this message: {}", unfit.error);
            Problem::bad(detail).reason(unfit.reason.as_str())
        })?;
    if !wait {
        inject(&admin, &route, message, &id).await?;
        let sent = AcceptedMessage {
            id: id.clone(),
            route: route.name.to_string(),
        };
        return Ok((
            StatusCode::ACCEPTED,
            Extension(AuditNote::new(id, "sent")),
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
    let ended = ended(&route, id.clone(), &outcome);
    Ok((
        Extension(AuditNote::new(id, "sent and followed")),
        Json(ended),
    )
        .into_response())
}

/// An id that no producer uses: time and 64 random bits.
fn fresh_id(clock: Clock) -> String {
    format!("send-{:x}-{:016x}", clock.wall().0, fastrand::u64(..))
}

/// Builds the message as a producer of the route's own technology would.
fn message(route: &Route, request: SendRequest, id: &str) -> Result<Message, Problem> {
    let bad = |detail: &str| Err(Problem::bad(detail));
    let (origin, key, properties) = match (&route.from, request.key) {
        (Endpoint::Kafka { .. }, key) => (Origin::Kafka, key.map(Bytes::from), None),
        (Endpoint::Rabbitmq { .. }, None) => {
            // The message is persistent, as every message that Postdate publishes.
            let properties = Properties {
                delivery_mode: Some(2),
                ..Properties::default()
            };
            (
                Origin::Rabbitmq,
                Some(Bytes::new()),
                Some(Box::new(properties)),
            )
        }
        (Endpoint::Rabbitmq { .. }, Some(_)) => {
            return bad(
                "`key` is for routes from Kafka: a queue is reached by its name as routing key",
            );
        }
    };
    if id.starts_with(['~', '"']) {
        return bad(
            "an id cannot begin with `~`, which is for Postdate's own ids, or with a quote",
        );
    }
    let names = &route.policy.headers;
    let moment = match (request.delay, request.at) {
        (Some(_), Some(_)) => return bad("`delay` and `at` cannot stand together"),
        (None, Some(at)) => (names.deliver_at.as_str(), at.text()),
        (delay, None) => (
            names.delay.as_str(),
            delay.map_or_else(|| "0".to_owned(), |time| time.text()),
        ),
    };
    let own = [&names.delay, &names.deliver_at, &names.id, &names.op];
    if let Some(name) = request
        .headers
        .keys()
        .find(|name| own.iter().any(|o| o.eq_ignore_ascii_case(name)))
    {
        return bad(&format!(
            "the header `{name}` is not for `headers`: use `delay`, `at` and `id`"
        ));
    }
    let body = match (request.body, request.body_base64) {
        (Some(_), Some(_)) => return bad("`body` and `body_base64` cannot stand together"),
        (text, None) => Bytes::from(text.unwrap_or_default()),
        (None, Some(coded)) => match STANDARD.decode(coded) {
            Ok(bytes) => Bytes::from(bytes),
            Err(e) => return bad(&format!("`body_base64` is not base64: {e}")),
        },
    };
    let given = request.headers.into_iter();
    let set = [
        (moment.0.to_owned(), moment.1),
        (names.id.clone(), id.to_owned()),
    ];
    let headers = given
        .chain(set)
        .map(|(name, value)| Header::new(name, text(origin, value)))
        .collect();
    Ok(Message {
        origin,
        key,
        body: Some(body),
        headers,
        properties,
    })
}

fn text(origin: Origin, value: String) -> HeaderValue {
    match origin {
        Origin::Kafka => HeaderValue::Bytes(Bytes::from(value)),
        Origin::Rabbitmq => HeaderValue::LongString(Bytes::from(value)),
    }
}

async fn inject(
    admin: &Admin,
    route: &Arc<Route>,
    message: Message,
    id: &str,
) -> Result<(), Problem> {
    let injected =
        tokio::time::timeout(INJECT_DEADLINE, admin.state.inject.inject(route, message)).await;
    let late = || {
        Err(InjectError::Unconfirmed(format!(
            "no answer in {} s",
            INJECT_DEADLINE.as_secs()
        )))
    };
    injected.unwrap_or_else(|_| late()).map_err(|error| {
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
            result: SendOutcome::Published,
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
            result: SendOutcome::Dead,
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
