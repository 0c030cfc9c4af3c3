//! The partitions of a topic: which can be written, and the messages that wait for each or are in the producer.
//!
//! A partition without a leader, or with too few in-sync replicas, has an *obstacle*: nothing is handed over for it.
//! Its messages wait in their order, and those of other partitions go on. Of the window of the lane a partition holds
//! no more than is free, and a small minimum whatever the others hold.

use std::collections::{BTreeSet, VecDeque};

use super::suspects::SuspectGroups;
use crate::broker::kafka::PartitionState;
use crate::domain::{Refusal, Verdict};
use crate::egress::Publication;
use crate::mutants::{self, Mutant};

/// Most messages of one lane in the producer.
const WINDOW_MESSAGES: usize = 20_000;
/// Most bytes of one lane in the producer; one message may go beyond.
const WINDOW_BYTES: usize = 64 << 20;
/// Messages and bytes that a partition may have in the producer whatever the others have there.
const MIN_MESSAGES: usize = 64;
const MIN_BYTES: usize = 256 << 10;
/// Most messages of one run. The sending thread spends a millisecond or two on them.
const MAX_RUN_MESSAGES: usize = 1024;
/// Delayed messages, and their bytes, that one lane holds for partitions with an obstacle while other partitions can
/// be written. The store keeps the rest: what a lane holds takes the place of other messages of its routes.
const HELD_MESSAGES: usize = 256;
const HELD_BYTES: usize = 8 << 20;
/// Time for which messages without a key go to the same partition, microseconds: so they share batches.
const STICKY_US: i64 = 10_000;

/// Bytes for which a message counts in the window of its lane.
pub(super) fn weight(publication: &Publication) -> usize {
    publication.entry().message.size()
}

/// What keeps a partition from being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    NoLeader,
    TooFewReplicas { in_sync: usize, needed: usize },
}

/// Knowledge of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PartitionHealth {
    #[default]
    Writable,
    /// Replicas are out of sync, and nobody knows how many must be in sync. The partition is written to.
    Weakened,
    Blocked(Obstacle),
}

impl PartitionHealth {
    fn of(partition: PartitionState, least_replicas: Option<usize>) -> Self {
        let PartitionState {
            has_leader,
            in_sync,
            replicas,
        } = partition;
        if !has_leader {
            return Self::Blocked(Obstacle::NoLeader);
        }
        match least_replicas {
            _ if in_sync >= replicas => Self::Writable,
            None => Self::Weakened,
            // Kafka never asks for more replicas than a partition has.
            Some(least) if in_sync >= least.min(replicas) => Self::Writable,
            Some(needed) => Self::Blocked(Obstacle::TooFewReplicas { in_sync, needed }),
        }
    }
}

#[derive(Debug, Default)]
struct PartitionQueue {
    health: PartitionHealth,
    /// The last moment at which the partition was not known to be writable, monotonic microseconds.
    last_unhealthy_us: Option<i64>,
    /// Messages that found an obstacle, or no room in the window, in order.
    waiting: VecDeque<Publication>,
    suspects: SuspectGroups,
    /// Messages in the producer, or in the run that sends them there.
    in_flight: usize,
    bytes: usize,
    /// The moment of the last report, or of the hand-over of the first message in flight.
    answered_us: i64,
}

impl PartitionQueue {
    /// The number of messages that wait.
    fn len(&self) -> usize {
        self.waiting.len() + self.suspects.len()
    }

    fn obstacle(&self) -> Option<Obstacle> {
        match self.health {
            PartitionHealth::Blocked(obstacle) => Some(obstacle),
            _ => None,
        }
    }
}

/// A message with the number of its partition.
#[derive(Clone, Debug)]
pub(super) struct Addressed {
    pub(super) partition: usize,
    pub(super) publication: Publication,
}

/// Messages that go to the producer together. `suspects` says that they are a group of suspects.
#[derive(Debug)]
pub(super) struct TakenRun {
    pub(super) messages: Vec<Addressed>,
    pub(super) suspects: bool,
}

/// A change of the obstacles of a topic, for the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ObstacleChange {
    pub(super) begun: Vec<(usize, Obstacle)>,
    pub(super) ended: Vec<usize>,
}

