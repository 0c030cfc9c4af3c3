//! The claimer's part for ordered routes: exclusive claims, and the polls that let messages leave.
//!
//! A message of an ordered route may leave once a poll that began after its due time has left nothing before it in
//! the store. Therefore the partitions concerned are polled at each due time of such a message. Those polls are at
//! least a millisecond apart; messages that fall due in between share one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::rules::{KeyQueue, StorePoll};
use crate::domain::{Partition, RouteName, UnixMs};
use crate::store::{
    ClaimRequest, Head, HeadsSeen, OrderPosition, OrderedAnswer, OrderedRequest, StoreError,
};
use crate::timer::accept::{self, AcceptOutcome};
use crate::timer::claim_scope::ClaimScope;
use crate::timer::claim_table::ClaimSlots;
use crate::timer::claimed::KeyQueueId;
use crate::timer::claimer::{ClaimKind, Claimer, MAX_CLAIM_BUNDLES};
use crate::timer::credit::Grant;
use crate::timer::read_claimed::{ClaimReader, ReadPolicy};
use crate::timer::{ServedRoute, Shard};

/// Longest wait before another holder is asked again, microseconds. The holder may give up before its time is over.
const HOLDER_RETRY_US: i64 = 500_000;

/// A key queue, with the due sets that hold something due for it.
struct DueKeyQueue<'a> {
    served: &'a Arc<ServedRoute>,
    id: KeyQueueId,
    heads: Vec<&'a Head>,
    /// The due time of the first bundle in further due sets.
    beyond: Option<UnixMs>,
}

impl DueKeyQueue<'_> {
    /// The due time of the first bundle.
    fn first(&self) -> UnixMs {
        self.heads
            .iter()
            .map(|head| head.due)
            .min()
            .unwrap_or_default()
    }

    /// Notes that nothing of it is claimed, because the route has no credit. Messages before its first bundle may still
    /// leave.
    fn note_unclaimed<'s>(
        &self,
        slots: &'s mut ClaimSlots,
        poll: StorePoll,
    ) -> Option<&'s mut KeyQueue> {
        let key_queue = slots.key_queues.get_mut(&self.id)?;
        key_queue.polled(
            poll,
            Some(OrderPosition {
                due: self.first(),
                sequence: 0,
            }),
        );
        Some(key_queue)
    }
}

impl Claimer {
    /// Begins the claims of ordered routes, and tells the key queues of the polled partitions how far they are
    /// covered. Returns whether there may be more to claim.
    pub(in crate::timer) fn claim_in_order(
        &mut self,
        looked: &HeadsSeen,
        poll: StorePoll,
        scope: &ClaimScope,
    ) -> bool {
        let mut more = false;
        let shard = self.shard.clone();
        for served in shard
            .routes
            .values()
            .filter(|served| served.route.policy.ordered)
        {
            let due = self.due(served, looked, poll, scope);
            for (due, grant) in self.within_credit(served, due, poll, &mut more) {
                let messages = grant.messages_each;
                let claim = KeyQueueClaim::new(&shard, due, messages, poll, scope.until);
                self.claims.push(Box::pin(async move {
                    (ClaimKind::Ordered, claim.make(grant).await)
                }));
            }
        }
        if !shard.table.lock().key_queues.is_empty() {
            shard.key_queues_changed.notify_one();
        }
        more
    }

