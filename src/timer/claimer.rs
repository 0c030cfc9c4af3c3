//! The claimer: looks at the heads of all its partitions in one trip, claims what is due within the
//! look-ahead, and hands it to the wheel.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32};
use std::time::Duration;

use futures_util::future::join_all;
use tracing::{debug, error, warn};

use super::holding::{Flight, Holding, Standing};
use super::wheel::Item;
use super::{Served, Shard};
use crate::domain::limits::{MAX_EXPIRIES, SPLIT_EXPIRIES};
use crate::domain::{DeadReason, Partition, UnixMs, retry};
use crate::mutants::{self, Mutant};
use crate::store::{
    Bundle, Claim, ClaimRequest, Claimed, CodecError, DeadLetter, Division, Fresh, Head, Remainder,
    StoreError,
};

/// Longest time between two looks: this alone delivers everything, wake-ups or not.
const LOOK: Duration = Duration::from_millis(250);
/// A wake-up for something due later than this after the next look is left to that look.
const MARGIN_MS: i64 = 20;
/// Bundles that one claim takes of one partition at most.
const BUNDLES: usize = 200;
/// Claims of dead holders are looked for this often.
const SWEEP: Duration = Duration::from_secs(1);

/// Runs until draining begins.
pub(super) async fn run(shard: Arc<Shard>) {
    let mut claimer = Claimer { shard: shard.clone(), failing: false, unknown: 0 };
    let mut sweep_at = 0;
    loop {
        let next = tokio::select! {
            () = shard.shutdown.draining() => return,
            next = claimer.round() => next,
        };
        if shard.mono_us() >= sweep_at {
            sweep_at = shard.mono_us() + SWEEP.as_micros() as i64;
            tokio::select! {
                () = shard.shutdown.draining() => return,
                () = claimer.sweep() => {}
            }
        }
        tokio::select! {
            () = shard.shutdown.draining() => return,
            () = claimer.rest(next) => {}
        }
    }
}

struct Claimer {
    shard: Arc<Shard>,
    failing: bool,
    unknown: usize,
}

/// When to look again.
enum Next {
    /// At once: there was more than a claim takes.
    Now,
    /// After this; sooner if something due before the end of it is stored.
    In(Duration),
    /// When a route's window has room, or after a look's time.
    Room,
}

impl Claimer {
    /// One look and its claims.
    async fn round(&mut self) -> Next {
        match self.look().await {
            Ok(next) => {
                self.failing = false;
                next
            }
            Err(why) => {
                if !self.failing {
                    warn!(shard = self.shard.number, error = %why, "cannot claim; trying on");
                }
                self.failing = true;
                Next::In(LOOK)
            }
        }
    }

    async fn look(&mut self) -> Result<Next, StoreError> {
        let shard = self.shard.clone();
        let lookahead = shard.config.lookahead.as_millis() as i64;
        // What is stored from here on rings the bell again.
        shard.store.wake().take(shard.number);
        let until = shard.store.clock().now().plus(lookahead);
        let heads = shard.store.heads(&shard.partitions, until).await?;
        self.count_unknown(&heads);
        let (mut starved, mut requests) = (false, Vec::new());
        for &p in &shard.partitions {
            let mut shelves = Vec::new();
            for head in heads.iter().filter(|h| h.partition == p && h.due <= until) {
                let Some(served) = shard.routes.get(head.route()) else { continue };
                match served.room() {
                    room if room > 0 => shelves.push((head.shelf.clone(), room as u32)),
                    _ => starved = true,
                }
            }
            if !shelves.is_empty() {
                requests.push(self.request(p, shelves));
            }
        }
        let full = join_all(requests.iter().map(|request| self.claim(request))).await;
        let mut more = false;
        for full in full {
            more |= full?;
        }
        if more {
            return Ok(Next::Now);
        }
        if starved {
            return Ok(Next::Room);
        }
        let later = heads.iter().filter(|h| h.due > until).map(|h| h.due).min();
        let soon = Duration::from_millis((lookahead / 4).max(1) as u64);
        let pause = later.map_or(LOOK, |due| {
            let ahead = due.since(shard.store.clock().now()) - lookahead;
            Duration::from_millis(ahead.max(0) as u64).clamp(soon.min(LOOK), LOOK)
        });
        Ok(Next::In(pause))
    }

    fn request(&self, partition: Partition, shelves: Vec<(String, u32)>) -> ClaimRequest {
        ClaimRequest {
            partition,
            shelves,
            lookahead_ms: self.shard.config.lookahead.as_millis() as u64,
            lease_ms: self.shard.lease_ms(),
            max_bundles: BUNDLES,
        }
    }

