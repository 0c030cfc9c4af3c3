//! The timer: store -> egress, at the due time.
//!
//! A pool of shards; each serves some of the partitions that fall to this replica ([`Cluster`]) with three tasks. The *claimer* ([`claimer`]) looks at the
//! heads of all its partitions at once, claims what is due within the look-ahead and hands it to the
//! *wheel* ([`wheel`]), one precise thread for all shards, which gives each message to its target's lane at
//! its own millisecond, never early, and where its route is limited under a token ([`limit`]). The *settler* ([`settler`]) collects the brokers' verdicts and answers
//! the store: confirmed bundles are settled in batches, failures go back, the hopeless become dead letters,
//! what hangs is split off, claims are extended while anything of them is held. The *keeper* ([`keeper`]) returns
//! the claims of dead holders and audits the store.
//!
//! Guarantees: a message leaves the store only after its broker's confirm; nothing is published whose claim
//! may have passed to another (each hand-over checks a monotonic deadline taken before the claim was sent);
//! a wake-up only shortens a wait; what is claimed but not published is given back on a clean stop.

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
use crate::domain::{Clock, Partition, Route};
use crate::egress::{Lanes, VerdictInbox};
use crate::lifecycle::{Shutdown, Tasks};
use crate::store::{DeadLetterQuota, Store};
use crate::telemetry::{BurstLog, FollowRegistry, Metrics, RouteMetrics};

use self::budget::{Budget, Share};
use self::claim_table::Table;
use self::rate_limit::Limit;
use self::wheel::Wheel;

/// Messages of one route that this replica holds claimed at most; beyond it the route's next bundles wait
/// in the store, where they belong.
const ROUTE_WINDOW: i64 = 50_000;
/// Of which one look claims at most so many: what is claimed has to be decoded, and other routes wait for the next look.
const LOOK_MESSAGES: i64 = ROUTE_WINDOW / 4;
/// Of a limited route this many seconds' worth at most: enough for a target that takes a second to confirm.
const LIMITED_SECONDS: i64 = 2;

/// What the timer is built from.
pub struct Parts<'a> {
    /// How it claims.
    pub config: Config,
    /// Where from.
    pub store: Store,
    /// How much room the dead letters have left.
    pub room: Arc<DeadLetterQuota>,
    /// Where to.
    pub lanes: Arc<dyn Lanes>,
    /// Which partitions fall to this replica.
    pub cluster: Cluster,
    /// What this replica serves.
    pub routes: &'a [Arc<Route>],
    /// Where it counts.
    pub metrics: Arc<Metrics>,
    /// Who is told how a followed message ended.
    pub watch: Arc<FollowRegistry>,
    /// Where possible repeats are logged.
    pub bursts: Arc<BurstLog>,
    /// How many shards; the store's wake-ups must know the same number.
    pub shards: usize,
    /// Where its tasks run.
    pub tasks: &'a Tasks,
    /// When to give back its claims and end.
    pub shutdown: Shutdown,
}

/// A route as the timer serves it.
struct Served {
    route: Arc<Route>,
    metrics: Arc<RouteMetrics>,
    watch: Arc<FollowRegistry>,
    bursts: Arc<BurstLog>,
    /// How fast its messages may leave; `None`: nobody asks.
    limit: Option<Arc<Limit>>,
    /// Messages held claimed.
    messages: AtomicI64,
    /// Bytes of their bundles, of those that the process may hold.
    share: Arc<Share>,
}

/// What the tasks of one shard share.
struct Shard {
    number: usize,
    config: Config,
    /// Those that it serves where they fall to this replica, and looks at where they fall to another.
    partitions: Vec<Partition>,
    cluster: Cluster,
    store: Store,
    dead_room: Arc<DeadLetterQuota>,
    lanes: Arc<dyn Lanes>,
    routes: Arc<BTreeMap<String, Arc<Served>>>,
    metrics: Arc<Metrics>,
    /// It has met a bundle of a later version, and said so.
    met_later: AtomicBool,
    table: Table,
    verdicts: Arc<VerdictInbox>,
    wheel: Wheel,
    /// Rung when something of an ordered route may go, or a line closes.
    lines_moved: Notify,
    /// Rung when a route's window has room again.
    room: Arc<Notify>,
    /// Cancelled once nothing more will be claimed.
    claimed_all: CancellationToken,
    shutdown: Shutdown,
}