    /// Finds the key queues of a route that have something due. The others are told that they are covered.
    fn due<'a>(
        &self,
        served: &'a Arc<ServedRoute>,
        looked: &'a HeadsSeen,
        poll: StorePoll,
        scope: &ClaimScope,
    ) -> Vec<DueKeyQueue<'a>> {
        let name = &served.route.name;
        let mut heads: BTreeMap<Partition, Vec<&Head>> = BTreeMap::new();
        for head in looked
            .heads
            .iter()
            .filter(|h| h.due <= scope.until && h.route() == name.as_str())
        {
            heads.entry(head.partition).or_default().push(head);
        }
        let paused = !self.shard.store.pauses().may_publish(name.as_str());
        let now = self.shard.mono();
        let mut slots = self.shard.table.lock();
        let mut due = Vec::new();
        for &p in &looked.partitions {
            let id = (name.clone(), p);
            let heads = heads.remove(&p).unwrap_or_default();
            let key_queue = slots.key_queues.get_mut(&id);
            if paused {
                // The claimed messages go back to the store, where they can be cancelled.
                if let Some(key_queue) = key_queue {
                    key_queue.closing = true;
                }
            } else if heads.is_empty() {
                if let Some(key_queue) = key_queue {
                    key_queue.found_nothing(poll);
                    // The queue was begun for an overdue or near bundle in another replica's partition, and nothing
                    // more is due there.
                    key_queue.closing |= key_queue.bundles == 0
                        && !key_queue.claiming
                        && !scope.serves(p, name.as_str());
                }
            } else if key_queue.as_ref().map_or_else(
                // Another replica should hold it. Claim it only where that replica does not.
                || heads.iter().any(|head| scope.may_claim(head)),
                |key_queue| {
                    let waits = key_queue.waits_until.is_some_and(|until| now < until);
                    !key_queue.closing && !key_queue.claiming && !waits
                },
            ) {
                let beyond = looked.beyond.get(&(p, name.to_string())).copied();
                due.push(DueKeyQueue {
                    served,
                    id,
                    heads,
                    beyond,
                });
            }
        }
        due
    }

    /// Selects the key queues for which the route has credit, each with its part.
    fn within_credit<'a>(
        &mut self,
        served: &ServedRoute,
        mut due: Vec<DueKeyQueue<'a>>,
        poll: StorePoll,
        more: &mut bool,
    ) -> Vec<(DueKeyQueue<'a>, Grant)> {
        if due.is_empty() {
            return Vec::new();
        }
        let Some(mut grant) = served.credit.ask(self.shard.number, due.len()) else {
            self.waits.insert(served.route.name.to_string());
            let mut slots = self.shard.table.lock();
            // Claim one bundle more: messages that wait for an unclaimed one would never give their credit back.
            due.retain(|due| {
                due.note_unclaimed(&mut slots, poll)
                    .is_some_and(|key_queue| key_queue.holds_stuck())
            });
            *more |= !due.is_empty();
            return due
                .into_iter()
                .map(|due| (due, served.credit.force()))
                .collect();
        };
        if due.len() > grant.due_sets {
            due.sort_by_key(DueKeyQueue::first);
            let mut slots = self.shard.table.lock();
            for due in due.split_off(grant.due_sets) {
                due.note_unclaimed(&mut slots, poll);
            }
            *more = true;
        }
        due.into_iter().map(|due| (due, grant.part(1))).collect()
    }
}

/// The claim of one key queue.
struct KeyQueueClaim {
    shard: Arc<Shard>,
    route: RouteName,
    id: KeyQueueId,
    poll: StorePoll,
    until: UnixMs,
    /// See [`DueKeyQueue::beyond`].
    beyond: Option<OrderPosition>,
    request: ClaimRequest,
}

impl KeyQueueClaim {
    /// A claim of at most `messages` messages from each due set.
    fn new(
        shard: &Arc<Shard>,
        due: DueKeyQueue<'_>,
        messages: u32,
        poll: StorePoll,
        until: UnixMs,
    ) -> Self {
        let DueKeyQueue {
            served,
            id,
            mut heads,
            beyond,
        } = due;
        let beyond = beyond.map(|due| OrderPosition { due, sequence: 0 });
        heads.sort_by_key(|head| head.due);
        let request = ClaimRequest {
            partition: id.1,
            due_sets: heads
                .into_iter()
                .map(|head| (head.due_set.clone(), messages))
                .collect(),
            lookahead_ms: shard.claim_horizon_ms(),
            lease_ms: shard.lease_ms(),
            max_bundles: MAX_CLAIM_BUNDLES,
        };
        Self {
            shard: shard.clone(),
            route: served.route.name.clone(),
            id,
            poll,
            until,
            beyond,
            request,
        }
    }

