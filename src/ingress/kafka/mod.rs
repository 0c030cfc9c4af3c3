//! Ingress from Kafka: one consumer per connection and group, subscribed to all its routes' topics.
//!
//! Guarantees: the committed position of a partition never passes a record that is not resolved; no
//! record is skipped, also where a topic was re-created or its log cut; a partition whose records are
//! slow to be stored is paused, the others flow; a clean stop commits all that was resolved.
//!
//! A position is only believed while the broker still holds the commit it builds on: when a topic is
//! deleted, its commits go with it, so a commit that has vanished or moved back means that this is not
//! the log that was read (see `commits`). Nothing else that librdkafka tells would show it.

mod assignment;
mod backpressure;
mod commits;
mod consumer;
mod group_contact;
mod group_state;
mod log_ends;
mod rebalance;
mod record;
mod start_positions;
pub mod tail;
pub mod window;

use std::sync::Arc;

pub(super) use self::assignment::{WINDOW_BYTES, WINDOW_RECORDS};
pub(super) use self::record::OVERHEAD;

use super::{ReadBudget, Sink};
use crate::broker::kafka::{ConfigError, Connection};
use crate::domain::{Clock, Route};
use crate::lifecycle::{ReadinessPart, Shutdown, Tasks};
use crate::telemetry::Metrics;

/// A consumer could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No thread could be had.
    #[error("no thread for kafka group {group}: {error}")]
    Thread {
        /// The group.
        group: String,
        /// Why.
        error: std::io::Error,
    },
}

/// What a consumer works with.
pub struct Surroundings<S> {
    /// Takes what is read.
    pub sink: Arc<S>,
    /// Gets each route's lag.
    pub metrics: Arc<Metrics>,
    /// What may be read and not resolved, with all other sources.
    pub budget: Arc<ReadBudget>,
    /// The part of readiness that is the connection's.
    pub part: ReadinessPart,
    /// Runs the consumer's thread and its partitions' tasks.
    pub tasks: Tasks,
    /// When it drains, reading stops; when it is forced, waiting for what is outstanding stops.
    pub shutdown: Shutdown,
    /// The machine's clocks.
    pub clock: Clock,
}

/// Starts the consumer of one group on one connection, for all `routes` that read through it. Brokers
/// and topics need not be there. Its thread and tasks are named `ingress:kafka:<connection>:<group>`;
/// they end once draining is done and the group is left. Must be called in a runtime of several threads.
pub fn start<S: Sink>(
    connection: &Connection,
    group: &str,
    routes: Vec<Arc<Route>>,
    surroundings: Surroundings<S>,
) -> Result<(), StartError> {
    let mut config = connection.consumer_config(group)?;
    config.set("group.instance.id", instance_id());
    config.create_native_config().map_err(|error| connection.refused(error))?;
    let tasks = surroundings.tasks.clone();
    let consumer = consumer::GroupConsumer::new(connection, group, routes, surroundings, config);
    tasks
        .thread(&format!("ingress:kafka:{}:{group}", connection.name), move || consumer.run())
        .map_err(|error| StartError::Thread { group: group.to_owned(), error })
}

/// The id that a consumer keeps through all of its lives, and shares with no other. The client library joins the group as
/// somebody new when no coordinator has answered for a session's time. By this id the group knows it again: it gives it
/// the partitions of its former self at once, and does not wait for the end of that one's session. The id is random, for
/// a second member with the same one would be thrown out for the first.
fn instance_id() -> String {
    format!("postdate-{:016x}", fastrand::u64(..))
}
