//! Intake: from a batch of deliveries to stored bundles, direct publishes and resolved receipts.
//!
//! Each source (a Kafka partition under one assignment, or a queue's channel) hands over one batch after
//! another. A batch is judged, bundled, and takes its place in the order of each store partition before the
//! next batch is judged, so that operations on one name stay in order. The store's answers resolve the receipts
//! later.

mod commands;
mod delayed;
mod gate;
mod import;
mod invalid;
mod passing;
mod replay;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tracing::debug;

pub use self::import::ImportedMessage;

use super::admit::{Admission, admit, refuse_incomplete};
use super::bundling::{PlacedMessage, StoreWork};
use super::direct_publisher::DirectPublisher;
use super::jitter::SourceJitter;
use super::linger::{LINGER, LingerBuffer, Offer};
use super::loops::LoopWatch;
use super::pass_through::PassThroughPublisher;
use super::permits::AdmissionGate;
use super::publish_desk::DirectMessage;
use super::submitter::Submitter;
use super::unstored_names::UnstoredNames;
use super::{Delivery, Missing, Receipt};
use crate::backoff::Backoff;
use crate::domain::failure_policy::PublishFlow;
use crate::domain::{
    Arrival, Entry, FirstStart, Flags, KafkaPosition, Partition, ReadMark, Route, RouteName, Text,
    UnixMs,
};
use crate::egress::Lanes;
use crate::health::Health;
use crate::lifecycle::{Shutdown, Tasks};
use crate::publishing::Reporters;
use crate::store::Store;
use crate::telemetry::{BurstLog, RouteMetrics, Tracer};

/// Offsets that share a store partition. A batch then makes few bundles, and the load spreads over all
/// partitions.
const BLOCK_OFFSETS: i64 = 512;
/// Deadline of one attempt to read or raise a source's mark, or to find a name.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for a mark while a consumer waits for it.
const READ_MARK_TIMEOUT: Duration = Duration::from_millis(500);
/// A message that is due later than this is not urgent, ms.
const URGENT_MS: i64 = 100;

/// The receiver of all consumers' batches, for both technologies.
pub struct Intake {
    store: Store,
    lanes: Arc<dyn Lanes>,
    bursts: Arc<BurstLog>,
    tracer: Tracer,
    direct: DirectPublisher,
    reporters: Arc<Reporters>,
    gates: BTreeMap<RouteName, AdmissionGate>,
    linger_buffers: Mutex<BTreeMap<RouteName, Arc<LingerBuffer>>>,
    loops: Mutex<BTreeMap<RouteName, Arc<LoopWatch>>>,
    tasks: Tasks,
    shutdown: Shutdown,
}

/// One source of a route in order of delivery: a Kafka partition under one assignment, or a queue's channel.
/// Takes one batch after another.
pub struct Source {
    intake: Arc<Intake>,
    route: Arc<Route>,
    metrics: Arc<RouteMetrics>,
    name: String,
    /// The highest offset that others have read, before this source was opened or beside it.
    reread_until: Option<i64>,
    /// The highest offset that the store knows to be read.
    marked: Option<i64>,
    batches: u64,
    jitter: SourceJitter,
    linger_buffer: Arc<LingerBuffer>,
    loops: Arc<LoopWatch>,
    /// Messages of the current batch that are due on arrival may bypass the store.
    bypasses_store: bool,
    gate: AdmissionGate,
    /// The way into the store.
    submitter: Arc<Submitter>,
    pass_through: PassThroughPublisher,
    /// Nothing in the last batch was urgent.
    had_time: bool,
    /// What the store has not answered yet, where the route keeps the order of keys.
    names: Arc<UnstoredNames>,
    /// A message could not be taken, for shutting down has begun. Nothing behind it may go before it.
    has_ended: bool,
}

/// A message that was read, with what belongs to it whatever is decided about it.
struct ReadMessage {
    /// Its key, if its route keeps the order of keys.
    key: Option<Bytes>,
    entry: Entry,
    receipt: Receipt,
}

