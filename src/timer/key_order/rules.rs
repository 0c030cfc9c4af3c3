//! The rules of key order: which message of an ordered route may leave next. Pure.
//!
//! A [`KeyQueue`] is the part of one ordered route that a shard holds in one partition, as its only holder. A message
//! may leave when three conditions are met. It is the first of its key in the queue. No other message of its key is
//! on its way. Nothing that comes before it can be in the store: a poll that began after its due time has claimed
//! everything before it.
//!
//! A failed message goes back to the store with a later due time, and its key becomes a *held key*. The store records
//! that, so that a successor knows it. Messages of the key that come before the failed one's new position wait for it
//! in the queue. If that takes longer than the lookahead, they move behind it in the store, where they can be
//! cancelled and fill no window. All messages that move in one step lie in one bundle, and the next step waits until
//! the store has done this one. So a crash at any point leaves the earlier part of a key moved and the later part in
//! place. The key is free again after a poll that began after all of that, and after the held due time, has left none
//! of its held messages in the store, and none is in the queue.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;

use crate::domain::{MonoUs, UnixMs};
use crate::store::{HeldKey, OrderPosition};

/// Freed keys that one claim reports to the store. A target that comes back may free tens of thousands at once.
const MAX_FREED_KEYS: usize = 500;

/// A message in the queue: the slot of its bundle, and its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::timer) struct EntryPlace {
    pub(in crate::timer) slot: u64,
    pub(in crate::timer) entry: u32,
}

/// The next action for a key.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::timer) enum KeyAction {
    /// Hand this message over. Its verdict is awaited.
    HandOver(EntryPlace),
    /// Move these messages of one bundle behind the failed message, to these positions.
    MoveBehind(u64, Vec<(u32, OrderPosition)>),
}

/// One poll of the store. It sees everything that was there before it began.
#[derive(Clone, Copy, Debug)]
pub(in crate::timer) struct StorePoll {
    /// The number of the poll in its shard.
    pub(in crate::timer) number: u64,
    /// The moment it began, by Redis's clock, or earlier.
    pub(in crate::timer) began: UnixMs,
}

/// The inputs of a decision to move messages.
pub(in crate::timer) struct MoveContext<'a> {
    /// Messages held beyond this moment are moved.
    pub(in crate::timer) soon: UnixMs,
    /// Makes this many consecutive sequence numbers.
    pub(in crate::timer) sequence_numbers: &'a dyn Fn(usize) -> u64,
}

#[derive(Debug, Default)]
struct KeyState {
    waiting: BTreeSet<(OrderPosition, EntryPlace)>,
    /// A message of the key is on its way, or a call about one is.
    busy: bool,
}

impl KeyState {
    /// The first message in the queue that belongs to the held range.
    fn first_within(&self, hold: &HeldKey) -> Option<(OrderPosition, EntryPlace)> {
        let from = (hold.first(), EntryPlace { slot: 0, entry: 0 });
        self.waiting
            .range(from..)
            .next()
            .copied()
            .filter(|(position, _)| *position <= hold.last())
    }
}

#[derive(Clone, Copy, Debug)]
struct TrackedHold {
    hold: HeldKey,
    /// The latest poll when the store was last told of the hold. Only a later poll sees all of it.
    since: u64,
}

/// The part of one ordered route that a shard holds in one partition.
#[derive(Debug)]
pub(in crate::timer) struct KeyQueue {
    /// The name under which this shard holds the route.
    pub(in crate::timer) holder: String,
    /// Number of claimed bundles.
    pub(in crate::timer) bundles: usize,
    /// A claim for the queue is on its way.
    pub(in crate::timer) claiming: bool,
    /// Another holder has the route. It is asked again at this moment.
    pub(in crate::timer) waits_until: Option<MonoUs>,
    /// No message leaves any more. The claimed messages go back, then the queue ends.
    pub(in crate::timer) closing: bool,
    /// The unpublished messages of all its bundles were dropped.
    pub(in crate::timer) dropped: bool,
    /// There may be claims that the queue does not know. Nobody may take over before their leases end.
    pub(in crate::timer) orphans: bool,
    coverage: PollCoverage,
    keys: HashMap<Bytes, KeyState>,
    /// The position at which each idle key is examined again, for keys that need no further poll.
    ready: BTreeSet<(OrderPosition, Bytes)>,
    /// Idle keys that need a poll which begins at this moment or later.
    blocked: BTreeSet<(UnixMs, Bytes)>,
    holds: HashMap<Bytes, TrackedHold>,
    /// The last position of each held key that has no message in the queue.
    ends: BTreeSet<(OrderPosition, Bytes)>,
    freed: HashMap<Bytes, HeldKey>,
    /// Moments at which the queue needs a poll.
    dues: BTreeSet<UnixMs>,
}

