//! The sweep makes bundles due again whose claims have expired.
//!
//! Nothing expires for the time of one claim after Redis's clock has stepped, the store has gone back or a partition
//! was away. Deadlines written by the old clock mean nothing under the new one, and a replica that could not extend
//! its claims may well live.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tracing::{debug, info, warn};

use super::expiry_pause::ExpiryPause;
use super::{MaintenanceTask, PriorityPartitions, maintained};
use crate::domain::{Partition, UnixMs};
use crate::mutants::{self, Mutant};
use crate::store::{StoreError, SweepOutcome};
use crate::timer::Shard;

/// One sweep in this many covers all partitions of the shard, those of other replicas included, because their owner
/// may hang. It also does the less urgent work: see [`Store::sweep`](crate::store::Store::sweep).
const FULL_SWEEP_EVERY: u64 = 10;

pub(super) struct Sweeper {
    shard: Arc<Shard>,
    priority: Arc<PriorityPartitions>,
    /// Steps of Redis's clock seen so far.
    steps: u64,
    /// The moment at which the store was last found to have gone back.
    rolled_back_at: UnixMs,
    /// The pause for all partitions, after a clock step or a rollback.
    stepped: ExpiryPause,
    /// The pauses of partitions that were away.
    away: BTreeMap<Partition, ExpiryPause>,
    /// The log already has a line on a pause that lasted too long.
    said_exhausted: bool,
    sweeps: u64,
    /// Redis's microseconds minus monotonic ones at the last sweep. Only [`Mutant::DriftIsAStep`] uses it.
    ahead_us: i64,
}

impl MaintenanceTask for Sweeper {
    async fn round(&mut self) {
        self.sweep().await;
    }
}

impl Sweeper {
    pub(super) fn new(shard: Arc<Shard>, priority: Arc<PriorityPartitions>) -> Self {
        Self {
            steps: shard.store.clock().steps(),
            rolled_back_at: shard.store.rolled_back_at(),
            stepped: ExpiryPause::default(),
            away: BTreeMap::new(),
            said_exhausted: false,
            sweeps: 0,
            ahead_us: i64::MIN,
            shard,
            priority,
        }
    }

    async fn sweep(&mut self) {
        self.sweeps += 1;
        if mutants::is(Mutant::SweepAtStartOnly) && self.sweeps > 1 {
            return;
        }
        let is_full = self.sweeps.is_multiple_of(FULL_SWEEP_EVERY);
        let mut swept = if is_full {
            self.shard.partitions.clone()
        } else {
            maintained(&self.shard)
        };
        if swept.is_empty() {
            return;
        }
        // If time runs out before the last partition, the next sweep begins with another one.
        let first = (self.sweeps % swept.len() as u64) as usize;
        swept.rotate_left(first);
        self.check_for_steps();
        let shard = self.shard.clone();
        if is_full {
            self.priority
                .note_indexes(shard.store.lost_indexes(&swept).await);
        }
        let now_us = shard.mono_us();
        let lease_us = shard.lease_us();
        let paused = self.paused(&swept, now_us, lease_us);
        // Deadlines that another clock wrote may be far in the future.
        let thorough = is_full || !self.stepped.is_over(now_us);
        let answers = shard
            .store
            .sweep(&swept, shard.longest_lease_ms(), &paused, thorough)
            .await;
        if answers.iter().any(|(_, swept)| swept.is_ok()) {
            self.stepped.answered(now_us);
        }
        self.note(answers, now_us, lease_us);
    }

    fn check_for_steps(&mut self) {
        let shard = &self.shard;
        let mut steps = shard.store.clock().steps();
        let rolled_back_at = shard.store.rolled_back_at();
        if mutants::is(Mutant::DriftIsAStep) {
            let ahead_us = shard.store.clock().now_us().unwrap_or(0) - shard.mono_us();
            steps = self.steps + u64::from(ahead_us < self.ahead_us);
            self.ahead_us = ahead_us;
        }
        if (steps, rolled_back_at) != (self.steps, self.rolled_back_at) {
            self.steps = steps;
            self.rolled_back_at = rolled_back_at;
            info!(
                shard = shard.number,
                "the clock of redis stepped, or the store was rolled back; no claim expires for the time of one claim"
            );
            self.stepped.prolong(shard.mono_us(), shard.lease_us());
        }
    }

    /// The swept partitions in which nothing expires now.
    fn paused(&mut self, swept: &[Partition], now_us: i64, lease_us: i64) -> BTreeSet<Partition> {
        self.away.retain(|_, away| !away.is_over(now_us));
        let mut pauses = std::iter::once(&self.stepped).chain(self.away.values());
        let exhausted = pauses.any(|pause| !pause.is_over(now_us) && pause.is_exhausted(lease_us));
        if exhausted && !self.said_exhausted {
            warn!(
                shard = self.shard.number,
                "the clock of redis keeps stepping, or sweeps keep failing; claims expire nevertheless"
            );
        }
        self.said_exhausted = exhausted;
        let of_all = self.stepped.is_active(now_us, lease_us);
        let mut paused = BTreeSet::new();
        for p in swept {
            let away = self.away.get(p);
            if of_all || away.is_some_and(|away| away.is_active(now_us, lease_us)) {
                paused.insert(*p);
            }
        }
        paused
    }

    fn note(
        &mut self,
        answers: Vec<(Partition, Result<SweepOutcome, StoreError>)>,
        began_us: i64,
        lease_us: i64,
    ) {
        let number = self.shard.number;
        let now_us = self.shard.mono_us();
        let all_were_here = self.away.is_empty();
        let mut failed = None;
        for (p, swept) in answers {
            match swept {
                Ok(swept) => {
                    if let Some(away) = self.away.get_mut(&p) {
                        away.answered(began_us);
                    }
                    if swept.expired + swept.clamped > 0 {
                        debug!(
                            partition = p.0,
                            expired = swept.expired,
                            clamped = swept.clamped,
                            "expired claims are due again"
                        );
                    }
                }
                Err(why) => {
                    if matches!(why, StoreError::Damaged(_)) {
                        self.priority.note_refused(p);
                    }
                    self.away.entry(p).or_default().prolong(now_us, lease_us);
                    failed.get_or_insert((p, why));
                }
            }
        }
        let Some((p, why)) = failed else { return };
        if all_were_here {
            let away = self.away.len();
            warn!(
                shard = number,
                partition = p.0,
                partitions = away,
                error = %why,
                "a sweep failed; no claim of these partitions expires for the time of one claim; retrying"
            );
        } else {
            debug!(shard = number, partition = p.0, error = %why, "a sweep failed; retrying");
        }
    }
}
