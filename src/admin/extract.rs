//! Extractors: the arguments that handlers take from a request. Each extractor answers with a problem of its own, in the
//! order of the handler's arguments: the route (404) comes before the query or the body (400 and the like).

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use super::auth::Caller;
use super::context::Admin;
use super::problem::Problem;
use crate::domain::limits::MAX_ID_BYTES;
use crate::domain::{Because, Route, Text};

/// Longest request body, bytes.
pub(super) const MAX_BODY_BYTES: usize = 2 * 1024 * 1024;
/// Longest wait for a request's body.
const BODY_DEADLINE: Duration = Duration::from_secs(10);
/// What [`JsonBody`] answers to a body that it does not take, for the description of each call that has one.
pub(super) const BODY_REFUSALS: [(&str, &str); 3] = [
    (
        "408",
        "The body did not come within 10 s. Nothing was done.",
    ),
    ("413", "The body is larger than 2 MiB. Nothing was done."),
    (
        "415",
        "The body is not said to be `application/json`. Nothing was done.",
    ),
];

/// `{route}` in a path, as the description has it.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct RoutePath {
    /// The route's name, as in the configuration.
    #[param(pattern = "^[a-z][a-z0-9_-]{0,63}$")]
    route: String,
}

/// The route that the path names; 404 with the nearest name if there is none.
pub(super) struct NamedRoute(pub(super) Arc<Route>);

impl FromRequestParts<Arc<Admin>> for NamedRoute {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, admin: &Arc<Admin>) -> Result<Self, Problem> {
        let PathParams(RoutePath { route }) = PathParams::from_request_parts(parts, admin).await?;
        admin.route(&route).cloned().map(Self)
    }
}

/// `{route}` and `{id}` in a path, as the description has them.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct MessagePath {
    /// The route's name, as in the configuration.
    #[param(pattern = "^[a-z][a-z0-9_-]{0,63}$")]
    route: String,
    /// The message's own id, or its `~` id; at most 256 bytes.
    #[param(min_length = 1)]
    #[serde(default = "cancel_word")]
    id: String,
}

/// The id of the message whose path is also that of the call that cancels many: the one path without a parameter.
fn cancel_word() -> String {
    "cancel".to_owned()
}

/// The route that the path names, and the id of a message; 400 if no message can have it.
pub(super) struct NamedMessage {
    pub(super) route: Arc<Route>,
    pub(super) id: String,
}

impl FromRequestParts<Arc<Admin>> for NamedMessage {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, admin: &Arc<Admin>) -> Result<Self, Problem> {
        let PathParams(MessagePath { route, id }) =
            PathParams::from_request_parts(parts, admin).await?;
        let route = Arc::clone(admin.route(&route)?);
        judge_id(&id)?;
        Ok(Self { route, id })
    }
}

/// `{id}` in a path that names no route, as the description has it.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct IdPath {
    /// The message's own id, or its `~` id; at most 256 bytes.
    #[param(min_length = 1)]
    id: String,
}

/// The id of a message that the path names; 400 if no message can have it.
pub(super) struct MessageId(pub(super) String);

impl FromRequestParts<Arc<Admin>> for MessageId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, admin: &Arc<Admin>) -> Result<Self, Problem> {
        let PathParams(IdPath { id }) = PathParams::from_request_parts(parts, admin).await?;
        judge_id(&id)?;
        Ok(Self(id))
    }
}

pub(super) fn judge_id(id: &str) -> Result<(), Problem> {
    if id.is_empty() || id.len() > MAX_ID_BYTES {
        return Err(Problem::bad(format!(
            "an id has 1 to {MAX_ID_BYTES} bytes, this one has {}",
            id.len()
        )));
    }
    Ok(())
}

/// `If-Match`: the version of the message that the call is for, as the caller was shown it. `None`: any version.
pub(super) struct IfMatch(pub(super) Option<Text>);

impl FromRequestParts<Arc<Admin>> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Admin>) -> Result<Self, Problem> {
        let mut tags = parts.headers.get_all(header::IF_MATCH).iter();
        let Some(tag) = tags.next() else {
            return Ok(Self(None));
        };
        if tags.next().is_some() {
            return Err(no_tag());
        }
        let tag = tag.to_str().map_err(|_| no_tag())?.trim();
        if tag == "*" {
            return Ok(Self(None));
        }
        let inner = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
        let inner = inner
            .filter(|inner| !inner.is_empty() && !inner.contains('"'))
            .ok_or_else(no_tag)?;
        Ok(Self(Some(inner.into())))
    }
}

fn no_tag() -> Problem {
    Problem::bad(
        "`If-Match` takes one entity tag, as the message's `ETag` gave it with its quotes, or `*`",
    )
}

/// The path's segments by name. A path that cannot be read is a 404: nothing can have that name.
pub(super) struct PathParams<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<Admin>> for PathParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, admin: &Arc<Admin>) -> Result<Self, Problem> {
        let segments = Path::<T>::from_request_parts(parts, admin).await;
        segments
            .map(|Path(segments)| Self(segments))
            .map_err(|e| Problem::not_found(e.body_text()))
    }
}

/// The query string. The type `T` denies unknown fields: a misspelt filter must not select everything.
pub(super) struct QueryParams<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Arc<Admin>> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Admin>) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        let query = serde_html_form::Deserializer::from_bytes(query.as_bytes());
        let query = serde_path_to_error::deserialize(query);
        query
            .map(Self)
            // The error names the parameter.
            .map_err(|e| Problem::bad(format!("the query cannot be read: {e}")))
    }
}

/// The JSON body of a call that may change something.
pub(super) trait ActingBody: DeserializeOwned {
    /// Takes out why the caller does it. It is [`Caller::actor`]'s then.
    fn take_because(&mut self) -> Option<Because>;
}

/// A body that has its reason in its field `because`.
macro_rules! acting_body {
    ($body:ty) => {
        impl $crate::admin::extract::ActingBody for $body {
            fn take_because(&mut self) -> Option<$crate::domain::Because> {
                self.because.take()
            }
        }
    };
}
pub(super) use acting_body;

/// The JSON body. Its size and the time to read it are bounded.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: ActingBody> FromRequest<Arc<Admin>> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &Arc<Admin>) -> Result<Self, Problem> {
        let caller = request.extensions().get::<Caller>().cloned();
        let reading = tokio::time::timeout(BODY_DEADLINE, Json::<T>::from_request(request, &()));
        let Ok(body) = reading.await else {
            return Err(Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "the request's body did not come in time",
            ));
        };
        match body {
            Ok(Json(mut body)) => {
                if let Some((caller, because)) = caller.zip(body.take_because()) {
                    caller.say_why(because)?;
                }
                Ok(Self(body))
            }
            Err(JsonRejection::MissingJsonContentType(_)) => Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the body must be JSON, and `content-type: application/json` must say so",
            )),
            Err(e) if e.status() == StatusCode::PAYLOAD_TOO_LARGE => Err(Problem::new(
                e.status(),
                format!("the body is larger than {MAX_BODY_BYTES} bytes"),
            )),
            Err(e) => Err(Problem::bad(e.body_text())),
        }
    }
}
