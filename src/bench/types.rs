//! Request, progress and summary of a bench.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::{Because, Endpoint, Origin, Route, RoutingKey, Target};

/// Request to measure a route.
#[derive(Clone, Debug)]
pub struct BenchRequest {
    /// The route that the messages go through.
    pub route: Arc<Route>,
    /// Messages a second, at random moments; at least 1.
    pub rate: u32,
    /// Length of the sending.
    pub duration: Duration,
    /// Least and greatest delay of a message, ms; evenly distributed.
    pub delay_ms: (i64, i64),
    /// Bytes of each body.
    pub size: usize,
    /// Least number of partitions of the route's topic; `None`: one for each replica that serves the route.
    pub partitions: Option<usize>,
    /// Why it is done, for the audit log.
    pub because: Option<Because>,
}

impl BenchRequest {
    /// The reason why this cannot be measured, as far as the configuration tells; `None` if it can.
    pub fn unfit(&self) -> Option<String> {
        let route = &self.route;
        let name = &route.name;
        let policy = &route.policy;
        let (_, longest_ms) = self.delay_ms;
        if longest_ms > policy.max_delay_ms {
            return Some(format!(
                "route {name} takes no delay above {} ms (`max_delay`)",
                policy.max_delay_ms
            ));
        }
        if self.size > policy.max_size {
            return Some(format!(
                "route {name} takes no body above {} bytes (`max_size`)",
                policy.max_size
            ));
        }
        if policy.jitter_ms > 0 {
            return Some(format!(
                "route {name} puts due times off by up to {} ms (`jitter`): lateness would be that",
                policy.jitter_ms
            ));
        }
        if let Some(rate) = policy.rate.filter(|rate| rate.per_second < self.rate) {
            return Some(format!(
                "route {name} lets {} messages a second out (`rate`): more would only wait",
                rate.per_second
            ));
        }
        match &*route.to {
            Target::Rabbitmq { exchange, .. } if exchange.is_empty() => Some(format!(
                "route {name} publishes to the default exchange, so to one queue: whoever reads that takes its \
                 messages from their consumer; measure a route to an exchange, to which a bench binds a queue of \
                 its own"
            )),
            _ => None,
        }
    }

    /// The technology of the route's ingress.
    pub(super) fn origin(&self) -> Origin {
        match self.route.from {
            Endpoint::Kafka { .. } => Origin::Kafka,
            Endpoint::Rabbitmq { .. } => Origin::Rabbitmq,
        }
    }

    /// The routing key of all its messages at the target; `None` if the target is Kafka.
    pub(super) fn routing_key(&self) -> Option<String> {
        let Target::Rabbitmq { routing_key, .. } = &*self.route.to else {
            return None;
        };
        Some(match (routing_key, &self.route.from) {
            (RoutingKey::Fixed(key), _) => key.clone(),
            // The messages come in over the default exchange: the queue's name is their routing key.
            (_, Endpoint::Rabbitmq { queue, .. }) => queue.clone(),
            (_, Endpoint::Kafka { .. }) => RECORD_KEY.to_owned(),
        })
    }
}

/// Key of records whose key becomes a routing key.
pub(super) const RECORD_KEY: &str = "postdate-bench";

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct BenchProgress {
    /// Time since the run began, ms.
    pub at_ms: i64,
    /// Messages sent.
    pub sent: u64,
    /// Messages that arrived.
    pub received: u64,
    /// Median of the lateness so far, microseconds.
    pub p50_us: u64,
    /// 99th percentile of the lateness so far, microseconds.
    pub p99_us: u64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct BenchSummary {
    /// Name of the run, which each of its messages carries.
    pub run: String,
    /// True if a signal ended it.
    pub stopped: bool,
    /// Messages sent to the broker of the route's ingress.
    pub sent: u64,
    /// Length of the sending, ms.
    pub sent_ms: i64,
    /// Greatest delay of the sending behind its plan, microseconds. Due times are those of the plan.
    pub behind_us: i64,
    /// Messages that the ingress's broker did not take, or not surely.
    pub failed: u64,
    /// Reason of the first failure.
    pub why: Option<String>,
    /// Messages that arrived, each counted once.
    pub received: u64,
    /// Arrivals a second, from the first to the last.
    pub received_per_second: f64,
    /// Arrivals of messages that had arrived before.
    pub again: u64,
    /// Messages that arrived before they were due, by this machine's clock.
    pub early: u64,
    /// Greatest earliness, microseconds.
    pub earliest_us: u64,
    /// Messages taken out of the store at the end, because they had not arrived.
    pub cancelled: u64,
    /// Messages that neither arrived nor were found in the store.
    pub missing: u64,
    /// This machine's clock minus Redis's, microseconds.
    pub skew_us: i64,
    /// Lateness, microseconds.
    pub late: LatenessSummary,
    /// Histogram of lateness: each row's upper limit (microseconds; `None`: beyond all) and its messages.
    pub rows: Vec<(Option<u64>, u64)>,
}

/// Lateness, microseconds.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct LatenessSummary {
    pub min: u64,
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

/// Is told about the stages of a bench.
pub trait BenchWatcher: Send + Sync {
    /// The run begins: its name, the route's ingress and its target.
    fn begins(&self, run: &str, from: &str, to: &str);
    /// The run goes on; called several times a second.
    fn goes_on(&self, progress: &BenchProgress);
    /// Messages that have not arrived are being taken out of the store.
    fn cleans(&self, waiting: u64);
}
