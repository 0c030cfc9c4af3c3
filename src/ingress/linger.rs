//! Company: under load, what is due far ahead waits a moment at ingress, so that messages of several batches and of
//! all of the route's sources share bundles. Delays that lie far apart find none in a batch of their own, and a
//! bundle of one costs the store six times what a message in one of ten does.
//!
//! Only unnamed messages of Kafka wait, as order means nothing between them, and only while many come: of a trickle
//! no two would meet. (RabbitMQ lends a consumer `prefetch` messages at a time, and would lend no more meanwhile.)
//! Their sources are released once the store has them, as ever; what is lost with the process is read again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Receipt;
use super::bundling::{MAX_SPAN_MS, Work};
use super::kafka::{OVERHEAD, WINDOW_BYTES, WINDOW_RECORDS};
use crate::domain::{Entry, Partition, Partitions, Route, TargetRef, UnixMs};

/// How long a message waits for company.
pub(super) const PATIENCE: Duration = Duration::from_millis(250);
/// Only those wait that have a hundred times as long to go.
const FAR_MS: i64 = 25_000;
/// As many must have come within one patience.
const MANY: usize = 2048;
/// So many wait at most.
const FULL: Amount = Amount { messages: WINDOW_RECORDS, bytes: WINDOW_BYTES };
/// And of one source: half of what is read ahead of it, so that it is read on meanwhile.
const FULL_OF_ONE: Amount = Amount { messages: WINDOW_RECORDS / 2, bytes: WINDOW_BYTES / 2 };
/// Those that leave together go to so many partitions: few, so that they share bundles; more than one, so that no
/// partition has all the work at once.
const HOMES: usize = 4;

/// The company of one route.
pub(super) struct Company {
    route: Arc<Route>,
    partitions: Partitions,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: Option<Waiting>,
    rate: Rate,
    /// Counts companies.
    number: u64,
}

/// Those that wait.
struct Waiting {
    work: Work,
    all: Amount,
    /// By the partition of their topic; those of two topics that have one number count together.
    sources: BTreeMap<i32, Amount>,
    homes: [Partition; HOMES],
}

#[derive(Clone, Copy, Default)]
struct Amount {
    messages: usize,
    bytes: usize,
}

impl Amount {
    fn add(&mut self, more: Self) {
        self.messages += more.messages;
        self.bytes += more.bytes;
    }

    fn reaches(self, limit: Self) -> bool {
        self.messages >= limit.messages || self.bytes >= limit.bytes
    }
}

/// A message that is due far ahead, on its way in.
pub(super) struct Far {
    pub(super) target: TargetRef,
    pub(super) entry: Entry,
    pub(super) receipt: Receipt,
    /// Where it is stored if it does not wait.
    pub(super) home: Partition,
}

/// What becomes of those that came.
pub(super) enum Met {
    /// Too few come: each goes with its own batch.
    Alone(Vec<Far>),
    /// They wait, and who brought the first has seen to it that they leave.
    Wait,
    /// They wait, the first of a company of this number: it is to [leave](Company::leave) after [`PATIENCE`].
    First(u64),
    /// The company is full and leaves at once.
    Full(Work),
}

impl Company {
    pub(super) fn new(route: Arc<Route>, partitions: Partitions) -> Self {
        Self { route, partitions, state: Mutex::default() }
    }

    /// Whether a message that has so long to go may wait.
    pub(super) fn may_wait(entry: &Entry, now: UnixMs) -> bool {
        entry.position.is_some() && entry.due.since(now) >= FAR_MS
    }

    /// Takes those of one source that came now: `now` by the store's clock, and by the monotonic one, us.
    pub(super) fn meet(&self, far: Vec<Far>, now: UnixMs, mono_us: i64) -> Met {
        let Some((source, offset)) = far.first().and_then(|far| far.entry.position) else {
            return Met::Wait;
        };
        let state = &mut *self.state.lock();
        if !state.rate.is_high(far.len(), mono_us) && state.waiting.is_none() {
            return Met::Alone(far);
        }
        let first = state.waiting.is_none();
        let waiting = state.waiting.get_or_insert_with(|| self.open(now, offset));
        let mut came = Amount { messages: far.len(), bytes: 0 };
        for Far { target, entry, receipt, .. } in far {
            came.bytes += entry.message.body_len() + entry.message.headers_len() + OVERHEAD;
            let home = waiting.homes[entry.due.0.div_euclid(MAX_SPAN_MS).rem_euclid(HOMES as i64) as usize];
            waiting.work.store(home, target, entry, receipt);
        }
        let of_one = waiting.sources.entry(source).or_default();
        of_one.add(came);
        waiting.all.add(came);
        if (of_one.reaches(FULL_OF_ONE) || waiting.all.reaches(FULL))
            && let Some(waiting) = state.waiting.take()
        {
            state.number += 1;
            return Met::Full(waiting.work);
        }
        if first { Met::First(state.number) } else { Met::Wait }
    }

    /// Those that wait, if they are still the company of this number.
    pub(super) fn leave(&self, number: u64) -> Option<Work> {
        let state = &mut *self.state.lock();
        let waiting = if state.number == number { state.waiting.take() } else { None };
        state.number += u64::from(waiting.is_some());
        waiting.map(|waiting| waiting.work)
    }

