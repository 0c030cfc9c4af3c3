//! Lateness at 1,000 messages a second, and the time from production to consumption beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::{Message as _, Offset, TopicPartitionList};

use crate::Scale;
use crate::document::Page;
use crate::load::{body, headers, producer_config};
use crate::relay::{PARTITIONS, kafka_route};
use crate::support::{Kafka, Redis};

/// Messages a second, at random moments.
const RATE: f64 = 1000.0;
/// How long the last may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// A lateness beyond this counts as this.
const HIGHEST_US: u64 = 3_600_000_000;

/// Microseconds.
pub struct Lateness {
    pub p50: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
    pub early: u64,
    pub count: u64,
}

/// Both, into the page.
pub async fn bench(redis: &Redis, kafka: &Kafka, scale: Scale, page: &mut Page) {
    let topic = kafka.unique_topic("plain", PARTITIONS).await;
    page.lateness("plain, produced to consumed", run(kafka, &topic, &topic, scale, false));
    let (source, target) =
        (kafka.unique_topic("source", PARTITIONS).await, kafka.unique_topic("target", PARTITIONS).await);
    let mut relay = kafka_route(redis, kafka, &source, &target);
    relay.ready().await;
    page.lateness("Postdate, due to consumed, delays of 1 to 3 s", run(kafka, &source, &target, scale, true));
    relay.terminate().await;
}

/// Sends to a topic and waits for all of it on the other.
fn run(kafka: &Kafka, from: &str, to: &str, scale: Scale, delayed: bool) -> Result<Lateness, String> {
    tokio::task::block_in_place(|| {
        let sent = Arc::new(AtomicU64::new(u64::MAX));
        let reader = read(kafka, to, sent.clone());
        sent.store(send(kafka, from, scale, delayed), Ordering::Release);
        reader.join().expect("the reader does not panic")
    })
}

/// The wall clock: Unix time in microseconds.
fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    now.as_micros() as u64
}

/// Sends at random moments; returns how many. A body begins with the microsecond it counts from.
fn send(kafka: &Kafka, topic: &str, scale: Scale, delayed: bool) -> u64 {
    let config = producer_config(kafka, "0");
    let producer: ThreadedProducer<DefaultProducerContext> = config.create().expect("a producer");
    let (mut count, mut body) = (0, body());
    let mut next = now_us() as f64;
    let end = next + scale.seconds as f64 * 1e6;
    while next < end {
        next -= (1.0 - fastrand::f64()).ln() * 1e6 / RATE;
        let wait = next - now_us() as f64;
        if wait > 0.0 {
            std::thread::sleep(Duration::from_micros(wait as u64));
        }
        let due_ms = now_us() / 1000 + fastrand::u64(1000..3000);
        let from = if delayed { due_ms * 1000 } else { now_us() };
        body[..8].copy_from_slice(&from.to_be_bytes());
        let key = format!("{:08x}", fastrand::u32(..));
        let mut record = BaseRecord::to(topic).key(key.as_bytes()).payload(&body[..]);
        record.headers = Some(headers("x-deliver-at", &due_ms.to_string()));
        producer.send(record).map_err(|(error, _)| error).expect("room for it");
        count += 1;
    }
    producer.flush(PATIENCE).expect("confirmed");
    count
}

/// Reads until as many have come as were sent.
fn read(kafka: &Kafka, topic: &str, sent: Arc<AtomicU64>) -> JoinHandle<Result<Lateness, String>> {
    let mut config = kafka.client();
    config
        .set("group.id", "lateness")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let mut all = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        all.add_partition_offset(topic, partition as i32, Offset::Beginning).expect("an offset");
    }
    consumer.assign(&all).expect("assigned");
    std::thread::spawn(move || {
        let mut late = Histogram::<u64>::new_with_bounds(1, HIGHEST_US, 3).expect("three digits");
        let mut early = 0;
        let mut last_us = now_us();
        while late.len() < sent.load(Ordering::Acquire) {
            if let Some(message) = consumer.poll(Duration::from_millis(100)) {
                let message = message.map_err(|error| error.to_string())?;
                last_us = now_us();
                let body = message.payload().unwrap_or_default();
                let from =
                    body.first_chunk().map(|from| u64::from_be_bytes(*from)).ok_or("a body is short")?;
                early += u64::from(last_us < from);
                late.saturating_record(last_us.saturating_sub(from));
            } else if now_us() - last_us > PATIENCE.as_micros() as u64 {
                return Err(format!("only {} of {} came", late.len(), sent.load(Ordering::Acquire)));
            }
        }
        let at = |quantile| late.value_at_quantile(quantile);
        Ok(Lateness {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: late.max(),
            early,
            count: late.len(),
        })
    })
}
