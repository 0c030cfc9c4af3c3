//! How much of a route this process may have claimed: one [`Credit`] a route, for all shards.
//!
//! Credit counts messages and plain bytes. A poll takes messages before it sends its claim. Each message gives its part
//! back with its verdict, or when its claim ends otherwise. Shards that find too little wait, and get equal parts in
//! the order in which they asked ([`hand_out`]).
//!
//! Bytes are taken once a claimed bundle is measured, before it is read ([`bytes`]). They are given back with the whole
//! bundle: lanes hold it as one allocation until its last message has a verdict.

mod bytes;
mod hand_out;

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

pub(super) use self::bytes::ProcessBytes;
use self::bytes::{LARGE_BUNDLE_BYTES, RouteBytes};
use self::hand_out::{HandOut, Terms};
use crate::domain::limits::{BUNDLE_BYTES, BUNDLE_MESSAGES};
use crate::domain::{Clock, RateLimit};
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

/// What of a route may be claimed, over all shards of the process.
pub(super) struct Credit {
    lane: Arc<dyn Lane>,
    rate: Option<RateLimit>,
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
    bytes: RouteBytes,
    /// Bytes of a message in the latest claim, of the bundle with the largest. The next claim counts on as many.
    message_bytes: i64,
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
}

impl Credit {
    pub(super) fn new(
        lane: Arc<dyn Lane>,
        rate: Option<RateLimit>,
        metrics: Arc<RouteMetrics>,
        process: Arc<ProcessBytes>,
        wake_ups: Vec<Arc<Notify>>,
        clock: Clock,
    ) -> Arc<Self> {
        Arc::new(Self {
            lane,
            rate,
            metrics,
            process,
            wake_ups,
            clock,
            state: Mutex::default(),
        })
    }

