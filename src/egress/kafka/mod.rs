//! Egress to Kafka: two idempotent producers per connection, a prompt and a bulk one, and one lane per topic.
//!
//! A message is `Confirmed` when all in-sync replicas have it. While its partition cannot be written, because no broker
//! is reached, or it has no leader or too few in-sync replicas, a message waits in its lane, in order, and is
//! `NotTried` at its deadline (`partitions`). Only messages that were in a producer when that began may time out there:
//! they are `NotTried` too if they were never sent (`in_flight`), and else `Interrupted`. A topic that is missing or forbidden refuses at once and is looked for again until it is there. A broker
//! refuses a whole batch for one record; its messages are retried in ever smaller groups, so that only the
//! culprit is refused.
//!
//! The files of this folder form a circle by their nature: a lane (`lane`) sends through the producer of its connection
//! (`dispatch`, `producer`), the delivery reports of the producer go back to the lane (`in_flight`), and the connection
//! (`connection`) has both its lanes and its producers, and asks for their topics (`topics`). `mapping`, `outcome`,
//! `partitions`, `record` and `suspects` stand outside the circle.

mod connection;
mod dispatch;
mod in_flight;
mod lane;
pub(super) mod mapping;
mod outcome;
mod partitions;
mod producer;
mod record;
mod suspects;
mod topics;

use std::collections::BTreeMap;
use std::sync::Arc;

use connection::ProducerConnection;
pub use lane::KafkaLane;

use super::Lane;
use crate::broker::kafka::{ConfigError, Connection};
use crate::domain::{Clock, Target};
use crate::health::Health;
use crate::lifecycle::{Shutdown, Tasks};
use crate::telemetry::KafkaClients;

/// Error of the start of a producer.
#[derive(Debug, thiserror::Error)]
pub enum ProducerStartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system gave no thread.
    #[error("no thread for kafka connection {connection}: {error}")]
    Thread {
        /// The name of the connection.
        connection: String,
        /// The error of the system.
        error: std::io::Error,
    },
}

/// The lanes to all topics of all Kafka connections.
#[derive(Debug)]
pub struct KafkaLanes {
    connections: BTreeMap<String, Arc<ProducerConnection>>,
}

impl KafkaLanes {
    /// Starts the producers of each connection; brokers need not be there. `reports` shows how they fare. Announces the parts `kafka:<connection>`.
    /// The tasks are named `egress:kafka:<connection>`. They end once `shutdown` drains and every message has its
    /// verdict, or when `shutdown` is forced. Call it in a runtime.
    pub fn start<'a>(
        connections: impl IntoIterator<Item = &'a Connection>,
        clock: Clock,
        reports: &KafkaClients,
        health: &Health,
        tasks: &Tasks,
        shutdown: &Shutdown,
    ) -> Result<Self, ProducerStartError> {
        let mut started = BTreeMap::new();
        for connection in connections {
            let part = health.part(format!("kafka:{}", connection.name), false);
            let shared = ProducerConnection::new(connection.name.clone(), clock, reports.clone());
            let producers = producer::start(shared, connection, part, tasks, shutdown)?;
            started.insert(connection.name.clone(), producers);
        }
        Ok(Self {
            connections: started,
        })
    }

    /// The lane to a target; `None` if the target is no topic of one of these connections.
    pub fn lane(&self, target: &Target) -> Option<Arc<dyn Lane>> {
        let Target::Kafka { connection, topic } = target else {
            return None;
        };
        Some(Arc::new(self.connections.get(connection)?.lane(topic)))
    }
}
