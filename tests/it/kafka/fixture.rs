//! Fixtures of the Kafka tests: routes, a recording sink, a consumer group, lanes, plain clients.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use postdate::broker::kafka::{Connection, Properties};
use postdate::domain::{
    Clock, Endpoint, Entry, FirstStart, Message, Origin, ReadMark, Route, RouteName, SkipGoal,
    SkipOutcome, Target, Topics, TrailLimits, UnixMs, Verdict, testing,
};
use postdate::egress::kafka::KafkaLanes;
use postdate::egress::{Lane, Publication, PublishBatch, VerdictInbox};
use postdate::health::{Health, RouteHealth};
use postdate::ingress::kafka::KafkaDependencies;
use postdate::ingress::kafka::skip_desk::SkipDesk;
use postdate::ingress::{Delivery, Feed, Missing, READ_BYTES, ReadBudget, Receipt, Sink};
use postdate::lifecycle::{Shutdown, Tasks};
use postdate::telemetry::{KafkaClients, Metrics, RouteMetrics};
use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use rdkafka::{Message as _, Offset, TopicPartitionList};

use crate::support::eventually::PATIENCE;
use crate::support::sent::SentCounts;
use crate::support::{Kafka, eventually};

pub(super) fn connection(kafka: &Kafka) -> Connection {
    Connection::plain("main", kafka.bootstrap())
}

pub(super) fn route(name: &str, topic: &str, group: &str) -> Arc<Route> {
    let from = testing::kafka_source(Topics::one(topic), group);
    let mut route = testing::route_between(name, from, testing::kafka_target("elsewhere"));
    route.policy.max_delay_ms = 1000;
    route.policy.max_pending = 1000;
    route.policy.retry.max_ms = 1000;
    route.policy.trail = TrailLimits::OFF;
    Arc::new(route)
}

/// A sink that remembers what it took and resolves it at once, or keeps it.
#[derive(Default)]
pub(super) struct RecordingSink {
    pub(super) taken: Mutex<Vec<TakenRecord>>,
    pub(super) sources: Mutex<Vec<String>>,
    /// What the store would remember of each source.
    pub(super) marks: Mutex<BTreeMap<String, ReadMark>>,
    /// What the store would remember of the first start of each source.
    pub(super) first_starts: Mutex<BTreeMap<String, FirstStart>>,
    keeps: AtomicBool,
}

pub(super) struct TakenRecord {
    pub(super) topic: String,
    pub(super) offset: i64,
    pub(super) produced: Option<UnixMs>,
    pub(super) missing: Option<Missing>,
    pub(super) message: Message,
    pub(super) receipt: Option<Receipt>,
}

pub(super) struct RecordingFeed {
    memory: Arc<RecordingSink>,
    name: String,
    topic: String,
}

impl Sink for RecordingSink {
    type Feed = RecordingFeed;

    async fn open(self: &Arc<Self>, route: &Arc<Route>, name: String) -> Option<RecordingFeed> {
        let Endpoint::Kafka { topics, .. } = &route.from else {
            panic!("a Kafka route")
        };
        self.sources.lock().push(name.clone());
        Some(RecordingFeed {
            memory: self.clone(),
            name,
            topic: topics.to_string(),
        })
    }

    async fn read_mark(&self, source: &str) -> Result<Option<ReadMark>, String> {
        Ok(self.marks.lock().get(source).copied())
    }

    async fn first_start(&self, source: &str, seen: FirstStart) -> Result<FirstStart, String> {
        let mut first = self.first_starts.lock();
        Ok(first.entry(source.to_owned()).or_insert(seen).clone())
    }
}

impl Feed for RecordingFeed {
    async fn until_open(&self) {}

    async fn until_ready(&self) {}

    async fn until_closed(&self) {
        std::future::pending::<()>().await;
    }

