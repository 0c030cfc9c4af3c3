//! Send: a test message to a route's own ingress, followed to its end on request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Path, Request, State as Extract};
use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::inject::InjectError;
use super::problem::Problem;
use super::router::{Admin, MAX_BODY};
use crate::domain::{
    Clock, Endpoint, Header, HeaderValue, Message, Origin, Properties, Route, RouteName, UnixMs,
};
use crate::telemetry::{Follower, Outcome};

/// Longest wait for a request's body.
const BODY_DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait for the broker's confirm; a little longer than lanes wait themselves.
const INJECT_DEADLINE: Duration = Duration::from_secs(35);
/// How long past its due time a message is followed.
const PATIENCE_MS: i64 = 30_000;
/// Longest delay that is waited for, ms.
const MAX_WAIT_MS: i64 = 3_600_000;

/// The request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sending {
    delay: Option<Moment>,
    at: Option<Moment>,
    id: Option<String>,
    key: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    body: Option<String>,
    body_base64: Option<String>,
    #[serde(default)]
    wait: bool,
}

/// What a delay header may hold.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a delay or a moment is a text or a whole number of milliseconds")]
enum Moment {
    Ms(u64),
    Text(String),
}

impl Moment {
    fn text(self) -> String {
        match self {
            Self::Ms(ms) => ms.to_string(),
            Self::Text(text) => text,
        }
    }
}

/// `POST /api/v1/routes/{route}/messages`
pub(super) async fn send(
    Extract(admin): Extract<Arc<Admin>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let route = admin.route(&name)?;
    let mut sending = read(request).await?;
    if admin.state.readiness.is_draining() {
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "this replica is draining; nothing was sent",
        ));
    }
    let wait = sending.wait;
    let id = sending.id.take().unwrap_or_else(|| fresh_id(admin.state.clock));
    let message = message(route, sending, &id)?;
    let due = admin.state.inject.judge(route, &message).map_err(|unfit| {
        let detail = format!("the route would not take this message: {}", unfit.error);
        Problem::new(StatusCode::BAD_REQUEST, detail).with("reason", unfit.reason.as_str())
    })?;
    if !wait {
        inject(&admin, route, message, &id).await?;
        return Ok((StatusCode::ACCEPTED, Json(json!({ "id": id, "route": route.name.as_str() }))));
    }
    let left_ms = due.since(admin.state.clock.wall()).max(0);
    if left_ms > MAX_WAIT_MS {
        let detail = "`wait` is for messages that are due within an hour; nothing was sent";
        return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
    }
    let follower = admin.state.watch.follow(&route.name, &id).ok_or_else(|| {
        let detail = "too many messages are being waited for; send it without `wait`";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })?;
    inject(&admin, route, message, &id).await?;
    let patience = Duration::from_millis((left_ms + PATIENCE_MS) as u64);
    follow(&admin, follower, patience, &route.name, &id).await
}

/// Reads the body, in time.
async fn read(request: Request) -> Result<Sending, Problem> {
    let late = |_| Problem::new(StatusCode::REQUEST_TIMEOUT, "the request's body did not come in time");
    let body = tokio::time::timeout(BODY_DEADLINE, Json::<Sending>::from_request(request, &())).await;
    match body.map_err(late)? {
        Ok(Json(sending)) => Ok(sending),
        Err(JsonRejection::MissingJsonContentType(_)) => Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body must be JSON, and `content-type: application/json` must say so",
        )),
        Err(e) if e.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            Err(Problem::new(e.status(), format!("the body is larger than {MAX_BODY} bytes")))
        }
        Err(e) => Err(Problem::new(StatusCode::BAD_REQUEST, e.body_text())),
    }
}

/// An id that no producer uses: time and 64 random bits.
fn fresh_id(clock: Clock) -> String {
    format!("send-{:x}-{:016x}", clock.wall().0, fastrand::u64(..))
}

