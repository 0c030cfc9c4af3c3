//! The state of a shard, and of a route that the timer serves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Config;
use super::budget::RouteBytes;
use super::claim_table::ClaimTable;
use super::rate_limit::RateLimiter;
use super::wheel::Wheel;
use crate::cluster::Cluster;
use crate::domain::limits::BUNDLE_MESSAGES;
use crate::domain::{Clock, MonoUs, Partition, Route};
use crate::egress::{Lane, Lanes, VerdictInbox};
use crate::lifecycle::Shutdown;
use crate::store::{DeadLetterQuota, RouteTrail, Store};
use crate::telemetry::{BurstLog, FollowRegistry, Metrics, RouteMetrics, Tracer};

/// Messages of one route that this replica may have claimed. The route's next bundles wait in the store.
const ROUTE_WINDOW: i64 = 50_000;
/// The same while the route's target is in trouble. Claims that wait for a target are extended again and again, which
/// costs Redis as much as publishing them would.
const TROUBLE_WINDOW: i64 = 2000;
/// Messages of one route that one poll may claim. Claimed bundles have to be decoded, and other routes wait for the
/// next poll meanwhile.
const POLL_MESSAGES: i64 = ROUTE_WINDOW / 4;
/// Window of a route with a `rate`, in seconds' worth of messages: enough for a target that takes a second to
/// confirm.
const LIMITED_SECONDS: i64 = 2;

/// A route that the timer serves.
pub(super) struct ServedRoute {
    pub(super) route: Arc<Route>,
    /// The lane to the route's own target.
    pub(super) lane: Arc<dyn Lane>,
    pub(super) metrics: Arc<RouteMetrics>,
    pub(super) watch: Arc<FollowRegistry>,
    pub(super) bursts: Arc<BurstLog>,
    pub(super) tracer: Tracer,
    /// Receives the confirmed messages; `None`: the route has no trail.
    pub(super) trail: Option<Arc<RouteTrail>>,
    /// Limits how fast messages leave; `None`: no limit.
    pub(super) limit: Option<Arc<RateLimiter>>,
    /// Number of claimed messages.
    pub(super) messages: AtomicI64,
    /// Bytes of the claimed bundles.
    pub(super) bytes: Arc<RouteBytes>,
}

/// The state that the tasks of one shard share.
pub(super) struct Shard {
    pub(super) number: usize,
    pub(super) config: Config,
    /// Partitions of this shard. It claims from those assigned to this replica and only watches the others.
    pub(super) partitions: Vec<Partition>,
    pub(super) cluster: Cluster,
    pub(super) store: Store,
    pub(super) dead_letter_quota: Arc<DeadLetterQuota>,
    pub(super) lanes: Arc<dyn Lanes>,
    pub(super) routes: Arc<BTreeMap<String, Arc<ServedRoute>>>,
    pub(super) metrics: Arc<Metrics>,
    /// The log already has a line on a bundle of a later version.
    pub(super) saw_later_version: AtomicBool,
    pub(super) table: ClaimTable,
    pub(super) verdicts: Arc<VerdictInbox>,
    pub(super) wheel: Wheel,
    /// Notified when a message of an ordered route may leave, or a key queue closes.
    pub(super) key_queues_changed: Notify,
    /// Notified when a route's window has space again.
    pub(super) window_freed: Arc<Notify>,
    /// Cancelled once the claimer has ended.
    pub(super) claiming_ended: CancellationToken,
    pub(super) shutdown: Shutdown,
}

impl ServedRoute {
    /// Messages and due sets that the next poll may claim. `None` until a quarter of the window is free, so that
    /// claims stay large when the target is the bottleneck.
    pub(super) fn claim_allowance(&self, now_us: i64) -> Option<(i64, usize)> {
        let window = self.window();
        let free = window - self.messages.load(Ordering::Relaxed);
        if free < (window / 4).max(1) {
            return None;
        }
        let (messages, due_sets) = self.bytes.allowance(now_us)?;
        let messages = messages.min(free).min(POLL_MESSAGES);
        // Each due set gives at least one bundle, so the small window of a limited route goes to its earliest due
        // sets.
        let limited = self
            .limit
            .is_some()
            .then_some(messages as usize / BUNDLE_MESSAGES);
        Some((messages, due_sets.min(limited.unwrap_or(due_sets)).max(1)))
    }

    pub(super) fn window(&self) -> i64 {
        let most = if self.lane.trouble().is_some() {
            TROUBLE_WINDOW
        } else {
            ROUTE_WINDOW
        };
        self.route.policy.rate.map_or(most, |rate| {
            let worth = i64::from(rate.per_second) * LIMITED_SECONDS;
            worth.max(i64::from(rate.capacity())).min(most)
        })
    }

    /// Adds to the number of claimed messages; a negative number subtracts.
    pub(super) fn count_claimed(&self, messages: i64) {
        self.messages.fetch_add(messages, Ordering::Relaxed);
        // Other shards count at the same time: a value that is set could be an older one.
        self.metrics.in_flight.inc_by(messages);
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::Publication;
    use crate::timer::simulation::served_through;

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

    #[test]
    fn a_target_in_trouble_holds_few_messages_until_it_works_again() {
        let clock = Clock::start();
        let lane = Arc::<TroubledLane>::default();
        let served = served_through(clock, lane.clone());
        let allowed = || {
            served
                .claim_allowance(clock.mono_us())
                .map(|(messages, _)| messages)
        };
        assert_eq!(allowed(), Some(POLL_MESSAGES));
        lane.0.store(true, Ordering::Relaxed);
        assert_eq!(allowed(), Some(TROUBLE_WINDOW));
        served.count_claimed(TROUBLE_WINDOW);
        assert_eq!(allowed(), None);
        lane.0.store(false, Ordering::Relaxed);
        assert_eq!(allowed(), Some(POLL_MESSAGES), "at once");
        served.count_claimed(ROUTE_WINDOW);
        lane.0.store(true, Ordering::Relaxed);
        assert_eq!(allowed(), None, "what was claimed before stays claimed");
    }
}
