//! The pure model: what messages and names become, call by call. No Redis, no bytes, no dependency.
//!
//! One partition of the store. `tests/it/store` makes the same calls on this and on real Redis and compares
//! every answer and all that stands afterwards; `tests/model` searches what actors that crash, and wires that
//! lose replies, can make of it. A rule that changes in a script changes here, and both hear of it.

use std::collections::{BTreeMap, BTreeSet};

/// Unix ms against Redis; small numbers in a search.
pub type Moment = i64;
pub type Name = &'static str;

/// A message of the model: its name, when it is due, until when it is wanted, the body that tells it apart, and whether it
/// says of itself that it may repeat an earlier publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    pub name: Option<Name>,
    pub due: Moment,
    /// The last moment at which it is wanted.
    pub last: Option<Moment>,
    /// How often its consumers have given it back.
    pub count: u32,
    pub body: u32,
    pub repeat: bool,
}

impl Message {
    /// The name by which its delivery is remembered.
    pub fn remembered(&self) -> Option<Name> {
        self.name.filter(|_| self.count == 0)
    }
}

/// Answer of a write for one message or command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteResult {
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
    message: Message,
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
struct StoredBundle {
    slots: Vec<Slot>,
    place: Place,
    expiries: u32,
    /// How often it was claimed.
    claims: u32,
    /// It takes in messages of this writer, and nobody publishes from it.
    grows_of: Option<u32>,
}

/// A claim in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    pub bundle: usize,
    pub nonce: u32,
    token: i64,
}

/// A claimed bundle: its messages, which of them are not to be published, and its expiries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claimed {
    pub claim: Claim,
    pub messages: Vec<Message>,
    pub skip: Vec<bool>,
    pub expiries: u32,
}

/// Answer of a divide: stale, or done with the claim on the messages that stay in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SettleOutcome {
    Stale,
    Done(Option<Claim>),
}

/// A message as it can be seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MessageView {
    pub body: u32,
    pub due: Moment,
    pub repeat: bool,
    pub claimed: bool,
    pub gone: bool,
    pub done: bool,
    pub expiries: u32,
}

/// Share of one live message in a division.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Share {
    Confirmed,
    /// Due again with its like, and whether it says from now on that it may be a repeat.
    Back {
        repeat: bool,
    },
    /// Due again, in a bundle of its own that remembers how often claims on the old one expired.
    Alone,
    /// Stays in flight, under a new claim.
    InFlight,
    Dead {
        repeat: bool,
    },
}

/// A planted fault of the store; see `tests/model/world.rs` for those of the actors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreFault {
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
    /// A growing bundle is spread as it was read, whatever has left it since.
    SpreadBlindly,
    /// A message whose place another one takes stays in its bundle, without its name.
    ReplaceLeaves,
    /// A message that its consumer gives back is a duplicate of itself while it is in flight.
    CountIgnored,
}

/// Bundles and sequence number that a caller found before its write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FindResult {
    /// Bundles behind the names of the write.
    pub bundles: BTreeSet<usize>,
    /// Sequence number of the messages to be stored, where the route's keys leave in order.
    pub sequence: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Model {
    bundles: BTreeMap<usize, StoredBundle>,
    /// The next bundle's number.
    pub next: usize,
    names: BTreeMap<Name, (usize, usize)>,
    /// By body.
    dead: BTreeMap<u32, Message>,
    /// Set where the route remembers delivered names.
    remembers: bool,
    pub remembered: BTreeSet<Name>,
    /// Bodies that were cancelled, replaced or suppressed: nobody owes them to anyone.
    pub let_go: BTreeSet<u32>,
    pub fault: Option<StoreFault>,
    /// Stands for the deadline, where a planted fault makes the deadline the token.
    pub now: Moment,
    /// A claim that had been lost changed something all the same.
    pub breached: bool,
    /// Highest sequence number given so far.
    sequence: u32,
}

impl Model {
    pub fn new(remembers: bool) -> Self {
        Self {
            remembers,
            ..Self::default()
        }
    }

    /// Remembers delivered names, whoever had the claim.
    pub fn remember(&mut self, delivered: impl IntoIterator<Item = Name>) {
        if self.remembers {
            self.remembered.extend(delivered);
        }
    }

    /// Finds the bundles behind these names, for a caller about to write under them.
    pub fn find(&self, names: &[Name], ordered: bool) -> FindResult {
        let bundles = names
            .iter()
            .filter_map(|name| self.names.get(name))
            .map(|(bundle, _)| *bundle)
            .collect();
        FindResult {
            bundles,
            sequence: ordered.then_some(self.sequence + 1),
        }
    }

