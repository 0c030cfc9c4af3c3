//! What happens to claims that are held: each quarter of a second they are extended, what is confirmed so far is noted,
//! and what hangs is split off.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use tracing::debug;

use super::{Done, Settler, one_call, progress};
use crate::domain::Partition;
use crate::store::{ClaimProgress, SettleAnswer, StoreError};
use crate::timer::claim_table::Slots;
use crate::timer::resolve;

/// What is unresolved this long after its bundle's last hand-over is split off, microseconds.
const HANGS_US: i64 = 1_000_000;

impl Settler {
    /// Extends claims, notes progress, and splits off what hangs.
    pub(super) fn tick(&mut self) {
        let shard = self.shard.clone();
        let now_us = shard.mono_us();
        let mut extend: BTreeMap<Partition, Vec<(u64, ClaimProgress)>> = BTreeMap::new();
        let mut splits = Vec::new();
        let mut slots = shard.table.lock();
        let Slots { holdings, lines, .. } = &mut *slots;
        for (&slot, holding) in holdings.iter_mut().filter(|(_, h)| !h.busy && h.open > 0) {
            let lease = holding.flight.lease_until_us() - now_us;
            let waited = now_us.saturating_sub(holding.flight.published_us.load(Ordering::Acquire));
            let resolved = holding.open < holding.stored.len();
            let all_handed = holding.all_handed_over();
            if waited >= HANGS_US && resolved && all_handed && !holding.lost {
                holding.busy = true;
                let line = holding.line().and_then(|id| lines.get_mut(&id));
                splits.push((slot, holding.open_entries(), resolve::of(&shard, holding, line, true)));
            } else if holding.news || lease < shard.lease_us() * 2 / 3 {
                let news = std::mem::take(&mut holding.news);
                extend.entry(holding.claim.partition).or_default().push((slot, progress(holding, news)));
            }
        }
        drop(slots);
        for (slot, held_on, division) in splits {
            debug!(bundle = %division.claim.id, open = held_on.len(), "split off what hangs");
            self.divide(slot, held_on, division);
        }
        // One round of extensions at a time: each covers all that needs it.
        if self.extending > 0 {
            return;
        }
        for (p, mut held) in extend {
            while !held.is_empty() {
                let rest = held.split_off(one_call(held.iter().map(|(_, of)| of.delivered.len())));
                let (slots, claims): (Vec<u64>, Vec<ClaimProgress>) =
                    std::mem::replace(&mut held, rest).into_iter().unzip();
                self.extending += 1;
                let store = shard.store.clone();
                let (lease_ms, until) = (shard.lease_ms(), now_us + shard.relied_on_us());
                self.calls.push(Box::pin(async move {
                    let result = store.extend(p, lease_ms, &claims).await;
                    Done::Extended(until, slots, result)
                }));
            }
        }
    }

    pub(super) fn extended(
        &mut self,
        until: i64,
        batch: &[u64],
        result: Result<Vec<SettleAnswer>, StoreError>,
    ) {
        self.extending -= 1;
        let shard = self.shard.clone();
        let mut finished = Vec::new();
        let mut slots = shard.table.lock();
        match result {
            Ok(held) => {
                for (slot, held) in batch.iter().zip(held) {
                    if held == SettleAnswer::Stale {
                        slots.lose(*slot, false);
                    }
                    let Some(holding) = slots.holdings.get_mut(slot) else { continue };
                    if held == SettleAnswer::Stale {
                        shard.metrics.stale_claims.inc();
                        holding.lost = true;
                        holding.drop_unpublished();
                        if holding.open == 0 {
                            finished.push(*slot);
                        }
                    } else {
                        holding.flight.batch.not_after_us.fetch_max(until, Ordering::AcqRel);
                    }
                }
            }
            Err(why) => {
                debug!(error = %why, "cannot extend claims");
                for slot in batch {
                    if let Some(holding) = slots.holdings.get_mut(slot) {
                        holding.news = true;
                    }
                }
            }
        }
        drop(slots);
        for slot in finished {
            self.finish(slot);
        }
    }
}
