//! Pausing and resuming a route by hand, on all replicas.

use std::sync::Arc;

use axum::extract::State as Extract;
use axum::{Extension, Json};

use super::audit_note::AuditNote;
use super::auth::Caller;
use super::context::Admin;
use super::extract::{JsonBody, NamedRoute, RoutePath, acting_body};
use super::problem::Problem;
use crate::api::{PauseRequest, PauseView, PausedView, RoutePart, Word};
use crate::domain::{Pause, RouteName, RouteParts, RoutePause, UnixMs, moment};
use crate::health::ActivityKind;

acting_body!(PauseRequest);

impl PauseRequest {
    fn parts(&self) -> RouteParts {
        match self.only {
            None => RouteParts {
                ingress: true,
                publishing: true,
            },
            Some(RoutePart::Ingress) => RouteParts {
                ingress: true,
                publishing: false,
            },
            Some(RoutePart::Publishing) => RouteParts {
                ingress: false,
                publishing: true,
            },
        }
    }

    fn subject(&self) -> &'static str {
        match self.only {
            None => "ingress and publishing",
            Some(RoutePart::Ingress) => "ingress",
            Some(RoutePart::Publishing) => "publishing",
        }
    }
}

/// The pauses of a route for answers.
pub(super) fn pause_views(paused: &RoutePause) -> Vec<PauseView> {
    let parts = [
        (RoutePart::Ingress, &paused.ingress),
        (RoutePart::Publishing, &paused.publishing),
    ];
    let mut views = Vec::new();
    for (part, pause) in parts {
        if let Some(Pause { since, by }) = pause.as_deref() {
            views.push(PauseView {
                part: Word::Known(part),
                by: by.name.to_string(),
                because: by.because.as_ref().map(ToString::to_string),
                since_ms: since.map(|UnixMs(since)| since),
                since: since.and_then(moment::render),
            });
        }
    }
    views
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
        (status = 503, description = "Redis is away. It may be paused all the same."),
        (status = 504, description = "Redis did not answer in time. It may be paused all the same.")
    )
)]
pub(super) async fn pause(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    NamedRoute(route): NamedRoute,
    JsonBody(request): JsonBody<PauseRequest>,
) -> Result<PauseAnswer, Problem> {
    caller.is_about(request.subject());
    let store = admin.store()?;
    let actor = caller.actor();
    let done = store.pause(&route.name, request.parts(), &actor);
    admin.ask(done).await?;
    answer(&admin, &route.name, ActivityKind::Paused).await
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
        (status = 503, description = "Redis is away. It may be resumed all the same."),
        (status = 504, description = "Redis did not answer in time. It may be resumed all the same.")
    )
)]
pub(super) async fn resume(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    NamedRoute(route): NamedRoute,
    JsonBody(request): JsonBody<PauseRequest>,
) -> Result<PauseAnswer, Problem> {
    caller.is_about(request.subject());
    let done = admin.store()?.resume(&route.name, request.parts());
    admin.ask(done).await?;
    answer(&admin, &route.name, ActivityKind::Resumed).await
}

/// Notes the change for the day's activity, and answers what of the route is paused now.
async fn answer(
    admin: &Admin,
    route: &RouteName,
    kind: ActivityKind,
) -> Result<PauseAnswer, Problem> {
    admin.state.health.activity().note(kind);
    let paused = admin.ask(admin.store()?.paused(route)).await?;
    let RouteParts {
        ingress,
        publishing,
    } = paused.parts();
    let word = |paused| if paused { "paused" } else { "running" };
    let result = format!("ingress {}, publishing {}", word(ingress), word(publishing));
    let pauses = pause_views(&paused);
    let view = PausedView {
        route: route.to_string(),
        paused: pauses.iter().map(|pause| pause.part.clone()).collect(),
        pauses,
    };
    Ok((Extension(AuditNote::new(result)), Json(view)))
}
