//! The order of keys: which message of an ordered route may go next. Pure.
//!
//! A [`Line`] is what a shard holds of one ordered route in one partition, as its only holder. A message may go when
//! it is the first of its key here, nothing of its key is on its way, and nothing that would go before it can be in
//! the store: a look that began when it was due already has claimed all before it.
//!
//! A message that failed is in the store again, due later, and its key is *held*: in the store too, so that a successor
//! knows. What of the key would go before the place of what failed waits for it, here; or, where that takes longer than
//! the look-ahead, is put behind it in the store, where it can be cancelled and fills nobody's window. All that is put
//! behind in one step lies in one bundle, and the next step waits until the store has that one: whatever a crash leaves
//! done, the earlier part of a key has moved and the later part has not. The hold is over when a look that began after
//! all that, and when it was due, has left nothing of it in the store, and nothing of it is here.

use std::collections::{BTreeSet, HashMap, HashSet};

use bytes::Bytes;

use crate::domain::UnixMs;
use crate::store::{HeldKey, OrderPosition};

/// Freed keys that one claim tells the store: a target that comes back may free tens of thousands at once.
const FREED: usize = 500;

/// A message here: its holding and its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::timer) struct Place {
    pub(in crate::timer) slot: u64,
    pub(in crate::timer) entry: u32,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::timer) enum Turn {
    /// Hand this one over; its verdict is awaited.
    Hand(Place),
    /// Put these, all of one holding, behind what failed: there.
    Behind(u64, Vec<(u32, OrderPosition)>),
}

/// One look at the store: it sees all that was there before it began.
#[derive(Clone, Copy, Debug)]
pub(in crate::timer) struct Look {
    /// Looks of a shard are counted.
    pub(in crate::timer) number: u64,
    /// When it began, on Redis's clock, at least.
    pub(in crate::timer) began: UnixMs,
}

/// Where a decision to put something behind comes from.
pub(in crate::timer) struct Surroundings<'a> {
    /// What is held for longer than this moment is put behind.
    pub(in crate::timer) soon: UnixMs,
    /// Makes so many stamps in a row.
    pub(in crate::timer) stamps: &'a dyn Fn(usize) -> u64,
}

#[derive(Debug, Default)]
struct Key {
    waiting: BTreeSet<(OrderPosition, Place)>,
    /// One is on its way, or the store is being told of one.
    busy: bool,
}

impl Key {
    /// The first message here of what is held.
    fn first_within(&self, hold: &HeldKey) -> Option<(OrderPosition, Place)> {
        let from = (hold.first(), Place { slot: 0, entry: 0 });
        self.waiting.range(from..).next().copied().filter(|(position, _)| *position <= hold.last())
    }
}

#[derive(Clone, Copy, Debug)]
struct Held {
    hold: HeldKey,
    /// The look that was the latest when the store was told last: only a later one sees all of it.
    since: u64,
}

/// What a shard holds of one ordered route in one partition.
#[derive(Debug)]
pub(in crate::timer) struct Line {
    /// The holder's name.
    pub(in crate::timer) holder: String,
    /// Its holdings.
    pub(in crate::timer) holdings: usize,
    /// A claim for it is on its way.
    pub(in crate::timer) claiming: bool,
    /// Another one holds it; to be asked again at this moment, monotonic microseconds.
    pub(in crate::timer) waits_until_us: i64,
    /// Nothing more goes: what it holds goes back, then it ends.
    pub(in crate::timer) closing: bool,
    /// That was done to all that it holds.
    pub(in crate::timer) dropped: bool,
    /// There may be claims that it does not know of: nobody may take over before its time is over.
    pub(in crate::timer) orphans: bool,
    seen: Seen,
    keys: HashMap<Bytes, Key>,
    /// The place at which each idle key is to be looked at again, of those that need no other look at the store.
    turns: BTreeSet<(OrderPosition, Bytes)>,
    /// Idle keys that need one which begins at this moment or later.
    blocked: BTreeSet<(UnixMs, Bytes)>,
    holds: HashMap<Bytes, Held>,
    /// The last place of each held key of which nothing is here.
    ends: BTreeSet<(OrderPosition, Bytes)>,
    freed: HashSet<Bytes>,
    /// Moments at which something here has to be looked for.
    dues: BTreeSet<UnixMs>,
}

/// What is known of the store.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The look that claimed all that was due when it began.
    look: Option<Look>,
    /// The first place of what it left in the store.
    left: Option<OrderPosition>,
}

impl Seen {
    /// Whether nothing before this place can be in the store.
    fn up_to(&self, position: OrderPosition) -> bool {
        self.look.is_some_and(|look| position.due <= look.began)
            && self.left.is_none_or(|left| position < left)
    }

