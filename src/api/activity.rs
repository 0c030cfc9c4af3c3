//! What all replicas did lately.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What all replicas did in the last 24 hours.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Activity)]
pub struct ActivityView {
    /// Now, Unix ms, by Redis's clock.
    pub now_ms: i64,
    /// Length of a slot, ms.
    pub slot_ms: i64,
    /// The slots in which a replica reported, oldest first. Where one is left out no replica ran, or Redis was away.
    pub slots: Vec<ActivitySlotView>,
}

/// Ten minutes. A replica reports once a minute what it did in that minute, so a number may stand in the next slot.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = ActivitySlot)]
pub struct ActivitySlotView {
    /// Its beginning, Unix ms.
    pub at_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub at: Option<String>,
    /// Delayed messages that were delivered.
    pub delivered: u64,
    /// Those of them that were more than a second late.
    pub late: u64,
    /// Publishes that failed, of whatever message.
    pub failed: u64,
    /// Messages that became dead letters, invalid ones included.
    pub dead: u64,
    /// Replicas that started.
    pub started: u64,
    /// Pauses by hand, of a route or a part of it.
    pub paused: u64,
    /// Resumptions by hand.
    pub resumed: u64,
    /// Replicas that found that the store went back, was wiped or replaced.
    pub store_changed: u64,
}
