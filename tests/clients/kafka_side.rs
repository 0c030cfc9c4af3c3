//! Kafka: topics, and a consumer at each end of the relay.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers as _};
use rdkafka::{Message as _, Offset, TopicPartitionList};

use super::arrivals::{SeenAt, SeenList, SeenMessage, WireHeader};
use super::support::{Kafka, run};

/// Topics of the page.
const INGRESS_TOPIC: &str = "orders.delayed";
const TARGET_TOPIC: &str = "orders";
/// Partitions of each.
const PARTITION_COUNT: usize = 3;

/// Creates the topics and sees all that comes into them, until the list is closed.
pub(crate) async fn watch(kafka: &Kafka, seen: &SeenList) {
    for (topic, at) in [
        (INGRESS_TOPIC, SeenAt::Ingress),
        (TARGET_TOPIC, SeenAt::Target),
    ] {
        kafka.create_topic(topic, PARTITION_COUNT).await;
        let mut config = kafka.client();
        config
            .set("group.id", "watcher")
            .set("enable.auto.commit", "false")
            .set("fetch.wait.max.ms", "10");
        let consumer: BaseConsumer = config.create().expect("a consumer");
        let mut all = TopicPartitionList::new();
        for partition in 0..PARTITION_COUNT {
            all.add_partition_offset(topic, partition as i32, Offset::Beginning)
                .expect("an offset");
        }
        consumer.assign(&all).expect("assigned");
        let seen = seen.clone();
        std::thread::spawn(move || {
            while !seen.is_closed() {
                match consumer.poll(Duration::from_millis(100)) {
                    Some(Ok(record)) => seen.push(of_record(at, &record)),
                    Some(Err(_)) if seen.is_closed() => {}
                    Some(Err(error)) => println!("watcher of {topic}: {error}"),
                    None => {}
                }
            }
        });
    }
}

fn of_record(at: SeenAt, record: &BorrowedMessage<'_>) -> SeenMessage {
    let headers = record
        .headers()
        .into_iter()
        .flat_map(|headers| headers.iter())
        .map(|header| {
            let value = header
                .value
                .map(|value| String::from_utf8_lossy(value).into_owned());
            (
                header.key.to_owned(),
                WireHeader {
                    value: value.unwrap_or_default(),
                    kind: "bytes",
                },
            )
        });
    SeenMessage {
        at,
        received_ms: run::now_ms(),
        produced_ms: record.timestamp().to_millis(),
        body: String::from_utf8_lossy(record.payload().unwrap_or_default()).into_owned(),
        headers: headers.collect(),
        is_persistent: true,
    }
}
