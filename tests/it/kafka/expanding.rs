//! Records that are small on the wire and large once opened, many of them: they cost the process no memory, and other
//! topics of the same consumer are read meanwhile.

use std::time::{Duration, Instant};

use anyhow::ensure;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use super::fixture::Refusals;
use crate::support::eventually::{PATIENCE, within};
use crate::support::{Config, Kafka, Redis, Relay, Run, When, eventually, names};

/// Bytes of a body, all of them zero.
const SIZE: usize = 999_000;
/// Ordinary records before them.
const ORDINARY: usize = 1000;
/// Longest time until all are stored, on a machine that does other things.
const STORED_WITHIN: Duration = Duration::from_secs(240);
/// Most that the relay may occupy, MiB.
const MOST_MIB: u64 = 380;
/// Longest time until a message without a delay has passed the other route.
const SOON: Duration = Duration::from_secs(5);

/// Produces records that are due in an hour, one a batch, compressed by this codec.
fn produce_delayed(kafka: &Kafka, topic: &str, codec: &str, count: usize, body: &[u8]) {
    let mut config = kafka.client();
    config
        .set("compression.type", codec)
        .set("batch.num.messages", "1");
    let producer: BaseProducer<Refusals> = config
        .create_with_context(Refusals::default())
        .expect("a producer");
    for n in 0..count {
        let headers = OwnedHeaders::new().insert(Header {
            key: "x-delay",
            value: Some("3600000"),
        });
        let key = n.to_string();
        let record = BaseRecord::to(topic).key(&key).payload(body);
        producer.send(record.headers(headers)).expect("room");
        if n % 50 == 49 {
            producer.flush(PATIENCE).expect("flushed");
        }
    }
    producer.flush(PATIENCE).expect("flushed");
    assert_eq!(*producer.context().0.lock(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_records_that_expand_cost_no_memory_and_others_are_read_meanwhile() {
    for (codec, count, partitions) in [("zstd", 3000, 6), ("lz4", 1000, 6), ("gzip", 200, 1)] {
        let (redis, kafka) = tokio::join!(Redis::start(), Kafka::shared());
        let zeros = kafka.unique_topic("zeros", partitions).await;
        let beside = kafka.unique_topic("beside", 1).await;
        let to = kafka.unique_topic("to", 1).await;
        let group = names::unique("g");
        produce_delayed(kafka, &zeros, "none", ORDINARY, b"ordinary");
        produce_delayed(kafka, &zeros, codec, count, &vec![0; SIZE]);
        let from = |topic: &str| {
            format!("{{ kafka = \"main\", topic = \"{topic}\", group = \"{group}\" }}")
        };
        let target = format!("{{ kafka = \"main\", topic = \"{to}\" }}");
        let config = Config::new(&redis)
            .kafka("main", kafka)
            .route("zeros", &from(&zeros), &target, "")
            .route("beside", &from(&beside), &target, "");
        let mut relay = Relay::start(&config).await;
        let run = Run::new();
        run.collect_kafka(kafka, &to, 1);
        relay.reads_all_sources().await;
        let label = format!("kafka:{to}");
        let began = Instant::now();
        let stored = within(STORED_WITHIN, async || {
            let began = Instant::now();
            let message = run.message(&label, When::Now);
            run.send_kafka(kafka, &beside, vec![message]).await;
            eventually("it arrives", async || match run.ledger().missing() {
                missing if missing.is_empty() => Ok(()),
                _ => Err("it is missing"),
            })
            .await;
            assert!(
                began.elapsed() < SOON,
                "the other route took {:?}",
                began.elapsed()
            );
            let pending = relay.total("postdate_pending", &[("route", "zeros")]).await;
            let count = ORDINARY + count;
            ensure!(pending as usize == count, "{pending} of {count} are stored");
            anyhow::Ok(())
        })
        .await;
        stored.unwrap_or_else(|last| panic!("{codec}: {last}"));
        let took = began.elapsed();
        let peak = super::undecodable::peak_mib(relay.id());
        println!("{codec}, {partitions} partitions: peak {peak} MiB, all stored after {took:?}");
        assert!(peak <= MOST_MIB, "{codec}: {peak} MiB");
        run.report().assert_accounted(0);
        assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
    }
}
