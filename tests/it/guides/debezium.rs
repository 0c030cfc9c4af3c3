//! `docs/migrate/debezium.md`

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, Headers, OwnedHeaders};
use rdkafka::producer::FutureRecord;

use super::terminal::{TypedTerminal, page};
use crate::support::producers::kafka_producer;
use crate::support::run::now_ms;
use crate::support::{Kafka, Redis, eventually};

/// A row of the outbox: its id, the id of its aggregate, and when it is to be delivered.
struct Row {
    id: &'static str,
    aggregate: &'static str,
    deliver_at: Timestamp,
}

impl Row {
    /// The record that the page's table says of it.
    async fn publish(&self, kafka: &Kafka, topic: &str) {
        let moment = self.deliver_at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ");
        let moment = moment.to_string();
        let headers = [
            ("id", self.id),
            ("x-deliver-at", &moment),
            ("x-delay-id", self.id),
        ];
        let headers = headers
            .into_iter()
            .fold(OwnedHeaders::new(), |headers, (key, value)| {
                let value = Some(value);
                headers.insert(Header { key, value })
            });
        let record = FutureRecord::to(topic)
            .key(self.aggregate)
            .payload("{\"order\":1}")
            .headers(headers);
        let sent = kafka_producer(kafka.client())
            .send(record, Duration::from_secs(30))
            .await;
        sent.expect("acknowledged");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_was_written_twice_comes_once_when_it_is_due() {
    let (redis, kafka) = tokio::join!(Redis::shared(), Kafka::shared());
    let delayed = kafka.unique_topic("orders-delayed", 1).await;
    let orders = kafka.unique_topic("orders", 1).await;
    let replaced = [
        ("redis://127.0.0.1:6379\"", format!("{}\"", redis.url())),
        ("\"127.0.0.1:9092\"", format!("\"{}\"", kafka.bootstrap())),
        ("\"orders.delayed\"", format!("\"{delayed}\"")),
        ("\"orders\"", format!("\"{orders}\"")),
    ];
    let page = page("migrate/debezium.md");
    let mut terminal = TypedTerminal::new("debezium", &replaced);
    terminal.play(&page).await;

    let later = |ms| Timestamp::now() + SignedDuration::from_millis(ms);
    let first = Row {
        id: "4d47e190-0402-4048-bc2c-89dd54343cdc",
        aggregate: "1",
        deliver_at: later(2000),
    };
    let second = Row {
        id: "5e58f2a1-1513-4159-8d3d-9aee65454ded",
        aggregate: "2",
        deliver_at: later(3000),
    };
    for row in [&first, &first, &second] {
        row.publish(kafka, &delayed).await;
    }

    let consumer: BaseConsumer = kafka
        .client()
        .set("group.id", &orders)
        .set("auto.offset.reset", "earliest")
        .create()
        .expect("one");
    consumer.subscribe(&[&orders]).expect("subscribed");
    // The second one is behind whatever became of the first.
    for row in [&first, &second] {
        let record = eventually("an event has come", async || {
            let polled = tokio::task::block_in_place(|| consumer.poll(Duration::from_millis(200)));
            polled
                .and_then(Result::ok)
                .map(|record| record.detach())
                .ok_or("nothing yet")
        })
        .await;
        assert!(now_ms() >= row.deliver_at.as_millisecond(), "not early");
        let mut headers = record.headers().expect("headers").iter();
        let id = headers.find(|header| header.key == "id");
        assert_eq!(
            id.and_then(|id| id.value),
            Some(row.id.as_bytes()),
            "as it came"
        );
        assert_eq!(
            (record.key(), record.payload()),
            (Some(row.aggregate.as_bytes()), Some(&b"{\"order\":1}"[..]))
        );
    }
    terminal.end().await;
}
