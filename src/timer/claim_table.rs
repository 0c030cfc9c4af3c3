//! The table of the bundles that a shard has claimed, and of its key queues. No I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering;

use parking_lot::{Mutex, MutexGuard};

use super::claimed::{ClaimedBundle, DeliveryState, KeyQueueId};
use super::key_order::rules::{EntryPlace, KeyQueue};
use crate::domain::failure_policy::PublishFlow;
use crate::domain::{Partition, UnixMs, Verdict};
use crate::egress::Ticket;
use crate::mutants::{self, Mutant};
use crate::publishing::VerdictTime;

/// All claimed bundles of a shard, by slot, and its key queues.
#[derive(Default)]
pub(super) struct ClaimTable(Mutex<ClaimSlots>);

#[derive(Default)]
pub(super) struct ClaimSlots {
    pub(super) bundles: HashMap<u64, ClaimedBundle>,
    pub(super) key_queues: BTreeMap<KeyQueueId, KeyQueue>,
    /// Number of polls that the claimer has begun.
    pub(super) polls: u64,
    next: u64,
}

impl ClaimTable {
    pub(super) fn lock(&self) -> MutexGuard<'_, ClaimSlots> {
        self.0.lock()
    }

    /// A slot number that no bundle had before.
    pub(super) fn slot(&self) -> u64 {
        let mut slots = self.0.lock();
        slots.next += 1;
        slots.next
    }
}

impl ClaimSlots {
    /// Enters a verdict. Returns the bundle's slot if nothing of the bundle is open any more, or if a message of it
    /// has to move in the store at once.
    pub(super) fn judge(
        &mut self,
        ticket: Ticket,
        verdict: Verdict,
        heard_at: VerdictTime,
    ) -> Option<u64> {
        let Ticket {
            batch: slot,
            index: entry,
        } = ticket;
        let claimed = self.bundles.get_mut(&slot)?;
        let state = claimed.states.get_mut(entry as usize)?;
        if *state == DeliveryState::Open {
            let in_flight = &claimed.in_flight;
            in_flight
                .served
                .reporter
                .heard(in_flight.handed_over_entry(entry), &verdict, heard_at);
            *state = match verdict {
                ref unknown if unknown.is_unknown() && mutants::is(Mutant::UnknownIsConfirmed) => {
                    DeliveryState::Confirmed
                }
                Verdict::Confirmed(_) if in_flight.flow == PublishFlow::Dying => {
                    DeliveryState::Died
                }
                Verdict::Confirmed(_) => {
                    claimed.news = true;
                    DeliveryState::Confirmed
                }
                other => DeliveryState::Failed(other),
            };
            claimed.open -= 1;
            if claimed.in_flight.keyed(entry).is_some() {
                self.tell_key_queue(slot, entry, heard_at);
            }
        }
        let claimed = self.bundles.get(&slot)?;
        (claimed.open == 0 || claimed.must_move()).then_some(slot)
    }

    /// Applies a verdict to the queue of its message's key.
    fn tell_key_queue(&mut self, slot: u64, entry: u32, heard_at: VerdictTime) {
        let Some(claimed) = self.bundles.get_mut(&slot) else {
            return;
        };
        let Some((id, keyed)) = claimed.key_queue_id().zip(claimed.in_flight.keyed(entry)) else {
            return;
        };
        let Some(key_queue) = self.key_queues.get_mut(&id) else {
            return;
        };
        let key = keyed.key.clone();
        let state = &mut claimed.states[entry as usize];
        match state {
            DeliveryState::Confirmed | DeliveryState::Died => key_queue.done(&key),
            DeliveryState::Failed(Verdict::NotTried)
                if !key_queue.closing && claimed.in_flight.goes_on(heard_at.mono) =>
            {
                // The lane did not submit it in time. The message waits again, in its place.
                *state = DeliveryState::Open;
                claimed.open += 1;
                keyed.taken.store(false, Ordering::Release);
                key_queue.undo(&key, claimed.position(entry), EntryPlace { slot, entry });
            }
            // The message goes back to its place in the store, and nothing of its key may pass it.
            DeliveryState::Failed(Verdict::NotTried) => key_queue.closing = true,
            _ => claimed.moving.push(key),
        }
    }

