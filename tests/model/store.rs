//! The pure model: what messages and names become, call by call. No Redis, no bytes, no dependency.
//!
//! One partition of the store. `tests/it/store` makes the same calls on this and on real Redis and compares
//! every answer and all that stands afterwards; `tests/model` searches what actors that crash, and wires that
//! lose replies, can make of it. A rule that changes in a script changes here, and both hear of it.

use std::collections::{BTreeMap, BTreeSet};

/// Unix ms against Redis; small numbers in a search.
pub type Moment = i64;
pub type Name = &'static str;

/// A message of the model: its name, when it is due, the body that tells it apart, and whether it says of
/// itself that it may repeat an earlier publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Letter {
    pub name: Option<Name>,
    pub due: Moment,
    pub body: u32,
    pub repeat: bool,
}

/// What a write answers for one message or command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Said {
    Stored,
    Duplicate,
    Replaced,
    Cancelled,
    InFlight,
    Unknown,
    Published,
    Rescheduled,
    TooLate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Slot {
    letter: Letter,
    /// Cancelled, moved or suppressed.
    gone: bool,
    /// Confirmed, while its bundle stands.
    done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Due,
    /// `nonce` tells claims apart for good; `token` is what calls are judged by, the same unless a fault is planted.
    Claimed {
        token: i64,
        nonce: u32,
        expires: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kept {
    slots: Vec<Slot>,
    place: Place,
    expiries: u32,
    /// How often it was claimed.
    claims: u32,
}

/// A claim in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grip {
    pub bundle: usize,
    pub nonce: u32,
    token: i64,
}

/// A claimed bundle: its messages, which of them are not to be published, and its expiries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Taken {
    pub grip: Grip,
    pub letters: Vec<Letter>,
    pub skip: Vec<bool>,
    pub expiries: u32,
}

/// What a divide answers: that it was stale, or the claim on what is held on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parted {
    Stale,
    Done(Option<Grip>),
}

/// A message as it can be seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub body: u32,
    pub due: Moment,
    pub repeat: bool,
    pub claimed: bool,
    pub gone: bool,
    pub done: bool,
    pub expiries: u32,
}

/// What becomes of the live messages of a divided bundle, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Share {
    Confirmed,
    /// Due again with its like, and whether it says from now on that it may be a repeat.
    Back {
        repeat: bool,
    },
    /// Due again, in a bundle of its own that remembers how often claims on the old one expired.
    Alone,
    /// Held on, under a new claim.
    Held,
    Dead {
        repeat: bool,
    },
}

/// A planted fault of the store; see `tests/model/world.rs` for those of the actors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// Any token holds any claim.
    NoFencing,
    /// The deadline is the token: two claims of one millisecond share it.
    DeadlineToken,
    /// A claim reads `gone` and clears it.
    GoneCleared,
    /// A call that is run twice is applied twice.
    Unnumbered,
    /// A message that is moved forgets that claims on it expired.
    MoveForgets,
    /// A call that is refused is not remembered: a copy of it may be applied.
    RefusalForgotten,
}

/// What a caller saw when it looked, before it wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Look {
    /// The bundles behind the names that it speaks of.
    pub bundles: BTreeSet<usize>,
    /// The place in the order that it gives what it stores, where the route's keys leave in order.
    pub stamp: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Model {
    bundles: BTreeMap<usize, Kept>,
    /// The next bundle's number.
    pub next: usize,
    names: BTreeMap<Name, (usize, usize)>,
    /// By body.
    dead: BTreeMap<u32, Letter>,
    /// Whether the route remembers what it delivered.
    remembers: bool,
    pub remembered: BTreeSet<Name>,
    /// Bodies that were cancelled, replaced or suppressed: nobody owes them to anyone.
    pub let_go: BTreeSet<u32>,
    pub flaw: Option<Flaw>,
    /// What stands for a deadline where that is the token.
    pub now: Moment,
    /// A claim that had been lost changed something all the same.
    pub breached: bool,
    /// The highest place in the order that was given.
    stamp: u32,
}

impl Model {
    pub fn new(remembers: bool) -> Self {
        Self { remembers, ..Self::default() }
    }

    /// What was delivered, whoever held its claim.
    pub fn remember(&mut self, delivered: impl IntoIterator<Item = Name>) {
        if self.remembers {
            self.remembered.extend(delivered);
        }
    }

