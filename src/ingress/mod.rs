//! Ingress: broker -> store.
//!
//! A consumer per technology ([`kafka`], [`rabbitmq`]) reads what is there, gives each record a
//! [`Receipt`] from its [`Ledger`], and hands batches in order of delivery to the [`Intake`]'s
//! [`Source`]. The intake judges each record ([`admit`], a pure function), bundles what waits, sends it
//! to the store, publishes what needs no waiting, and resolves each receipt once its record is safe:
//! stored, confirmed by its target, kept as a dead letter, or dropped by policy.
//!
//! Guarantees: a source is acknowledged only over the resolved prefix *in order of delivery*; a ledger
//! belongs to one channel or one partition assignment and dies with it; when the store is slow, full or
//! away, `Source::take` simply does not return, so the consumer stops reading, drops nothing, and goes
//! on by itself. What a consumer has read and not handed over when the process drains counts as not
//! read: its receipts are dropped, and its broker delivers it again.

pub mod admission_control;
pub mod admit;
mod bundling;
mod dead_letter;
mod due_on_arrival;
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
pub mod rabbitmq;
mod read_budget;
mod redrive;
pub mod replay;
mod target_wait;

pub use intake::{Intake, Source};
pub use ledger::{Ledger, Receipt, Released};
pub use permits::AdmissionGate;
pub use read_budget::{READ_BYTES, ReadBudget, ReadParts, ReadShare};
pub use redrive::redrive;

use std::sync::Arc;

use crate::domain::{Flags, KafkaPosition, Message, Route, Text, UnixMs};

/// A record as a consumer read it.
#[derive(Debug)]
pub struct Delivery {
    /// What the producer sent, all its headers included.
    pub message: Message,
    /// What the broker's client could not read (a header name that is not UTF-8): the message then has
    /// no headers and is invalid, `bad_headers`.
    pub malformed: Option<Text>,
    /// When it was produced, if its broker says so (Kafka: the record's timestamp, unless -1;
    /// RabbitMQ: `timestamp` in seconds, as milliseconds + 999).
    pub produced: Option<UnixMs>,
    /// `SOURCE_REDELIVERY` where RabbitMQ says so. (`SOURCE_REREAD` is the intake's to set.)
    pub flags: Flags,
    /// Kafka: partition and offset.
    pub position: Option<KafkaPosition>,
    /// To be resolved once the record is safe.
    pub receipt: Receipt,
}

/// Where a consumer's batches go: the [`Intake`], or a test's recorder. The only seam of this room.
pub trait Sink: Send + Sync + 'static {
    /// One source's way in.
    type Feed: Feed;

    /// See [`Intake::open`].
    fn open(
        self: &Arc<Self>,
        route: &Arc<Route>,
        name: String,
    ) -> impl Future<Output = Option<Self::Feed>> + Send;
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
}

impl Sink for Intake {
    type Feed = Source;

    async fn open(self: &Arc<Self>, route: &Arc<Route>, name: String) -> Option<Source> {
        Self::open(self, route, name).await
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
}