    fn is_over(&self, held: &Held) -> bool {
        self.look.is_some_and(|look| look.number > held.since) && self.up_to(held.hold.last())
    }
}

impl Line {
    pub(in crate::timer) fn new(holder: String) -> Self {
        Self {
            holder,
            holdings: 0,
            claiming: false,
            waits_until_us: i64::MIN,
            closing: false,
            dropped: false,
            orphans: false,
            seen: Seen::default(),
            keys: HashMap::new(),
            turns: BTreeSet::new(),
            blocked: BTreeSet::new(),
            holds: HashMap::new(),
            ends: BTreeSet::new(),
            freed: HashSet::new(),
            dues: BTreeSet::new(),
        }
    }

    /// It has just become the holder: these keys are held, and nothing of the store is known yet.
    pub(in crate::timer) fn took_over(&mut self, holds: Vec<(Bytes, HeldKey)>) {
        self.seen = Seen::default();
        self.ends = holds.iter().map(|(key, hold)| (hold.last(), key.clone())).collect();
        self.holds = holds.into_iter().map(|(key, hold)| (key, Held { hold, since: 0 })).collect();
        self.freed.clear();
    }

    /// There may be claims that it does not know of: it closes, and nobody takes over before its time is over.
    pub(in crate::timer) fn give_up(&mut self) {
        self.closing = true;
        self.orphans = true;
    }

    /// A claimed message.
    pub(in crate::timer) fn enter(&mut self, key: Bytes, position: OrderPosition, place: Place) {
        self.dues.insert(position.due);
        let entry = self.keys.entry(key.clone()).or_default();
        entry.waiting.insert((position, place));
        if !entry.busy {
            self.turns.insert((position, key));
        }
    }

    /// Something that was claimed is in the store again: another look has to see it first.
    pub(in crate::timer) fn forget_look(&mut self) {
        self.seen = Seen::default();
    }

    /// A look claimed all that was due when it began, but for what is at this place or behind.
    pub(in crate::timer) fn looked(&mut self, look: Look, left: Option<OrderPosition>) {
        self.seen = Seen { look: Some(look), left };
        self.dues = self.dues.split_off(&look.began.plus(1));
        while self.blocked.first().is_some_and(|(at, _)| *at <= look.began) {
            let Some((due, key)) = self.blocked.pop_first() else { break };
            self.turns.insert((OrderPosition { due, sequence: 0 }, key));
        }
        while self.ends.first().is_some_and(|(end, _)| self.seen.up_to(*end)) {
            let Some((end, key)) = self.ends.pop_first() else { break };
            match self.holds.get(&key) {
                Some(held) if self.keys.contains_key(&key) || held.hold.last() != end => {}
                Some(held) if !self.seen.is_over(held) => {
                    // The look began too early to see all of it; the next one will have.
                    self.ends.insert((end, key));
                    break;
                }
                _ => self.free(&key),
            }
        }
    }

    /// Keys that are held no more, for the store to forget: as many as one call may take. Of what is never taken a
    /// successor finds out by itself that it is over.
    pub(in crate::timer) fn take_freed(&mut self) -> Vec<Bytes> {
        let freed: Vec<Bytes> = self.freed.iter().take(FREED).cloned().collect();
        for key in &freed {
            self.freed.remove(key);
        }
        freed
    }

    /// When something falls due that only a look can let go.
    pub(in crate::timer) fn next_look(&self) -> Option<UnixMs> {
        self.dues.first().copied().filter(|_| !self.closing)
    }

    /// Whether nothing can go until more of the store is claimed.
    pub(in crate::timer) fn is_stuck(&self) -> bool {
        let may_go = self.turns.first().is_some_and(|(first, _)| self.seen.up_to(*first));
        self.seen.left.is_some() && !may_go && !self.keys.values().any(|key| key.busy)
    }

    /// Whether it holds something that waits for what is left in the store.
    pub(in crate::timer) fn holds_stuck(&self) -> bool {
        self.holdings > 0 && self.is_stuck()
    }

    /// What is to be done next, if anything.
    pub(in crate::timer) fn next(&mut self, surroundings: &Surroundings<'_>) -> Option<Turn> {
        while !self.closing && self.turns.first().is_some_and(|(first, _)| self.seen.up_to(*first)) {
            let (_, name) = self.turns.pop_first()?;
            if self.keys.get(&name).is_some_and(|key| !key.busy)
                && let Some(turn) = self.turn_of(&name, surroundings)
            {
                return Some(turn);
            }
        }
        None
    }

