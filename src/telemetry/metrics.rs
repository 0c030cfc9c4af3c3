//! Every metric, as handles made once per route. What each means, and what to do when it moves, stands in
//! [`descriptions`].
//!
//! Names and labels are a contract with users: `tests/contract/pages/metrics.rs` has their list.

pub mod descriptions;
mod labels;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use self::descriptions::{self as words, MetricDescription};
use self::labels::{
    CauseLabels, CommandLabels, InvalidLabels, OpLabel, PartLabel, ReasonLabels, RefusalLabel,
    RouteLabel, TraceLabel, VersionLabel, WhatLabel,
};
use super::flow::{FlowHistory, RecentLateness};
use super::{KafkaClients, SpanLosses};
use crate::domain::{InvalidReason, RepeatCause, RouteName};

/// A gauge of whole numbers.
pub type CountGauge = Gauge<i64>;
/// A gauge of seconds.
pub type SecondsGauge = Gauge<f64, AtomicU64>;
type RouteFamily<M> = Family<RouteLabel, M>;
type HistogramMaker = fn() -> Histogram;

/// Registers a metric under the name and the help text of its description.
fn add(registry: &mut Registry, words: MetricDescription, metric: &(impl Metric + Clone)) {
    registry.register(words.name, words.meaning, metric.clone());
}

/// Upper bounds of the buckets of every histogram of seconds: log-spaced from 100 us to an hour. Longer outages share the
/// last bucket.
const SECONDS_BUCKETS: [f64; 21] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
];

fn seconds() -> Histogram {
    Histogram::new(SECONDS_BUCKETS)
}

/// Lateness, with the last recorded trace of each bucket as its exemplar.
type LatenessHistogram = HistogramWithExemplars<TraceLabel>;
type LatenessFamily = Family<RouteLabel, LatenessHistogram, fn() -> LatenessHistogram>;

fn lateness_seconds() -> LatenessHistogram {
    HistogramWithExemplars::new(SECONDS_BUCKETS.into_iter())
}

/// All metrics of the process.
#[derive(Debug)]
pub struct Metrics {
    routes: BTreeMap<RouteName, Arc<RouteMetrics>>,
    store_seconds: Family<OpLabel, Histogram, HistogramMaker>,
    /// `stale_claims_total`: settles, extends and returns of a claim that another replica had by then.
    pub stale_claims: Counter,
    /// `spans_lost_total`: spans of traces that were recorded and not exported, by cause.
    pub spans_lost: SpanLosses,
    /// `partitions_owned`
    pub partitions_owned: CountGauge,
    /// `store_changes_total`: times the store was found to be rolled back or replaced.
    pub store_changes: Counter,
    /// `clock_skew_seconds`: this replica's wall clock minus Redis's.
    pub clock_skew: SecondsGauge,
    store_damage: Family<WhatLabel, Counter>,
    /// `unknown_routes`: routes that the store has messages of and that are not configured.
    pub unknown_routes: CountGauge,
    /// `unknown_versions_total`
    pub unknown_versions: Counter,
    /// `store_memory_bytes`: memory of the fullest master.
    pub store_memory: CountGauge,
    /// `store_memory_limit_bytes`: limit of the same master; 0 if it has none.
    pub store_memory_limit: CountGauge,
    part_up: Family<PartLabel, CountGauge>,
    admin_refused: Family<RefusalLabel, Counter>,
    /// Figures of the Kafka clients.
    pub kafka_clients: KafkaClients,
    /// Flow of all routes over the last minutes, over all replicas.
    pub flow: FlowHistory,
}