    /// One partition's claim. Returns whether there may be more to take.
    async fn claim(&self, request: &ClaimRequest) -> Result<bool, StoreError> {
        // Taken before the claim is sent: the deadline in the store can only be later.
        let lease_until_us = self.shard.mono_us() + self.shard.lease_us();
        let claimed = self.shard.store.claim(request).await?;
        let full = claimed.len() >= request.max_bundles;
        let mut items = Vec::with_capacity(claimed.len());
        for one in claimed {
            items.extend(self.take(one, lease_until_us).await);
        }
        self.shard.wheel.add(items);
        Ok(full)
    }

    /// Enters one claimed bundle, or deals with one that cannot be published as it is.
    async fn take(&self, claimed: Claimed, lease_until_us: i64) -> Option<Item> {
        let served = self.shard.routes.get(claimed.claim.id.route())?.clone();
        let bundle = match &claimed.bundle {
            Ok(bundle) if bundle.entries.len() == claimed.skip.len() => bundle.clone(),
            Ok(_) => {
                self.bury_whole(
                    &claimed,
                    &served,
                    DeadReason::Corrupt,
                    "it holds another number of messages",
                )
                .await;
                return None;
            }
            Err(None) => {
                // Under a claim that is still ours nothing but damage takes a blob away.
                self.bury_whole(&claimed, &served, DeadReason::Corrupt, "its blob is not there").await;
                return None;
            }
            Err(Some(CodecError::UnknownVersion(version))) => {
                warn!(bundle = %claimed.claim.id, version, "a bundle of a later version is left alone");
                return None;
            }
            Err(Some(why @ CodecError::Poison)) => {
                self.bury_whole(&claimed, &served, DeadReason::Crashes, &why.to_string()).await;
                return None;
            }
            Err(Some(why)) => {
                self.bury_whole(&claimed, &served, DeadReason::Corrupt, &why.to_string()).await;
                return None;
            }
        };
        if claimed.expiries >= SPLIT_EXPIRIES && bundle.entries.len() > 1 {
            self.take_apart(&claimed, &served, &bundle).await;
            return None;
        }
        if claimed.expiries >= MAX_EXPIRIES {
            self.bury_crashed(&claimed, &served, &bundle).await;
            return None;
        }
        self.enter(claimed, &served, &bundle, lease_until_us)
    }

    fn enter(
        &self,
        claimed: Claimed,
        served: &Arc<Served>,
        bundle: &Bundle,
        lease_until_us: i64,
    ) -> Option<Item> {
        let Claimed { claim, mut expiries, skip, blob, .. } = claimed;
        if mutants::is(Mutant::ForgetExpiry) {
            expiries = 0;
        }
        let slot = self.shard.table.slot();
        let own = |(index, entry): (usize, &crate::domain::Entry)| {
            entry.id.clone().unwrap_or_else(|| claim.id.message_id(claim.partition, index, entry.due))
        };
        let mut target = served.route.target(bundle.target.as_str());
        if mutants::is(Mutant::WrongTarget) {
            let mut others = self.shard.routes.values().map(|other| &other.route.to);
            target = others.find(|&to| *to != served.route.to);
        }
        let mut order: Vec<u32> = (0..skip.len() as u32).filter(|&i| !skip[i as usize]).collect();
        order.sort_by_key(|&index| bundle.entries[index as usize].due);
        let flight = Arc::new(Flight {
            slot,
            served: served.clone(),
            entries: bundle.entries.clone(),
            ids: bundle.entries.iter().enumerate().map(own).collect(),
            lane: target.map(|target| self.shard.lanes.lane(target)),
            target: target.unwrap_or(&served.route.to).clone(),
            target_name: bundle.target.clone(),
            verdicts: self.shard.verdicts.clone(),
            expiries,
            lease_until_us: AtomicI64::new(lease_until_us),
            published_us: AtomicI64::new(i64::MAX),
            handed: AtomicU32::new(0),
            order,
        });
        let standing: Vec<Standing> =
            skip.iter().map(|&skip| if skip { Standing::Skipped } else { Standing::Open }).collect();
        let (open, bytes) = (flight.order.len(), blob.len() as i64);
        served.hold(skip.len() as i64, bytes);
        let holding = Holding {
            claim,
            flight: flight.clone(),
            stored: (0..skip.len() as u32).collect(),
            standing,
            open,
            bytes,
            news: false,
            busy: false,
            lost: false,
        };
        self.shard.table.lock().holdings.insert(slot, holding);
        if open == 0 {
            // All of it is gone or done: the settler hears of it as of any other that is finished.
            self.shard.verdicts.push(flight.ticket(0), crate::domain::Verdict::NotTried);
        }
        Item::new(flight)
    }