/// How far the store has been polled for this queue.
#[derive(Clone, Copy, Debug, Default)]
struct PollCoverage {
    /// The poll that claimed everything that was due when it began.
    poll: Option<StorePoll>,
    /// The first position that the poll left in the store.
    left: Option<OrderPosition>,
}

impl PollCoverage {
    /// Reports whether nothing before this position can be in the store.
    fn covers(&self, position: OrderPosition) -> bool {
        self.poll.is_some_and(|poll| position.due <= poll.began)
            && self.left.is_none_or(|left| position < left)
    }

    /// Reports whether nothing that belongs to a hold can be in the store.
    fn is_over(&self, held: &TrackedHold) -> bool {
        self.poll.is_some_and(|poll| poll.number > held.since) && self.covers(held.hold.last())
    }
}

impl KeyQueue {
    pub(in crate::timer) fn new(holder: String) -> Self {
        Self {
            holder,
            bundles: 0,
            claiming: false,
            waits_until: None,
            closing: false,
            dropped: false,
            orphans: false,
            coverage: PollCoverage::default(),
            keys: HashMap::new(),
            ready: BTreeSet::new(),
            blocked: BTreeSet::new(),
            holds: HashMap::new(),
            ends: BTreeSet::new(),
            freed: HashMap::new(),
            dues: BTreeSet::new(),
        }
    }

    /// Takes over as the new holder. These keys are held, and no poll covers the store yet.
    pub(in crate::timer) fn took_over(&mut self, holds: Vec<(Bytes, HeldKey)>) {
        self.coverage = PollCoverage::default();
        self.ends = holds
            .iter()
            .map(|(key, hold)| (hold.last(), key.clone()))
            .collect();
        self.holds = holds
            .into_iter()
            .map(|(key, hold)| (key, TrackedHold { hold, since: 0 }))
            .collect();
        self.freed.clear();
    }

    /// Closes the queue because there may be claims that it does not know. Nobody takes over before their leases end.
    pub(in crate::timer) fn give_up(&mut self) {
        self.closing = true;
        self.orphans = true;
    }

    /// Enters a claimed message.
    pub(in crate::timer) fn enter(
        &mut self,
        key: Bytes,
        position: OrderPosition,
        place: EntryPlace,
    ) {
        self.dues.insert(position.due);
        let entry = self.keys.entry(key.clone()).or_default();
        entry.waiting.insert((position, place));
        if !entry.busy {
            self.ready.insert((position, key));
        }
    }

    /// Forgets the last poll, because claimed messages are in the store again and another poll has to see them first.
    pub(in crate::timer) fn forget_poll(&mut self) {
        self.coverage = PollCoverage::default();
    }

    /// Notes a poll that claimed everything due when it began, except what lies at `left` or behind it.
    pub(in crate::timer) fn polled(&mut self, poll: StorePoll, left: Option<OrderPosition>) {
        self.coverage = PollCoverage {
            poll: Some(poll),
            left,
        };
        self.dues = self.dues.split_off(&poll.began.plus(1));
        while self
            .blocked
            .first()
            .is_some_and(|(at, _)| *at <= poll.began)
        {
            let Some((due, key)) = self.blocked.pop_first() else {
                break;
            };
            self.ready.insert((OrderPosition { due, sequence: 0 }, key));
        }
        while self
            .ends
            .first()
            .is_some_and(|(end, _)| self.coverage.covers(*end))
        {
            let Some((end, key)) = self.ends.pop_first() else {
                break;
            };
            match self.holds.get(&key) {
                Some(held) if self.keys.contains_key(&key) || held.hold.last() != end => {}
                Some(held) if !self.coverage.is_over(held) => {
                    // The poll began too early to see all of it. The next one will.
                    self.ends.insert((end, key));
                    break;
                }
                _ => self.free(&key),
            }
        }
    }

