//! Looking for queues and exchanges before anything relies on them: for `check --connect`. Declares nothing.

use std::time::Duration;

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;

use super::link::Broker;
use super::{Fault, FaultKind};

/// What a route names in a virtual host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thing {
    /// A queue.
    Queue(String),
    /// An exchange.
    Exchange(String),
}

impl std::fmt::Display for Thing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Queue(name) => write!(f, "queue {name}"),
            Self::Exchange(name) => write!(f, "exchange {name}"),
        }
    }
}

impl Broker {
    /// Connects, looks for each thing, and closes again, within this time in all. `Err` if there is no
    /// connection to be had, or it was lost.
    pub async fn look_for(
        &self,
        things: Vec<Thing>,
        at_most: Duration,
    ) -> Result<Vec<(Thing, Result<(), Fault>)>, Fault> {
        let looking = async {
            let connection = self.connect_once().await?;
            let mut found = Vec::new();
            for thing in things {
                // A thing that is missing costs its channel.
                let channel = connection.create_channel().await?;
                let there = passive(&channel, &thing).await;
                if there.is_ok() {
                    channel.close(200, "seen".into()).await?;
                }
                match there.map_err(Fault::from) {
                    Err(fault) if fault.kind == FaultKind::Lost => return Err(fault),
                    there => found.push((thing, there)),
                }
            }
            connection.close(200, "checked".into()).await?;
            Ok(found)
        };
        let late = || Fault::new(FaultKind::Lost, format!("no answer within {} s", at_most.as_secs()));
        tokio::time::timeout(at_most, looking).await.unwrap_or_else(|_| Err(late()))
    }
}

async fn passive(channel: &lapin::Channel, thing: &Thing) -> lapin::Result<()> {
    let arguments = FieldTable::default();
    match thing {
        Thing::Queue(name) => {
            let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            channel.queue_declare(name.as_str().into(), options, arguments).await.map(drop)
        }
        Thing::Exchange(name) => {
            let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
            channel.exchange_declare(name.as_str().into(), ExchangeKind::Direct, options, arguments).await
        }
    }
}
