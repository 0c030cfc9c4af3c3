//! The alarm on clock skew between replicas. Each replica reports how far its clock is from Redis's. A message leaves
//! when Redis's clock and its publisher's both call it due, so clocks that differ make messages late, never early.

use std::time::Duration;

use tracing::{info, warn};

use crate::store::RegisteredReplica;

/// Logs when two replicas' clocks differ by more than `cluster.max_clock_skew`, and when they agree again.
#[derive(Debug)]
pub(super) struct SkewAlarm {
    max_ms: i64,
    is_raised: bool,
}

impl SkewAlarm {
    pub(super) fn new(max: Duration) -> Self {
        Self {
            max_ms: max.as_millis() as i64,
            is_raised: false,
        }
    }

    /// Compares the clocks of the living replicas. A replica's own difference from Redis is reported where it is
    /// measured.
    pub(super) fn compare<'a>(
        &mut self,
        alive: impl Iterator<Item = &'a RegisteredReplica> + Clone,
    ) {
        let skew = |m: &&RegisteredReplica| m.status.skew_ms;
        let (Some(last), Some(first)) = (alive.clone().min_by_key(skew), alive.max_by_key(skew))
        else {
            return;
        };
        let apart_ms = first.status.skew_ms - last.status.skew_ms;
        let ahead = &first.status.name;
        let behind = &last.status.name;
        if apart_ms > self.max_ms && !self.is_raised {
            warn!(
                ahead,
                behind,
                apart_ms,
                max_ms = self.max_ms,
                "two replicas' clocks differ by more than cluster.max_clock_skew; messages may be late by that"
            );
        } else if apart_ms <= self.max_ms && self.is_raised {
            info!(apart_ms, "the replicas' clocks agree again");
        }
        self.is_raised = apart_ms > self.max_ms;
    }
}
