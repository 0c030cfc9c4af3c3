//! Egress: message -> broker, verdict back.
//!
//! A *lane* is the way to one target: a Kafka topic, or a RabbitMQ exchange. Whoever has a message to
//! publish (a timer shard, or ingress for what needs no waiting) submits a [`Publication`] to the
//! target's lane and later finds exactly one [`Verdict`] for it in the inbox it named. A lane that is
//! missing, slow or refusing delays nobody else: each has its own queue, window and gate.
//!
//! Guarantees: `submit` never blocks; every publication gets exactly one verdict, within
//! [`CONFIRM_DEADLINE`] of leaving the lane's queue; `Confirmed` means that the broker said it is
//! stored *and* routed; publications of one lane from one submitter leave in the order submitted.

mod bridge_headers;
pub mod kafka;
mod lanes;
pub mod rabbitmq;
mod verdicts;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

pub use lanes::AllLanes;
pub use verdicts::Verdicts;

use crate::domain::{Entry, Target, Text, UnixMs, Verdict};
use crate::mutants::{self, Mutant};

/// Longest wait for a broker's word; then the verdict is `Unknown`. Time in which RabbitMQ says that it
/// blocks the connection (an alarm of its memory or disk) does not count.
pub const CONFIRM_DEADLINE: Duration = Duration::from_secs(30);

/// Messages that one submitter hands over to one target: what they have in common.
#[derive(Debug)]
pub struct Batch {
    /// The messages, shared: they are published from here.
    pub entries: Arc<Vec<Entry>>,
    /// The `x-delay-id` of each; empty where they pass through, byte for byte.
    pub ids: Vec<Text>,
    /// Claims on them that expired: publishes that may have been, and that the messages do not know of.
    pub expiries: u32,
    /// Where to; the lane's own target, but the routing key may be another.
    pub target: Arc<Target>,
    /// The submitter's number for the first of them; the others' follow. Given back with the verdict.
    pub first_ticket: u64,
    /// Where the verdicts go.
    pub verdicts: Arc<Verdicts>,
    /// Monotonic microseconds (`Clock::mono_us`) after which none must be handed to the broker: their
    /// claim may be somebody else's by then. It grows when the claim is extended.
    pub not_after_us: AtomicI64,
}

/// One hand-over of one message to one lane.
#[derive(Clone, Debug)]
pub struct Publication {
    /// What it stands among.
    pub batch: Arc<Batch>,
    /// Which of them.
    pub index: u32,
}

impl Publication {
    /// One message on its own, byte for byte.
    pub fn alone(
        entry: Entry,
        target: Arc<Target>,
        ticket: u64,
        verdicts: &Arc<Verdicts>,
        not_after_us: i64,
    ) -> Self {
        let batch = Batch {
            entries: Arc::new(vec![entry]),
            ids: Vec::new(),
            expiries: 0,
            target,
            first_ticket: ticket,
            verdicts: verdicts.clone(),
            not_after_us: not_after_us.into(),
        };
        Self { batch: Arc::new(batch), index: 0 }
    }

    /// The message with what is known of it.
    pub fn entry(&self) -> &Entry {
        &self.batch.entries[self.index as usize]
    }

    /// What is set on it; `None` where it passes through.
    pub fn stamp(&self) -> Option<Stamp<'_>> {
        let (id, entry) = (self.batch.ids.get(self.index as usize)?, self.entry());
        Some(Stamp { id, due: entry.asked_due(), attempt: entry.handouts + self.batch.expiries + 1 })
    }

    /// Whether it must not be handed over any more; `NotTried` is its verdict then.
    pub fn is_late(&self, now_us: i64) -> bool {
        now_us >= self.batch.not_after_us.load(Ordering::Acquire) && !mutants::is(Mutant::NoFencing)
    }

    /// The submitter's number for it.
    pub fn ticket(&self) -> u64 {
        self.batch.first_ticket + u64::from(self.index)
    }

    /// Gives its one verdict.
    pub fn answer(&self, verdict: Verdict) {
        self.batch.verdicts.push(self.ticket(), verdict);
    }
}

/// What Postdate sets on a delayed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp<'a> {
    /// `x-delay-id`
    pub id: &'a Text,
    /// `x-delay-due`
    pub due: UnixMs,
    /// `x-delay-attempt`, set from 2 on.
    pub attempt: u32,
}

/// The way to one target.
pub trait Lane: Send + Sync {
    /// Takes a message; its verdict comes later, surely, once. Never blocks.
    fn submit(&self, publication: Publication) {
        self.submit_all(vec![publication]);
    }

    /// Takes several, in order.
    fn submit_all(&self, publications: Vec<Publication>);

    /// Messages taken and not yet answered.
    fn backlog(&self) -> usize;

    /// What is wrong with it, in a sentence; `None` while all is well.
    fn trouble(&self) -> Option<String>;
}

/// All lanes of the process, made on demand, by target.
pub trait Lanes: Send + Sync {
    /// The lane to a target.
    fn lane(&self, target: &Target) -> Arc<dyn Lane>;
}
