//! The settler's part for ordered routes: handing over, moving messages behind a failed one, and ending key queues.

use super::rules::{KeyAction, MoveContext};
use crate::domain::Partition;
use crate::store::{ClaimProgress, OrderPosition};
use crate::timer::claim_table::ClaimSlots;
use crate::timer::claimed::{ClaimedBundle, DeliveryState};
use crate::timer::settler::{CallResult, Settler, until_returned};
use crate::timer::wheel::WheelItem;

impl Settler {
    /// Carries out the next actions of all key queues, and ends those that close.
    pub(in crate::timer) fn advance_key_queues(&mut self) {
        let shard = self.shard.clone();
        let mut slots = shard.table.lock();
        if slots.key_queues.is_empty() {
            return;
        }
        let mut touched = slots.drop_closing();
        let soon = shard.store.clock().now().plus(shard.claim_horizon_ms());
        let context = MoveContext {
            soon,
            sequence_numbers: &|count| shard.store.next_sequence(count),
        };
        let mut items = Vec::new();
        let ClaimSlots {
            bundles,
            key_queues,
            ..
        } = &mut *slots;
        for key_queue in key_queues.values_mut() {
            while let Some(action) = key_queue.next(&context) {
                match action {
                    KeyAction::HandOver(place) => {
                        let claimed = bundles.get(&place.slot);
                        items.extend(
                            claimed
                                .map(|one| WheelItem::single(one.in_flight.clone(), place.entry)),
                        );
                    }
                    KeyAction::MoveBehind(slot, moves) => {
                        let Some(claimed) = bundles.get_mut(&slot) else {
                            continue;
                        };
                        for (entry, to) in moves {
                            claimed.move_to(entry, to);
                        }
                        touched.push(slot);
                    }
                }
            }
        }
        let ended = slots.ended_key_queues();
        drop(slots);
        shard.wheel.add(items);
        for slot in touched {
            self.finish(slot);
        }
        for ((route, p), holder) in ended {
            let store = shard.store.clone();
            self.calls.push(Box::pin(async move {
                let released = until_returned(|| store.release_route(p, &route, &holder));
                CallResult::Released(released.await)
            }));
        }
    }
}

impl Settler {
    /// Returns a bundle of which no message was handed over.
    pub(in crate::timer) fn put_back(&mut self, slot: u64, p: Partition, back: ClaimProgress) {
        let store = self.shard.store.clone();
        self.calls.push(Box::pin(async move {
            let back = [back];
            let result = until_returned(|| store.give_back(p, &back)).await;
            CallResult::PutBack(vec![slot], result)
        }));
    }
}

impl ClaimSlots {
    /// Notes that messages of a bundle have moved in the store.
    pub(in crate::timer) fn moved(&mut self, slot: u64) {
        let Some(claimed) = self.bundles.get_mut(&slot) else {
            return;
        };
        // Keys that were added while the call was on its way wait for the next call.
        let (still, there): (Vec<_>, Vec<_>) = std::mem::take(&mut claimed.moving)
            .into_iter()
            .partition(|key| claimed.is_leaving(key));
        claimed.moving = still;
        let Some(key_queue) = claimed
            .key_queue_id()
            .and_then(|id| self.key_queues.get_mut(&id))
        else {
            return;
        };
        for key in there {
            key_queue.moved(&key, self.polls);
        }
    }

    /// Closes the key queue of a bundle whose claim is lost or in doubt: its messages may be out of order, and go
    /// back.
    pub(in crate::timer) fn lose(&mut self, slot: u64, orphans: bool) {
        let id = self
            .bundles
            .get(&slot)
            .and_then(ClaimedBundle::key_queue_id);
        if let Some(key_queue) = id.and_then(|id| self.key_queues.get_mut(&id)) {
            key_queue.closing = true;
            key_queue.orphans |= orphans;
        }
    }
}

impl ClaimedBundle {
    /// Moves an entry of a held key to this position.
    fn move_to(&mut self, entry: u32, to: OrderPosition) {
        let Some(keyed) = self.in_flight.keyed(entry) else {
            return;
        };
        if !self.in_flight.take(entry) || self.states[entry as usize] != DeliveryState::Open {
            return;
        }
        if !self.moving.contains(&keyed.key) {
            self.moving.push(keyed.key.clone());
        }
        self.states[entry as usize] = DeliveryState::Moved(to);
        self.open -= 1;
        self.update_credit();
    }
}
