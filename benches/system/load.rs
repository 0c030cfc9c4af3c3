//! Messages of the load: 256-byte bodies that do not compress, 8-byte keys, two headers.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, PublisherConfirm};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use crate::machine;
use crate::servers::TOPIC_PARTITIONS;
use crate::support::{Kafka, Rabbitmq};

/// Bytes of a body.
pub const BODY_BYTES: usize = 256;

/// Delay headers of the messages of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// No delay header, two other headers.
    Plain,
    /// `x-delay`, ms: the same for all.
    Equal(u64),
    /// `x-deliver-at`: at random from this Unix ms on, within so many ms.
    Random(i64, i64),
    /// `x-deliver-at`: from this Unix ms on within four days. Messages that may linger together are at least four
    /// seconds apart, so that none shares a bundle.
    Alone(i64),
    /// `x-deliver-at`: all at this Unix ms.
    At(i64),
    /// Orders as JSON, `x-delay` as above.
    Orders(u64),
}

impl Load {
    /// The delay header of the message of this number.
    pub fn header(self, n: u64) -> (&'static str, String) {
        match self {
            Self::Plain => ("x-other", "0123456789".to_owned()),
            Self::Equal(ms) | Self::Orders(ms) => ("x-delay", ms.to_string()),
            Self::Random(from, within) => (
                "x-deliver-at",
                (from + fastrand::i64(0..within)).to_string(),
            ),
            // Four days have 84,000 spans of 4,096 ms. 7,919 is prime to their number, so a span comes again after all
            // others: more than twice as many as linger together.
            Self::Alone(from) => (
                "x-deliver-at",
                (from + (n * 7919 % 84_000) as i64 * 4096).to_string(),
            ),
            Self::At(ms) => ("x-deliver-at", ms.to_string()),
        }
    }
}

/// Settings of a producer, the same as those of the relay.
pub fn producer_config(kafka: &Kafka, linger: &str) -> ClientConfig {
    let mut config = kafka.client();
    config
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("partitioner", "murmur2_random");
    config.set("linger.ms", linger);
    config
}

/// The headers of each message: a delay header and a header of the user.
pub fn headers(name: &str, value: &str) -> OwnedHeaders {
    let headers = OwnedHeaders::new_with_capacity(2).insert(Header {
        key: name,
        value: Some(value),
    });
    headers.insert(Header {
        key: "type",
        value: Some("reminder"),
    })
}

/// A random body, which no store can compress.
pub fn body() -> [u8; BODY_BYTES] {
    let mut body = [0; BODY_BYTES];
    fastrand::Rng::new().fill(&mut body);
    body
}

