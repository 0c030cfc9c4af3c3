//! Egress: publishes messages to brokers and returns a verdict for each.
//!
//! A *lane* is the way to one target: a Kafka topic, or a RabbitMQ exchange. A submitter is a timer shard, or ingress
//! with messages that need not wait in the store. It submits a [`Publication`] to the lane of its target, and later
//! finds exactly one [`Verdict`] for it in the [`VerdictInbox`] that the publication names. A target that is missing,
//! slow or refusing delays no other: each lane has its own queue, window and gate.
//!
//! Guarantees: `submit` never blocks. Every publication gets exactly one verdict. The broker's answer is awaited for
//! [`CONFIRM_DEADLINE`]; Kafka's client itself may need a little longer. `Confirmed` means that the broker has the message stored *and* routed. Messages that
//! pass through one lane from one submitter leave in the order submitted; on Kafka, those of one partition do.

mod bridge_headers;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod kafka;
mod lanes;
pub mod rabbitmq;
mod verdict_inbox;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

pub use lanes::AllLanes;
pub use verdict_inbox::VerdictInbox;

use crate::domain::{Entry, StoreClock, Target, Text, UnixMs, Verdict};
use crate::mutants::{self, Mutant};
use crate::telemetry::DeliverySpan;

/// Longest wait for the answer of a broker; after it the verdict is `Unknown`. Time in which RabbitMQ blocks the
/// connection (an alarm of its memory or disk) does not count.
pub const CONFIRM_DEADLINE: Duration = Duration::from_secs(30);

/// Messages that one submitter publishes to one target.
#[derive(Debug)]
pub struct PublishBatch {
    /// The messages, shared with the submitter.
    pub entries: Arc<Vec<Entry>>,
    /// The `x-delay-id` of each message. Empty for messages that pass through: they are published byte for byte.
    pub ids: Vec<Text>,
    /// Number of earlier claims on the messages that expired. Each may have published them without a record of it.
    pub expiries: u32,
    /// Spans of the messages whose traces are recorded, by index.
    pub spans: Vec<DeliverySpan>,
    /// The target of the lane, perhaps with another routing key.
    pub target: Arc<Target>,
    /// The clocks by which messages expire. `None`: these do not.
    pub clock: Option<Arc<StoreClock>>,
    /// RabbitMQ also sends the messages to the routing keys in their headers `CC` and `BCC`.
    pub copies: bool,
    /// The submitter's number of the batch. Tickets carry it.
    pub number: u64,
    /// Inbox for the verdicts.
    pub verdicts: Arc<VerdictInbox>,
    /// Told of each message that leaves its lane. `None`: nobody counts them.
    pub listener: Option<Arc<dyn SendListener>>,
    /// Monotonic microseconds (`Clock::mono_us`) from which on no message may be sent to the broker: another replica
    /// may have the claim by then. It grows when the claim is extended.
    pub not_after_us: AtomicI64,
}

/// Names a message to its submitter. A verdict carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    /// The submitter's number of the batch.
    pub batch: u64,
    /// Index of the message in the batch.
    pub index: u32,
}

/// One message submitted to one lane.
#[derive(Clone, Debug)]
pub struct Publication {
    /// The batch that has the message.
    pub batch: Arc<PublishBatch>,
    /// Index of the message in the batch.
    pub index: u32,
}

impl Publication {
    /// A batch of one message that passes through, byte for byte.
    pub fn alone(
        entry: Entry,
        target: Arc<Target>,
        number: u64,
        verdicts: &Arc<VerdictInbox>,
        not_after_us: i64,
    ) -> Self {
        let batch = PublishBatch {
            entries: Arc::new(vec![entry]),
            ids: Vec::new(),
            expiries: 0,
            spans: Vec::new(),
            target,
            clock: None,
            copies: false,
            number,
            verdicts: verdicts.clone(),
            listener: None,
            not_after_us: not_after_us.into(),
        };
        Self {
            batch: Arc::new(batch),
            index: 0,
        }
    }

