//! Builds the timer: the wheel, the token fetchers, and the tasks of each shard.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::claim_table::ClaimTable;
use super::credit::{Credit, ProcessBytes};
use super::rate_limit::{self, RateLimiter};
use super::shard::{ServedRoute, Shard};
use super::wheel::Wheel;
use super::{Config, claimer, maintenance, settler};
use crate::cluster::Cluster;
use crate::domain::Route;
use crate::egress::Lanes;
use crate::health::Health;
use crate::lifecycle::{Shutdown, Tasks};
use crate::publishing::{Reporters, RouteReporter};
use crate::store::Store;
use crate::telemetry::Metrics;

/// The dependencies of the timer.
pub struct TimerDependencies<'a> {
    /// The settings of claims.
    pub config: Config,
    /// The store that is claimed from.
    pub store: Store,
    /// The lanes to the targets.
    pub lanes: Arc<dyn Lanes>,
    /// The partitions that this replica owns.
    pub cluster: Cluster,
    /// The routes that this replica serves.
    pub routes: &'a [Arc<Route>],
    /// The metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Receives what is late, and for which target it waits.
    pub health: Health,
    /// Tell what happens to the publishes of each route.
    pub reporters: &'a Reporters,
    /// Number of shards. The store's wake-ups have to know the same number.
    pub shards: usize,
    /// The task set to spawn on.
    pub tasks: &'a Tasks,
    /// The signal to return all claims and end.
    pub shutdown: Shutdown,
}

/// Starts the wheel and all shards.
pub fn start(dependencies: &TimerDependencies<'_>) -> std::io::Result<()> {
    let wheel = Wheel::start(
        dependencies.store.clock().clone(),
        dependencies.tasks,
        &dependencies.shutdown,
    )?;
    let wake_ups: Vec<Arc<Notify>> = (0..dependencies.shards).map(|_| Arc::default()).collect();
    let process_bytes = Arc::<ProcessBytes>::default();
    let mut routes = BTreeMap::new();
    for route in dependencies.routes {
        if let Some(reporter) = dependencies.reporters.of(&route.name) {
            let served = serve(dependencies, route, reporter, &process_bytes, &wake_ups);
            routes.insert(route.name.as_str().to_owned(), Arc::new(served));
        }
    }
    let routes = Arc::new(routes);
    for served in routes.values() {
        limit_rate(dependencies, served, &wheel);
    }
    for (number, credit_offered) in wake_ups.into_iter().enumerate() {
        start_shard(dependencies, number, &routes, &wheel, credit_offered);
    }
    Ok(())
}

fn serve(
    dependencies: &TimerDependencies<'_>,
    route: &Arc<Route>,
    reporter: &Arc<RouteReporter>,
    process_bytes: &Arc<ProcessBytes>,
    wake_ups: &[Arc<Notify>],
) -> ServedRoute {
    let clock = dependencies.store.clock().local();
    let metrics = reporter.metrics().clone();
    let rate = route.policy.rate;
    ServedRoute {
        route: route.clone(),
        limit: rate.map(|rate| Arc::new(RateLimiter::new(rate, clock))),
        credit: Credit::new(
            route.clone(),
            dependencies.lanes.lane(&route.to),
            metrics.clone(),
            process_bytes.clone(),
            wake_ups.to_vec(),
            clock,
        ),
        health: reporter.health().route(&route.name),
        metrics,
        reporter: reporter.clone(),
    }
}

/// Starts what fetches the tokens of a route that is limited in rate.
fn limit_rate(dependencies: &TimerDependencies<'_>, served: &ServedRoute, wheel: &Wheel) {
    let Some(limit) = served.limit.clone() else {
        return;
    };
    let task_name = format!("timer:limit:{}", served.route.name);
    let wake = wheel.clone();
    let run = rate_limit::run(
        limit,
        served.route.name.clone(),
        dependencies.store.clone(),
        move || wake.tokens_came(),
        dependencies.shutdown.clone(),
    );
    dependencies.tasks.spawn(&task_name, run);
}

fn start_shard(
    dependencies: &TimerDependencies<'_>,
    number: usize,
    routes: &Arc<BTreeMap<String, Arc<ServedRoute>>>,
    wheel: &Wheel,
    credit_offered: Arc<Notify>,
) {
    let store = &dependencies.store;
    let partitions = store.partitions().all();
    let shard = Arc::new(Shard {
        number,
        config: dependencies.config,
        partitions: partitions
            .filter(|&p| store.wake().shard_of(p) == number)
            .collect(),
        cluster: dependencies.cluster.clone(),
        store: store.clone(),
        lanes: dependencies.lanes.clone(),
        routes: routes.clone(),
        metrics: dependencies.metrics.clone(),
        health: dependencies.health.clone(),
        saw_later_version: AtomicBool::new(false),
        table: ClaimTable::default(),
        verdicts: Arc::default(),
        wheel: wheel.clone(),
        key_queues_changed: Notify::new(),
        credit_offered,
        claiming_ended: CancellationToken::new(),
        shutdown: dependencies.shutdown.clone(),
    });
    let tasks = dependencies.tasks;
    let claimer = claimer::run(shard.clone());
    tasks.spawn(&format!("timer:claimer:{number}"), claimer);
    maintenance::start(&shard, tasks);
    let settler = settler::run(shard);
    tasks.spawn(&format!("timer:settler:{number}"), settler);
}
