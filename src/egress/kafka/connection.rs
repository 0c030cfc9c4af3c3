//! What the lanes of one connection share: the producers of the moment, which lanes wait for the feeder, and
//! questions about topics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::lane::{KafkaLane, TopicLane};
use super::producer::Producer;
use crate::broker::kafka::OutageSuspicion;
use crate::domain::Clock;

/// A connection has two producers, for one cannot be both punctual and thrifty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// It sends what it gets at once.
    Prompt,
    /// It gives its batches a moment to fill: for lanes that have much to send.
    Bulk,
}

impl Pace {
    pub(super) const BOTH: [Self; 2] = [Self::Prompt, Self::Bulk];

    pub(super) fn linger(self) -> Duration {
        match self {
            Self::Prompt => Duration::ZERO,
            Self::Bulk => Duration::from_millis(5),
        }
    }
}

pub(super) struct Link {
    pub(super) name: String,
    pub(super) clock: Clock,
    pub(super) suspicion: OutageSuspicion,
    /// Questions have come.
    pub(super) asked: Notify,
    /// A producer's thread has ended, and the other is about to.
    pub(super) ended: CancellationToken,
    /// Some broker answered last. While none does, nothing is handed to a producer: it could only time out there.
    reached: AtomicBool,
    producers: [RwLock<Option<Arc<Producer>>>; 2],
    lanes: Mutex<BTreeMap<String, Arc<TopicLane>>>,
    questions: Mutex<Vec<Arc<TopicLane>>>,
    /// Lanes that the feeder is to look after.
    waiting: Mutex<Vec<Arc<TopicLane>>>,
    bell: Mutex<bool>,
    rung: Condvar,
    trouble: Mutex<Option<String>>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(name: String, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            name,
            clock,
            suspicion: OutageSuspicion::default(),
            asked: Notify::new(),
            ended: CancellationToken::new(),
            reached: AtomicBool::new(false),
            producers: Default::default(),
            lanes: Mutex::default(),
            questions: Mutex::default(),
            waiting: Mutex::default(),
            bell: Mutex::default(),
            rung: Condvar::new(),
            trouble: Mutex::default(),
        })
    }

    /// The lane to a topic, the same for all who ask.
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

    /// The producer of the moment; `None` between two.
    pub(super) fn producer(&self, pace: Pace) -> Option<Arc<Producer>> {
        self.producers[pace as usize].read().clone()
    }

    /// Puts another in its place, or none; the old one is the caller's.
    pub(super) fn replace(&self, pace: Pace, new: Option<Arc<Producer>>) -> Option<Arc<Producer>> {
        std::mem::replace(&mut *self.producers[pace as usize].write(), new)
    }

    /// Asks whether a lane's topic is there; the lane hears of it later.
    pub(super) fn ask(&self, lane: Arc<TopicLane>) {
        self.questions.lock().push(lane);
        self.asked.notify_one();
    }

    pub(super) fn questions(&self) -> Vec<Arc<TopicLane>> {
        std::mem::take(&mut *self.questions.lock())
    }

    /// Notes a lane that found no room in the producer: it is looked after with the next delivery reports.
    pub(super) fn starved(&self, lane: Arc<TopicLane>) {
        let mut waiting = self.waiting.lock();
        if !waiting.iter().any(|known| Arc::ptr_eq(known, &lane)) {
            waiting.push(lane);
        }
    }

    /// Has the feeder look after a lane.
    pub(super) fn feed(&self, lane: Arc<TopicLane>) {
        self.starved(lane);
        self.ring();
    }

    pub(super) fn waiting(&self) -> Vec<Arc<TopicLane>> {
        std::mem::take(&mut *self.waiting.lock())
    }

    /// Wakes the feeder.
    pub(super) fn ring(&self) {
        *self.bell.lock() = true;
        self.rung.notify_one();
    }

    /// Wakes the feeder if a lane waits for it.
    pub(super) fn remind(&self) {
        if !self.waiting.lock().is_empty() {
            self.ring();
        }
    }

    /// Waits until somebody rings. `false`: a producer's thread has ended.
    pub(super) fn until_rung(&self) -> bool {
        let mut bell = self.bell.lock();
        self.rung.wait_while(&mut bell, |rung| !*rung && !self.ended.is_cancelled());
        *bell = false;
        !self.ended.is_cancelled()
    }

    /// A producer's thread ends.
    pub(super) fn end(&self) {
        self.ended.cancel();
        self.ring();
    }

    pub(super) fn is_reached(&self) -> bool {
        self.reached.load(Ordering::Acquire)
    }

    /// Notes whether the brokers answer. Once they do again, all lanes go on.
    pub(super) fn set_reached(&self, reached: bool) {
        if !self.reached.swap(reached, Ordering::AcqRel) && reached {
            for lane in self.lanes() {
                lane.go_on_reached();
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