/// A batch after judging. Each part is in order of delivery.
struct JudgedBatch {
    /// Work for the store.
    work: StoreWork,
    /// Delayed messages that are due far ahead, and may linger.
    far_ahead: Vec<PlacedMessage>,
    /// Messages for which the source does not wait: they are due on arrival.
    direct: Vec<DirectMessage>,
    passing: Vec<DirectMessage>,
    /// Due time of the first message. Commands and passing messages count as due now.
    soonest: UnixMs,
}

impl JudgedBatch {
    fn new(route: &Arc<Route>, now: UnixMs) -> Self {
        let work = StoreWork::new(route.clone(), now);
        Self {
            work,
            far_ahead: Vec::new(),
            direct: Vec::new(),
            passing: Vec::new(),
            soonest: UnixMs(i64::MAX),
        }
    }
}

/// Everything that the intake is built from.
pub struct IntakeDependencies<'a> {
    /// Keeps the messages.
    pub store: Store,
    /// The lanes for messages that bypass the store.
    pub lanes: Arc<dyn Lanes>,
    /// Records the admission and delivery of messages.
    pub tracer: Tracer,
    /// Logs invalid messages.
    pub bursts: Arc<BurstLog>,
    /// Told what has no answer.
    pub health: &'a Health,
    /// Tell what happens to the publishes of each route.
    pub reporters: Arc<Reporters>,
    /// The gate of each route's ingress.
    pub gates: BTreeMap<RouteName, AdmissionGate>,
    /// Runs the intake's tasks.
    pub tasks: &'a Tasks,
    /// Ends the sources.
    pub shutdown: &'a Shutdown,
    /// The stage that begins once all sources have ended.
    pub publishing_shutdown: &'a Shutdown,
}

impl Intake {
    /// Starts the intake. The consumers open sources from it.
    pub fn start(dependencies: IntakeDependencies<'_>) -> Arc<Self> {
        let IntakeDependencies {
            store,
            lanes,
            tracer,
            bursts,
            health,
            reporters,
            gates,
            tasks,
            shutdown,
            publishing_shutdown,
        } = dependencies;
        let direct =
            DirectPublisher::start(&store, lanes.clone(), health, tasks, publishing_shutdown);
        let tasks = tasks.clone();
        let shutdown = shutdown.clone();
        let linger_buffers = Mutex::default();
        Arc::new(Self {
            store,
            lanes,
            bursts,
            tracer,
            direct,
            reporters,
            gates,
            linger_buffers,
            loops: Mutex::default(),
            tasks,
            shutdown,
        })
    }

    /// Opens a source. `name` identifies it for good: `kafka/<connection>/<group>/<topic>/<partition>`, or
    /// `rabbitmq/<connection>/<queue>`. Waits for the store, to read how far the source was ever read. `None`
    /// if shutting down begins while the store is away, or if this process does not serve the route.
    pub async fn open(self: &Arc<Self>, route: &Arc<Route>, name: String) -> Option<Source> {
        let reporter = self.reporters.of(&route.name)?.clone();
        let reread_until = self
            .until_done("read a source's mark", || self.store.read_mark(&name))
            .await?
            .map(|mark| mark.until - 1);
        let metrics = reporter.metrics().clone();
        let submitter = Arc::new(Submitter {
            store: self.store.clone(),
            reporter,
            tasks: self.tasks.clone(),
            shutdown: self.shutdown.clone(),
        });
        Some(Source {
            intake: self.clone(),
            jitter: SourceJitter::new(route, &name),
            linger_buffer: self.linger_buffer(route),
            loops: self
                .loops
                .lock()
                .entry(route.name.clone())
                .or_default()
                .clone(),
            route: route.clone(),
            name,
            reread_until,
            marked: reread_until,
            batches: 0,
            bypasses_store: false,
            had_time: false,
            names: Arc::default(),
            has_ended: false,
            gate: self
                .gates
                .get(&route.name)
                .cloned()
                .unwrap_or_else(AdmissionGate::unbounded),
            pass_through: PassThroughPublisher::new(submitter.clone(), self.lanes.clone()),
            submitter,
            metrics,
        })
    }