/// One route's metrics.
#[derive(Debug)]
#[allow(missing_docs)] // each is `postdate_<name>{route}`, described by its help text below
pub struct RouteMetrics {
    route: String,
    pub admitted: Counter,
    pub passed_through: Counter,
    pub stored: Counter,
    pub duplicates: Counter,
    pub published: Counter,
    pub retries: Counter,
    pub expired: Counter,
    pub loops: Counter,
    pub trail_lost: Counter,
    pub pending: CountGauge,
    pub in_flight: CountGauge,
    pub dead: CountGauge,
    pub ingress_lag: CountGauge,
    pub ingress_unresolved: CountGauge,
    pub source_lost: Counter,
    pub publishing_paused: CountGauge,
    pub oldest_overdue: SecondsGauge,
    lateness: LatenessHistogram,
    /// Lateness since the flow of the route was last measured.
    pub(super) recent_lateness: RecentLateness,
    pub confirm: Histogram,
    invalid: Family<InvalidLabels, Counter>,
    commands: Family<CommandLabels, Counter>,
    publish_failures: Family<ReasonLabels, Counter>,
    redelivered: Family<CauseLabels, Counter>,
    dead_letters: Family<ReasonLabels, Counter>,
    dropped: Family<ReasonLabels, Counter>,
    ingress_paused: Family<ReasonLabels, CountGauge>,
}

#[derive(Default)]
struct RouteFamilies {
    admitted: RouteFamily<Counter>,
    passed_through: RouteFamily<Counter>,
    stored: RouteFamily<Counter>,
    duplicates: RouteFamily<Counter>,
    published: RouteFamily<Counter>,
    retries: RouteFamily<Counter>,
    expired: RouteFamily<Counter>,
    loops: RouteFamily<Counter>,
    trail_lost: RouteFamily<Counter>,
    pending: RouteFamily<CountGauge>,
    in_flight: RouteFamily<CountGauge>,
    dead: RouteFamily<CountGauge>,
    ingress_lag: RouteFamily<CountGauge>,
    ingress_unresolved: RouteFamily<CountGauge>,
    source_lost: RouteFamily<Counter>,
    publishing_paused: RouteFamily<CountGauge>,
    oldest_overdue: RouteFamily<SecondsGauge>,
    invalid: Family<InvalidLabels, Counter>,
    commands: Family<CommandLabels, Counter>,
    publish_failures: Family<ReasonLabels, Counter>,
    redelivered: Family<CauseLabels, Counter>,
    dead_letters: Family<ReasonLabels, Counter>,
    dropped: Family<ReasonLabels, Counter>,
    ingress_paused: Family<ReasonLabels, CountGauge>,
}

impl RouteFamilies {
    fn register(&self, r: &mut Registry) {
        add(r, words::ADMITTED, &self.admitted);
        add(r, words::PASSED_THROUGH, &self.passed_through);
        add(r, words::INVALID, &self.invalid);
        add(r, words::STORED, &self.stored);
        add(r, words::DUPLICATES, &self.duplicates);
        add(r, words::COMMANDS, &self.commands);
        add(r, words::PUBLISHED, &self.published);
        add(r, words::PUBLISH_FAILURES, &self.publish_failures);
        add(r, words::RETRIES, &self.retries);
        add(r, words::EXPIRED, &self.expired);
        add(r, words::LOOPS, &self.loops);
        add(r, words::TRAIL_LOST, &self.trail_lost);
        add(r, words::REDELIVERED, &self.redelivered);
        add(r, words::DEAD_LETTERS, &self.dead_letters);
        add(r, words::DROPPED, &self.dropped);
        add(r, words::PENDING, &self.pending);
        add(r, words::IN_FLIGHT, &self.in_flight);
        add(r, words::DEAD, &self.dead);
        add(r, words::OLDEST_OVERDUE, &self.oldest_overdue);
        add(r, words::INGRESS_PAUSED, &self.ingress_paused);
        add(r, words::INGRESS_LAG, &self.ingress_lag);
        add(r, words::INGRESS_UNRESOLVED, &self.ingress_unresolved);
        add(r, words::SOURCE_LOST, &self.source_lost);
        add(r, words::PUBLISHING_PAUSED, &self.publishing_paused);
    }
}