    /// The message with its due time and attempts.
    pub fn entry(&self) -> &Entry {
        &self.batch.entries[self.index as usize]
    }

    /// The headers that Postdate adds; `None` for a message that passes through.
    pub fn delay_headers(&self) -> Option<DelayHeaders<'_>> {
        let id = self.batch.ids.get(self.index as usize)?;
        let entry = self.entry();
        let traceparent =
            DeliverySpan::of(&self.batch.spans, self.index).map(DeliverySpan::traceparent);
        let attempt = entry.handouts + self.batch.expiries + 1;
        Some(DelayHeaders {
            id,
            due: entry.asked_due(),
            attempt,
            given_back: entry.given_back(),
            traceparent,
        })
    }

    /// The verdict on the message if it is too late to send it to its broker: its submitter may have lost it, or nobody
    /// wants it any more.
    pub fn too_late(&self, now_us: i64) -> Option<Verdict> {
        let is_lost = now_us >= self.batch.not_after_us.load(Ordering::Acquire);
        if is_lost && !mutants::is(Mutant::NoFencing) {
            return Some(Verdict::NotTried);
        }
        let last = self.entry().wanted_until()?;
        let is_expired = self.batch.clock.as_ref()?.is_past(last);
        is_expired.then_some(Verdict::Expired)
    }

    /// The submitter's ticket for the message.
    pub fn ticket(&self) -> Ticket {
        Ticket {
            batch: self.batch.number,
            index: self.index,
        }
    }

    /// Tells that the message was given to the client library of its broker: it may be written from now on, whatever
    /// becomes of this process. A message whose lane gives it back as `NotTried` was not sent, as far as is known.
    pub fn sent(&self) {
        if let Some(listener) = &self.batch.listener {
            listener.sent(&self.batch, self.index);
        }
    }

    /// Gives the message its one verdict.
    pub fn answer(&self, verdict: Verdict) {
        self.batch.verdicts.push(self.ticket(), verdict);
    }
}

/// Whoever counts the messages that leave their lanes.
pub trait SendListener: std::fmt::Debug + Send + Sync {
    /// This message of the batch was given to the client library of its broker.
    fn sent(&self, batch: &PublishBatch, index: u32);
}

/// Headers that Postdate adds to a delayed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayHeaders<'a> {
    /// `x-delay-id`
    pub id: &'a Text,
    /// `x-delay-due`
    pub due: UnixMs,
    /// `x-delay-attempt`, set from 2 on.
    pub attempt: u32,
    /// `x-delay-retry`, set from 1 on.
    pub given_back: u32,
    /// `traceparent`, in place of the message's own.
    pub traceparent: Option<&'a Text>,
}

/// The way to one target.
pub trait Lane: Send + Sync {
    /// Takes a message. Its verdict comes later, exactly once. Never blocks.
    fn submit(&self, publication: Publication) {
        self.submit_all(vec![publication]);
    }

    /// Takes several messages, in order. Never blocks.
    fn submit_all(&self, publications: Vec<Publication>);

    /// The number of messages taken that have no verdict yet.
    fn backlog(&self) -> usize;

    /// A sentence on the trouble of the lane; `None` while it works.
    fn trouble(&self) -> Option<String>;

    /// A sentence on the trouble of one target of the lane, if nothing reaches it; `None` while messages do.
    fn trouble_of(&self, _: &Target) -> Option<String> {
        self.trouble()
    }

    /// A sentence on a part of a target that messages do not reach, a Kafka partition or a routing key, while the rest
    /// of it works.
    fn partial_trouble_of(&self, _: &Target) -> Option<String> {
        None
    }
}

/// The lanes of the process, made on demand.
pub trait Lanes: Send + Sync {
    /// The lane to a target.
    fn lane(&self, target: &Target) -> Arc<dyn Lane>;
}
