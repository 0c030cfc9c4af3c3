//! Egress to Kafka: two idempotent producers per connection, a prompt and a bulk one; one lane per topic.
//!
//! A message is `Confirmed` when all in-sync replicas have it. Brokers away: messages wait in their lane, and are
//! `NotTried` at their deadline; only what was in the producer when the connection was lost may time out there. A topic
//! that is missing or forbidden refuses at once and is looked for again while there is demand. A broker refuses
//! a whole batch for one record: such batches are tried again in ever smaller groups, so the verdict meets only
//! the record that deserves it.

mod connection;
mod dispatch;
mod lane;
pub(super) mod mapping;
mod outcome;
mod producer;
mod quarantine;
mod record;

use std::collections::BTreeMap;
use std::sync::Arc;

use connection::Link;
pub use lane::KafkaLane;

use super::Lane;
use crate::broker::kafka::{ConfigError, Connection};
use crate::domain::{Clock, Target};
use crate::lifecycle::{Readiness, Shutdown, Tasks};

/// A producer could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No thread could be had.
    #[error("no thread for kafka connection {connection}: {error}")]
    Thread {
        /// The connection.
        connection: String,
        /// Why.
        error: std::io::Error,
    },
}

/// The lanes to all topics of all Kafka connections.
#[derive(Debug)]
pub struct KafkaLanes {
    links: BTreeMap<String, Arc<Link>>,
}

impl KafkaLanes {
    /// Starts the producers of each connection; brokers need not be there. Announces the parts
    /// `kafka:<connection>`. Its tasks are named `egress:kafka:<connection>`; they end once `shutdown`
    /// drains and every message has its verdict, or when time runs out. Must be called in a runtime.
    pub fn start<'a>(
        connections: impl IntoIterator<Item = &'a Connection>,
        clock: Clock,
        readiness: &Readiness,
        tasks: &Tasks,
        shutdown: &Shutdown,
    ) -> Result<Self, StartError> {
        let mut links = BTreeMap::new();
        for connection in connections {
            let part = readiness.part(format!("kafka:{}", connection.name), false);
            let link = producer::start(connection, clock, part, tasks, shutdown)?;
            links.insert(connection.name.clone(), link);
        }
        Ok(Self { links })
    }

    /// The lane to a target; `None` if it is not a topic of one of these connections.
    pub fn lane(&self, target: &Target) -> Option<Arc<dyn Lane>> {
        let Target::Kafka { connection, topic } = target else { return None };
        Some(Arc::new(self.links.get(connection)?.lane(topic)))
    }
}
