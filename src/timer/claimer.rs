//! The claimer: looks at the heads of all its partitions in one trip, claims what is due within the
//! look-ahead, and hands it to the wheel.

use std::collections::BTreeMap;
use std::sync::Arc;

use std::time::Duration;

use futures_util::future::join_all;
use tracing::warn;

use super::{Shard, taking};
use crate::domain::limits::BUNDLE_MESSAGES;
use crate::domain::{Partition, UnixMs};
use crate::store::{ClaimRequest, Head, StoreError};

/// Longest time between two looks: this alone delivers everything, wake-ups or not.
const LOOK: Duration = Duration::from_millis(250);
/// A wake-up for something due later than this after the next look is left to that look.
const MARGIN_MS: i64 = 20;
/// Bundles that one claim takes of one partition at most.
const BUNDLES: usize = 200;
/// Runs until draining begins.
pub(super) async fn run(shard: Arc<Shard>) {
    let mut claimer = Claimer { shard: shard.clone(), failing: false, unknown: 0 };
    loop {
        let next = tokio::select! {
            () = shard.shutdown.draining() => return,
            next = claimer.round() => next,
        };
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
    /// After this; sooner if something due before the end of it is stored, or, where a route's window left
    /// something out, when one has room.
    In(Duration, bool),
}

/// What to claim after a look.
struct Requests {
    claims: Vec<ClaimRequest>,
    /// A route's window left it out.
    starved: bool,
    /// A route's window left some of its shelves to the next look.
    more: bool,
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
                Next::In(LOOK, false)
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
        let Requests { claims, starved, mut more } = self.requests(&heads, until);
        let full = join_all(claims.iter().map(|request| self.claim(request))).await;
        for full in full {
            more |= full?;
        }
        if more {
            return Ok(Next::Now);
        }
        let later = heads.iter().filter(|h| h.due > until).map(|h| h.due).min();
        let soon = Duration::from_millis((lookahead / 4).max(1) as u64);
        let pause = later.map_or(LOOK, |due| {
            let ahead = due.since(shard.store.clock().now()) - lookahead;
            Duration::from_millis(ahead.max(0) as u64).clamp(soon.min(LOOK), LOOK)
        });
        Ok(Next::In(pause, starved))
    }

    /// A claim per partition that has something due that may be served. What room a route has is shared among
    /// its shelves.
    fn requests(&self, heads: &[Head], until: UnixMs) -> Requests {
        let pauses = self.shard.store.pauses();
        let mut of_route: BTreeMap<&str, Vec<&Head>> = BTreeMap::new();
        for head in heads.iter().filter(|h| h.due <= until) {
            of_route.entry(head.route()).or_default().push(head);
        }
        let mut requests = Requests { claims: Vec::new(), starved: false, more: false };
        let mut of_partition: BTreeMap<Partition, Vec<(&Head, u32)>> = BTreeMap::new();
        for (route, mut heads) in of_route {
            let Some(served) = self.shard.routes.get(route) else { continue };
            // It stays where it is, and nobody waits for it: a paused route's head is in the past for long.
            if !pauses.may_publish(route) {
                continue;
            }
            let Some(room) = served.room() else {
                requests.starved = true;
                continue;
            };
            // Each shelf gives a bundle at least, so the small room of a limited route goes to its earliest.
            let few = if served.limit.is_some() { room as usize / BUNDLE_MESSAGES } else { heads.len() };
            if heads.len() > few.max(1) {
                heads.sort_by_key(|head| head.due);
                heads.truncate(few.max(1));
                requests.more = true;
            }
            let share = (room / heads.len() as i64).max(1) as u32;
            for head in heads {
                of_partition.entry(head.partition).or_default().push((head, share));
            }
        }
        for (partition, mut shelves) in of_partition {
            shelves.sort_by_key(|(head, _)| head.due);
            let shelves = shelves.into_iter().map(|(head, share)| (head.shelf.clone(), share)).collect();
            requests.claims.push(self.request(partition, shelves));
        }
        requests
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
        let messages: usize = claimed.iter().map(|c| c.claim.id.count()).sum();
        let allowed: u32 = request.shelves.iter().map(|(_, messages)| messages).sum();
        let full = claimed.len() >= request.max_bundles || messages + BUNDLE_MESSAGES > allowed as usize;
        let mut items = Vec::with_capacity(claimed.len());
        for one in claimed {
            items.extend(taking::take(&self.shard, one, lease_until_us).await);
        }
        self.shard.wheel.add(items);
        Ok(full)
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

    /// Waits for the next look.
    async fn rest(&self, next: Next) {
        let Next::In(pause, starved) = next else { return };
        let shard = &self.shard;
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
                () = shard.room.notified(), if starved => return,
                () = tokio::time::sleep(left) => if near { return },
            }
        }
    }
}
