//! The claimer: looks at the heads of all its partitions in one trip, claims what is due within the
//! look-ahead, and hands it to the wheel. Now and then it looks at those that fall to other replicas too, and
//! claims what is overdue there.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tracing::warn;

use super::Shard;
use super::accept::{self, Taken};
use super::claim_scope::{LOOK, Sight};
use super::key_order::rules::Look;
use super::polling::Looks;
use super::read_claimed::{Reading, Wanted};
use crate::cluster::Cluster;
use crate::domain::limits::BUNDLE_MESSAGES;
use crate::domain::{Partition, UnixMs};
use crate::lifecycle::until_tick;
use crate::mutants;
use crate::store::{ClaimRequest, Head, HeadsSeen, StoreError};

/// Longest time between two looks after one that failed, and while a claim is on its way: one that hangs must not hold
/// up the others for longer than they are claimed ahead.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// A wake-up for something due later than this after the next look is left to that look.
const MARGIN_MS: i64 = 20;
/// Looks for the sake of what falls due of ordered routes are at least so far apart.
const PACE: Duration = Duration::from_millis(1);
/// What is overdue by this much is claimed by whoever sees it: a process that lives and a shard that hangs is no
/// owner.
const OVERDUE_MS: i64 = 2000;
/// Bundles that one claim takes of one partition at most.
pub(super) const BUNDLES: usize = 200;
/// Longest wait for the store on the way out: a claim whose answer nobody hears is published only after its
/// deadline.
const LAST_WORD: Duration = Duration::from_secs(5);

/// Runs until draining begins; what is being claimed then is still taken in, to be given back.
pub(super) async fn run(shard: Arc<Shard>) {
    let mut claimer = Claimer {
        shard: shard.clone(),
        cluster: shard.cluster.clone(),
        claims: FuturesUnordered::new(),
        busy: BTreeSet::new(),
        failing: false,
        looks: Looks::new(shard.store.pauses()),
        next_us: 0,
        starved: false,
        near: BTreeMap::new(),
    };
    let late = async {
        shard.shutdown.draining().await;
        tokio::time::sleep(LAST_WORD).await;
    };
    tokio::select! {
        () = claimer.turn() => {}
        () = late => {}
        () = shard.shutdown.forced() => {}
    }
    shard.claimed_all.cancel();
}

/// One partition's claim (of unordered routes, of an ordered one), and whether there may be more to take.
pub(super) type Claiming = Pin<Box<dyn Future<Output = (Claimed, Result<bool, StoreError>)> + Send>>;

/// Whose claim it was.
pub(super) enum Claimed {
    Unordered(Partition),
    Ordered,
}

pub(super) struct Claimer {
    pub(super) shard: Arc<Shard>,
    cluster: Cluster,
    /// Claims on their way. Those of a node that is away may take long; the others do not wait for them.
    pub(super) claims: FuturesUnordered<Claiming>,
    /// The partitions of the unordered ones: one claim each at a time.
    pub(super) busy: BTreeSet<Partition>,
    pub(super) looks: Looks,
    failing: bool,
    /// When all partitions are to be looked at again, monotonic microseconds.
    next_us: i64,
    /// A route's window left something out.
    starved: bool,
    /// Partitions in which this process stored something that is due before their owner is sure to look, and when
    /// that is due. Nobody wakes the owner; whoever stored it claims it.
    near: BTreeMap<Partition, UnixMs>,
}

/// When to look again.
enum Next {
    /// At once: there was more than a claim takes.
    Now,
    /// All partitions after this; sooner if something due before the end of it is stored, or, where a route's window
    /// left something out, when one has room.
    In(Duration),
    /// As was said after the last look at all of them.
    AsBefore,
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
    /// Looks until draining begins.
    async fn turn(&mut self) {
        let shard = self.shard.clone();
        if shard.number == 0 && mutants::shard_hangs() {
            std::future::pending::<()>().await;
        }
        let mut at = shard.partitions.clone();
        while !shard.shutdown.is_draining() {
            let next = self.round(&at).await;
            shard.cluster.round(shard.number, shard.mono_us());
            at = tokio::select! {
                () = shard.shutdown.draining() => continue,
                at = self.rest(next) => at,
            };
        }
        // What comes of the last claims is given back, or left to expire: nothing is to be said of it here.
        while self.claims.next().await.is_some() {}
    }

    /// One look and its claims.
    async fn round(&mut self, partitions: &[Partition]) -> Next {
        match self.look(partitions).await {
            Ok(next) => {
                self.failing = false;
                next
            }
            Err(why) => {
                if !self.failing {
                    warn!(shard = self.shard.number, error = %why, "cannot claim; trying on");
                }
                self.failing = true;
                self.starved = false;
                Next::In(LOOK_AGAIN)
            }
        }
    }

