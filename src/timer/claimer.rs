//! The claimer polls the heads of all partitions of its shard in one round trip, claims the bundles that are due
//! within the lookahead, and hands them to the wheel. Once a second it polls the partitions of other replicas too,
//! and claims what is overdue there.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tracing::warn;

use super::Shard;
use super::claim_scope::{ClaimScope, POLL_INTERVAL};
use super::credit::Grant;
use super::key_order::rules::StorePoll;
use super::partition_claim::PartitionClaim;
use super::polling::PollHistory;
use crate::cluster::Cluster;
use crate::domain::{Partition, UnixMs};
use crate::lifecycle::until_tick;
use crate::mutants;
use crate::store::{ClaimRequest, Head, HeadsSeen, StoreError};

/// Longest time between two polls after a failed one, and while a claim is on its way. One claim that hangs must not
/// delay the others beyond the lookahead.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// A wake-up for a message due later than this after the next poll does not cause an earlier poll.
const WAKE_MARGIN_MS: i64 = 20;
/// Shortest time between two polls for the sake of key queues.
const MIN_POLL_GAP: Duration = Duration::from_millis(1);
/// A bundle overdue by this much is claimed by any replica that sees it. Its owner's process may live while the
/// owner's shard hangs.
const OVERDUE_AFTER_MS: i64 = 2000;
/// Bundles that one claim takes from one partition at most.
pub(super) const MAX_CLAIM_BUNDLES: usize = 200;
/// Longest wait for the store while draining. A claim whose answer is lost is published only after its deadline.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs until draining begins. Claims on their way at that moment are still accepted, so that the settler can return
/// them.
pub(super) async fn run(shard: Arc<Shard>) {
    let mut claimer = Claimer {
        shard: shard.clone(),
        cluster: shard.cluster.clone(),
        claims: FuturesUnordered::new(),
        busy: BTreeSet::new(),
        failing: false,
        history: PollHistory::new(shard.store.pauses()),
        next_us: 0,
        waits: BTreeSet::new(),
        turn: 0,
        near: BTreeMap::new(),
    };
    let timeout = async {
        shard.shutdown.draining().await;
        tokio::time::sleep(DRAIN_TIMEOUT).await;
    };
    tokio::select! {
        () = claimer.run() => {}
        () = timeout => {}
        () = shard.shutdown.forced() => {}
    }
    shard.claiming_ended.cancel();
}

/// One claim: of the unordered routes in a partition, or of one ordered route. Yields whether there may be more to
/// claim.
pub(super) type ClaimFuture =
    Pin<Box<dyn Future<Output = (ClaimKind, Result<bool, StoreError>)> + Send>>;

/// The kind of a claim.
pub(super) enum ClaimKind {
    Unordered(Partition),
    Ordered,
}

pub(super) struct Claimer {
    pub(super) shard: Arc<Shard>,
    cluster: Cluster,
    /// Claims on their way. Claims at a node that is away may take long; the others do not wait for them.
    pub(super) claims: FuturesUnordered<ClaimFuture>,
    /// Partitions with a claim of unordered routes on its way. There is one at a time.
    pub(super) busy: BTreeSet<Partition>,
    pub(super) history: PollHistory,
    failing: bool,
    /// Monotonic microseconds of the next poll of all partitions.
    next_us: i64,
    /// Routes with something due for which this shard waits for credit.
    pub(super) waits: BTreeSet<String>,
    /// Counts the polls: whose due sets come first in the next claims.
    turn: usize,
    /// Partitions in which this process stored a message that is due before their owner is sure to poll, with that
    /// due time. Nobody wakes the owner, so the process that stored the message claims it.
    near: BTreeMap<Partition, UnixMs>,
}

/// The time of the next poll.
enum NextPoll {
    /// At once: more was due than one claim takes.
    Now,
    /// All partitions, after this wait. The wait ends early if a message due before its end is stored, or if the shard
    /// is offered credit that it waits for.
    In(Duration),
    /// At the time that the last poll of all partitions has set.
    AsBefore,
}

/// The claims that follow from one poll.
#[derive(Default)]
struct ClaimRequests {
    claims: Vec<PartitionClaim>,
    /// A route's credit left some of its due sets to the next poll.
    more: bool,
}

/// The due sets to claim from in one partition.
#[derive(Default)]
struct PartitionHeads<'a> {
    /// Each with the messages to claim from it.
    heads: Vec<(&'a Head, u32)>,
    /// The credit of each route.
    grants: BTreeMap<String, Grant>,
}

impl Claimer {
    /// Polls until draining begins.
    async fn run(&mut self) {
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
        // The settler returns what these last claims bring, or it expires. Their errors need no log line.
        while self.claims.next().await.is_some() {}
    }

    /// Makes one poll and its claims.
    async fn round(&mut self, partitions: &[Partition]) -> NextPoll {
        match self.poll(partitions).await {
            Ok(next) => {
                self.failing = false;
                next
            }
            Err(why) => {
                if !self.failing {
                    warn!(shard = self.shard.number, error = %why, "claim failed; retrying");
                }
                self.failing = true;
                NextPoll::In(RETRY_INTERVAL)
            }
        }
    }