    /// What a caller sees who is about to write under these names.
    pub fn look(&self, names: &[Name], ordered: bool) -> Look {
        let bundles =
            names.iter().filter_map(|name| self.names.get(name)).map(|(bundle, _)| *bundle).collect();
        Look { bundles, stamp: ordered.then_some(self.stamp + 1) }
    }

    /// Whether all is still as that caller saw it; if so, its place in the order is taken.
    pub fn is_as_seen(&mut self, names: &[Name], seen: &Look) -> bool {
        let now = self.look(names, false).bundles;
        let stands = now.is_subset(&seen.bundles) && seen.stamp.is_none_or(|stamp| stamp > self.stamp);
        if stands {
            self.stamp = seen.stamp.unwrap_or(self.stamp);
        }
        stands
    }

    fn state(&self, name: Name) -> Option<(usize, usize, Place)> {
        let &(bundle, index) = self.names.get(name)?;
        let kept = self.bundles.get(&bundle)?;
        let slot = &kept.slots[index];
        (!slot.gone && !slot.done).then_some((bundle, index, kept.place))
    }

    fn add(&mut self, letters: Vec<Letter>, place: Place, expiries: u32) -> usize {
        let slots = letters.into_iter().map(|letter| Slot { letter, gone: false, done: false }).collect();
        let claims = u32::from(place != Place::Due);
        self.bundles.insert(self.next, Kept { slots, place, expiries, claims });
        self.next += 1;
        self.next - 1
    }

    fn bundle(&mut self, bundle: usize) -> &mut Kept {
        self.bundles.get_mut(&bundle).expect("a bundle that stands")
    }

    /// Takes a message out of a bundle that is due; the bundle goes with its last.
    fn take_out(&mut self, bundle: usize, index: usize) -> Letter {
        let kept = self.bundle(bundle);
        kept.slots[index].gone = true;
        let letter = kept.slots[index].letter;
        if kept.slots.iter().all(|s| s.gone || s.done) {
            self.bundles.remove(&bundle);
        }
        letter
    }

    pub fn store(&mut self, letters: Vec<Letter>, replace: bool) -> Vec<Said> {
        let bundle = self.add(letters.clone(), Place::Due, 0);
        let mut results = Vec::new();
        for (index, letter) in letters.into_iter().enumerate() {
            let Some(name) = letter.name else {
                results.push(Said::Stored);
                continue;
            };
            let taken = match self.state(name) {
                Some((_, _, Place::Claimed { .. })) => self.remembers,
                Some((_, _, Place::Due)) => !replace,
                _ => self.remembered.contains(name),
            };
            if taken {
                self.bundle(bundle).slots[index].gone = true;
                self.let_go.insert(letter.body);
                results.push(Said::Duplicate);
                continue;
            }
            if let Some((old, at, Place::Due)) = self.state(name) {
                let replaced = self.take_out(old, at);
                self.let_go.insert(replaced.body);
                results.push(Said::Replaced);
            } else {
                results.push(Said::Stored);
            }
            self.names.insert(name, (bundle, index));
        }
        if self.bundle(bundle).slots.iter().all(|s| s.gone) {
            self.bundles.remove(&bundle);
        }
        results
    }

    pub fn cancel(&mut self, name: Name) -> Said {
        match self.state(name) {
            Some((bundle, index, Place::Due)) => {
                let cancelled = self.take_out(bundle, index);
                self.let_go.insert(cancelled.body);
                self.names.remove(name);
                Said::Cancelled
            }
            Some(_) => Said::InFlight,
            None if self.remembered.contains(name) => Said::Published,
            None => Said::Unknown,
        }
    }

    /// Moves a pending message, or stores `fallback` under its own due time if the name is free.
    pub fn reschedule(&mut self, name: Name, due: Moment, fallback: Letter) -> Said {
        let (letter, expiries, result) = match self.state(name) {
            Some((bundle, index, Place::Due)) => {
                let expiries = self.bundles[&bundle].expiries;
                // A holder of before may have published it: it goes on saying so.
                let kept = if self.flaw == Some(Flaw::MoveForgets) { 0 } else { expiries };
                (self.take_out(bundle, index), kept, Said::Rescheduled)
            }
            Some(_) => return Said::TooLate,
            None if self.remembered.contains(name) => return Said::TooLate,
            None => (fallback, 0, Said::Stored),
        };
        let bundle = self.add(vec![Letter { due, ..letter }], Place::Due, expiries);
        self.names.insert(name, (bundle, 0));
        result
    }

