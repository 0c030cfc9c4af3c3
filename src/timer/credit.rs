//! How much of a route this process may have claimed: one [`Credit`] a route, for all shards.
//!
//! Credit counts messages and plain bytes. A poll takes messages before it sends its claim. Each message gives its part
//! back with its verdict, or when its claim ends otherwise. Shards that find too little wait, and get equal parts in
//! the order in which they asked ([`hand_out`]).
//!
//! Where a route has several targets, messages that hang are set aside: they count for their target alone, and leave
//! their room to the others. A target with many of them gets no more until some have a verdict.
//!
//! Bytes are taken once a claimed bundle is measured, before it is read ([`bytes`]). They are given back with the whole
//! bundle: lanes hold it as one allocation until its last message has a verdict.

mod bytes;
mod hand_out;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

pub(super) use self::bytes::ProcessBytes;
use self::bytes::{LARGE_BUNDLE_BYTES, RouteBytes};
use self::hand_out::{HandOut, Terms};
use crate::domain::limits::{BUNDLE_BYTES, BUNDLE_MESSAGES};
use crate::domain::{Clock, Route, Target};
use crate::egress::Lane;
use crate::telemetry::RouteMetrics;

/// Messages of one route that this process may have claimed. The route's next bundles wait in the store.
const ROUTE_MESSAGES: i64 = 50_000;
/// The same while the route's target is in trouble. Claims that wait for a target are extended again and again, which
/// costs Redis as much as publishing them would.
const TROUBLE_MESSAGES: i64 = 2000;
/// Messages of one route that one poll may claim. Claimed bundles have to be decoded, and other routes wait for the
/// next poll meanwhile.
const POLL_MESSAGES: i64 = ROUTE_MESSAGES / 4;
/// Messages of a route with a `rate` that may be claimed, in seconds' worth: enough for a target that takes a second
/// to confirm.
const LIMITED_SECONDS: i64 = 2;

/// Least and longest time for which a bundle is put off because its target gets no more messages, microseconds.
const PUT_OFF_MIN_US: i64 = 5_000_000;
const PUT_OFF_MAX_US: i64 = 60_000_000;
/// Time between two bundles of a target that come back after they were put off, microseconds. It bounds what they cost Redis
/// to 2,000 bundles a second; where more than 120,000 wait, to all of them once a minute.
const PUT_OFF_SPACING_US: i64 = 500;

/// What of a route may be claimed, over all shards of the process.
pub(super) struct Credit {
    route: Arc<Route>,
    /// The lane to the route's own target.
    lane: Arc<dyn Lane>,
    /// The targets whose messages are set aside when they hang: those of which the route has several.
    apart: Mutex<Vec<Arc<Target>>>,
    metrics: Arc<RouteMetrics>,
    process: Arc<ProcessBytes>,
    /// One wake-up a shard.
    wake_ups: Vec<Arc<Notify>>,
    clock: Clock,
    state: Mutex<CreditState>,
}

#[derive(Default)]
struct CreditState {
    messages: HandOut,
    /// Messages of each target of `apart` that are set aside.
    aside: Vec<i64>,
    /// When the last of the bundles that were put off comes back, for each target of `apart`; monotonic microseconds.
    back_us: Vec<i64>,
    bytes: RouteBytes,
    /// Bytes of a message in the latest claim, of the bundle with the largest. The next claim counts on as many.
    message_bytes: i64,
    /// Messages of the largest bundle of late. The next claim counts on as many of each due set at least. `None`: nothing
    /// was claimed yet.
    bundle_messages: Option<i64>,
}

/// Credit for one claim. Dropping it gives back what the claim did not bring.
pub(super) struct Grant {
    credit: Arc<Credit>,
    messages: i64,
    /// Due sets to claim from.
    pub(super) due_sets: usize,
    /// Messages to claim from each due set. Each gives at least one bundle.
    pub(super) messages_each: u32,
}

/// The credit that one claimed bundle holds. Dropping it gives all of it back.
pub(super) struct HeldCredit {
    credit: Arc<Credit>,
    /// Messages without a verdict.
    open: i64,
    /// Messages of the bundle in the store.
    claimed: i64,
    bytes: i64,
    /// The target for which the messages are set aside.
    aside: Option<usize>,
}

impl Credit {
    pub(super) fn new(
        route: Arc<Route>,
        lane: Arc<dyn Lane>,
        metrics: Arc<RouteMetrics>,
        process: Arc<ProcessBytes>,
        wake_ups: Vec<Arc<Notify>>,
        clock: Clock,
    ) -> Arc<Self> {
        // Messages of an ordered route cannot be put off: their followers wait for them.
        let apart: Vec<Arc<Target>> = if route.policy.ordered {
            Vec::new()
        } else if route.has_several_targets() {
            route.targets().cloned().collect()
        } else {
            route.dead_letter_to.iter().cloned().collect()
        };
        let state = CreditState {
            aside: vec![0; apart.len()],
            ..CreditState::default()
        };
        let apart = Mutex::new(apart);
        Arc::new(Self {
            route,
            lane,
            apart,
            metrics,
            process,
            wake_ups,
            clock,
            state: Mutex::new(state),
        })
    }