    async fn look(&mut self, partitions: &[Partition]) -> Result<Next, StoreError> {
        let shard = self.shard.clone();
        let lookahead = shard.config.lookahead.as_millis() as i64;
        let all = partitions.len() == shard.partitions.len();
        // What this replica's own clock would not call due for long is better claimed by another.
        let lookahead = lookahead - shard.behind_ms();
        let look = Look { number: shard.table.lock().begin_look(), began: shard.store.clock().now() };
        let until = look.began.plus(lookahead);
        if all {
            // What is stored from here on rings the bell again.
            shard.store.wake().take(shard.number);
            for &p in &shard.partitions {
                if let Some(due) = shard.store.wake().soon(p, until.plus(LOOK.as_millis() as i64)) {
                    self.near.insert(p, due);
                }
            }
        }
        // Only now: a bell that nobody has answered would have the next look begin at once, for ever.
        if shard.store.is_replaced() {
            return Ok(Next::In(LOOK_AGAIN));
        }
        let near = self.near.keys().copied().collect();
        if all {
            self.near.retain(|_, due| *due > until);
        }
        let overdue = look.began.plus(-OVERDUE_MS);
        let sight = Sight { owned: self.cluster.owned_for_now(), near, until, overdue };
        let looked = self.heads(partitions, &sight).await?;
        self.starved &= !all;
        let Requests { claims, starved, mut more } = self.requests(&looked, &sight);
        for request in claims {
            self.busy.insert(request.partition);
            let (shard, of) = (shard.clone(), Claimed::Unordered(request.partition));
            self.claims.push(Box::pin(async move { (of, claim(&shard, &request).await) }));
        }
        let ordered = self.claim_in_order(&looked, look, &sight);
        self.starved |= starved | ordered.starved;
        more |= ordered.more;
        more |= self.claimed().await?;
        if more {
            return Ok(Next::Now);
        }
        if !all {
            return Ok(Next::AsBefore);
        }
        Ok(Next::In(sight.rest(&looked.heads, shard.store.clock().now(), lookahead)))
    }

    /// Waits for the claims on their way, some time at most. Answers whether there may be more.
    async fn claimed(&mut self) -> Result<bool, StoreError> {
        let (mut more, mut failed) = (false, None);
        let mut end = std::pin::pin!(tokio::time::sleep(LOOK_AGAIN));
        loop {
            tokio::select! {
                done = self.claims.next() => match done {
                    Some((of, done)) => {
                        self.has_ended(&of);
                        match done {
                            Ok(full) => more |= full,
                            Err(why) => failed = Some(why),
                        }
                    }
                    None => break,
                },
                () = &mut end => break,
            }
        }
        failed.map_or(Ok(more), Err)
    }

    fn has_ended(&mut self, of: &Claimed) {
        if let Claimed::Unordered(p) = of {
            self.busy.remove(p);
        }
    }

    /// A claim per partition that has something due that may be served. What room a route has is shared among
    /// its shelves.
    fn requests(&self, looked: &HeadsSeen, sight: &Sight) -> Requests {
        let pauses = self.shard.store.pauses();
        let mut of_route: BTreeMap<&str, Vec<&Head>> = BTreeMap::new();
        for head in looked.heads.iter().filter(|h| sight.takes(h) && !self.busy.contains(&h.partition)) {
            of_route.entry(head.route()).or_default().push(head);
        }
        let mut requests = Requests { claims: Vec::new(), starved: false, more: false };
        let mut of_partition: BTreeMap<Partition, Vec<(&Head, u32)>> = BTreeMap::new();
        for (route, mut heads) in of_route {
            let Some(served) = self.shard.routes.get(route).filter(|served| !served.route.policy.ordered)
            else {
                continue;
            };
            // It stays where it is, and nobody waits for it: a paused route's head is in the past for long.
            if !pauses.may_publish(route) {
                continue;
            }
            let Some((room, shelves)) = served.room(self.shard.mono_us()) else {
                requests.starved = true;
                continue;
            };
            if heads.len() > shelves {
                heads.sort_by_key(|head| head.due);
                heads.truncate(shelves);
                requests.more = true;
            }
            let share = (room / heads.len() as i64).max(1) as u32;
            requests.more |= heads.iter().any(|head| looked.beyond.contains_key(&head.partition_route()));
            for head in heads {
                of_partition.entry(head.partition).or_default().push((head, share));
            }
        }
        for (partition, mut shelves) in of_partition {
            shelves.sort_by_key(|(head, _)| head.due);
            let shelves = shelves.into_iter().map(|(head, share)| (head.due_set.clone(), share)).collect();
            requests.claims.push(self.request(partition, shelves));
        }
        requests
    }

