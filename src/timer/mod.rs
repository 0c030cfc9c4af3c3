//! The timer: store -> egress, at the due time.
//!
//! A replica runs a pool of shards. Each shard serves some of the partitions that [`Cluster`] assigns to the replica.
//! Its *claimer* ([`claimer`]) polls the heads of all its partitions at once, claims what is due within the
//! lookahead, and hands it to the wheel. The *wheel* ([`wheel`]) is one precise thread for all shards. It gives each
//! message to its target's lane at its own millisecond, never early; a message of a limited route also needs a token
//! ([`rate_limit`]). The *settler* ([`settler`]) collects the brokers' verdicts and answers the store: it settles
//! confirmed bundles in batches, sends failures back, makes dead letters of hopeless messages, splits off hanging
//! ones, and extends claims. *Maintenance* ([`maintenance`]) returns expired claims and scrubs the store.
//!
//! Guarantees. A message leaves the store only after its broker's confirm. Nothing is published whose claim may have
//! passed to another replica: each hand-over checks a monotonic deadline that was taken before the claim was sent. A
//! wake-up only shortens a wait. Messages that are claimed but not published go back to the store on a clean stop.

mod accept;
mod budget;
mod claim_scope;
mod claim_table;
mod claimed;
mod claimer;
pub mod config;
mod key_order;
mod maintenance;
mod polling;
mod rate_limit;
mod read_claimed;
mod resolve;
mod settler;
#[cfg(feature = "test-util")]
pub mod simulation;
mod wheel;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use config::Config;

use crate::cluster::Cluster;
use crate::domain::limits::BUNDLE_MESSAGES;
use crate::domain::{Clock, MonoUs, Partition, Route};
use crate::egress::{Lanes, Verdicts};
use crate::lifecycle::{Shutdown, Tasks};
use crate::store::{DeadRoom, Store};
use crate::telemetry::{Bursts, Metrics, RouteMetrics, Watch};

use self::budget::{ByteBudget, RouteBytes};
use self::claim_table::ClaimTable;
use self::rate_limit::RateLimiter;
use self::wheel::Wheel;

/// Messages of one route that this replica may have claimed. The route's next bundles wait in the store.
const ROUTE_WINDOW: i64 = 50_000;
/// Messages of one route that one poll may claim. Claimed bundles have to be decoded, and other routes wait for the
/// next poll meanwhile.
const POLL_MESSAGES: i64 = ROUTE_WINDOW / 4;
/// Window of a route with a `rate`, in seconds' worth of messages: enough for a target that takes a second to
/// confirm.
const LIMITED_SECONDS: i64 = 2;

/// The dependencies of the timer.
pub struct TimerDependencies<'a> {
    /// The settings of claims.
    pub config: Config,
    /// The store that is claimed from.
    pub store: Store,
    /// The quota of dead letters.
    pub dead_letter_quota: Arc<DeadRoom>,
    /// The lanes to the targets.
    pub lanes: Arc<dyn Lanes>,
    /// The partitions that this replica owns.
    pub cluster: Cluster,
    /// The routes that this replica serves.
    pub routes: &'a [Arc<Route>],
    /// The metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Receives the end of each followed message.
    pub watch: Arc<Watch>,
    /// Logs possible repeats, in bursts.
    pub bursts: Arc<Bursts>,
    /// Number of shards. The store's wake-ups have to know the same number.
    pub shards: usize,
    /// The task set to spawn on.
    pub tasks: &'a Tasks,
    /// The signal to return all claims and end.
    pub shutdown: Shutdown,
}

/// A route that the timer serves.
struct ServedRoute {
    route: Arc<Route>,
    metrics: Arc<RouteMetrics>,
    watch: Arc<Watch>,
    bursts: Arc<Bursts>,
    /// Limits how fast messages leave; `None`: no limit.
    limit: Option<Arc<RateLimiter>>,
    /// Number of claimed messages.
    messages: AtomicI64,
    /// Bytes of the claimed bundles.
    bytes: Arc<RouteBytes>,
}

/// The state that the tasks of one shard share.
struct Shard {
    number: usize,
    config: Config,
    /// Partitions of this shard. It claims from those assigned to this replica and only watches the others.
    partitions: Vec<Partition>,
    cluster: Cluster,
    store: Store,
    dead_letter_quota: Arc<DeadRoom>,
    lanes: Arc<dyn Lanes>,
    routes: Arc<BTreeMap<String, Arc<ServedRoute>>>,
    metrics: Arc<Metrics>,
    /// The log already has a line on a bundle of a later version.
    saw_later_version: AtomicBool,
    table: ClaimTable,
    verdicts: Arc<Verdicts>,
    wheel: Wheel,
    /// Notified when a message of an ordered route may leave, or a key queue closes.
    key_queues_changed: Notify,
    /// Notified when a route's window has space again.
    window_freed: Arc<Notify>,
    /// Cancelled once the claimer has ended.
    claiming_ended: CancellationToken,
    shutdown: Shutdown,
}

