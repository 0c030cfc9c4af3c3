//! The settler's tick: extends claims, notes confirms, and splits off messages that hang.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use tracing::debug;

use super::{CallResult, Settler, one_call, progress};
use crate::domain::{MonoUs, Partition};
use crate::store::{ClaimProgress, SettleAnswer, StoreError};
use crate::timer::claim_table::ClaimSlots;
use crate::timer::resolve;

/// Open messages are split off this long after their bundle's last hand-over, microseconds.
const SPLIT_AFTER_US: i64 = 1_000_000;

impl Settler {
    /// Extends claims, notes progress, and splits off messages that hang.
    pub(super) fn tick(&mut self) {
        let shard = self.shard.clone();
        let now = shard.mono();
        let mut extend: BTreeMap<Partition, Vec<(u64, ClaimProgress)>> = BTreeMap::new();
        let mut splits = Vec::new();
        let mut slots = shard.table.lock();
        let ClaimSlots { bundles, key_queues, .. } = &mut *slots;
        for (&slot, claimed) in bundles.iter_mut().filter(|(_, h)| !h.busy && h.open > 0) {
            let lease_left_us = claimed.in_flight.lease_end().since(now);
            let published = MonoUs(claimed.in_flight.published_us.load(Ordering::Acquire));
            let waited_us = now.since(published);
            let resolved = claimed.open < claimed.stored.len();
            let all_handed = claimed.all_handed_over();
            if waited_us >= SPLIT_AFTER_US && resolved && all_handed && !claimed.lost {
                claimed.busy = true;
                let key_queue = claimed.key_queue_id().and_then(|id| key_queues.get_mut(&id));
                let division = resolve::division_of(&shard, claimed, key_queue, true);
                splits.push((slot, claimed.open_entries(), division));
            } else if claimed.news || lease_left_us < shard.lease_us() * 2 / 3 {
                let news = std::mem::take(&mut claimed.news);
                extend.entry(claimed.claim.partition).or_default().push((slot, progress(claimed, news)));
            }
        }
        drop(slots);
        for (slot, still_open, division) in splits {
            debug!(bundle = %division.claim.id, open = still_open.len(), "split off messages that hang");
            self.divide(slot, still_open, division);
        }
        // Make one round of extensions at a time. Each covers every claim that needs it.
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
                let lease_ms = shard.lease_ms();
                let lease_end = shard.lease_end(now);
                self.calls.push(Box::pin(async move {
                    let result = store.extend(p, lease_ms, &claims).await;
                    CallResult::Extended(lease_end, slots, result)
                }));
            }
        }
    }

    pub(super) fn extended(
        &mut self,
        lease_end: MonoUs,
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
                    let Some(claimed) = slots.bundles.get_mut(slot) else { continue };
                    if held == SettleAnswer::Stale {
                        shard.metrics.stale_claims.inc();
                        claimed.lost = true;
                        claimed.drop_unpublished();
                        if claimed.open == 0 {
                            finished.push(*slot);
                        }
                    } else {
                        claimed.in_flight.extend_lease(lease_end);
                    }
                }
            }
            Err(why) => {
                debug!(error = %why, "extending claims failed");
                for slot in batch {
                    if let Some(claimed) = slots.bundles.get_mut(slot) {
                        claimed.news = true;
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
