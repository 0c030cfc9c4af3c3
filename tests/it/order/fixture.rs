//! A target that can refuse, and replicas of store and timer that lead to it: in this process, on a real Redis.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use postdate::cluster::Cluster;
use postdate::credential::Credential;
use postdate::domain::{
    Clock, Entry, Message, OnDuplicate, Origin, Partition, Partitions, Refusal, RetryPolicy, Route,
    Target, TargetRef, Topics, TrailLimits, UnixMs, Verdict, testing,
};
use postdate::egress::{Lane, Lanes, Publication};
use postdate::health::Health;
use postdate::lifecycle::{Shutdown, Stage, Tasks};
use postdate::publishing::{Listeners, Reporters};
use postdate::store::config::{Config, Durability, Overrides, Topology};
use postdate::store::{Bundle, DeadLetterQuota, Store, WriteOp, WriteResult};
use postdate::telemetry::{BurstLog, FollowRegistry, Metrics, Tracer};
use postdate::timer;
use prometheus_client::registry::Registry;

use crate::support::{Redis, names};

/// Verdict on a publication, by its number (from 1), its key and its body.
pub type BrokerRule = Box<dyn FnMut(usize, &str, &str) -> Verdict + Send>;

pub fn refused() -> Verdict {
    Verdict::Refused {
        reason: Refusal::Unavailable,
        error: "no".into(),
    }
}

/// Takes publications and remembers what it confirmed.
pub struct Broker {
    inner: Mutex<Inner>,
}

struct Inner {
    rule: BrokerRule,
    publications: usize,
    /// Key and body, in the order of their confirms; repeats stand here too.
    confirmed: Vec<(String, String)>,
    log: Vec<(String, String)>,
}

impl Broker {
    pub fn new(rule: BrokerRule) -> Arc<Self> {
        let inner = Inner {
            rule,
            publications: 0,
            confirmed: Vec::new(),
            log: Vec::new(),
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
        })
    }

    /// The first confirm of each message, by key.
    pub fn firsts(&self) -> BTreeMap<String, Vec<String>> {
        let mut firsts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (key, body) in &self.inner.lock().confirmed {
            let of_key = firsts.entry(key.clone()).or_default();
            if !of_key.contains(body) {
                of_key.push(body.clone());
            }
        }
        firsts
    }

    /// Log of a key, one line a publication.
    pub fn log(&self, key: &str) -> Vec<String> {
        self.inner
            .lock()
            .log
            .iter()
            .filter(|(of, _)| of == key)
            .map(|(_, line)| line.clone())
            .collect()
    }

    pub fn count(&self) -> usize {
        self.firsts().values().map(Vec::len).sum()
    }
}

struct BrokerLane(Arc<Broker>);

impl Lane for BrokerLane {
    fn submit_all(&self, publications: Vec<Publication>) {
        for publication in publications {
            let verdict = {
                let inner = &mut *self.0.inner.lock();
                inner.publications += 1;
                let message = &publication.entry().message;
                let text = |bytes: &Option<Bytes>| {
                    bytes
                        .as_ref()
                        .map(|b| String::from_utf8_lossy(b).into_owned())
                        .unwrap_or_default()
                };
                let key = text(&message.key);
                let body = text(&message.body);
                let verdict = (inner.rule)(inner.publications, &key, &body);
                let now = crate::support::run::now_ms() % 100_000;
                let due = publication.entry().due.0 % 100_000;
                let attempt = publication.entry().failures + 1;
                inner.log.push((
                    key.clone(),
                    format!("{now}: {body} due {due} attempt {attempt}: {verdict:?}"),
                ));
                if verdict == Verdict::Confirmed(None) {
                    inner.confirmed.push((key, body));
                }
                verdict
            };
            publication.answer(verdict);
        }
    }

    fn backlog(&self) -> usize {
        0
    }

    fn trouble(&self) -> Option<String> {
        None
    }
}

struct BrokerLanes(Arc<Broker>);

impl Lanes for BrokerLanes {
    fn lane(&self, _: &Target) -> Arc<dyn Lane> {
        Arc::new(BrokerLane(self.0.clone()))
    }
}

/// A process: its store, and its timer once it is started.
pub struct Replica {
    pub store: Store,
    pub tasks: Tasks,
    pub shutdown: Shutdown,
    route: Arc<Route>,
    metrics: Arc<Metrics>,
    health: Health,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.shutdown.force();
    }
}

/// Kafka to Kafka, in order, tried again soon.
fn route() -> Route {
    let from = testing::kafka_source(Topics::one("in"), "postdate");
    let mut route = testing::route_between("orders", from, testing::kafka_target("out"));
    route.policy.ordered = true;
    route.policy.retry = RetryPolicy {
        attempts: 50,
        initial_ms: 30,
        max_ms: 60,
    };
    route.policy.trail = TrailLimits::OFF;
    route
}

/// A route, a store and a broker that replicas share.
pub struct OrderFixture {
    pub route: Arc<Route>,
    pub config: Config,
    pub broker: Arc<Broker>,
}

impl OrderFixture {
    pub async fn new(partitions: u16, rule: BrokerRule, change: impl FnOnce(&mut Route)) -> Self {
        Self::on(Redis::shared().await, partitions, rule, change)
    }

