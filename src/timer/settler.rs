//! The settler: verdicts in, answers to the store out.
//!
//! Bundles with nothing open any more are settled together, one call a partition at a time. Nobody waits for that,
//! so they gather for some milliseconds first. Each quarter of a second claims are extended while anything of them
//! is held, what is confirmed so far is noted, and what hangs a second after its bundle's last hand-over is split off.

mod extend;
mod late;
mod return_claims;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::claim_table::Slots;
use super::claimed::{Heard, Holding, Standing};
use super::{Shard, resolve};
use crate::cluster::Owned;
use crate::domain::limits::CALL_NAMES;
use crate::domain::{Partition, Verdict};
use crate::lifecycle::tick;
use crate::store::{ClaimProgress, Division, SettleAnswer, Settlement, StoreError};

/// Confirmed indexes of open bundles are noted, and claims extended, this often.
const TICK: Duration = Duration::from_millis(250);
/// Bundles that one call takes at most.
const CALL_BUNDLES: usize = 200;
/// How long bundles gather to be settled together; a crash repeats what was confirmed meanwhile.
const GATHER: Duration = Duration::from_millis(10);

pub(super) type Answer = Pin<Box<dyn Future<Output = Done> + Send>>;

/// What came of a call.
pub(super) enum Done {
    Settled(Partition, Vec<u64>, Result<Vec<SettleAnswer>, StoreError>),
    Divided(u64, Vec<u32>, Result<SettleAnswer, StoreError>),
    Extended(i64, Vec<u64>, Result<Vec<SettleAnswer>, StoreError>),
    GivenBack(Partition, usize, Result<Vec<SettleAnswer>, StoreError>),
    /// Bundles of an ordered route that were never handed over went back as they were.
    Back(Vec<u64>, Result<Vec<SettleAnswer>, StoreError>),
    /// An ordered route was given up.
    Released(Result<(), StoreError>),
}

pub(super) struct Settler {
    pub(super) shard: Arc<Shard>,
    pub(super) calls: FuturesUnordered<Answer>,
    /// Clean bundles waiting for their partition's turn.
    clean: BTreeMap<Partition, Vec<u64>>,
    /// They are settled when [`GATHER`] is over.
    gathering: bool,
    /// Partitions with a settle on its way.
    settling: BTreeSet<Partition>,
    extending: usize,
    ticks: u32,
    /// What this replica served at the last tick.
    served: Arc<Owned>,
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
        served: shard.cluster.owned(),
    };
    let mut ticked = pin!(tick(TICK));
    let mut gathered = pin!(tokio::time::sleep(GATHER));
    let mut ending = false;
    loop {
        let was_gathering = settler.gathering;
        tokio::select! {
            () = shard.shutdown.forced() => return,
            verdicts = shard.verdicts.take() => settler.judge(verdicts),
            Some(done) = settler.calls.next() => settler.answered(done),
            () = gathered.as_mut(), if settler.gathering => settler.settle_all(),
            () = shard.lines_moved.notified() => settler.go_on(),
            () = ticked.as_mut() => {
                ticked.set(tick(TICK));
                settler.tick();
                settler.hand_over();
                settler.go_on();
                settler.report_late();
            }
            () = shard.claimed_all.cancelled(), if !ending => ending = true,
        }
        if settler.gathering && !was_gathering {
            gathered.as_mut().reset(Instant::now() + GATHER);
        }
        // One that is forced ends without a word, as a killed one would.
        if ending && !shard.shutdown.is_forced() && settler.drained() {
            return;
        }
    }
}

/// What the store is told of a holding: with `news`, what is confirmed.
fn progress(holding: &Holding, news: bool) -> ClaimProgress {
    let delivered = if news { holding.delivered() } else { Vec::new() };
    ClaimProgress { claim: holding.claim.clone(), confirmed: news.then(|| holding.confirmed()), delivered }
}

