//! Looks for queues and exchanges before anything relies on them, for `check --connect`. Declares nothing.

use std::time::Duration;

use super::supervisor::Broker;
use super::{AmqpFault, FaultKind, look_for_exchange, look_for_queue};

/// A queue or an exchange that a route names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueOrExchange {
    /// A queue.
    Queue(String),
    /// An exchange.
    Exchange(String),
}

impl std::fmt::Display for QueueOrExchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Queue(name) => write!(f, "queue {name}"),
            Self::Exchange(name) => write!(f, "exchange {name}"),
        }
    }
}

impl Broker {
    /// Connects, looks for each queue and exchange, and closes again, all within `at_most`. `Err` if no
    /// connection can be made, or it is lost.
    pub async fn look_for(
        &self,
        objects: Vec<QueueOrExchange>,
        at_most: Duration,
    ) -> Result<Vec<(QueueOrExchange, Result<(), AmqpFault>)>, AmqpFault> {
        let looking = async {
            let connection = self.connect_once().await?;
            let mut found = Vec::new();
            for object in objects {
                // The broker closes the channel if the object is missing.
                let channel = connection.create_channel().await?;
                let there = passive(&channel, &object).await;
                if there.is_ok() {
                    channel.close(200, "seen".into()).await?;
                }
                match there {
                    Err(fault) if fault.kind == FaultKind::Lost => return Err(fault),
                    there => found.push((object, there)),
                }
            }
            connection.close(200, "checked".into()).await?;
            Ok(found)
        };
        let late = || {
            AmqpFault::new(
                FaultKind::Lost,
                format!("no answer within {} s", at_most.as_secs()),
            )
        };
        tokio::time::timeout(at_most, looking)
            .await
            .unwrap_or_else(|_| Err(late()))
    }
}

async fn passive(channel: &lapin::Channel, object: &QueueOrExchange) -> Result<(), AmqpFault> {
    match object {
        QueueOrExchange::Queue(name) => look_for_queue(channel, name).await,
        QueueOrExchange::Exchange(name) => look_for_exchange(channel, name).await,
    }
}
