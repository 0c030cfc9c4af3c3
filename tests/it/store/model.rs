//! The pure model: what messages and names become, call by call. No Redis, no time, no bytes.

use std::collections::{BTreeMap, BTreeSet};

use postdate::domain::UnixMs;
use postdate::store::WriteResult;

/// A message of the model: its name, when it is due, and the body that tells it apart.
#[derive(Clone, Debug)]
pub struct Letter {
    pub name: Option<String>,
    pub due: UnixMs,
    pub body: String,
}

#[derive(Clone, Debug)]
struct Slot {
    letter: Letter,
    /// Cancelled, moved or suppressed.
    gone: bool,
    /// Confirmed, while its bundle stands.
    done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Due,
    Claimed { token: usize, expires: bool },
    Nowhere,
}

#[derive(Clone, Debug)]
struct Kept {
    slots: Vec<Slot>,
    place: Place,
    expiries: u32,
}

/// A claim in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grip {
    pub bundle: usize,
    token: usize,
}

/// A claimed bundle: its bodies, each with whether it is not to be published, and its expiries.
pub type Taken = (Grip, Vec<(String, bool)>, u32);

/// What a divide answers: that it was stale, or the claim on what is held on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parted {
    Stale,
    Done(Option<Grip>),
}

/// A message as it can be seen from outside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub body: String,
    pub due: UnixMs,
    pub claimed: bool,
    pub gone: bool,
    pub done: bool,
    pub expiries: u32,
}

/// What becomes of the live messages of a divided bundle, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    Confirmed,
    Back,
    Held,
    Dead,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    bundles: Vec<Kept>,
    names: BTreeMap<String, (usize, usize)>,
    /// By body.
    dead: BTreeMap<String, Letter>,
    tokens: usize,
    /// Whether the route remembers what it delivered.
    remembers: bool,
    pub remembered: BTreeSet<String>,
}

impl Model {
    pub fn new(remembers: bool) -> Self {
        Self { remembers, ..Self::default() }
    }

    /// What was delivered, whoever held its claim.
    pub fn remember(&mut self, delivered: impl IntoIterator<Item = String>) {
        if self.remembers {
            self.remembered.extend(delivered);
        }
    }

    fn state(&self, name: &str) -> Option<(usize, usize, Place)> {
        let &(bundle, index) = self.names.get(name)?;
        let kept = &self.bundles[bundle];
        let slot = &kept.slots[index];
        (kept.place != Place::Nowhere && !slot.gone && !slot.done).then_some((bundle, index, kept.place))
    }

    fn add(&mut self, letters: Vec<Letter>, place: Place, expiries: u32) -> usize {
        let slots = letters.into_iter().map(|letter| Slot { letter, gone: false, done: false }).collect();
        self.bundles.push(Kept { slots, place, expiries });
        self.bundles.len() - 1
    }

    /// Takes a message out of a bundle that is due; the bundle goes with its last.
    fn take_out(&mut self, bundle: usize, index: usize) {
        let kept = &mut self.bundles[bundle];
        kept.slots[index].gone = true;
        if kept.slots.iter().all(|s| s.gone || s.done) {
            kept.place = Place::Nowhere;
        }
    }

    pub fn store(&mut self, letters: Vec<Letter>, replace: bool) -> Vec<WriteResult> {
        let names: Vec<_> = letters.iter().map(|l| l.name.clone()).collect();
        let bundle = self.add(letters, Place::Due, 0);
        let mut results = Vec::new();
        for (index, name) in names.into_iter().enumerate() {
            let Some(name) = name else {
                results.push(WriteResult::Stored);
                continue;
            };
            match self.state(&name) {
                Some((_, _, Place::Claimed { .. })) if self.remembers => {
                    self.bundles[bundle].slots[index].gone = true;
                    results.push(WriteResult::Duplicate);
                    continue;
                }
                None if self.remembered.contains(&name) => {
                    self.bundles[bundle].slots[index].gone = true;
                    results.push(WriteResult::Duplicate);
                    continue;
                }
                Some((_, _, Place::Due)) if !replace => {
                    self.bundles[bundle].slots[index].gone = true;
                    results.push(WriteResult::Duplicate);
                    continue;
                }
                Some((old, at, Place::Due)) => {
                    self.take_out(old, at);
                    results.push(WriteResult::Replaced);
                }
                _ => results.push(WriteResult::Stored),
            }
            self.names.insert(name, (bundle, index));
        }
        if self.bundles[bundle].slots.iter().all(|s| s.gone) {
            self.bundles[bundle].place = Place::Nowhere;
        }
        results
    }

