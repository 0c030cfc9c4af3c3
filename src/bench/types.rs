//! What a bench is asked for, and what it tells.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::{Endpoint, Origin, Route, RoutingKey, Target};

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// The route that the messages go through.
    pub route: Arc<Route>,
    /// Messages a second, at random moments; at least 1.
    pub rate: u32,
    /// For how long messages are sent.
    pub duration: Duration,
    /// Each is due so many ms later, at least and at most, evenly.
    pub delay_ms: (i64, i64),
    /// Bytes of each body.
    pub size: usize,
    /// Partitions that the route's topic must have at least; `None`: one for each replica that serves the route.
    pub partitions: Option<usize>,
}

impl Request {
    /// Why this cannot be measured, as far as the configuration says it.
    pub fn unfit(&self) -> Option<String> {
        let Request { route, delay_ms: (_, most), .. } = self;
        let (name, policy) = (&route.name, &route.policy);
        if *most > policy.max_delay_ms {
            return Some(format!(
                "route {name} takes no delay above {} ms (`max_delay`)",
                policy.max_delay_ms
            ));
        }
        if self.size > policy.max_size {
            return Some(format!("route {name} takes no body above {} bytes (`max_size`)", policy.max_size));
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

    /// Bytes of the route's ingress.
    pub(super) fn origin(&self) -> Origin {
        match self.route.from {
            Endpoint::Kafka { .. } => Origin::Kafka,
            Endpoint::Rabbitmq { .. } => Origin::Rabbitmq,
        }
    }

    /// The routing key that its messages leave with, where they leave to RabbitMQ with one and the same.
    pub(super) fn routing_key(&self) -> Option<String> {
        let Target::Rabbitmq { routing_key, .. } = &*self.route.to else { return None };
        Some(match (routing_key, &self.route.from) {
            (RoutingKey::Fixed(key), _) => key.clone(),
            // They are published to the default exchange, which goes by the queue's name.
            (_, Endpoint::Rabbitmq { queue, .. }) => queue.clone(),
            (_, Endpoint::Kafka { .. }) => KEY.to_owned(),
        })
    }
}

/// The key of records whose key becomes a routing key.
pub(super) const KEY: &str = "postdate-bench";

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// For how long messages have been sent, ms.
    pub at_ms: i64,
    /// Messages sent.
    pub sent: u64,
    /// Messages that came out.
    pub received: u64,
    /// Lateness, microseconds: the median and the 99th percentile so far.
    pub p50_us: u64,
    /// See `p50_us`.
    pub p99_us: u64,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The name of the run, which stands in each of its messages.
    pub run: String,
    /// Whether it was ended by a signal.
    pub stopped: bool,
    /// Messages handed to the broker of the route's ingress.
    pub sent: u64,
    /// For how long, ms.
    pub sent_ms: i64,
    /// How far sending fell behind its own plan at most, microseconds. Due times are those of the plan.
    pub behind_us: i64,
    /// Messages that the ingress's broker did not take, or not surely, and the first reason.
    pub failed: u64,
    /// See `failed`.
    pub why: Option<String>,
    /// Messages that came out, each counted once.
    pub received: u64,
    /// Of these a second, from the first to the last.
    pub received_per_second: f64,
    /// Arrivals of what had come already.
    pub again: u64,
    /// Messages that came before they were due, by this machine's clock.
    pub early: u64,
    /// By how much at most, microseconds.
    pub earliest_us: u64,
    /// Messages taken out of the store at the end, for they had not come.
    pub cancelled: u64,
    /// Messages that neither came nor were found in the store.
    pub missing: u64,
    /// This machine's clock minus Redis's, microseconds.
    pub skew_us: i64,
    /// Lateness, microseconds.
    pub late: Late,
    /// How many are how late: each row's limit (microseconds; `None`: beyond all) and its messages.
    pub rows: Vec<(Option<u64>, u64)>,
}

/// Lateness, microseconds.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Late {
    pub min: u64,
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

/// Hears of a bench.
pub trait Watcher: Send + Sync {
    /// All is there; it begins. The name of the run, and from and to where.
    fn begins(&self, run: &str, from: &str, to: &str);
    /// Several times a second.
    fn goes_on(&self, progress: &Progress);
    /// What has not come is being taken out of the store.
    fn cleans(&self, waiting: u64);
}