/// Starts the wheel and all shards.
pub fn start(parts: &Parts<'_>) -> std::io::Result<()> {
    let wheel = Wheel::start(parts.store.clock().clone(), parts.tasks, &parts.shutdown)?;
    let bells: Vec<Arc<Notify>> = (0..parts.shards).map(|_| Arc::default()).collect();
    let budget = Budget::new(bells.clone());
    let served = parts.routes.iter().filter_map(|route| {
        let served = Served {
            route: route.clone(),
            metrics: parts.metrics.route(&route.name)?.clone(),
            watch: parts.watch.clone(),
            bursts: parts.bursts.clone(),
            limit: route.policy.rate.map(|rate| Arc::new(Limit::new(rate, parts.store.clock().local()))),
            messages: AtomicI64::new(0),
            share: Share::new(budget.clone()),
        };
        Some((route.name.as_str().to_owned(), Arc::new(served)))
    });
    let routes = Arc::new(served.collect::<BTreeMap<_, _>>());
    for served in routes.values() {
        let Some(limit) = served.limit.clone() else { continue };
        let (name, store, shutdown) =
            (served.route.name.clone(), parts.store.clone(), parts.shutdown.clone());
        parts.tasks.spawn(
            &format!("timer:limit:{name}"),
            rate_limit::run(limit, name, store, wheel.clone(), shutdown),
        );
    }
    for (number, room) in bells.into_iter().enumerate() {
        let partitions =
            parts.store.partitions().all().filter(|&p| parts.store.wake().shard_of(p) == number).collect();
        let shard = Arc::new(Shard {
            number,
            config: parts.config,
            partitions,
            cluster: parts.cluster.clone(),
            store: parts.store.clone(),
            dead_room: parts.room.clone(),
            lanes: parts.lanes.clone(),
            routes: routes.clone(),
            metrics: parts.metrics.clone(),
            met_later: AtomicBool::new(false),
            table: Table::default(),
            verdicts: Arc::default(),
            wheel: wheel.clone(),
            lines_moved: Notify::new(),
            room,
            claimed_all: CancellationToken::new(),
            shutdown: parts.shutdown.clone(),
        });
        parts.tasks.spawn(&format!("timer:claimer:{number}"), claimer::run(shard.clone()));
        maintenance::start(&shard, parts.tasks);
        parts.tasks.spawn(&format!("timer:settler:{number}"), settler::run(shard));
    }
    Ok(())
}

impl Served {
    /// Messages that the next look may claim, and of how many shelves; `None` until a quarter of the window is free, so
    /// that claims stay large when the target is what limits.
    fn room(&self, now_us: i64) -> Option<(i64, usize)> {
        let window = self.window();
        let free = window - self.messages.load(Ordering::Relaxed);
        if free < (window / 4).max(1) {
            return None;
        }
        let (messages, shelves) = self.share.fits(now_us)?;
        let messages = messages.min(free).min(LOOK_MESSAGES);
        // Each shelf gives a bundle at least, so the small room of a limited route goes to its earliest.
        let limited = self.limit.is_some().then_some(messages as usize / BUNDLE_MESSAGES);
        Some((messages, shelves.min(limited.unwrap_or(shelves)).max(1)))
    }

    fn window(&self) -> i64 {
        self.route.policy.rate.map_or(ROUTE_WINDOW, |rate| {
            let worth = i64::from(rate.per_second) * LIMITED_SECONDS;
            worth.max(i64::from(rate.capacity())).min(ROUTE_WINDOW)
        })
    }

    fn hold(&self, messages: i64) {
        let held = self.messages.fetch_add(messages, Ordering::Relaxed) + messages;
        self.metrics.in_flight.set(held);
    }
}

impl Shard {
    fn lease_us(&self) -> i64 {
        self.config.claim.as_micros() as i64
    }

    /// How long a holder relies on a claim, from before it is asked for: Redis's clock counts the lease, and may be faster.
    fn relied_on_us(&self) -> i64 {
        Clock::within(self.lease_us())
    }

    fn lease_ms(&self) -> u64 {
        self.config.claim.as_millis() as u64
    }

    /// By how much this replica's clock is behind Redis's, ms; 0 if it is not.
    fn behind_ms(&self) -> i64 {
        (-self.store.clock().skew_us() / 1000).max(0)
    }

    fn mono_us(&self) -> i64 {
        self.store.clock().local().mono_us()
    }
}