    pub fn cancel(&mut self, name: &str) -> WriteResult {
        match self.state(name) {
            Some((bundle, index, Place::Due)) => {
                self.take_out(bundle, index);
                self.names.remove(name);
                WriteResult::Cancelled
            }
            Some(_) => WriteResult::InFlight,
            None if self.remembered.contains(name) => WriteResult::Published,
            None => WriteResult::Unknown,
        }
    }

    pub fn reschedule(&mut self, name: &str, due: UnixMs, body: &str) -> WriteResult {
        let (letter, result) = match self.state(name) {
            Some((bundle, index, Place::Due)) => {
                self.take_out(bundle, index);
                let moved = self.bundles[bundle].slots[index].letter.clone();
                (Letter { due, ..moved }, WriteResult::Rescheduled)
            }
            Some(_) => return WriteResult::TooLate,
            None if self.remembered.contains(name) => return WriteResult::TooLate,
            None => (Letter { name: Some(name.into()), due, body: body.into() }, WriteResult::Stored),
        };
        let bundle = self.add(vec![letter], Place::Due, 0);
        self.names.insert(name.to_owned(), (bundle, 0));
        result
    }

    /// Claims all that is due by `until`; answers with each claim the bodies of its bundle and which of them
    /// are not to be published.
    pub fn claim(&mut self, until: UnixMs, expires: bool) -> Vec<Taken> {
        let mut taken = Vec::new();
        for (bundle, kept) in self.bundles.iter_mut().enumerate() {
            let first = kept.slots.iter().map(|s| s.letter.due).min().expect("not empty");
            if kept.place != Place::Due || first > until {
                continue;
            }
            self.tokens += 1;
            kept.place = Place::Claimed { token: self.tokens, expires };
            let bodies = kept.slots.iter().map(|s| (s.letter.body.clone(), s.gone || s.done)).collect();
            taken.push((Grip { bundle, token: self.tokens }, bodies, kept.expiries));
        }
        taken
    }

    fn ours(&self, grip: Grip) -> bool {
        matches!(self.bundles[grip.bundle].place, Place::Claimed { token, .. } if token == grip.token)
    }

    fn note(&mut self, bundle: usize, confirmed: &[bool]) {
        let kept = &mut self.bundles[bundle];
        if kept.place != Place::Nowhere {
            for (slot, _) in kept.slots.iter_mut().zip(confirmed).filter(|(_, c)| **c) {
                slot.done = true;
            }
        }
    }

    fn free_names(&mut self, bundle: usize) {
        self.names.retain(|_, place| place.0 != bundle);
    }

    pub fn settle(&mut self, grip: Grip) -> bool {
        let ours = self.ours(grip);
        if ours {
            self.bundles[grip.bundle].place = Place::Nowhere;
            self.free_names(grip.bundle);
        } else {
            self.note(grip.bundle, &vec![true; self.bundles[grip.bundle].slots.len()]);
        }
        ours
    }

    pub fn extend(&mut self, grip: Grip, expires: bool, confirmed: &[bool]) -> bool {
        let ours = self.ours(grip);
        if ours {
            self.bundles[grip.bundle].place = Place::Claimed { token: grip.token, expires };
        }
        self.note(grip.bundle, confirmed);
        ours
    }

    pub fn give_back(&mut self, grip: Grip, confirmed: &[bool]) -> bool {
        let ours = self.ours(grip);
        if ours {
            self.note(grip.bundle, confirmed);
            self.bundles[grip.bundle].place = Place::Due;
        }
        ours
    }