    /// Counts a poll of the claimer that begins now.
    pub(super) fn begin_poll(&mut self) -> u64 {
        self.polls += 1;
        self.polls
    }

    /// Enters a claimed bundle, and its messages into their key queue.
    pub(super) fn enter(&mut self, slot: u64, claimed: ClaimedBundle) {
        if let Some(key_queue) = claimed
            .key_queue_id()
            .and_then(|id| self.key_queues.get_mut(&id))
        {
            key_queue.bundles += 1;
            key_queue.dropped = false;
            for (entry, keyed) in (0..).zip(&claimed.in_flight.keyed) {
                let Some(keyed) = keyed else { continue };
                key_queue.enter(
                    keyed.key.clone(),
                    claimed.position(entry),
                    EntryPlace { slot, entry },
                );
            }
        }
        self.bundles.insert(slot, claimed);
    }

    /// Removes a bundle with which nothing is left to do.
    pub(super) fn remove(&mut self, slot: u64) -> Option<ClaimedBundle> {
        let claimed = self.bundles.remove(&slot)?;
        if let Some(key_queue) = claimed
            .key_queue_id()
            .and_then(|id| self.key_queues.get_mut(&id))
        {
            key_queue.bundles -= 1;
        }
        Some(claimed)
    }

    /// Drops the unpublished messages of closing key queues. Returns the bundles that have nothing open any more
    /// because of it.
    pub(super) fn drop_closing(&mut self) -> Vec<u64> {
        let mut finished = Vec::new();
        let Self {
            bundles,
            key_queues,
            ..
        } = self;
        for (id, key_queue) in key_queues
            .iter_mut()
            .filter(|(_, key_queue)| key_queue.closing && !key_queue.dropped)
        {
            key_queue.dropped = true;
            for (&slot, claimed) in bundles
                .iter_mut()
                .filter(|(_, h)| h.key_queue_id().as_ref() == Some(id))
            {
                claimed.drop_unpublished();
                if claimed.open == 0 {
                    finished.push(slot);
                }
            }
        }
        finished
    }

    /// Removes the key queues that have ended. Returns the holder names under which no claim is left.
    pub(super) fn ended_key_queues(&mut self) -> Vec<(KeyQueueId, String)> {
        let mut ended = Vec::new();
        self.key_queues.retain(|id, key_queue| {
            let over = key_queue.closing && key_queue.bundles == 0 && !key_queue.claiming;
            if over && !key_queue.orphans {
                ended.push((id.clone(), std::mem::take(&mut key_queue.holder)));
            }
            !over
        });
        ended
    }

    /// The due time of the next message of an ordered route that needs another poll before it may leave.
    pub(super) fn next_poll(&self) -> Option<UnixMs> {
        self.key_queues
            .values()
            .filter_map(KeyQueue::next_poll)
            .min()
    }

    /// Partitions in which this shard holds an ordered route. Their holder goes on polling them, regardless of their
    /// owner.
    pub(super) fn partitions_held(&self) -> BTreeSet<Partition> {
        self.key_queues.keys().map(|(_, p)| *p).collect()
    }

    /// Partitions with a key queue that needs a poll at this moment.
    pub(super) fn partitions_due(&self, now: UnixMs) -> Vec<Partition> {
        let due = self
            .key_queues
            .iter()
            .filter(|(_, key_queue)| key_queue.next_poll().is_some_and(|due| due <= now));
        let partitions: BTreeSet<Partition> = due.map(|((_, p), _)| *p).collect();
        partitions.into_iter().collect()
    }
}