    async fn take(&mut self, batch: Vec<Delivery>) -> Vec<Delivery> {
        for delivery in batch {
            let offset = delivery.position.expect("a position").offset;
            let mark = ReadMark {
                until: offset + 1,
                resolved: delivery.resolved_time,
            };
            self.memory.marks.lock().insert(self.name.clone(), mark);
            let mut receipt = Some(delivery.receipt);
            let mut taken = self.memory.taken.lock();
            if !self.memory.keeps.load(Ordering::Relaxed) {
                receipt.take().expect("just put in").resolve();
            }
            taken.push(TakenRecord {
                topic: self.topic.clone(),
                offset,
                produced: delivery.produced,
                missing: delivery.missing,
                message: delivery.message,
                receipt,
            });
        }
        Vec::new()
    }

    fn had_time(&self) -> bool {
        false
    }
}

impl RecordingSink {
    /// From here on it resolves nothing by itself.
    pub(super) fn keeping(self: Arc<Self>) -> Arc<Self> {
        self.keeps.store(true, Ordering::Relaxed);
        self
    }

    /// Resolves what it kept, and what comes.
    pub(super) fn release(&self) {
        let mut taken = self.taken.lock();
        self.keeps.store(false, Ordering::Relaxed);
        Receipt::resolve_all(taken.iter_mut().filter_map(|taken| taken.receipt.take()));
    }

    /// Resolves what it kept of these offsets.
    pub(super) fn resolve(&self, which: impl Fn(i64) -> bool) {
        for taken in self.taken.lock().iter_mut() {
            if which(taken.offset)
                && let Some(receipt) = taken.receipt.take()
            {
                receipt.resolve();
            }
        }
    }

    /// How often each body was taken.
    pub(super) fn bodies(&self) -> BTreeMap<String, usize> {
        let mut bodies = BTreeMap::new();
        for taken in self.taken.lock().iter() {
            let body = taken.message.body.clone().unwrap_or_default();
            *bodies
                .entry(String::from_utf8_lossy(&body).into_owned())
                .or_default() += 1;
        }
        bodies
    }

    /// How many records have each body: one that was read twice (the reader too may read again after an outage)
    /// counts once.
    pub(super) fn records(&self) -> BTreeMap<String, usize> {
        let mut offsets: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
        for taken in self.taken.lock().iter() {
            let body = taken.message.body.clone().unwrap_or_default();
            offsets
                .entry(String::from_utf8_lossy(&body).into_owned())
                .or_default()
                .insert(taken.offset);
        }
        offsets
            .into_iter()
            .map(|(body, offsets)| (body, offsets.len()))
            .collect()
    }

    /// Waits until each of these bodies was taken.
    pub(super) async fn has(&self, kind: &str, count: usize) {
        eventually(&format!("{count} x {kind}"), async || {
            let bodies = self.bodies();
            let missing: Vec<_> = (0..count)
                .filter(|i| !bodies.contains_key(&format!("{kind}-{i}")))
                .collect();
            if missing.is_empty() {
                Ok(())
            } else {
                Err(format!("missing: {missing:?}"))
            }
        })
        .await;
    }
}

/// One group's consumer with its own tasks and shutdown, as a process of its own would have.
pub(super) struct IngressFixture {
    pub(super) shutdown: Shutdown,
    pub(super) tasks: Tasks,
    pub(super) health: Health,
    pub(super) metrics: Arc<Metrics>,
    /// The source of each route.
    sources: BTreeMap<RouteName, Endpoint>,
    skips: SkipDesk,
}

impl IngressFixture {
    pub(super) fn start<S: Sink>(
        kafka: &Kafka,
        group: &str,
        topics: &[&str],
        sink: &Arc<S>,
    ) -> Self {
        Self::start_within(
            kafka,
            group,
            topics,
            sink,
            &Arc::new(ReadBudget::new(READ_BYTES)),
        )
    }

    /// With properties of the client library.
    pub(super) fn start_with<S: Sink>(
        kafka: &Kafka,
        group: &str,
        topics: &[&str],
        sink: &Arc<S>,
        properties: &[(&str, &str)],
    ) -> Self {
        let connection = Connection {
            properties: Properties::inline(properties.iter().copied()),
            ..connection(kafka)
        };
        Self::start_at(
            &connection,
            group,
            topics,
            sink,
            &Arc::new(ReadBudget::new(READ_BYTES)),
        )
    }

