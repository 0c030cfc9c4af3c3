//! All calls, and what holds for each of them.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State as Extract};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use futures_util::FutureExt;
use tracing::error;

use super::auth::{OPENAPI, Tokens};
use super::problem::Problem;
use super::{State, health, routes, send};
use crate::domain::{Route, RouteName};
use crate::lifecycle::Shutdown;

/// Longest request body, bytes.
pub(super) const MAX_BODY: usize = 2 * 1024 * 1024;

/// What every handler is given.
pub(super) struct Admin {
    pub(super) state: State,
    pub(super) tokens: Tokens,
    pub(super) shutdown: Shutdown,
    by_name: BTreeMap<RouteName, Arc<Route>>,
}

impl Admin {
    pub(super) fn new(state: State, tokens: Tokens, shutdown: Shutdown) -> Arc<Self> {
        let by_name = state.routes.iter().map(|r| (r.name.clone(), Arc::clone(r))).collect();
        Arc::new(Self { state, tokens, shutdown, by_name })
    }

    /// A route by the name in a path.
    pub(super) fn route(&self, name: &str) -> Result<&Arc<Route>, Problem> {
        RouteName::new(name).and_then(|name| self.by_name.get(&name)).ok_or_else(|| {
            Problem::new(StatusCode::NOT_FOUND, format!("there is no route `{}`", name.escape_debug()))
        })
    }

    /// All routes, by name.
    pub(super) fn routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.by_name.values()
    }
}

/// All calls; the router is made of these and nothing else. The table in `mod.rs` and `openapi.json` say
/// the same, and tests compare them.
pub(super) fn calls() -> [(&'static str, MethodRouter<Arc<Admin>>); 7] {
    [
        ("/livez", get(health::live)),
        ("/readyz", get(health::ready)),
        ("/metrics", get(health::metrics)),
        (OPENAPI, get(openapi)),
        ("/api/v1/routes", get(routes::list)),
        ("/api/v1/routes/{route}", get(routes::one)),
        ("/api/v1/routes/{route}/messages", post(send::send)),
    ]
}

/// The whole service.
pub(super) fn router(admin: Arc<Admin>) -> Router {
    let mut router = Router::new();
    for (path, handler) in calls() {
        router = router.route(path, handler);
    }
    router
        .fallback(|| async { Problem::new(StatusCode::NOT_FOUND, "there is nothing at this path") })
        .method_not_allowed_fallback(|method: Method| async move {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not for this path"))
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn_with_state(Arc::clone(&admin), around))
        .with_state(admin)
}

/// Around every call: the token first; a panic becomes a 500 and leaves the connection whole; nothing is
/// cached or guessed at.
async fn around(Extract(admin): Extract<Arc<Admin>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let answer = async {
        admin.tokens.judge(&parts)?;
        let answer = next.run(Request::from_parts(parts, body));
        AssertUnwindSafe(answer).catch_unwind().await.map_err(|_| {
            error!("a call of the admin API panicked");
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "an internal error; the log says more")
        })
    };
    let mut response = answer.await.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The description of the API, by hand.
pub(super) const DESCRIPTION: &str = include_str!("openapi.json");

async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DESCRIPTION)
}
