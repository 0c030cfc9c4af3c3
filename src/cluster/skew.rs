//! Whether the replicas' clocks agree. Each says how far its own is from Redis's; a message leaves when Redis's
//! clock and its publisher's both call it due, so clocks that differ make messages late, never early.

use std::time::Duration;

use tracing::{info, warn};

use crate::store::RegisteredReplica;

/// Says when two replicas' clocks differ by more than `cluster.max_clock_skew`, and when they agree again.
#[derive(Debug)]
pub(super) struct Skew {
    max_ms: i64,
    said: bool,
}

impl Skew {
    pub(super) fn new(max: Duration) -> Self {
        Self { max_ms: max.as_millis() as i64, said: false }
    }

    /// Compares the clocks of those who live. A replica's own difference from Redis is told where it is measured.
    pub(super) fn look<'a>(&mut self, alive: impl Iterator<Item = &'a RegisteredReplica> + Clone) {
        let skew = |m: &&RegisteredReplica| m.status.skew_ms;
        let (Some(last), Some(first)) = (alive.clone().min_by_key(skew), alive.max_by_key(skew)) else {
            return;
        };
        let apart_ms = first.status.skew_ms - last.status.skew_ms;
        let (ahead, behind) = (&first.status.name, &last.status.name);
        if apart_ms > self.max_ms && !self.said {
            warn!(
                ahead,
                behind,
                apart_ms,
                max_ms = self.max_ms,
                "two replicas' clocks differ by more than cluster.max_clock_skew; messages may be late by that"
            );
        } else if apart_ms <= self.max_ms && self.said {
            info!(apart_ms, "the replicas' clocks agree again");
        }
        self.said = apart_ms > self.max_ms;
    }
}
