//! RabbitMQ in and out on a real broker, without the store: a test sink stands where the intake does.

mod confirms;
mod egress;
mod faults;
mod hosts;
mod ingress;
mod outage;
mod poison;
mod sources;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use postdate::broker::rabbitmq::{Broker, Connection};
use postdate::credential::Credential;
use postdate::domain::{
    Clock, DelayFrom, Endpoint, Entry, FirstStart, Header, Message, Origin, Properties, ReadMark,
    Route, RoutingKey, Target, Text, TrailLimits, UnixMs, Verdict, testing,
};
use postdate::egress::rabbitmq::RabbitLanes;
use postdate::egress::{Lane, Publication, PublishBatch, VerdictInbox};
use postdate::ingress::{Delivery, Feed, Sink};

use postdate::health::Health;
use postdate::lifecycle::{Shutdown, Tasks};
use postdate::telemetry::Metrics;
use postdate::tls::ClientFiles;
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, watch};

use crate::support::Rabbitmq;
use crate::support::sent::SentCounts;

/// Longest wait for anything that must come.
const PATIENCE: Duration = Duration::from_secs(60);

async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> T {
    let in_time = tokio::time::timeout(PATIENCE, future).await;
    in_time.unwrap_or_else(|_| panic!("{what}: not within {PATIENCE:?}"))
}

/// Connection, readiness, tasks and shutdown of a process, as far as these tests need them.
struct RabbitmqFixture {
    broker: Arc<Broker>,
    health: Health,
    tasks: Tasks,
    shutdown: Shutdown,
    clock: Clock,
}

impl RabbitmqFixture {
    fn new(server: &Rabbitmq) -> Self {
        Self::at(server.url())
    }

    fn at(url: String) -> Self {
        let health = Health::default();
        let connection = Connection {
            name: "main".into(),
            url: Credential::inline(url),
            further_urls: Vec::new(),
            management: None,
            tls: ClientFiles::default(),
        };
        let broker = Broker::new(connection, &health);
        let tasks = Tasks::default();
        let shutdown = Shutdown::default();
        let clock = Clock::start();
        Self {
            broker,
            health,
            tasks,
            shutdown,
            clock,
        }
    }

    fn lanes(&self) -> RabbitLanes {
        RabbitLanes::new(
            self.broker.clone(),
            self.clock,
            self.tasks.clone(),
            self.shutdown.clone(),
        )
    }

    /// Consumes queues, one route each, named `r0`, `r1`, ...; metrics in the registry.
    fn consume(&self, queues: &[&str], prefetch: u16, sink: &DeliverySink) -> Registry {
        let routes: Vec<_> = queues
            .iter()
            .enumerate()
            .map(|(n, queue)| route(&format!("r{n}"), queue, prefetch))
            .collect();
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry, routes.iter().map(|route| route.name.clone()));
        let dependencies = postdate::ingress::rabbitmq::RabbitmqDependencies {
            sink: Arc::new(sink.clone()),
            metrics: &metrics,
            health: &self.health,
            allocation: &postdate::ingress::ReadAllocation::of(&routes),
            tasks: &self.tasks,
            shutdown: &self.shutdown,
        };
        postdate::ingress::rabbitmq::start(&self.broker, &routes, &dependencies);
        registry
    }

    /// Drains, and all tasks must end by themselves.
    async fn drain(&self) {
        self.shutdown.begin();
        self.tasks.ended(PATIENCE).await.expect("all tasks end");
        assert!(!self.tasks.has_panicked(), "a task panicked");
    }
}

fn route(name: &str, queue: &str, prefetch: u16) -> Arc<Route> {
    let target = Target::Rabbitmq {
        connection: "main".into(),
        exchange: String::new(),
        routing_key: RoutingKey::Preserve,
    };
    let from = Endpoint::Rabbitmq {
        connection: "main".into(),
        queue: queue.into(),
        prefetch,
    };
    let mut route = testing::route_between(name, from, target);
    route.policy.delay_from = DelayFrom::Arrival;
    route.policy.max_delay_ms = 1000;
    // Small enough that each queue has its `prefetch`. No larger body is of use, so a queue is read in one mode.
    route.policy.max_size = 1 << 12;
    route.policy.dead_letters.max_message = 1 << 12;
    route.policy.max_pending = 1000;
    route.policy.retry.max_ms = 1000;
    route.policy.trail = TrailLimits::OFF;
    Arc::new(route)
}

/// A persistent message.
fn message(body: impl Into<Bytes>) -> Message {
    Message {
        origin: Origin::Rabbitmq,
        key: Some(Bytes::new()),
        body: Some(body.into()),
        headers: vec![],
        properties: Some(Box::new(Properties {
            delivery_mode: Some(2),
            ..Properties::default()
        })),
    }
}

fn with_header(mut message: Message, header: Header) -> Message {
    message.headers.push(header);
    message
}

/// Id, due time and attempt of a delayed message.
struct Stamp {
    id: Text,
    due: UnixMs,
    attempt: u32,
}

fn stamp(id: &str, attempt: u32) -> Stamp {
    Stamp {
        id: id.into(),
        due: UnixMs(1_800_000_000_123),
        attempt,
    }
}

/// Submits to lanes and collects the verdicts.
#[derive(Default)]
struct Submitter {
    verdicts: Arc<VerdictInbox>,
    sent: Arc<SentCounts>,
    got: BTreeMap<u64, Verdict>,
}

impl Submitter {
    fn submit(
        &self,
        lane: &dyn Lane,
        ticket: u64,
        key: &str,
        message: Message,
        stamp: Option<Stamp>,
    ) {
        self.submit_until(lane, ticket, key, message, stamp, i64::MAX);
    }