    /// How far a source was ever read, as the store remembers it. `None`: it was never read. `Err` gives the reason if the
    /// store does not tell.
    pub async fn read_mark(&self, source: &str) -> Result<Option<ReadMark>, String> {
        match tokio::time::timeout(READ_MARK_TIMEOUT, self.store.read_mark(source)).await {
            Ok(mark) => mark.map_err(|error| error.to_string()),
            Err(_) => Err("no answer in time".to_owned()),
        }
    }

    /// The topics of a source as they were when it was first read: as they are seen now, unless that was noted before, by
    /// whichever replica. `Err` gives the reason if the store does not tell.
    pub async fn first_start(&self, source: &str, seen: FirstStart) -> Result<FirstStart, String> {
        match tokio::time::timeout(READ_MARK_TIMEOUT, self.store.first_start(source, seen)).await {
            Ok(first) => first.map_err(|error| error.to_string()),
            Err(_) => Err("no answer in time".to_owned()),
        }
    }

    /// The linger buffer that all sources of a route share.
    fn linger_buffer(&self, route: &Arc<Route>) -> Arc<LingerBuffer> {
        let mut linger_buffers = self.linger_buffers.lock();
        let new = || Arc::new(LingerBuffer::new(route.clone(), self.store.partitions()));
        linger_buffers
            .entry(route.name.clone())
            .or_insert_with(new)
            .clone()
    }

    /// Retries `call` until it succeeds. `None` if shutting down is forced, or has begun and an attempt has
    /// failed.
    async fn until_done<T, F>(&self, what: &str, call: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, crate::store::StoreError>>,
    {
        let mut failures = 0;
        loop {
            let tried = tokio::select! {
                () = self.shutdown.forced() => return None,
                tried = tokio::time::timeout(CALL_TIMEOUT, call()) => tried,
            };
            match tried {
                Ok(Ok(done)) => return Some(done),
                Ok(Err(why)) => debug!(error = %why, "cannot {what}; retrying"),
                Err(_) => debug!("no answer in time: cannot {what}; retrying"),
            }
            if self.shutdown.is_draining() {
                return None;
            }
            failures += 1;
            tokio::select! {
                () = self.shutdown.draining() => {}
                () = tokio::time::sleep(Backoff::CLIENT.wait(failures)) => {}
            }
        }
    }
}

impl Source {
    /// Takes as many messages of a batch in order of delivery as the gate grants permits for, and returns the
    /// rest: all of them while the gate is closed. Returns once the rest may come: every message that was taken
    /// has its place in the store's order, and passing messages are confirmed. Receipts are resolved then or
    /// later. If shutting down has begun and the store cannot be reached, they are dropped, and those of all later
    /// messages. Not cancel-safe: a caller that gives up drops the source, and its ledger with it.
    pub async fn take(&mut self, mut batch: Vec<Delivery>) -> Vec<Delivery> {
        if self.has_ended {
            return Vec::new();
        }
        let Some(mut permits) = self.gate.try_admit(batch.len()) else {
            return batch;
        };
        let rest = batch.split_off(permits.messages());
        for delivery in &mut batch {
            if let Some(permit) = permits.take(delivery.message.size()) {
                delivery.receipt.attach(permit);
            }
        }
        self.take_admitted(batch).await;
        if self.has_ended { Vec::new() } else { rest }
    }