    /// Makes the claim. Returns whether there may be more to claim.
    async fn make(self, mut grant: Grant) -> Result<bool, StoreError> {
        let Some((request, policy, mut guard)) = self.begin() else {
            return Ok(false);
        };
        let shard = &self.shard;
        let lease_end = shard.lease_end(shard.mono());
        let taken = match shard.store.claim_in_order_unread(&request).await? {
            OrderedAnswer::Wait(ms) => {
                let wait_us = (ms as i64).saturating_mul(1000).min(HOLDER_RETRY_US);
                guard.end(|key_queue| key_queue.waits_until = Some(shard.mono().plus(wait_us)));
                return Ok(false);
            }
            OrderedAnswer::Lost => {
                guard.end(|key_queue| key_queue.closing = true);
                return Ok(false);
            }
            OrderedAnswer::Claimed(taken) => taken,
        };
        let mut held = Vec::with_capacity(taken.claimed.len());
        for one in taken.claimed {
            let credit = grant.hold(one.claim.id.count());
            held.push((one, credit));
        }
        drop(grant);
        let mut reader = ClaimReader::begin(shard, self.id.1, held, policy, lease_end).await?;
        let mut claimed = Vec::new();
        while let Some(read) = reader.next().await {
            claimed.extend(read?);
        }
        // The queue learns the held keys no earlier than the claimed messages: nothing may leave in between.
        if let Some(held_keys) = taken.held_keys {
            guard.key_queue(|key_queue| key_queue.took_over(held_keys));
        }
        let mut items = Vec::new();
        let mut is_stored_again = false;
        let mut is_left_claimed = reader.has_orphans();
        for (one, credit) in claimed {
            match accept::accept(shard, one, credit, reader.lease_end()).await {
                AcceptOutcome::Accepted(item) => items.extend(item),
                AcceptOutcome::Dead => {}
                AcceptOutcome::StoredAgain => is_stored_again = true,
                // Ordered routes set nothing aside, so no target of theirs is full.
                AcceptOutcome::LeftClaimed | AcceptOutcome::TargetFull(..) => {
                    is_left_claimed = true;
                }
            }
        }
        shard.wheel.add(items);
        let refused = reader.left().is_some();
        // A bundle that was left in these due sets comes before the other due sets.
        let left = reader.left().or(taken.left).or(self.beyond);
        guard.end(|key_queue| {
            if is_left_claimed {
                key_queue.give_up();
            } else if is_stored_again {
                key_queue.forget_poll();
            } else {
                key_queue.polled(self.poll, left);
            }
        });
        Ok(!refused && (left.is_some() || is_stored_again))
    }

    /// Builds the request. `None` if the queue closes, or if another claim for it is on its way.
    fn begin(&self) -> Option<(OrderedRequest, ReadPolicy, ClaimGuard<'_>)> {
        let mut slots = self.shard.table.lock();
        let key_queue = slots
            .key_queues
            .entry(self.id.clone())
            .or_insert_with(|| KeyQueue::new(self.shard.store.unique()));
        if key_queue.closing || key_queue.claiming {
            return None;
        }
        key_queue.claiming = true;
        // The claimed messages wait for one in the store, so the first bundle has to be read even if it does not fit.
        let policy = if key_queue.holds_stuck() {
            ReadPolicy::FirstForced
        } else {
            ReadPolicy::FittingInOrder
        };
        let request = OrderedRequest {
            claim: self.request.clone(),
            until: self.until,
            route: self.route.clone(),
            owner: key_queue.holder.clone(),
            may_take: key_queue.bundles == 0,
            longest_lease_ms: self.shard.longest_lease_ms(),
            freed: key_queue.take_freed(),
        };
        Some((
            request,
            policy,
            ClaimGuard {
                shard: &self.shard,
                id: self.id.clone(),
                ended: false,
            },
        ))
    }
}

/// A claim on its way. If it is dropped or fails, the store may have made the claim, so the queue gives up.
struct ClaimGuard<'a> {
    shard: &'a Shard,
    id: KeyQueueId,
    ended: bool,
}

impl ClaimGuard<'_> {
    fn key_queue(&self, change: impl FnOnce(&mut KeyQueue)) {
        if let Some(key_queue) = self.shard.table.lock().key_queues.get_mut(&self.id) {
            change(key_queue);
        }
    }

    fn end(&mut self, change: impl FnOnce(&mut KeyQueue)) {
        self.ended = true;
        self.key_queue(|key_queue| {
            key_queue.claiming = false;
            change(key_queue);
        });
        self.shard.key_queues_changed.notify_one();
    }
}

impl Drop for ClaimGuard<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.key_queue(|key_queue| {
                key_queue.claiming = false;
                key_queue.give_up();
            });
            self.shard.key_queues_changed.notify_one();
        }
    }
}
