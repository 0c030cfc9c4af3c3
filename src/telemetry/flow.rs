//! Flow of each route: how many messages a second come in and go out, and how late they are delivered, over the last
//! steps of [`FLOW_STEP`]. Each replica measures its own flow and tells it with its heartbeats; each adds up what it hears.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Metrics;
use crate::domain::UnixMs;

/// Time over which one flow is measured.
pub const FLOW_STEP: Duration = Duration::from_secs(2);
/// Steps that are kept: five minutes.
const KEPT_STEPS: usize = 150;
/// Largest lateness that is told from a larger one: twelve days, microseconds.
const MAX_LATENESS_US: u64 = 1 << 40;

/// Flow of one route over one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteFlow {
    /// Messages a second that were read from the source.
    #[serde(rename = "in")]
    pub rate_in: f64,
    /// Messages a second that were published and confirmed, with those that had no delay.
    #[serde(rename = "out")]
    pub rate_out: f64,
    /// Median lateness of what was delivered after a delay, microseconds; `None` if nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50: Option<u64>,
    /// Lateness that one in a hundred exceeds, microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99: Option<u64>,
}

impl RouteFlow {
    /// Adds the flow of another replica. Rates add up; the lateness is that of the slower replica.
    pub fn add(&mut self, other: &Self) {
        self.rate_in += other.rate_in;
        self.rate_out += other.rate_out;
        self.p50 = self.p50.max(other.p50);
        self.p99 = self.p99.max(other.p99);
    }

    /// Reports whether nothing moved.
    fn is_still(&self) -> bool {
        *self == Self::default()
    }
}

/// Flows of routes. A route that stood still is left out.
pub type RouteFlows = BTreeMap<String, RouteFlow>;

/// Lateness of the messages delivered since it was last read. Values are known to a tenth of themselves.
#[derive(Debug)]
pub struct RecentLateness(Mutex<Histogram<u32>>);

impl Default for RecentLateness {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, MAX_LATENESS_US, 1);
        Self(Mutex::new(histogram.unwrap_or_else(|_| {
            unreachable!("the bounds are far enough apart")
        })))
    }
}

impl RecentLateness {
    /// Counts a message that was delivered so late.
    pub fn observe(&self, late_us: u64) {
        self.0.lock().saturating_record(late_us);
    }

    /// Takes what was counted: the median and the 99th percentile, microseconds; `None` if nothing was.
    fn take(&self) -> Option<(u64, u64)> {
        let mut histogram = self.0.lock();
        let quantiles = (
            histogram.value_at_quantile(0.5),
            histogram.value_at_quantile(0.99),
        );
        let is_empty = histogram.is_empty();
        histogram.reset();
        (!is_empty).then_some(quantiles)
    }
}

/// Measurement of this replica's flow.
#[derive(Debug, Default)]
pub struct FlowSampler {
    last: Option<FlowTotals>,
}

/// Totals of all routes at one moment.
#[derive(Debug)]
struct FlowTotals {
    at_us: i64,
    routes: BTreeMap<String, (u64, u64)>,
}

impl FlowSampler {
    /// Measures the flow since the last sample, at the monotonic moment `now_us`. `None` if that was less than a step ago,
    /// or if this is the first one.
    pub fn sample(&mut self, metrics: &Metrics, now_us: i64) -> Option<RouteFlows> {
        let since_us = self.last.as_ref().map(|last| now_us - last.at_us);
        if since_us.is_some_and(|since_us| since_us < FLOW_STEP.as_micros() as i64) {
            return None;
        }
        let total = |route: &super::RouteMetrics| {
            (
                route.admitted.get(),
                route.published.get() + route.passed_through.get(),
            )
        };
        let routes: BTreeMap<_, _> = metrics
            .routes()
            .map(|(name, route)| (name.to_string(), total(route)))
            .collect();
        let last = self.last.replace(FlowTotals {
            at_us: now_us,
            routes,
        })?;
        let seconds = since_us? as f64 / 1e6;
        let mut flows = RouteFlows::new();
        for (name, route) in metrics.routes() {
            let (all_in, all_out) = total(route);
            let (old_in, old_out) = last.routes.get(name.as_str()).copied().unwrap_or_default();
            let a_second = |new: u64, old: u64| {
                (new.saturating_sub(old) as f64 / seconds * 10.0).round() / 10.0
            };
            let late = route.recent_lateness.take();
            let flow = RouteFlow {
                rate_in: a_second(all_in, old_in),
                rate_out: a_second(all_out, old_out),
                p50: late.map(|(p50, _)| p50),
                p99: late.map(|(_, p99)| p99),
            };
            if !flow.is_still() {
                flows.insert(name.to_string(), flow);
            }
        }
        Some(flows)
    }
}

