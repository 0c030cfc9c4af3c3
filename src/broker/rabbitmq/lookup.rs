//! Looks for a queue or an exchange. Creates nothing.

use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, ExchangeKind};

use super::supervisor::within;
use super::{AmqpFault, FaultKind};

/// A name as AMQP writes it.
pub fn short_name(name: &str) -> Result<ShortString, AmqpFault> {
    ShortString::try_new(name)
        .map_err(|error| AmqpFault::new(FaultKind::Refused, error.to_string()))
}

/// What a broker says of a queue. RabbitMQ answers for a quorum queue without a leader too: with two zeros.
#[derive(Clone, Copy, Debug)]
pub struct QueueSeen {
    /// The messages that are lent to nobody.
    pub messages: u32,
    /// The consumers.
    pub consumers: u32,
}

/// Looks for a queue. The broker closes the channel if the queue is missing.
pub async fn look_for_queue(channel: &Channel, queue: &str) -> Result<QueueSeen, AmqpFault> {
    let options = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let look = channel.queue_declare(short_name(queue)?, options, FieldTable::default());
    let seen = within("queue.declare", look).await?;
    Ok(QueueSeen {
        messages: seen.message_count(),
        consumers: seen.consumer_count(),
    })
}

/// Looks for an exchange. The default exchange is always there. The broker closes the channel if the exchange
/// is missing.
pub async fn look_for_exchange(channel: &Channel, exchange: &str) -> Result<(), AmqpFault> {
    if exchange.is_empty() {
        return Ok(());
    }
    let options = ExchangeDeclareOptions {
        passive: true,
        ..ExchangeDeclareOptions::default()
    };
    let name = short_name(exchange)?;
    let arguments = FieldTable::default();
    within(
        "exchange.declare",
        channel.exchange_declare(name, ExchangeKind::Direct, options, arguments),
    )
    .await
}