    async fn poll(&mut self, partitions: &[Partition]) -> Result<NextPoll, StoreError> {
        let shard = self.shard.clone();
        let all = partitions.len() == shard.partitions.len();
        let horizon_ms = shard.claim_horizon_ms();
        let poll = StorePoll {
            number: shard.table.lock().begin_poll(),
            began: shard.store.clock().now(),
        };
        let until = poll.began.plus(horizon_ms);
        if all {
            // A message stored from here on wakes this shard again.
            shard.store.wake().take(shard.number);
            for &p in &shard.partitions {
                if let Some(due) = shard
                    .store
                    .wake()
                    .soon(p, until.plus(POLL_INTERVAL.as_millis() as i64))
                {
                    self.near.insert(p, due);
                }
            }
        }
        // Check this after `take()`: an unconsumed wake-up would make the claimer spin.
        if shard.store.is_replaced() {
            return Ok(NextPoll::In(RETRY_INTERVAL));
        }
        let near = self.near.keys().copied().collect();
        if all {
            self.near.retain(|_, due| *due > until);
        }
        let overdue = poll.began.plus(-OVERDUE_AFTER_MS);
        let scope = ClaimScope {
            owned: self.cluster.owned_for_now(),
            near,
            until,
            overdue,
        };
        let (looked, late_claims) = self.heads_while_claiming(partitions, &scope).await;
        let looked = looked?;
        let waited = if all {
            std::mem::take(&mut self.waits)
        } else {
            BTreeSet::new()
        };
        let ClaimRequests { claims, mut more } = self.requests(&looked, &scope);
        for claim in claims {
            let partition = claim.request.partition;
            self.busy.insert(partition);
            let shard = shard.clone();
            self.claims.push(Box::pin(async move {
                (ClaimKind::Unordered(partition), claim.make(&shard).await)
            }));
        }
        more |= self.claim_in_order(&looked, poll, &scope);
        for route in waited.difference(&self.waits) {
            if let Some(served) = shard.routes.get(route) {
                served.credit.withdraw(shard.number);
            }
        }
        more |= late_claims?;
        more |= self.await_claims().await?;
        if more {
            return Ok(NextPoll::Now);
        }
        if !all {
            return Ok(NextPoll::AsBefore);
        }
        Ok(NextPoll::In(scope.rest(
            &looked.heads,
            shard.store.clock().now(),
            horizon_ms,
        )))
    }

    /// Asks for the heads. Claims on their way go on meanwhile: they are extended only while they are polled. Answers
    /// for those that ended, too, whether there may be more to claim.
    async fn heads_while_claiming(
        &mut self,
        partitions: &[Partition],
        scope: &ClaimScope,
    ) -> (Result<HeadsSeen, StoreError>, Result<bool, StoreError>) {
        let mut ended = Vec::new();
        let looked = {
            let looking = self
                .history
                .heads(&self.shard, &self.busy, partitions, scope);
            let mut looking = std::pin::pin!(looking);
            loop {
                tokio::select! {
                    looked = &mut looking => break looked,
                    Some(claim) = self.claims.next() => ended.push(claim),
                }
            }
        };
        let mut more = Ok(false);
        for (kind, result) in ended {
            self.claim_ended(&kind);
            more = more.and_then(|more| result.map(|full| more | full));
        }
        (looked, more)
    }