    fn request(&self, partition: Partition, shelves: Vec<(String, u32)>) -> ClaimRequest {
        ClaimRequest {
            partition,
            due_sets: shelves,
            lookahead_ms: self.shard.config.lookahead.as_millis() as i64 - self.shard.behind_ms(),
            lease_ms: self.shard.lease_ms(),
            max_bundles: BUNDLES,
        }
    }

    /// Waits for the next look; answers at which partitions.
    async fn rest(&mut self, next: Next) -> Vec<Partition> {
        let shard = self.shard.clone();
        match next {
            Next::Now => return shard.partitions.clone(),
            Next::In(pause) => {
                // With nothing to do it rests as others do.
                let pause = if pause == LOOK { until_tick(LOOK) } else { pause };
                self.next_us = shard.mono_us() + pause.as_micros() as i64;
            }
            Next::AsBefore => {}
        }
        let lookahead = shard.config.lookahead.as_millis() as i64;
        let wake_until = |now: UnixMs, left: Duration| now.plus(left.as_millis() as i64 + MARGIN_MS);
        loop {
            let left = Duration::from_micros((self.next_us - shard.mono_us()).max(0) as u64);
            if left.is_zero() {
                return shard.partitions.clone();
            }
            let now = shard.store.clock().now();
            // What the next look would still claim in time is left to it.
            if shard.store.wake().peek(shard.number).is_some_and(|due| due <= wake_until(now, left)) {
                return shard.partitions.clone();
            }
            // Something became due within the look-ahead: look again soon, not when the pause ends.
            let soon = Duration::from_millis((lookahead / 4).max(1) as u64);
            let near = shard.store.wake().peek(shard.number).is_some_and(|due| due <= now.plus(lookahead));
            let left = if near { left.min(soon) } else { left };
            let turn = self.until_turn().filter(|turn| *turn < left);
            tokio::select! {
                () = shard.store.wake().rung(shard.number) => {}
                // What falls to this replica now may be overdue.
                () = self.cluster.moved() => return shard.partitions.clone(),
                // What waits of a route may be served now.
                () = self.looks.pauses.changed() => {
                    self.looks.forget();
                    return shard.partitions.clone();
                }
                // What was claimed late: the next look takes what is left there.
                Some((of, done)) = self.claims.next() => {
                    self.has_ended(&of);
                    if let Err(why) = done {
                        warn!(shard = shard.number, error = %why, "cannot claim; trying on");
                    }
                    return shard.partitions.clone();
                }
                () = shard.room.notified(), if self.starved => return shard.partitions.clone(),
                () = tokio::time::sleep(turn.unwrap_or_default()), if turn.is_some() => {
                    let due = shard.table.lock().partitions_due(shard.store.clock().now());
                    if !due.is_empty() {
                        return due;
                    }
                }
                () = tokio::time::sleep(left) => if near { return shard.partitions.clone() },
            }
        }
    }

    /// How long until something of an ordered route falls due that only a look lets go.
    fn until_turn(&self) -> Option<Duration> {
        let due = self.shard.table.lock().next_look().filter(|_| !self.failing)?;
        let until_us = self.shard.store.clock().until_due_us(due).clamp(0, LOOK.as_micros() as i64);
        Some(Duration::from_micros(until_us as u64).max(PACE))
    }
}

/// One partition's claim. Returns whether there may be more to take.
async fn claim(shard: &Arc<Shard>, request: &ClaimRequest) -> Result<bool, StoreError> {
    // Taken before the claim is sent: the deadline in the store can only be later.
    let lease_until_us = shard.mono_us() + shard.relied_on_us();
    let measured = shard.store.claim_measured(request).await?;
    let messages: usize = measured.iter().map(|one| one.claimed.claim.id.count()).sum();
    let allowed: u32 = request.due_sets.iter().map(|(_, messages)| messages).sum();
    let full = measured.len() >= request.max_bundles || messages + BUNDLE_MESSAGES > allowed as usize;
    let mut reading =
        Reading::begin(shard, request.partition, measured, Wanted::WhatFits, lease_until_us).await;
    while let Some(read) = reading.next().await {
        let mut items = Vec::new();
        for (one, room) in read? {
            if let Taken::Held(item) = accept::take(shard, one, room, reading.lease_until_us()).await {
                items.extend(item);
            }
        }
        shard.wheel.add(items);
    }
    Ok(full && reading.left().is_none())
}
