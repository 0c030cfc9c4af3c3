//! The settler's tick: extends claims, notes confirms, and splits off messages that hang.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use tracing::debug;

use super::{CallResult, Settler, one_call, progress};
use crate::domain::{MonoUs, Partition};
use crate::store::{Claim, ClaimProgress, SettleAnswer, StoreError};
use crate::timer::claim_table::ClaimSlots;
use crate::timer::resolve;

/// Open messages are split off this long after their bundle's last hand-over, microseconds.
const SPLIT_AFTER_US: i64 = 1_000_000;

impl Settler {
    /// Extends claims, notes progress, and splits off messages that hang.
    pub(super) fn tick(&mut self) {
        let shard = self.shard.clone();
        let now = shard.mono();
        // One round of extensions at a time. Each covers every claim that needs it.
        let may_extend = self.extending == 0;
        let mut extend: BTreeMap<Partition, Vec<(u64, ClaimProgress)>> = BTreeMap::new();
        let mut splits = Vec::new();
        let mut slots = shard.table.lock();
        let ClaimSlots {
            bundles,
            key_queues,
            ..
        } = &mut *slots;
        for (&slot, claimed) in bundles.iter_mut().filter(|(_, h)| !h.busy && h.open > 0) {
            let lease_left_us = claimed.in_flight.lease_end().since(now);
            let published = MonoUs(claimed.in_flight.published_us.load(Ordering::Acquire));
            let waited_us = now.since(published);
            let resolved = claimed.open < claimed.stored.len();
            let hangs = waited_us >= SPLIT_AFTER_US && claimed.all_handed_over() && !claimed.lost;
            if hangs {
                claimed.credit.set_aside(&claimed.in_flight.batch.target);
            }
            if hangs && resolved {
                claimed.busy = true;
                let key_queue = claimed
                    .key_queue_id()
                    .and_then(|id| key_queues.get_mut(&id));
                let resolution = resolve::resolve(&shard, claimed, key_queue);
                splits.push((slot, claimed.open_entries(), resolution));
            } else if may_extend
                && (claimed.news || (!claimed.lost && lease_left_us < shard.lease_us() * 2 / 3))
            {
                // A claim that is lost is asked for no more. Confirms are noted all the same.
                let news = std::mem::take(&mut claimed.news);
                extend
                    .entry(claimed.claim.partition)
                    .or_default()
                    .push((slot, progress(claimed, news)));
            }
        }
        drop(slots);
        for (slot, still_open, resolution) in splits {
            let claim = &resolution.division.claim;
            debug!(bundle = %claim.id, open = still_open.len(), "split off messages that hang");
            self.divide(slot, still_open, resolution);
        }
        for (p, mut held) in extend {
            while !held.is_empty() {
                let rest = held.split_off(one_call(held.iter().map(|(_, of)| of.delivered.len())));
                let held = std::mem::replace(&mut held, rest);
                let batch = held
                    .iter()
                    .map(|(slot, of)| (*slot, of.claim.clone()))
                    .collect();
                let claims: Vec<ClaimProgress> = held.into_iter().map(|(_, of)| of).collect();
                self.extending += 1;
                let store = shard.store.clone();
                let lease_ms = shard.lease_ms();
                let lease_end = shard.lease_end(now);
                self.calls.push(Box::pin(async move {
                    let result = store.extend(p, lease_ms, &claims).await;
                    CallResult::Extended(lease_end, batch, result)
                }));
            }
        }
    }

