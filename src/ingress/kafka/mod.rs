//! Ingress from Kafka: one consumer per connection and group, subscribed to the topics of all its routes.
//! Topics that match a route's pattern are looked for twice a minute.
//!
//! Guarantees:
//! - The committed position of a partition never passes an unresolved record.
//! - No record is skipped, even if a topic was created anew or its log was cut while it was read. One that cannot be
//!   opened is skipped on an operator's word, or by the route's policy (see `skip`).
//! - A partition whose records are slow to be stored is paused, and the others flow.
//! - A clean stop commits every resolved record.
//!
//! A position is believed only if it can be true: while the broker still holds the commit that it builds on, and
//! within both ends of the log. When a topic is deleted, its commits go with it: a commit that has vanished or moved
//! back means that this is not the log that was read (see `commits`). Nothing else that librdkafka tells would show
//! it. Where reading begins is decided in one place (`placement`, carried out by `start_positions`).

mod assignment;
mod backpressure;
mod batch_probe;
mod commits;
mod consumer;
mod first_start;
mod group_contact;
mod group_state;
mod log_ends;
mod placement;
mod reading_mode;
mod rebalance;
mod record;
pub mod replay_window;
mod skip;
pub mod skip_desk;
pub mod source_topics;
mod standstill;
mod start_positions;
mod subscription;
pub mod tail;
mod undecodable;

use std::sync::Arc;

pub(super) use self::assignment::{WINDOW_BYTES, WINDOW_RECORDS};
pub(super) use self::record::RECORD_OVERHEAD;

use self::skip_desk::SkipDesk;
use super::{ReadBudget, Sink};
use crate::broker::kafka::{ConfigError, Connection, FetchSizes};
use crate::domain::{Clock, Route};
use crate::health::{Health, Part};
use crate::lifecycle::{Shutdown, Tasks};
use crate::telemetry::Metrics;

/// A consumer could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No thread could be started.
    #[error("no thread for kafka group {group}: {error}")]
    Thread {
        /// The group.
        group: String,
        /// The reason.
        error: std::io::Error,
    },
}

/// Everything that a group's consumer is built from.
pub struct KafkaDependencies<S> {
    /// Takes the records.
    pub sink: Arc<S>,
    /// Receives each route's lag.
    pub metrics: Arc<Metrics>,
    /// Receives why the topics are not read.
    pub health: Health,
    /// The read budget that all Kafka sources share.
    pub budget: Arc<ReadBudget>,
    /// Takes the skips of operators.
    pub skips: SkipDesk,
    /// The readiness part of the connection.
    pub part: Part,
    /// Runs the consumer's thread and its partitions' tasks.
    pub tasks: Tasks,
    /// Draining stops reading. Forcing stops the wait for unresolved records.
    pub shutdown: Shutdown,
    /// The machine's clocks.
    pub clock: Clock,
}

/// Starts the consumer of one group on one connection, for all `routes` that read through it. Brokers and
/// topics need not be there. Its thread and tasks are named `ingress:kafka:<connection>:<group>`, and end once
/// draining is done and the group is left. Must be called in a runtime of several threads.
pub fn start<S: Sink>(
    connection: &Connection,
    group: &str,
    routes: Vec<Arc<Route>>,
    dependencies: KafkaDependencies<S>,
) -> Result<(), StartError> {
    let tasks = dependencies.tasks.clone();
    let consumer = consumer::GroupConsumer::new(connection, group, routes, dependencies);
    consumer
        .config(FetchSizes::Usual)?
        .create_native_config()
        .map_err(|error| connection.refused(error))?;
    tasks
        .thread(
            &format!("ingress:kafka:{}:{group}", connection.name),
            move || consumer.run(),
        )
        .map_err(|error| StartError::Thread {
            group: group.to_owned(),
            error,
        })
}

/// The most bytes that a record may have which one of these routes takes, headers included.
pub fn largest_record<'a>(routes: impl IntoIterator<Item = &'a Route>) -> u64 {
    let sizes = routes
        .into_iter()
        .map(|route| route.policy.max_size as u64 + route.policy.max_headers as u64);
    sizes.max().unwrap_or(0)
}