    /// With a budget for what is read and not resolved.
    pub(super) fn start_within<S: Sink>(
        kafka: &Kafka,
        group: &str,
        topics: &[&str],
        sink: &Arc<S>,
        budget: &Arc<ReadBudget>,
    ) -> Self {
        Self::start_at(&connection(kafka), group, topics, sink, budget)
    }

    /// With routes of the caller's.
    pub(super) fn start_reading<S: Sink>(
        kafka: &Kafka,
        group: &str,
        routes: Vec<Arc<Route>>,
        sink: &Arc<S>,
    ) -> Self {
        let budget = Arc::new(ReadBudget::new(READ_BYTES));
        Self::start_routes(&connection(kafka), group, routes, sink, &budget)
    }

    /// At a connection of the caller's.
    pub(super) fn start_at<S: Sink>(
        connection: &Connection,
        group: &str,
        topics: &[&str],
        sink: &Arc<S>,
        budget: &Arc<ReadBudget>,
    ) -> Self {
        let routes = topics
            .iter()
            .enumerate()
            .map(|(i, topic)| route(&format!("r{i}"), topic, group))
            .collect();
        Self::start_routes(connection, group, routes, sink, budget)
    }

    /// With routes of the caller's.
    pub(super) fn start_routes<S: Sink>(
        connection: &Connection,
        group: &str,
        routes: Vec<Arc<Route>>,
        sink: &Arc<S>,
        budget: &Arc<ReadBudget>,
    ) -> Self {
        let sources = routes
            .iter()
            .map(|route| (route.name.clone(), route.from.clone()));
        let sources = sources.collect();
        let tasks = Tasks::default();
        let shutdown = Shutdown::default();
        let health = Health::default();
        let mut registry = prometheus_client::registry::Registry::default();
        let metrics = Metrics::new(&mut registry, routes.iter().map(|r| r.name.clone()));
        let skips = SkipDesk::default();
        let surroundings = KafkaDependencies {
            sink: sink.clone(),
            metrics: metrics.clone(),
            health: health.clone(),
            budget: budget.clone(),
            skips: skips.clone(),
            part: health.part("kafka:main", false),
            tasks: tasks.clone(),
            shutdown: shutdown.clone(),
            clock: Clock::start(),
        };
        postdate::ingress::kafka::start(connection, group, routes, surroundings).expect("started");
        Self {
            shutdown,
            tasks,
            health,
            metrics,
            sources,
            skips,
        }
    }

    /// Has a partition of a route's one topic go on.
    pub(super) async fn skip(&self, route: &str, partition: i32, goal: SkipGoal) -> SkipOutcome {
        let route = RouteName::new(route).expect("a name");
        let topic = match self.sources.get(&route) {
            Some(Endpoint::Kafka { topics, .. }) => topics.to_string(),
            _ => String::new(),
        };
        self.skips.skip(&route, &topic, partition, goal).await
    }

    /// SIGTERM: drains.
    pub(super) async fn stop(self) {
        self.shutdown.begin();
        self.ended().await;
    }

    /// Out of time: what is outstanding stays outstanding.
    pub(super) async fn force(self) {
        self.shutdown.force();
        self.ended().await;
    }

    /// What is known of the health of a route.
    pub(super) fn route(&self, route: &str) -> Arc<RouteHealth> {
        self.health.route(&RouteName::new(route).expect("a name"))
    }

    /// Messages of a route that it has not resolved.
    pub(super) fn lag(&self, route: &str) -> i64 {
        self.of(route).ingress_lag.get()
    }

    /// Messages of a route that are read and not resolved.
    pub(super) fn unresolved(&self, route: &str) -> i64 {
        self.of(route).ingress_unresolved.get()
    }

    /// Messages of a route that were deleted before they were read.
    pub(super) fn lost(&self, route: &str) -> u64 {
        self.of(route).source_lost.get()
    }

    pub(super) fn of(&self, route: &str) -> &RouteMetrics {
        let name = RouteName::new(route).expect("a route's name");
        self.metrics.route(&name).expect("its metrics")
    }

    async fn ended(&self) {
        self.tasks.ended(PATIENCE).await.expect("the consumer ends");
        assert!(!self.tasks.has_panicked());
    }
}

