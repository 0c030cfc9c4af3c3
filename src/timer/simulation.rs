//! The wheel's own work without its thread and without a broker: for `benches/`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering};

use prometheus_client::registry::Registry;

use super::Served;
use super::budget::{Budget, Share};
use super::claimed::{Flight, INDEX_BITS};
use super::wheel::{Item, hand_over};
use crate::domain::testing::{entry, route};
use crate::domain::{Clock, Entry, StoreClock, Text, UnixMs};
use crate::egress::{Lane, Publication, PublishBatch};
use crate::telemetry::{BurstLog, Metrics};

/// Bundles that are due, in a heap.
pub struct Simulation {
    clock: StoreClock,
    heap: BinaryHeap<Reverse<Item>>,
    counter: Arc<Counter>,
}

#[derive(Default)]
struct Counter(AtomicUsize);

impl Lane for Counter {
    fn submit_all(&self, publications: Vec<Publication>) {
        self.0.fetch_add(publications.len(), Ordering::Relaxed);
    }

    fn backlog(&self) -> usize {
        0
    }

    fn trouble(&self) -> Option<String> {
        None
    }
}

impl Simulation {
    /// So many bundles of so many messages each, due at random within the second before now.
    pub fn new(bundles: usize, each: usize) -> Self {
        let (clock, counter) = (Clock::start(), Arc::<Counter>::default());
        let store_clock = StoreClock::new(clock);
        let sent = store_clock.sending(0);
        store_clock.observe(clock.wall_us(), sent);
        let (served, now) = (served(clock), clock.wall());
        let items = (0..bundles as u64).filter_map(|slot| {
            let mut dues: Vec<i64> = (0..each).map(|_| now.0 - fastrand::i64(1..1000)).collect();
            dues.sort_unstable();
            let entries = dues.iter().map(|&due| entry(UnixMs(due), b"body")).collect();
            let flight = Flight { lane: Some(counter.clone()), ..flight(&served, slot, entries, 0) };
            Item::new(Arc::new(flight))
        });
        Self { clock: store_clock, heap: items.map(Reverse).collect(), counter }
    }

    /// Hands all of it over; how many messages that were.
    pub fn play(&mut self) -> usize {
        hand_over(&self.clock, &mut self.heap, &mut BTreeMap::new());
        self.counter.0.load(Ordering::Relaxed)
    }
}

/// A plain route, served.
///
/// # Panics
/// Never: the route has its metrics.
#[expect(clippy::expect_used, reason = "the route has its metrics")]
pub(super) fn served(clock: Clock) -> Arc<Served> {
    let route = route();
    let metrics = Metrics::new(&mut Registry::default(), [route.name.clone()]);
    Arc::new(Served {
        metrics: metrics.route(&route.name).cloned().expect("of this route"),
        route,
        watch: Arc::default(),
        bursts: Arc::new(BurstLog::new(clock)),
        limit: None,
        messages: AtomicI64::new(0),
        share: Share::new(Budget::new(Vec::new())),
    })
}

/// A bundle of its, claimed for ever, whose claim expired so often before.
pub(super) fn flight(served: &Arc<Served>, slot: u64, entries: Vec<Entry>, expiries: u32) -> Flight {
    let entries = Arc::new(entries);
    let batch = PublishBatch {
        entries: entries.clone(),
        ids: vec![Text::from_static("~0.a.b.1"); entries.len()],
        expiries,
        target: served.route.to.clone(),
        first_ticket: slot << INDEX_BITS,
        verdicts: Arc::default(),
        not_after_us: AtomicI64::new(i64::MAX),
    };
    Flight {
        served: served.clone(),
        order: (0..entries.len() as u32).collect(),
        entries,
        batch: Arc::new(batch),
        target_name: Text::default(),
        lane: None,
        published_us: AtomicI64::new(i64::MAX),
        handed: AtomicU32::new(0),
        first_stamp: 0,
        keyed: Vec::new(),
        dying: false,
    }
}