/// An order of about 300 bytes: random ids, amounts and names.
pub fn order(n: u64) -> String {
    const FIRST: [&str; 12] = [
        "Ada", "Boris", "Chiara", "Daniel", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas",
        "Kaya", "Lin",
    ];
    const LAST: [&str; 12] = [
        "Abbott", "Brandt", "Costa", "Dubois", "Eriksen", "Fischer", "Garcia", "Haddad", "Ivanova",
        "Jensen", "Kowalski", "Lopez",
    ];
    const STATE: [&str; 4] = ["placed", "paid", "packed", "shipped"];
    let pick = |from: &[&'static str]| from[fastrand::usize(..from.len())];
    format!(
        r#"{{"event":"order.reminder","order_id":"{:016x}-{:08x}","customer":{{"id":{},"name":"{} {}","email":"u{:x}@example.com"}},"state":"{}","currency":"EUR","items":[{{"sku":"SKU-{:06}","quantity":{},"price_cents":{}}}],"total_cents":{},"created":"2026-11-{:02}T{:02}:{:02}:{:02}.{:03}Z","sequence":{n}}}"#,
        fastrand::u64(..),
        fastrand::u32(..),
        fastrand::u32(10_000_000..99_999_999),
        pick(&FIRST),
        pick(&LAST),
        fastrand::u32(..),
        pick(&STATE),
        fastrand::u32(..1_000_000),
        fastrand::u8(1..10),
        fastrand::u32(100..100_000),
        fastrand::u32(100..1_000_000),
        fastrand::u8(1..30),
        fastrand::u8(..24),
        fastrand::u8(..60),
        fastrand::u8(..60),
        fastrand::u16(..1000),
    )
}

/// Checks that a topic has the partitions that the bench counts on.
pub fn check_topic(kafka: &Kafka, topic: &str) -> anyhow::Result<()> {
    let consumer: BaseConsumer = kafka.client().create()?;
    let metadata = consumer
        .fetch_metadata(Some(topic), Duration::from_secs(10))
        .context("kafka does not answer")?;
    let found = metadata
        .topics()
        .first()
        .map_or(0, |topic| topic.partitions().len());
    ensure!(
        found == TOPIC_PARTITIONS,
        "the topic {topic} has {found} partitions, the bench wants {TOPIC_PARTITIONS}"
    );
    Ok(())
}

/// A message to be produced.
pub struct Produced {
    pub key: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

/// Fills a topic. Blocks until all messages are confirmed.
pub fn fill_topic(kafka: &Kafka, topic: &str, count: u64, load: Load) -> anyhow::Result<()> {
    let message = |n| {
        let (name, value) = load.header(n);
        Produced {
            key: format!("{:08x}", fastrand::u32(..)),
            headers: vec![(name, value), ("type", "reminder".to_owned())],
            body: if let Load::Orders(_) = load {
                order(n).into_bytes()
            } else {
                body().to_vec()
            },
        }
    };
    produce(kafka, topic, (0..count).map(message))
}

/// Produces these messages. Blocks until all are confirmed.
pub fn produce(
    kafka: &Kafka,
    topic: &str,
    messages: impl Iterator<Item = Produced>,
) -> anyhow::Result<()> {
    check_topic(kafka, topic)?;
    let mut config = producer_config(kafka, "5");
    config.set("queue.buffering.max.kbytes", "262144");
    let producer: BaseProducer = config.create()?;
    for (n, message) in messages.enumerate() {
        let mut headers = OwnedHeaders::new_with_capacity(message.headers.len());
        for (key, value) in &message.headers {
            let value = Some(value);
            headers = headers.insert(Header { key, value });
        }
        let mut record = BaseRecord::to(topic)
            .key(message.key.as_bytes())
            .payload(&message.body);
        record.headers = Some(headers);
        while let Err((error, back)) = producer.send(record) {
            if !matches!(
                error,
                KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)
            ) {
                bail!("cannot produce: {error}");
            }
            producer.poll(Duration::from_millis(10));
            record = back;
        }
        if n % 256 == 0 {
            producer.poll(Duration::ZERO);
        }
    }
    producer
        .flush(Duration::from_secs(120))
        .context("not confirmed")?;
    machine::write_back()
}

/// Fills a queue with persistent messages of this delay. Returns once all are confirmed.
pub async fn fill_queue(
    rabbitmq: &Rabbitmq,
    queue: &str,
    count: u64,
    delay_ms: i64,
) -> anyhow::Result<()> {
    let connection = rabbitmq.connect().await?;
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let mut headers = FieldTable::default();
    headers.insert("x-delay".into(), AMQPValue::LongLongInt(delay_ms));
    headers.insert("user".into(), AMQPValue::LongString("header".into()));
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_headers(headers);
    let mut unconfirmed: Vec<PublisherConfirm> = Vec::new();
    for n in 1..=count {
        let options = BasicPublishOptions::default();
        let body = body();
        let publish =
            channel.basic_publish("".into(), queue.into(), options, &body, properties.clone());
        unconfirmed.push(publish.await?);
        if n % 1000 == 0 || n == count {
            for confirm in unconfirmed.drain(..) {
                ensure!(confirm.await?.is_ack(), "not confirmed");
            }
        }
    }
    Ok(connection.close(200, "filled".into()).await?)
}