/// Lanes with their own tasks and shutdown.
pub(super) struct EgressFixture {
    pub(super) lanes: KafkaLanes,
    pub(super) verdicts: Arc<VerdictInbox>,
    pub(super) sent: Arc<SentCounts>,
    pub(super) shutdown: Shutdown,
    pub(super) health: Health,
    pub(super) clock: Clock,
    tasks: Tasks,
}

impl EgressFixture {
    pub(super) fn start(kafka: &Kafka) -> Self {
        let tasks = Tasks::default();
        let shutdown = Shutdown::default();
        let health = Health::default();
        let clock = Clock::start();
        let lanes = KafkaLanes::start(
            [&connection(kafka)],
            clock,
            &KafkaClients::default(),
            &health,
            &tasks,
            &shutdown,
        );
        Self {
            lanes: lanes.expect("lanes"),
            verdicts: Arc::default(),
            sent: Arc::default(),
            shutdown,
            health,
            clock,
            tasks,
        }
    }

    pub(super) fn lane(&self, topic: &str) -> Arc<dyn Lane> {
        let target = Target::Kafka {
            connection: "main".into(),
            topic: topic.into(),
        };
        self.lanes.lane(&target).expect("a lane")
    }

    pub(super) fn publication(&self, ticket: u64, topic: &str, message: Message) -> Publication {
        let target = Arc::new(Target::Kafka {
            connection: "main".into(),
            topic: topic.into(),
        });
        Publication::alone(
            Entry::new(UnixMs(7), message),
            target,
            ticket,
            &self.verdicts,
            i64::MAX,
        )
    }

    /// The same delayed and named, for the attempt of its ticket.
    pub(super) fn stamped(&self, ticket: u64, topic: &str, message: Message) -> Publication {
        let batch = PublishBatch {
            entries: Arc::new(vec![Entry::new(UnixMs(1_700_000_000_000), message)]),
            ids: vec!["order-7".into()],
            expiries: ticket as u32 - 1,
            spans: Vec::new(),
            target: Arc::new(Target::Kafka {
                connection: "main".into(),
                topic: topic.into(),
            }),
            clock: None,
            copies: false,
            number: ticket,
            verdicts: self.verdicts.clone(),
            listener: Some(self.sent.clone()),
            not_after_us: i64::MAX.into(),
        };
        Publication {
            batch: Arc::new(batch),
            index: 0,
        }
    }

    pub(super) fn submit(&self, ticket: u64, topic: &str, message: Message) {
        self.lane(topic)
            .submit(self.publication(ticket, topic, message));
    }

    /// So many verdicts, by ticket; each ticket once.
    pub(super) async fn verdicts(&self, count: usize) -> BTreeMap<u64, Verdict> {
        let mut all = BTreeMap::new();
        while all.len() < count {
            let batch = tokio::time::timeout(PATIENCE, self.verdicts.take()).await;
            for (ticket, verdict) in
                batch.unwrap_or_else(|_| panic!("{} of {count} verdicts", all.len()))
            {
                assert_eq!(
                    all.insert(ticket.batch, verdict),
                    None,
                    "ticket {ticket:?} twice"
                );
            }
        }
        all
    }

    pub(super) async fn stop(self) {
        self.shutdown.begin();
        self.tasks.ended(PATIENCE).await.expect("the producer ends");
        assert!(!self.tasks.has_panicked());
    }
}

pub(super) fn message(body: impl Into<Bytes>) -> Message {
    let body = Some(body.into());
    Message {
        origin: Origin::Kafka,
        key: None,
        body,
        headers: Vec::new(),
        properties: None,
    }
}

/// Remembers what was not delivered.
#[derive(Default)]
pub(super) struct Refusals(pub(super) Mutex<Vec<KafkaError>>);

impl ClientContext for Refusals {}

impl ProducerContext for Refusals {
    type DeliveryOpaque = ();

    fn delivery(&self, report: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = report {
            self.0.lock().push(error.clone());
        }
    }
}