impl Metrics {
    /// Registers everything under the prefix `postdate` and makes the handles of each route.
    pub fn new(registry: &mut Registry, routes: impl IntoIterator<Item = RouteName>) -> Arc<Self> {
        let registry = registry.sub_registry_with_prefix("postdate");
        let families = RouteFamilies::default();
        families.register(registry);
        let lateness = LatenessFamily::new_with_constructor(lateness_seconds);
        let confirm =
            Family::<RouteLabel, Histogram, HistogramMaker>::new_with_constructor(seconds);
        add(registry, words::LATENESS, &lateness);
        add(registry, words::CONFIRM, &confirm);
        let routes = routes.into_iter().map(|name| {
            let handles = RouteMetrics::new(&families, &lateness, &confirm, &name);
            (name, Arc::new(handles))
        });
        let metrics = Self {
            routes: routes.collect::<BTreeMap<_, _>>(),
            store_seconds: Family::new_with_constructor(seconds),
            stale_claims: Counter::default(),
            spans_lost: SpanLosses::default(),
            store_damage: Family::default(),
            partitions_owned: CountGauge::default(),
            store_changes: Counter::default(),
            clock_skew: SecondsGauge::default(),
            unknown_routes: CountGauge::default(),
            unknown_versions: Counter::default(),
            store_memory: CountGauge::default(),
            store_memory_limit: CountGauge::default(),
            part_up: Family::default(),
            admin_refused: Family::default(),
            kafka_clients: KafkaClients::default(),
            flow: FlowHistory::default(),
        };
        metrics.register(registry);
        registry.register_collector(Box::new(metrics.kafka_clients.clone()));
        Arc::new(metrics)
    }

    fn register(&self, r: &mut Registry) {
        add(r, words::STORE_SECONDS, &self.store_seconds);
        add(r, words::STALE_CLAIMS, &self.stale_claims);
        add(r, words::SPANS_LOST, self.spans_lost.family());
        add(r, words::STORE_DAMAGE, &self.store_damage);
        add(r, words::PARTITIONS_OWNED, &self.partitions_owned);
        add(r, words::STORE_CHANGES, &self.store_changes);
        add(r, words::CLOCK_SKEW, &self.clock_skew);
        add(r, words::UNKNOWN_ROUTES, &self.unknown_routes);
        add(r, words::UNKNOWN_VERSIONS, &self.unknown_versions);
        add(r, words::PART_UP, &self.part_up);
        add(r, words::ADMIN_REFUSED, &self.admin_refused);
        add(r, words::STORE_MEMORY, &self.store_memory);
        add(r, words::STORE_MEMORY_LIMIT, &self.store_memory_limit);
        let build = Family::<VersionLabel, CountGauge>::default();
        build
            .get_or_create(&VersionLabel {
                version: env!("CARGO_PKG_VERSION"),
            })
            .set(1);
        add(r, words::BUILD_INFO, &build);
    }

    /// The handles of a route; `None` for a route that is not configured.
    pub fn route(&self, name: &RouteName) -> Option<&Arc<RouteMetrics>> {
        self.routes.get(name)
    }

    /// The handles of all routes.
    pub fn routes(&self) -> impl Iterator<Item = (&RouteName, &Arc<RouteMetrics>)> {
        self.routes.iter()
    }

    /// Counts damage that a scrub of the store found, if any.
    pub fn store_damage(&self, what: &'static str, found: u64) {
        if found > 0 {
            self.store_damage
                .get_or_create(&WhatLabel { what })
                .inc_by(found);
        }
    }

    /// `part_up{part}`; names of parts come from the configuration.
    pub fn part_up(&self, part: String, up: bool) {
        self.part_up
            .get_or_create(&PartLabel { part })
            .set(i64::from(up));
    }

    /// `admin_refused_total{reason}`
    pub fn admin_refused(&self, reason: &'static str) {
        self.admin_refused
            .get_or_create(&RefusalLabel { reason })
            .inc();
    }

    /// Observes one round trip to the store.
    pub fn store_op(&self, op: &'static str, seconds: f64) {
        self.store_seconds
            .get_or_create(&OpLabel { op })
            .observe(seconds);
    }
}

