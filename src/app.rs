//! The composition root: builds the rooms from the configuration, joins them, and ends them in order. It has no logic of
//! its own, and is the only room that knows all others. The file reads from the start of the relay to its ingress.

mod activity;
pub(crate) mod check;
#[cfg(feature = "mutants")]
mod clocks;
pub(crate) mod command_audit;
pub(crate) mod command_store;
mod drain;
mod health_watch;
mod inject;
mod ready;
mod redrive;
pub(crate) mod runtime;
mod service_manager;
mod skip;
mod store_room;
pub(crate) mod storing;
mod target_watch;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use prometheus_client::registry::Registry;
use tracing::{error, info, warn};

pub use self::check::{
    CheckFinding, check_connections, keys_that_name_queues, lowered_prefetches, many_groups,
};
use self::drain::StageShutdowns;
use self::inject::IngressInject;
use self::redrive::StoreRedrive;
use self::skip::IngressSkip;
use crate::backoff::Backoff;
use crate::broker::rabbitmq::Broker;
use crate::config::Config;
use crate::domain::{Clock, Endpoint, Route, RouteName, RoutePolicy, routes_where};
use crate::egress::kafka::KafkaLanes;
use crate::egress::rabbitmq::RabbitLanes;
use crate::egress::{AllLanes, Lanes};
use crate::health::{Health, Part};
use crate::health::{NOT_REACHED, WAITS_FOR_STORE};
use crate::ingress::kafka::skip_desk::SkipDesk;
use crate::ingress::{self, Intake};
use crate::lifecycle::signals::ShutdownSignals;
use crate::lifecycle::{Stage, Tasks};
use crate::publishing::{Listeners, Reporters};
use crate::store::{self, PreflightFailure, Store};
use crate::telemetry::{BurstLog, FollowRegistry, Metrics, ProcessFigures, Tracer};
use crate::{admin, cluster, timer};

/// Runs the relay until a signal ends it.
pub fn run(config: Config) -> anyhow::Result<ExitCode> {
    let log = config.log.clone();
    runtime::run_to_end(&log, run_until_shutdown(config))
}

/// Context that is built before the first room, and that rooms share.
struct App {
    config: Config,
    clock: Clock,
    tasks: Tasks,
    health: Health,
    stages: StageShutdowns,
    metrics: Arc<Metrics>,
    watch: Arc<FollowRegistry>,
    bursts: Arc<BurstLog>,
    tracer: Tracer,
    skips: SkipDesk,
    /// Timer shards of this replica: one a core, 1 to 8.
    shards: usize,
}