    /// Reports whether all is still as the caller found it; if so, its sequence number is taken.
    pub fn is_as_seen(&mut self, names: &[Name], seen: &FindResult) -> bool {
        let now = self.find(names, false).bundles;
        let stands = now.is_subset(&seen.bundles)
            && seen
                .sequence
                .is_none_or(|sequence| sequence > self.sequence);
        if stands {
            self.sequence = seen.sequence.unwrap_or(self.sequence);
        }
        stands
    }

    fn state(&self, name: Name) -> Option<(usize, usize, Place)> {
        let &(bundle, index) = self.names.get(name)?;
        let kept = self.bundles.get(&bundle)?;
        let slot = &kept.slots[index];
        (!slot.gone && !slot.done).then_some((bundle, index, kept.place))
    }

    fn add(&mut self, messages: Vec<Message>, place: Place, expiries: u32) -> usize {
        let slots = messages
            .into_iter()
            .map(|message| Slot {
                message,
                gone: false,
                done: false,
            })
            .collect();
        let claims = u32::from(place != Place::Due);
        self.bundles.insert(
            self.next,
            StoredBundle {
                slots,
                place,
                expiries,
                claims,
                grows_of: None,
            },
        );
        self.next += 1;
        self.next - 1
    }

    /// The places of messages that join this writer's growing bundle.
    fn grow(&mut self, messages: Vec<Message>, writer: u32) -> (usize, usize) {
        let is_open = |kept: &StoredBundle| kept.grows_of == Some(writer);
        let open = self.bundles.iter().find(|(_, kept)| is_open(kept));
        let Some(bundle) = open.map(|(&bundle, _)| bundle) else {
            let bundle = self.add(messages, Place::Due, 0);
            self.bundle(bundle).grows_of = Some(writer);
            return (bundle, 0);
        };
        let slots = &mut self.bundle(bundle).slots;
        let first = slots.len();
        slots.extend(messages.into_iter().map(|message| Slot {
            message,
            gone: false,
            done: false,
        }));
        (bundle, first)
    }

    fn bundle(&mut self, bundle: usize) -> &mut StoredBundle {
        self.bundles.get_mut(&bundle).expect("a bundle that stands")
    }

    /// Takes a message out of a bundle that is due; the bundle goes with its last.
    fn take_out(&mut self, bundle: usize, index: usize) -> Message {
        let kept = self.bundle(bundle);
        kept.slots[index].gone = true;
        let message = kept.slots[index].message;
        if kept.slots.iter().all(|s| s.gone || s.done) {
            self.bundles.remove(&bundle);
        }
        message
    }

    pub fn store(&mut self, messages: Vec<Message>, replace: bool) -> Vec<WriteResult> {
        let bundle = self.add(messages.clone(), Place::Due, 0);
        self.judge(bundle, 0, messages, replace)
    }

    /// The same for messages that are due much later.
    pub fn store_growing(
        &mut self,
        messages: Vec<Message>,
        replace: bool,
        writer: u32,
    ) -> Vec<WriteResult> {
        let (bundle, first) = self.grow(messages.clone(), writer);
        self.judge(bundle, first, messages, replace)
    }

    /// Judges messages that have their places in a bundle, from the first of these on.
    fn judge(
        &mut self,
        bundle: usize,
        first: usize,
        messages: Vec<Message>,
        replace: bool,
    ) -> Vec<WriteResult> {
        let mut results = Vec::new();
        for (index, message) in (first..).zip(messages) {
            let Some(name) = message.name else {
                results.push(WriteResult::Stored);
                continue;
            };
            // What waits or is in flight may be what its consumer has given back: it was delivered, and is not settled yet.
            let is_alike = |bundle: usize, index: usize| {
                let count = self.bundles[&bundle].slots[index].message.count;
                let is_counted = message.count > 0 && self.fault != Some(StoreFault::CountIgnored);
                !is_counted || count == message.count
            };
            let taken = match self.state(name) {
                Some((old, at, Place::Claimed { .. })) => self.remembers && is_alike(old, at),
                Some((old, at, Place::Due)) => !replace && is_alike(old, at),
                None => message.count == 0 && self.remembered.contains(name),
            };
            if taken {
                self.bundle(bundle).slots[index].gone = true;
                self.let_go.insert(message.body);
                results.push(WriteResult::Duplicate);
                continue;
            }
            if let Some((old, at, Place::Due)) = self.state(name).filter(|_| replace) {
                let replaced = self.take_out(old, at);
                self.let_go.insert(replaced.body);
                results.push(WriteResult::Replaced);
            } else {
                results.push(WriteResult::Stored);
            }
            self.names.insert(name, (bundle, index));
        }
        let kept = self.bundles.get(&bundle);
        if kept.is_some_and(|kept| kept.slots.iter().all(|s| s.gone)) {
            self.bundles.remove(&bundle);
        }
        results
    }

