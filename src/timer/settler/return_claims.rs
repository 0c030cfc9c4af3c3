//! Returns claims to the store before their deadline: those of partitions that moved to another replica, and all of
//! them while draining.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{CallResult, Settler, one_call, progress};
use crate::domain::Partition;
use crate::store::{ClaimProgress, StoreError, until_available};
use crate::timer::claim_table::ClaimSlots;
use crate::timer::claimed::ClaimedBundle;

/// A message due within this time is published by the replica that claimed it, even if its partition has moved;
/// microseconds.
const PUBLISH_SOON_US: i64 = 200_000;
/// A message due later than the lookahead and this cannot have been claimed by the clocks as they are now,
/// microseconds.
const CLOCK_STEP_US: i64 = 1_000_000;
/// Longest wait for the store when claims are returned, or an ordered route is given up. After that they expire.
const RETURN_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes a call that returns something to the store, again while the store is not available: what is not returned waits
/// for the end of its claim.
pub(in crate::timer) async fn until_returned<T, F: Future<Output = Result<T, StoreError>>>(
    call: impl Fn() -> F,
) -> Result<T, StoreError> {
    until_available(RETURN_TIMEOUT, call).await
}

/// True for a bundle that has nothing at a broker.
fn is_untried(claimed: &ClaimedBundle) -> bool {
    // Bundles of an ordered route go back one by one, because the holder gives it up only behind the last of them.
    claimed.key_queue_id().is_none()
        && !claimed.busy
        && !claimed.lost
        && claimed.open == 0
        && !claimed.is_clean()
        && claimed.only_untried()
}

impl Settler {
    /// Returns the claims that another replica should have: of moved partitions, unless their messages are due soon,
    /// and those that would wait long because the local clock is wrong.
    pub(super) fn return_misplaced(&mut self) {
        let shard = self.shard.clone();
        let owned = shard.cluster.owned();
        let moved = std::mem::replace(&mut self.owned, owned.clone()) != owned;
        let clock = shard.store.clock();
        let ahead_us = shard.lookahead_ms() * 1000 + CLOCK_STEP_US;
        let mut dropped = false;
        let mut slots = shard.table.lock();
        let ClaimSlots {
            bundles,
            key_queues,
            ..
        } = &mut *slots;
        // The next holder of an ordered route waits until this one has given it up. This replica gives it up too if
        // its clock is so far behind that messages would wait for it.
        let is_late = shard.behind_ms() * 1000 > ahead_us && shard.cluster.replicas() > 1;
        for ((route, p), key_queue) in key_queues.iter_mut() {
            key_queue.closing |= is_late || (moved && !owned.serves(*p, route.as_str()));
        }
        for claimed in bundles
            .values_mut()
            .filter(|h| !h.busy && !h.lost && h.key_queue_id().is_none())
        {
            let Some(due) = claimed.in_flight.next_due() else {
                continue;
            };
            let p = claimed.claim.partition;
            let route = claimed.in_flight.served.route.name.as_str();
            let waits_us = clock.until_due_us(due);
            // The bundle is further ahead than any claim reaches, so a clock has stepped back, perhaps the local one
            // alone. Messages at a broker keep their claim; the rest goes back behind them.
            let stepped = waits_us > ahead_us + claimed.in_flight.span_us();
            let anothers = moved && claimed.in_flight.nothing_handed() && !owned.serves(p, route);
            if stepped || (anothers && waits_us > PUBLISH_SOON_US) {
                claimed.drop_unpublished();
                dropped = true;
            }
        }
        drop(slots);
        if dropped {
            self.return_untried();
            self.finish_idle();
        }
    }

    /// Ends the bundles of which nothing is open any more.
    fn finish_idle(&mut self) {
        let slots = self.shard.table.lock();
        let idle = slots
            .bundles
            .iter()
            .filter(|(_, claimed)| !claimed.busy && claimed.open == 0);
        let idle: Vec<u64> = idle.map(|(&slot, _)| slot).collect();
        drop(slots);
        for slot in idle {
            self.finish(slot);
        }
    }

    /// Returns the claims of bundles that have nothing at a broker.
    fn return_untried(&mut self) {
        let mut back: BTreeMap<Partition, Vec<ClaimProgress>> = BTreeMap::new();
        let mut slots = self.shard.table.lock();
        let untried = slots
            .bundles
            .iter()
            .filter(|(_, claimed)| is_untried(claimed));
        let untried: Vec<u64> = untried.map(|(&slot, _)| slot).collect();
        let mut returned = Vec::with_capacity(untried.len());
        for slot in untried {
            let Some(claimed) = slots.remove(slot) else {
                continue;
            };
            let news = claimed.confirmed().contains(&true);
            back.entry(claimed.claim.partition)
                .or_default()
                .push(progress(&claimed, news));
            returned.push(claimed);
        }
        drop(slots);
        drop(returned);
        for (p, mut held) in back {
            while !held.is_empty() {
                let rest = held.split_off(one_call(held.iter().map(|of| of.delivered.len())));
                let held = std::mem::replace(&mut held, rest);
                let store = self.shard.store.clone();
                self.calls.push(Box::pin(async move {
                    let answer = until_returned(|| store.give_back(p, &held)).await;
                    CallResult::Returned(p, held.len(), answer)
                }));
            }
        }
    }

    /// While draining: returns what was never handed over. Reports whether nothing is claimed any more.
    pub(super) fn drained(&mut self) -> bool {
        let shard = self.shard.clone();
        let mut slots = shard.table.lock();
        for key_queue in slots.key_queues.values_mut() {
            key_queue.closing = true;
        }
        for claimed in slots.bundles.values_mut() {
            claimed.drop_unpublished();
        }
        drop(slots);
        self.return_untried();
        self.finish_idle();
        self.advance_key_queues();
        let slots = shard.table.lock();
        slots.bundles.is_empty() && slots.key_queues.is_empty() && self.calls.is_empty()
    }
}
