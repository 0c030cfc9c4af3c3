//! The settler takes verdicts and answers the store.
//!
//! Bundles with nothing open any more are settled together, one call a partition at a time. Nobody waits for that, so
//! they gather for some milliseconds first. Each quarter of a second the settler extends claims, notes confirms of
//! open bundles, and splits off messages that hang for a second after their bundle's last hand-over.

mod extend;
mod report_overdue;
mod return_claims;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::MutexGuard;
use tokio::time::Instant;
use tracing::{debug, warn};

pub(super) use self::return_claims::until_returned;
use super::Shard;
use super::claim_table::ClaimSlots;
use super::claimed::{ClaimedBundle, DeliveryState};
use super::resolve::{self, Resolution};
use crate::cluster::OwnedPartitions;
use crate::domain::limits::MAX_CALL_NAMES;
use crate::domain::{MonoUs, Partition, Verdict};
use crate::egress::Ticket;
use crate::health::{Overdue, PublishPlace};
use crate::lifecycle::tick;
use crate::publishing::VerdictTime;
use crate::store::{Claim, ClaimProgress, SettleAnswer, Settlement, StoreError};

/// Time between two rounds of extending claims and noting the confirms of open bundles.
const TICK_INTERVAL: Duration = Duration::from_millis(250);
/// Bundles that one call takes at most.
const MAX_CALL_BUNDLES: usize = 200;
/// How long bundles gather before they are settled together. A crash repeats the messages confirmed meanwhile.
const GATHER_TIME: Duration = Duration::from_millis(10);

pub(super) type StoreCall = Pin<Box<dyn Future<Output = CallResult> + Send>>;

/// The result of a call.
pub(super) enum CallResult {
    Settled(Partition, Vec<u64>, Result<Vec<SettleAnswer>, StoreError>),
    /// A bundle was divided: its slot, what of it is still open, and what became of the rest if it was.
    Divided(
        u64,
        Vec<u32>,
        Box<Resolution>,
        Result<SettleAnswer, StoreError>,
    ),
    /// Claims were extended until this moment, if they are still ours.
    Extended(
        MonoUs,
        Vec<(u64, Claim)>,
        Result<Vec<SettleAnswer>, StoreError>,
    ),
    Returned(Partition, usize, Result<Vec<SettleAnswer>, StoreError>),
    /// Bundles of an ordered route that were never handed over went back as they were.
    PutBack(Vec<u64>, Result<Vec<SettleAnswer>, StoreError>),
    /// The shard gave up an ordered route.
    Released(Result<(), StoreError>),
}

pub(super) struct Settler {
    pub(super) shard: Arc<Shard>,
    pub(super) calls: FuturesUnordered<StoreCall>,
    /// Clean bundles that wait for their partition's next call.
    clean: BTreeMap<Partition, Vec<u64>>,
    /// Bundles gather, to be settled after [`GATHER_TIME`].
    gathering: bool,
    /// Partitions with a settle on its way.
    settling: BTreeSet<Partition>,
    extending: usize,
    ticks: u32,
    place: PublishPlace,
    /// The partitions that this replica owned at the last tick.
    owned: Arc<OwnedPartitions>,
}

/// Runs until the shard has drained.
pub(super) async fn run(shard: Arc<Shard>) {
    let mut settler = Settler {
        shard: shard.clone(),
        calls: FuturesUnordered::new(),
        clean: BTreeMap::new(),
        gathering: false,
        settling: BTreeSet::new(),
        extending: 0,
        ticks: 0,
        place: PublishPlace::new(&shard.health),
        owned: shard.cluster.owned(),
    };
    let mut ticked = pin!(tick(TICK_INTERVAL));
    let mut gathered = pin!(tokio::time::sleep(GATHER_TIME));
    let mut ending = false;
    loop {
        let was_gathering = settler.gathering;
        tokio::select! {
            () = shard.shutdown.forced() => return,
            verdicts = shard.verdicts.take() => settler.judge(verdicts),
            Some(result) = settler.calls.next() => settler.call_ended(result),
            () = gathered.as_mut(), if settler.gathering => settler.settle_all(),
            () = shard.key_queues_changed.notified() => settler.advance_key_queues(),
            () = ticked.as_mut() => {
                ticked.set(tick(TICK_INTERVAL));
                settler.tick();
                settler.return_misplaced();
                settler.advance_key_queues();
                settler.report_late();
            }
            () = shard.claiming_ended.cancelled(), if !ending => ending = true,
        }
        if settler.gathering && !was_gathering {
            gathered.as_mut().reset(Instant::now() + GATHER_TIME);
        }
        // A forced shutdown ends without a word, as a killed process would.
        if ending && !shard.shutdown.is_forced() && settler.drained() {
            return;
        }
    }
}

/// The progress of a bundle for the store. `news` includes the confirms.
fn progress(claimed: &ClaimedBundle, news: bool) -> ClaimProgress {
    let delivered = if news {
        claimed.delivered()
    } else {
        Vec::new()
    };
    ClaimProgress {
        claim: claimed.claim.clone(),
        confirmed: news.then(|| claimed.confirmed()),
        delivered,
    }
}

