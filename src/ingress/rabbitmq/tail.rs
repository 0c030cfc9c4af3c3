//! What an exchange routes from now on, for who measures: a queue of its own, exclusive, which goes with its
//! connection. The other queues get what they would have got.

use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};

use crate::broker::rabbitmq::{Fault, FaultKind, Live, look_for_exchange, short_name, within};
use crate::domain::Clock;

/// A queue that is bound to an exchange, and read.
pub struct Tail(lapin::Consumer);

impl Tail {
    /// Declares the queue and binds it with this routing key; to an exchange that goes by headers, with this
    /// header, whatever its value. Its exchange must give each message to all queues that ask for it.
    pub async fn open(live: &Live, exchange: &str, key: &str, header: &str) -> Result<Self, Fault> {
        let channel = live.channel().await?;
        look_for_exchange(&channel, exchange).await?;
        let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
        let queue = within("queue.declare", channel.queue_declare("".into(), options, arguments)).await?;
        let mut matches = FieldTable::default();
        matches.insert("x-match".into(), AMQPValue::LongString("all".into()));
        // Nothing: any value.
        matches.insert(short_name(header)?, AMQPValue::Void);
        let (exchange, key) = (short_name(exchange)?, short_name(key)?);
        let bound =
            channel.queue_bind(queue.name().clone(), exchange, key, QueueBindOptions::default(), matches);
        within("queue.bind", bound).await?;
        let options = BasicConsumeOptions { no_ack: true, exclusive: true, ..Default::default() };
        let consumer = channel.basic_consume(queue.name().clone(), "".into(), options, FieldTable::default());
        Ok(Self(within("basic.consume", consumer).await?))
    }

    /// Reads until it is lost, and says why. `each` takes the value of the named header of each message that has
    /// it, and when it was received (wall clock, microseconds).
    pub async fn read(&mut self, clock: Clock, header: &str, mut each: impl FnMut(&[u8], i64)) -> Fault {
        while let Some(delivery) = self.0.next().await {
            let at_us = clock.wall_us();
            let delivery = match delivery {
                Ok(delivery) => delivery,
                Err(error) => return Fault::from(error),
            };
            let headers = delivery.properties.headers().as_ref();
            if let Some(value) = headers.and_then(|headers| headers.inner().get(header)).and_then(text) {
                each(value, at_us);
            }
        }
        Fault::new(FaultKind::Lost, "the broker has ended the subscription")
    }
}

fn text(value: &AMQPValue) -> Option<&[u8]> {
    match value {
        AMQPValue::LongString(text) => Some(LongString::as_bytes(text)),
        AMQPValue::ByteArray(bytes) => Some(bytes.as_slice()),
        _ => None,
    }
}
