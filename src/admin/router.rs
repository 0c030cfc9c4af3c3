//! All calls, and the checks around each of them.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State as Extract};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::FutureExt;
use tracing::error;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::audit::{AuditedCall, PeerAddress};
use super::auth::{AccessRole, OPENAPI_PATH, needed_role};
use super::context::Admin;
use super::extract::MAX_BODY_BYTES;
use super::openapi::{self, ApiDescription};
use super::problem::Problem;
use super::refusals::{ProbesOnly, RefusalReason};
use super::{
    activity, audit, body, cancel_many, console, dead, dead_actions, health, live, messages,
    overview, pause, purge, replace, retries, routes, send, session, skip, store_turns, trail,
};

/// All calls. The router and the description are made of these and nothing else. The table in `mod.rs` lists the same
/// calls, and a test compares them.
fn calls() -> OpenApiRouter<Arc<Admin>> {
    OpenApiRouter::with_openapi(ApiDescription::openapi())
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics))
        .routes(routes!(description))
        .routes(routes!(routes::list))
        .routes(routes!(routes::one))
        .routes(routes!(send::send))
        .routes(routes!(live::overview))
        .routes(routes!(live::stream))
        .routes(routes!(session::session))
        .routes(routes!(retries::list))
        .routes(routes!(trail::list))
        .routes(routes!(body::body))
        .routes(routes!(messages::list))
        .routes(routes!(messages::anywhere))
        .routes(routes!(
            messages::one,
            messages::cancel,
            messages::reschedule,
            replace::replace
        ))
        .routes(routes!(cancel_many::cancel_many))
        .routes(routes!(activity::activity))
        .routes(routes!(overview::histogram))
        .routes(routes!(overview::partitions))
        .routes(routes!(overview::replicas))
        .routes(routes!(audit::list))
        .routes(routes!(pause::pause))
        .routes(routes!(pause::resume))
        .routes(routes!(skip::skip))
        .routes(routes!(purge::purge))
        .routes(routes!(dead::list))
        .routes(routes!(dead::one))
        .routes(routes!(dead_actions::redrive))
        .routes(routes!(dead_actions::drop_dead))
}

/// The router of the whole service.
pub(super) fn router(admin: Arc<Admin>) -> Router {
    let (router, _) = calls().split_for_parts();
    let show_dead = |id: &'static str| {
        get(async move |admin, caller, query| dead::show(admin, caller, id, query).await)
    };
    let named_cancel = get(messages::one)
        .delete(messages::cancel)
        .patch(messages::reschedule)
        .put(replace::replace);
    router
        // A message may be named so too.
        .route("/api/v1/routes/{route}/messages/cancel", named_cancel)
        .route("/api/v1/dead/redrive", show_dead("redrive"))
        .route("/api/v1/dead/drop", show_dead("drop"))
        .fallback(console::file)
        .method_not_allowed_fallback(|method: Method| async move {
            Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("{method} is not for this path"),
            )
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(from_fn_with_state(Arc::clone(&admin), guard_call))
        .with_state(admin)
}

/// The router of the listener that has the probes alone.
pub(super) fn probe_router(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .fallback(|| async {
            Problem::not_found("there are /livez and /readyz at this address, no more")
        })
        .layer(from_fn(async |request: Request, next: Next| {
            with_headers(next.run(request).await)
        }))
        .with_state(admin)
}

/// Guards every call. A caller with too many connections is refused first, then the token is judged. A panic of the
/// handler becomes a 500 and leaves the connection whole. A known caller's call that may have changed something, or was
/// refused, is audited. No answer but the console's own files may be cached, and no browser may guess its type.
async fn guard_call(Extract(admin): Extract<Arc<Admin>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let needed = needed_role(&parts.method, parts.uri.path());
    let (caller, verdict) = admin.tokens.judge(&parts, needed);
    let heard = caller
        .as_ref()
        .map_or(Ok(()), |caller| caller.hear_why(&parts.headers));
    let verdict = judge_connection(&parts, needed).and(verdict).and(heard);
    let peer = parts.extensions.get().copied();
    let audited = caller
        .as_ref()
        .map(|caller| AuditedCall::begin(&admin, &parts, caller));
    let response = if let Err(problem) = verdict {
        note_refusal(&admin, peer, problem.status());
        problem.into_response()
    } else {
        if let Some(caller) = &caller {
            parts.extensions.insert(caller.clone());
        }
        let answer = AssertUnwindSafe(next.run(Request::from_parts(parts, body))).catch_unwind();
        let answer = store_turns::serve(caller, answer)
            .await
            .unwrap_or_else(|_| {
                error!("a call of the admin API panicked");
                let detail = "an internal error; the log says more";
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail).into_response()
            });
        if answer.status() == StatusCode::FORBIDDEN {
            note_refusal(&admin, peer, answer.status());
        }
        answer
    };
    // The entry is in the audit log before the caller has its answer.
    let record = audited.and_then(|audited| audited.end(&response));
    if let Some(record) = record {
        Arc::clone(&admin).keep(record).await;
    }
    with_headers(response)
}

fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    );
    response
}

/// Refuses a call on a connection that may ask for probes and metrics only.
fn judge_connection(parts: &Parts, needed: Option<AccessRole>) -> Result<(), Problem> {
    let probes_only = parts
        .extensions
        .get::<ProbesOnly>()
        .is_some_and(|only| only.0);
    if probes_only && needed.is_some() {
        let detail =
            "this address has too many connections with calls under way; end some and try again";
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, detail));
    }
    Ok(())
}

/// Counts a refused call.
fn note_refusal(admin: &Admin, peer: Option<PeerAddress>, status: StatusCode) {
    let reason = match status {
        StatusCode::UNAUTHORIZED => RefusalReason::Unauthorized,
        StatusCode::TOO_MANY_REQUESTS => RefusalReason::Address,
        _ => RefusalReason::Forbidden,
    };
    if let Some(PeerAddress(peer)) = peer {
        admin.refusals.note(reason, peer);
    }
}

/// The OpenAPI document, made once. `Err` says why it cannot be written as JSON.
pub(super) static OPENAPI_DOCUMENT: LazyLock<Result<String, String>> =
    LazyLock::new(|| openapi::complete(calls().get_openapi()).map_err(|e| e.to_string()));

/// This description
///
/// Made from the handlers.
#[utoipa::path(
    get,
    path = OPENAPI_PATH,
    operation_id = "openapi",
    security(()),
    responses((status = 200, description = "An OpenAPI 3.1 document.", body = Object))
)]
async fn description() -> Result<impl IntoResponse, Problem> {
    let text = OPENAPI_DOCUMENT.as_ref().map_err(|why| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the description cannot be written: {why}"),
        )
    })?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text.as_str()))
}
