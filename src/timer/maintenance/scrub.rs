//! The audits: each partition in its turn, a refused one at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tracing::{debug, error, warn};

use super::{Duty, Refused, kept};
use crate::domain::Partition;
use crate::store::{ScrubReport, StoreError};
use crate::telemetry::Metrics;
use crate::timer::Shard;

/// One round over all partitions of a shard, where the way to Redis lets it.
const ROUND: Duration = Duration::from_secs(60);
/// Time for each shelf and entry that an audit looks at, over all shards of the process (microseconds): each costs Redis
/// about ten commands, and a store that lies on many slices has many.
const LOOKED_AT_US: i64 = 1000;
/// Longest time for one audit: it has saved its places on the way, and the next goes on from there.
const DEADLINE: Duration = Duration::from_secs(300);

pub(super) struct Auditor {
    shard: Arc<Shard>,
    refused: Arc<Refused>,
    /// The place of the partition audited last.
    place: usize,
    /// When the next audit is due.
    due_us: i64,
}

impl Duty for Auditor {
    async fn round(&mut self) {
        self.audit().await;
    }
}

impl Auditor {
    pub(super) fn new(shard: Arc<Shard>, refused: Arc<Refused>) -> Self {
        Self { shard, refused, place: 0, due_us: 0 }
    }

    /// Makes lost indexes again; audits the partition that refused to be swept, and the one whose turn has come.
    async fn audit(&mut self) {
        for p in self.refused.take_indexes() {
            self.mend_indexes(p).await;
        }
        if let Some(p) = self.refused.take() {
            self.audit_one(p).await;
        }
        let partitions = kept(&self.shard);
        // Several where a shard has more than one for each second.
        for _ in 0..partitions.len().div_ceil(ROUND.as_secs() as usize) {
            let began_us = self.shard.mono_us();
            if began_us < self.due_us {
                return;
            }
            self.place = (self.place + 1) % partitions.len();
            let looked_at = self.audit_one(partitions[self.place]).await;
            // At least half of the time is rest, however slow the way to Redis.
            let took_us = self.shard.mono_us() - began_us;
            let share_us = ROUND.as_micros() as i64 / partitions.len() as i64;
            let next_us = self.due_us.max(began_us - 1_000_000) + share_us;
            let worth_us = looked_at as i64 * LOOKED_AT_US * self.shard.store.wake().shards() as i64;
            self.due_us = next_us.max(began_us + 2 * took_us).max(began_us + worth_us);
        }
    }

    async fn mend_indexes(&self, p: Partition) {
        let mut report = ScrubReport::default();
        let ended = timeout(DEADLINE, self.shard.store.mend_indexes(p, &mut report)).await;
        self.note(p, &report, ended);
    }

    /// Returns how many shelves and entries were looked at.
    async fn audit_one(&self, p: Partition) -> usize {
        let mut report = ScrubReport::default();
        let ended = timeout(DEADLINE, self.shard.store.scrub_into(p, &mut report)).await;
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
                debug!(partition = p.0, error = %why, "an audit failed; trying on");
                None
            }
            Err(_) => {
                warn!(
                    partition = p.0,
                    "an audit did not come to its end in time; the next one goes on from there"
                );
                None
            }
        };
        // What was found and mended before it failed is told all the same.
        if !report.is_clean() {
            tell(&self.shard.metrics, p, report);
        }
        answer
    }
}

fn tell(metrics: &Metrics, p: Partition, report: &ScrubReport) {
    let counts = report.counts.unwrap_or(0);
    for (what, found) in [
        ("mended", (report.indexes + report.leftovers + counts) as usize),
        ("restored", report.restored.len() + report.dead_restored.len()),
        ("lost", report.lost.len() + report.dead_lost.len()),
        ("unreadable", report.unreadable.len()),
        ("quarantined", report.quarantined.len()),
    ] {
        metrics.store_damage(what, found as u64);
    }
    name_each(p, report);
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

/// Names what is lost, what came back, and what a person should look at.
fn name_each(p: Partition, report: &ScrubReport) {
    let p = p.0;
    for id in &report.lost {
        error!(partition = p, %id, messages = id.count(), "a bundle is lost: its content is not in the store");
    }
    for id in &report.restored {
        error!(partition = p, %id, messages = id.count(), "a bundle had lost its entry; it is due again");
    }
    for id in &report.unreadable {
        error!(partition = p, %id, messages = id.count(), "a bundle cannot be read; it dies when it is due");
    }
    for id in &report.dead_lost {
        error!(partition = p, %id, "a dead letter is lost: its content is not in the store");
    }
    for key in &report.quarantined {
        error!(partition = p, key, "a key had another type than ours have; it is in quarantine, as it was");
    }
}
