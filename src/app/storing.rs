//! The rooms of a command that stores messages of one route beside the relays, and publishes nothing: `replay` and
//! `import`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tracing::warn;

use super::command_audit::CommandAudit;
use super::command_store::CommandStore;
use super::store_room;
use crate::config::Config;
use crate::domain::{Because, Clock, Route, RouteName};
use crate::egress::AllLanes;
use crate::egress::kafka::KafkaLanes;
use crate::health::{Health, TroubleLog};
use crate::ingress::{self, Intake};
use crate::lifecycle::{Shutdown, Tasks, tick};
use crate::publishing::{Listeners, Reporters};
use crate::store::{self, Store};
use crate::telemetry::{BurstLog, Metrics, Tracer};

/// Longest wait for the exporter of traces at the end. It bounds itself below that.
const TRACES_DEADLINE: Duration = Duration::from_secs(2);
/// Time between two looks at the store's capacity.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);

/// The store, and what its tasks need.
pub(crate) struct StoringRooms {
    route: Arc<Route>,
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    health: Health,
    tasks: Tasks,
    shutdown: Shutdown,
    traces: StoringTraces,
}

/// Spans of the messages that the command stores, with the task that exports them.
struct StoringTraces {
    tracer: Tracer,
    tasks: Tasks,
    shutdown: Shutdown,
}

impl StoringRooms {
    /// Checks the store and connects to it. `may_describe` allows the check to write the description of a new store.
    /// `reads_trail` lets the command read the route's trail.
    pub(crate) async fn begin(
        config: &Config,
        route: &Arc<Route>,
        may_describe: bool,
        reads_trail: bool,
    ) -> anyhow::Result<Self> {
        let CommandStore {
            store,
            clock,
            metrics,
            health,
            tasks,
            shutdown,
        } = CommandStore::open(config, route, may_describe, reads_trail).await?;
        let traces = StoringTraces::start(config, clock, &metrics)?;
        Ok(Self {
            route: route.clone(),
            store,
            clock,
            metrics,
            health,
            tasks,
            shutdown,
            traces,
        })
    }

    /// Begins the audit of this command, before it changes anything.
    pub(crate) async fn audit(
        &self,
        command: &'static str,
        subject: &str,
        because: Option<&Because>,
    ) -> anyhow::Result<CommandAudit> {
        let subject = format!("route {}; {subject}", self.route.name);
        CommandAudit::begin(&self.store, command, subject, because).await
    }

    /// Exports the last spans, for a bounded time.
    pub(crate) async fn finish_traces(&self) {
        self.traces.shutdown.begin();
        if let Err(late) = self.traces.tasks.ended(TRACES_DEADLINE).await {
            warn!(?late, "the exporter of traces did not end in time");
        }
    }

    /// Starts the ingress's intake into the store. Its lanes have no broker.
    pub(crate) fn intake(&self, config: &Config) -> anyhow::Result<Arc<Intake>> {
        let routes = std::slice::from_ref(&self.route);
        let shutdown = &self.shutdown;
        let quota = store::DeadLetterQuota::new(routes);
        let gates =
            ingress::admission_control::start(ingress::admission_control::AdmissionDependencies {
                routes,
                store: &self.store,
                quota: &quota,
                metrics: &self.metrics,
                health: &self.health,
                // A relay may store messages beside this command.
                replicas: Box::new(|| 2),
                max_skew: config.cluster.max_clock_skew,
                tasks: &self.tasks,
                shutdown,
            });
        self.tasks.spawn(
            "store:room",
            log_troubles(
                self.route.name.clone(),
                self.store.clone(),
                self.health.clone(),
            ),
        );
        let kafka = KafkaLanes::start(
            [],
            self.clock,
            &self.metrics.kafka_clients,
            &self.health,
            &self.tasks,
            shutdown,
        )?;
        let watch = Arc::default();
        let bursts = Arc::new(BurstLog::new(self.clock));
        let listeners = Listeners {
            store: &self.store,
            metrics: &self.metrics,
            health: &self.health,
            watch: &watch,
            bursts: &bursts,
            tracer: &self.traces.tracer,
            quota: &quota,
        };
        let reporters = Arc::new(Reporters::new(routes, &listeners));
        Ok(Intake::start(ingress::intake::IntakeDependencies {
            store: self.store.clone(),
            lanes: Arc::new(AllLanes::new(kafka, BTreeMap::new())),
            tracer: self.traces.tracer.clone(),
            bursts,
            health: &self.health,
            reporters,
            gates,
            tasks: &self.tasks,
            shutdown,
            publishing_shutdown: shutdown,
        }))
    }
}

/// Logs when the store takes nothing in, or the route waits for something else, and when that is over, for as long as the
/// process lives.
async fn log_troubles(route: RouteName, store: Store, health: Health) {
    let room = health.side_part_of("store:room", "redis".to_owned());
    let source = health.side_part(format!("source:{route}"));
    let of_route = health.route(&route);
    let mut log = TroubleLog::default();
    loop {
        tick(ROOM_INTERVAL).await;
        let why = store_room::trouble(Some(&store), health.store());
        let cause = why.is_some().then(|| "store:room".to_owned());
        room.report(why, None);
        source.report(of_route.source_waits(), cause);
        log.look(&health.not_up(), store.clock().local().wall());
    }
}

impl StoringTraces {
    fn start(config: &Config, clock: Clock, metrics: &Metrics) -> anyhow::Result<Self> {
        let tasks = Tasks::default();
        let shutdown = Shutdown::default();
        let Some(collector) = config.traces.collector.clone() else {
            return Ok(Self {
                tracer: Tracer::default(),
                tasks,
                shutdown,
            });
        };
        // A relay on this machine may have the replica's own name.
        let instance = format!("{}-replay", config.cluster.name);
        let made = Tracer::new(
            collector,
            &instance,
            clock,
            &metrics.spans_lost,
            config.shutdown_timeout,
        );
        let (tracer, exporter) = made.map_err(anyhow::Error::msg).context("traces.tls")?;
        let ends = shutdown.clone();
        tasks.spawn("traces", async move { exporter.run(ends.draining()).await });
        Ok(Self {
            tracer,
            tasks,
            shutdown,
        })
    }
}
