//! Where a bench works: the way into the route, the reader at its end, the store behind it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use super::load::Sent;
use super::steps::Steps;
use super::tally::{MARK, Mark, Tally};
use super::types::Request;
use crate::app::check;
use crate::broker::rabbitmq::Broker;
use crate::config::Config;
use crate::domain::{Clock, Endpoint, HeaderValue, Partition, Route, Target, UnixMs, route};
use crate::egress::kafka::KafkaLanes;
use crate::egress::rabbitmq::RabbitLanes;
use crate::egress::{AllLanes, Lane, Lanes};
use crate::ingress;
use crate::lifecycle::{Readiness, Shutdown, Stage, Tasks};
use crate::store::{
    self, BrowseKey, BrowseQuery, PreflightFailure, Store, StoreError, StoredMessage, StoredState, WriteOp,
    WriteResult,
};
use crate::telemetry::Metrics;

/// Longest wait for what must be there at the beginning.
const PATIENCE: Duration = Duration::from_secs(10);
/// Messages that are looked at together in the store.
const PAGE: usize = 1000;
/// How far ahead of now messages of a run that is over may be due beside their delay: a retry put them off.
const RETRY_MS: i64 = 600_000;

/// Whose arrivals are counted now.
type Counting = Arc<Mutex<Option<(Arc<Mutex<Tally>>, Arc<Sent>)>>>;

/// All of it.
pub(super) struct Site {
    pub(super) clock: Clock,
    pub(super) lane: Arc<dyn Lane>,
    /// The route's ingress and its target, for people.
    pub(super) from: String,
    pub(super) to: String,
    /// This machine's clock minus Redis's, microseconds.
    pub(super) skew_us: i64,
    route: Arc<Route>,
    /// The latest due time there can be, from now on, ms.
    horizon_ms: i64,
    store: Store,
    tasks: Tasks,
    shutdown: Shutdown,
    counting: Counting,
    /// Why the reader ended.
    lost: Arc<Mutex<Option<String>>>,
}

impl Site {
    /// Looks whether all is there, and opens it. Nothing is sent yet.
    pub(super) async fn open(config: &Config, request: &Request) -> anyhow::Result<Self> {
        let route = &request.route;
        let wrong = check::of_route(config, route).await;
        if let Some(first) = wrong.first() {
            bail!(
                "{}{}",
                first.text,
                if wrong.len() > 1 { " (and more: `postdate check --connect`)" } else { "" }
            );
        }
        let (clock, tasks, shutdown) = (Clock::start(), Tasks::default(), Shutdown::default());
        let store = store(config, route, clock, &tasks, &shutdown).await?;
        let skew_us = judge_relays(config, request, &store).await?;
        let lanes = lanes(config, route, clock, &tasks.of(Stage::Egress), &shutdown)?;
        let site = Self {
            clock,
            lane: lanes.lane(&route.ingress_target()),
            from: source(route),
            to: target(route),
            skew_us,
            route: route.clone(),
            horizon_ms: request.delay_ms.1 + RETRY_MS,
            store,
            tasks,
            shutdown,
            counting: Arc::default(),
            lost: Arc::default(),
        };
        site.read(config, request).await.with_context(|| format!("{} cannot be read", site.to))?;
        Ok(site)
    }

    /// From now on arrivals of this run are counted.
    pub(super) fn count(&self, tally: &Arc<Mutex<Tally>>, sent: &Arc<Sent>) {
        *self.counting.lock() = Some((tally.clone(), sent.clone()));
    }

