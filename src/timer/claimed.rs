//! The state of claimed bundles, message by message. No I/O.
//!
//! A [`ClaimedBundle`] keeps the entries as they were claimed. The bundle in the store changes when hanging messages
//! are split off; `stored` maps its positions to the claimed entries. A ticket names slot and entry, so a verdict
//! finds its message after every such change: the batch has the number of its slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};

use bytes::Bytes;

use super::ServedRoute;
use super::credit::HeldCredit;
use crate::domain::failure_policy::PublishFlow;
use crate::domain::{
    Entry, MonoUs, Partition, RouteName, StoreClock, TargetRef, Text, UnixMs, Verdict,
};
use crate::egress::{Lane, PublishBatch};
use crate::mutants::{self, Mutant};
use crate::publishing::HandedOver;
use crate::store::{Claim, OrderPosition};

/// The part of a claimed bundle that the wheel needs to publish it.
pub(super) struct InFlightBatch {
    pub(super) served: Arc<ServedRoute>,
    pub(super) entries: Arc<Vec<Entry>>,
    /// The entries as they are handed to the lane, with the deadline until which the claim is certain to last.
    pub(super) batch: Arc<PublishBatch>,
    /// The target as the bundle stores it.
    pub(super) target_ref: TargetRef,
    /// `None`: the target is no longer allowed.
    pub(super) lane: Option<Arc<dyn Lane>>,
    /// Monotonic microseconds of the latest hand-over.
    pub(super) published_us: AtomicI64,
    /// Entries to publish, by due time.
    pub(super) order: Vec<u32>,
    /// Number of entries of `order` that are handed over. [`STOPPED`] is set once no more may be.
    pub(super) handed: AtomicU32,
    /// Sequence number of the first entry, in an ordered route.
    pub(super) first_sequence: u64,
    /// Entries of an ordered route that leave when their key's turn comes. They are not in `order`.
    pub(super) keyed: Vec<Option<KeyedEntry>>,
    /// The way of the messages: delayed, or to the route's `dead_letter_to`.
    pub(super) flow: PublishFlow,
}

/// An entry with a key, in a route whose keys leave in order.
pub(super) struct KeyedEntry {
    pub(super) key: Bytes,
    /// The entry was handed over, or never will be.
    pub(super) taken: AtomicBool,
}

/// Names a key queue: an ordered route in one partition.
pub(super) type KeyQueueId = (RouteName, Partition);

/// The bit of `handed` that stops the wheel, because the claim is lost or the process drains.
const STOPPED: u32 = 1 << 31;

impl InFlightBatch {
    /// The due time of the next message to hand over.
    pub(super) fn next_due(&self) -> Option<UnixMs> {
        let at = self.handed.load(Ordering::Acquire);
        let due = self
            .order
            .get(at as usize)
            .map(|&index| self.entries[index as usize].due);
        if mutants::is(Mutant::Early) {
            due.map(|due| due.plus(-1000))
        } else {
            due
        }
    }

    /// The number of messages that are due and not handed over.
    pub(super) fn due(&self, clock: &StoreClock) -> usize {
        let handed = self.handed.load(Ordering::Acquire) as usize;
        let rest = self.order.get(handed..).unwrap_or_default();
        rest.partition_point(|&index| clock.is_due(self.entries[index as usize].due))
    }

    /// Takes the next message to hand over. `None` if there is none, or if none may be handed over any more. The
    /// message counts as handed over from here on.
    pub(super) fn hand(&self) -> Option<u32> {
        let at = self.handed.load(Ordering::Acquire);
        let &index = self.order.get(at as usize)?;
        self.handed
            .compare_exchange(at, at + 1, Ordering::AcqRel, Ordering::Acquire)
            .ok()
            .map(|_| index)
    }

    /// The entry at `index`, if it leaves when its key's turn comes.
    pub(super) fn keyed(&self, index: u32) -> Option<&KeyedEntry> {
        self.keyed.get(index as usize)?.as_ref()
    }

    /// Takes such an entry, to hand it over or to move it. Returns `false` if it was taken before.
    pub(super) fn take(&self, index: u32) -> bool {
        self.keyed(index)
            .is_some_and(|keyed| !keyed.taken.swap(true, Ordering::AcqRel))
    }

    /// Reports whether the claim is certain to last and more messages may be handed over.
    pub(super) fn goes_on(&self, now: MonoUs) -> bool {
        let stopped = self.handed.load(Ordering::Acquire) & STOPPED != 0;
        !stopped && now < self.lease_end()
    }

    /// Stops all further hand-overs. Returns the entries that were not handed over.
    pub(super) fn stop(&self) -> &[u32] {
        let handed = self.handed.fetch_or(STOPPED, Ordering::AcqRel) & !STOPPED;
        self.order.get(handed as usize..).unwrap_or_default()
    }