/// Flows of one step, over all replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowStep {
    /// End of the step.
    pub at: UnixMs,
    /// The routes that moved.
    pub routes: RouteFlows,
}

/// Flows of the last five minutes, over all replicas, as this one heard them.
#[derive(Debug, Default)]
pub struct FlowHistory(Mutex<VecDeque<FlowStep>>);

impl FlowHistory {
    /// Adds a step: the sum of what each replica told.
    pub fn add<'a>(&self, at: UnixMs, replicas: impl IntoIterator<Item = &'a RouteFlows>) {
        let mut routes = RouteFlows::new();
        for (name, flow) in replicas.into_iter().flatten() {
            routes.entry(name.clone()).or_default().add(flow);
        }
        let mut steps = self.0.lock();
        steps.push_back(FlowStep { at, routes });
        while steps.len() > KEPT_STEPS {
            steps.pop_front();
        }
    }

    /// The steps, oldest first.
    pub fn steps(&self) -> Vec<FlowStep> {
        self.0.lock().iter().cloned().collect()
    }

    /// The last step, unless it ended more than three steps before `now`.
    pub fn latest(&self, now: UnixMs) -> Option<FlowStep> {
        let fresh_ms = 3 * FLOW_STEP.as_millis() as i64;
        self.0
            .lock()
            .back()
            .filter(|step| now.since(step.at) <= fresh_ms)
            .cloned()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::domain::RouteName;

    #[test]
    fn quantiles_are_those_of_what_came_since_the_last_look() {
        let recent = RecentLateness::default();
        assert_eq!(recent.take(), None);
        (1..=100).for_each(|n| recent.observe(if n > 98 { 1 << 20 } else { 4 }));
        let (p50, p99) = recent.take().expect("values");
        assert!(
            p50 == 4 && (1 << 20..1_200_000).contains(&p99),
            "{p50} {p99}"
        );
        assert_eq!(recent.take(), None, "taken");
    }

    #[test]
    fn a_sample_has_the_rates_since_the_one_before_and_leaves_out_what_stands() {
        let names = ["a", "b"].map(|name| RouteName::new(name).expect("a name"));
        let metrics = Metrics::new(&mut Registry::default(), names);
        let mut sampler = FlowSampler::default();
        assert_eq!(sampler.sample(&metrics, 0), None);
        let route = metrics
            .route(&RouteName::new("a").expect("a name"))
            .expect("a route");
        route.admitted.inc_by(30);
        route.passed_through.inc_by(10);
        route.delivered_late(7, None);
        assert_eq!(sampler.sample(&metrics, 1_999_999), None, "too soon");
        let flows = sampler.sample(&metrics, 2_000_000).expect("a step");
        let flow = RouteFlow {
            rate_in: 15.0,
            rate_out: 5.0,
            p50: Some(7),
            p99: Some(7),
        };
        assert_eq!(flows, RouteFlows::from([("a".to_owned(), flow)]));
        assert_eq!(sampler.sample(&metrics, 4_000_000), Some(RouteFlows::new()));
    }

    #[test]
    fn the_history_adds_replicas_up_and_is_bounded() {
        let history = FlowHistory::default();
        let of = |rate_in, p99| {
            let flow = RouteFlow {
                rate_in,
                p99,
                ..RouteFlow::default()
            };
            RouteFlows::from([("a".to_owned(), flow)])
        };
        for n in 0..(KEPT_STEPS as i64 + 5) {
            history.add(
                UnixMs(n * 2000),
                [&of(1.0, Some(5)), &of(2.5, None), &RouteFlows::new()],
            );
        }
        let steps = history.steps();
        assert_eq!((steps.len(), steps[0].at), (KEPT_STEPS, UnixMs(10_000)));
        let sum = RouteFlow {
            rate_in: 3.5,
            p99: Some(5),
            ..RouteFlow::default()
        };
        assert_eq!(steps[0].routes["a"], sum);
        let last = steps.last().expect("a step").at;
        assert!(
            history.latest(last.plus(6000)).is_some() && history.latest(last.plus(6001)).is_none()
        );
    }
}