    /// Takes credit for the claims of one poll, which found this many due sets. `None`: too little is free, or others
    /// wait, and the shard is woken when its turn comes.
    pub(super) fn ask(self: &Arc<Self>, shard: usize, due_sets: usize) -> Option<Grant> {
        let mut state = self.state.lock();
        let terms = self.terms(&state);
        let wanted = POLL_MESSAGES.max((due_sets * BUNDLE_MESSAGES) as i64);
        let messages = state.messages.ask(shard, wanted, &terms);
        let left = state.bytes.left(&self.process).max(1);
        let message_bytes = state.message_bytes.max(1);
        let bundle_messages = state.bundle_messages.unwrap_or(BUNDLE_MESSAGES as i64);
        let few = terms.limit.min(TROUBLE_MESSAGES);
        let is_looking_behind = state.aside.iter().any(|&messages| messages >= few);
        let woken = self.serve(&mut state);
        drop(state);
        self.wake(&woken);
        let messages = messages?;
        // A due set gives at least one bundle, however many messages that has. So few messages go to the earliest due
        // sets.
        let most = (messages / bundle_messages)
            .min(left / message_bytes.max(BUNDLE_BYTES as i64))
            .max(1);
        let due_sets = due_sets.min(most as usize).max(1);
        // What is claimed for a target that gets no more is put off again.
        let poll = if is_looking_behind {
            TROUBLE_MESSAGES
        } else {
            POLL_MESSAGES
        };
        let most = messages.min(poll).min(left / message_bytes);
        Some(Grant {
            credit: self.clone(),
            messages,
            due_sets,
            messages_each: (most / due_sets as i64).max(1) as u32,
        })
    }

    /// Credit for one bundle that has to be claimed, whatever is free.
    pub(super) fn force(self: &Arc<Self>) -> Grant {
        Grant {
            credit: self.clone(),
            messages: 0,
            due_sets: 1,
            messages_each: 1,
        }
    }

    /// Reports whether [`Credit::ask`] would give this shard something.
    pub(super) fn is_open(&self, shard: usize) -> bool {
        let mut state = self.state.lock();
        let terms = self.terms(&state);
        state.messages.is_open(shard, &terms)
    }

    /// Reports whether so many messages of a target are set aside that it gets no more.
    pub(super) fn is_full(&self, target: &Arc<Target>) -> bool {
        let Some(at) = self.position(target) else {
            return false;
        };
        let few = self.limit().min(TROUBLE_MESSAGES);
        let state = self.state.lock();
        state.aside.get(at).is_some_and(|&aside| aside >= few)
    }

    /// For how long a bundle of this target is put off, ms: so that its bundles come back one after another.
    pub(super) fn put_off_ms(&self, target: &Arc<Target>) -> u64 {
        self.put_off_at(self.clock.mono_us(), target)
    }

    fn put_off_at(&self, now_us: i64, target: &Arc<Target>) -> u64 {
        let at = self.position(target);
        let mut state = self.state.lock();
        let back_us = match at {
            Some(at) => {
                if state.back_us.len() <= at {
                    state.back_us.resize(at + 1, 0);
                }
                let next_us = state.back_us[at] + PUT_OFF_SPACING_US;
                let back_us = next_us.clamp(now_us + PUT_OFF_MIN_US, now_us + PUT_OFF_MAX_US);
                state.back_us[at] = back_us;
                back_us
            }
            None => now_us + PUT_OFF_MIN_US,
        };
        ((back_us - now_us) / 1000).unsigned_abs()
    }

    /// Reports whether messages of this target are set aside when they hang.
    pub(super) fn sets_aside(&self, target: &Arc<Target>) -> bool {
        self.position(target).is_some()
    }

    fn position(&self, target: &Arc<Target>) -> Option<usize> {
        let mut apart = self.apart.lock();
        let known = apart.iter().position(|apart| Arc::ptr_eq(apart, target));
        known.or_else(|| {
            (self.route.has_derived_targets() && !self.route.policy.ordered).then(|| {
                apart.push(target.clone());
                apart.len() - 1
            })
        })
    }

    /// Messages that hold credit, if so few are free that shards wait. `None`: the route has credit.
    pub(super) fn used_up(&self) -> Option<i64> {
        let state = self.state.lock();
        let terms = self.terms(&state);
        state.messages.used_up(&terms)
    }

    /// Notes that this shard has nothing to claim, so that it does not wait any more.
    pub(super) fn withdraw(&self, shard: usize) {
        self.change(|state| state.messages.withdraw(shard));
    }

    /// Takes note of the bundles of one claim: the messages and bytes of each.
    pub(super) fn measured(&self, bundles: impl Iterator<Item = (usize, usize)>) {
        let mut largest: Option<(i64, i64)> = None;
        for (messages, bytes) in bundles.filter(|(messages, _)| *messages > 0) {
            let (most_messages, most_bytes) = largest.unwrap_or_default();
            let (messages, bytes) = (messages as i64, bytes as i64);
            largest = Some((
                most_messages.max(messages),
                most_bytes.max(bytes / messages),
            ));
        }
        let Some((messages, bytes)) = largest else {
            return;
        };
        let mut state = self.state.lock();
        state.message_bytes = bytes.min(LARGE_BUNDLE_BYTES);
        // A large bundle is forgotten slowly: of many due sets the next one may come from any.
        let before = state.bundle_messages.unwrap_or_default();
        state.bundle_messages = Some(messages.max(before * 7 / 8));
    }