/// The number of bundles that fit into one call, given the number of names of each.
fn one_call(names: impl Iterator<Item = usize>) -> usize {
    let mut all = 0;
    let fits = names
        .take(MAX_CALL_BUNDLES)
        .enumerate()
        .take_while(|(n, names)| {
            all += names;
            *n == 0 || all <= MAX_CALL_NAMES
        });
    fits.count()
}

impl Settler {
    fn judge(&mut self, verdicts: Vec<(Ticket, Verdict)>) {
        let shard = self.shard.clone();
        let mut finished = Vec::new();
        let heard_at = VerdictTime::now(shard.store.clock());
        let mut slots = shard.table.lock();
        let mut judged = Vec::new();
        for (ticket, verdict) in verdicts {
            if judged.last() != Some(&ticket.batch) {
                judged.push(ticket.batch);
            }
            finished.extend(slots.judge(ticket, verdict, heard_at));
        }
        judged.sort_unstable();
        judged.dedup();
        for slot in judged {
            if let Some(claimed) = slots.bundles.get_mut(&slot) {
                claimed.update_credit();
            }
        }
        drop(slots);
        for slot in finished {
            self.finish(slot);
        }
        self.advance_key_queues();
    }

    /// Finishes a bundle that has nothing open any more, or that has a message to move at once.
    pub(super) fn finish(&mut self, slot: u64) {
        let shard = self.shard.clone();
        let mut slots = shard.table.lock();
        let ClaimSlots {
            bundles,
            key_queues,
            ..
        } = &mut *slots;
        let Some(claimed) = bundles.get_mut(&slot) else {
            return;
        };
        if claimed.busy || (claimed.open > 0 && (claimed.lost || !claimed.must_move())) {
            return;
        }
        if claimed.lost {
            // Only the confirms are still ours to report: the next claimer should not repeat those messages.
            let claimed = slots.remove(slot);
            drop(slots);
            self.note(claimed.as_ref().filter(|h| h.news));
            return;
        }
        claimed.busy = true;
        let key_queue = claimed
            .key_queue_id()
            .and_then(|id| key_queues.get_mut(&id));
        if claimed.open == 0 && claimed.is_clean() {
            let p = claimed.claim.partition;
            drop(slots);
            let waiting = self.clean.entry(p).or_default();
            waiting.push(slot);
            if waiting.len() >= MAX_CALL_BUNDLES {
                self.settle(p);
            }
            self.gathering = true;
        } else if claimed.open == 0 && key_queue.is_some() && claimed.only_untried() {
            let p = claimed.claim.partition;
            let back = progress(claimed, claimed.confirmed().contains(&true));
            drop(slots);
            self.put_back(slot, p, back);
        } else {
            let still_open = claimed.open_entries();
            let resolution = resolve::resolve(&shard, claimed, key_queue);
            drop(slots);
            self.divide(slot, still_open, resolution);
        }
    }

    /// Reports the confirms of a bundle whose claim is lost.
    fn note(&mut self, claimed: Option<&ClaimedBundle>) {
        let Some(claimed) = claimed else { return };
        let store = self.shard.store.clone();
        let lease_ms = self.shard.lease_ms();
        let p = claimed.claim.partition;
        let news = progress(claimed, true);
        self.extending += 1;
        self.calls.push(Box::pin(async move {
            let result = store.extend(p, lease_ms, &[news]).await;
            CallResult::Extended(MonoUs::default(), Vec::new(), result)
        }));
    }

    /// Settles the bundles that have gathered. Bundles behind a call that is on its way go next.
    fn settle_all(&mut self) {
        self.gathering = false;
        let waiting: Vec<Partition> = self.clean.keys().copied().collect();
        for p in waiting {
            self.settle(p);
        }
    }

    fn settle(&mut self, p: Partition) {
        if self.settling.contains(&p) {
            return;
        }
        let Some(waiting) = self.clean.get_mut(&p).filter(|w| !w.is_empty()) else {
            return;
        };
        let slots = self.shard.table.lock();
        let names = |slot: &u64| {
            slots
                .bundles
                .get(slot)
                .map_or(0, |h| h.names(|_| true).len())
        };
        let fits = one_call(waiting.iter().map(names));
        let batch: Vec<u64> = waiting.drain(..fits).collect();
        if waiting.is_empty() {
            self.clean.remove(&p);
        }
        let settled: Vec<Settlement> = batch
            .iter()
            .filter_map(|slot| slots.bundles.get(slot))
            .map(|h| Settlement {
                claim: h.claim.clone(),
                names: h.names(|_| true),
                delivered: h.delivered(),
            })
            .collect();
        drop(slots);
        let store = self.shard.store.clone();
        self.settling.insert(p);
        self.calls.push(Box::pin(async move {
            let result = store.settle(p, &settled).await;
            CallResult::Settled(p, batch, result)
        }));
    }

    fn divide(&mut self, slot: u64, still_open: Vec<u32>, resolution: Resolution) {
        let store = self.shard.store.clone();
        self.calls.push(Box::pin(async move {
            let result = store.divide(&resolution.division).await;
            CallResult::Divided(slot, still_open, Box::new(resolution), result)
        }));
    }

