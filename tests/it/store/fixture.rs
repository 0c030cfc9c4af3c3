//! Starts a store of a test's own on a Redis, with short calls for tests.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use postdate::credential::Credential;
use postdate::domain::{
    Clock, DeadReason, Entry, Flags, KafkaPosition, Message, OnDuplicate, Origin, Partition,
    Partitions, RouteName, TargetRef, Text, UnixMs,
};
use postdate::health::Health;
use postdate::lifecycle::{Shutdown, Tasks};
use postdate::store::config::{Config, Durability, Overrides, Topology};
use postdate::store::{
    Bundle, Claim, ClaimAnswer, ClaimProgress, ClaimRequest, Counts, DeadLetter, Division, Head,
    HeadsSeen, SettleAnswer, Settlement, Store, StoreError, SweepOutcome, WriteOp, WriteResult,
};
use postdate::telemetry::Metrics;
use redis::aio::MultiplexedConnection;

use super::invariants::{Snapshot, check};
use crate::support::{Redis, eventually, names};

/// A lease that no test outlives.
pub const LONG: u64 = 600_000;
/// The only partition of most tests.
pub const P: Partition = Partition(0);

/// A store under a prefix of its own, with a raw connection beside it. Dropping it ends its tasks.
pub struct StoreFixture {
    pub store: Store,
    pub config: Config,
    /// Time for which the route remembers delivered names, ms; 0: none.
    pub dedupe_ms: i64,
    pub raw: MultiplexedConnection,
    /// Set where the route's keys leave in order.
    ordered: bool,
    /// The partition that all calls are made on.
    pub p: Partition,
    end: Arc<End>,
}

/// Ends the store's tasks when the last fixture that uses it has gone.
struct End {
    health: Health,
    shutdown: Shutdown,
}

impl Drop for End {
    fn drop(&mut self) {
        self.shutdown.force();
    }
}

/// A thorough sweep of one partition.
pub async fn sweep(
    store: &Store,
    p: Partition,
    lease_ms: u64,
    hold: bool,
) -> Result<SweepOutcome, StoreError> {
    let held = BTreeSet::from_iter(hold.then_some(p));
    store.sweep(&[p], lease_ms, &held, true).await.remove(0).1
}

pub fn route() -> RouteName {
    RouteName::new("orders").expect("a name")
}

pub fn config(url: &str, prefix: &str, partitions: u16) -> Config {
    config_of(
        Topology::Standalone(Credential::inline(url)),
        prefix,
        partitions,
    )
}

pub fn config_of(topology: Topology, prefix: &str, partitions: u16) -> Config {
    Config {
        topology,
        prefix: prefix.to_owned(),
        partitions: Partitions::new(partitions).expect("some"),
        durability: Durability::Async,
        growing_bundles: true,
        overrides: Overrides::default(),
        tls: postdate::tls::ClientFiles::default(),
    }
}

pub fn start(config: &Config, dedupe_ms: i64, ordered: bool) -> (Store, Health, Shutdown) {
    let tasks = Tasks::default();
    let shutdown = Shutdown::default();
    let health = Health::default();
    let metrics = Metrics::new(
        &mut prometheus_client::registry::Registry::default(),
        [route()],
    );
    let parts = postdate::store::StoreDependencies {
        config,
        clock: Clock::start(),
        metrics,
        health: &health,
        tasks: &tasks,
        shutdown: &shutdown,
        remembers: [(route(), dedupe_ms)].into(),
        trails: std::collections::BTreeMap::new(),
        ordered: ordered.then(route).into_iter().collect(),
        growing: (!ordered).then(route).into_iter().collect(),
        shards: 1,
    };
    (Store::start(&parts).expect("a good url"), health, shutdown)
}

impl StoreFixture {
    /// On the Redis that all tests share.
    pub async fn shared() -> Self {
        Self::on(Redis::shared().await, 1).await
    }

    pub async fn on(redis: &Redis, partitions: u16) -> Self {
        Self::through(redis, &redis.url(), partitions).await
    }

    /// The store talks to `url` (a proxy, say), the test to the Redis itself.
    pub async fn through(redis: &Redis, url: &str, partitions: u16) -> Self {
        Self::with(redis, url, partitions, 0).await
    }

