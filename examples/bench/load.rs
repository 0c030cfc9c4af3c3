//! What is sent: 256-byte bodies, 8-byte keys, two headers.

use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, PublisherConfirm};
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use crate::support::{Kafka, Rabbitmq};

/// Bytes of a body.
pub const BODY: usize = 256;

/// The settings of a producer that the relay's own has too.
pub fn producer_config(kafka: &Kafka, linger: &str) -> ClientConfig {
    let mut config = kafka.client();
    config.set("acks", "all").set("enable.idempotence", "true").set("partitioner", "murmur2_random");
    config.set("linger.ms", linger);
    config
}

/// The headers of each message: the delay's and one of the user's.
pub fn headers(name: &str, value: &str) -> OwnedHeaders {
    let headers = OwnedHeaders::new_with_capacity(2).insert(Header { key: name, value: Some(value) });
    headers.insert(Header { key: "content-type", value: Some("application/octet-stream") })
}

/// A body that compresses no better than most.
pub fn body() -> [u8; BODY] {
    let mut body = [0; BODY];
    let mut random = fastrand::Rng::with_seed(1);
    body.fill_with(|| random.alphanumeric() as u8);
    body
}

/// Fills a topic; returns once all of it is confirmed. Blocks.
pub fn fill_topic(kafka: &Kafka, topic: &str, count: u64, header: (&str, &str)) {
    let producer: BaseProducer = producer_config(kafka, "5").create().expect("a producer");
    let body = body();
    for n in 0..count {
        let key = format!("{:08x}", fastrand::u32(..));
        let mut record = BaseRecord::to(topic).key(key.as_bytes()).payload(&body[..]);
        record.headers = Some(headers(header.0, header.1));
        while let Err((error, back)) = producer.send(record) {
            let full = matches!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull));
            assert!(full, "cannot produce: {error}");
            producer.poll(Duration::from_millis(10));
            record = back;
        }
        if n % 256 == 0 {
            producer.poll(Duration::ZERO);
        }
    }
    producer.flush(Duration::from_secs(60)).expect("confirmed");
}

/// Fills a queue with persistent messages, each with this delay; returns once all are confirmed.
pub async fn fill_queue(rabbitmq: &Rabbitmq, queue: &str, count: u64, delay: Duration) {
    let connection = rabbitmq.connect().await.expect("a connection");
    let channel = connection.create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    let mut headers = FieldTable::default();
    headers.insert("x-delay".into(), AMQPValue::LongLongInt(delay.as_millis() as i64));
    headers.insert("user".into(), AMQPValue::LongString("header".into()));
    let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
    let body = body();
    let mut unconfirmed: Vec<PublisherConfirm> = Vec::new();
    for n in 1..=count {
        let options = BasicPublishOptions::default();
        let publish = channel.basic_publish("".into(), queue.into(), options, &body, properties.clone());
        unconfirmed.push(publish.await.expect("published"));
        if n % 1000 == 0 || n == count {
            for confirm in unconfirmed.drain(..) {
                assert!(confirm.await.expect("an answer").is_ack(), "not confirmed");
            }
        }
    }
    connection.close(200, "filled".into()).await.expect("closed");
}