    /// An entry as it was handed over.
    pub(super) fn handed_over_entry(&self, entry: u32) -> HandedOver<'_> {
        HandedOver {
            batch: &self.batch,
            index: entry,
            flow: self.flow,
            handed: MonoUs(self.published_us.load(Ordering::Acquire)),
        }
    }

    /// The time from the first due time to the last, microseconds.
    pub(super) fn span_us(&self) -> i64 {
        let due =
            |index: Option<&u32>| index.map_or(0, |&index| self.entries[index as usize].due.0);
        (due(self.order.last()) - due(self.order.first())) * 1000
    }

    /// Reports whether no message was handed over yet, and hand-overs are still allowed.
    pub(super) fn nothing_handed(&self) -> bool {
        self.handed.load(Ordering::Acquire) == 0
    }

    /// The entries that were handed over.
    fn handed_over(&self) -> impl Iterator<Item = usize> {
        let handed = self.handed.load(Ordering::Acquire) & !STOPPED;
        let in_order = self
            .order
            .iter()
            .take(handed as usize)
            .map(|&index| index as usize);
        let taken = |keyed: &Option<KeyedEntry>| {
            keyed
                .as_ref()
                .is_some_and(|k| k.taken.load(Ordering::Acquire))
        };
        in_order.chain(
            self.keyed
                .iter()
                .enumerate()
                .filter(move |(_, k)| taken(k))
                .map(|(index, _)| index),
        )
    }

    fn all_handed_over(&self) -> bool {
        let in_order = self.handed.load(Ordering::Acquire) & !STOPPED >= self.order.len() as u32;
        in_order
            && self
                .keyed
                .iter()
                .flatten()
                .all(|keyed| keyed.taken.load(Ordering::Acquire))
    }

    /// The moment until which the claim is certain to last.
    pub(super) fn lease_end(&self) -> MonoUs {
        MonoUs(self.batch.not_after_us.load(Ordering::Acquire))
    }

    /// Notes that the claim was extended until this moment.
    pub(super) fn extend_lease(&self, lease_end: MonoUs) {
        self.batch
            .not_after_us
            .fetch_max(lease_end.0, Ordering::AcqRel);
    }
}

/// The delivery of one message of a claimed bundle.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DeliveryState {
    /// The message is in the wheel, in a lane or in a socket.
    Open,
    /// The broker has confirmed the message.
    Confirmed,
    /// `dead_letter_to` has confirmed the message, and the store does not have it as a dead letter yet.
    Died,
    /// The message was cancelled or confirmed before the claim, and is not published.
    Skipped,
    /// The publish failed.
    Failed(Verdict),
    /// The message's key is held, so the message moves to this position.
    Moved(OrderPosition),
}

impl DeliveryState {
    /// Reports whether the message is where it belongs: it waits for nothing any more.
    fn is_delivered(&self) -> bool {
        matches!(self, Self::Confirmed | Self::Skipped | Self::Died)
    }
}

/// One claimed bundle.
pub(super) struct ClaimedBundle {
    pub(super) claim: Claim,
    pub(super) in_flight: Arc<InFlightBatch>,
    /// The claimed entry at each position of the stored bundle.
    pub(super) stored: Vec<u32>,
    pub(super) states: Vec<DeliveryState>,
    /// Number of open entries in `stored`.
    pub(super) open: usize,
    /// The credit that the messages hold.
    pub(super) credit: HeldCredit,
    /// A message was confirmed after the last report to the store.
    pub(super) news: bool,
    /// A call about this bundle is on its way to the store.
    pub(super) busy: bool,
    /// Keys with a message that moves in the store, by the call on its way or by the next one.
    pub(super) moving: Vec<Bytes>,
    /// The claim belongs to another replica: note the confirms, then drop the bundle.
    pub(super) lost: bool,
    /// The bundle was split. Messages without a producer's name are now stored under their `~` id.
    pub(super) split: bool,
}

impl ClaimedBundle {
    /// The position of an entry in the order of its key.
    pub(super) fn position(&self, entry: u32) -> OrderPosition {
        OrderPosition {
            due: self.in_flight.entries[entry as usize].due,
            sequence: self.in_flight.first_sequence + u64::from(entry),
        }
    }

    /// Reports whether every message was handed over.
    pub(super) fn all_handed_over(&self) -> bool {
        self.in_flight.all_handed_over()
    }

    /// The earliest due time asked for among the messages that are not delivered.
    pub(super) fn earliest_asked(&self) -> Option<UnixMs> {
        let left = self
            .stored
            .iter()
            .filter(|&&entry| !self.states[entry as usize].is_delivered());
        let asked = left.map(|&entry| self.in_flight.entries[entry as usize].asked_due());
        asked.min()
    }