    /// What is to be done of an idle key; if nothing, it is noted when to look again.
    fn turn_of(&mut self, name: &Bytes, surroundings: &Surroundings<'_>) -> Option<Turn> {
        let seen = self.seen;
        let held = self.holds.get(name).copied();
        let of_hold = held.and_then(|held| self.keys.get(name)?.first_within(&held.hold));
        if of_hold.is_none() && held.is_some_and(|held| seen.is_over(&held)) {
            self.free(name);
            return self.turn_of(name, surroundings);
        }
        let key = self.keys.get_mut(name)?;
        let first = *key.waiting.first()?;
        if let Some(next) = if held.is_some() { of_hold } else { Some(first) } {
            if !seen.up_to(next.0) {
                self.turns.insert((next.0, name.clone()));
                return None;
            }
            key.waiting.remove(&next);
            key.busy = true;
            return Some(Turn::Hand(next.1));
        }
        let held = held?;
        if first.0 < held.hold.first() && seen.up_to(first.0) && held.hold.due > surroundings.soon {
            return Some(self.put_behind(name, held.hold, surroundings));
        }
        let waits_itself = first.0 < held.hold.first() && !seen.up_to(first.0);
        let at = if waits_itself { first.0.due.min(held.hold.due) } else { held.hold.due };
        if seen.look.is_none_or(|look| at > look.began || look.number <= held.since) {
            self.dues.insert(at);
        }
        self.blocked.insert((at, name.clone()));
        None
    }

    /// The first messages of a held key that lie in one bundle go behind what failed.
    fn put_behind(&mut self, name: &Bytes, hold: HeldKey, surroundings: &Surroundings<'_>) -> Turn {
        let (seen, key) = (self.seen, self.keys.entry(name.clone()).or_default());
        let (mut slot, mut entries) = (0, Vec::new());
        while let Some(&(position, place)) = key.waiting.first() {
            let goes = position < hold.first() && seen.up_to(position);
            if !goes || (!entries.is_empty() && place.slot != slot) {
                break;
            }
            key.waiting.pop_first();
            slot = place.slot;
            entries.push(place.entry);
        }
        key.busy = true;
        let stamp = (surroundings.stamps)(entries.len()).max(hold.to + 1);
        self.hold(name, HeldKey { to: stamp + entries.len() as u64 - 1, ..hold });
        let there = (stamp..).map(|stamp| OrderPosition { due: hold.due, sequence: stamp });
        Turn::Behind(slot, entries.into_iter().zip(there).collect())
    }

    /// A message failed and is due again: its key is held. `fresh` is a new stamp; returns the one under which it goes
    /// back.
    pub(in crate::timer) fn failed(&mut self, key: &Bytes, due: UnixMs, fresh: u64) -> u64 {
        let stamp = self.holds.get(key).map_or(fresh, |held| fresh.max(held.hold.to + 1));
        self.hold(key, HeldKey { due, from: stamp, to: stamp });
        stamp
    }

    /// How a key is held, if it is.
    pub(in crate::timer) fn hold_of(&self, key: &Bytes) -> Option<HeldKey> {
        self.holds.get(key).map(|held| held.hold)
    }

    /// What was on its way of a key is through.
    pub(in crate::timer) fn done(&mut self, key: &Bytes) {
        let Some(entry) = self.keys.get_mut(key) else { return };
        entry.busy = false;
        if let Some((first, _)) = entry.waiting.first() {
            // Its turn is found out whatever its place: of a held key another one may go first.
            let first = OrderPosition {
                sequence: 0,
                due: self.seen.look.map_or(first.due, |look| first.due.min(look.began)),
            };
            self.turns.insert((first, key.clone()));
            return;
        }
        self.keys.remove(key);
        if let Some(held) = self.holds.get(key) {
            self.ends.insert((held.hold.last(), key.clone()));
        }
    }

    /// What was being put elsewhere of a key is there; `look` is the number of the latest look that has begun.
    pub(in crate::timer) fn moved(&mut self, key: &Bytes, look: u64) {
        if let Some(held) = self.holds.get_mut(key) {
            held.since = look;
        }
        self.done(key);
    }

    /// What was handed over was not tried: it waits again, in its place.
    pub(in crate::timer) fn undo(&mut self, key: &Bytes, position: OrderPosition, place: Place) {
        if let Some(entry) = self.keys.get_mut(key) {
            entry.waiting.insert((position, place));
        }
        self.done(key);
    }

    fn hold(&mut self, key: &Bytes, hold: HeldKey) {
        self.freed.remove(key);
        if let Some(old) = self.holds.insert(key.clone(), Held { hold, since: u64::MAX }) {
            self.ends.remove(&(old.hold.last(), key.clone()));
        }
    }

    fn free(&mut self, key: &Bytes) {
        if let Some(held) = self.holds.remove(key) {
            self.ends.remove(&(held.hold.last(), key.clone()));
            self.freed.insert(key.clone());
        }
    }
}

#[cfg(test)]
mod tests;
