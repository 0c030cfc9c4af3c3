//! The settler: verdicts in, answers to the store out.
//!
//! Bundles with nothing open any more are settled together, one call a partition at a time, so calls grow
//! with the load. Each quarter of a second claims are extended while anything of them is held, what is
//! confirmed so far is noted, and what hangs a second after its bundle's last hand-over is split off.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tracing::{debug, warn};

use super::Shard;
use super::division;
use super::holding::{Heard, Holding, Standing};
use crate::domain::{Partition, Verdict};
use crate::store::{Division, Held, Progress, Settlement, StoreError};

/// Confirmed indexes of open bundles are noted, and claims extended, this often.
const TICK: Duration = Duration::from_millis(250);
/// What is unresolved this long after its bundle's last hand-over is split off, microseconds.
const HANGS_US: i64 = 1_000_000;
/// Bundles that one settle takes at most.
const SETTLES: usize = 200;
/// Longest wait for the store on the way out.
const LAST_WORD: Duration = Duration::from_secs(5);

type Answer = Pin<Box<dyn Future<Output = Done> + Send>>;

/// What came of a call.
enum Done {
    Settled(Partition, Vec<u64>, Result<Vec<Held>, StoreError>),
    Divided(u64, Vec<u32>, Result<Held, StoreError>),
    Extended(i64, Vec<u64>, Result<Vec<Held>, StoreError>),
}

struct Settler {
    shard: Arc<Shard>,
    calls: FuturesUnordered<Answer>,
    /// Clean bundles waiting for their partition's turn.
    clean: BTreeMap<Partition, Vec<u64>>,
    /// Partitions with a settle on its way.
    settling: BTreeSet<Partition>,
    extending: usize,
}

/// Runs until the shard has drained.
pub(super) async fn run(shard: Arc<Shard>) {
    let mut settler = Settler {
        shard: shard.clone(),
        calls: FuturesUnordered::new(),
        clean: BTreeMap::new(),
        settling: BTreeSet::new(),
        extending: 0,
    };
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shard.shutdown.forced() => return,
            verdicts = shard.verdicts.take() => settler.judge(verdicts),
            Some(done) = settler.calls.next() => settler.answered(done),
            _ = tick.tick() => {
                settler.tick();
                if shard.shutdown.is_draining() && settler.drained().await {
                    return;
                }
            }
        }
    }
}