    pub(super) fn extended(
        &mut self,
        lease_end: MonoUs,
        batch: &[(u64, Claim)],
        result: Result<Vec<SettleAnswer>, StoreError>,
    ) {
        self.extending -= 1;
        let shard = self.shard.clone();
        let mut finished = Vec::new();
        let mut slots = shard.table.lock();
        match result {
            Ok(answers) => {
                for ((slot, claim), answer) in batch.iter().zip(answers) {
                    match slots.extended(*slot, claim, &answer, lease_end) {
                        ExtendOutcome::Lost { ended } => {
                            shard.metrics.stale_claims.inc();
                            finished.extend(ended.then_some(*slot));
                        }
                        ExtendOutcome::Kept => {}
                    }
                }
            }
            Err(why) => {
                debug!(error = %why, "extending claims failed");
                for (slot, _) in batch {
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

/// Outcome of an extension for a claimed bundle.
#[derive(Debug, PartialEq, Eq)]
enum ExtendOutcome {
    Kept,
    /// The claim is lost. `ended`: nothing of the bundle is open any more.
    Lost {
        ended: bool,
    },
}

impl ClaimSlots {
    /// Takes the store's answer to the extension of a claim. The store may have carried out a later call first, a division say,
    /// which ends the claim and makes another: then the answer says nothing of the bundle. The answer to that call does, and
    /// while one is on its way only that one counts.
    fn extended(
        &mut self,
        slot: u64,
        claim: &Claim,
        answer: &SettleAnswer,
        lease_end: MonoUs,
    ) -> ExtendOutcome {
        let Some(claimed) = self.bundles.get_mut(&slot) else {
            return ExtendOutcome::Kept;
        };
        if *answer != SettleAnswer::Stale {
            claimed.in_flight.extend_lease(lease_end);
            return ExtendOutcome::Kept;
        }
        if claimed.busy || claimed.lost || claimed.claim != *claim {
            return ExtendOutcome::Kept;
        }
        claimed.lost = true;
        claimed.drop_unpublished();
        let ended = claimed.open == 0;
        self.lose(slot, false);
        ExtendOutcome::Lost { ended }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::testing::entry;
    use crate::domain::{Clock, UnixMs};
    use crate::store::BundleId;
    use crate::timer::claimed::{ClaimedBundle, DeliveryState};
    use crate::timer::simulation::{in_flight, served};

    const SLOT: u64 = 1;

    fn claim(id: &str) -> Claim {
        let id = BundleId::parse(id).expect("an id");
        Claim {
            partition: Partition(0),
            id,
            token: "token".to_owned().into(),
        }
    }

    /// A claimed bundle with two messages, of which one is confirmed.
    fn slots(claim: &Claim, busy: bool) -> ClaimSlots {
        let served = served(Clock::start());
        let entries = vec![entry(UnixMs(1), b"a"), entry(UnixMs(1), b"b")];
        let in_flight = Arc::new(in_flight(&served, SLOT, entries, 0));
        let mut slots = ClaimSlots::default();
        let credit = served.credit.force().hold(2);
        slots.enter(
            SLOT,
            ClaimedBundle {
                claim: claim.clone(),
                in_flight,
                stored: vec![0, 1],
                states: vec![DeliveryState::Confirmed, DeliveryState::Open],
                open: 1,
                credit,
                news: false,
                busy,
                moving: Vec::new(),
                lost: false,
                split: false,
            },
        );
        slots
    }

    #[test]
    fn an_extension_that_came_too_late_loses_a_claim_only_if_no_other_call_replaced_it() {
        let asked = claim("orders/10p20/k3x9.1z.2");
        let newer = claim("orders/10p20/k3x9.20.1");
        let kept = ExtendOutcome::Kept;
        let lost = ExtendOutcome::Lost { ended: true };
        for (now, busy, answer, expected) in [
            (&asked, false, SettleAnswer::Applied(Vec::new()), &kept),
            (&asked, true, SettleAnswer::Applied(Vec::new()), &kept),
            (&newer, false, SettleAnswer::Applied(Vec::new()), &kept),
            (&asked, false, SettleAnswer::Stale, &lost),
            // A division is on its way, which may have ended the claim: its own answer tells.
            (&asked, true, SettleAnswer::Stale, &kept),
            // A division has ended the claim, and made another of what is still open.
            (&newer, false, SettleAnswer::Stale, &kept),
            (&newer, true, SettleAnswer::Stale, &kept),
        ] {
            let mut slots = slots(now, busy);
            let outcome = slots.extended(SLOT, &asked, &answer, MonoUs(5));
            assert_eq!(outcome, *expected, "{now:?} busy {busy} {answer:?}");
            let is_lost = slots.bundles[&SLOT].lost;
            assert_eq!(is_lost, *expected == lost, "{now:?} busy {busy} {answer:?}");
        }
        let mut slots = slots(&asked, false);
        for expected in [lost, kept] {
            let outcome = slots.extended(SLOT, &asked, &SettleAnswer::Stale, MonoUs(5));
            assert_eq!(outcome, expected, "it is lost once");
        }
        let kept = ExtendOutcome::Kept;
        let outcome = ClaimSlots::default().extended(SLOT, &asked, &SettleAnswer::Stale, MonoUs(5));
        assert_eq!(outcome, kept, "it has left");
    }
}
