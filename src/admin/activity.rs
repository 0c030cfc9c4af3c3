//! What all replicas did in the last 24 hours.

use std::sync::Arc;

use axum::Json;
use axum::extract::State as Extract;
use serde::Serialize;
use utoipa::ToSchema;

use super::context::Admin;
use super::problem::{Problem, StoreAway};
use super::times::rfc3339;
use crate::domain::UnixMs;
use crate::health::ActivityKind;
use crate::store::{ACTIVITY_SLOT_MS, ActivitySlot};

/// What all replicas did in the last 24 hours.
#[derive(Serialize, ToSchema)]
#[schema(as = Activity)]
pub(super) struct ActivityView {
    /// Now, Unix ms, by Redis's clock.
    now_ms: i64,
    /// Length of a slot, ms.
    slot_ms: i64,
    /// The slots in which a replica reported, oldest first. Where one is left out no replica ran, or Redis was away.
    slots: Vec<ActivitySlotView>,
}

/// Ten minutes. A replica reports once a minute what it did in that minute, so a number may stand in the next slot.
#[derive(Serialize, ToSchema)]
#[schema(as = ActivitySlot)]
struct ActivitySlotView {
    /// Its beginning, Unix ms.
    at_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    at: Option<String>,
    /// Delayed messages that were delivered.
    delivered: u64,
    /// Those of them that were more than a second late.
    late: u64,
    /// Publishes that failed, of whatever message.
    failed: u64,
    /// Messages that became dead letters, invalid ones included.
    dead: u64,
    /// Replicas that started.
    started: u64,
    /// Pauses by hand, of a route or a part of it.
    paused: u64,
    /// Resumptions by hand.
    resumed: u64,
    /// Replicas that found that the store went back, was wiped or replaced.
    store_changed: u64,
}

impl ActivitySlotView {
    fn new(at: UnixMs, counts: &ActivitySlot) -> Self {
        let count = |kind: ActivityKind| counts.get(kind.as_str()).copied().unwrap_or(0);
        Self {
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
            .map(|(at, counts)| ActivitySlotView::new(*at, counts))
            .collect(),
    }))
}