    /// `Err` if what is measured is worth nothing any more.
    pub(super) fn check(&self, steps: &Steps) -> anyhow::Result<()> {
        let step_us = steps.look();
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
    async fn read(&self, config: &Config, request: &Request) -> anyhow::Result<()> {
        let (clock, counting, lost) = (self.clock, self.counting.clone(), self.lost.clone());
        let each = move |mark: &[u8], at_us| {
            if let Some((tally, sent)) = &*counting.lock() {
                tally.lock().arrive(mark, at_us, sent.sent());
            }
        };
        match &*self.route.to {
            Target::Kafka { connection, topic } => {
                let connection = config.kafka.get(connection).context("an unknown connection")?.clone();
                let (topic, shutdown) = (topic.clone(), self.shutdown.clone());
                let opened = tokio::task::spawn_blocking(move || {
                    ingress::kafka::tail::TopicTail::open(&connection, &topic)
                });
                let tail = opened.await?.map_err(|why| anyhow!(why))?;
                self.tasks.thread("bench:reader", move || {
                    let ended = tail.read(clock, MARK, || shutdown.is_forced(), each);
                    *lost.lock() = ended.err();
                })?;
            }
            Target::Rabbitmq { connection, exchange, .. } => {
                let connection = config.rabbitmq.get(connection).context("an unknown connection")?.clone();
                let broker = Broker::new(connection, &Readiness::default());
                let mut link = broker.open_exclusive(
                    "bench",
                    "bench:link",
                    &self.tasks.of(Stage::Ingress),
                    &self.shutdown,
                );
                let live = tokio::time::timeout(PATIENCE, link.live()).await;
                let live = live.ok().flatten().context("rabbitmq does not answer")?;
                let key = request.routing_key().unwrap_or_default();
                let tail = ingress::rabbitmq::tail::ExchangeTail::open(&live, exchange, &key, MARK);
                let mut tail = tail.await?;
                let shutdown = self.shutdown.clone();
                self.tasks.spawn("bench:reader", async move {
                    // Held as long as it is read.
                    let _link = link;
                    tokio::select! {
                        why = tail.read(clock, MARK, each) => *lost.lock() = Some(why.to_string()),
                        () = shutdown.draining() => {}
                    }
                });
            }
        }
        Ok(())
    }

    /// Takes what waits of a run out of the store; how many those were. What is in flight is on its way.
    pub(super) async fn cancel(&self, run: &str) -> Result<u64, StoreError> {
        let to = UnixMs(self.clock.wall().0 + self.horizon_ms);
        let (mut cancelled, mut after): (u64, Option<BrowseKey>) = (0, None);
        loop {
            let (route, from) = (Some(self.route.name.clone()), UnixMs(0));
            let page = self.store.browse(&BrowseQuery { route, from, to, after, limit: PAGE }).await?;
            let mut ops: BTreeMap<Partition, Vec<WriteOp>> = BTreeMap::new();
            for found in page.found.into_iter().filter(|found| is_of(found, run)) {
                let (route, id) = (self.route.name.clone(), found.id);
                let home = self.store.home_of(&route, id.as_str());
                ops.entry(home).or_default().push(WriteOp::Cancel { route, id, of: None });
            }
            let done = try_join_all(ops.into_iter().map(|(p, ops)| self.store.write(p, ops))).await?;
            let done = done.into_iter().flatten().flatten();
            cancelled += done.filter(|result| *result == WriteResult::Cancelled).count() as u64;
            after = page.next;
            if after.is_none() {
                return Ok(cancelled);
            }
        }
    }

    /// Ends all of it.
    pub(super) async fn close(&self) {
        self.shutdown.begin();
        if let Err(late) = self.tasks.of(Stage::Egress).ended(LAST).await {
            tracing::debug!(?late, "not ended in order");
        }
        // The queue goes with its connection.
        if let Err(late) = self.tasks.of(Stage::Ingress).ended(LAST).await {
            tracing::debug!(?late, "not ended in order");
        }
        self.shutdown.force();
    }
}

/// How long connections may take to close.
const LAST: Duration = Duration::from_secs(5);

/// Whether a message that waits is one of a run.
fn is_of(found: &StoredMessage, run: &str) -> bool {
    let mark = found.entry.message.headers.iter().find(|header| header.name.as_str() == MARK);
    let text = mark.and_then(|header| match &header.value {
        HeaderValue::Bytes(text) | HeaderValue::LongString(text) => Mark::read(text),
        _ => None,
    });
    found.state == StoredState::Pending && text.is_some_and(|mark| mark.run == run)
}

/// The route's store, which is there.
async fn store(
    config: &Config,
    route: &Arc<Route>,
    clock: Clock,
    tasks: &Tasks,
    shutdown: &Shutdown,
) -> anyhow::Result<Store> {
    match tokio::time::timeout(PATIENCE, store::preflight(&config.redis, false)).await {
        Ok(Ok(())) => {}
        Ok(Err(PreflightFailure::Refused(why))) => return Err(why).context("the store may not be used"),
        Ok(Err(PreflightFailure::Away(why))) => bail!("the store cannot be used: {why}"),
        Err(_) => bail!("the store did not answer within {} s", PATIENCE.as_secs()),
    }
    Ok(Store::start(&store::StoreDependencies {
        config: &config.redis,
        clock,
        metrics: Metrics::new(&mut Registry::default(), [route.name.clone()]),
        readiness: &Readiness::default(),
        tasks,
        shutdown,
        remembers: [(route.name.clone(), route.policy.dedupe_ms)].into(),
        ordered: route.policy.ordered.then(|| route.name.clone()).into_iter().collect(),
        shards: 1,
    })?)
}

/// Whether relays serve the route, clocks agree and the topic has room for all of them; answers this machine's
/// clock minus Redis's, microseconds.
async fn judge_relays(config: &Config, request: &Request, store: &Store) -> anyhow::Result<i64> {
    let name = &request.route.name;
    let asked = tokio::time::timeout(PATIENCE, async {
        let paused = store.paused(name).await?;
        let skew = store.skew_us().await?;
        Ok::<_, StoreError>((paused, skew, store.replicas().await?))
    });
    let (paused, skew_us, replicas) = asked.await.map_err(|_| anyhow!("the store does not answer"))??;
    let bound = config.cluster.max_clock_skew;
    ensure!(
        skew_us.unsigned_abs() <= bound.as_micros() as u64,
        "this machine's clock and Redis's differ by {} ms, more than `cluster.max_clock_skew`: lateness would be that",
        skew_us / 1000
    );
    let alive = replicas.iter().filter(|member| member.is_alive());
    let serving = alive.filter(|member| member.status.routes.iter().any(|r| r == name.as_str())).count();
    ensure!(
        serving > 0,
        "no relay serves route {name} from the store at {}: start one (`postdate run`), with this configuration",
        config.redis.place()
    );
    ensure!(!paused.ingress && !paused.publishing, "route {name} is paused: `postdate resume {name}`");
    if let Endpoint::Kafka { connection, topic, .. } = &request.route.from {
        let wanted = request.partitions.unwrap_or(serving);
        let connection = config.kafka.get(connection).context("an unknown connection")?;
        let found =
            connection.find_topics(vec![topic.clone()], PATIENCE).await.map_err(|why| anyhow!(why))?;
        let has = found.first().map_or(0, |(_, state)| state.partitions());
        ensure!(
            has >= wanted,
            "topic {topic} has {has} partition(s), and {wanted} are wanted{}: fewer relays would read than serve; \
             --partitions says how many are enough",
            if request.partitions.is_none() { format!(" for {serving} relays") } else { String::new() }
        );
    }
    Ok(skew_us)
}

/// The lanes to the route's ingress.
fn lanes(
    config: &Config,
    route: &Route,
    clock: Clock,
    tasks: &Tasks,
    shutdown: &Shutdown,
) -> anyhow::Result<AllLanes> {
    let readiness = Readiness::default();
    let (mut kafka, mut rabbitmq) = (None, BTreeMap::new());
    match &route.from {
        Endpoint::Kafka { connection, .. } => kafka = config.kafka.get(connection),
        Endpoint::Rabbitmq { connection, .. } => {
            let at = config.rabbitmq.get(connection).context("an unknown connection")?.clone();
            let lanes = RabbitLanes::new(Broker::new(at, &readiness), clock, tasks.clone(), shutdown.clone());
            rabbitmq.insert(connection.clone(), lanes);
        }
    }
    Ok(AllLanes::new(KafkaLanes::start(kafka, clock, &readiness, tasks, shutdown)?, rabbitmq))
}

fn source(of: &Route) -> String {
    match &of.from {
        Endpoint::Kafka { connection, topic, .. } => format!("topic {connection}:{topic}"),
        Endpoint::Rabbitmq { connection, queue, .. } => format!("queue {connection}:{queue}"),
    }
}

fn target(of: &Route) -> String {
    let what = if matches!(*of.to, Target::Kafka { .. }) { "topic" } else { "exchange" };
    format!("{what} {}", route::describe(&of.to))
}