    /// Makes a change, and wakes the waiting shards whose turn has come with it.
    fn change<T>(&self, change: impl FnOnce(&mut CreditState) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        let woken = self.serve(&mut state);
        drop(state);
        self.wake(&woken);
        result
    }

    fn serve(&self, state: &mut CreditState) -> Vec<usize> {
        if !state.messages.is_awaited() {
            return Vec::new();
        }
        let terms = self.terms(state);
        state.messages.serve(&terms)
    }

    fn wake(&self, shards: &[usize]) {
        for wake_up in shards.iter().filter_map(|&shard| self.wake_ups.get(shard)) {
            wake_up.notify_one();
        }
    }

    fn terms(&self, state: &CreditState) -> Terms {
        let bundle = state.message_bytes.max(BUNDLE_BYTES as i64);
        Terms {
            limit: self.limit(),
            // A route without any bundle finds out by trying.
            has_bytes: state.bytes.small == 0 || state.bytes.left(&self.process) >= bundle,
            now_us: self.clock.mono_us(),
        }
    }

    /// Messages that may be claimed, without those that are set aside.
    fn limit(&self) -> i64 {
        let is_alone = !self.sets_aside(&self.route.to);
        let most = if is_alone && self.lane.trouble_of(&self.route.to).is_some() {
            TROUBLE_MESSAGES
        } else {
            ROUTE_MESSAGES
        };
        self.route.policy.rate.map_or(most, |rate| {
            let worth = i64::from(rate.per_second) * LIMITED_SECONDS;
            worth.max(i64::from(rate.capacity())).min(most)
        })
    }
}

impl CreditState {
    /// Gives messages back: of a target for which they were set aside, or of all.
    fn give_back(&mut self, aside: Option<usize>, messages: i64) {
        match aside {
            Some(at) => {
                self.aside.resize(self.aside.len().max(at + 1), 0);
                self.aside[at] -= messages;
            }
            None => self.messages.give_back(messages),
        }
    }
}

impl Grant {
    /// The part of this many due sets.
    pub(super) fn part(&mut self, due_sets: usize) -> Self {
        let share = self.messages * due_sets as i64 / self.due_sets.max(1) as i64;
        self.messages -= share;
        self.due_sets -= due_sets;
        Self {
            credit: self.credit.clone(),
            messages: share,
            due_sets,
            messages_each: self.messages_each,
        }
    }

    /// Passes credit on to a bundle that the claim has brought. A first bundle may be larger than what is left.
    pub(super) fn hold(&mut self, messages: usize) -> HeldCredit {
        self.messages -= messages as i64;
        let mut held = HeldCredit {
            credit: self.credit.clone(),
            open: messages as i64,
            claimed: 0,
            bytes: 0,
            aside: None,
        };
        held.count_claimed(messages as i64);
        held
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.messages != 0 {
            self.credit
                .change(|state| state.messages.give_back(self.messages));
        }
    }
}

impl HeldCredit {
    /// Takes the bytes of the bundle, before it is read. `forced` takes them in any case. Reports whether they were
    /// taken.
    pub(super) fn take_bytes(&mut self, bytes: usize, forced: bool) -> bool {
        let bytes = bytes as i64;
        let credit = &self.credit;
        let taken = credit
            .state
            .lock()
            .bytes
            .take(&credit.process, bytes, forced);
        if taken {
            self.bytes = bytes;
        }
        taken
    }

    /// Keeps the credit of the messages without a verdict, and counts those that the bundle has in the store.
    pub(super) fn keep(&mut self, open: usize, claimed: usize) {
        self.count_claimed(claimed as i64);
        let given_back = self.open - open as i64;
        self.open = open as i64;
        if given_back != 0 {
            self.credit
                .change(|state| state.give_back(self.aside, given_back));
        }
    }

    /// Has the messages count for this target alone, if the route has other targets.
    pub(super) fn set_aside(&mut self, target: &Arc<Target>) {
        let at = self.credit.position(target);
        if self.aside.is_some() || at.is_none() {
            return;
        }
        self.credit.change(|state| {
            state.give_back(self.aside, self.open);
            state.give_back(at, -self.open);
        });
        self.aside = at;
    }

    fn count_claimed(&mut self, claimed: i64) {
        let change = claimed - self.claimed;
        self.claimed = claimed;
        if change != 0 {
            // Other shards count at the same time: a value that is set could be an older one.
            self.credit.metrics.in_flight.inc_by(change);
        }
    }
}

impl Drop for HeldCredit {
    fn drop(&mut self) {
        self.count_claimed(0);
        let credit = &self.credit;
        credit.change(|state| {
            state.bytes.give_back(&credit.process, self.bytes);
            state.give_back(self.aside, self.open);
        });
    }
}