    pub fn cancel(&mut self, name: Name) -> WriteResult {
        match self.state(name) {
            Some((bundle, index, Place::Due)) => {
                let cancelled = self.take_out(bundle, index);
                self.let_go.insert(cancelled.body);
                self.names.remove(name);
                WriteResult::Cancelled
            }
            Some(_) => WriteResult::InFlight,
            None if self.remembered.contains(name) => WriteResult::Published,
            None => WriteResult::Unknown,
        }
    }

    /// Moves a pending message, or stores `fallback` under its own due time if the name is free.
    pub fn reschedule(&mut self, name: Name, due: Moment, fallback: Message) -> WriteResult {
        let (message, expiries, result) = match self.state(name) {
            Some((bundle, index, Place::Due)) => {
                let slot = &self.bundles[&bundle].slots[index];
                if slot.message.last.is_some_and(|last| due >= last) {
                    return WriteResult::TooLate;
                }
                let expiries = self.bundles[&bundle].expiries;
                // A holder of before may have published it: it goes on saying so.
                let kept = if self.fault == Some(StoreFault::MoveForgets) {
                    0
                } else {
                    expiries
                };
                (self.take_out(bundle, index), kept, WriteResult::Rescheduled)
            }
            Some(_) => return WriteResult::TooLate,
            None if self.remembered.contains(name) => return WriteResult::TooLate,
            None => (fallback, 0, WriteResult::Stored),
        };
        let bundle = self.add(vec![Message { due, ..message }], Place::Due, expiries);
        self.names.insert(name, (bundle, 0));
        result
    }

    /// Puts a message in the place of the pending one of its name, or stores it if the name is free.
    pub fn replace(&mut self, name: Name, message: Message) -> WriteResult {
        let (expiries, result) = match self.state(name) {
            Some((bundle, index, Place::Due)) => {
                let expiries = self.bundles[&bundle].expiries;
                if self.fault != Some(StoreFault::ReplaceLeaves) {
                    let replaced = self.take_out(bundle, index);
                    self.let_go.insert(replaced.body);
                }
                (expiries, WriteResult::Replaced)
            }
            Some(_) => return WriteResult::TooLate,
            None if self.remembered.contains(name) => return WriteResult::TooLate,
            None => (0, WriteResult::Stored),
        };
        let bundle = self.add(vec![message], Place::Due, expiries);
        self.names.insert(name, (bundle, 0));
        result
    }

    /// Claims all that is due by `until`, in the order in which it was stored. `who` (below 64) makes the claim's
    /// token the claimer's own.
    pub fn claim(&mut self, until: Moment, expires: bool, who: u32) -> Vec<Claimed> {
        let mut taken = Vec::new();
        for (&bundle, kept) in &mut self.bundles {
            if !kept.is_due(until) {
                continue;
            }
            kept.claims += 1;
            let nonce = kept.claims * 64 + who;
            let token = if self.fault == Some(StoreFault::DeadlineToken) {
                self.now
            } else {
                i64::from(nonce)
            };
            kept.place = Place::Claimed {
                token,
                nonce,
                expires,
            };
            let messages = kept.slots.iter().map(|s| s.message).collect();
            let skip = kept.slots.iter().map(|s| s.gone || s.done).collect();
            if self.fault == Some(StoreFault::GoneCleared) {
                kept.slots.iter_mut().for_each(|s| s.gone = false);
            }
            taken.push(Claimed {
                claim: Claim {
                    bundle,
                    nonce,
                    token,
                },
                messages,
                skip,
                expiries: kept.expiries,
            });
        }
        taken
    }

    /// Which messages of a bundle are gone. `None`: it does not stand.
    pub fn gone(&self, bundle: usize) -> Option<Vec<bool>> {
        let kept = self.bundles.get(&bundle)?;
        Some(kept.slots.iter().map(|s| s.gone).collect())
    }

    /// Moves the messages of a growing bundle into bundles of their own, as its reader saw it. False: it is not as it was.
    pub fn spread(&mut self, bundle: usize, seen: &[bool]) -> bool {
        let blind = self.fault == Some(StoreFault::SpreadBlindly);
        let Some(gone) = self.gone(bundle) else {
            return false;
        };
        if !blind && gone != seen {
            return false;
        }
        let slots = self.bundle(bundle).slots.clone();
        for (index, slot) in slots.iter().enumerate() {
            if seen.get(index) == Some(&false) {
                self.part(bundle, &[(index, slot.message)], Place::Due, 0);
            }
        }
        self.bundles.remove(&bundle);
        self.free_names(bundle);
        true
    }