/// How many bundles go in one call, of these with so many names each.
fn one_call(names: impl Iterator<Item = usize>) -> usize {
    let mut all = 0;
    let fits = names.take(CALL_BUNDLES).enumerate().take_while(|(n, names)| {
        all += names;
        *n == 0 || all <= CALL_NAMES
    });
    fits.count()
}

impl Settler {
    fn judge(&mut self, verdicts: Vec<(u64, Verdict)>) {
        let shard = self.shard.clone();
        let mut finished = Vec::new();
        let heard = Heard::now(shard.store.clock());
        let mut slots = shard.table.lock();
        for (ticket, verdict) in verdicts {
            finished.extend(slots.judge(ticket, verdict, heard));
        }
        drop(slots);
        for slot in finished {
            self.finish(slot);
        }
        self.go_on();
    }

    /// Deals with a holding that has nothing open any more, or of which something has to be put elsewhere at once.
    pub(super) fn finish(&mut self, slot: u64) {
        let shard = self.shard.clone();
        let mut slots = shard.table.lock();
        let Slots { holdings, lines, .. } = &mut *slots;
        let Some(holding) = holdings.get_mut(&slot) else { return };
        if holding.busy || (holding.open > 0 && (holding.lost || !holding.must_part())) {
            return;
        }
        if holding.lost {
            // Nothing is ours any more but the news: its next holder should not repeat what is confirmed.
            let holding = slots.remove(slot);
            drop(slots);
            self.note(holding.as_ref().filter(|h| h.news));
            self.release(holding);
            return;
        }
        holding.busy = true;
        let line = holding.line().and_then(|id| lines.get_mut(&id));
        if holding.open == 0 && holding.is_clean() {
            let p = holding.claim.partition;
            drop(slots);
            let waiting = self.clean.entry(p).or_default();
            waiting.push(slot);
            if waiting.len() >= CALL_BUNDLES {
                self.settle(p);
            }
            self.gathering = true;
        } else if holding.open == 0 && line.is_some() && holding.only_untried() {
            let (p, back) = (holding.claim.partition, progress(holding, holding.confirmed().contains(&true)));
            drop(slots);
            self.put_back(slot, p, back);
        } else {
            let held_on = holding.open_entries();
            let division = resolve::of(&shard, holding, line, !held_on.is_empty());
            drop(slots);
            self.divide(slot, held_on, division);
        }
    }

    fn note(&mut self, holding: Option<&Holding>) {
        let Some(holding) = holding else { return };
        let (store, lease_ms) = (self.shard.store.clone(), self.shard.lease_ms());
        let (p, news) = (holding.claim.partition, progress(holding, true));
        self.extending += 1;
        self.calls.push(Box::pin(async move {
            let result = store.extend(p, lease_ms, &[news]).await;
            Done::Extended(0, Vec::new(), result)
        }));
    }

