//! What all replicas did in the last 24 hours.

use std::sync::Arc;

use axum::Json;
use axum::extract::State as Extract;

use super::context::Admin;
use super::problem::{Problem, StoreAway};
use super::times::rfc3339;
use crate::api::{ActivitySlotView, ActivityView};
use crate::domain::UnixMs;
use crate::health::ActivityKind;
use crate::store::{ACTIVITY_SLOT_MS, ActivitySlot};

fn slot_view(at: UnixMs, counts: &ActivitySlot) -> ActivitySlotView {
    let count = |kind: ActivityKind| counts.get(kind.as_str()).copied().unwrap_or(0);
    ActivitySlotView {
        at_ms: at.0,
        at: rfc3339(at),
        delivered: count(ActivityKind::Delivered),
        late: count(ActivityKind::Late),
        failed: count(ActivityKind::Failed),
        dead: count(ActivityKind::Dead),
        started: count(ActivityKind::Started),
        paused: count(ActivityKind::Paused),
        resumed: count(ActivityKind::Resumed),
        store_changed: count(ActivityKind::StoreChanged),
    }
}

/// The last 24 hours
///
/// What all replicas did, in slots of ten minutes. Kept in Redis and about a minute old.
#[utoipa::path(
    get, path = "/api/v1/activity", operation_id = "getActivity",
    responses(
        (status = 200, description = "The slots.", body = ActivityView),
        StoreAway,
    )
)]
pub(super) async fn activity(
    Extract(admin): Extract<Arc<Admin>>,
) -> Result<Json<ActivityView>, Problem> {
    let store = admin.store()?;
    let slots = admin.browse(store.activity()).await?;
    Ok(Json(ActivityView {
        now_ms: store.clock().now().0,
        slot_ms: ACTIVITY_SLOT_MS,
        slots: slots
            .iter()
            .map(|(at, counts)| slot_view(*at, counts))
            .collect(),
    }))
}
