//! Reads the messages that an exchange routes from now on, for measurements, through an exclusive queue of its
//! own that goes with its connection. The other queues get the same messages as without it.

use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};

use crate::broker::rabbitmq::{
    AmqpFault, FaultKind, LiveConnection, look_for_exchange, short_name, within,
};
use crate::domain::Clock;

/// The consumer of a queue that is bound to an exchange.
pub struct ExchangeTail(lapin::Consumer);

impl ExchangeTail {
    /// Declares the queue and binds it with a routing key. To a headers exchange it is bound with `header`,
    /// whatever its value. The exchange must give each message to all queues that ask for it.
    pub async fn open(
        live: &LiveConnection,
        exchange: &str,
        key: &str,
        header: &str,
    ) -> Result<Self, AmqpFault> {
        let channel = live.channel().await?;
        look_for_exchange(&channel, exchange).await?;
        let options = QueueDeclareOptions {
            exclusive: true,
            auto_delete: true,
            ..Default::default()
        };
        let mut arguments = FieldTable::default();
        arguments.insert(
            "x-queue-type".into(),
            AMQPValue::LongString("classic".into()),
        );
        let queue = within(
            "queue.declare",
            channel.queue_declare("".into(), options, arguments),
        )
        .await?;
        let mut matches = FieldTable::default();
        matches.insert("x-match".into(), AMQPValue::LongString("all".into()));
        // The absence of a value matches any value.
        matches.insert(short_name(header)?, AMQPValue::Void);
        let exchange = short_name(exchange)?;
        let key = short_name(key)?;
        let bound = channel.queue_bind(
            queue.name().clone(),
            exchange,
            key,
            QueueBindOptions::default(),
            matches,
        );
        within("queue.bind", bound).await?;
        let options = BasicConsumeOptions {
            no_ack: true,
            exclusive: true,
            ..Default::default()
        };
        let consumer = channel.basic_consume(
            queue.name().clone(),
            "".into(),
            options,
            FieldTable::default(),
        );
        Ok(Self(within("basic.consume", consumer).await?))
    }

    /// Reads until the subscription is lost, and returns the reason. `each` takes the named header's value of
    /// each message that has it, and the time of receipt (wall clock, microseconds).
    pub async fn read(
        &mut self,
        clock: Clock,
        header: &str,
        mut each: impl FnMut(&[u8], i64),
    ) -> AmqpFault {
        while let Some(delivery) = self.0.next().await {
            let at_us = clock.wall_us();
            let delivery = match delivery {
                Ok(delivery) => delivery,
                Err(error) => return AmqpFault::from(error),
            };
            let headers = delivery.properties.headers().as_ref();
            if let Some(value) = headers
                .and_then(|headers| headers.inner().get(header))
                .and_then(text)
            {
                each(value, at_us);
            }
        }
        AmqpFault::new(FaultKind::Lost, "the broker has ended the subscription")
    }
}

fn text(value: &AMQPValue) -> Option<&[u8]> {
    match value {
        AMQPValue::LongString(text) => Some(LongString::as_bytes(text)),
        AMQPValue::ByteArray(bytes) => Some(bytes.as_slice()),
        _ => None,
    }
}
