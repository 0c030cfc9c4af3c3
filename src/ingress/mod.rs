//! Ingress: broker -> store.
//!
//! A consumer per technology ([`kafka`], [`rabbitmq`]) reads records, gives each a [`Receipt`] from its
//! [`Ledger`], and hands batches in order of delivery to the [`Source`] that the [`Intake`] opened for it. The
//! source judges each record ([`admit`], a pure function), bundles delayed messages for the store, publishes
//! messages that need no waiting, and resolves each receipt once its record is safe: stored, confirmed by its
//! target, kept as a dead letter, or dropped by policy.
//!
//! Guarantees:
//! - A source is acknowledged only over the resolved prefix, *in order of delivery*.
//! - A ledger belongs to one channel or one partition assignment, and dies with it.
//! - While the store is slow, full or away, `Source::take` does not return. The consumer then stops reading,
//!   drops nothing, and goes on by itself.
//! - Records that a consumer has read and not handed over when the process drains count as not read: their
//!   receipts are dropped, and the broker delivers them again.

pub mod admission_control;
pub mod admit;
mod bundling;
mod dead_letter;
mod direct_publisher;
mod headers;
pub mod intake;
mod jitter;
pub mod kafka;
mod ledger;
mod linger;
mod loops;
mod outcomes;
mod pass_through;
mod permits;
mod publish_desk;
pub mod rabbitmq;
mod read_budget;
mod redis_memory;
mod redrive;
pub mod replay;
mod submitter;
mod target_wait;
mod unstored_names;

pub use intake::{Intake, Source};
pub use ledger::{Ledger, Receipt, Released};
pub use permits::AdmissionGate;
pub use read_budget::{HandOver, QueueLimits, READ_BYTES, ReadAllocation, ReadBudget, ReadShare};
pub use redis_memory::ALL_WAIT_SHARE;
pub use redrive::redrive;

use std::sync::Arc;

use crate::domain::{FirstStart, Flags, KafkaPosition, Message, ReadMark, Route, Text, UnixMs};

/// A record as a consumer read it.
#[derive(Debug)]
pub struct Delivery {
    /// The message as the producer sent it, with all of its headers.
    pub message: Message,
    /// The part of the record that the message lacks. A message that lacks a part is invalid.
    pub missing: Option<Missing>,
    /// The time at which the message was produced, if its broker says so. Kafka: the record's timestamp, unless
    /// it is -1. RabbitMQ: `timestamp` in seconds, as milliseconds + 999.
    pub produced: Option<UnixMs>,
    /// `SOURCE_REDELIVERY` where RabbitMQ says so. The intake sets `SOURCE_REREAD`.
    pub flags: Flags,
    /// Kafka: partition and offset.
    pub position: Option<KafkaPosition>,
    /// Kafka: a time of records, no later than that of the last record before which all were resolved.
    pub resolved_time: Option<UnixMs>,
    /// Resolved once the record is safe.
    pub receipt: Receipt,
}

/// The part of a record that a consumer could not read, or did not keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The headers, for this reason: a text that is not UTF-8, headers that nest too deep. `bad_headers`.
    Headers(Text),
    /// The body of so many bytes, over `max_size`: `too_big`. With a reason the headers too: `bad_headers`.
    Body {
        /// The length of the body.
        bytes: u64,
        /// The reason why the headers are missing too.
        malformed: Option<Text>,
    },
    /// Everything but the position: the record cannot be opened, for this reason. `undecodable`.
    Everything(Text),
}

/// The receiver of a consumer's batches: the [`Intake`], or a test's recorder. The only seam of this room.
pub trait Sink: Send + Sync + 'static {
    /// The way in of one source.
    type Feed: Feed;

    /// See [`Intake::open`].
    fn open(
        self: &Arc<Self>,
        route: &Arc<Route>,
        name: String,
    ) -> impl Future<Output = Option<Self::Feed>> + Send;

    /// See [`Intake::read_mark`].
    fn read_mark(
        &self,
        source: &str,
    ) -> impl Future<Output = Result<Option<ReadMark>, String>> + Send;

    /// See [`Intake::first_start`].
    fn first_start(
        &self,
        source: &str,
        seen: FirstStart,
    ) -> impl Future<Output = Result<FirstStart, String>> + Send;
}

/// Takes the batches of one source, one after another.
pub trait Feed: Send + Sync + 'static {
    /// See [`Source::until_open`].
    fn until_open(&self) -> impl Future<Output = ()> + Send;

    /// See [`Source::until_ready`].
    fn until_ready(&self) -> impl Future<Output = ()> + Send;

    /// See [`Source::until_closed`].
    fn until_closed(&self) -> impl Future<Output = ()> + Send;

    /// See [`Source::take`].
    fn take(&mut self, batch: Vec<Delivery>) -> impl Future<Output = Vec<Delivery>> + Send;

    /// See [`Source::had_time`].
    fn had_time(&self) -> bool;

    /// See [`Source::give_up`].
    fn give_up(&mut self) {}
}

impl Sink for Intake {
    type Feed = Source;

    async fn open(self: &Arc<Self>, route: &Arc<Route>, name: String) -> Option<Source> {
        Self::open(self, route, name).await
    }

    async fn read_mark(&self, source: &str) -> Result<Option<ReadMark>, String> {
        Self::read_mark(self, source).await
    }

    async fn first_start(&self, source: &str, seen: FirstStart) -> Result<FirstStart, String> {
        Self::first_start(self, source, seen).await
    }
}

impl Feed for Source {
    async fn until_open(&self) {
        Self::until_open(self).await;
    }

    async fn until_ready(&self) {
        Self::until_ready(self).await;
    }

    async fn until_closed(&self) {
        Self::until_closed(self).await;
    }

    async fn take(&mut self, batch: Vec<Delivery>) -> Vec<Delivery> {
        Self::take(self, batch).await
    }

    fn had_time(&self) -> bool {
        Self::had_time(self)
    }

    fn give_up(&mut self) {
        Self::give_up(self);
    }
}
