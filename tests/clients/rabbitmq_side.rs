//! RabbitMQ: exchanges and queues, and a consumer at each end of the relay.

use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Consumer, ExchangeKind};

use super::arrivals::{SeenAt, SeenList, SeenMessage, WireHeader};
use super::support::{QueueKind, Rabbitmq, run};

/// Exchange that producers publish to, and the queue that the relay reads.
const INGRESS_EXCHANGE: &str = "mail.in";
const INGRESS_QUEUE: &str = "mail.delayed";
/// Gets a copy of what the relay reads.
const TAP_QUEUE: &str = "tap";
/// Exchange that the relay publishes to, and a consumer's queue.
const TARGET_EXCHANGE: &str = "mail";
const TARGET_QUEUE: &str = "mail.welcome";
/// Routing keys that the queues are bound for.
const BOUND_KEYS: &str = "mail.#";

/// Declares what the page declares, and sees all that comes, until the list is closed.
pub(crate) async fn watch(rabbitmq: &Rabbitmq, seen: &SeenList) {
    let ends = [
        (INGRESS_EXCHANGE, INGRESS_QUEUE, None),
        (INGRESS_EXCHANGE, TAP_QUEUE, Some(SeenAt::Ingress)),
        (TARGET_EXCHANGE, TARGET_QUEUE, Some(SeenAt::Target)),
    ];
    for (exchange, queue, at) in ends {
        rabbitmq
            .declare_exchange(exchange, ExchangeKind::Topic)
            .await;
        rabbitmq.declare_queue(queue, QueueKind::Quorum).await;
        rabbitmq.bind(queue, exchange, BOUND_KEYS).await;
        let Some(at) = at else { continue };
        let connection = rabbitmq.connect().await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        let options = BasicConsumeOptions::default();
        let consumer = channel
            .basic_consume(queue.into(), "".into(), options, FieldTable::default())
            .await;
        let seen = seen.clone();
        let consumer = consumer.expect("a consumer");
        tokio::spawn(async move {
            see_all(at, consumer, &seen).await;
            // A connection that is dropped is closed, and its consumer with it.
            drop(connection);
        });
    }
}

async fn see_all(at: SeenAt, mut consumer: Consumer, seen: &SeenList) {
    while let Some(delivery) = consumer.next().await {
        let delivery = match delivery {
            Ok(delivery) => delivery,
            Err(_) if seen.is_closed() => return,
            Err(error) => return println!("watcher of {at:?}: {error}"),
        };
        seen.push(of_delivery(at, &delivery));
        if let Err(error) = delivery.ack(BasicAckOptions::default()).await {
            return println!("watcher of {at:?}: {error}");
        }
    }
}

fn of_delivery(at: SeenAt, delivery: &lapin::message::Delivery) -> SeenMessage {
    let table = delivery.properties.headers().as_ref();
    let headers = table.into_iter().flat_map(FieldTable::inner);
    SeenMessage {
        at,
        received_ms: run::now_ms(),
        produced_ms: None,
        body: String::from_utf8_lossy(&delivery.data).into_owned(),
        headers: headers
            .map(|(name, value)| (name.to_string(), of_value(value)))
            .collect(),
        is_persistent: *delivery.properties.delivery_mode() == Some(2),
    }
}

fn of_value(value: &AMQPValue) -> WireHeader {
    let (value, kind) = match value {
        AMQPValue::ShortShortInt(number) => (number.to_string(), "signed 8-bit integer"),
        AMQPValue::ShortInt(number) => (number.to_string(), "signed 16-bit integer"),
        AMQPValue::LongInt(number) => (number.to_string(), "signed 32-bit integer"),
        AMQPValue::LongLongInt(number) => (number.to_string(), "signed 64-bit integer"),
        AMQPValue::LongUInt(number) => (number.to_string(), "unsigned 32-bit integer"),
        AMQPValue::LongString(text) => (text.to_string(), "long string"),
        other => (format!("{other:?}"), "another type"),
    };
    WireHeader { value, kind }
}
