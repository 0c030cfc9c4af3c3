//! Whether a queue or an exchange is there. Nothing is ever created.

use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, ExchangeKind};

use super::link::within;
use super::{Fault, FaultKind};

/// A name as AMQP writes it.
pub fn short_name(name: &str) -> Result<ShortString, Fault> {
    ShortString::try_new(name).map_err(|error| Fault::new(FaultKind::Refused, error.to_string()))
}

/// Looks for a queue. The broker closes the channel if it is not there.
pub async fn look_for_queue(channel: &Channel, queue: &str) -> Result<(), Fault> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let look = channel.queue_declare(short_name(queue)?, options, FieldTable::default());
    within("queue.declare", look).await.map(drop)
}

/// Looks for an exchange; the default one is always there. The broker closes the channel if it is not.
pub async fn look_for_exchange(channel: &Channel, exchange: &str) -> Result<(), Fault> {
    if exchange.is_empty() {
        return Ok(());
    }
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    let (name, arguments) = (short_name(exchange)?, FieldTable::default());
    within("exchange.declare", channel.exchange_declare(name, ExchangeKind::Direct, options, arguments)).await
}