    /// Divides by one share a message of the bundle (`None`: it was not to be published). Answers the claim
    /// on what is held on, if the bundle was ours and something is.
    pub fn divide(&mut self, grip: Grip, shares: &[Option<Share>], back_at: UnixMs) -> Parted {
        let confirmed: Vec<_> = shares.iter().map(|s| *s == Some(Share::Confirmed)).collect();
        if !self.ours(grip) {
            self.note(grip.bundle, &confirmed);
            return Parted::Stale;
        }
        let old = self.bundles[grip.bundle].clone();
        let of = |wanted: Share| -> Vec<usize> {
            (0..shares.len()).filter(|&i| shares[i] == Some(wanted)).collect()
        };
        let mut held = None;
        for (share, indexes) in [(Share::Back, of(Share::Back)), (Share::Held, of(Share::Held))] {
            if indexes.is_empty() {
                continue;
            }
            let mut letters: Vec<Letter> = indexes.iter().map(|&i| old.slots[i].letter.clone()).collect();
            let place = if share == Share::Held {
                self.tokens += 1;
                held = Some(Grip { bundle: self.bundles.len(), token: self.tokens });
                Place::Claimed { token: self.tokens, expires: false }
            } else {
                for letter in &mut letters {
                    letter.due = back_at;
                }
                Place::Due
            };
            let new = self.add(letters, place, old.expiries);
            for (to, from) in indexes.into_iter().enumerate() {
                let Some(name) = old.slots[from].letter.name.clone() else { continue };
                // A name that another has taken stays with it.
                if self.names.get(&name).is_none_or(|place| *place == (grip.bundle, from)) {
                    self.names.insert(name, (new, to));
                }
            }
        }
        let dead = of(Share::Dead).into_iter().map(|i| old.slots[i].letter.clone());
        self.dead.extend(dead.map(|letter| (letter.body.clone(), letter)));
        self.bundles[grip.bundle].place = Place::Nowhere;
        self.free_names(grip.bundle);
        Parted::Done(held)
    }

    pub fn dead(&self) -> Vec<String> {
        self.dead.keys().cloned().collect()
    }

    pub fn redrive(&mut self, body: &str, due: UnixMs) -> bool {
        let Some(letter) = self.dead.remove(body) else { return false };
        let name = letter.name.clone();
        let bundle = self.add(vec![Letter { due, ..letter }], Place::Due, 0);
        if let Some(name) = name {
            self.names.entry(name).or_insert((bundle, 0));
        }
        true
    }

    pub fn drop_dead(&mut self, body: &str) -> bool {
        self.dead.remove(body).is_some()
    }

    pub fn sweep(&mut self) -> u32 {
        let mut expired = 0;
        for kept in &mut self.bundles {
            if matches!(kept.place, Place::Claimed { expires: true, .. }) {
                kept.place = Place::Due;
                kept.expiries += 1;
                expired += 1;
            }
        }
        expired
    }

    /// Every message of every standing bundle.
    pub fn seen(&self) -> Vec<Seen> {
        let mut seen: Vec<_> = self
            .bundles
            .iter()
            .filter(|kept| kept.place != Place::Nowhere)
            .flat_map(|kept| {
                kept.slots.iter().map(|slot| Seen {
                    body: slot.letter.body.clone(),
                    due: slot.letter.due,
                    claimed: kept.place != Place::Due,
                    gone: slot.gone,
                    done: slot.done,
                    expiries: kept.expiries,
                })
            })
            .collect();
        seen.sort();
        seen
    }

    /// The names that mean a message that is pending or in flight.
    pub fn meanings(&self) -> BTreeMap<String, String> {
        let meant = |name: &String| {
            let (bundle, index, _) = self.state(name)?;
            Some((name.clone(), self.bundles[bundle].slots[index].letter.body.clone()))
        };
        self.names.keys().filter_map(meant).collect()
    }
}