/// Produces `KIND-0` .. with keys that spread them over all partitions, confirmed.
pub(super) fn produce(kafka: &Kafka, topic: &str, kind: &str, range: std::ops::Range<usize>) {
    let mut config = kafka.client();
    config.set("linger.ms", "0");
    let producer: BaseProducer<Refusals> = config
        .create_with_context(Refusals::default())
        .expect("a producer");
    for i in range {
        let key = i.to_string();
        let body = format!("{kind}-{i}");
        producer
            .send(BaseRecord::to(topic).key(&key).payload(&body))
            .expect("room");
    }
    producer.flush(Duration::from_secs(20)).expect("flushed");
    assert_eq!(producer.in_flight_count(), 0);
    assert_eq!(*producer.context().0.lock(), []);
}

/// The group's committed position.
pub(super) fn committed(kafka: &Kafka, group: &str, topic: &str, partition: i32) -> Option<i64> {
    committed_of(
        &kafka
            .client()
            .set("group.id", group)
            .create()
            .expect("a consumer"),
        topic,
        partition,
    )
}

/// The same, asked through a consumer of the group that is there already.
pub(super) fn committed_of(consumer: &BaseConsumer, topic: &str, partition: i32) -> Option<i64> {
    let mut list = TopicPartitionList::new();
    list.add_partition(topic, partition);
    let answer = consumer
        .committed_offsets(list, Duration::from_secs(10))
        .expect("an answer");
    match answer.elements()[0].offset() {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    }
}

/// Waits until the group has committed this.
pub(super) async fn commits(kafka: &Kafka, group: &str, topic: &str, expected: i64) {
    eventually(&format!("{group} commits {expected}"), async || {
        let found = committed(kafka, group, topic, 0);
        if found == Some(expected) {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
}

/// Sets the group's committed position, as an operator would while it is stopped.
pub(crate) fn rewind(kafka: &Kafka, group: &str, topic: &str, to: i64) {
    let consumer: BaseConsumer = kafka
        .client()
        .set("group.id", group)
        .create()
        .expect("a consumer");
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Offset(to))
        .expect("an offset");
    consumer.commit(&list, CommitMode::Sync).expect("rewound");
}

/// Moves the group's commit to a position which the log does not have, as a broker shows it whose log is older than its
/// commits: all else of the commit stays.
pub(crate) fn commit_beyond(kafka: &Kafka, group: &str, topic: &str, to: i64) {
    let mut client = kafka.client();
    let consumer: BaseConsumer = client.set("group.id", group).create().expect("a consumer");
    let mut list = TopicPartitionList::new();
    list.add_partition(topic, 0);
    let held = consumer
        .committed_offsets(list, Duration::from_secs(10))
        .expect("an answer");
    let mut moved = TopicPartitionList::new();
    moved
        .add_partition_offset(topic, 0, Offset::Offset(to))
        .expect("an offset");
    moved
        .find_partition(topic, 0)
        .expect("just added")
        .set_metadata(held.elements()[0].metadata());
    consumer
        .commit(&moved, CommitMode::Sync)
        .expect("committed");
}

/// All records of a topic's partition 0 from its start, as bytes.
#[expect(
    clippy::print_stdout,
    reason = "a test that fails for want of records shows why"
)]
pub(super) fn read_all(
    kafka: &Kafka,
    topic: &str,
    count: usize,
) -> Vec<rdkafka::message::OwnedMessage> {
    let consumer: BaseConsumer = kafka
        .client()
        .set("group.id", "reader")
        .create()
        .expect("a consumer");
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Beginning)
        .expect("an offset");
    consumer.assign(&list).expect("assigned");
    let end = std::time::Instant::now() + PATIENCE;
    let mut records = Vec::new();
    while records.len() < count {
        assert!(
            std::time::Instant::now() < end,
            "{} of {count} records of {topic}",
            records.len()
        );
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(record)) => records.push(record.detach()),
            // The client tells each fault of a connection, and goes on by itself.
            Some(Err(error)) => println!("reader of {topic}: {error}"),
            None => {}
        }
    }
    records
}

/// A record's body as text.
pub(super) fn text(record: &rdkafka::message::OwnedMessage) -> String {
    String::from_utf8_lossy(record.payload().unwrap_or_default()).into_owned()
}
