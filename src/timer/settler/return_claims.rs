//! Claims that go back to the store before their time: what is another's by now, and all on the way out.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Done, Settler, one_call, progress};
use crate::domain::Partition;
use crate::store::{ClaimProgress, StoreError};
use crate::timer::claim_table::Slots;
use crate::timer::claimed::Holding;

/// What is due within this (microseconds) is published by whoever holds it, whoever's partition it is by now.
const SOON_US: i64 = 200_000;
/// What is due later than the look-ahead and this (microseconds) was not claimed by the clocks as they are.
const STEP_US: i64 = 1_000_000;
/// Longest wait for the store when claims are given back: then they expire.
const LAST_WORD: Duration = Duration::from_secs(5);

impl Settler {
    /// Gives back what this replica no longer serves and would not publish soon, for its new owner is there for it;
    /// and what it would not publish for long, for its clock is wrong.
    pub(super) fn hand_over(&mut self) {
        let shard = self.shard.clone();
        let owned = shard.cluster.owned();
        let moved = std::mem::replace(&mut self.served, owned.clone()) != owned;
        let clock = shard.store.clock();
        let ahead_us = shard.config.lookahead.as_micros() as i64 + STEP_US;
        let mut dropped = false;
        let mut slots = shard.table.lock();
        let Slots { holdings, lines, .. } = &mut *slots;
        // The next holder of an ordered route waits until this one has given it up; so it does where its messages
        // would wait for this replica's clock, which is far behind.
        let late = shard.behind_ms() * 1000 > ahead_us;
        for ((route, p), line) in lines.iter_mut() {
            line.closing |= late || (moved && !owned.serves(*p, route.as_str()));
        }
        for holding in holdings.values_mut().filter(|h| !h.busy && !h.lost && h.line().is_none()) {
            let Some(due) = holding.flight.next_due() else { continue };
            let (p, route) = (holding.claim.partition, holding.flight.served.route.name.as_str());
            let waits_us = clock.until_due_us(due);
            // Further ahead than anything is claimed: a clock has stepped back, perhaps this replica's alone. What
            // of the bundle is with a broker already is waited for, and the rest goes back behind it.
            let stepped = waits_us > ahead_us + holding.flight.span_us();
            let anothers = moved && holding.flight.handed_none() && !owned.serves(p, route);
            if stepped || (anothers && waits_us > SOON_US) {
                holding.drop_unpublished();
                dropped = true;
            }
        }
        drop(slots);
        if dropped {
            self.give_back();
        }
    }

    /// Gives back the claims of which nothing was handed over.
    fn give_back(&mut self) {
        let mut back: BTreeMap<Partition, Vec<ClaimProgress>> = BTreeMap::new();
        let mut slots = self.shard.table.lock();
        let untried = |(_, h): &(&u64, &Holding)| {
            // An ordered route's bundles go back one by one: its holder gives it up only behind the last of them.
            h.line().is_none() && !h.busy && !h.lost && h.open == 0 && !h.is_clean() && h.only_untried()
        };
        let untried: Vec<u64> = slots.holdings.iter().filter(untried).map(|(&slot, _)| slot).collect();
        let mut given = Vec::with_capacity(untried.len());
        for slot in untried {
            let Some(holding) = slots.remove(slot) else { continue };
            let news = holding.confirmed().contains(&true);
            back.entry(holding.claim.partition).or_default().push(progress(&holding, news));
            given.push(holding);
        }
        drop(slots);
        for holding in given {
            self.release(Some(holding));
        }
        for (p, mut held) in back {
            while !held.is_empty() {
                let rest = held.split_off(one_call(held.iter().map(|of| of.delivered.len())));
                let held = std::mem::replace(&mut held, rest);
                let store = self.shard.store.clone();
                self.calls.push(Box::pin(async move {
                    let answer = tokio::time::timeout(LAST_WORD, store.give_back(p, &held)).await;
                    let late = |_| Err(StoreError::Unavailable("no answer".into()));
                    Done::GivenBack(p, held.len(), answer.unwrap_or_else(late))
                }));
            }
        }
    }

    /// On the way out: gives back what was never handed over; done when nothing is held any more.
    pub(super) fn drained(&mut self) -> bool {
        let shard = self.shard.clone();
        let mut slots = shard.table.lock();
        for line in slots.lines.values_mut() {
            line.closing = true;
        }
        for holding in slots.holdings.values_mut() {
            holding.drop_unpublished();
        }
        drop(slots);
        self.give_back();
        let idle: Vec<u64> = {
            let slots = shard.table.lock();
            slots.holdings.iter().filter(|(_, h)| !h.busy && h.open == 0).map(|(&s, _)| s).collect()
        };
        for slot in idle {
            self.finish(slot);
        }
        self.go_on();
        let slots = shard.table.lock();
        slots.holdings.is_empty() && slots.lines.is_empty() && self.calls.is_empty()
    }
}