    /// On the Redis that all tests share, with a route that remembers what it delivered.
    pub async fn remembering() -> Self {
        let redis = Redis::shared().await;
        Self::with(redis, &redis.url(), 1, LONG as i64).await
    }

    /// With a route that remembers for so long.
    pub async fn with(redis: &Redis, url: &str, partitions: u16, dedupe_ms: i64) -> Self {
        Self::of(
            config(url, &names::unique("store"), partitions),
            redis,
            dedupe_ms,
        )
        .await
    }

    /// On whatever the configuration says; the test itself talks to this server. Ready when every node is reached:
    /// on a cluster most calls wait for none.
    pub async fn of(config: Config, redis: &Redis, dedupe_ms: i64) -> Self {
        let raw = redis.connection().await.expect("connected");
        let fixture = Self::made(config, raw, dedupe_ms, false);
        fixture.reached().await;
        fixture
    }

    /// The same with a route whose keys leave in order.
    pub async fn ordered_of(config: Config, redis: &Redis) -> Self {
        let raw = redis.connection().await.expect("connected");
        let fixture = Self::made(config, raw, 0, true);
        fixture.reached().await;
        fixture
    }

    /// Waits until every node is reached.
    pub async fn reached(&self) {
        eventually("every node is reached", async || {
            self.end.health.is_ready().then_some(()).ok_or("not yet")
        })
        .await;
    }

    /// With a route whose keys leave in order.
    pub async fn ordered(redis: &Redis, partitions: u16) -> Self {
        let raw = redis.connection().await.expect("connected");
        Self::made(
            config(&redis.url(), &names::unique("store"), partitions),
            raw,
            0,
            true,
        )
    }

    /// Another process on the same store, to which the route's keys leave in order.
    pub fn ordered_like(fixture: &Self) -> Self {
        Self::made(
            fixture.config.clone(),
            fixture.raw.clone(),
            fixture.dedupe_ms,
            true,
        )
    }

    fn made(config: Config, raw: MultiplexedConnection, dedupe_ms: i64, ordered: bool) -> Self {
        let (store, health, shutdown) = start(&config, dedupe_ms, ordered);
        Self {
            store,
            config,
            dedupe_ms,
            raw,
            ordered,
            p: P,
            end: Arc::new(End { health, shutdown }),
        }
    }

    /// The same store, speaking of another partition.
    pub fn at(&self, p: Partition) -> Self {
        let store = self.store.clone();
        let config = self.config.clone();
        let raw = self.raw.clone();
        let dedupe_ms = self.dedupe_ms;
        let ordered = self.ordered;
        Self {
            store,
            config,
            dedupe_ms,
            raw,
            ordered,
            p,
            end: self.end.clone(),
        }
    }

    /// Empties the partition, but for what it remembers of its callers.
    pub async fn wipe(&self) {
        let keys: Vec<String> = self.command(&["KEYS", &self.key("*")]).await;
        let keys: Vec<_> = keys.iter().filter(|key| !key.ends_with(":calls")).collect();
        if !keys.is_empty() {
            let mut unlink = redis::cmd("UNLINK");
            unlink
                .arg(keys)
                .query_async::<()>(&mut self.raw.clone())
                .await
                .expect("unlinked");
        }
    }

    /// Watches a key of the partition for writes, also for writes of its present content.
    pub async fn watch(&self, name: &str) {
        self.command::<()>(&["WATCH", &self.key(name)]).await;
    }

    /// Reports whether a watched key was written to.
    pub async fn has_been_written(&self) -> bool {
        self.command::<()>(&["MULTI"]).await;
        self.command::<redis::Value>(&["EXEC"]).await == redis::Value::Nil
    }

    /// Another process on the same store.
    pub fn another(&self) -> Self {
        self.another_with(self.dedupe_ms)
    }

    /// Another process on the same store, whose route remembers for another time.
    pub fn another_with(&self, dedupe_ms: i64) -> Self {
        let other = Self::made(
            self.config.clone(),
            self.raw.clone(),
            dedupe_ms,
            self.ordered,
        );
        Self { p: self.p, ..other }
    }

    pub fn key(&self, name: &str) -> String {
        format!("{}:{{{}}}:{name}", self.config.prefix, self.p)
    }

    /// Checks every invariant of the partition, and answers what is in it.
    pub async fn check(&self) -> Snapshot {
        check(&mut self.raw.clone(), &self.config.prefix, self.p).await
    }