    /// Begins a company with a record of this offset.
    fn open(&self, now: UnixMs, offset: i64) -> Waiting {
        let name = self.route.name.as_str();
        let homes =
            std::array::from_fn(|n| self.partitions.of_block(name, offset as u64 * HOMES as u64 + n as u64));
        let work = Work::new(self.route.clone(), now);
        Waiting { work, all: Amount::default(), sources: BTreeMap::new(), homes }
    }
}

/// How many came in the patience that runs, and in the one before.
#[derive(Default)]
struct Rate {
    began_us: i64,
    now: usize,
    before: usize,
}

impl Rate {
    /// Counts so many more; whether many come.
    fn is_high(&mut self, more: usize, mono_us: i64) -> bool {
        let patience = PATIENCE.as_micros() as i64;
        let gone = mono_us - self.began_us;
        if gone >= patience {
            self.before = if gone < 2 * patience { self.now } else { 0 };
            (self.began_us, self.now) = (mono_us, 0);
        }
        self.now += more;
        self.now.max(self.before) >= MANY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::testing;
    use crate::ingress::Ledger;

    /// So many messages, due an hour ahead and a span from each other.
    fn far(count: i64) -> Vec<Far> {
        far_of(0, count)
    }

    fn far_of(source: i32, count: i64) -> Vec<Far> {
        let ledger = Ledger::new();
        let message = |n: i64| {
            let mut entry = testing::entry(UnixMs(3_600_000 + n % 10 * MAX_SPAN_MS), b"body");
            entry.position = Some((source, n));
            Far { target: TargetRef::Own, entry, receipt: ledger.enter(n), home: Partition(63) }
        };
        (0..count).map(message).collect()
    }

    fn company() -> Company {
        Company::new(testing::route(), Partitions::new(64).expect("some"))
    }

    fn bundles(work: Work) -> Vec<(Partition, usize)> {
        work.finish().into_iter().map(|(p, work)| (p, work.ops.len())).collect()
    }

    #[test]
    fn a_trickle_waits_for_nobody() {
        let company = company();
        for round in 0..100 {
            let met = company.meet(far(100), UnixMs(0), round * 20_000);
            assert!(matches!(met, Met::Alone(alone) if alone.len() == 100), "{round}");
        }
    }

    #[test]
    fn many_wait_and_share_their_bundles() {
        let company = company();
        let Met::First(number) = company.meet(far(2100), UnixMs(0), 0) else { panic!("the first to wait") };
        assert!(matches!(company.meet(far(50), UnixMs(0), 40_000), Met::Wait));
        assert!(company.leave(number + 1).is_none(), "another company");
        let stored = bundles(company.leave(number).expect("those that wait"));
        assert_eq!(stored.iter().map(|(_, bundles)| bundles).sum::<usize>(), 10, "one a span: {stored:?}");
        assert!(stored.len() > 1 && stored.len() <= HOMES, "{stored:?}");
        assert!(company.leave(number).is_none(), "they have left");
        // Many came just now, so the next wait as well; and later, when few come, not.
        assert!(matches!(company.meet(far(50), UnixMs(0), 100_000), Met::First(next) if next != number));
        assert!(company.leave(number + 1).is_some());
        assert!(matches!(company.meet(far(50), UnixMs(0), 900_000), Met::Alone(_)));
    }

    #[test]
    fn a_full_company_leaves_at_once() {
        let company = company();
        let Met::First(number) = company.meet(far(32_000), UnixMs(0), 0) else { panic!("the first to wait") };
        let Met::Full(work) = company.meet(far(1000), UnixMs(0), 1000) else { panic!("no room for more") };
        assert_eq!(bundles(work).iter().map(|(_, bundles)| bundles).sum::<usize>(), 70, "of 500 at most");
        assert!(company.leave(number).is_none());
        assert!(matches!(company.meet(far(1), UnixMs(0), 2000), Met::First(_)));
    }

    #[test]
    fn of_several_sources_more_may_wait() {
        let company = company();
        assert!(matches!(company.meet(far(32_000), UnixMs(0), 0), Met::First(_)));
        assert!(matches!(company.meet(far_of(1, 32_000), UnixMs(0), 1000), Met::Wait));
        let Met::Full(work) = company.meet(far_of(2, 2000), UnixMs(0), 2000) else {
            panic!("all are too many")
        };
        assert_eq!(bundles(work).iter().map(|(_, bundles)| bundles).sum::<usize>(), 140, "of 500 at most");
    }

    #[test]
    fn a_company_is_full_by_its_bytes_too() {
        let company = company();
        assert!(matches!(company.meet(far(2100), UnixMs(0), 0), Met::First(_)));
        let mut large = far(100);
        for far in &mut large {
            far.entry.message.body = Some(vec![0; FULL_OF_ONE.bytes / 100].into());
        }
        assert!(matches!(company.meet(large, UnixMs(0), 1000), Met::Full(_)));
    }

    #[test]
    fn what_is_near_or_has_no_offset_does_not_wait() {
        let mut entry = far(1).remove(0).entry;
        assert!(Company::may_wait(&entry, UnixMs(0)));
        assert!(!Company::may_wait(&entry, UnixMs(3_600_000 - FAR_MS + 1)));
        entry.position = None;
        assert!(!Company::may_wait(&entry, UnixMs(0)));
    }
}
