//! The composition root: builds the rooms from the configuration, joins them, and ends them in order.
//! No logic of its own: it is the one place that knows everybody.

pub mod bench;
mod check;
#[cfg(feature = "mutants")]
mod clocks;
mod drain;
mod graves;
mod inject;
mod parts;
mod pausing;
mod replay;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use prometheus_client::registry::Registry;
use tracing::{error, info};

pub use self::check::{Finding, check_connections, lowered_prefetches};
use self::drain::Stages;
use self::graves::StoreGraves;
use self::inject::IngressInject;
use self::pausing::StorePausing;
pub use self::replay::{Outcome, Overview, Request, Times, Watcher, replay};
use crate::backoff::Backoff;
use crate::broker::rabbitmq::Broker;
use crate::config::Config;
use crate::domain::{Clock, Endpoint, Route, RouteName, Target};
use crate::egress::kafka::KafkaLanes;
use crate::egress::rabbitmq::RabbitLanes;
use crate::egress::{AllLanes, Lanes};
use crate::ingress::{self, Intake};
use crate::lifecycle::signals::Signals;
use crate::lifecycle::{Part, Readiness, Tasks};
use crate::store::{self, Preflight, Store};
use crate::telemetry::{Bursts, Metrics, Watch};
use crate::{admin, cluster, telemetry, timer};

/// Runs the relay until a signal ends it.
pub fn run(config: Config) -> anyhow::Result<ExitCode> {
    telemetry::init(&config.log)?;
    choose_tls()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let code = runtime.block_on(life(config));
    // What is left is a blocking call of a client library: its thread ends with the process.
    runtime.shutdown_background();
    code
}

/// No provider is chosen by the client libraries: without one the first handshake panics.
fn choose_tls() -> anyhow::Result<()> {
    let chosen = rustls::crypto::ring::default_provider().install_default();
    chosen.map_err(|_| anyhow::anyhow!("another TLS provider is installed already"))
}

/// What every room gets.
struct House {
    config: Config,
    clock: Clock,
    tasks: Tasks,
    readiness: Readiness,
    stages: Stages,
    metrics: Arc<Metrics>,
    watch: Arc<Watch>,
    bursts: Arc<Bursts>,
    shards: usize,
}