/// The messages of one lane.
#[derive(Debug, Default)]
pub(super) struct PartitionQueues {
    /// Messages whose partition is not chosen yet, in order.
    unassigned: VecDeque<Publication>,
    /// Empty until the topic is known. It never shrinks: reports count by partition.
    partitions: Vec<PartitionQueue>,
    /// The number of partitions that the topic has.
    count: usize,
    /// Partitions with messages that wait.
    busy: BTreeSet<usize>,
    in_flight: usize,
    bytes: usize,
    /// Partition of messages without a key, until the moment beside it.
    sticky: (usize, i64),
}

impl PartitionQueues {
    pub(super) fn submit(&mut self, publications: Vec<Publication>) {
        self.unassigned.extend(publications);
    }

    /// Takes what the brokers say of the partitions.
    pub(super) fn learn(
        &mut self,
        topic: &str,
        found: &[PartitionState],
        least_replicas: Option<usize>,
        now_us: i64,
    ) -> ObstacleChange {
        if found.len() != self.count {
            self.reassign(found.len());
        }
        let mut change = ObstacleChange::default();
        for (n, (queue, &state)) in self.partitions.iter_mut().zip(found).enumerate() {
            let before = queue.obstacle();
            if queue.health != PartitionHealth::Writable {
                queue.last_unhealthy_us = Some(now_us);
            }
            queue.health = PartitionHealth::of(state, least_replicas);
            if queue.health != PartitionHealth::Writable {
                queue.last_unhealthy_us = Some(now_us);
            }
            match (before, queue.obstacle()) {
                (None, Some(obstacle)) => change.begun.push((n, obstacle)),
                (Some(_), None) => change.ended.push(n),
                _ => {}
            }
        }
        self.put_off_held(topic);
        change
    }

    /// Puts all waiting messages back in line: a topic with another number of partitions has another partition for
    /// each key.
    fn reassign(&mut self, count: usize) {
        self.count = count;
        let mut waiting = VecDeque::new();
        for queue in &mut self.partitions {
            waiting.extend(queue.suspects.drain());
            waiting.append(&mut queue.waiting);
        }
        waiting.append(&mut self.unassigned);
        self.unassigned = waiting;
        self.busy.clear();
        for queue in self.partitions.iter_mut().skip(count) {
            queue.health = PartitionHealth::Writable;
        }
        if self.partitions.len() < count {
            self.partitions.resize_with(count, PartitionQueue::default);
        }
    }

    /// The number of messages that wait or are in flight.
    pub(super) fn backlog(&self) -> usize {
        self.waiting() + self.in_flight
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The number of messages that wait.
    fn waiting(&self) -> usize {
        let busy = self.busy.iter().map(|&n| &self.partitions[n]);
        self.unassigned.len() + busy.map(PartitionQueue::len).sum::<usize>()
    }

    /// The number of messages that wait and whose partition has no obstacle.
    pub(super) fn sendable(&self) -> usize {
        let busy = self.busy.iter().map(|&n| &self.partitions[n]);
        let free = busy.filter(|queue| queue.obstacle().is_none());
        self.unassigned.len() + free.map(PartitionQueue::len).sum::<usize>()
    }

    /// Reports whether a partition is not known to be writable.
    pub(super) fn is_unhealthy(&self) -> bool {
        let mut queues = self.partitions.iter().take(self.count);
        queues.any(|queue| queue.health != PartitionHealth::Writable)
    }

    /// Reports whether no message waits.
    pub(super) fn is_empty(&self) -> bool {
        self.unassigned.is_empty() && self.busy.is_empty()
    }

    pub(super) fn has_suspects(&self) -> bool {
        self.busy
            .iter()
            .any(|&n| !self.partitions[n].suspects.is_empty())
    }

    /// Reports whether messages in flight have had no report since before this moment.
    pub(super) fn is_silent_since(&self, before_us: i64) -> bool {
        let mut queues = self.partitions.iter();
        self.in_flight > 0
            && queues.any(|queue| queue.in_flight > 0 && queue.answered_us < before_us)
    }

    /// Reports whether the partition was not known to be writable at some moment since this one.
    pub(super) fn was_unhealthy(&self, partition: usize, since_us: i64) -> bool {
        let queue = &self.partitions[partition];
        queue.health != PartitionHealth::Writable
            || queue.last_unhealthy_us.is_some_and(|last| last >= since_us)
    }

    /// The partitions with an obstacle.
    pub(super) fn obstacles(&self) -> impl Iterator<Item = (usize, Obstacle)> {
        let queues = self.partitions.iter().take(self.count).enumerate();
        queues.filter_map(|(n, queue)| Some((n, queue.obstacle()?)))
    }

    /// Reports whether no partition can be written.
    pub(super) fn is_blocked(&self) -> bool {
        self.count > 0 && self.obstacles().count() == self.count
    }

    /// Takes out all messages that wait. Those in flight stay.
    pub(super) fn drain(&mut self) -> Vec<Publication> {
        self.reassign(self.count);
        self.unassigned.drain(..).collect()
    }

    /// Takes out the messages that wait for a partition with an obstacle.
    pub(super) fn drain_blocked(&mut self) -> Vec<Publication> {
        if self.is_blocked() {
            return self.drain();
        }
        let mut drained = Vec::new();
        for &n in &self.busy {
            let queue = &mut self.partitions[n];
            if queue.obstacle().is_some() {
                drained.extend(queue.suspects.drain());
                drained.extend(queue.waiting.drain(..));
            }
        }
        self.forget_idle();
        drained
    }

    /// Keeps those waiting messages for which `keeps` returns true.
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(&Publication) -> bool) {
        for &n in &self.busy {
            self.partitions[n].suspects.retain(&mut keeps);
            self.partitions[n].waiting.retain(&mut keeps);
        }
        self.unassigned.retain(keeps);
        self.forget_idle();
    }