/// The message as a producer of the route's own technology would send it.
fn message(route: &Route, sending: Sending, id: &str) -> Result<Message, Problem> {
    let bad = |detail: &str| Err(Problem::new(StatusCode::BAD_REQUEST, detail));
    let (origin, key, properties) = match (&route.from, sending.key) {
        (Endpoint::Kafka { .. }, key) => (Origin::Kafka, key.map(Bytes::from), None),
        (Endpoint::Rabbitmq { .. }, None) => {
            // Persistent, as everything that Postdate publishes.
            let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
            (Origin::Rabbitmq, Some(Bytes::new()), Some(Box::new(properties)))
        }
        (Endpoint::Rabbitmq { .. }, Some(_)) => {
            return bad("`key` is for routes from Kafka: a queue is reached by its name as routing key");
        }
    };
    if id.starts_with(['~', '"']) {
        return bad("an id cannot begin with `~`, which is for Postdate's own ids, or with a quote");
    }
    let names = &route.policy.headers;
    let moment = match (sending.delay, sending.at) {
        (Some(_), Some(_)) => return bad("`delay` and `at` cannot stand together"),
        (None, Some(at)) => (names.deliver_at.as_str(), at.text()),
        (delay, None) => (names.delay.as_str(), delay.map_or_else(|| "0".to_owned(), Moment::text)),
    };
    let own = [&names.delay, &names.deliver_at, &names.id, &names.op];
    if let Some(name) = sending.headers.keys().find(|name| own.iter().any(|o| o.eq_ignore_ascii_case(name))) {
        return bad(&format!("the header `{name}` is not for `headers`: use `delay`, `at` and `id`"));
    }
    let body = match (sending.body, sending.body_base64) {
        (Some(_), Some(_)) => return bad("`body` and `body_base64` cannot stand together"),
        (text, None) => Bytes::from(text.unwrap_or_default()),
        (None, Some(coded)) => match STANDARD.decode(coded) {
            Ok(bytes) => Bytes::from(bytes),
            Err(e) => return bad(&format!("`body_base64` is not base64: {e}")),
        },
    };
    let given = sending.headers.into_iter();
    let set = [(moment.0.to_owned(), moment.1), (names.id.clone(), id.to_owned())];
    let headers = given.chain(set).map(|(name, value)| Header::new(name, text(origin, value))).collect();
    Ok(Message { origin, key, body: Some(body), headers, properties })
}

fn text(origin: Origin, value: String) -> HeaderValue {
    match origin {
        Origin::Kafka => HeaderValue::Bytes(Bytes::from(value)),
        Origin::Rabbitmq => HeaderValue::LongString(Bytes::from(value)),
    }
}

async fn inject(admin: &Admin, route: &Arc<Route>, message: Message, id: &str) -> Result<(), Problem> {
    let injected = tokio::time::timeout(INJECT_DEADLINE, admin.state.inject.inject(route, message)).await;
    let late = || Err(InjectError::Unconfirmed(format!("no answer in {} s", INJECT_DEADLINE.as_secs())));
    injected.unwrap_or_else(|_| late()).map_err(|error| {
        let status = match error {
            InjectError::Unreachable(_) => StatusCode::SERVICE_UNAVAILABLE,
            InjectError::Refused(_) => StatusCode::BAD_GATEWAY,
            InjectError::Unconfirmed(_) => StatusCode::GATEWAY_TIMEOUT,
        };
        Problem::new(status, error.to_string()).with("id", id)
    })
}

async fn follow(
    admin: &Admin,
    mut follower: Follower,
    patience: Duration,
    route: &RouteName,
    id: &str,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let ended = |status, detail: &str| Err(Problem::new(status, detail).with("id", id));
    let outcome = tokio::select! {
        outcome = follower.outcome() => outcome,
        () = tokio::time::sleep(patience) => {
            let detail = "the message was sent, but was not seen to be published within 30 s of its due time";
            return ended(StatusCode::GATEWAY_TIMEOUT, detail);
        }
        () = admin.shutdown.draining() => {
            let detail = "the message was sent, but this replica is draining and follows it no longer";
            return ended(StatusCode::SERVICE_UNAVAILABLE, detail);
        }
    };
    let route = route.as_str();
    let body = match outcome {
        Outcome::Published { published_at, due, lateness_ms, attempt } => json!({
            "id": id, "route": route, "result": "published",
            "published_at_ms": published_at.0, "published_at": rfc3339(published_at),
            "due_ms": due.0, "due": rfc3339(due),
            "lateness_ms": lateness_ms, "attempt": attempt,
        }),
        Outcome::Dead { reason } => json!({ "id": id, "route": route, "result": "dead", "reason": reason }),
    };
    Ok((StatusCode::OK, Json(body)))
}

/// RFC 3339 in UTC; `None` beyond the year 9999.
fn rfc3339(moment: UnixMs) -> Option<String> {
    jiff::Timestamp::from_millisecond(moment.0).ok().map(|t| t.to_string())
}