impl RouteMetrics {
    fn new(
        f: &RouteFamilies,
        lateness: &LatenessFamily,
        confirm: &Family<RouteLabel, Histogram, HistogramMaker>,
        name: &RouteName,
    ) -> Self {
        let label = RouteLabel {
            route: name.as_str().to_owned(),
        };
        let metrics = Self {
            admitted: f.admitted.get_or_create_owned(&label),
            passed_through: f.passed_through.get_or_create_owned(&label),
            stored: f.stored.get_or_create_owned(&label),
            duplicates: f.duplicates.get_or_create_owned(&label),
            published: f.published.get_or_create_owned(&label),
            retries: f.retries.get_or_create_owned(&label),
            expired: f.expired.get_or_create_owned(&label),
            loops: f.loops.get_or_create_owned(&label),
            trail_lost: f.trail_lost.get_or_create_owned(&label),
            pending: f.pending.get_or_create_owned(&label),
            in_flight: f.in_flight.get_or_create_owned(&label),
            dead: f.dead.get_or_create_owned(&label),
            ingress_lag: f.ingress_lag.get_or_create_owned(&label),
            ingress_unresolved: f.ingress_unresolved.get_or_create_owned(&label),
            source_lost: f.source_lost.get_or_create_owned(&label),
            publishing_paused: f.publishing_paused.get_or_create_owned(&label),
            oldest_overdue: f.oldest_overdue.get_or_create_owned(&label),
            lateness: lateness.get_or_create_owned(&label),
            recent_lateness: RecentLateness::default(),
            confirm: confirm.get_or_create_owned(&label),
            invalid: f.invalid.clone(),
            commands: f.commands.clone(),
            publish_failures: f.publish_failures.clone(),
            redelivered: f.redelivered.clone(),
            dead_letters: f.dead_letters.clone(),
            dropped: f.dropped.clone(),
            ingress_paused: f.ingress_paused.clone(),
            route: label.route,
        };
        for cause in RepeatCause::ALL {
            metrics.redelivered(cause, 0);
        }
        metrics
    }

    /// Observes a message that was delivered so late after its delay; early is not late. `trace_id` is the trace of its
    /// delivery, if that is recorded.
    pub fn delivered_late(&self, late_us: i64, trace_id: Option<String>) {
        let late_us = late_us.max(0).unsigned_abs();
        let trace = trace_id.map(|trace_id| TraceLabel { trace_id });
        self.lateness.observe(late_us as f64 / 1e6, trace, None);
        self.recent_lateness.observe(late_us);
    }

    /// `invalid_total{reason,policy}`
    pub fn invalid(&self, reason: InvalidReason, policy: &'static str) {
        let labels = InvalidLabels {
            route: self.route.clone(),
            reason: reason.as_str(),
            policy,
        };
        self.invalid.get_or_create(&labels).inc();
    }

    /// `commands_total{op,result}`
    pub fn command(&self, op: &'static str, result: &'static str) {
        self.commands
            .get_or_create(&CommandLabels {
                route: self.route.clone(),
                op,
                result,
            })
            .inc();
    }

    /// `publish_failures_total{reason}`
    pub fn publish_failure(&self, reason: &'static str) {
        self.publish_failures
            .get_or_create(&self.reason(reason))
            .inc();
    }

    /// `redelivered_total{cause}`
    pub fn redelivered(&self, cause: RepeatCause, times: u64) {
        let labels = CauseLabels {
            route: self.route.clone(),
            cause: cause.as_str(),
        };
        self.redelivered.get_or_create(&labels).inc_by(times);
    }

    /// `dead_letters_total{reason}`
    pub fn dead_letter(&self, reason: &'static str) {
        self.dead_letters.get_or_create(&self.reason(reason)).inc();
    }

    /// `dropped_total{reason}`
    pub fn dropped(&self, reason: &'static str, times: u64) {
        self.dropped
            .get_or_create(&self.reason(reason))
            .inc_by(times);
    }

    /// `ingress_paused{reason}`
    pub fn ingress_paused(&self, reason: &'static str, paused: bool) {
        self.ingress_paused
            .get_or_create(&self.reason(reason))
            .set(i64::from(paused));
    }

    /// Shows the messages and the dead letters that the store has of the route. Those in flight at this replica are no
    /// longer pending; those in flight at other replicas count as pending.
    pub fn show_counts(&self, messages: i64, dead: i64) {
        self.pending.set((messages - self.in_flight.get()).max(0));
        self.dead.set(dead);
    }

    fn reason(&self, reason: &'static str) -> ReasonLabels {
        ReasonLabels {
            route: self.route.clone(),
            reason,
        }
    }
}