    /// Settles what has gathered; where a call is on its way, what has gathered behind it goes next.
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
        let Some(waiting) = self.clean.get_mut(&p).filter(|w| !w.is_empty()) else { return };
        let slots = self.shard.table.lock();
        let names = |slot: &u64| slots.holdings.get(slot).map_or(0, |h| h.names(|_| true).len());
        let fits = one_call(waiting.iter().map(names));
        let batch: Vec<u64> = waiting.drain(..fits).collect();
        if waiting.is_empty() {
            self.clean.remove(&p);
        }
        let settled: Vec<Settlement> = batch
            .iter()
            .filter_map(|slot| slots.holdings.get(slot))
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
            Done::Settled(p, batch, result)
        }));
    }

    fn divide(&mut self, slot: u64, held_on: Vec<u32>, division: Division) {
        let store = self.shard.store.clone();
        self.calls.push(Box::pin(async move {
            let result = store.divide(&division).await;
            Done::Divided(slot, held_on, result)
        }));
    }

    fn answered(&mut self, done: Done) {
        match done {
            Done::Settled(p, batch, result) => {
                self.settling.remove(&p);
                self.settled(&batch, &result);
                self.settle(p);
            }
            Done::Divided(slot, held_on, result) => self.divided(slot, &held_on, result),
            Done::Extended(until, batch, result) => self.extended(until, &batch, result),
            Done::Back(batch, result) => self.settled(&batch, &result),
            Done::Released(Ok(())) => {}
            Done::Released(Err(why)) => debug!(error = %why, "cannot give an ordered route up; it lapses"),
            Done::GivenBack(p, bundles, Ok(_)) => debug!(partition = p.0, bundles, "gave claims back"),
            Done::GivenBack(p, _, Err(why)) => {
                warn!(partition = p.0, error = %why, "cannot give claims back; they will expire");
            }
        }
    }

    fn settled(&mut self, batch: &[u64], result: &Result<Vec<SettleAnswer>, StoreError>) {
        let mut stale: Vec<bool> = vec![result.is_err(); batch.len()];
        match result {
            Ok(held) => stale = held.iter().map(|h| *h == SettleAnswer::Stale).collect(),
            // The claims expire; what is confirmed was noted or is repeated with its cause.
            Err(why) => warn!(error = %why, bundles = batch.len(), "cannot settle"),
        }
        if result.is_ok() {
            self.shard.metrics.stale_claims.inc_by(stale.iter().filter(|stale| **stale).count() as u64);
        }
        for (&slot, stale) in batch.iter().zip(stale) {
            let mut slots = self.shard.table.lock();
            if stale {
                slots.lose(slot, result.is_err());
            }
            let holding = slots.remove(slot);
            drop(slots);
            self.release(holding);
        }
        self.go_on();
    }

    fn divided(&mut self, slot: u64, held_on: &[u32], result: Result<SettleAnswer, StoreError>) {
        let shard = self.shard.clone();
        let mut slots = shard.table.lock();
        match result {
            Ok(SettleAnswer::Applied(mut claims)) if !held_on.is_empty() => {
                let Some((holding, claim)) = slots.holdings.get_mut(&slot).zip(claims.pop()) else { return };
                holding.claim = claim;
                holding.stored = held_on.to_vec();
                holding.split = true;
                holding.open =
                    held_on.iter().filter(|&&e| holding.standing[e as usize] == Standing::Open).count();
                holding.busy = false;
                slots.moved(slot);
                drop(slots);
                self.finish(slot);
            }
            Ok(SettleAnswer::Applied(_)) => {
                if let Some(holding) = slots.holdings.get_mut(&slot) {
                    if let Some(asked) = holding.oldest_overdue(shard.store.clock().now()) {
                        holding.flight.served.metrics.overdue.put_back(asked);
                    }
                    holding.stored.clear();
                }
                slots.moved(slot);
                let holding = slots.remove(slot);
                drop(slots);
                self.release(holding);
            }
            Ok(SettleAnswer::Stale) | Err(_) => {
                self.shard.metrics.stale_claims.inc();
                if let Err(why) = &result {
                    warn!(error = %why, "cannot put the rest of a bundle back; its claim will expire");
                }
                slots.lose(slot, result.is_err());
                let Some(holding) = slots.holdings.get_mut(&slot) else { return };
                holding.lost = true;
                holding.busy = false;
                holding.drop_unpublished();
                drop(slots);
                self.finish(slot);
            }
        }
        self.go_on();
    }

    fn release(&self, holding: Option<Holding>) {
        let Some(holding) = holding else { return };
        let Holding { flight, standing, room, .. } = holding;
        let served = &flight.served;
        served.hold(-(standing.len() as i64));
        drop(room);
        if served.room(self.shard.mono_us()).is_some() {
            self.shard.room.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_takes_so_many_bundles_and_names_and_one_bundle_whatever_it_has() {
        let of = |names: &[usize]| one_call(names.iter().copied());
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[CALL_NAMES + 1, 0]), 1);
        assert_eq!(of(&[CALL_NAMES, 0, 0, 1, 0]), 3);
        assert_eq!(of(&[1; CALL_BUNDLES + 1]), CALL_BUNDLES);
    }
}