    /// Takes messages that have their permits.
    async fn take_admitted(&mut self, mut batch: Vec<Delivery>) {
        self.metrics.admitted.inc_by(batch.len() as u64);
        if !self.mark(&mut batch).await {
            self.has_ended = true;
            return;
        }
        self.batches += 1;
        self.bypasses_store = self.may_bypass_store();
        let arrival = self.intake.store.clock().arrival();
        let now = arrival.latest;
        let mut judged = JudgedBatch::new(&self.route, now);
        for delivery in batch {
            self.admit(delivery, arrival, &mut judged).await;
            if self.has_ended {
                break;
            }
        }
        let JudgedBatch {
            mut work,
            far_ahead,
            direct,
            mut passing,
            soonest,
        } = judged;
        self.had_time = soonest >= now.plus(URGENT_MS);
        self.store_worn(&mut passing, &mut work);
        self.intake.direct.publish(&self.submitter, direct);
        match self
            .linger_buffer
            .offer(far_ahead, now, self.intake.store.clock().local().mono_us())
        {
            Offer::Bypass(far_ahead) => {
                for message in far_ahead {
                    work.store(message);
                }
            }
            Offer::StartTimer(generation) => self.flush_later(generation),
            Offer::Flush(full) => self.flush(full).await,
            Offer::Buffered => {}
        }
        self.submitter.submit_all(work).await;
        self.pass_through
            .publish(passing, &self.intake.shutdown)
            .await;
    }

    /// Stores passing messages that must not wait in their queue: each return to it may be their last. While the store
    /// takes nothing in they wait for their target like the others.
    fn store_worn(&self, passing: &mut Vec<DirectMessage>, work: &mut StoreWork) {
        if self.intake.store.accepts_writes() {
            for worn in passing.extract_if(.., |message| message.receipt.is_worn()) {
                worn.leave_queue(&self.submitter, work);
            }
        }
    }

    /// Gives up the messages that a call of [`Self::take`] has left behind which was dropped: nobody else will end their
    /// records.
    pub fn give_up(&mut self) {
        self.pass_through.give_up();
    }

    /// Reports whether nothing in the last batch was urgent: the next batch may be gathered for some
    /// milliseconds.
    pub fn had_time(&self) -> bool {
        self.had_time
    }

    /// Reports whether nothing holds the route's messages back. A rate limit, key order and a pause hold them
    /// in the store.
    fn may_bypass_store(&self) -> bool {
        let pauses = self.intake.store.pauses();
        let policy = &self.route.policy;
        policy.rate.is_none() && !policy.ordered && pauses.may_publish(self.route.name.as_str())
    }

    /// Flags records that were read before, and raises the source's mark in the store before anything of the
    /// batch is stored: after a crash the records that are read again are recognised by the mark. A mark that
    /// has risen since this source wrote it was raised by another consumer of the partition, during a session
    /// that one of the two took for dead: the other one has read all records up to the mark too.
    async fn mark(&mut self, batch: &mut [Delivery]) -> bool {
        let offset = |delivery: &Delivery| delivery.position.map(|position| position.offset);
        let highest = batch.iter().filter_map(offset).max();
        if let Some(highest) = highest.filter(|&h| self.marked.is_none_or(|marked| h > marked)) {
            let store = &self.intake.store;
            let resolved_time = batch
                .iter()
                .filter_map(|delivery| delivery.resolved_time)
                .min();
            let marked = self
                .intake
                .until_done("note how far a source is read", || {
                    store.raise_offset(&self.name, highest, resolved_time)
                })
                .await;
            let Some(before) = marked else { return false };
            if before > self.marked {
                self.reread_until = before;
            }
            self.marked = before.max(Some(highest));
        }
        for delivery in batch {
            if offset(delivery)
                .is_some_and(|offset| self.reread_until.is_some_and(|until| offset <= until))
            {
                delivery.flags = delivery.flags.with(Flags::SOURCE_REREAD);
            }
        }
        true
    }