/// Builds the rooms, waits for a signal or a panicked task, and drains. Answers the exit code.
async fn run_until_shutdown(config: Config) -> anyhow::Result<ExitCode> {
    let mut signals = ShutdownSignals::listen().context("cannot listen for signals")?;
    let mut registry = Registry::default();
    let metrics = Metrics::new(
        &mut registry,
        config.routes.iter().map(|route| route.name.clone()),
    );
    registry.register_collector(Box::new(ProcessFigures::of(
        tokio::runtime::Handle::current(),
    )));
    let clock = Clock::start();
    // Calls of the API reach rooms from another runtime: what those spawn belongs here.
    let tasks = Tasks::default().on(&tokio::runtime::Handle::current());
    let stages = StageShutdowns::new();
    let tracer = start_traces(&config, clock, &metrics, &tasks, &stages)?;
    let app = App {
        clock,
        tasks,
        health: Health::default(),
        stages,
        tracer,
        metrics,
        watch: Arc::default(),
        bursts: Arc::new(BurstLog::new(clock)),
        skips: SkipDesk::default(),
        shards: std::thread::available_parallelism().map_or(2, |n| n.get().clamp(1, 8)),
        config,
    };
    info!(
        version = env!("CARGO_PKG_VERSION"),
        replica = app.config.cluster.name,
        "postdate starts"
    );
    for connection in app
        .config
        .kafka
        .values()
        .filter(|connection| !connection.verifies_brokers())
    {
        warn!(
            connection = connection.name,
            "kafka brokers are not verified (unsafe_tls)"
        );
    }
    let ran = tokio::select! {
        ran = build_and_run(&app, registry) => ran,
        () = app.tasks.panicked() => Ok(()),
        signal = signals.next() => {
            info!(signal = signal.name, "draining");
            Ok(())
        }
    };
    service_manager::say_stopping(app.config.shutdown_timeout);
    let drained = tokio::select! {
        drained = drain::drain(&app.stages, &app.tasks, &app.health, app.config.shutdown_timeout) => drained,
        signal = signals.next() => {
            error!("a second signal: ending at once; unfinished messages are in the store");
            return Ok(ExitCode::from(signal.exit_code));
        }
    };
    ran?;
    if let Err(late) = drained {
        error!(late = ?late, "time ran out; unfinished messages are in the store");
        return Ok(ExitCode::FAILURE);
    }
    Ok(if app.tasks.has_panicked() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Starts the exporter of traces, if there is a collector.
fn start_traces(
    config: &Config,
    clock: Clock,
    metrics: &Metrics,
    tasks: &Tasks,
    stages: &StageShutdowns,
) -> anyhow::Result<Tracer> {
    let Some(collector) = config.traces.collector.clone() else {
        return Ok(Tracer::default());
    };
    let made = Tracer::new(
        collector,
        &config.cluster.name,
        clock,
        &metrics.spans_lost,
        config.shutdown_timeout,
    );
    let (tracer, exporter) = made.map_err(anyhow::Error::msg).context("traces.tls")?;
    let shutdown = stages.admin.clone();
    tasks.of(Stage::Admin).spawn(
        "traces",
        async move { exporter.run(shutdown.draining()).await },
    );
    Ok(tracer)
}

/// Builds all rooms, from the end of the flow to its beginning: a room that takes messages is there before the room that
/// gives them. Returns only if the relay cannot start, or may not go on.
async fn build_and_run(app: &App, registry: Registry) -> anyhow::Result<()> {
    let admin_tasks = app.tasks.of(Stage::Admin);
    let bursts = app.bursts.clone();
    let admin_shutdown = app.stages.admin.clone();
    admin_tasks.spawn("bursts", async move {
        bursts.run(admin_shutdown.draining()).await;
    });
    let brokers = brokers(app);
    let lanes: Arc<dyn Lanes> = Arc::new(start_lanes(app, &brokers)?);
    let store_slot: Arc<OnceLock<Store>> = Arc::default();
    health_watch::start(app, lanes.clone(), &store_slot, app.stages.egress.clone());
    target_watch::start(app, &brokers);
    // All parts that readiness waits for are announced before anybody can ask: the replica is not ready until the store is
    // there and its sources are read. Once the store is there, it alone reports on its connections: a report from here
    // could be older, and nothing would take it back.
    let groups = announce_groups(app);
    for broker in brokers.values() {
        ingress::rabbitmq::announce(broker);
    }
    let redis_part = app.health.part("redis", true);
    let store_part = app.health.part_of("store", "redis");
    let state = admin_state(app, registry, &lanes, &store_slot);
    let admin_shutdown = app.stages.admin.clone();
    let addresses = admin::start(
        &app.config.admin,
        state,
        &admin_tasks,
        admin_shutdown.clone(),
    )
    .await?;
    let console = ready::console_url(addresses.admin, app.config.admin.tls.is_some());
    let ready = ready::tell(
        app.health.clone(),
        app.config.routes.len(),
        console,
        admin_shutdown,
    );
    admin_tasks.spawn("ready", ready);
    service_manager::say_started();
    let alive = service_manager::say_alive(app.stages.admin.clone());
    admin_tasks.spawn("watchdog", alive);
    preflight(&app.config.redis, &[&redis_part, &store_part]).await?;
    let store = start_store(app)?;
    agree_on_placement(&store, &app.config.routes, &store_part).await?;
    // From here on the API may use the store.
    store_slot.get_or_init(|| store.clone());
    let trails = store.clone();
    let trails_end = app.stages.admin.clone();
    admin_tasks.spawn(
        "trails",
        async move { trails.write_trails(&trails_end).await },
    );
    let activity = activity::keep(app.health.clone(), store.clone(), app.stages.admin.clone());
    admin_tasks.spawn("activity", activity);
    let quota = store::DeadLetterQuota::new(&app.config.routes);
    let reporters = Arc::new(Reporters::new(
        &app.config.routes,
        &Listeners {
            store: &store,
            metrics: &app.metrics,
            health: &app.health,
            watch: &app.watch,
            bursts: &app.bursts,
            tracer: &app.tracer,
            quota: &quota,
        },
    ));
    let mut cluster = start_cluster(app, &store).await?;
    start_timer(app, &store, &reporters, &lanes, &cluster)?;
    let gates = start_gates(app, &store, &quota, cluster.clone());
    start_ingress(app, store, reporters, gates, lanes, &brokers, groups)?;
    Err(cluster.refused().await).context("this replica may not go on")
}

/// RabbitMQ brokers that a route uses, by connection.
fn brokers(app: &App) -> BTreeMap<String, Arc<Broker>> {
    let used = used_connections(&app.config.routes);
    let used = app
        .config
        .rabbitmq
        .values()
        .filter(|c| used.contains(c.name.as_str()));
    used.map(|c| (c.name.clone(), Broker::new(c.clone(), &app.health)))
        .collect()
}

/// Names of the connections that a route reads from or publishes to.
fn used_connections(routes: &[Arc<Route>]) -> BTreeSet<&str> {
    routes
        .iter()
        .flat_map(|route| {
            let (Endpoint::Kafka { connection, .. } | Endpoint::Rabbitmq { connection, .. }) =
                &route.from;
            [connection.as_str(), route.to.connection()]
        })
        .collect()
}

fn start_lanes(app: &App, brokers: &BTreeMap<String, Arc<Broker>>) -> anyhow::Result<AllLanes> {
    let tasks = app.tasks.of(Stage::Egress);
    let shutdown = &app.stages.egress;
    let used = used_connections(&app.config.routes);
    let kafka = app
        .config
        .kafka
        .values()
        .filter(|c| used.contains(c.name.as_str()));
    let kafka = KafkaLanes::start(
        kafka,
        app.clock,
        &app.metrics.kafka_clients,
        &app.health,
        &tasks,
        shutdown,
    )?;
    let rabbitmq = brokers.iter().map(|(name, broker)| {
        (
            name.clone(),
            RabbitLanes::new(broker.clone(), app.clock, tasks.clone(), shutdown.clone()),
        )
    });
    Ok(AllLanes::new(kafka, rabbitmq.collect()))
}

fn admin_state(
    app: &App,
    registry: Registry,
    lanes: &Arc<dyn Lanes>,
    store: &Arc<OnceLock<Store>>,
) -> admin::AdminState {
    let routes = &app.config.routes;
    admin::AdminState {
        routes: routes.clone(),
        metrics: app.metrics.clone(),
        registry: Arc::new(registry),
        health: app.health.clone(),
        watch: app.watch.clone(),
        bursts: app.bursts.clone(),
        inject: Arc::new(IngressInject::new(lanes.clone(), app.clock)),
        redrive: Arc::new(StoreRedrive {
            store: store.clone(),
            routes: routes.clone(),
        }),
        skip: Arc::new(IngressSkip(app.skips.clone())),
        clock: app.clock,
        store: store.clone(),
        replica: app.config.cluster.name.clone(),
    }
}

/// Waits until the store has been checked. `Err` if it may not be used.
async fn preflight(config: &store::Config, parts: &[&Part]) -> anyhow::Result<()> {
    let checked = until_store_answers(parts, async || match store::preflight(config, true).await {
        Ok(()) => Ok(Ok(())),
        Err(PreflightFailure::Refused(why)) => Ok(Err(why)),
        Err(PreflightFailure::Away(why) | PreflightFailure::Tls(why)) => Err(why),
    });
    checked.await.context("the store may not be used")
}

fn start_store(app: &App) -> anyhow::Result<Store> {
    Ok(Store::start(&store::StoreDependencies {
        config: &app.config.redis,
        clock: app.clock,
        metrics: app.metrics.clone(),
        health: &app.health,
        tasks: &app.tasks,
        shutdown: &app.stages.process,
        remembers: app
            .config
            .routes
            .iter()
            .map(|r| (r.name.clone(), r.policy.dedupe_ms))
            .collect(),
        trails: app
            .config
            .routes
            .iter()
            .map(|r| (r.name.clone(), r.policy.trail))
            .collect(),
        ordered: routes_where(&app.config.routes, |policy| policy.ordered),
        growing: routes_where(&app.config.routes, RoutePolicy::may_grow),
        shards: app.shards,
    })?)
}

/// Waits until the store has compared the placement of messages by this configuration with the placement that it holds.
/// `Err` if they differ.
async fn agree_on_placement(
    store: &Store,
    routes: &[Arc<Route>],
    part: &Part,
) -> anyhow::Result<()> {
    let names: Vec<RouteName> = routes.iter().map(|route| route.name.clone()).collect();
    let parts = [part];
    let agreed = until_store_answers(&parts, async || {
        store
            .agree_on_placement(&names)
            .await
            .map_err(|why| why.to_string())
    });
    agreed.await.context("the store may not be used")
}

/// Asks the store until it answers, for as long as that takes. Each failure is shown by these parts of readiness. The log
/// has a line when the wait begins, and one when it ends.
async fn until_store_answers<T>(
    parts: &[&Part],
    mut ask: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let mut failures = 0;
    loop {
        let why = match ask().await {
            Ok(answer) => {
                if failures > 0 {
                    info!(failures, "the store is reached");
                }
                return answer;
            }
            Err(why) => why,
        };
        failures += 1;
        for part in parts {
            part.down(&*why);
        }
        if failures == 1 {
            tracing::warn!(error = why, "waiting for the store");
        }
        tokio::time::sleep(Backoff::CLIENT.wait(failures)).await;
    }
}

async fn start_cluster(app: &App, store: &Store) -> anyhow::Result<cluster::Cluster> {
    Ok(cluster::start(&cluster::ClusterDependencies {
        config: &app.config.cluster,
        store: store.clone(),
        store_config: &app.config.redis,
        routes: &app.config.routes,
        shards: app.shards,
        health: &app.health,
        metrics: app.metrics.clone(),
        claim: app.config.timer.claim,
        watch: app.watch.clone(),
        tasks: &app.tasks.of(Stage::Ingress),
        shutdown: app.stages.ingress.clone(),
    })
    .await?)
}

fn start_timer(
    app: &App,
    store: &Store,
    reporters: &Reporters,
    lanes: &Arc<dyn Lanes>,
    cluster: &cluster::Cluster,
) -> anyhow::Result<()> {
    Ok(timer::start(&timer::TimerDependencies {
        config: app.config.timer,
        store: store.clone(),
        cluster: cluster.clone(),
        lanes: lanes.clone(),
        routes: &app.config.routes,
        metrics: app.metrics.clone(),
        health: app.health.clone(),
        reporters,
        shards: app.shards,
        tasks: &app.tasks.of(Stage::Publishing),
        shutdown: app.stages.publishing.clone(),
    })?)
}

fn start_gates(
    app: &App,
    store: &Store,
    quota: &Arc<store::DeadLetterQuota>,
    cluster: cluster::Cluster,
) -> BTreeMap<RouteName, ingress::AdmissionGate> {
    ingress::admission_control::start(ingress::admission_control::AdmissionDependencies {
        routes: &app.config.routes,
        store,
        quota,
        metrics: &app.metrics,
        health: &app.health,
        replicas: Box::new(move || cluster.replicas()),
        max_skew: app.config.cluster.max_clock_skew,
        tasks: &app.tasks,
        shutdown: &app.stages.process,
    })
}

fn start_ingress(
    app: &App,
    store: Store,
    reporters: Arc<Reporters>,
    gates: BTreeMap<RouteName, ingress::AdmissionGate>,
    lanes: Arc<dyn Lanes>,
    brokers: &BTreeMap<String, Arc<Broker>>,
    groups: Vec<KafkaGroup<'_>>,
) -> anyhow::Result<()> {
    let routes = &app.config.routes;
    let tasks = app.tasks.of(Stage::Ingress);
    let shutdown = &app.stages.ingress;
    let intake = Intake::start(ingress::intake::IntakeDependencies {
        store,
        lanes,
        bursts: app.bursts.clone(),
        health: &app.health,
        tracer: app.tracer.clone(),
        reporters,
        gates,
        tasks: &tasks,
        shutdown,
        publishing_shutdown: &app.stages.publishing,
    });
    let read_allocation = ingress::ReadAllocation::of(routes);
    for broker in brokers.values() {
        let dependencies = ingress::rabbitmq::RabbitmqDependencies {
            sink: intake.clone(),
            metrics: &app.metrics,
            health: &app.health,
            allocation: &read_allocation,
            tasks: &tasks,
            shutdown,
        };
        ingress::rabbitmq::start(broker, routes, &dependencies);
    }
    for KafkaGroup {
        connection,
        group,
        routes,
        part,
    } in groups
    {
        let connection = app
            .config
            .kafka
            .get(connection)
            .context("an unknown kafka connection")?;
        part.down(NOT_REACHED);
        let dependencies = ingress::kafka::KafkaDependencies {
            sink: intake.clone(),
            metrics: app.metrics.clone(),
            health: app.health.clone(),
            budget: read_allocation.kafka.clone(),
            skips: app.skips.clone(),
            part,
            tasks: tasks.clone(),
            shutdown: shutdown.clone(),
            clock: app.clock,
        };
        ingress::kafka::start(connection, group, routes, dependencies)?;
    }
    Ok(())
}

/// A consumer group, and the routes that read through it.
struct KafkaGroup<'a> {
    connection: &'a str,
    group: &'a str,
    routes: Vec<Arc<Route>>,
    part: Part,
}

/// Announces the readiness part `kafka:<connection>:<group>` of each consumer group.
fn announce_groups(app: &App) -> Vec<KafkaGroup<'_>> {
    let mut groups: BTreeMap<(&str, &str), Vec<Arc<Route>>> = BTreeMap::new();
    for route in &app.config.routes {
        if let Endpoint::Kafka {
            connection, group, ..
        } = &route.from
        {
            groups
                .entry((connection, group))
                .or_default()
                .push(route.clone());
        }
    }
    let announced = groups.into_iter().map(|((connection, group), routes)| {
        let part = app
            .health
            .part(format!("kafka:{connection}:{group}"), false);
        part.down(WAITS_FOR_STORE);
        KafkaGroup {
            connection,
            group,
            routes,
            part,
        }
    });
    announced.collect()
}