    pub async fn command<T: redis::FromRedisValue>(&self, parts: &[&str]) -> T {
        let mut cmd = redis::cmd(parts[0]);
        cmd.arg(&parts[1..]);
        cmd.query_async(&mut self.raw.clone())
            .await
            .unwrap_or_else(|error| panic!("{parts:?}: {error}"))
    }

    pub async fn write(&self, ops: Vec<WriteOp>) -> Vec<Vec<WriteResult>> {
        self.store.write(self.p, ops).await.expect("written")
    }

    /// Stores one bundle; a result a message.
    pub async fn keep(&self, entries: Vec<Entry>) -> Vec<WriteResult> {
        self.write(vec![keep(entries)]).await.remove(0)
    }

    pub async fn cancel(&self, name: &str) -> WriteResult {
        self.write(vec![cancel(name)]).await[0][0]
    }

    /// The body of the message of a name.
    pub async fn body_of(&self, name: &str) -> Option<String> {
        let found = self.store.find_whole(&route(), name).await;
        found.expect("answered").map(|found| body(&found.entry))
    }

    pub async fn reschedule(&self, name: &str, due: UnixMs, body: &str) -> WriteResult {
        self.write(vec![reschedule(name, due, body)]).await[0][0]
    }

    /// The earliest shelves of every route.
    pub async fn heads(&self) -> Vec<Head> {
        self.look(UnixMs(i64::MAX / 4)).await.heads
    }

    /// Due heads, with every route taken for one that can be served.
    pub async fn look(&self, until: UnixMs) -> HeadsSeen {
        self.store
            .due_heads(&[self.p], until, until, &|_| true)
            .await
            .expect("looked")
    }

    /// Claims all that is due from every shelf. A claim of no length has expired when this returns.
    pub async fn claim(&self, lease_ms: u64) -> Vec<ClaimAnswer> {
        let claimed = self
            .store
            .claim(&self.request(lease_ms).await)
            .await
            .expect("claimed");
        if lease_ms == 0 {
            self.clock_moves().await;
        }
        claimed
    }

    /// Waits until the store's clock shows a later millisecond: it follows Redis's from below, and what expires in this
    /// one may not have expired by it.
    pub async fn clock_moves(&self) {
        let now = self.store.clock().now();
        while self.store.clock().now() <= now.plus(1) {
            tokio::task::yield_now().await;
        }
    }

    /// Claims what a look has shown, with a lease that no test outlives.
    pub async fn claim_of(&self, looked: &HeadsSeen) -> Vec<ClaimAnswer> {
        let shelves = looked
            .heads
            .iter()
            .map(|head| (head.due_set.clone(), 1000))
            .collect();
        self.store
            .claim(&ClaimRequest {
                due_sets: shelves,
                ..self.request(LONG).await
            })
            .await
            .expect("claimed")
    }

    pub async fn request(&self, lease_ms: u64) -> ClaimRequest {
        let shelves = self
            .heads()
            .await
            .into_iter()
            .map(|head| (head.due_set, 1000))
            .collect();
        ClaimRequest {
            partition: self.p,
            due_sets: shelves,
            lookahead_ms: 250,
            lease_ms,
            max_bundles: 100,
        }
    }

    pub async fn settle(&self, claimed: &ClaimAnswer) -> SettleAnswer {
        self.store
            .settle(self.p, &[settlement(claimed)])
            .await
            .expect("settled")
            .remove(0)
    }

    pub async fn give_back(&self, claim: &Claim, confirmed: Option<Vec<bool>>) -> SettleAnswer {
        self.store
            .give_back(self.p, &[progress(claim, confirmed)])
            .await
            .expect("answered")
            .remove(0)
    }

    pub async fn extend(
        &self,
        claim: &Claim,
        lease_ms: u64,
        confirmed: Option<Vec<bool>>,
    ) -> SettleAnswer {
        self.store
            .extend(self.p, lease_ms, &[progress(claim, confirmed)])
            .await
            .expect("answered")
            .remove(0)
    }

    pub async fn divide(&self, division: Division) -> SettleAnswer {
        self.store.divide(&division).await.expect("divided")
    }

    pub async fn counts(&self) -> Counts {
        self.store.counts([&route()]).await.expect("counts")[&route()]
    }
}

/// A message that fell due long ago.
pub fn past() -> UnixMs {
    UnixMs(1_700_000_000_000)
}

