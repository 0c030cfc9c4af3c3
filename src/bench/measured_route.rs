//! The route that a bench measures: the lane into its ingress, the reader at its target, the store behind it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use futures_util::future::try_join_all;
use parking_lot::Mutex;

use super::clock_steps::StepDetector;
use super::load::SendCounts;
use super::tally::{ArrivalTally, MARK_HEADER, MessageMark};
use super::types::BenchRequest;
use crate::app::check;
use crate::app::command_audit::CommandAudit;
use crate::app::command_store::CommandStore;
use crate::broker::rabbitmq::Broker;
use crate::config::Config;
use crate::domain::{Clock, Endpoint, HeaderValue, Partition, Route, Target, UnixMs, route};
use crate::egress::kafka::KafkaLanes;
use crate::egress::rabbitmq::RabbitLanes;
use crate::egress::{AllLanes, Lane, Lanes};
use crate::health::Health;
use crate::ingress;
use crate::lifecycle::{Shutdown, Stage, Tasks};
use crate::store::{
    self, BrowseKey, BrowseQuery, Store, StoreError, StoredMessage, StoredState, WriteOp,
    WriteResult,
};
use crate::telemetry::KafkaClients;

/// Longest wait for each server at the beginning.
const OPEN_DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait for connections to close.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);
/// Messages of one page while the store is browsed.
const BROWSE_PAGE: usize = 1000;
/// Time by which a retry may have moved a message past its delay, ms.
const RETRY_MARGIN_MS: i64 = 600_000;

/// Tally and counts of the run whose arrivals are counted now.
type ActiveRun = Arc<Mutex<Option<(Arc<Mutex<ArrivalTally>>, Arc<SendCounts>)>>>;

/// The measured route with its open connections.
pub(super) struct MeasuredRoute {
    pub(super) clock: Clock,
    pub(super) lane: Arc<dyn Lane>,
    pub(super) ingress: Arc<Target>,
    /// The route's ingress, for people.
    pub(super) from: String,
    /// The route's target, for people.
    pub(super) to: String,
    /// This machine's clock minus Redis's, microseconds.
    pub(super) skew_us: i64,
    route: Arc<Route>,
    /// Time from now to the latest possible due time of a run's messages, ms.
    horizon_ms: i64,
    store: Store,
    tasks: Tasks,
    shutdown: Shutdown,
    active_run: ActiveRun,
    /// Error that ended the reader.
    lost: Arc<Mutex<Option<String>>>,
}

impl MeasuredRoute {
    /// Checks that everything is there, and opens the connections. Nothing is sent yet.
    pub(super) async fn open(config: &Config, request: &BenchRequest) -> anyhow::Result<Self> {
        let route = &request.route;
        let ingress = route.ingress_target();
        let ingress = ingress.context("the route reads several topics")?;
        let wrong = check::of_route(config, route).await;
        if let Some(first) = wrong.first() {
            let more = if wrong.len() > 1 {
                " (and more: `postdate check --connect`)"
            } else {
                ""
            };
            bail!("{}{more}", first.text);
        }
        let CommandStore {
            store,
            clock,
            tasks,
            shutdown,
            ..
        } = CommandStore::open(config, route, false, false).await?;
        let skew_us = judge_relays(config, request, &store).await?;
        let lanes = lanes(config, route, clock, &tasks.of(Stage::Egress), &shutdown)?;
        let measured = Self {
            clock,
            lane: lanes.lane(&ingress),
            ingress: Arc::new(ingress),
            from: source(route),
            to: target(route),
            skew_us,
            route: route.clone(),
            horizon_ms: request.delay_ms.1 + RETRY_MARGIN_MS,
            store,
            tasks,
            shutdown,
            active_run: Arc::default(),
            lost: Arc::default(),
        };
        let started = measured.start_reader(config, request).await;
        started.with_context(|| format!("{} cannot be read", measured.to))?;
        Ok(measured)
    }

    /// Counts the arrivals of this run from now on.
    pub(super) fn count(&self, tally: &Arc<Mutex<ArrivalTally>>, sent: &Arc<SendCounts>) {
        *self.active_run.lock() = Some((tally.clone(), sent.clone()));
    }

    /// Checks that the measurement is still valid; `Err` says why it is not.
    pub(super) fn check(&self, step_detector: &StepDetector) -> anyhow::Result<()> {
        let step_us = step_detector.step_us();
        ensure!(
            step_us == 0,
            "this machine's clock was stepped by {} ms in mid-run: what was measured is worth nothing",
            step_us / 1000
        );
        match self.lost.lock().as_ref() {
            Some(why) => Err(anyhow!("{} cannot be read any more: {why}", self.to)),
            None => Ok(()),
        }
    }