    /// Takes credit for the claims of one poll, which found this many due sets. `None`: too little is free, or others
    /// wait; the shard is woken when its turn comes.
    pub(super) fn ask(self: &Arc<Self>, shard: usize, due_sets: usize) -> Option<Grant> {
        let mut state = self.state.lock();
        let terms = self.terms(&state);
        let wanted = POLL_MESSAGES.max((due_sets * BUNDLE_MESSAGES) as i64);
        let messages = state.messages.ask(shard, wanted, &terms);
        let left = state.bytes.left(&self.process).max(1);
        let message_bytes = state.message_bytes.max(1);
        let woken = self.serve(&mut state);
        drop(state);
        self.wake(&woken);
        let messages = messages?;
        // A due set gives at least one bundle, however many messages that has. So few messages go to the earliest due
        // sets.
        let most = (messages / BUNDLE_MESSAGES as i64)
            .min(left / message_bytes.max(BUNDLE_BYTES as i64))
            .max(1);
        let due_sets = due_sets.min(most as usize).max(1);
        let most = messages.min(POLL_MESSAGES).min(left / message_bytes);
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

    /// Notes that this shard has nothing to claim, so that it does not wait any more.
    pub(super) fn withdraw(&self, shard: usize) {
        self.change(|state| state.messages.withdraw(shard));
    }

    /// Takes note of the bundles of one claim: the messages and bytes of each.
    pub(super) fn measured(&self, bundles: impl Iterator<Item = (usize, usize)>) {
        let largest = bundles
            .filter_map(|(messages, bytes)| (bytes as i64).checked_div(messages as i64))
            .max();
        if let Some(largest) = largest {
            self.state.lock().message_bytes = largest.min(LARGE_BUNDLE_BYTES);
        }
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

    /// Messages that may be claimed.
    fn limit(&self) -> i64 {
        let most = if self.lane.trouble().is_some() {
            TROUBLE_MESSAGES
        } else {
            ROUTE_MESSAGES
        };
        self.rate.map_or(most, |rate| {
            let worth = i64::from(rate.per_second) * LIMITED_SECONDS;
            worth.max(i64::from(rate.capacity())).min(most)
        })
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
                .change(|state| state.messages.give_back(given_back));
        }
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
            state.messages.give_back(self.open);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::FutureExt;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::domain::testing::route;
    use crate::egress::Publication;
    use crate::telemetry::Metrics;

    const MIB: usize = 1 << 20;

    #[derive(Default)]
    struct TroubledLane(AtomicBool);

    impl Lane for TroubledLane {
        fn submit_all(&self, _: Vec<Publication>) {}

        fn backlog(&self) -> usize {
            0
        }

        fn trouble(&self) -> Option<String> {
            self.0.load(Ordering::Relaxed).then(|| "away".to_owned())
        }
    }

    struct CreditFixture {
        lane: Arc<TroubledLane>,
        wake_ups: Vec<Arc<Notify>>,
        metrics: Arc<RouteMetrics>,
        credit: Arc<Credit>,
    }

    fn credit(per_second: Option<u32>) -> CreditFixture {
        let lane = Arc::<TroubledLane>::default();
        let wake_ups: Vec<Arc<Notify>> = (0..2).map(|_| Arc::default()).collect();
        let name = route().name.clone();
        let metrics = Metrics::new(&mut Registry::default(), [name.clone()])
            .route(&name)
            .cloned()
            .expect("of this route");
        let rate = per_second.map(|per_second| RateLimit {
            per_second,
            burst: 0,
        });
        let credit = Credit::new(
            lane.clone(),
            rate,
            metrics.clone(),
            Arc::default(),
            wake_ups.clone(),
            Clock::start(),
        );
        CreditFixture {
            lane,
            wake_ups,
            metrics,
            credit,
        }
    }

    #[test]
    fn a_target_in_trouble_holds_few_messages_until_it_works_again() {
        let CreditFixture { lane, credit, .. } = credit(None);
        let most = || {
            let grant = credit.ask(0, 1)?;
            Some(i64::from(grant.messages_each))
        };
        assert_eq!(most(), Some(POLL_MESSAGES));
        lane.0.store(true, Ordering::Relaxed);
        assert_eq!(most(), Some(TROUBLE_MESSAGES));
        let _few = credit.force().hold(TROUBLE_MESSAGES as usize);
        assert_eq!(most(), None);
        lane.0.store(false, Ordering::Relaxed);
        credit.withdraw(0);
        assert_eq!(most(), Some(POLL_MESSAGES), "at once");
        let _rest = credit.force().hold(ROUTE_MESSAGES as usize);
        lane.0.store(true, Ordering::Relaxed);
        assert_eq!(most(), None, "what was claimed before stays claimed");
    }

    #[test]
    fn each_message_gives_its_credit_back_with_its_verdict_and_wakes_who_waits() {
        let CreditFixture {
            wake_ups,
            metrics,
            credit,
            ..
        } = credit(Some(100));
        let mut grant = credit.ask(0, 7).expect("all of it is free");
        assert_eq!((grant.due_sets, grant.messages_each), (1, 200));
        let mut part = grant.part(1);
        drop(grant);
        let mut bundle = part.hold(150);
        drop(part);
        assert_eq!(metrics.in_flight.get(), 150);
        let _other = credit.ask(1, 1).expect("a quarter is free").hold(50);
        assert!(credit.ask(1, 1).is_none());
        bundle.keep(101, 150);
        let woken = || wake_ups[1].notified().now_or_never().is_some();
        assert!(!woken(), "less than a quarter");
        bundle.keep(100, 150);
        assert!(woken());
        assert_eq!(metrics.in_flight.get(), 200, "the claims are as they were");
        bundle.keep(100, 100);
        assert_eq!(metrics.in_flight.get(), 150, "they were divided");
        let offered = credit.ask(1, 1).expect("its turn");
        assert_eq!(offered.messages, 50);
        drop((bundle, offered));
        assert_eq!(metrics.in_flight.get(), 50);
        assert_eq!(credit.ask(0, 1).map(|grant| grant.messages), Some(150));
    }

    #[test]
    fn a_claim_counts_on_messages_as_large_as_in_the_one_before() {
        let CreditFixture { credit, .. } = credit(None);
        let cut = |due_sets| {
            let grant = credit.ask(0, due_sets)?;
            Some((grant.due_sets, grant.messages_each))
        };
        assert_eq!(cut(10), Some((10, 1250)), "nothing is known");
        credit.measured([(10, 10 * MIB), (1, MIB / 2)].into_iter());
        assert_eq!(cut(1), Some((1, 64)));
        assert_eq!(cut(100), Some((64, 1)));
        let mut grant = credit.ask(0, 100).expect("room");
        let mut held: Vec<HeldCredit> = (0..64).map(|_| grant.hold(1)).collect();
        let taken = held.iter_mut().all(|held| held.take_bytes(MIB, false));
        assert!(taken && !grant.hold(1).take_bytes(MIB, false), "half of it");
        drop(grant);
        assert_eq!(cut(1), None, "it waits for bytes");
        held.truncate(63);
        assert_eq!(cut(1), Some((1, 1)));
        drop(held);
        credit.measured([(1, 500 * MIB)].into_iter());
        assert_eq!(cut(1), Some((1, 8)), "a large one has another pool");
        credit.measured(std::iter::empty());
        credit.measured([(500, 5000)].into_iter());
        assert_eq!(cut(10), Some((10, 1250)));
    }
}