pub fn far() -> UnixMs {
    UnixMs(4_000_000_000_000)
}

/// A message whose body is its mark in the tests.
pub fn unnamed(due: UnixMs, body: &str) -> Entry {
    Entry {
        due,
        id: None,
        handouts: 0,
        failures: 0,
        flags: Flags::default(),
        position: Some(KafkaPosition {
            partition: 3,
            offset: 42,
        }),
        source_topic: None,
        asked: None,
        request: None,
        history: Vec::new(),
        message: Message {
            origin: Origin::Kafka,
            key: Some(Bytes::from_static(b"key")),
            body: Some(Bytes::copy_from_slice(body.as_bytes())),
            headers: Vec::new(),
            properties: None,
        },
    }
}

pub fn named(name: &str, due: UnixMs, body: &str) -> Entry {
    let flags = Flags::default().with(Flags::NAMED);
    Entry {
        id: Some(Text::from(name)),
        flags,
        ..unnamed(due, body)
    }
}

pub fn bundle(entries: Vec<Entry>) -> Bundle {
    Bundle {
        target: TargetRef::Own,
        entries: Arc::new(entries),
    }
}

pub fn keep(entries: Vec<Entry>) -> WriteOp {
    WriteOp::Store {
        route: route(),
        on_duplicate: OnDuplicate::Keep,
        bundle: bundle(entries),
    }
}

pub fn replace(entries: Vec<Entry>) -> WriteOp {
    WriteOp::Store {
        route: route(),
        on_duplicate: OnDuplicate::Replace,
        bundle: bundle(entries),
    }
}

pub fn cancel(name: &str) -> WriteOp {
    WriteOp::Cancel {
        route: route(),
        id: Text::from(name),
        of: None,
    }
}

pub fn reschedule(name: &str, due: UnixMs, body: &str) -> WriteOp {
    let fallback = Some(bundle(vec![named(name, due, body)]));
    WriteOp::Reschedule {
        route: route(),
        id: Text::from(name),
        due,
        fallback,
        of: None,
    }
}

/// A message that takes the place of the pending one of its name, or is stored.
pub fn replacement(name: &str, due: UnixMs, body: &str) -> WriteOp {
    WriteOp::Replace {
        route: route(),
        id: Text::from(name),
        bundle: bundle(vec![named(name, due, body)]),
        or_store: true,
        of: None,
    }
}

pub fn entries(claimed: &ClaimAnswer) -> &[Entry] {
    &claimed.bundle.as_ref().expect("readable").entries
}

pub fn body(entry: &Entry) -> String {
    String::from_utf8_lossy(entry.message.body.as_ref().expect("a body")).into_owned()
}

/// The bodies of a claimed bundle that are to be published.
pub fn live(claimed: &ClaimAnswer) -> Vec<String> {
    entries(claimed)
        .iter()
        .zip(&claimed.skip)
        .filter(|(_, skip)| !**skip)
        .map(|(e, _)| body(e))
        .collect()
}

pub fn names_in(claimed: &ClaimAnswer) -> Vec<(Text, u32)> {
    entries(claimed)
        .iter()
        .enumerate()
        .filter_map(|(i, e)| Some((e.id.clone()?, i as u32)))
        .collect()
}

pub fn settlement(claimed: &ClaimAnswer) -> Settlement {
    Settlement {
        claim: claimed.claim.clone(),
        names: names_in(claimed),
        delivered: delivered(claimed),
    }
}

/// The names of what was to be published of a claimed bundle, and now is.
pub fn delivered(claimed: &ClaimAnswer) -> Vec<Text> {
    let live = entries(claimed)
        .iter()
        .zip(&claimed.skip)
        .filter(|(_, skip)| !**skip);
    live.filter_map(|(entry, _)| entry.remembered_name())
        .collect()
}

/// Confirms of a claim so far, without a name to remember.
pub fn progress(claim: &Claim, confirmed: Option<Vec<bool>>) -> ClaimProgress {
    ClaimProgress {
        claim: claim.clone(),
        confirmed,
        delivered: Vec::new(),
    }
}

pub fn dead_letter(entry: Entry) -> DeadLetter {
    DeadLetter {
        route: route(),
        reason: DeadReason::Attempts,
        bundle: bundle(vec![entry]),
        raw: None,
    }
}