async fn life(config: Config) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry, config.routes.iter().map(|route| route.name.clone()));
    let clock = Clock::start();
    #[cfg(feature = "mutants")]
    clocks::plant();
    let house = House {
        clock,
        tasks: Tasks::default(),
        readiness: Readiness::default(),
        stages: Stages::new(),
        metrics,
        watch: Arc::default(),
        bursts: Arc::new(Bursts::new(clock)),
        shards: std::thread::available_parallelism().map_or(2, |n| n.get().clamp(1, 8)),
        config,
    };
    info!(version = env!("CARGO_PKG_VERSION"), replica = house.config.cluster.name, "postdate starts");
    let lived = tokio::select! {
        lived = live(&house, registry) => lived,
        () = house.tasks.panicked() => Ok(()),
        code = signals.next() => {
            info!(signal = if code == 143 { "SIGTERM" } else { "SIGINT" }, "draining");
            Ok(())
        }
    };
    let drained = tokio::select! {
        drained = drain::drain(&house.stages, &house.tasks, &house.readiness, house.config.shutdown_timeout) => drained,
        code = signals.next() => {
            error!("a second signal: ending at once; what is unfinished is in the store");
            return Ok(ExitCode::from(code));
        }
    };
    lived?;
    if let Err(late) = drained {
        error!(late = ?late, "time ran out; what is unfinished is in the store");
        return Ok(ExitCode::FAILURE);
    }
    Ok(if house.tasks.has_panicked() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Builds all rooms in the order of the flow, from its end: what takes comes before what gives. Ends only
/// if it cannot go on.
async fn live(house: &House, registry: Registry) -> anyhow::Result<()> {
    let (bursts, end) = (house.bursts.clone(), house.stages.admin.clone());
    house.tasks.spawn("bursts", async move { bursts.run(end.draining()).await });
    let brokers = brokers(house);
    let lanes: Arc<dyn Lanes> = Arc::new(lanes(house, &brokers)?);
    let (routes, egress) = (&house.config.routes, house.stages.egress.clone());
    let inject = IngressInject::new(lanes.clone(), house.clock);
    let slot: Arc<OnceLock<Store>> = Arc::default();
    parts::start(house, lanes.clone(), &slot, egress);
    let state = admin::State {
        routes: house.config.routes.clone(),
        metrics: house.metrics.clone(),
        registry: Arc::new(registry),
        readiness: house.readiness.clone(),
        watch: house.watch.clone(),
        inject: Arc::new(inject),
        pausing: Arc::new(StorePausing(slot.clone())),
        graves: Arc::new(StoreGraves { store: slot.clone(), routes: routes.clone() }),
        clock: house.clock,
        store: slot.clone(),
        replica: house.config.cluster.name.clone(),
    };
    // Announced before anybody can ask: not ready until the store is there. From its start on the store alone reports
    // on its connections: what is said of them here could be older, and nobody would take it back.
    let (redis, agreed) = (house.readiness.part("redis", true), house.readiness.part("store", true));
    admin::start(&house.config.admin, state, &house.tasks, house.stages.admin.clone()).await?;
    preflight(&house.config.redis, &[&redis, &agreed]).await?;
    let store = Store::start(&store::Parts {
        config: &house.config.redis,
        clock: house.clock,
        metrics: house.metrics.clone(),
        readiness: &house.readiness,
        tasks: &house.tasks,
        shutdown: &house.stages.whole,
        remembers: house.config.routes.iter().map(|r| (r.name.clone(), r.policy.dedupe_ms)).collect(),
        ordered: ordered(&house.config.routes),
        shards: house.shards,
    })?;
    placement(&store, &house.config.routes, &agreed).await?;
    // It may be used: the API does from now on.
    slot.get_or_init(|| store.clone());
    let room = store::DeadRoom::new(&house.config.routes);
    let mut cluster = cluster::start(&cluster::Parts {
        config: &house.config.cluster,
        store: store.clone(),
        store_config: &house.config.redis,
        routes: &house.config.routes,
        shards: house.shards,
        readiness: &house.readiness,
        metrics: house.metrics.clone(),
        watch: house.watch.clone(),
        tasks: &house.tasks,
        shutdown: house.stages.ingress.clone(),
    })
    .await?;
    timer::start(&timer::Parts {
        config: house.config.timer,
        store: store.clone(),
        room: room.clone(),
        cluster: cluster.clone(),
        lanes: lanes.clone(),
        routes: &house.config.routes,
        metrics: house.metrics.clone(),
        watch: house.watch.clone(),
        bursts: house.bursts.clone(),
        shards: house.shards,
        tasks: &house.tasks,
        shutdown: house.stages.flow.clone(),
    })?;
    start_ingress(house, store, &room, lanes, &brokers, cluster.clone())?;
    Err(cluster.refused().await).context("this replica may not go on")
}

/// The routes whose keys leave in order.
fn ordered(routes: &[Arc<Route>]) -> BTreeSet<RouteName> {
    routes.iter().filter(|route| route.policy.ordered).map(|route| route.name.clone()).collect()
}

/// Waits until the store is there; ends if it may not be used.
async fn preflight(config: &store::Config, parts: &[&Part]) -> anyhow::Result<()> {
    let checked = until_store_answers(parts, async || match store::preflight(config, true).await {
        Ok(()) => Ok(Ok(())),
        Err(Preflight::Refused(why)) => Ok(Err(why)),
        Err(Preflight::Away(why)) => Err(why),
    });
    checked.await.context("the store may not be used")
}

/// Waits until the store has said whether it keeps messages that would be looked for elsewhere.
async fn placement(store: &Store, routes: &[Arc<Route>], part: &Part) -> anyhow::Result<()> {
    let names: Vec<RouteName> = routes.iter().map(|route| route.name.clone()).collect();
    let parts = [part];
    let agreed = until_store_answers(&parts, async || {
        store.agree_on_placement(&names).await.map_err(|why| why.to_string())
    });
    agreed.await.context("the store may not be used")
}

/// Asks the store until it answers, for as long as that takes. Each failure stands in these parts of readiness; the
/// wait has a line of the log when it begins and one when it ends.
async fn until_store_answers<T>(parts: &[&Part], mut ask: impl AsyncFnMut() -> Result<T, String>) -> T {
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

/// The RabbitMQ brokers that a route uses, by connection.
fn brokers(house: &House) -> BTreeMap<String, Arc<Broker>> {
    let used = used(&house.config.routes);
    let used = house.config.rabbitmq.values().filter(|c| used.contains(c.name.as_str()));
    used.map(|c| (c.name.clone(), Broker::new(c.clone(), &house.readiness))).collect()
}

/// Names of the connections that a route reads from or publishes to.
fn used(routes: &[Arc<Route>]) -> BTreeSet<&str> {
    routes
        .iter()
        .flat_map(|route| {
            let (Endpoint::Kafka { connection, .. } | Endpoint::Rabbitmq { connection, .. }) = &route.from;
            [connection.as_str(), route.to.connection()]
        })
        .collect()
}

fn lanes(house: &House, brokers: &BTreeMap<String, Arc<Broker>>) -> anyhow::Result<AllLanes> {
    let (tasks, shutdown) = (&house.tasks, &house.stages.egress);
    let kafka = house.config.kafka.values().filter(|c| used(&house.config.routes).contains(c.name.as_str()));
    let kafka = KafkaLanes::start(kafka, house.clock, &house.readiness, tasks, shutdown)?;
    let rabbitmq = brokers.iter().map(|(name, broker)| {
        (name.clone(), RabbitLanes::new(broker.clone(), house.clock, tasks.clone(), shutdown.clone()))
    });
    Ok(AllLanes::new(kafka, rabbitmq.collect()))
}

fn start_ingress(
    house: &House,
    store: Store,
    room: &Arc<store::DeadRoom>,
    lanes: Arc<dyn Lanes>,
    brokers: &BTreeMap<String, Arc<Broker>>,
    cluster: cluster::Cluster,
) -> anyhow::Result<()> {
    let (routes, tasks, stages) = (&house.config.routes, &house.tasks, &house.stages);
    let max_skew = house.config.cluster.max_clock_skew;
    let gates = ingress::gates::start(ingress::gates::Parts {
        routes,
        store: &store,
        room,
        metrics: &house.metrics,
        replicas: Box::new(move || cluster.replicas()),
        max_skew,
        tasks,
        shutdown: &stages.whole,
    });
    let intake = Intake::start(ingress::intake::Parts {
        store,
        lanes,
        metrics: house.metrics.clone(),
        watch: house.watch.clone(),
        bursts: house.bursts.clone(),
        room: room.clone(),
        gates,
        tasks,
        shutdown: &stages.ingress,
        direct_shutdown: &stages.flow,
    });
    let parts = ingress::ReadParts::of(routes);
    for broker in brokers.values() {
        let surroundings = ingress::rabbitmq::Surroundings {
            sink: intake.clone(),
            metrics: &house.metrics,
            parts: &parts,
            tasks,
            shutdown: &stages.ingress,
        };
        ingress::rabbitmq::start(broker, routes, &surroundings);
    }
    let mut groups: BTreeMap<(&str, &str), Vec<Arc<Route>>> = BTreeMap::new();
    for route in routes {
        if let Endpoint::Kafka { connection, group, .. } = &route.from {
            groups.entry((connection, group)).or_default().push(route.clone());
        }
    }
    for ((connection, group), routes) in groups {
        let connection = house.config.kafka.get(connection).context("an unknown kafka connection")?;
        let surroundings = ingress::kafka::Surroundings {
            sink: intake.clone(),
            metrics: house.metrics.clone(),
            budget: parts.kafka.clone(),
            part: house.readiness.part(format!("kafka:{}:{group}", connection.name), false),
            tasks: tasks.clone(),
            shutdown: stages.ingress.clone(),
            clock: house.clock,
        };
        ingress::kafka::start(connection, group, routes, surroundings)?;
    }
    Ok(())
}

/// The target that stands for a route's own ingress: where `send` publishes to.
fn ingress_target(route: &Route) -> Target {
    match &route.from {
        Endpoint::Kafka { connection, topic, .. } => {
            Target::Kafka { connection: connection.clone(), topic: topic.clone() }
        }
        Endpoint::Rabbitmq { connection, queue, .. } => Target::Rabbitmq {
            connection: connection.clone(),
            exchange: String::new(),
            routing_key: crate::domain::RoutingKey::Fixed(queue.clone()),
        },
    }
}