    fn submit_until(
        &self,
        lane: &dyn Lane,
        ticket: u64,
        key: &str,
        message: Message,
        stamp: Option<Stamp>,
        not_after_us: i64,
    ) {
        let target = Target::Rabbitmq {
            connection: "main".into(),
            exchange: String::new(),
            routing_key: RoutingKey::Fixed(key.into()),
        };
        let batch = PublishBatch {
            entries: Arc::new(vec![Entry::new(
                stamp.as_ref().map_or(UnixMs(0), |s| s.due),
                message,
            )]),
            expiries: stamp.as_ref().map_or(0, |s| s.attempt - 1),
            spans: Vec::new(),
            ids: stamp.into_iter().map(|s| s.id).collect(),
            target: Arc::new(target),
            clock: None,
            copies: false,
            number: ticket,
            verdicts: self.verdicts.clone(),
            listener: Some(self.sent.clone()),
            not_after_us: not_after_us.into(),
        };
        lane.submit(Publication {
            batch: Arc::new(batch),
            index: 0,
        });
    }

    /// Waits until so many verdicts have come in all; no ticket gets two. What was not tried was not sent, and what was
    /// confirmed was sent once.
    async fn collect(&mut self, count: usize) -> &BTreeMap<u64, Verdict> {
        while self.got.len() < count {
            let missing = count - self.got.len();
            let batch = patiently(&format!("{missing} verdicts"), self.verdicts.take()).await;
            for (ticket, verdict) in batch {
                let sent = self.sent.of(ticket.batch);
                match verdict {
                    Verdict::NotTried => assert_eq!(sent, 0, "ticket {ticket:?} was sent"),
                    Verdict::Confirmed(None) => assert_eq!(sent, 1, "ticket {ticket:?}"),
                    _ => assert!(sent <= 1, "ticket {ticket:?} was sent {sent} times"),
                }
                let second = self.got.insert(ticket.batch, verdict);
                assert_eq!(second, None, "ticket {ticket:?} was answered twice");
            }
        }
        &self.got
    }
}

/// A sink that keeps what it is given.
#[derive(Clone, Default)]
struct DeliverySink(Arc<TakenDeliveries>);

/// State of the route's gate, as the sink reports it.
#[derive(Clone, Copy)]
struct Gate {
    open: bool,
    /// Set while the store takes messages in.
    ready: bool,
    /// Set while deliveries that wait at the closed gate are to go back.
    back: bool,
}

const OPEN: Gate = Gate {
    open: true,
    ready: true,
    back: false,
};

struct Gates(watch::Sender<Gate>);

impl Default for Gates {
    fn default() -> Self {
        Self(watch::Sender::new(OPEN))
    }
}

impl std::ops::Deref for Gates {
    type Target = watch::Sender<Gate>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

#[derive(Default)]
struct TakenDeliveries {
    gate: Gates,
    deliveries: Mutex<Vec<Delivery>>,
    arrived: Notify,
    opened: Mutex<Vec<String>>,
    /// Answer of the sink to `had_time`.
    has_time: AtomicBool,
}

impl Sink for DeliverySink {
    type Feed = Self;

    async fn open(self: &Arc<Self>, _: &Arc<Route>, name: String) -> Option<Self> {
        self.0.opened.lock().push(name);
        Some(Self::clone(self))
    }

    async fn read_mark(&self, _: &str) -> Result<Option<ReadMark>, String> {
        Ok(None)
    }

    async fn first_start(&self, _: &str, seen: FirstStart) -> Result<FirstStart, String> {
        Ok(seen)
    }
}

impl Feed for DeliverySink {
    async fn until_open(&self) {
        self.0
            .gate
            .subscribe()
            .wait_for(|gate| gate.open)
            .await
            .map(drop)
            .expect("a gate");
    }

    async fn until_ready(&self) {
        self.0
            .gate
            .subscribe()
            .wait_for(|gate| gate.open && gate.ready)
            .await
            .map(drop)
            .expect("a gate");
    }

    async fn until_closed(&self) {
        self.0
            .gate
            .subscribe()
            .wait_for(|gate| !gate.open && gate.back)
            .await
            .map(drop)
            .expect("a gate");
    }

    async fn take(&mut self, batch: Vec<Delivery>) -> Vec<Delivery> {
        self.0.deliveries.lock().extend(batch);
        self.0.arrived.notify_one();
        Vec::new()
    }

    fn had_time(&self) -> bool {
        self.0.has_time.load(Ordering::Relaxed)
    }
}

impl DeliverySink {
    /// Waits for so many deliveries and takes them.
    async fn catch(&self, count: usize) -> Vec<Delivery> {
        let all = async {
            let mut caught = Vec::new();
            loop {
                {
                    let mut deliveries = self.0.deliveries.lock();
                    let most = deliveries.len().min(count - caught.len());
                    caught.extend(deliveries.drain(..most));
                }
                if caught.len() == count {
                    return caught;
                }
                self.0.arrived.notified().await;
            }
        };
        patiently(&format!("{count} deliveries"), all).await
    }

    fn is_empty(&self) -> bool {
        self.0.deliveries.lock().is_empty()
    }
}

fn body(delivery: &Delivery) -> String {
    String::from_utf8_lossy(delivery.message.body.as_ref().expect("a body")).into_owned()
}

fn bodies(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(body).collect()
}

/// All of them are safe.
fn resolve(deliveries: impl IntoIterator<Item = Delivery>) {
    for delivery in deliveries {
        delivery.receipt.resolve();
    }
}
