//! Scrubs: each partition in turn, and a partition that refused to be swept at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tracing::{debug, error, warn};

use super::{MaintenanceTask, PriorityPartitions, maintained};
use crate::domain::Partition;
use crate::store::{ScrubReport, StoreError};
use crate::telemetry::Metrics;
use crate::timer::Shard;

/// Time of one round over all partitions of a shard, if Redis is fast enough.
const SCRUB_INTERVAL: Duration = Duration::from_secs(60);
/// Time for each due set and entry that a scrub examines, over all shards of the process, microseconds. Each costs
/// Redis about ten commands, and a store that spans many slices has many.
const ITEM_PAUSE_US: i64 = 1500;
/// Longest time for one scrub. It saves its progress on the way, and the next one continues from there.
const SCRUB_TIMEOUT: Duration = Duration::from_secs(300);

pub(super) struct Scrubber {
    shard: Arc<Shard>,
    priority: Arc<PriorityPartitions>,
    /// Index of the partition that was scrubbed last.
    place: usize,
    /// Monotonic microseconds of the next scrub.
    due_us: i64,
}

impl MaintenanceTask for Scrubber {
    async fn round(&mut self) {
        self.scrub().await;
    }
}

impl Scrubber {
    pub(super) fn new(shard: Arc<Shard>, priority: Arc<PriorityPartitions>) -> Self {
        Self {
            shard,
            priority,
            place: 0,
            due_us: 0,
        }
    }

    /// Rebuilds lost indexes, then scrubs the partition that refused to be swept, then the one whose turn has come.
    async fn scrub(&mut self) {
        for p in self.priority.take_indexes() {
            self.mend_indexes(p).await;
        }
        if let Some(p) = self.priority.take_refused() {
            self.scrub_one(p).await;
        }
        let partitions = maintained(&self.shard);
        // A shard with more than one partition a second scrubs several in a round.
        for _ in 0..partitions.len().div_ceil(SCRUB_INTERVAL.as_secs() as usize) {
            let began_us = self.shard.mono_us();
            if began_us < self.due_us {
                return;
            }
            self.place = (self.place + 1) % partitions.len();
            let examined = self.scrub_one(partitions[self.place]).await;
            // At least half of the time is rest, however slow the connection to Redis is.
            let took_us = self.shard.mono_us() - began_us;
            let share_us = SCRUB_INTERVAL.as_micros() as i64 / partitions.len() as i64;
            let next_us = self.due_us.max(began_us - 1_000_000) + share_us;
            let worth_us =
                examined as i64 * ITEM_PAUSE_US * self.shard.store.wake().shards() as i64;
            self.due_us = next_us.max(began_us + 2 * took_us).max(began_us + worth_us);
        }
    }

    async fn mend_indexes(&self, p: Partition) {
        let mut report = ScrubReport::default();
        let ended = timeout(SCRUB_TIMEOUT, self.shard.store.mend_indexes(p, &mut report)).await;
        self.note(p, &report, ended);
    }

    /// Scrubs one partition. Returns the number of due sets and entries examined.
    async fn scrub_one(&self, p: Partition) -> usize {
        let mut report = ScrubReport::default();
        let ended = timeout(SCRUB_TIMEOUT, self.shard.store.scrub_into(p, &mut report)).await;
        self.note(p, &report, ended).unwrap_or(0)
    }

    fn note<T>(
        &self,
        p: Partition,
        report: &ScrubReport,
        ended: Result<Result<T, StoreError>, Elapsed>,
    ) -> Option<T> {
        let answer = match ended {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(why)) => {
                debug!(partition = p.0, error = %why, "a scrub failed; retrying");
                None
            }
            Err(_) => {
                warn!(
                    partition = p.0,
                    "a scrub did not finish in time; the next one continues from there"
                );
                None
            }
        };
        // Report what was found and mended before a failure too.
        if !report.is_clean() {
            report_damage(&self.shard.metrics, p, report);
        }
        answer
    }
}

fn report_damage(metrics: &Metrics, p: Partition, report: &ScrubReport) {
    let counts = report.counts.unwrap_or(0);
    for (what, found) in [
        (
            "mended",
            (report.indexes + report.leftovers + counts) as usize,
        ),
        (
            "restored",
            report.restored.len() + report.dead_restored.len(),
        ),
        ("lost", report.lost.len() + report.dead_lost.len()),
        ("unreadable", report.unreadable.len()),
        ("quarantined", report.quarantined.len()),
    ] {
        metrics.store_damage(what, found as u64);
    }
    name_each(p, report);
    // A write that Redis refuses half-way, for a right or for memory, has kept its content and not yet its entries.
    if report.is_only_restored() {
        warn!(
            partition = p.0,
            restored = ?report.restored,
            "bundles stood without their entries and are due again: redis refused a write half-way, or lost entries"
        );
        return;
    }
    error!(
        partition = p.0,
        lost = ?report.lost,
        restored = ?report.restored,
        indexes = report.indexes,
        leftovers = report.leftovers,
        counts,
        quarantined = ?report.quarantined,
        unreadable = ?report.unreadable,
        dead_lost = ?report.dead_lost,
        dead_restored = ?report.dead_restored,
        "the store was damaged; what could be mended is mended"
    );
}

/// Logs each loss, each recovery, and each finding that needs a person.
fn name_each(p: Partition, report: &ScrubReport) {
    let p = p.0;
    for id in &report.lost {
        error!(partition = p, %id, messages = id.count(), "a bundle is lost: its content is not in the store");
    }
    for id in &report.restored {
        warn!(partition = p, %id, messages = id.count(), "a bundle stood without its entry; it is due again");
    }
    for id in &report.unreadable {
        error!(partition = p, %id, messages = id.count(), "a bundle cannot be read; it becomes a dead letter when it is due");
    }
    for id in &report.dead_lost {
        error!(partition = p, %id, "a dead letter is lost: its content is not in the store");
    }
    for key in &report.quarantined {
        error!(
            partition = p,
            key, "a key had another type than ours have; it is in quarantine, unchanged"
        );
    }
}
