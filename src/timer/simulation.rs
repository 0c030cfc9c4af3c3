//! The wheel's work without its thread and without a broker, for `benches/`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering};

use prometheus_client::registry::Registry;

use super::ServedRoute;
use super::claimed::InFlightBatch;
use super::credit::Credit;
use super::wheel::{WheelItem, hand_over};
use crate::domain::failure_policy::PublishFlow;
use crate::domain::testing::{entry, route};
use crate::domain::{Clock, Entry, StoreClock, TargetRef, Text, UnixMs};
use crate::egress::{Lane, Publication, PublishBatch};
use crate::publishing::RouteReporter;
use crate::telemetry::Metrics;

/// Due bundles in a heap.
pub struct WheelSimulation {
    clock: StoreClock,
    heap: BinaryHeap<Reverse<WheelItem>>,
    counter: Arc<CountingLane>,
}

#[derive(Default)]
struct CountingLane(AtomicUsize);

impl Lane for CountingLane {
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

impl WheelSimulation {
    /// Makes `bundles` bundles of `each` messages, due at random within the last second.
    pub fn new(bundles: usize, each: usize) -> Self {
        let clock = Clock::start();
        let counter = Arc::<CountingLane>::default();
        let store_clock = StoreClock::new(clock);
        let sent = store_clock.sending(0);
        store_clock.observe(clock.wall_us(), sent);
        let served = served(clock);
        let now = clock.wall();
        let items = (0..bundles as u64).filter_map(|slot| {
            let mut dues: Vec<i64> = (0..each).map(|_| now.0 - fastrand::i64(1..1000)).collect();
            dues.sort_unstable();
            let entries = dues
                .iter()
                .map(|&due| entry(UnixMs(due), b"body"))
                .collect();
            let in_flight = InFlightBatch {
                lane: Some(counter.clone()),
                ..in_flight(&served, slot, entries, 0)
            };
            WheelItem::new(Arc::new(in_flight))
        });
        Self {
            clock: store_clock,
            heap: items.map(Reverse).collect(),
            counter,
        }
    }

    /// Hands everything over. Returns the number of messages.
    pub fn play(&mut self) -> usize {
        hand_over(&self.clock, &mut self.heap, &mut BTreeMap::new());
        self.counter.0.load(Ordering::Relaxed)
    }
}

/// A plain served route.
///
/// # Panics
/// Never: the route has its metrics.
#[expect(clippy::expect_used, reason = "the route has its metrics")]
pub(super) fn served(clock: Clock) -> Arc<ServedRoute> {
    let route = route();
    let metrics = Metrics::new(&mut Registry::default(), [route.name.clone()]);
    let metrics = metrics.route(&route.name).cloned().expect("of this route");
    let lane = Arc::<CountingLane>::default();
    Arc::new(ServedRoute {
        credit: Credit::new(
            route.clone(),
            lane,
            metrics.clone(),
            Arc::default(),
            Vec::new(),
            clock,
        ),
        reporter: Arc::new(RouteReporter::counting(
            route.clone(),
            metrics.clone(),
            clock,
        )),
        health: Arc::default(),
        metrics,
        route,
        limit: None,
    })
}

/// A bundle of this route, claimed for ever, after `expiries` expired claims.
pub(super) fn in_flight(
    served: &Arc<ServedRoute>,
    slot: u64,
    entries: Vec<Entry>,
    expiries: u32,
) -> InFlightBatch {
    let entries = Arc::new(entries);
    let batch = PublishBatch {
        entries: entries.clone(),
        ids: vec![Text::from_static("~0.a.b.1"); entries.len()],
        expiries,
        spans: Vec::new(),
        target: served.route.to.clone(),
        clock: None,
        copies: served.route.policy.copies,
        number: slot,
        verdicts: Arc::default(),
        listener: Some(served.reporter.clone()),
        not_after_us: AtomicI64::new(i64::MAX),
    };
    InFlightBatch {
        served: served.clone(),
        order: (0..entries.len() as u32).collect(),
        entries,
        batch: Arc::new(batch),
        target_ref: TargetRef::Own,
        lane: None,
        published_us: AtomicI64::new(i64::MAX),
        handed: AtomicU32::new(0),
        first_sequence: 0,
        keyed: Vec::new(),
        flow: PublishFlow::Delayed,
    }
}