    fn call_ended(&mut self, result: CallResult) {
        match result {
            CallResult::Settled(p, batch, result) => {
                self.settling.remove(&p);
                self.settled(&batch, &result);
                self.settle(p);
            }
            CallResult::Divided(slot, still_open, resolution, result) => {
                self.divided(slot, &still_open, &resolution, result);
            }
            CallResult::Extended(lease_end, batch, result) => {
                self.extended(lease_end, &batch, result);
            }
            CallResult::PutBack(batch, result) => self.settled(&batch, &result),
            CallResult::Released(Ok(())) => {}
            CallResult::Released(Err(why)) => {
                debug!(error = %why, "giving up an ordered route failed; it will lapse");
            }
            CallResult::Returned(p, bundles, Ok(_)) => {
                debug!(partition = p.0, bundles, "returned claims");
            }
            CallResult::Returned(p, _, Err(why)) => {
                warn!(partition = p.0, error = %why, "returning claims failed; they will expire");
            }
        }
    }

    fn settled(&mut self, batch: &[u64], result: &Result<Vec<SettleAnswer>, StoreError>) {
        let mut stale: Vec<bool> = vec![result.is_err(); batch.len()];
        match result {
            Ok(held) => stale = held.iter().map(|h| *h == SettleAnswer::Stale).collect(),
            // The claims expire. Confirms were noted, or their messages are repeated with that cause.
            Err(why) => warn!(error = %why, bundles = batch.len(), "settling failed"),
        }
        if result.is_ok() {
            self.shard
                .metrics
                .stale_claims
                .inc_by(stale.iter().filter(|stale| **stale).count() as u64);
        }
        for (&slot, stale) in batch.iter().zip(stale) {
            let mut slots = self.shard.table.lock();
            if stale {
                slots.lose(slot, result.is_err());
            }
            let claimed = slots.remove(slot);
            drop(slots);
            drop(claimed);
        }
        self.advance_key_queues();
    }

    fn divided(
        &mut self,
        slot: u64,
        still_open: &[u32],
        resolution: &Resolution,
        result: Result<SettleAnswer, StoreError>,
    ) {
        let shard = self.shard.clone();
        let mut slots = shard.table.lock();
        if let (Ok(SettleAnswer::Applied(_)), Some(claimed)) = (&result, slots.bundles.get(&slot)) {
            let reporter = &claimed.in_flight.served.reporter;
            for dead_letter in &resolution.division.dead {
                reporter.died(dead_letter);
            }
            for message in &resolution.dropped {
                reporter.dropped(message);
            }
            reporter.put_back(resolution.put_back);
        }
        match result {
            Ok(SettleAnswer::Applied(mut claims)) if !still_open.is_empty() => {
                let Some((claimed, claim)) = slots.bundles.get_mut(&slot).zip(claims.pop()) else {
                    return;
                };
                claimed.claim = claim;
                claimed.stored = still_open.to_vec();
                claimed.split = true;
                claimed.open = still_open
                    .iter()
                    .filter(|&&e| claimed.states[e as usize] == DeliveryState::Open)
                    .count();
                claimed.busy = false;
                claimed.update_credit();
                slots.moved(slot);
                drop(slots);
                self.finish(slot);
            }
            Ok(SettleAnswer::Applied(_)) => {
                if let Some(claimed) = slots.bundles.get_mut(&slot) {
                    let now = shard.store.clock().now();
                    if let Some(asked) = claimed.earliest_asked().filter(|asked| *asked <= now) {
                        let health = &claimed.in_flight.served.health;
                        health.overdue.put_back(Overdue { asked, seen: now });
                    }
                    claimed.stored.clear();
                }
                slots.moved(slot);
                let claimed = slots.remove(slot);
                drop(slots);
                drop(claimed);
            }
            Ok(SettleAnswer::Stale) => {
                self.shard.metrics.stale_claims.inc();
                self.lose(slots, slot, false);
            }
            Err(why) => {
                warn!(error = %why, "dividing a bundle failed; its claim will expire");
                self.lose(slots, slot, true);
            }
        }
        self.advance_key_queues();
    }

    /// Gives up the claim of a bundle, which another replica may have by now. `is_unknown`: the store did not answer.
    fn lose(&mut self, mut slots: MutexGuard<'_, ClaimSlots>, slot: u64, is_unknown: bool) {
        slots.lose(slot, is_unknown);
        let Some(claimed) = slots.bundles.get_mut(&slot) else {
            return;
        };
        claimed.lost = true;
        claimed.busy = false;
        claimed.drop_unpublished();
        drop(slots);
        self.finish(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_takes_so_many_bundles_and_names_and_one_bundle_whatever_it_has() {
        let of = |names: &[usize]| one_call(names.iter().copied());
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[MAX_CALL_NAMES + 1, 0]), 1);
        assert_eq!(of(&[MAX_CALL_NAMES, 0, 0, 1, 0]), 3);
        assert_eq!(of(&[1; MAX_CALL_BUNDLES + 1]), MAX_CALL_BUNDLES);
    }
}
