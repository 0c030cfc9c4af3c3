//! All calls, and what holds for each of them.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State as Extract};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tokio::sync::Semaphore;
use tracing::{error, warn};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::audit::Audited;
use super::auth::{OPENAPI, Tokens};
use super::openapi::{self, Base};
use super::problem::Problem;
use super::{State, audit, dead, dead_actions, health, messages, overview, pause, routes, send};
use crate::domain::{Route, RouteName, nearest};
use crate::lifecycle::{Shutdown, Tasks};
use crate::store::{Store, StoreError};

/// Longest request body, bytes.
pub(super) const MAX_BODY: usize = 2 * 1024 * 1024;

/// Longest wait for the store.
const STORE_DEADLINE: Duration = Duration::from_secs(5);
/// How many may browse the store at once.
const BROWSING: usize = 2;

/// What every handler is given.
pub(super) struct Admin {
    pub(super) state: State,
    pub(super) tokens: Tokens,
    pub(super) shutdown: Shutdown,
    pub(super) tasks: Tasks,
    browsing: Semaphore,
    by_name: BTreeMap<RouteName, Arc<Route>>,
}

impl Admin {
    pub(super) fn new(state: State, tokens: Tokens, tasks: Tasks, shutdown: Shutdown) -> Arc<Self> {
        let by_name = state.routes.iter().map(|r| (r.name.clone(), Arc::clone(r))).collect();
        let browsing = Semaphore::new(BROWSING);
        Arc::new(Self { state, tokens, shutdown, tasks, browsing, by_name })
    }

    /// A route by the name in a path.
    pub(super) fn route(&self, name: &str) -> Result<&Arc<Route>, Problem> {
        RouteName::new(name).and_then(|name| self.by_name.get(&name)).ok_or_else(|| {
            let nearest = nearest(name, self.by_name.keys().map(RouteName::as_str)).map(str::to_owned);
            Problem::not_found(format!("there is no route `{}`", name.escape_debug())).nearest(nearest)
        })
    }

    /// The store, if it can be reached right now: nobody shall wait for one that is away.
    pub(super) fn store(&self) -> Result<&Store, Problem> {
        let store = self.state.store.get().filter(|store| store.is_reachable());
        store.ok_or_else(|| {
            Problem::unavailable("Redis cannot be reached right now; nothing was done, try again")
        })
    }

    /// Waits for what was asked of the store, in time.
    pub(super) async fn ask<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Problem> {
        let answer = tokio::time::timeout(STORE_DEADLINE, call).await;
        let answer = answer.map_err(|_| {
            let detail = "Redis did not answer in time; what was asked for may have been done: ask again";
            Problem::new(StatusCode::GATEWAY_TIMEOUT, detail)
        })?;
        answer.map_err(|error| Problem::unavailable(error.to_string()))
    }

    /// The same for what only shows something: few at a time, so that people who look cost the flow nothing
    /// that grows with their number.
    pub(super) async fn browse<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Problem> {
        let place = tokio::time::timeout(STORE_DEADLINE, self.browsing.acquire()).await;
        let _place = place.map_err(|_| Problem::unavailable("too many are looking at once; try again"))?;
        self.ask(call).await
    }

    /// Keeps an entry of the audit; that it cannot be kept is logged, beside the entry's own line.
    pub(super) async fn keep(self: Arc<Self>, entry: audit::Entry) {
        let kept = match self.store() {
            Ok(store) => self.ask(store.append_to_audit_log(&entry.fields())).await,
            Err(problem) => Err(problem),
        };
        if let Err(problem) = kept {
            warn!(error = problem.detail(), "an entry of the audit stands in the log only");
        }
    }

    /// All routes, by name.
    pub(super) fn routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.by_name.values()
    }
}

/// All calls; the router and the description are made of these and nothing else. The table in `mod.rs` says
/// the same, and a test compares them.
fn calls() -> OpenApiRouter<Arc<Admin>> {
    OpenApiRouter::with_openapi(Base::openapi())
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics))
        .routes(routes!(description))
        .routes(routes!(routes::list))
        .routes(routes!(routes::one))
        .routes(routes!(send::send))
        .routes(routes!(messages::list))
        .routes(routes!(messages::one, messages::cancel, messages::reschedule))
        .routes(routes!(overview::histogram))
        .routes(routes!(overview::partitions))
        .routes(routes!(overview::replicas))
        .routes(routes!(audit::list))
        .routes(routes!(pause::pause))
        .routes(routes!(pause::resume))
        .routes(routes!(dead::list))
        .routes(routes!(dead::one))
        .routes(routes!(dead_actions::redrive))
        .routes(routes!(dead_actions::drop_dead))
}

/// The whole service.
pub(super) fn router(admin: Arc<Admin>) -> Router {
    let (router, _) = calls().split_for_parts();
    router
        .fallback(|| async { Problem::not_found("there is nothing at this path") })
        .method_not_allowed_fallback(|method: Method| async move {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not for this path"))
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn_with_state(Arc::clone(&admin), around))
        .with_state(admin)
}

/// Around every call: the token first; a panic becomes a 500 and leaves the connection whole; what may have
/// changed something is audited; nothing is cached or guessed at.
async fn around(Extract(admin): Extract<Arc<Admin>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let mut response = match admin.tokens.judge(&parts) {
        Err(problem) => problem.into_response(),
        Ok(who) => {
            let audited = Audited::begin(&admin, &parts, &who);
            let answer = AssertUnwindSafe(next.run(Request::from_parts(parts, body))).catch_unwind().await;
            let response = answer.unwrap_or_else(|_| {
                error!("a call of the admin API panicked");
                let detail = "an internal error; the log says more";
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail).into_response()
            });
            if let Some(audited) = audited {
                // In the trail before the caller has its answer.
                let entry = audited.end(&response);
                Arc::clone(&admin).keep(entry).await;
            }
            response
        }
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The description of the API, made once. `Err` says why it cannot be written as JSON.
pub(super) static DESCRIPTION: LazyLock<Result<String, String>> =
    LazyLock::new(|| openapi::complete(calls().get_openapi()).map_err(|e| e.to_string()));

/// This description
///
/// Made from the handlers.
#[utoipa::path(
    get,
    path = OPENAPI,
    operation_id = "openapi",
    security(()),
    responses((status = 200, description = "An OpenAPI 3.1 document.", body = Object))
)]
async fn description() -> Result<impl IntoResponse, Problem> {
    let text = DESCRIPTION.as_ref().map_err(|why| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the description cannot be written: {why}"))
    })?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text.as_str()))
}