    /// The growing bundles.
    pub fn growing(&self) -> impl Iterator<Item = usize> {
        let growing = self
            .bundles
            .iter()
            .filter(|(_, kept)| kept.grows_of.is_some());
        growing.map(|(&bundle, _)| bundle)
    }

    fn ours(&mut self, claim: Claim) -> bool {
        let (ours, truly) = match self.bundles.get(&claim.bundle).map(|kept| kept.place) {
            Some(Place::Claimed { token, nonce, .. }) => {
                (token == claim.token, nonce == claim.nonce)
            }
            Some(Place::Due) => (false, false),
            None => return false,
        };
        let ours = ours || self.fault == Some(StoreFault::NoFencing);
        self.breached |= ours && !truly;
        ours
    }

    fn note(&mut self, bundle: usize, confirmed: &[bool]) {
        let Some(kept) = self.bundles.get_mut(&bundle) else {
            return;
        };
        for (slot, _) in kept.slots.iter_mut().zip(confirmed).filter(|(_, c)| **c) {
            slot.done = true;
        }
    }

    fn free_names(&mut self, bundle: usize) {
        self.names.retain(|_, place| place.0 != bundle);
    }

    pub fn settle(&mut self, claim: Claim) -> bool {
        let ours = self.ours(claim);
        if ours {
            self.bundles.remove(&claim.bundle);
            self.free_names(claim.bundle);
        } else {
            let count = self
                .bundles
                .get(&claim.bundle)
                .map_or(0, |kept| kept.slots.len());
            self.note(claim.bundle, &vec![true; count]);
        }
        ours
    }

    pub fn extend(&mut self, claim: Claim, expires: bool, confirmed: &[bool]) -> bool {
        let ours = self.ours(claim);
        if ours {
            let moved = (self.fault == Some(StoreFault::DeadlineToken)).then_some(self.now);
            if let Place::Claimed {
                token,
                expires: was,
                ..
            } = &mut self.bundle(claim.bundle).place
            {
                *token = moved.unwrap_or(*token);
                *was = expires;
            }
        }
        self.note(claim.bundle, confirmed);
        ours
    }

    pub fn give_back(&mut self, claim: Claim, confirmed: &[bool]) -> bool {
        let ours = self.ours(claim);
        if ours {
            self.bundle(claim.bundle).place = Place::Due;
        }
        self.note(claim.bundle, confirmed);
        ours
    }

    /// Divides by one share a message of the bundle (`None`: it was not to be published). Answers the claim
    /// on the messages that stay in flight, if the claim was valid and there are any.
    pub fn divide(
        &mut self,
        claim: Claim,
        shares: &[Option<Share>],
        back_at: Moment,
    ) -> SettleOutcome {
        if !self.ours(claim) {
            let confirmed: Vec<_> = shares
                .iter()
                .map(|s| *s == Some(Share::Confirmed))
                .collect();
            self.note(claim.bundle, &confirmed);
            return SettleOutcome::Stale;
        }
        let old = self.bundle(claim.bundle).clone();
        let mut back = Vec::new();
        let mut held = Vec::new();
        let mut alone = Vec::new();
        for (index, share) in shares.iter().enumerate() {
            let message = old.slots[index].message;
            let now_repeat = |repeat: bool| Message {
                repeat: message.repeat || repeat,
                ..message
            };
            match share {
                Some(Share::Back { repeat }) => {
                    back.push((
                        index,
                        Message {
                            due: back_at,
                            ..now_repeat(*repeat)
                        },
                    ));
                }
                Some(Share::Alone) => alone.push((
                    index,
                    Message {
                        due: back_at,
                        ..message
                    },
                )),
                Some(Share::InFlight) => held.push((index, message)),
                Some(Share::Dead { repeat }) => {
                    self.dead.insert(message.body, now_repeat(*repeat));
                }
                Some(Share::Confirmed) | None => {}
            }
        }
        if !back.is_empty() {
            self.part(claim.bundle, &back, Place::Due, 0);
        }
        for one in alone {
            self.part(claim.bundle, &[one], Place::Due, old.expiries);
        }
        let mut kept = None;
        if !held.is_empty() {
            let token = if self.fault == Some(StoreFault::DeadlineToken) {
                self.now
            } else {
                1
            };
            let nonce = 1;
            let place = Place::Claimed {
                token,
                nonce,
                expires: false,
            };
            kept = Some(Claim {
                bundle: self.part(claim.bundle, &held, place, old.expiries),
                nonce,
                token,
            });
        }
        self.bundles.remove(&claim.bundle);
        self.free_names(claim.bundle);
        SettleOutcome::Done(kept)
    }