    /// The latest hand-over to the lane, monotonic microseconds, and the number of messages that were handed over and
    /// have no verdict yet. `None` if there is none.
    pub(super) fn unanswered(&self) -> Option<(i64, i64)> {
        let handed_us = self.in_flight.published_us.load(Ordering::Acquire);
        let waits = self
            .in_flight
            .handed_over()
            .filter(|&entry| self.states[entry] == DeliveryState::Open)
            .count();
        (waits > 0 && handed_us < i64::MAX).then_some((handed_us, waits as i64))
    }

    /// Gives back the credit of messages that have a verdict since, or whose claim has ended.
    pub(super) fn update_credit(&mut self) {
        if self.lost {
            self.credit.keep(0, 0);
        } else {
            self.credit.keep(self.open, self.stored.len());
        }
    }

    /// Stops all further hand-overs, and marks the rest as not tried.
    pub(super) fn drop_unpublished(&mut self) {
        let keyed =
            (0..self.in_flight.keyed.len() as u32).filter(|&index| self.in_flight.take(index));
        for index in self.in_flight.stop().iter().copied().chain(keyed) {
            let state = &mut self.states[index as usize];
            if *state == DeliveryState::Open {
                *state = DeliveryState::Failed(Verdict::NotTried);
                self.open -= 1;
            }
        }
        self.update_credit();
    }

    /// The key queue of the messages, if the route is ordered.
    pub(super) fn key_queue_id(&self) -> Option<KeyQueueId> {
        let route = &self.in_flight.served.route;
        route
            .policy
            .ordered
            .then(|| (route.name.clone(), self.claim.partition))
    }

    /// The open entries of the stored bundle.
    pub(super) fn open_entries(&self) -> Vec<u32> {
        self.stored
            .iter()
            .copied()
            .filter(|&entry| self.states[entry as usize] == DeliveryState::Open)
            .collect()
    }

    /// Reports whether a message of this key in the stored bundle has to move in the store.
    pub(super) fn is_leaving(&self, key: &Bytes) -> bool {
        self.stored.iter().any(|&entry| {
            let leaves = matches!(
                self.states[entry as usize],
                DeliveryState::Failed(_) | DeliveryState::Moved(_)
            );
            leaves
                && self
                    .in_flight
                    .keyed(entry)
                    .is_some_and(|keyed| keyed.key == *key)
        })
    }

    /// Reports whether a message has to move in the store while others are still open.
    pub(super) fn must_move(&self) -> bool {
        !self.moving.is_empty()
    }

    /// Reports whether every unconfirmed message was never tried. Such a bundle can be returned as it is.
    pub(super) fn only_untried(&self) -> bool {
        let untried = DeliveryState::Failed(Verdict::NotTried);
        self.stored
            .iter()
            .map(|&e| &self.states[e as usize])
            .all(|s| {
                matches!(s, DeliveryState::Confirmed | DeliveryState::Skipped) || *s == untried
            })
    }

    /// One bool a stored position: `true` if it is confirmed.
    pub(super) fn confirmed(&self) -> Vec<bool> {
        self.stored
            .iter()
            .map(|&entry| matches!(self.states[entry as usize], DeliveryState::Confirmed))
            .collect()
    }

    /// The producers' names of the confirmed messages, if the route remembers delivered names.
    pub(super) fn delivered(&self) -> Vec<Text> {
        if self.in_flight.served.route.policy.dedupe_ms == 0 {
            return Vec::new();
        }
        let entries = self
            .stored
            .iter()
            .filter(|&&entry| matches!(self.states[entry as usize], DeliveryState::Confirmed))
            .map(|&entry| &self.in_flight.entries[entry as usize]);
        entries.filter_map(Entry::remembered_name).collect()
    }

    /// Reports whether all messages are confirmed or skipped.
    pub(super) fn is_clean(&self) -> bool {
        self.stored.iter().all(|&e| {
            matches!(
                self.states[e as usize],
                DeliveryState::Confirmed | DeliveryState::Skipped
            )
        })
    }

    /// The names under which the store knows the messages that `wanted` selects, with their positions in the stored
    /// bundle.
    pub(super) fn names(&self, wanted: impl Fn(&DeliveryState) -> bool) -> Vec<(Text, u32)> {
        let mut names = Vec::new();
        for (position, &entry) in self.stored.iter().enumerate() {
            let entry = entry as usize;
            if !wanted(&self.states[entry]) {
                continue;
            }
            let id = match &self.in_flight.entries[entry].id {
                Some(own) => own,
                None if self.split => &self.in_flight.batch.ids[entry],
                None => continue,
            };
            names.push((id.clone(), position as u32));
        }
        names
    }
}