    /// Notes a poll that found nothing due. While a claim is on its way, what it has taken is in the store no more and in the
    /// queue not yet: then the poll says nothing of what may leave.
    pub(in crate::timer) fn found_nothing(&mut self, poll: StorePoll) {
        if !self.claiming {
            self.polled(poll, None);
        }
    }

    /// Takes keys that are no longer held, with their last holds, for the store to forget, up to [`MAX_FREED_KEYS`]. A
    /// successor finds out by itself that the others are free.
    pub(in crate::timer) fn take_freed(&mut self) -> Vec<(Bytes, HeldKey)> {
        let freed: Vec<(Bytes, HeldKey)> = self
            .freed
            .iter()
            .take(MAX_FREED_KEYS)
            .map(|(key, hold)| (key.clone(), *hold))
            .collect();
        for (key, _) in &freed {
            self.freed.remove(key);
        }
        freed
    }

    /// The next moment at which the queue needs a poll.
    pub(in crate::timer) fn next_poll(&self) -> Option<UnixMs> {
        self.dues.first().copied().filter(|_| !self.closing)
    }

    /// Reports whether no message can leave until more is claimed.
    pub(in crate::timer) fn is_stuck(&self) -> bool {
        let may_go = self
            .ready
            .first()
            .is_some_and(|(first, _)| self.coverage.covers(*first));
        self.coverage.left.is_some() && !may_go && !self.keys.values().any(|key| key.busy)
    }

    /// Reports whether claimed messages wait for one that is left in the store.
    pub(in crate::timer) fn holds_stuck(&self) -> bool {
        self.bundles > 0 && self.is_stuck()
    }

    /// The next action, if there is one.
    pub(in crate::timer) fn next(&mut self, context: &MoveContext<'_>) -> Option<KeyAction> {
        while !self.closing
            && self
                .ready
                .first()
                .is_some_and(|(first, _)| self.coverage.covers(*first))
        {
            let (_, name) = self.ready.pop_first()?;
            if self.keys.get(&name).is_some_and(|key| !key.busy)
                && let Some(action) = self.action_for(&name, context)
            {
                return Some(action);
            }
        }
        None
    }

    /// The next action for an idle key. If there is none, notes when to examine the key again.
    fn action_for(&mut self, name: &Bytes, context: &MoveContext<'_>) -> Option<KeyAction> {
        let coverage = self.coverage;
        let held = self.holds.get(name).copied();
        let of_hold = held.and_then(|held| self.keys.get(name)?.first_within(&held.hold));
        if of_hold.is_none() && held.is_some_and(|held| coverage.is_over(&held)) {
            self.free(name);
            return self.action_for(name, context);
        }
        let key = self.keys.get_mut(name)?;
        let first = *key.waiting.first()?;
        if let Some(next) = if held.is_some() { of_hold } else { Some(first) } {
            if !coverage.covers(next.0) {
                self.ready.insert((next.0, name.clone()));
                return None;
            }
            key.waiting.remove(&next);
            key.busy = true;
            return Some(KeyAction::HandOver(next.1));
        }
        let held = held?;
        if first.0 < held.hold.first() && coverage.covers(first.0) && held.hold.due > context.soon {
            return Some(self.move_behind(name, held.hold, context));
        }
        let waits_itself = first.0 < held.hold.first() && !coverage.covers(first.0);
        let at = if waits_itself {
            first.0.due.min(held.hold.due)
        } else {
            held.hold.due
        };
        if coverage
            .poll
            .is_none_or(|poll| at > poll.began || poll.number <= held.since)
        {
            self.dues.insert(at);
        }
        self.blocked.insert((at, name.clone()));
        None
    }

