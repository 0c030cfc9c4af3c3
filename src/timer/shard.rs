//! The state of a shard, and of a route that the timer serves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Config;
use super::claim_table::ClaimTable;
use super::credit::Credit;
use super::rate_limit::RateLimiter;
use super::wheel::Wheel;
use crate::cluster::Cluster;
use crate::domain::{Clock, MonoUs, Partition, Route};
use crate::egress::{Lanes, VerdictInbox};
use crate::health::{Health, RouteHealth};
use crate::lifecycle::Shutdown;
use crate::publishing::RouteReporter;
use crate::store::Store;
use crate::telemetry::{Metrics, RouteMetrics};

/// A route that the timer serves.
pub(super) struct ServedRoute {
    pub(super) route: Arc<Route>,
    pub(super) metrics: Arc<RouteMetrics>,
    pub(super) health: Arc<RouteHealth>,
    /// Tells what happens to its publishes.
    pub(super) reporter: Arc<RouteReporter>,
    /// Limits how fast messages leave; `None`: no limit.
    pub(super) limit: Option<Arc<RateLimiter>>,
    /// What of the route may be claimed.
    pub(super) credit: Arc<Credit>,
}

/// The state that the tasks of one shard share.
pub(super) struct Shard {
    pub(super) number: usize,
    pub(super) config: Config,
    /// Partitions of this shard. It claims from those assigned to this replica and only watches the others.
    pub(super) partitions: Vec<Partition>,
    pub(super) cluster: Cluster,
    pub(super) store: Store,
    pub(super) lanes: Arc<dyn Lanes>,
    pub(super) routes: Arc<BTreeMap<String, Arc<ServedRoute>>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) health: Health,
    /// The log already has a line on a bundle of a later version.
    pub(super) saw_later_version: AtomicBool,
    pub(super) table: ClaimTable,
    pub(super) verdicts: Arc<VerdictInbox>,
    pub(super) wheel: Wheel,
    /// Notified when a message of an ordered route may leave, or a key queue closes.
    pub(super) key_queues_changed: Notify,
    /// Notified when this shard has waited for credit of a route, and some is offered to it.
    pub(super) credit_offered: Arc<Notify>,
    /// Cancelled once the claimer has ended.
    pub(super) claiming_ended: CancellationToken,
    pub(super) shutdown: Shutdown,
}

impl Shard {
    pub(super) fn lease_us(&self) -> i64 {
        self.config.claim.as_micros() as i64
    }

    /// The moment until which this replica relies on a claim that is sent or extended after `sending`. Redis's clock
    /// counts the lease, and may be faster.
    pub(super) fn lease_end(&self, sending: MonoUs) -> MonoUs {
        sending.plus(Clock::within(self.lease_us()))
    }

    pub(super) fn lease_ms(&self) -> u64 {
        self.config.claim.as_millis() as u64
    }

    /// The longest lease that any replica's claims have. Only a clock that stepped writes a deadline further ahead.
    pub(super) fn longest_lease_ms(&self) -> u64 {
        self.cluster.longest_claim_ms().max(self.lease_ms())
    }

    /// How far ahead of its due time a message is claimed.
    pub(super) fn lookahead_ms(&self) -> i64 {
        self.config.lookahead.as_millis() as i64
    }

    /// How far ahead of now, by Redis's clock, this replica claims. If the local clock is behind Redis, the horizon is
    /// shorter than the lookahead: another replica can publish those messages sooner.
    pub(super) fn claim_horizon_ms(&self) -> i64 {
        self.lookahead_ms() - self.behind_ms()
    }

    /// How far this replica's wall clock is behind Redis's, ms; 0 if it is not.
    pub(super) fn behind_ms(&self) -> i64 {
        (-self.store.clock().skew_us() / 1000).max(0)
    }

    pub(super) fn mono(&self) -> MonoUs {
        self.store.clock().local().mono()
    }

    pub(super) fn mono_us(&self) -> i64 {
        self.mono().0
    }
}