    /// Judges a delivery, and adds what is to be done about it to the batch.
    async fn admit(&mut self, delivery: Delivery, arrival: Arrival, judged: &mut JudgedBatch) {
        let Delivery {
            message,
            missing,
            produced,
            mut flags,
            position,
            resolved_time: _,
            receipt,
        } = delivery;
        let incomplete = missing.is_some();
        if let Some(Missing::Body { .. } | Missing::Everything(_)) = missing {
            flags = flags.with(Flags::LEFT_OUT);
        }
        let key = self.route.order_key(&message);
        let (admission, message) = match missing {
            Some(missing) => (refuse_incomplete(missing, &self.route), message),
            None => admit(message, None, produced, &self.route, arrival),
        };
        let now = arrival.latest;
        let entry = Entry {
            flags,
            position,
            source_topic: self.route.source_topic.clone(),
            ..Entry::new(now, message)
        };
        let mut read = ReadMessage {
            key,
            entry,
            receipt,
        };
        match admission {
            Admission::PassThrough { target } => {
                judged.soonest = now;
                let message = self.direct(read, target, PublishFlow::Passing { waits: 0 });
                self.pass_on(message, judged);
            }
            Admission::Delayed { asked, id, target } => {
                read.entry.id = id;
                self.schedule(&mut read, asked);
                judged.soonest = read.entry.due.min(judged.soonest);
                self.delay(read, target, now, judged);
            }
            Admission::Spent {
                id,
                request,
                target,
            } => {
                judged.soonest = now;
                read.entry.id = id;
                read.entry.request = Some(request);
                self.stop_retrying(self.place(read, &target), judged);
            }
            Admission::Cancel { id } => {
                judged.soonest = now;
                let op = self.cancel_op(id.clone(), None);
                self.command(&id, op, read.key.as_ref(), position, read.receipt, judged)
                    .await;
            }
            Admission::Change {
                replaces,
                id,
                asked,
                target,
            } => {
                judged.soonest = now;
                read.entry.id = Some(id.clone());
                self.schedule(&mut read, asked);
                let op = self.change_op(replaces, id.clone(), &target, read.entry);
                self.command(&id, op, read.key.as_ref(), position, read.receipt, judged)
                    .await;
            }
            Admission::Invalid { reason, error } => {
                self.invalid(reason, &error, incomplete, read, judged);
            }
        }
    }

    /// The partition that stores a message. A key on an ordered route decides, else the name, else the block of
    /// offsets (RabbitMQ: the batch).
    fn partition_of(
        &self,
        key: Option<&Bytes>,
        id: Option<&Text>,
        position: Option<KafkaPosition>,
    ) -> Partition {
        let partitions = self.intake.store.partitions();
        match (key, id, position) {
            (key, Some(id), _) => partitions.of_named(&self.route.name, key, id.as_str()),
            (Some(key), ..) => partitions.of_key(&self.route.name, key),
            (_, None, Some(position)) => {
                partitions.of_block(&self.name, (position.offset / BLOCK_OFFSETS) as u64)
            }
            (_, None, None) => partitions.of_block(&self.name, self.batches),
        }
    }

    /// Stores a buffer that is full. It holds messages of other sources too: they go on if this one ends meanwhile.
    async fn flush(&self, full: StoreWork) {
        let (stored, is_stored) = oneshot::channel::<()>();
        let submitter = self.submitter.clone();
        self.intake.tasks.spawn("ingress:linger", async move {
            submitter.submit_all(full).await;
            drop(stored);
        });
        // It never says anything: it is dropped in the end.
        drop(is_stored.await);
    }

    /// Flushes a generation of the linger buffer after [`LINGER`].
    fn flush_later(&self, generation: u64) {
        let buffer = self.linger_buffer.clone();
        let submitter = self.submitter.clone();
        self.intake.tasks.spawn("ingress:linger", async move {
            tokio::time::sleep(LINGER).await;
            if let Some(work) = buffer.flush(generation) {
                submitter.submit_all(work).await;
            }
        });
    }
}
