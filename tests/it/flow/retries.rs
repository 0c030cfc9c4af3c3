//! Consumers that give back what they could not do: it comes again after longer and longer waits, as often as the route
//! allows, and is a dead letter then. With real consumers: of Kafka, which publish it to the route's topic, and of RabbitMQ,
//! which reject it into a dead-letter exchange.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicPublishOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection};
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::message::{Headers as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::fixture::{FlowFixture, await_metric, config};
use crate::support::relay::Relay;
use crate::support::run::now_ms;
use crate::support::{Kafka, QueueKind, eventually, names};

/// What a consumer got of one message: when, and with which count.
type Tries = BTreeMap<String, Vec<(i64, Option<i64>)>>;

/// A consumer that fails on everything but what is named `done`, and all that it got.
struct FailingConsumer {
    got: Arc<Mutex<Tries>>,
    _stop: DropGuard,
}

impl FailingConsumer {
    fn got(&self) -> Tries {
        self.got.lock().expect("what it got").clone()
    }

    /// Reads a topic, and publishes each record as it came to another.
    fn of_topic(kafka: &Kafka, from: &str, back_to: &str) -> Self {
        let consumer: StreamConsumer = kafka
            .client()
            .set("group.id", from)
            .set("enable.auto.commit", "false")
            .set("fetch.wait.max.ms", "10")
            .create()
            .expect("a consumer");
        let mut all = TopicPartitionList::new();
        all.add_partition_offset(from, 0, Offset::Beginning)
            .expect("an offset");
        consumer.assign(&all).expect("assigned");
        let producer: FutureProducer = kafka
            .client()
            .set("linger.ms", "0")
            .create()
            .expect("a producer");
        let got = Arc::new(Mutex::new(Tries::new()));
        let stop = CancellationToken::new();
        let (noted, stopped, topic) = (got.clone(), stop.clone(), back_to.to_owned());
        tokio::spawn(async move {
            loop {
                let record = tokio::select! {
                    () = stopped.cancelled() => return,
                    record = consumer.recv() => record,
                };
                // After an error the client goes on by itself.
                let Ok(record) = record else { continue };
                let headers = record
                    .headers()
                    .map_or_else(OwnedHeaders::new, rdkafka::message::BorrowedHeaders::detach);
                let count = headers.iter().find(|h| h.key == "x-delay-retry").map(|h| {
                    let text = std::str::from_utf8(h.value.expect("no null"));
                    text.expect("text").parse().expect("decimal text")
                });
                let id = String::from_utf8_lossy(record.payload().expect("a body")).into_owned();
                note(&noted, id.clone(), count);
                if id == "done" && count == Some(1) {
                    continue;
                }
                let mut back = FutureRecord::to(&topic).headers(headers);
                back.key = record.key();
                back.payload = record.payload();
                let sent = producer.send(back, Duration::from_secs(30)).await;
                sent.expect("given back");
            }
        });
        Self {
            got,
            _stop: stop.drop_guard(),
        }
    }

    /// Reads a queue, and rejects each message.
    async fn of_queue(connection: &Connection, queue: &str) -> Self {
        let channel = connection.create_channel().await.expect("a channel");
        let mut consumer = channel
            .basic_consume(
                queue.into(),
                "".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await
            .expect("a consumer");
        let got = Arc::new(Mutex::new(Tries::new()));
        let stop = CancellationToken::new();
        let (noted, stopped) = (got.clone(), stop.clone());
        tokio::spawn(async move {
            loop {
                let delivery = tokio::select! {
                    () = stopped.cancelled() => return,
                    delivery = consumer.next() => delivery,
                };
                let Some(Ok(delivery)) = delivery else { return };
                let headers = delivery.properties.headers().clone().unwrap_or_default();
                let header = |name: &str| headers.inner().get(name).cloned();
                let count = header("x-delay-retry").map(|value| match value {
                    AMQPValue::LongLongInt(count) => count,
                    other => panic!("{other:?}"),
                });
                // What RabbitMQ itself counts comes through untouched.
                let deaths = header("x-death").map(|deaths| match deaths {
                    AMQPValue::FieldArray(deaths) => deaths.as_slice().to_vec(),
                    other => panic!("{other:?}"),
                });
                assert_eq!(deaths.is_some(), count.is_some(), "{headers:?}");
                let id = String::from_utf8_lossy(&delivery.data).into_owned();
                note(&noted, id.clone(), count);
                if id == "done" && count == Some(1) {
                    delivery
                        .ack(BasicAckOptions::default())
                        .await
                        .expect("acknowledged");
                } else {
                    let options = BasicNackOptions {
                        requeue: false,
                        multiple: false,
                    };
                    delivery.nack(options).await.expect("rejected");
                }
            }
        });
        // The channel lives as long as its consumer.
        drop(channel);
        Self {
            got,
            _stop: stop.drop_guard(),
        }
    }
}

fn note(got: &Mutex<Tries>, id: String, count: Option<i64>) {
    let mut got = got.lock().expect("what it got");
    got.entry(id).or_default().push((now_ms(), count));
}

/// Waits until so many messages are dead for having been given back too often.
async fn await_spent(relay: &Relay, route: &str, count: u32) {
    let labels = [("route", route), ("reason", "retries")];
    await_metric(relay, "dead_letters_total", &labels, count).await;
}

/// Each message was tried as often as the route allows, with the counts in order, and no sooner than it may.
fn judge(tries: &Tries, attempts: i64, waits_ms: &[i64], least: usize) {
    let expected: Vec<Option<i64>> = [None].into_iter().chain((1..=attempts).map(Some)).collect();
    for (id, tries) in tries.iter().filter(|(id, _)| *id != "done") {
        let counts: Vec<_> = tries.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, expected, "{id}");
        for (pair, wait_ms) in tries.windows(2).zip(waits_ms) {
            let waited = pair[1].0 - pair[0].0;
            assert!(
                waited >= wait_ms * 4 / 5,
                "{id} came back after {waited} ms of {wait_ms}"
            );
        }
    }
    assert!(tries.len() >= least, "{} of {least}", tries.len());
}

#[tokio::test]
async fn a_kafka_consumer_gives_back_as_often_as_the_route_allows() {
    const MESSAGES: usize = 200;
    let fixture = FlowFixture::new().await;
    let kafka = Kafka::shared().await;
    for (route, dedupe) in [("plain", "0s"), ("remembering", "10m")] {
        let work = kafka.unique_topic("work", 1).await;
        let back = kafka.unique_topic("retry", 1).await;
        let route = names::unique(route);
        let more = format!(
            "dedupe = \"{dedupe}\"\nconsumer_retry = {{ attempts = 3, initial = \"100ms\", factor = 2, max = \"300ms\" }}"
        );
        let config = config(&fixture).route(
            &route,
            &format!("{{ kafka = \"a\", topic = \"{back}\", group = \"{back}\" }}"),
            &format!("{{ kafka = \"b\", topic = \"{work}\" }}"),
            &more,
        );
        let mut relay = Relay::start(&config).await;
        relay.reads_all_sources().await;
        let consumer = FailingConsumer::of_topic(kafka, &work, &back);
        let producer: FutureProducer = kafka.client().create().expect("a producer");
        for n in 0..=MESSAGES {
            let id = if n == 0 {
                "done".to_owned()
            } else {
                format!("order-{n}")
            };
            let mut headers = OwnedHeaders::new();
            // Every other one has a name of its own from the beginning.
            if n % 2 == 0 {
                let value = Some(&id);
                headers = headers.insert(rdkafka::message::Header {
                    key: "x-delay-id",
                    value,
                });
            }
            let record = FutureRecord::to(&work)
                .key(&id)
                .payload(&id)
                .headers(headers);
            let sent = producer.send(record, Duration::from_secs(30)).await;
            sent.expect("produced");
        }
        await_spent(&relay, &route, MESSAGES as u32).await;
        await_metric(&relay, "pending", &[("route", &route)], 0).await;
        let tries = consumer.got();
        judge(&tries, 3, &[100, 200, 300], MESSAGES + 1);
        assert_eq!(tries["done"].len(), 2, "done at its second try");
        let dead = relay
            .read(&format!("/api/v1/dead?route={route}&limit=1000&body=true"))
            .await;
        let letters = dead["items"].as_array().expect("items");
        assert_eq!(letters.len(), MESSAGES);
        let named = letters.iter().find(|letter| letter["id"] == "order-2");
        let named = named.expect("it has its name");
        assert_eq!(
            (&named["reason"], &named["body"]),
            (&json!("retries"), &json!("order-2"))
        );
        assert!(named["position"]["offset"].is_i64(), "{named}");
        // Redriven it has all its tries anew.
        let redrive = json!({ "ids": ["order-2"], "route": route }).to_string();
        let redriven = relay
            .request("POST", "/api/v1/dead/redrive", None, &redrive)
            .await;
        let (status, answer) = redriven.expect("an answer");
        assert_eq!(status, 200, "{answer}");
        await_spent(&relay, &route, MESSAGES as u32 + 1).await;
        let again: Vec<_> = consumer.got()["order-2"][4..]
            .iter()
            .map(|(_, n)| *n)
            .collect();
        assert_eq!(again, [None, Some(1), Some(2), Some(3)]);
        assert!(relay.terminate().await.success(), "a clean end");
    }
}

#[tokio::test]
async fn a_queue_rejects_into_the_route_as_often_as_it_allows() {
    const MESSAGES: usize = 20;
    let fixture = FlowFixture::new().await;
    let rabbitmq = fixture.rabbitmq;
    let connection = rabbitmq.connect().await.expect("a connection");
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        let (work, back) = (names::unique("work"), names::unique("retry"));
        rabbitmq.declare_queue(&back, kind).await;
        let mut arguments = FieldTable::default();
        let text = |text: &str| AMQPValue::LongString(text.into());
        arguments.insert("x-dead-letter-exchange".into(), text(""));
        arguments.insert("x-dead-letter-routing-key".into(), text(&back));
        rabbitmq.declare_queue_with(&work, kind, arguments).await;
        let route = names::unique("retries");
        let config = config(&fixture).route(
            &route,
            &format!("{{ rabbitmq = \"a\", queue = \"{back}\" }}"),
            &format!("{{ rabbitmq = \"b\", exchange = \"\", routing_key = \"{work}\" }}"),
            "dedupe = \"10m\"\nconsumer_retry = { attempts = 2, initial = \"200ms\", factor = 5, max = \"600ms\" }",
        );
        let mut relay = Relay::start(&config).await;
        relay.reads_all_sources().await;
        let consumer = FailingConsumer::of_queue(&connection, &work).await;
        let channel = connection.create_channel().await.expect("a channel");
        for n in 0..=MESSAGES {
            let id = if n == 0 {
                "done".to_owned()
            } else {
                format!("order-{n}")
            };
            let mut headers = FieldTable::default();
            if n % 2 == 0 {
                headers.insert("x-delay-id".into(), text(&id));
            }
            let properties = BasicProperties::default()
                .with_delivery_mode(2)
                .with_headers(headers);
            let options = BasicPublishOptions::default();
            channel
                .basic_publish(
                    "".into(),
                    work.as_str().into(),
                    options,
                    id.as_bytes(),
                    properties,
                )
                .await
                .expect("published");
        }
        await_spent(&relay, &route, MESSAGES as u32).await;
        let tries = consumer.got();
        judge(&tries, 2, &[200, 600], MESSAGES + 1);
        assert_eq!(tries["done"].len(), 2, "done at its second try");
        assert_eq!(rabbitmq.queue_len(&work).await, 0);
        let dead = relay
            .read(&format!("/api/v1/dead?route={route}&limit=100"))
            .await;
        let reasons = dead["items"].as_array().expect("items").iter();
        assert!(
            reasons
                .map(|letter| &letter["reason"])
                .all(|reason| reason == "retries")
        );
        assert!(relay.terminate().await.success(), "a clean end");
    }
}