    /// Takes out the messages of the next run. `None` if none may go.
    pub(super) fn take(&mut self, topic: &str, now_us: i64) -> Option<TakenRun> {
        if let Some(run) = self.take_suspects(now_us) {
            return Some(run);
        }
        let mut messages = Vec::new();
        for n in self.busy.clone() {
            while messages.len() < MAX_RUN_MESSAGES
                && self.has_room(n)
                && let Some(publication) = self.partitions[n].waiting.pop_front()
            {
                self.hand_over(n, publication, now_us, &mut messages);
            }
        }
        let mut is_more_held = false;
        while messages.len() < MAX_RUN_MESSAGES
            && let Some(next) = self.unassigned.pop_front()
        {
            match self.partition_of(&next, now_us) {
                Some(n) if self.has_room(n) => self.hand_over(n, next, now_us, &mut messages),
                Some(n) => {
                    self.busy.insert(n);
                    let queue = &mut self.partitions[n];
                    is_more_held |= queue.obstacle().is_some();
                    queue.waiting.push_back(next);
                }
                None => {
                    self.unassigned.push_front(next);
                    break;
                }
            }
        }
        if is_more_held {
            self.put_off_held(topic);
        }
        self.forget_idle();
        (!messages.is_empty()).then_some(TakenRun {
            messages,
            suspects: false,
        })
    }

    /// Takes out a group of suspects, of a partition that has nothing in flight.
    fn take_suspects(&mut self, now_us: i64) -> Option<TakenRun> {
        let n = *self.busy.iter().find(|&&n| {
            let queue = &self.partitions[n];
            !queue.suspects.is_empty() && queue.in_flight == 0 && queue.obstacle().is_none()
        })?;
        let mut messages = Vec::new();
        for publication in self.partitions[n].suspects.next_group() {
            self.hand_over(n, publication, now_us, &mut messages);
        }
        Some(TakenRun {
            messages,
            suspects: true,
        })
    }

    /// Counts a message as in flight.
    fn hand_over(
        &mut self,
        partition: usize,
        publication: Publication,
        now_us: i64,
        run: &mut Vec<Addressed>,
    ) {
        let bytes = weight(&publication);
        self.in_flight += 1;
        self.bytes += bytes;
        let queue = &mut self.partitions[partition];
        if queue.in_flight == 0 {
            queue.answered_us = now_us;
        }
        queue.in_flight += 1;
        queue.bytes += bytes;
        run.push(Addressed {
            partition,
            publication,
        });
    }

    /// Counts a message as no longer in flight: it has its verdict, or comes back.
    pub(super) fn end_flight(&mut self, partition: usize, bytes: usize, now_us: i64) {
        self.in_flight -= 1;
        self.bytes -= bytes;
        let queue = &mut self.partitions[partition];
        queue.in_flight -= 1;
        queue.bytes -= bytes;
        queue.answered_us = now_us;
        if queue.in_flight == 0 {
            queue.suspects.regroup();
        }
    }

    /// Takes back a message whose batch was refused. Call it before [`Self::end_flight`] of this message.
    pub(super) fn suspect(&mut self, partition: usize, publication: Publication) {
        self.partitions[partition].suspects.refused(publication);
        self.busy.insert(partition);
    }

