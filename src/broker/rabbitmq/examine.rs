//! Looks for queues and exchanges before anything relies on them, for `check --connect`. Declares nothing.

use std::fmt;
use std::time::Duration;

use super::supervisor::{Broker, no_answer};
use super::{AmqpFault, FaultKind, QueueTraits, look_for_exchange, look_for_queue};

/// Hosts that cannot be used: the URL of each, without its secrets, and why.
#[derive(Clone, Debug)]
pub struct UnusableHosts(pub Vec<(String, AmqpFault)>);

impl fmt::Display for UnusableHosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.0.iter().map(|(url, fault)| format!("{url}: {fault}"));
        f.write_str(&hosts.collect::<Vec<_>>().join("; "))
    }
}

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

impl fmt::Display for QueueOrExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(name) | Self::Queue(name) => write!(f, "queue {name}"),
            Self::Exchange(name) => write!(f, "exchange {name}"),
        }
    }
}

impl Broker {
    /// Connects to a host, looks for each queue and exchange, and closes again. It waits for each host, and for all answers
    /// together, at most so long. A source comes with its traits. `Err` if no connection can be made, or it is lost.
    pub async fn look_for(
        &self,
        objects: Vec<QueueOrExchange>,
        at_most: Duration,
    ) -> Result<Vec<(QueueOrExchange, Result<Option<QueueTraits>, AmqpFault>)>, UnusableHosts> {
        let (turn, connection) = self.connect_once(at_most).await?;
        let looking = async {
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
        let looked = match tokio::time::timeout(at_most, looking).await {
            Ok(found) => found,
            Err(_) => Err(no_answer("looking", at_most)),
        };
        looked.map_err(|fault| UnusableHosts(vec![(self.redacted_url(turn), fault)]))
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