    /// Waits for the claims on their way, for a bounded time. Returns whether there may be more to claim.
    async fn await_claims(&mut self) -> Result<bool, StoreError> {
        let mut more = false;
        let mut failed = None;
        let mut end = std::pin::pin!(tokio::time::sleep(RETRY_INTERVAL));
        loop {
            tokio::select! {
                ended = self.claims.next() => match ended {
                    Some((kind, result)) => {
                        self.claim_ended(&kind);
                        match result {
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

    fn claim_ended(&mut self, kind: &ClaimKind) {
        if let ClaimKind::Unordered(p) = kind {
            self.busy.remove(p);
        }
    }

    /// Makes one claim for each partition that has something due. A route's credit is shared among its due sets.
    fn requests(&mut self, looked: &HeadsSeen, scope: &ClaimScope) -> ClaimRequests {
        let shard = self.shard.clone();
        let pauses = shard.store.pauses();
        let mut of_route: BTreeMap<&str, Vec<&Head>> = BTreeMap::new();
        for head in looked
            .heads
            .iter()
            .filter(|h| scope.may_claim(h) && !self.busy.contains(&h.partition))
        {
            of_route.entry(head.route()).or_default().push(head);
        }
        self.turn = self.turn.wrapping_add(1);
        let mut requests = ClaimRequests::default();
        let mut of_partition: BTreeMap<Partition, PartitionHeads> = BTreeMap::new();
        for (route, mut heads) in of_route {
            let Some(served) = shard
                .routes
                .get(route)
                .filter(|served| !served.route.policy.ordered)
            else {
                continue;
            };
            // The bundles of a paused route stay where they are, and wait for no credit.
            if !pauses.may_publish(route) {
                continue;
            }
            let Some(mut grant) = served.credit.ask(shard.number, heads.len()) else {
                self.waits.insert(route.to_owned());
                continue;
            };
            if heads.len() > grant.due_sets {
                heads.sort_by_key(|head| head.due);
                heads.truncate(grant.due_sets);
                requests.more = true;
            }
            requests.more |= heads
                .iter()
                .any(|head| looked.beyond.contains_key(&head.partition_route()));
            heads.sort_by_key(|head| head.partition);
            for heads in heads.chunk_by(|one, other| one.partition == other.partition) {
                let Some(first) = heads.first() else { continue };
                let claimed = of_partition.entry(first.partition).or_default();
                let due_sets = heads.iter().map(|&head| (head, grant.messages_each));
                claimed.heads.extend(due_sets);
                let part = grant.part(heads.len());
                claimed.grants.insert(route.to_owned(), part);
            }
        }
        for (partition, PartitionHeads { mut heads, grants }) in of_partition {
            // By due time, but each route comes first in turn: one with many small bundles would take every place.
            let routes: BTreeSet<&str> = heads.iter().map(|(head, _)| head.route()).collect();
            let first = routes.iter().nth(self.turn % routes.len().max(1)).copied();
            heads.sort_by_key(|(head, _)| (Some(head.route()) != first, head.due));
            let due_sets = heads
                .into_iter()
                .map(|(head, messages)| (head.due_set.clone(), messages))
                .collect();
            requests.claims.push(PartitionClaim {
                request: self.request(partition, due_sets),
                grants,
            });
        }
        requests
    }

    fn request(&self, partition: Partition, due_sets: Vec<(String, u32)>) -> ClaimRequest {
        ClaimRequest {
            partition,
            due_sets,
            lookahead_ms: self.shard.claim_horizon_ms(),
            lease_ms: self.shard.lease_ms(),
            max_bundles: MAX_CLAIM_BUNDLES,
        }
    }

    /// Waits for the next poll. Returns the partitions to poll.
    async fn rest(&mut self, next: NextPoll) -> Vec<Partition> {
        let shard = self.shard.clone();
        match next {
            NextPoll::Now => return shard.partitions.clone(),
            NextPoll::In(pause) => {
                // An idle claimer uses the shared ticks.
                let pause = if pause == POLL_INTERVAL {
                    until_tick(POLL_INTERVAL)
                } else {
                    pause
                };
                self.next_us = shard.mono_us() + pause.as_micros() as i64;
            }
            NextPoll::AsBefore => {}
        }
        let horizon_ms = shard.claim_horizon_ms();
        loop {
            let left = Duration::from_micros((self.next_us - shard.mono_us()).max(0) as u64);
            if left.is_zero() {
                return shard.partitions.clone();
            }
            let now = shard.store.clock().now();
            // A wake-up that the next poll would serve in time does not cause an earlier one.
            let served_until = now.plus(left.as_millis() as i64 + WAKE_MARGIN_MS);
            if shard
                .store
                .wake()
                .peek(shard.number)
                .is_some_and(|due| due <= served_until)
            {
                return shard.partitions.clone();
            }
            // A message became due within the claim horizon. Poll soon instead of at the end of the wait.
            let soon = Duration::from_millis((horizon_ms / 4).max(1) as u64);
            let is_near = shard
                .store
                .wake()
                .peek(shard.number)
                .is_some_and(|due| due <= now.plus(horizon_ms));
            let left = if is_near { left.min(soon) } else { left };
            let key_poll = self.until_key_poll().filter(|wait| *wait < left);
            tokio::select! {
                () = shard.store.wake().rung(shard.number) => {}
                // Bundles that now belong to this replica may be overdue.
                () = self.cluster.moved() => return shard.partitions.clone(),
                // The bundles of a resumed route may be claimed now.
                () = self.history.pauses.changed() => {
                    self.history.forget();
                    return shard.partitions.clone();
                }
                // A claim ended late. The next poll takes what it left.
                Some((kind, result)) = self.claims.next() => {
                    self.claim_ended(&kind);
                    if let Err(why) = result {
                        warn!(shard = shard.number, error = %why, "claim failed; retrying");
                    }
                    return shard.partitions.clone();
                }
                () = shard.credit_offered.notified() => return shard.partitions.clone(),
                () = tokio::time::sleep(key_poll.unwrap_or_default()), if key_poll.is_some() => {
                    let due = shard.table.lock().partitions_due(shard.store.clock().now());
                    if !due.is_empty() {
                        return due;
                    }
                }
                () = tokio::time::sleep(left) => if is_near { return shard.partitions.clone() },
            }
        }
    }

    /// The wait until a key queue needs a poll.
    fn until_key_poll(&self) -> Option<Duration> {
        let due = self
            .shard
            .table
            .lock()
            .next_poll()
            .filter(|_| !self.failing)?;
        let until_us = self
            .shard
            .store
            .clock()
            .until_due_us(due)
            .clamp(0, POLL_INTERVAL.as_micros() as i64);
        Some(Duration::from_micros(until_us as u64).max(MIN_POLL_GAP))
    }
}