    /// Moves the first messages of a held key that lie in one bundle behind the failed message.
    fn move_behind(&mut self, name: &Bytes, hold: HeldKey, context: &MoveContext<'_>) -> KeyAction {
        let coverage = self.coverage;
        let key = self.keys.entry(name.clone()).or_default();
        let mut slot = 0;
        let mut entries = Vec::new();
        while let Some(&(position, place)) = key.waiting.first() {
            let goes = position < hold.first() && coverage.covers(position);
            if !goes || (!entries.is_empty() && place.slot != slot) {
                break;
            }
            key.waiting.pop_first();
            slot = place.slot;
            entries.push(place.entry);
        }
        key.busy = true;
        let first = (context.sequence_numbers)(entries.len()).max(hold.to + 1);
        self.set_hold(
            name,
            HeldKey {
                to: first + entries.len() as u64 - 1,
                ..hold
            },
        );
        let positions = (first..).map(|number| OrderPosition {
            due: hold.due,
            sequence: number,
        });
        KeyAction::MoveBehind(slot, entries.into_iter().zip(positions).collect())
    }

    /// Holds the key of a failed message that is due again. `fresh` is a new sequence number. Returns the number
    /// under which the message goes back.
    pub(in crate::timer) fn failed(&mut self, key: &Bytes, due: UnixMs, fresh: u64) -> u64 {
        let number = self
            .holds
            .get(key)
            .map_or(fresh, |held| fresh.max(held.hold.to + 1));
        self.set_hold(
            key,
            HeldKey {
                due,
                from: number,
                to: number,
            },
        );
        number
    }

    /// The held range of a key, if the key is held.
    pub(in crate::timer) fn hold_of(&self, key: &Bytes) -> Option<HeldKey> {
        self.holds.get(key).map(|held| held.hold)
    }

    /// Notes that the message on its way is done.
    pub(in crate::timer) fn done(&mut self, key: &Bytes) {
        let Some(entry) = self.keys.get_mut(key) else {
            return;
        };
        entry.busy = false;
        if let Some((first, _)) = entry.waiting.first() {
            // Examine the key regardless of its position: if it is held, another message may leave first.
            let first = OrderPosition {
                sequence: 0,
                due: self
                    .coverage
                    .poll
                    .map_or(first.due, |poll| first.due.min(poll.began)),
            };
            self.ready.insert((first, key.clone()));
            return;
        }
        self.keys.remove(key);
        if let Some(held) = self.holds.get(key) {
            self.ends.insert((held.hold.last(), key.clone()));
        }
    }

    /// Notes that the messages of a key have moved in the store. `poll` is the number of the latest poll that has
    /// begun.
    pub(in crate::timer) fn moved(&mut self, key: &Bytes, poll: u64) {
        if let Some(held) = self.holds.get_mut(key) {
            held.since = poll;
        }
        self.done(key);
    }

    /// Returns a message that was not tried to its place in the queue.
    pub(in crate::timer) fn undo(
        &mut self,
        key: &Bytes,
        position: OrderPosition,
        place: EntryPlace,
    ) {
        if let Some(entry) = self.keys.get_mut(key) {
            entry.waiting.insert((position, place));
        }
        self.done(key);
    }

    fn set_hold(&mut self, key: &Bytes, hold: HeldKey) {
        self.freed.remove(key);
        if let Some(old) = self.holds.insert(
            key.clone(),
            TrackedHold {
                hold,
                since: u64::MAX,
            },
        ) {
            self.ends.remove(&(old.hold.last(), key.clone()));
        }
    }

    fn free(&mut self, key: &Bytes) {
        if let Some(held) = self.holds.remove(key) {
            self.ends.remove(&(held.hold.last(), key.clone()));
            self.freed.insert(key.clone(), held.hold);
        }
    }
}

#[cfg(test)]
mod tests;