    /// Starts the reader at the route's target.
    async fn start_reader(&self, config: &Config, request: &BenchRequest) -> anyhow::Result<()> {
        let clock = self.clock;
        let active_run = self.active_run.clone();
        let lost = self.lost.clone();
        let each = move |mark: &[u8], at_us| {
            if let Some((tally, sent)) = &*active_run.lock() {
                tally.lock().arrive(mark, at_us, sent.sent());
            }
        };
        match &*self.route.to {
            Target::Kafka { connection, topic } => {
                let connection = config
                    .kafka
                    .get(connection)
                    .context("an unknown connection")?
                    .clone();
                let topic = topic.clone();
                let shutdown = self.shutdown.clone();
                let opened = tokio::task::spawn_blocking(move || {
                    ingress::kafka::tail::TopicTail::open(&connection, &topic)
                });
                let tail = opened.await?.map_err(|why| anyhow!(why))?;
                self.tasks.thread("bench:reader", move || {
                    let ended = tail.read(clock, MARK_HEADER, || shutdown.is_forced(), each);
                    *lost.lock() = ended.err();
                })?;
            }
            Target::Rabbitmq {
                connection,
                exchange,
                ..
            } => {
                let connection = config
                    .rabbitmq
                    .get(connection)
                    .context("an unknown connection")?
                    .clone();
                let broker = Broker::new(connection, &Health::default());
                let tasks = self.tasks.of(Stage::Ingress);
                let opened = broker.open("bench", "bench:link", &tasks, &self.shutdown);
                let mut link = opened.handle();
                let live = tokio::time::timeout(OPEN_DEADLINE, link.live()).await;
                let live = live.ok().flatten().context("rabbitmq does not answer")?;
                let key = request.routing_key().unwrap_or_default();
                let tail =
                    ingress::rabbitmq::tail::ExchangeTail::open(&live, exchange, &key, MARK_HEADER);
                let mut tail = tail.await?;
                let shutdown = self.shutdown.clone();
                self.tasks.spawn("bench:reader", async move {
                    // The connection stays open as long as the queue is read.
                    let _link = link;
                    tokio::select! {
                        why = tail.read(clock, MARK_HEADER, each) => *lost.lock() = Some(why.to_string()),
                        () = shutdown.draining() => {}
                    }
                });
            }
        }
        Ok(())
    }

    /// Begins the audit of the bench, before anything is sent.
    pub(super) async fn audit(&self, request: &BenchRequest) -> anyhow::Result<CommandAudit> {
        let BenchRequest { route, rate, .. } = request;
        let subject = format!("route {}; {rate} messages a second", route.name);
        let because = request.because.as_ref();
        CommandAudit::begin(&self.store, "postdate bench", subject, because).await
    }

    /// Takes the waiting messages of a run out of the store and answers their number. Messages in flight stay: they are on
    /// their way.
    pub(super) async fn cancel(&self, run: &str) -> Result<u64, StoreError> {
        let to = UnixMs(self.clock.wall().0 + self.horizon_ms);
        let mut cancelled: u64 = 0;
        let mut after: Option<BrowseKey> = None;
        loop {
            let route = Some(self.route.name.clone());
            let query = BrowseQuery {
                route,
                from: UnixMs(0),
                to,
                after,
                limit: BROWSE_PAGE,
                filter: store::MessageFilter::default(),
            };
            let page = self.store.browse(&query).await?;
            let mut ops: BTreeMap<Partition, Vec<WriteOp>> = BTreeMap::new();
            for found in page
                .found
                .into_iter()
                .filter(|found| waits_of_run(found, run))
            {
                let route = self.route.name.clone();
                let id = found.id;
                let home = self.store.home_of(&route, id.as_str());
                ops.entry(home).or_default().push(WriteOp::Cancel {
                    route,
                    id,
                    of: None,
                });
            }
            let done =
                try_join_all(ops.into_iter().map(|(p, ops)| self.store.write(p, ops))).await?;
            let done = done.into_iter().flatten().flatten();
            cancelled += done
                .filter(|result| *result == WriteResult::Cancelled)
                .count() as u64;
            after = page.next;
            if after.is_none() {
                return Ok(cancelled);
            }
        }
    }

    /// Closes the connections and ends the tasks.
    pub(super) async fn close(&self) {
        self.shutdown.begin();
        if let Err(late) = self.tasks.of(Stage::Egress).ended(CLOSE_DEADLINE).await {
            tracing::debug!(?late, "not ended in order");
        }
        // The exclusive queue goes with its connection.
        if let Err(late) = self.tasks.of(Stage::Ingress).ended(CLOSE_DEADLINE).await {
            tracing::debug!(?late, "not ended in order");
        }
        self.shutdown.force();
    }
}