    /// A bundle whose claim expired twice may hold what kills its publisher: each message on its own from
    /// here on, so that it judges only itself.
    async fn take_apart(&self, claimed: &Claimed, served: &Arc<Served>, bundle: &Bundle) {
        let claim = &claimed.claim;
        let live = (0..bundle.entries.len()).filter(|&i| !claimed.skip[i]);
        let remainders = live.map(|index| {
            let mut entry = bundle.entries[index].clone();
            entry.id.get_or_insert_with(|| claim.id.message_id(claim.partition, index, entry.due));
            let one = Bundle { target: bundle.target.clone(), entries: Arc::new(vec![entry]) };
            Remainder {
                fresh: Fresh { route: served.route.name.clone(), bundle: one },
                from: vec![index as u32],
                lease_ms: None,
                expiries: claimed.expiries,
            }
        });
        warn!(bundle = %claim.id, expiries = claimed.expiries, "its claims expire; taken apart into single messages");
        self.divide(claim, claimed.skip.len(), remainders.collect(), Vec::new()).await;
    }

    async fn bury_crashed(&self, claimed: &Claimed, served: &Arc<Served>, bundle: &Bundle) {
        let mut bundle = bundle.clone();
        for entry in Arc::make_mut(&mut bundle.entries) {
            let now = self.shard.store.clock().now();
            retry::remember(entry, now, DeadReason::Crashes.as_str(), "its claims expired unpublished");
        }
        let letter =
            DeadLetter { route: served.route.name.clone(), reason: DeadReason::Crashes, bundle, raw: None };
        served.metrics.dead_letter(DeadReason::Crashes.as_str());
        self.divide(&claimed.claim, claimed.skip.len(), Vec::new(), vec![letter]).await;
    }

    /// Keeps a blob that nobody can or may open, as it is.
    async fn bury_whole(&self, claimed: &Claimed, served: &Arc<Served>, reason: DeadReason, why: &str) {
        error!(bundle = %claimed.claim.id, reason = reason.as_str(), error = why, "a bundle cannot be read");
        served.metrics.dead_letter(reason.as_str());
        let nothing = Bundle { target: crate::domain::Text::default(), entries: Arc::default() };
        let raw = Some(claimed.blob.clone()).filter(|blob| !blob.is_empty());
        let letter = DeadLetter { route: served.route.name.clone(), reason, bundle: nothing, raw };
        self.divide(&claimed.claim, claimed.skip.len(), Vec::new(), vec![letter]).await;
    }

    async fn divide(&self, claim: &Claim, count: usize, remainders: Vec<Remainder>, dead: Vec<DeadLetter>) {
        let division = Division {
            claim: claim.clone(),
            confirmed: vec![false; count],
            freed: Vec::new(),
            remainders,
            dead,
        };
        if let Err(why) = self.shard.store.divide(&division).await {
            // The claim expires and the next holder tries again.
            error!(bundle = %claim.id, error = %why, "cannot take a bundle apart");
        }
    }

    fn count_unknown(&mut self, heads: &[Head]) {
        let mut unknown: Vec<&str> =
            heads.iter().map(Head::route).filter(|r| !self.shard.routes.contains_key(*r)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        if unknown.len() > self.unknown {
            warn!(routes = ?unknown, "the store holds messages of routes that are not configured here");
        }
        self.unknown = unknown.len();
        self.shard.metrics.unknown_routes.set(unknown.len() as i64);
    }

    async fn sweep(&self) {
        for &p in &self.shard.partitions {
            match self.shard.store.sweep(p, self.shard.lease_ms(), false).await {
                Ok(swept) if swept.expired + swept.clamped > 0 => {
                    debug!(
                        partition = p.0,
                        expired = swept.expired,
                        clamped = swept.clamped,
                        "claims came back"
                    );
                }
                Ok(_) => {}
                Err(why) => {
                    debug!(partition = p.0, error = %why, "cannot sweep");
                    return;
                }
            }
        }
    }

    /// Waits for the next look.
    async fn rest(&self, next: Next) {
        let (pause, shard) = match next {
            Next::Now => return,
            Next::In(pause) => (pause, &self.shard),
            Next::Room => {
                tokio::select! {
                    () = self.shard.room.notified() => {}
                    () = tokio::time::sleep(LOOK) => {}
                }
                return;
            }
        };
        let lookahead = shard.config.lookahead.as_millis() as i64;
        let wake_until = |now: UnixMs, left: Duration| now.plus(left.as_millis() as i64 + MARGIN_MS);
        let end = shard.mono_us() + pause.as_micros() as i64;
        loop {
            let left = Duration::from_micros((end - shard.mono_us()).max(0) as u64);
            if left.is_zero() {
                return;
            }
            let now = shard.store.clock().now();
            // What the next look would still claim in time is left to it.
            if shard.store.wake().peek(shard.number).is_some_and(|due| due <= wake_until(now, left)) {
                return;
            }
            // Something became due within the look-ahead: look again soon, not when the pause ends.
            let soon = Duration::from_millis((lookahead / 4).max(1) as u64);
            let near = shard.store.wake().peek(shard.number).is_some_and(|due| due <= now.plus(lookahead));
            let left = if near { left.min(soon) } else { left };
            tokio::select! {
                () = shard.store.wake().rung(shard.number) => {}
                () = tokio::time::sleep(left) => if near { return },
            }
        }
    }
}
