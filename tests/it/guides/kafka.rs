//! `docs/migrate/kafka-retry-topics.md`

use std::time::Duration;

use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::FutureRecord;

use super::terminal::{TypedTerminal, page};
use crate::support::producers::kafka_producer;
use crate::support::run::now_ms;
use crate::support::{Kafka, Redis, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_failed_comes_back_after_its_delay() {
    let (redis, kafka) = tokio::join!(Redis::shared(), Kafka::shared());
    let [retry, orders] = [
        kafka.unique_topic("orders-retry", 1).await,
        kafka.unique_topic("orders", 1).await,
    ];
    let replaced = [
        ("redis://127.0.0.1:6379\"", format!("{}\"", redis.url())),
        ("\"127.0.0.1:9092\"", format!("\"{}\"", kafka.bootstrap())),
        ("\"orders.retry\"", format!("\"{retry}\"")),
        ("\"orders\"", format!("\"{orders}\"")),
    ];
    let page = page("migrate/kafka-retry-topics.md");
    let mut terminal = TypedTerminal::new("retry-topics", &replaced);
    terminal.play(&page).await;

    // What the page's line for a shell sends.
    assert!(page.contains("'order-7:{\"n\":7}'") && page.contains("-H x-delay=2s -H attempt=1"));
    let headers = [("x-delay", "2s"), ("attempt", "1")];
    let headers = headers
        .iter()
        .fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header {
                key,
                value: Some(*value),
            })
        });
    let record = FutureRecord::to(&retry)
        .key("order-7")
        .payload("{\"n\":7}")
        .headers(headers);
    let sent_ms = now_ms();
    kafka_producer(kafka.client())
        .send(record, Duration::from_secs(30))
        .await
        .expect("acknowledged");

    let consumer: BaseConsumer = kafka
        .client()
        .set("group.id", &orders)
        .set("auto.offset.reset", "earliest")
        .create()
        .expect("one");
    consumer.subscribe(&[&orders]).expect("subscribed");
    let record = eventually("the record has come back", async || {
        let polled = tokio::task::block_in_place(|| consumer.poll(Duration::from_millis(200)));
        polled
            .and_then(Result::ok)
            .map(|record| record.detach())
            .ok_or("nothing yet")
    })
    .await;
    assert!(now_ms() >= sent_ms + 2000, "not early");
    assert_eq!(
        (record.key(), record.payload()),
        (Some(&b"order-7"[..]), Some(&b"{\"n\":7}"[..]))
    );
    terminal.end().await;
}
