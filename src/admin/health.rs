//! Probes and metrics: open, cheap, and answered whatever the data plane does.

use std::sync::Arc;

use axum::extract::State as Extract;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::{Extension, Json};

use super::auth::Caller;
use super::context::Admin;
use super::problem::Problem;
use super::times::rfc3339;
use super::troubles::trouble_views;
use crate::api::{LivenessView, PartStateView, PartView, ReadinessView};
use crate::health::{HealthLook, LookedPart};

/// Liveness: the process runs
#[utoipa::path(
    get, path = "/livez", operation_id = "livez", security(()),
    responses(
        (status = 200, description = "It does.", body = LivenessView),
        (status = 503, description = "The relay's runtime has not turned for a minute."),
    )
)]
pub(super) async fn live(
    Extract(admin): Extract<Arc<Admin>>,
) -> Result<Json<LivenessView>, Problem> {
    if !admin.pulse.is_alive() {
        return Err(Problem::unavailable(
            "the relay has been at a standstill for a minute: restart it",
        ));
    }
    Ok(Json(LivenessView { live: true }))
}

/// Readiness: the replica takes work, or says why not
///
/// Ready once Redis and every broker that a route uses has been reached; not while Redis is away or the process
/// drains. If a broker goes away later, it is reported as degraded and the replica stays ready. Why a part is in trouble is
/// told to callers with a token, or at this machine where none is configured.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readyz", security(()),
    responses(
        (status = 200, description = "It is.", body = ReadinessView),
        (status = 503, description = "It is not: `draining`, or a part that says why.", body = ReadinessView),
    )
)]
pub(super) async fn ready(
    Extract(admin): Extract<Arc<Admin>>,
    caller: Option<Extension<Caller>>,
) -> impl IntoResponse {
    let look = admin.state.health.look();
    let mut parts = part_views(&look);
    let mut troubles = trouble_views(&admin, &look.troubles);
    if caller.is_none() {
        for part in &mut parts {
            part.why = None;
        }
        for trouble in &mut troubles {
            trouble.why = None;
        }
    }
    let status = if look.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (
        status,
        Json(ReadinessView {
            ready: look.ready,
            draining: look.draining,
            parts,
            troubles,
        }),
    )
}

/// All parts of the process.
pub(super) fn part_views(look: &HealthLook) -> Vec<PartView> {
    look.parts.iter().map(part_view).collect()
}

fn part_view(part: &LookedPart) -> PartView {
    let trouble = part.trouble.as_ref();
    PartView {
        name: part.name.clone(),
        state: match trouble {
            None => PartStateView::Up,
            Some(_) if part.was_up => PartStateView::Degraded,
            Some(_) => PartStateView::Waiting,
        }
        .into(),
        why: trouble.map(|trouble| trouble.why.clone()),
        because: trouble.and_then(|trouble| trouble.because.clone()),
        since: trouble.and_then(|trouble| rfc3339(trouble.since)),
    }
}

/// Every metric, in OpenMetrics text
///
/// The `# HELP` line of each says what it means. They are rendered at most once a second: a call that comes sooner waits
/// for the next rendering.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", security(()),
    responses((status = 200, description = "The metrics.", body = String, content_type = "application/openmetrics-text"))
)]
pub(super) async fn metrics(
    Extract(admin): Extract<Arc<Admin>>,
) -> Result<impl IntoResponse, Problem> {
    let rendered = admin
        .rendered
        .text(&admin.state.registry, admin.state.clock)
        .await;
    let text = rendered.map_err(|e| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("metrics cannot be written: {e}"),
        )
    })?;
    Ok((
        [(
            header::CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        text,
    ))
}
