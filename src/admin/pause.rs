//! Pausing and resuming a route by hand, on all replicas.

use std::sync::Arc;

use axum::extract::State as Extract;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::audit_note::AuditNote;
use super::context::Admin;
use super::extract::{JsonBody, NamedRoute, RoutePath};
use super::problem::Problem;
use crate::domain::{PauseState, RouteName};
use crate::health::ActivityKind;

/// A part of a route.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = RoutePart)]
pub(super) enum RoutePart {
    /// Reading its topic or queue.
    Ingress,
    /// Publishing its messages.
    Publishing,
}

/// The part of a route that is to be paused or resumed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Pausing)]
pub(super) struct PauseRequest {
    /// Only this part; without it both.
    #[schema(nullable = false)]
    only: Option<RoutePart>,
}

impl PauseRequest {
    fn parts(&self) -> PauseState {
        match self.only {
            None => PauseState {
                ingress: true,
                publishing: true,
            },
            Some(RoutePart::Ingress) => PauseState {
                ingress: true,
                publishing: false,
            },
            Some(RoutePart::Publishing) => PauseState {
                ingress: false,
                publishing: true,
            },
        }
    }
}

/// The parts of a route that are paused by hand.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PauseState)]
pub(super) struct PausedView {
    /// The route.
    route: String,
    /// The paused parts: `ingress` (nothing is read from its topic or queue), `publishing` (nothing of it is claimed or
    /// published), both, or nothing.
    paused: Vec<RoutePart>,
}

type PauseAnswer = (Extension<AuditNote>, Json<PausedView>);

/// Pause a route
///
/// Its ingress, its publishing, or both, on every replica within a second, until it is resumed; restarts change
/// nothing about it. Messages that were claimed already (of the next 250 ms, or two seconds' worth of a limited rate)
/// may still go out. A part that is paused already stays so.
#[utoipa::path(
    post, path = "/api/v1/routes/{route}/pause", operation_id = "pauseRoute", params(RoutePath),
    request_body = PauseRequest,
    responses(
        (status = 200, description = "What of it is paused now.", body = PausedView),
        (status = 400, description = "No such part."),
        (status = 404, description = "No such route."),
        (status = 415, description = "The body is not said to be `application/json`. Nothing was paused."),
        (status = 503, description = "Redis is away. It may be paused all the same."),
        (status = 504, description = "Redis did not answer in time. It may be paused all the same.")
    )
)]
pub(super) async fn pause(
    Extract(admin): Extract<Arc<Admin>>,
    NamedRoute(route): NamedRoute,
    JsonBody(request): JsonBody<PauseRequest>,
) -> Result<PauseAnswer, Problem> {
    set(&admin, &route.name, &request, true).await
}

/// Resume a route
///
/// Its ingress, its publishing, or both, on every replica within a second. A part that is not paused stays so.
#[utoipa::path(
    post, path = "/api/v1/routes/{route}/resume", operation_id = "resumeRoute", params(RoutePath),
    request_body = PauseRequest,
    responses(
        (status = 200, description = "What of it is paused still.", body = PausedView),
        (status = 400, description = "No such part."),
        (status = 404, description = "No such route."),
        (status = 415, description = "The body is not said to be `application/json`. Nothing was resumed."),
        (status = 503, description = "Redis is away. It may be resumed all the same."),
        (status = 504, description = "Redis did not answer in time. It may be resumed all the same.")
    )
)]
pub(super) async fn resume(
    Extract(admin): Extract<Arc<Admin>>,
    NamedRoute(route): NamedRoute,
    JsonBody(request): JsonBody<PauseRequest>,
) -> Result<PauseAnswer, Problem> {
    set(&admin, &route.name, &request, false).await
}

async fn set(
    admin: &Admin,
    route: &RouteName,
    request: &PauseRequest,
    pause: bool,
) -> Result<PauseAnswer, Problem> {
    let store = admin.store()?;
    let parts = request.parts();
    let change = async {
        if pause {
            store.pause(route, parts).await
        } else {
            store.resume(route, parts).await
        }?;
        store.paused(route).await
    };
    let paused = admin.ask(change).await?;
    let kind = if pause {
        ActivityKind::Paused
    } else {
        ActivityKind::Resumed
    };
    admin.state.health.activity().note(kind);
    let word = |paused| if paused { "paused" } else { "running" };
    let result = format!(
        "ingress {}, publishing {}",
        word(paused.ingress),
        word(paused.publishing)
    );
    let parts = [
        (paused.ingress, RoutePart::Ingress),
        (paused.publishing, RoutePart::Publishing),
    ];
    let parts = parts
        .into_iter()
        .filter_map(|(paused, part)| paused.then_some(part))
        .collect();
    let view = PausedView {
        route: route.to_string(),
        paused: parts,
    };
    Ok((Extension(AuditNote::new("", result)), Json(view)))
}