/// What the store is told of a holding: with `news`, what is confirmed.
fn progress(holding: &Holding, news: bool) -> Progress {
    let delivered = if news { holding.delivered() } else { Vec::new() };
    Progress { claim: holding.claim.clone(), confirmed: news.then(|| holding.confirmed()), delivered }
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
    }

    /// Deals with a holding that has nothing open any more.
    fn finish(&mut self, slot: u64) {
        let shard = self.shard.clone();
        let mut slots = shard.table.lock();
        let Some(holding) = slots.holdings.get_mut(&slot) else { return };
        if holding.busy || holding.open > 0 {
            return;
        }
        if holding.lost {
            // Nothing is ours any more but the news: its next holder should not repeat what is confirmed.
            let holding = slots.holdings.remove(&slot);
            drop(slots);
            self.note(holding.as_ref().filter(|h| h.news));
            self.release(holding);
            return;
        }
        holding.busy = true;
        if holding.is_clean() {
            let p = holding.claim.partition;
            drop(slots);
            self.clean.entry(p).or_default().push(slot);
            self.settle(p);
        } else {
            let division = division::of(&shard, holding, false);
            drop(slots);
            self.divide(slot, Vec::new(), division);
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

    fn settle(&mut self, p: Partition) {
        if self.settling.contains(&p) {
            return;
        }
        let Some(waiting) = self.clean.get_mut(&p).filter(|w| !w.is_empty()) else { return };
        let batch: Vec<u64> = waiting.drain(..waiting.len().min(SETTLES)).collect();
        let slots = self.shard.table.lock();
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
                self.settled(&batch, result);
                self.settle(p);
            }
            Done::Divided(slot, held_on, result) => self.divided(slot, &held_on, result),
            Done::Extended(until, batch, result) => self.extended(until, &batch, result),
        }
    }

    fn settled(&mut self, batch: &[u64], result: Result<Vec<Held>, StoreError>) {
        let stale = match result {
            Ok(held) => held.iter().filter(|h| **h == Held::Stale).count(),
            Err(why) => {
                // The claims expire; what is confirmed was noted or is repeated with its cause.
                warn!(error = %why, bundles = batch.len(), "cannot settle");
                0
            }
        };
        self.shard.metrics.stale_claims.inc_by(stale as u64);
        for slot in batch {
            let holding = self.shard.table.lock().holdings.remove(slot);
            self.release(holding);
        }
    }

    fn divided(&mut self, slot: u64, held_on: &[u32], result: Result<Held, StoreError>) {
        let shard = self.shard.clone();
        let mut slots = shard.table.lock();
        match result {
            Ok(Held::Done(mut claims)) if !held_on.is_empty() => {
                let Some((holding, claim)) = slots.holdings.get_mut(&slot).zip(claims.pop()) else { return };
                holding.claim = claim;
                holding.stored = held_on.to_vec();
                holding.open =
                    held_on.iter().filter(|&&e| holding.standing[e as usize] == Standing::Open).count();
                holding.busy = false;
                let finished = holding.open == 0;
                drop(slots);
                if finished {
                    self.finish(slot);
                }
            }
            Ok(Held::Done(_)) => {
                let holding = slots.holdings.remove(&slot);
                drop(slots);
                self.release(holding);
            }
            Ok(Held::Stale) | Err(_) => {
                self.shard.metrics.stale_claims.inc();
                if let Err(why) = result {
                    warn!(error = %why, "cannot put the rest of a bundle back; its claim will expire");
                }
                let Some(holding) = slots.holdings.get_mut(&slot) else { return };
                holding.lost = true;
                holding.busy = false;
                holding.drop_unpublished();
                let finished = holding.open == 0;
                drop(slots);
                if finished {
                    self.finish(slot);
                }
            }
        }
    }

    fn release(&self, holding: Option<Holding>) {
        let Some(holding) = holding else { return };
        let served = &holding.flight.served;
        served.hold(-(holding.standing.len() as i64), -holding.bytes);
        if served.room().is_some() {
            self.shard.room.notify_one();
        }
    }

    /// Extends claims, notes progress, and splits off what hangs.
    fn tick(&mut self) {
        let shard = self.shard.clone();
        let now_us = shard.mono_us();
        let mut extend: BTreeMap<Partition, Vec<(u64, Progress)>> = BTreeMap::new();
        let mut splits = Vec::new();
        let mut slots = shard.table.lock();
        for (&slot, holding) in slots.holdings.iter_mut().filter(|(_, h)| !h.busy && h.open > 0) {
            let lease = holding.flight.lease_until_us.load(Ordering::Acquire) - now_us;
            let waited = now_us.saturating_sub(holding.flight.published_us.load(Ordering::Acquire));
            let resolved = holding.open < holding.stored.len();
            let all_handed = holding.all_handed_over();
            if waited >= HANGS_US && resolved && all_handed && !holding.lost {
                holding.busy = true;
                let held_on = holding.stored.iter().copied();
                let held_on: Vec<u32> =
                    held_on.filter(|&e| holding.standing[e as usize] == Standing::Open).collect();
                splits.push((slot, held_on, division::of(&shard, holding, true)));
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
        for (p, held) in extend {
            self.extending += 1;
            let store = shard.store.clone();
            let (lease_ms, until) = (shard.lease_ms(), now_us + shard.lease_us());
            self.calls.push(Box::pin(async move {
                let (slots, claims): (Vec<u64>, Vec<Progress>) = held.into_iter().unzip();
                let result = store.extend(p, lease_ms, &claims).await;
                Done::Extended(until, slots, result)
            }));
        }
    }

    fn extended(&mut self, until: i64, batch: &[u64], result: Result<Vec<Held>, StoreError>) {
        self.extending -= 1;
        let shard = self.shard.clone();
        let mut finished = Vec::new();
        let mut slots = shard.table.lock();
        match result {
            Ok(held) => {
                for (slot, held) in batch.iter().zip(held) {
                    let Some(holding) = slots.holdings.get_mut(slot) else { continue };
                    if held == Held::Stale {
                        shard.metrics.stale_claims.inc();
                        holding.lost = true;
                        holding.drop_unpublished();
                        if holding.open == 0 {
                            finished.push(*slot);
                        }
                    } else {
                        holding.flight.lease_until_us.fetch_max(until, Ordering::AcqRel);
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

    /// On the way out: gives back what was never handed over; done when nothing is held any more.
    async fn drained(&mut self) -> bool {
        let shard = self.shard.clone();
        let mut back: BTreeMap<Partition, Vec<Progress>> = BTreeMap::new();
        {
            let mut slots = shard.table.lock();
            for holding in slots.holdings.values_mut() {
                holding.drop_unpublished();
            }
            let unpublished: Vec<u64> = slots
                .holdings
                .iter()
                .filter(|(_, h)| !h.busy && h.open == 0 && !h.is_clean() && h.only_untried())
                .map(|(&slot, _)| slot)
                .collect();
            for slot in unpublished {
                let Some(holding) = slots.holdings.remove(&slot) else { continue };
                let news = holding.confirmed().contains(&true);
                back.entry(holding.claim.partition).or_default().push(progress(&holding, news));
            }
        }
        for (p, held) in back {
            match tokio::time::timeout(LAST_WORD, shard.store.give_back(p, &held)).await {
                Ok(Ok(_)) => debug!(partition = p.0, bundles = held.len(), "gave claims back"),
                Ok(Err(why)) => {
                    warn!(partition = p.0, error = %why, "cannot give claims back; they will expire");
                }
                Err(_) => warn!(partition = p.0, "no answer to giving claims back; they will expire"),
            }
        }
        let idle: Vec<u64> = {
            let slots = shard.table.lock();
            slots.holdings.iter().filter(|(_, h)| !h.busy && h.open == 0).map(|(&s, _)| s).collect()
        };
        for slot in idle {
            self.finish(slot);
        }
        shard.table.lock().holdings.is_empty() && self.calls.is_empty()
    }
}