    /// Claims all that is due by `until`, in the order in which it was stored. `who` (below 64) makes the claim's
    /// token the claimer's own.
    pub fn claim(&mut self, until: Moment, expires: bool, who: u32) -> Vec<Taken> {
        let mut taken = Vec::new();
        for (&bundle, kept) in &mut self.bundles {
            if !kept.is_due(until) {
                continue;
            }
            kept.claims += 1;
            let nonce = kept.claims * 64 + who;
            let token = if self.flaw == Some(Flaw::DeadlineToken) { self.now } else { i64::from(nonce) };
            kept.place = Place::Claimed { token, nonce, expires };
            let letters = kept.slots.iter().map(|s| s.letter).collect();
            let skip = kept.slots.iter().map(|s| s.gone || s.done).collect();
            if self.flaw == Some(Flaw::GoneCleared) {
                kept.slots.iter_mut().for_each(|s| s.gone = false);
            }
            taken.push(Taken { grip: Grip { bundle, nonce, token }, letters, skip, expiries: kept.expiries });
        }
        taken
    }

    fn ours(&mut self, grip: Grip) -> bool {
        let (ours, truly) = match self.bundles.get(&grip.bundle).map(|kept| kept.place) {
            Some(Place::Claimed { token, nonce, .. }) => (token == grip.token, nonce == grip.nonce),
            Some(Place::Due) => (false, false),
            None => return false,
        };
        let ours = ours || self.flaw == Some(Flaw::NoFencing);
        self.breached |= ours && !truly;
        ours
    }

    fn note(&mut self, bundle: usize, confirmed: &[bool]) {
        let Some(kept) = self.bundles.get_mut(&bundle) else { return };
        for (slot, _) in kept.slots.iter_mut().zip(confirmed).filter(|(_, c)| **c) {
            slot.done = true;
        }
    }

    fn free_names(&mut self, bundle: usize) {
        self.names.retain(|_, place| place.0 != bundle);
    }

    pub fn settle(&mut self, grip: Grip) -> bool {
        let ours = self.ours(grip);
        if ours {
            self.bundles.remove(&grip.bundle);
            self.free_names(grip.bundle);
        } else {
            let count = self.bundles.get(&grip.bundle).map_or(0, |kept| kept.slots.len());
            self.note(grip.bundle, &vec![true; count]);
        }
        ours
    }

    pub fn extend(&mut self, grip: Grip, expires: bool, confirmed: &[bool]) -> bool {
        let ours = self.ours(grip);
        if ours {
            let moved = (self.flaw == Some(Flaw::DeadlineToken)).then_some(self.now);
            if let Place::Claimed { token, expires: was, .. } = &mut self.bundle(grip.bundle).place {
                *token = moved.unwrap_or(*token);
                *was = expires;
            }
        }
        self.note(grip.bundle, confirmed);
        ours
    }

    pub fn give_back(&mut self, grip: Grip, confirmed: &[bool]) -> bool {
        let ours = self.ours(grip);
        if ours {
            self.note(grip.bundle, confirmed);
            self.bundle(grip.bundle).place = Place::Due;
        }
        ours
    }

