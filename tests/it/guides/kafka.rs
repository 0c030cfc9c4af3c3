//! `docs/migrate/kafka-retry-topics.md`

use std::time::Duration;

use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Headers;
use rdkafka::producer::FutureRecord;

use super::terminal::{TypedTerminal, page};
use crate::support::producers::kafka_producer;
use crate::support::run::now_ms;
use crate::support::{Kafka, Redis, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_failed_comes_back_after_its_delay() {
    let (redis, kafka) = tokio::join!(Redis::shared(), Kafka::shared());
    let [retry, orders, dead] = [
        kafka.unique_topic("orders-retry", 1).await,
        kafka.unique_topic("orders", 1).await,
        kafka.unique_topic("orders-dead", 1).await,
    ];
    let replaced = [
        ("redis://127.0.0.1:6379\"", format!("{}\"", redis.url())),
        ("\"127.0.0.1:9092\"", format!("\"{}\"", kafka.bootstrap())),
        ("\"orders.retry\"", format!("\"{retry}\"")),
        ("\"orders\"", format!("\"{orders}\"")),
        ("\"orders.dead\"", format!("\"{dead}\"")),
    ];
    let page = page("migrate/kafka-retry-topics.md");
    let mut terminal = TypedTerminal::new("retry-topics", &replaced);
    terminal.play(&page).await;

    // What the page's line for a shell sends.
    assert!(
        page.contains("echo 'order-7:{\"n\":7}' | kcat -P -b 127.0.0.1:9092 -t orders.retry -K:\n")
    );
    let record = FutureRecord::to(&retry).key("order-7").payload("{\"n\":7}");
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
    // `initial` is two seconds, and a fifth of it may be spared.
    assert!(now_ms() >= sent_ms + 1600, "not early");
    let mut headers = record.headers().expect("headers").iter();
    let count = headers.find(|header| header.key == "x-delay-retry");
    assert_eq!(count.and_then(|count| count.value), Some(&b"1"[..]));
    assert_eq!(
        (record.key(), record.payload()),
        (Some(&b"order-7"[..]), Some(&b"{\"n\":7}"[..]))
    );
    terminal.end().await;
}
