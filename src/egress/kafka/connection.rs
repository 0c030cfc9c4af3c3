//! State that the lanes of one connection share: the current producers, the lanes that wait for the feeder, and
//! questions about topics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::lane::{KafkaLane, TopicLane};
use super::producer::KafkaProducer;
use crate::broker::kafka::OutageSuspicion;
use crate::domain::Clock;
use crate::telemetry::KafkaClients;

/// The two producers of a connection: one producer cannot be both punctual and thrifty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProducerKind {
    /// Sends at once what it gets.
    Prompt,
    /// Gives its batches a moment to fill. For lanes with many messages to send.
    Bulk,
}

impl ProducerKind {
    pub(super) const ALL: [Self; 2] = [Self::Prompt, Self::Bulk];

    /// Name of the client in metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Prompt => "producer",
            Self::Bulk => "bulk_producer",
        }
    }

    pub(super) fn linger(self) -> Duration {
        match self {
            Self::Prompt => Duration::ZERO,
            Self::Bulk => Duration::from_millis(5),
        }
    }
}

pub(super) struct ProducerConnection {
    pub(super) name: String,
    pub(super) clock: Clock,
    pub(super) suspicion: OutageSuspicion,
    /// Shows what the producers report on themselves.
    pub(super) reports: KafkaClients,
    /// Notified when a lane has a question about its topic.
    pub(super) asked: Notify,
    /// Cancelled when the thread of one producer has ended. The other ends too.
    pub(super) ended: CancellationToken,
    /// True while some broker answers. While none does, no message is given to a producer: it would only time out
    /// there.
    reached: AtomicBool,
    /// The last moment at which no broker answered, monotonic microseconds.
    away_us: AtomicI64,
    producers: [RwLock<Option<Arc<KafkaProducer>>>; 2],
    lanes: Mutex<BTreeMap<String, Arc<TopicLane>>>,
    questions: Mutex<Vec<Arc<TopicLane>>>,
    /// Lanes that the feeder serves next.
    waiting: Mutex<Vec<Arc<TopicLane>>>,
    is_woken: Mutex<bool>,
    woken: Condvar,
    trouble: Mutex<Option<String>>,
}

impl std::fmt::Debug for ProducerConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProducerConnection")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl ProducerConnection {
    pub(super) fn new(name: String, clock: Clock, reports: KafkaClients) -> Arc<Self> {
        Arc::new(Self {
            name,
            clock,
            suspicion: OutageSuspicion::default(),
            reports,
            asked: Notify::new(),
            ended: CancellationToken::new(),
            reached: AtomicBool::new(false),
            away_us: AtomicI64::new(i64::MIN),
            producers: Default::default(),
            lanes: Mutex::default(),
            questions: Mutex::default(),
            waiting: Mutex::default(),
            is_woken: Mutex::default(),
            woken: Condvar::new(),
            trouble: Mutex::default(),
        })
    }

    /// The lane to a topic, made at the first call.
    pub(super) fn lane(self: &Arc<Self>, topic: &str) -> KafkaLane {
        let mut lanes = self.lanes.lock();
        let lane = lanes
            .entry(topic.to_owned())
            .or_insert_with(|| Arc::new(TopicLane::new(topic.to_owned(), self.clone())))
            .clone();
        drop(lanes);
        if self.ended.is_cancelled() {
            lane.end();
        }
        KafkaLane(lane)
    }

    pub(super) fn lanes(&self) -> Vec<Arc<TopicLane>> {
        self.lanes.lock().values().cloned().collect()
    }

    /// The current producer of this kind; `None` while it is being replaced.
    pub(super) fn producer(&self, producer_kind: ProducerKind) -> Option<Arc<KafkaProducer>> {
        self.producers[producer_kind as usize].read().clone()
    }

    /// Replaces the producer of this kind, or takes it away. Returns the old one.
    pub(super) fn replace(
        &self,
        producer_kind: ProducerKind,
        new: Option<Arc<KafkaProducer>>,
    ) -> Option<Arc<KafkaProducer>> {
        std::mem::replace(&mut *self.producers[producer_kind as usize].write(), new)
    }

    /// Asks whether the topic of a lane is there. The lane gets the answer later.
    pub(super) fn ask(&self, lane: Arc<TopicLane>) {
        self.questions.lock().push(lane);
        self.asked.notify_one();
    }

    pub(super) fn questions(&self) -> Vec<Arc<TopicLane>> {
        std::mem::take(&mut *self.questions.lock())
    }

    /// Notes a lane that found its producer full. The feeder serves it with the next delivery reports.
    pub(super) fn wait_for_feeder(&self, lane: Arc<TopicLane>) {
        let mut waiting = self.waiting.lock();
        if !waiting.iter().any(|known| Arc::ptr_eq(known, &lane)) {
            waiting.push(lane);
        }
    }

    /// Asks the feeder to serve a lane now.
    pub(super) fn feed(&self, lane: Arc<TopicLane>) {
        self.wait_for_feeder(lane);
        self.wake_feeder();
    }

    pub(super) fn waiting(&self) -> Vec<Arc<TopicLane>> {
        std::mem::take(&mut *self.waiting.lock())
    }

    /// Wakes the feeder.
    pub(super) fn wake_feeder(&self) {
        *self.is_woken.lock() = true;
        self.woken.notify_one();
    }

    /// Wakes the feeder if a lane waits for it.
    pub(super) fn wake_feeder_if_needed(&self) {
        if !self.waiting.lock().is_empty() {
            self.wake_feeder();
        }
    }

    /// Waits until the feeder is woken. Returns false once the thread of a producer has ended.
    pub(super) fn wait_until_woken(&self) -> bool {
        let mut is_woken = self.is_woken.lock();
        self.woken
            .wait_while(&mut is_woken, |woken| !*woken && !self.ended.is_cancelled());
        *is_woken = false;
        !self.ended.is_cancelled()
    }

    /// Ends the connection: the thread of a producer ends.
    pub(super) fn end(&self) {
        self.ended.cancel();
        self.wake_feeder();
    }

    pub(super) fn is_reached(&self) -> bool {
        self.reached.load(Ordering::Acquire)
    }

    /// Reports whether no broker answered at some moment since this one: no partition could be written then.
    pub(super) fn was_away_since(&self, since_us: i64) -> bool {
        self.away_us.load(Ordering::Acquire) >= since_us
    }

    /// Notes that no broker answers.
    pub(super) fn set_away(&self) {
        self.away_us.store(self.clock.mono_us(), Ordering::Release);
        self.set_reached(false);
    }

    /// Notes whether the brokers answer. Once they do again, all lanes send what waited.
    pub(super) fn set_reached(&self, reached: bool) {
        if !self.reached.swap(reached, Ordering::AcqRel) && reached {
            for lane in self.lanes() {
                lane.pump_when_reached();
            }
        }
    }

    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock() = trouble;
    }

    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }
}