    /// Divides by one share a message of the bundle (`None`: it was not to be published). Answers the claim
    /// on what is held on, if the bundle was ours and something is.
    pub fn divide(&mut self, grip: Grip, shares: &[Option<Share>], back_at: Moment) -> Parted {
        if !self.ours(grip) {
            let confirmed: Vec<_> = shares.iter().map(|s| *s == Some(Share::Confirmed)).collect();
            self.note(grip.bundle, &confirmed);
            return Parted::Stale;
        }
        let old = self.bundle(grip.bundle).clone();
        let (mut back, mut held, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        for (index, share) in shares.iter().enumerate() {
            let letter = old.slots[index].letter;
            let now_repeat = |repeat: bool| Letter { repeat: letter.repeat || repeat, ..letter };
            match share {
                Some(Share::Back { repeat }) => {
                    back.push((index, Letter { due: back_at, ..now_repeat(*repeat) }));
                }
                Some(Share::Alone) => alone.push((index, Letter { due: back_at, ..letter })),
                Some(Share::Held) => held.push((index, letter)),
                Some(Share::Dead { repeat }) => {
                    self.dead.insert(letter.body, now_repeat(*repeat));
                }
                Some(Share::Confirmed) | None => {}
            }
        }
        if !back.is_empty() {
            self.part(grip.bundle, &back, Place::Due, 0);
        }
        for one in alone {
            self.part(grip.bundle, &[one], Place::Due, old.expiries);
        }
        let mut kept = None;
        if !held.is_empty() {
            let (token, nonce) = (if self.flaw == Some(Flaw::DeadlineToken) { self.now } else { 1 }, 1);
            let place = Place::Claimed { token, nonce, expires: false };
            kept = Some(Grip { bundle: self.part(grip.bundle, &held, place, old.expiries), nonce, token });
        }
        self.bundles.remove(&grip.bundle);
        self.free_names(grip.bundle);
        Parted::Done(kept)
    }

    /// A new bundle of some messages of an old one, each with its place there.
    fn part(&mut self, old: usize, messages: &[(usize, Letter)], place: Place, expiries: u32) -> usize {
        let new = self.add(messages.iter().map(|(_, letter)| *letter).collect(), place, expiries);
        for (to, (from, letter)) in messages.iter().enumerate() {
            let Some(name) = letter.name else { continue };
            // A name that another has taken stays with it.
            if self.names.get(name).is_none_or(|place| *place == (old, *from)) {
                self.names.insert(name, (new, to));
            }
        }
        new
    }

    pub fn dead(&self) -> Vec<u32> {
        self.dead.keys().copied().collect()
    }

    pub fn redrive(&mut self, body: u32, due: Moment) -> bool {
        let Some(letter) = self.dead.remove(&body) else { return false };
        let bundle = self.add(vec![Letter { due, ..letter }], Place::Due, 0);
        if let Some(name) = letter.name {
            self.names.entry(name).or_insert((bundle, 0));
        }
        true
    }

    pub fn drop_dead(&mut self, body: u32) -> bool {
        self.dead.remove(&body).is_some()
    }

    pub fn sweep(&mut self) -> u32 {
        let mut expired = 0;
        for kept in self.bundles.values_mut() {
            if matches!(kept.place, Place::Claimed { expires: true, .. }) {
                kept.place = Place::Due;
                kept.expiries += 1;
                expired += 1;
            }
        }
        expired
    }

    /// Lets a claim's deadline pass.
    pub fn lapse(&mut self, bundle: usize) {
        if let Place::Claimed { expires, .. } = &mut self.bundle(bundle).place {
            *expires = true;
        }
    }

    /// Every message of every standing bundle.
    pub fn seen(&self) -> Vec<Seen> {
        let mut seen: Vec<_> = self.bundles.values().flat_map(Kept::seen).collect();
        seen.sort();
        seen
    }

    /// The names that mean a message that is pending or in flight.
    pub fn meanings(&self) -> BTreeMap<Name, u32> {
        let meant = |name: Name| {
            let (bundle, index, _) = self.state(name)?;
            Some((name, self.bundles[&bundle].slots[index].letter.body))
        };
        self.names.keys().filter_map(|&name| meant(name)).collect()
    }

    /// Claims: bundle, nonce, whether the deadline has passed.
    pub fn claims(&self) -> impl Iterator<Item = (usize, u32, bool)> {
        self.bundles.iter().filter_map(|(&bundle, kept)| match kept.place {
            Place::Claimed { nonce, expires, .. } => Some((bundle, nonce, expires)),
            Place::Due => None,
        })
    }

    /// Whether something is due by then.
    pub fn has_due(&self, until: Moment) -> bool {
        self.bundles.values().any(|kept| kept.is_due(until))
    }

    /// Whether no bundle stands.
    pub fn is_empty(&self) -> bool {
        self.bundles.is_empty()
    }

    /// The bodies of all that is neither gone nor done, and of dead letters.
    pub fn live(&self) -> impl Iterator<Item = u32> {
        let slots = self.bundles.values().flat_map(|kept| &kept.slots);
        slots.filter(|s| !s.gone && !s.done).map(|s| s.letter.body).chain(self.dead.keys().copied())
    }

    /// The earliest due time behind `now` of what waits.
    pub fn next_due(&self, now: Moment) -> Option<Moment> {
        let slots = self.bundles.values().flat_map(|kept| &kept.slots);
        slots.map(|s| s.letter.due).filter(|due| *due > now).min()
    }
}

impl Kept {
    fn is_due(&self, until: Moment) -> bool {
        self.place == Place::Due && self.slots.iter().any(|s| s.letter.due <= until)
    }

    fn seen(&self) -> impl Iterator<Item = Seen> {
        self.slots.iter().map(|slot| Seen {
            body: slot.letter.body,
            due: slot.letter.due,
            repeat: slot.letter.repeat,
            claimed: self.place != Place::Due,
            gone: slot.gone,
            done: slot.done,
            expiries: self.expiries,
        })
    }
}