#[tokio::test]
async fn what_is_no_count_is_kept_and_a_delay_of_its_own_holds() {
    let fixture = FlowFixture::new().await;
    let kafka = Kafka::shared().await;
    let work = kafka.unique_topic("work", 1).await;
    let back = kafka.unique_topic("retry", 1).await;
    let route = names::unique("counts");
    let config = config(&fixture).route(
        &route,
        &format!("{{ kafka = \"a\", topic = \"{back}\", group = \"{back}\" }}"),
        &format!("{{ kafka = \"b\", topic = \"{work}\" }}"),
        "consumer_retry = { attempts = 3, initial = \"1h\", max = \"2h\" }",
    );
    let mut relay = Relay::start(&config).await;
    relay.reads_all_sources().await;
    let producer: FutureProducer = kafka.client().create().expect("a producer");
    for (id, headers) in [
        ("wrong", &[("x-delay-retry", "two")][..]),
        ("own", &[("x-delay-retry", "1"), ("x-delay", "100")]),
        ("waits", &[("x-delay-retry", "1"), ("x-delay-id", "waits")]),
    ] {
        let headers = headers
            .iter()
            .fold(OwnedHeaders::new(), |all, (key, value)| {
                all.insert(rdkafka::message::Header {
                    key,
                    value: Some(*value),
                })
            });
        let record = FutureRecord::<(), _>::to(&back)
            .payload(id)
            .headers(headers);
        producer
            .send(record, Duration::from_secs(30))
            .await
            .expect("produced");
    }
    let consumer = FailingConsumer::of_topic(kafka, &work, &kafka.unique_topic("nowhere", 1).await);
    eventually("the one with its own delay comes", async || {
        let got = consumer.got();
        match got.get("own").map(Vec::as_slice) {
            Some([(_, Some(2))]) if got.len() == 1 => Ok(()),
            _ => Err(anyhow::anyhow!("{got:?}")),
        }
    })
    .await;
    let invalid = [("route", route.as_str()), ("reason", "bad_retry")];
    await_metric(&relay, "dead_letters_total", &invalid, 1).await;
    let shown = relay
        .read(&format!("/api/v1/routes/{route}/messages/waits"))
        .await;
    assert_eq!(shown["given_back"], 2, "{shown}");
    let ahead = shown["due_ms"].as_i64().expect("ms") - shown["received_ms"].as_i64().expect("ms");
    assert!((5_700_000..=7_300_000).contains(&ahead), "{shown}");
    assert_eq!(shown["headers"], Value::Array(Vec::new()), "{shown}");
    assert!(relay.terminate().await.success(), "a clean end");
}