    /// Takes back messages that the producer had no room for, in order. Call it before [`Self::end_flight`] of these
    /// messages.
    pub(super) fn put_back(&mut self, back: Vec<Addressed>, suspects: bool) {
        for Addressed {
            partition,
            publication,
        } in back.into_iter().rev()
        {
            // The topic was made anew with fewer partitions.
            if partition >= self.count {
                self.unassigned.push_front(publication);
                continue;
            }
            let queue = &mut self.partitions[partition];
            if suspects {
                queue.suspects.put_back(publication);
            } else {
                queue.waiting.push_front(publication);
            }
            self.busy.insert(partition);
        }
    }

    /// Reports whether a message may be handed over for this partition.
    fn has_room(&self, partition: usize) -> bool {
        let queue = &self.partitions[partition];
        queue.obstacle().is_none() && queue.suspects.is_empty() && {
            let others = self.count > 1;
            is_within(
                queue.in_flight,
                self.in_flight,
                WINDOW_MESSAGES,
                MIN_MESSAGES,
                others,
            ) && is_within(queue.bytes, self.bytes, WINDOW_BYTES, MIN_BYTES, others)
        }
    }

    /// The partition of a message: by its key, or, without a key, one that can take it. `None` if there is none.
    fn partition_of(&mut self, publication: &Publication, now_us: i64) -> Option<usize> {
        if self.count == 0 {
            return None;
        }
        if let Some(key) = super::mapping::key(&publication.entry().message) {
            return Some(partition_of_key(&key, self.count));
        }
        let (sticky, until_us) = self.sticky;
        if now_us < until_us && sticky < self.count && self.has_room(sticky) {
            return Some(sticky);
        }
        let first = fastrand::usize(..self.count);
        let mut partitions = (first..self.count).chain(0..first);
        let chosen = partitions.find(|&n| self.has_room(n))?;
        self.sticky = (chosen, now_us + STICKY_US);
        Some(chosen)
    }

    /// Gives delayed messages back to the store that are beyond what the lane may hold for partitions with an obstacle.
    /// While no partition can be written there are no others in need of their place.
    fn put_off_held(&mut self, topic: &str) {
        if self.is_blocked() {
            return;
        }
        let (mut messages, mut bytes) = (0, 0);
        for &n in &self.busy {
            let queue = &mut self.partitions[n];
            let Some(obstacle) = queue.obstacle() else {
                continue;
            };
            queue.waiting.retain(|publication| {
                if publication.delay_headers().is_none() {
                    return true;
                }
                messages += 1;
                bytes += weight(publication);
                let stays = messages <= HELD_MESSAGES && bytes <= HELD_BYTES;
                if !stays || mutants::is(Mutant::LeaderlessCounts) {
                    publication.answer(put_off(obstacle.sentence(topic, n)));
                    return false;
                }
                true
            });
        }
        self.forget_idle();
    }

    fn forget_idle(&mut self) {
        let partitions = &self.partitions;
        self.busy.retain(|&n| partitions[n].len() > 0);
    }
}

impl Obstacle {
    /// A sentence on a partition with this obstacle.
    pub(super) fn sentence(self, topic: &str, partition: usize) -> String {
        match self {
            Self::NoLeader => format!("partition {partition} of {topic} has no leader"),
            Self::TooFewReplicas { in_sync, needed } => format!(
                "partition {partition} of {topic} has too few in-sync replicas: {in_sync} of {needed}"
            ),
        }
    }
}

/// The verdict on a message that goes back to the store because of its partition.
fn put_off(error: String) -> Verdict {
    let reason = if mutants::is(Mutant::LeaderlessCounts) {
        Refusal::Unavailable
    } else {
        Refusal::PartitionAway
    };
    super::outcome::refused(reason, error)
}

/// Reports whether a partition that holds `own` of the `held` places of a window may take one more. With other
/// partitions beside it, it may hold as much as is free then, or the minimum.
fn is_within(own: usize, held: usize, window: usize, least: usize, others: bool) -> bool {
    let free = window.saturating_sub(held);
    if others {
        own < free.max(least)
    } else {
        free > 0
    }
}

/// The partition that Java's default partitioner, and librdkafka's `murmur2_random`, choose for a key.
fn partition_of_key(key: &[u8], count: usize) -> usize {
    (murmur2(key) & 0x7fff_ffff) as usize % count
}

/// MurmurHash2, 32 bits, with the seed of Kafka's clients.
fn murmur2(key: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ key.len() as u32;
    let (words, rest) = key.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        for (n, &byte) in rest.iter().enumerate() {
            hash ^= u32::from(byte) << (8 * n);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests;