/// Reports whether a message waits and belongs to a run.
fn waits_of_run(found: &StoredMessage, run: &str) -> bool {
    let mark = found
        .entry
        .message
        .headers
        .iter()
        .find(|header| header.name.as_str() == MARK_HEADER);
    let text = mark.and_then(|header| match &header.value {
        HeaderValue::Bytes(text) | HeaderValue::LongString(text) => MessageMark::read(text),
        _ => None,
    });
    found.state == StoredState::Pending && text.is_some_and(|mark| mark.run == run)
}

/// Checks that relays serve the route, that clocks agree, and that the topic has a partition for each relay. Answers this
/// machine's clock minus Redis's, microseconds.
async fn judge_relays(
    config: &Config,
    request: &BenchRequest,
    store: &Store,
) -> anyhow::Result<i64> {
    let name = &request.route.name;
    let asked = tokio::time::timeout(OPEN_DEADLINE, async {
        let paused = store.paused(name).await?;
        let skew = store.skew_us().await?;
        Ok::<_, StoreError>((paused, skew, store.replicas().await?))
    });
    let answered = asked
        .await
        .map_err(|_| anyhow!("the store does not answer"))?;
    let (paused, skew_us, replicas) = answered?;
    let bound = config.cluster.max_clock_skew;
    ensure!(
        skew_us.unsigned_abs() <= bound.as_micros() as u64,
        "this machine's clock and Redis's differ by {} ms, more than `cluster.max_clock_skew`: the measured lateness \
         would be wrong by as much",
        skew_us / 1000
    );
    let alive = replicas.iter().filter(|member| member.is_alive());
    let serving = alive
        .filter(|member| member.status.routes.iter().any(|r| r == name.as_str()))
        .count();
    ensure!(
        serving > 0,
        "no relay serves route {name} from the store at {}: start one (`postdate run`), with this configuration",
        config.redis.place()
    );
    if let Some(pause) = paused.ingress.or(paused.publishing) {
        bail!("route {name} is {pause}: `postdate resume {name}`");
    }
    if let Endpoint::Kafka {
        connection, topics, ..
    } = &request.route.from
        && let Some(topic) = topics.single()
    {
        let wanted = request.partitions.unwrap_or(serving);
        let connection = config
            .kafka
            .get(connection)
            .context("an unknown connection")?;
        let found = connection
            .find_topics(vec![topic.to_owned()], OPEN_DEADLINE)
            .await
            .map_err(|why| anyhow!(why))?;
        let has = found.first().map_or(0, |(_, state)| state.partitions());
        ensure!(
            has >= wanted,
            "topic {topic} has {has} partition(s), and {wanted} are wanted{}: fewer relays would read than serve; \
             --partitions says how many are enough",
            if request.partitions.is_none() {
                format!(" for {serving} relays")
            } else {
                String::new()
            }
        );
    }
    Ok(skew_us)
}

/// Starts the lanes to the route's ingress.
fn lanes(
    config: &Config,
    route: &Route,
    clock: Clock,
    tasks: &Tasks,
    shutdown: &Shutdown,
) -> anyhow::Result<AllLanes> {
    let health = Health::default();
    let mut kafka = None;
    let mut rabbitmq = BTreeMap::new();
    match &route.from {
        Endpoint::Kafka { connection, .. } => kafka = config.kafka.get(connection),
        Endpoint::Rabbitmq { connection, .. } => {
            let at = config
                .rabbitmq
                .get(connection)
                .context("an unknown connection")?
                .clone();
            let lanes = RabbitLanes::new(
                Broker::new(at, &health),
                clock,
                tasks.clone(),
                shutdown.clone(),
            );
            rabbitmq.insert(connection.clone(), lanes);
        }
    }
    let kafka = KafkaLanes::start(
        kafka,
        clock,
        &KafkaClients::default(),
        &health,
        tasks,
        shutdown,
    )?;
    Ok(AllLanes::new(kafka, rabbitmq))
}

/// A route's ingress, for people.
fn source(route: &Route) -> String {
    match &route.from {
        Endpoint::Kafka {
            connection, topics, ..
        } => format!("topic {connection}:{topics}"),
        Endpoint::Rabbitmq {
            connection, queue, ..
        } => format!("queue {connection}:{queue}"),
    }
}

/// A route's target, for people.
fn target(route: &Route) -> String {
    let kind = if matches!(*route.to, Target::Kafka { .. }) {
        "topic"
    } else {
        "exchange"
    };
    format!("{kind} {}", route::describe(&route.to))
}