    /// The same on a Redis of the caller's own.
    pub fn on(
        redis: &Redis,
        partitions: u16,
        rule: BrokerRule,
        change: impl FnOnce(&mut Route),
    ) -> Self {
        let config = Config {
            topology: Topology::Standalone(Credential::inline(redis.url())),
            prefix: names::unique("order"),
            partitions: Partitions::new(partitions).expect("some"),
            durability: Durability::Async,
            growing_bundles: false,
            overrides: Overrides::default(),
            tls: postdate::tls::ClientFiles::default(),
        };
        let mut route = route();
        change(&mut route);
        Self {
            route: Arc::new(route),
            config,
            broker: Broker::new(rule),
        }
    }

    /// A process that serves nothing yet.
    pub fn replica(&self) -> Replica {
        let tasks = Tasks::default();
        let shutdown = Shutdown::default();
        let health = Health::default();
        let metrics = Metrics::new(&mut Registry::default(), [self.route.name.clone()]);
        let ordered = self.route.policy.ordered.then(|| self.route.name.clone());
        let store = Store::start(&postdate::store::StoreDependencies {
            config: &self.config,
            clock: Clock::start(),
            metrics: metrics.clone(),
            health: &health,
            tasks: &tasks,
            shutdown: &shutdown,
            remembers: [(self.route.name.clone(), self.route.policy.dedupe_ms)].into(),
            trails: std::collections::BTreeMap::new(),
            ordered: ordered.into_iter().collect(),
            growing: std::collections::BTreeSet::new(),
            shards: 2,
        });
        let store = store.expect("a good url");
        Replica {
            store,
            tasks,
            shutdown,
            route: self.route.clone(),
            health,
            metrics,
        }
    }

    /// A process that serves, with claims of so long.
    pub fn serve(&self, claim: Duration) -> Replica {
        let replica = self.replica();
        replica.serve(&self.broker, claim);
        replica
    }
}

impl Replica {
    pub fn serve(&self, broker: &Arc<Broker>, claim: Duration) {
        self.serve_of(broker, claim, vec![self.route.name.to_string()]);
    }

    /// Serves what is overdue, of which nothing is its own.
    pub fn serve_for_others(&self, broker: &Arc<Broker>, claim: Duration) {
        self.serve_of(broker, claim, Vec::new());
    }

    fn serve_of(&self, broker: &Arc<Broker>, claim: Duration, own: Vec<String>) {
        let routes = [self.route.clone()];
        timer::start(&timer::TimerDependencies {
            config: timer::Config {
                lookahead: Duration::from_millis(250),
                claim,
            },
            store: self.store.clone(),
            lanes: Arc::new(BrokerLanes(broker.clone())),
            cluster: Cluster::alone(self.store.partitions(), own),
            routes: &routes,
            metrics: self.metrics.clone(),
            health: self.health.clone(),
            reporters: &Reporters::new(
                &routes,
                &Listeners {
                    store: &self.store,
                    metrics: &self.metrics,
                    health: &self.health,
                    watch: &Arc::new(FollowRegistry::default()),
                    bursts: &Arc::new(BurstLog::new(Clock::start())),
                    tracer: &Tracer::default(),
                    quota: &DeadLetterQuota::new(&routes),
                },
            ),
            shards: 2,
            tasks: &self.tasks.of(Stage::Publishing),
            shutdown: self.shutdown.clone(),
        })
        .expect("started");
    }

    /// Ends without a word, as a killed process does: nothing is given back or settled.
    pub fn kill(self) {
        self.shutdown.force();
    }

    /// Ends in order.
    pub async fn drain(&self) {
        self.shutdown.begin();
        self.tasks
            .of(Stage::Publishing)
            .ended(Duration::from_secs(30))
            .await
            .expect("drained");
    }

    pub fn home(&self, key: &str) -> Partition {
        self.store
            .partitions()
            .of_key(&self.route.name, key.as_bytes())
    }

    /// Stores these, each bundle in one call of its own.
    pub async fn store(&self, key: &str, bundle: Vec<Entry>) -> Vec<WriteResult> {
        self.store_as(key, bundle, OnDuplicate::Keep).await
    }

    /// The same, where names that are taken may mean another thing.
    pub async fn store_as(
        &self,
        key: &str,
        bundle: Vec<Entry>,
        on_duplicate: OnDuplicate,
    ) -> Vec<WriteResult> {
        let bundle = Bundle {
            target: TargetRef::Own,
            entries: Arc::new(bundle),
        };
        let op = WriteOp::Store {
            route: self.route.name.clone(),
            on_duplicate,
            bundle,
        };
        self.store
            .write(self.home(key), vec![op])
            .await
            .expect("written")
            .remove(0)
    }
}

pub fn entry(key: &str, body: &str, due: UnixMs) -> Entry {
    let message = Message {
        origin: Origin::Kafka,
        key: Some(Bytes::copy_from_slice(key.as_bytes())),
        body: Some(Bytes::copy_from_slice(body.as_bytes())),
        headers: Vec::new(),
        properties: None,
    };
    Entry::new(due, message)
}

pub fn named(key: &str, name: &str, due: UnixMs) -> Entry {
    let entry = entry(key, name, due);
    let flags = entry.flags.with(postdate::domain::Flags::NAMED);
    Entry {
        id: Some(name.into()),
        flags,
        ..entry
    }
}
