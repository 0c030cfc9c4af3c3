//! Ordered routes in the settler's hands: whose turn it is, what goes behind what failed, and which lines have ended.

use super::rules::{Surroundings, Turn};
use crate::domain::Partition;
use crate::store::{ClaimProgress, OrderPosition};
use crate::timer::claim_table::Slots;
use crate::timer::claimed::{Holding, Standing};
use crate::timer::settler::{Done, Settler};
use crate::timer::wheel::Item;

impl Settler {
    /// Lets go what may go of all lines, puts elsewhere what has to be, and ends what closes.
    pub(in crate::timer) fn go_on(&mut self) {
        let shard = self.shard.clone();
        let mut slots = shard.table.lock();
        if slots.lines.is_empty() {
            return;
        }
        let mut touched = slots.drop_closing();
        let soon = shard.store.clock().now().plus(shard.config.lookahead.as_millis() as i64);
        let surroundings = Surroundings { soon, stamps: &|count| shard.store.next_sequence(count) };
        let (mut items, Slots { holdings, lines, .. }) = (Vec::new(), &mut *slots);
        for line in lines.values_mut() {
            while let Some(turn) = line.next(&surroundings) {
                match turn {
                    Turn::Hand(place) => {
                        let holding = holdings.get(&place.slot);
                        items.extend(holding.map(|h| Item::only(h.flight.clone(), place.entry)));
                    }
                    Turn::Behind(slot, moves) => {
                        let Some(holding) = holdings.get_mut(&slot) else { continue };
                        for (entry, to) in moves {
                            holding.move_to(entry, to);
                        }
                        touched.push(slot);
                    }
                }
            }
        }
        let ended = slots.ended_lines();
        drop(slots);
        shard.wheel.add(items);
        for slot in touched {
            self.finish(slot);
        }
        for ((route, p), holder) in ended {
            let store = shard.store.clone();
            self.calls
                .push(Box::pin(async move { Done::Released(store.release_route(p, &route, &holder).await) }));
        }
    }
}

impl Settler {
    /// A bundle of which nothing was handed over goes back as it was.
    pub(in crate::timer) fn put_back(&mut self, slot: u64, p: Partition, back: ClaimProgress) {
        let store = self.shard.store.clone();
        self.calls.push(Box::pin(async move {
            let result = store.give_back(p, &[back]).await;
            Done::Back(vec![slot], result)
        }));
    }
}

impl Slots {
    /// What was being put elsewhere of a holding is there.
    pub(in crate::timer) fn moved(&mut self, slot: u64) {
        let Some(holding) = self.holdings.get_mut(&slot) else { return };
        // What came to that while the call was on its way waits for the next one.
        let (still, there): (Vec<_>, Vec<_>) =
            std::mem::take(&mut holding.moving).into_iter().partition(|key| holding.is_leaving(key));
        holding.moving = still;
        let Some(line) = holding.line().and_then(|id| self.lines.get_mut(&id)) else { return };
        for key in there {
            line.moved(&key, self.looks);
        }
    }

    /// A claim was lost, or nobody knows: what is here of its line may be out of order, and goes back.
    pub(in crate::timer) fn lose(&mut self, slot: u64, orphans: bool) {
        let id = self.holdings.get(&slot).and_then(Holding::line);
        if let Some(line) = id.and_then(|id| self.lines.get_mut(&id)) {
            line.closing = true;
            line.orphans |= orphans;
        }
    }
}

impl Holding {
    /// An entry's key is held back: it goes there.
    fn move_to(&mut self, entry: u32, to: OrderPosition) {
        let Some(keyed) = self.flight.keyed(entry) else { return };
        if !self.flight.take(entry) || self.standing[entry as usize] != Standing::Open {
            return;
        }
        if !self.moving.contains(&keyed.key) {
            self.moving.push(keyed.key.clone());
        }
        self.standing[entry as usize] = Standing::Moved(to);
        self.open -= 1;
    }
}
