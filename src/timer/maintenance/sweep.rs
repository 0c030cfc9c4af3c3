//! The sweep: claims of dead holders come back.
//!
//! After Redis's clock has stepped, the store has gone back or a partition was away, nothing expires for one claim's
//! time: deadlines written by the old clock mean nothing under the new one, and who could not extend its claims may
//! well live.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tracing::{debug, info, warn};

use super::expiry_pause::ExpiryHold;
use super::{Duty, Refused, kept};
use crate::domain::{Partition, UnixMs};
use crate::mutants::{self, Mutant};
use crate::store::{StoreError, SweepOutcome};
use crate::timer::Shard;

/// Of the partitions that fall to others too, once in so many sweeps: their keeper may hang. Then also what does not
/// press: see [`Store::sweep`](crate::store::Store::sweep).
const AROUND: u64 = 10;

pub(super) struct Sweeper {
    shard: Arc<Shard>,
    refused: Arc<Refused>,
    /// Steps of Redis's clock seen so far.
    steps: u64,
    /// When the store was last found to have gone back.
    changed: UnixMs,
    /// Of all partitions, for the clock's sake or the store's.
    stepped: ExpiryHold,
    /// Of partitions that were away.
    away: BTreeMap<Partition, ExpiryHold>,
    /// Whether it was said that a hold has lasted for too long.
    said_spent: bool,
    sweeps: u64,
    /// Redis's microseconds minus monotonic ones at the last sweep; kept for [`Mutant::DriftIsAStep`] alone.
    ahead_us: i64,
}

impl Duty for Sweeper {
    async fn round(&mut self) {
        self.sweep().await;
    }
}

impl Sweeper {
    pub(super) fn new(shard: Arc<Shard>, refused: Arc<Refused>) -> Self {
        Self {
            steps: shard.store.clock().steps(),
            changed: shard.store.rolled_back_at(),
            stepped: ExpiryHold::default(),
            away: BTreeMap::new(),
            said_spent: false,
            sweeps: 0,
            ahead_us: i64::MIN,
            shard,
            refused,
        }
    }

    async fn sweep(&mut self) {
        self.sweeps += 1;
        if mutants::is(Mutant::SweepAtStartOnly) && self.sweeps > 1 {
            return;
        }
        let around = self.sweeps.is_multiple_of(AROUND);
        let mut swept = if around { self.shard.partitions.clone() } else { kept(&self.shard) };
        if swept.is_empty() {
            return;
        }
        // Where there is no time for all of them it is others' turn to be first.
        let first = (self.sweeps % swept.len() as u64) as usize;
        swept.rotate_left(first);
        self.look_for_steps();
        let shard = self.shard.clone();
        if around {
            self.refused.note_indexes(shard.store.lost_indexes(&swept).await);
        }
        let (now_us, lease_us) = (shard.mono_us(), shard.lease_us());
        let held = self.held(&swept, now_us, lease_us);
        // Deadlines that another clock wrote may be far ahead.
        let thorough = around || !self.stepped.is_over(now_us);
        let answers = shard.store.sweep(&swept, shard.lease_ms(), &held, thorough).await;
        if answers.iter().any(|(_, swept)| swept.is_ok()) {
            self.stepped.answered(now_us);
        }
        self.note(answers, now_us, lease_us);
    }

    fn look_for_steps(&mut self) {
        let shard = &self.shard;
        let (mut steps, changed) = (shard.store.clock().steps(), shard.store.rolled_back_at());
        if mutants::is(Mutant::DriftIsAStep) {
            let ahead_us = shard.store.clock().now_us().unwrap_or(0) - shard.mono_us();
            steps = self.steps + u64::from(ahead_us < self.ahead_us);
            self.ahead_us = ahead_us;
        }
        if (steps, changed) != (self.steps, self.changed) {
            (self.steps, self.changed) = (steps, changed);
            info!(
                shard = shard.number,
                "the clock of redis stepped, or the store went back; no claim expires for one claim's time"
            );
            self.stepped.extend(shard.mono_us(), shard.lease_us());
        }
    }

    /// Of these the partitions of which nothing expires now.
    fn held(&mut self, swept: &[Partition], now_us: i64, lease_us: i64) -> BTreeSet<Partition> {
        self.away.retain(|_, away| !away.is_over(now_us));
        let mut holds = std::iter::once(&self.stepped).chain(self.away.values());
        let spent = holds.any(|hold| !hold.is_over(now_us) && hold.is_spent(lease_us));
        if spent && !self.said_spent {
            warn!(
                shard = self.shard.number,
                "the clock of redis keeps stepping, or sweeps keep failing; claims expire all the same"
            );
        }
        self.said_spent = spent;
        let of_all = self.stepped.holds(now_us, lease_us);
        let is_held =
            |p: &Partition| of_all || self.away.get(p).is_some_and(|away| away.holds(now_us, lease_us));
        swept.iter().copied().filter(is_held).collect()
    }

    fn note(
        &mut self,
        answers: Vec<(Partition, Result<SweepOutcome, StoreError>)>,
        began_us: i64,
        lease_us: i64,
    ) {
        let (number, now_us, all_were_here) = (self.shard.number, self.shard.mono_us(), self.away.is_empty());
        let mut failed = None;
        for (p, swept) in answers {
            match swept {
                Ok(swept) => {
                    if let Some(away) = self.away.get_mut(&p) {
                        away.answered(began_us);
                    }
                    if swept.expired + swept.clamped > 0 {
                        let (expired, clamped) = (swept.expired, swept.clamped);
                        debug!(partition = p.0, expired, clamped, "claims came back");
                    }
                }
                Err(why) => {
                    if matches!(why, StoreError::Damaged(_)) {
                        self.refused.note(p);
                    }
                    self.away.entry(p).or_default().extend(now_us, lease_us);
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
                "a sweep failed; no claim of these partitions expires for one claim's time; trying on"
            );
        } else {
            debug!(shard = number, partition = p.0, error = %why, "a sweep failed; trying on");
        }
    }
}
