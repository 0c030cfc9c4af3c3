//! Pausing and resuming a route by hand, on all replicas.

use std::sync::Arc;

use axum::extract::State as Extract;
use axum::{Extension, Json};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::audit::Noted;
use super::extract::{Body, InRoute, OfRoute};
use super::problem::Problem;
use super::router::Admin;
use crate::domain::{PauseState, RouteName};
use crate::store::StoreError;

/// Pauses and resumes for all replicas, and says what is paused then. `app` provides it.
pub trait Pausing: Send + Sync {
    /// Pauses (or resumes) these parts of a route; what is so already stays. `Err` says why it may not have
    /// been done. Safe to do again.
    fn set<'a>(
        &'a self,
        route: &'a RouteName,
        what: PauseState,
        pause: bool,
    ) -> BoxFuture<'a, Result<PauseState, StoreError>>;
}

/// Which part of a route.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = RoutePart)]
pub(super) enum Part {
    /// Reading its topic or queue.
    Ingress,
    /// Publishing its messages.
    Publishing,
}

/// What is to be paused or resumed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Pausing)]
pub(super) struct What {
    /// Only this part; without it both.
    #[schema(nullable = false)]
    only: Option<Part>,
}

impl What {
    fn parts(&self) -> PauseState {
        match self.only {
            None => PauseState { ingress: true, publishing: true },
            Some(Part::Ingress) => PauseState { ingress: true, publishing: false },
            Some(Part::Publishing) => PauseState { ingress: false, publishing: true },
        }
    }
}

/// What of a route is paused by hand.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Paused)]
pub(super) struct View {
    /// The route.
    route: String,
    /// What of it is paused: `ingress` (nothing is read from its topic or queue), `publishing` (nothing of it is
    /// claimed or published), both, or nothing.
    paused: Vec<Part>,
}

type Answer = (Extension<Noted>, Json<View>);

/// Pause a route
///
/// Its ingress, its publishing, or both, on every replica within a second, until it is resumed; restarts change
/// nothing about it. What was claimed already (of the next 250 ms, or two seconds' worth of a limited rate) may
/// still go out. What is paused already stays so.
#[utoipa::path(
    post, path = "/api/v1/routes/{route}/pause", operation_id = "pauseRoute", params(InRoute),
    request_body = What,
    responses(
        (status = 200, description = "What of it is paused now.", body = View),
        (status = 400, description = "No such part."),
        (status = 404, description = "No such route."),
        (status = 415, description = "The body is not said to be `application/json`. Nothing was paused."),
        (status = 503, description = "Redis is away. It may be paused all the same."),
        (status = 504, description = "Redis did not answer in time. It may be paused all the same.")
    )
)]
pub(super) async fn pause(
    Extract(admin): Extract<Arc<Admin>>,
    OfRoute(route): OfRoute,
    Body(what): Body<What>,
) -> Result<Answer, Problem> {
    set(&admin, &route.name, &what, true).await
}

/// Resume a route
///
/// Its ingress, its publishing, or both, on every replica within a second. What is not paused stays so.
#[utoipa::path(
    post, path = "/api/v1/routes/{route}/resume", operation_id = "resumeRoute", params(InRoute),
    request_body = What,
    responses(
        (status = 200, description = "What of it is paused still.", body = View),
        (status = 400, description = "No such part."),
        (status = 404, description = "No such route."),
        (status = 415, description = "The body is not said to be `application/json`. Nothing was resumed."),
        (status = 503, description = "Redis is away. It may be resumed all the same."),
        (status = 504, description = "Redis did not answer in time. It may be resumed all the same.")
    )
)]
pub(super) async fn resume(
    Extract(admin): Extract<Arc<Admin>>,
    OfRoute(route): OfRoute,
    Body(what): Body<What>,
) -> Result<Answer, Problem> {
    set(&admin, &route.name, &what, false).await
}

async fn set(admin: &Admin, route: &RouteName, what: &What, pause: bool) -> Result<Answer, Problem> {
    let paused = admin.ask(admin.state.pausing.set(route, what.parts(), pause)).await?;
    let word = |paused| if paused { "paused" } else { "running" };
    let result = format!("ingress {}, publishing {}", word(paused.ingress), word(paused.publishing));
    let parts = [(paused.ingress, Part::Ingress), (paused.publishing, Part::Publishing)];
    let parts = parts.into_iter().filter_map(|(paused, part)| paused.then_some(part)).collect();
    let view = View { route: route.to_string(), paused: parts };
    Ok((Extension(Noted::new("", result)), Json(view)))
}
