//! Egress: message -> broker, verdict back.
//!
//! A *lane* is the way to one target: a Kafka topic, or a RabbitMQ exchange. Whoever has a message to
//! publish (a timer shard, or ingress for what needs no waiting) submits a [`Publication`] to the
//! target's lane and later finds exactly one [`Verdict`](crate::domain::Verdict) for it in the inbox it named. A lane that is
//! missing, slow or refusing delays nobody else: each has its own queue, window and gate.
//!
//! Guarantees: `submit` never blocks; every publication gets exactly one verdict, within
//! [`CONFIRM_DEADLINE`] of leaving the lane's queue; `Confirmed` means that the broker said it is
//! stored *and* routed; publications of one lane from one submitter leave in the order submitted.

mod all;
pub mod kafka;
mod names;
pub mod rabbitmq;
mod verdicts;

use std::sync::Arc;
use std::time::Duration;

pub use all::AllLanes;
pub use verdicts::Verdicts;

use crate::domain::{Entry, Target, Text, UnixMs};

/// Longest wait for a broker's word; then the verdict is `Unknown`. Time in which RabbitMQ says that it
/// blocks the connection (an alarm of its memory or disk) does not count.
pub const CONFIRM_DEADLINE: Duration = Duration::from_secs(30);

/// One hand-over of one message to one lane.
#[derive(Clone, Debug)]
pub struct Publication {
    /// The messages it stands among (a bundle's), shared.
    pub entries: Arc<Vec<Entry>>,
    /// Which of them.
    pub index: u32,
    /// What is set on delayed messages; `None` on those that pass through, byte for byte.
    pub stamp: Option<Stamp>,
    /// Where to; the lane's own target, but the routing key may be another.
    pub target: Arc<Target>,
    /// The submitter's number for it, given back with the verdict.
    pub ticket: u64,
    /// Where the verdict goes.
    pub verdicts: Arc<Verdicts>,
    /// Monotonic microseconds (`Clock::mono_us`) after which it must not be handed to the broker:
    /// its claim may be somebody else's by then. `NotTried` is the verdict.
    pub not_after_us: i64,
}

impl Publication {
    /// The message with what is known of it.
    pub fn entry(&self) -> &Entry {
        &self.entries[self.index as usize]
    }
}

/// What Postdate sets on a delayed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// `x-delay-id`
    pub id: Text,
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