    /// A new bundle of some messages of an old one, each with its place there.
    fn part(
        &mut self,
        old: usize,
        messages: &[(usize, Message)],
        place: Place,
        expiries: u32,
    ) -> usize {
        let new = self.add(
            messages.iter().map(|(_, message)| *message).collect(),
            place,
            expiries,
        );
        for (to, (from, message)) in messages.iter().enumerate() {
            let Some(name) = message.name else { continue };
            // A name that another has taken stays with it.
            if self
                .names
                .get(name)
                .is_none_or(|place| *place == (old, *from))
            {
                self.names.insert(name, (new, to));
            }
        }
        new
    }

    pub fn dead(&self) -> Vec<u32> {
        self.dead.keys().copied().collect()
    }

    pub fn redrive(&mut self, body: u32, due: Moment) -> bool {
        let Some(message) = self.dead.remove(&body) else {
            return false;
        };
        // It has no expiry any more.
        let again = Message {
            due,
            last: None,
            ..message
        };
        let bundle = self.add(vec![again], Place::Due, 0);
        if let Some(name) = message.name {
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
    pub fn seen(&self) -> Vec<MessageView> {
        let mut seen: Vec<_> = self.bundles.values().flat_map(StoredBundle::seen).collect();
        seen.sort();
        seen
    }

    /// The names that mean a message that is pending or in flight.
    pub fn meanings(&self) -> BTreeMap<Name, u32> {
        let meant = |name: Name| {
            let (bundle, index, _) = self.state(name)?;
            Some((name, self.bundles[&bundle].slots[index].message.body))
        };
        self.names.keys().filter_map(|&name| meant(name)).collect()
    }

    /// Messages that wait without their names have them again where they are free.
    pub fn regain(&mut self, meanings: &BTreeMap<Name, u32>) {
        for (&name, &body) in meanings {
            let waits = self
                .bundles
                .iter()
                .filter(|(_, kept)| kept.place == Place::Due);
            let mut places = waits.flat_map(|(&bundle, kept)| {
                (0..kept.slots.len()).map(move |index| (bundle, index, &kept.slots[index]))
            });
            let found = places.find(|(_, _, slot)| {
                slot.message.name == Some(name) && slot.message.body == body && !slot.gone
            });
            let found = found.map(|(bundle, index, _)| (bundle, index));
            if let Some(place) = found.filter(|_| self.state(name).is_none()) {
                self.names.insert(name, place);
            }
        }
    }

    /// Claims: bundle, nonce, whether the deadline has passed.
    pub fn claims(&self) -> impl Iterator<Item = (usize, u32, bool)> {
        self.bundles
            .iter()
            .filter_map(|(&bundle, kept)| match kept.place {
                Place::Claimed { nonce, expires, .. } => Some((bundle, nonce, expires)),
                Place::Due => None,
            })
    }

    /// Reports whether a bundle is due by then.
    pub fn has_due(&self, until: Moment) -> bool {
        self.bundles.values().any(|kept| kept.is_due(until))
    }

    /// Reports whether the store has no bundle.
    pub fn is_empty(&self) -> bool {
        self.bundles.is_empty()
    }

    /// The bodies of all that is neither gone nor done, and of dead letters.
    pub fn live(&self) -> impl Iterator<Item = u32> {
        let slots = self.bundles.values().flat_map(|kept| &kept.slots);
        slots
            .filter(|s| !s.gone && !s.done)
            .map(|s| s.message.body)
            .chain(self.dead.keys().copied())
    }

    /// The earliest due time behind `now` of what waits.
    pub fn next_due(&self, now: Moment) -> Option<Moment> {
        let slots = self.bundles.values().flat_map(|kept| &kept.slots);
        slots.map(|s| s.message.due).filter(|due| *due > now).min()
    }
}

impl StoredBundle {
    fn is_due(&self, until: Moment) -> bool {
        self.place == Place::Due
            && self.grows_of.is_none()
            && self.slots.iter().any(|s| s.message.due <= until)
    }

    fn seen(&self) -> impl Iterator<Item = MessageView> {
        self.slots.iter().map(|slot| MessageView {
            body: slot.message.body,
            due: slot.message.due,
            repeat: slot.message.repeat,
            claimed: self.place != Place::Due,
            gone: slot.gone,
            done: slot.done,
            expiries: self.expiries,
        })
    }
}
