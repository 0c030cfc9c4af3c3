//! Looks for queues and exchanges before anything relies on them, for `check --connect`. Declares nothing.

use std::time::Duration;

use super::supervisor::Broker;
use super::{AmqpFault, FaultKind, QueueTraits, look_for_exchange, look_for_queue};

/// A queue or an exchange that a route names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueOrExchange {
    /// A queue that a route reads.
    Source(String),
    /// A queue that a route publishes to.
    Queue(String),
    /// An exchange.
    Exchange(String),
}

impl std::fmt::Display for QueueOrExchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Source(name) | Self::Queue(name) => write!(f, "queue {name}"),
            Self::Exchange(name) => write!(f, "exchange {name}"),
        }
    }
}

impl Broker {
    /// Connects, looks for each queue and exchange, and closes again, all within `at_most`. A source comes with its
    /// traits. `Err` if no connection can be made, or it is lost.
    pub async fn look_for(
        &self,
        objects: Vec<QueueOrExchange>,
        at_most: Duration,
    ) -> Result<Vec<(QueueOrExchange, Result<Option<QueueTraits>, AmqpFault>)>, AmqpFault> {
        let looking = async {
            let connection = self.connect_once().await?;
            let mut found = Vec::new();
            for object in objects {
                match self.look_for_one(&connection, &object).await {
                    Err(fault) if fault.kind == FaultKind::Lost => return Err(fault),
                    there => found.push((object, there)),
                }
            }
            connection.close(200, "checked".into()).await?;
            Ok(found)
        };
        match tokio::time::timeout(at_most, looking).await {
            Ok(found) => found,
            Err(_) => Err(AmqpFault::new(
                FaultKind::Lost,
                format!("no answer within {} s", at_most.as_secs()),
            )),
        }
    }

    async fn look_for_one(
        &self,
        connection: &lapin::Connection,
        object: &QueueOrExchange,
    ) -> Result<Option<QueueTraits>, AmqpFault> {
        if let QueueOrExchange::Source(name) = object {
            return self.traits_over(connection, name).await.map(Some);
        }
        // The broker closes the channel if the object is missing.
        let channel = connection.create_channel().await?;
        match object {
            QueueOrExchange::Source(name) | QueueOrExchange::Queue(name) => {
                look_for_queue(&channel, name).await?;
            }
            QueueOrExchange::Exchange(name) => look_for_exchange(&channel, name).await?,
        }
        channel.close(200, "seen".into()).await?;
        Ok(None)
    }
}