/// Starts the wheel and all shards.
pub fn start(dependencies: &TimerDependencies<'_>) -> std::io::Result<()> {
    let wheel = Wheel::start(dependencies.store.clock().clone(), dependencies.tasks, &dependencies.shutdown)?;
    let wake_ups: Vec<Arc<Notify>> = (0..dependencies.shards).map(|_| Arc::default()).collect();
    let budget = ByteBudget::new(wake_ups.clone());
    let clock = dependencies.store.clock().local();
    let served = dependencies.routes.iter().filter_map(|route| {
        let served = ServedRoute {
            route: route.clone(),
            metrics: dependencies.metrics.route(&route.name)?.clone(),
            watch: dependencies.watch.clone(),
            bursts: dependencies.bursts.clone(),
            limit: route.policy.rate.map(|rate| Arc::new(RateLimiter::new(rate, clock))),
            messages: AtomicI64::new(0),
            bytes: RouteBytes::new(budget.clone()),
        };
        Some((route.name.as_str().to_owned(), Arc::new(served)))
    });
    let routes = Arc::new(served.collect::<BTreeMap<_, _>>());
    for served in routes.values() {
        let Some(limit) = served.limit.clone() else { continue };
        let task_name = format!("timer:limit:{}", served.route.name);
        let run = rate_limit::run(
            limit,
            served.route.name.clone(),
            dependencies.store.clone(),
            wheel.clone(),
            dependencies.shutdown.clone(),
        );
        dependencies.tasks.spawn(&task_name, run);
    }
    for (number, window_freed) in wake_ups.into_iter().enumerate() {
        let partitions = dependencies
            .store
            .partitions()
            .all()
            .filter(|&p| dependencies.store.wake().shard_of(p) == number)
            .collect();
        let shard = Arc::new(Shard {
            number,
            config: dependencies.config,
            partitions,
            cluster: dependencies.cluster.clone(),
            store: dependencies.store.clone(),
            dead_letter_quota: dependencies.dead_letter_quota.clone(),
            lanes: dependencies.lanes.clone(),
            routes: routes.clone(),
            metrics: dependencies.metrics.clone(),
            saw_later_version: AtomicBool::new(false),
            table: ClaimTable::default(),
            verdicts: Arc::default(),
            wheel: wheel.clone(),
            key_queues_changed: Notify::new(),
            window_freed,
            claiming_ended: CancellationToken::new(),
            shutdown: dependencies.shutdown.clone(),
        });
        dependencies.tasks.spawn(&format!("timer:claimer:{number}"), claimer::run(shard.clone()));
        maintenance::start(&shard, dependencies.tasks);
        dependencies.tasks.spawn(&format!("timer:settler:{number}"), settler::run(shard));
    }
    Ok(())
}

impl ServedRoute {
    /// Messages and due sets that the next poll may claim. `None` until a quarter of the window is free, so that
    /// claims stay large when the target is the bottleneck.
    fn claim_allowance(&self, now_us: i64) -> Option<(i64, usize)> {
        let window = self.window();
        let free = window - self.messages.load(Ordering::Relaxed);
        if free < (window / 4).max(1) {
            return None;
        }
        let (messages, due_sets) = self.bytes.allowance(now_us)?;
        let messages = messages.min(free).min(POLL_MESSAGES);
        // Each due set gives at least one bundle, so the small window of a limited route goes to its earliest due
        // sets.
        let limited = self.limit.is_some().then_some(messages as usize / BUNDLE_MESSAGES);
        Some((messages, due_sets.min(limited.unwrap_or(due_sets)).max(1)))
    }

    fn window(&self) -> i64 {
        self.route.policy.rate.map_or(ROUTE_WINDOW, |rate| {
            let worth = i64::from(rate.per_second) * LIMITED_SECONDS;
            worth.max(i64::from(rate.capacity())).min(ROUTE_WINDOW)
        })
    }

    /// Adds to the number of claimed messages; a negative number subtracts.
    fn count_claimed(&self, messages: i64) {
        let claimed = self.messages.fetch_add(messages, Ordering::Relaxed) + messages;
        self.metrics.in_flight.set(claimed);
    }
}

impl Shard {
    fn lease_us(&self) -> i64 {
        self.config.claim.as_micros() as i64
    }

    /// The moment until which this replica relies on a claim that is sent or extended after `sending`. Redis's clock
    /// counts the lease, and may be faster.
    fn lease_end(&self, sending: MonoUs) -> MonoUs {
        sending.plus(Clock::within(self.lease_us()))
    }

    fn lease_ms(&self) -> u64 {
        self.config.claim.as_millis() as u64
    }

    /// How far ahead of its due time a message is claimed.
    fn lookahead_ms(&self) -> i64 {
        self.config.lookahead.as_millis() as i64
    }

    /// How far ahead of now, by Redis's clock, this replica claims. If the local clock is behind Redis, the horizon is
    /// shorter than the lookahead: another replica can publish those messages sooner.
    fn claim_horizon_ms(&self) -> i64 {
        self.lookahead_ms() - self.behind_ms()
    }

    /// How far this replica's wall clock is behind Redis's, ms; 0 if it is not.
    fn behind_ms(&self) -> i64 {
        (-self.store.clock().skew_us() / 1000).max(0)
    }

    fn mono(&self) -> MonoUs {
        self.store.clock().local().mono()
    }

    fn mono_us(&self) -> i64 {
        self.mono().0
    }
}
