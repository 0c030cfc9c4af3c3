//! Records that cannot be opened, on routes that skip them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use postdate::domain::{OnUndecodable, Route};
use postdate::ingress::Missing;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::{Value, json};

use super::fixture::{
    IngressFixture, RecordingSink, commits, committed, produce, read_all, route, text,
};
use super::raw;
use super::undecodable::{CUT_SHORT, GARBAGE, UNKNOWN_CODEC, damaged, good, is_read_on, stands};
use crate::support::relay::{Config, Relay};
use crate::support::{Kafka, Redis, eventually, names};

/// Records of the batch that has several.
const MANY: usize = 40;
/// Good records before the batch, and as many behind it.
const GOOD: usize = 3;

/// A topic with a batch that cannot be opened, and the route that reads it.
struct Case {
    route: String,
    topic: String,
    on_invalid: &'static str,
    /// Records of the batch.
    records: usize,
}

impl Case {
    fn is_dropped(&self) -> bool {
        self.on_invalid == "drop"
    }

    fn policy(&self) -> &'static str {
        if self.is_dropped() {
            "drop"
        } else {
            "dead_letter"
        }
    }

    /// One past the last offset of the topic.
    fn end(&self) -> i64 {
        (2 * GOOD + self.records) as i64
    }
}

/// Produces records that all stand in one compressed batch.
fn produce_batch(kafka: &Kafka, topic: &str) {
    let mut config = kafka.client();
    config
        .set("linger.ms", "5000")
        .set("compression.type", "zstd");
    let producer: BaseProducer = config.create().expect("a producer");
    for i in 0..MANY {
        let body = format!("bad-{i}");
        producer
            .send(BaseRecord::<(), _>::to(topic).payload(&body))
            .expect("room");
    }
    producer.flush(Duration::from_secs(20)).expect("flushed");
}

async fn dead(relay: &Relay, route: &str) -> Vec<Value> {
    let page = relay
        .read(&format!("/api/v1/dead?route={route}&limit=1000"))
        .await;
    page["items"].as_array().expect("items").clone()
}

/// How many records a topic of one partition has.
fn records_of(kafka: &Kafka, topic: &str) -> i64 {
    let mut client = kafka.client();
    let consumer: BaseConsumer = client.set("group.id", "ends").create().expect("a consumer");
    let ends = consumer.fetch_watermarks(topic, 0, Duration::from_secs(10));
    ends.expect("an answer").1
}

/// A kind of batch: how it is produced, and what becomes of it in the broker's file.
struct BadBatch {
    name: &'static str,
    records: usize,
    produce: fn(&Kafka, &str),
    damage: Option<fn(&mut [u8])>,
}

const BATCHES: [BadBatch; 5] = [
    BadBatch {
        name: "codec",
        records: 1,
        produce: |kafka, topic| good(kafka, topic, b"bad", false),
        damage: Some(UNKNOWN_CODEC.damage),
    },
    BadBatch {
        name: "garbage",
        records: 1,
        produce: |kafka, topic| good(kafka, topic, b"bad", true),
        damage: Some(GARBAGE.damage),
    },
    BadBatch {
        name: "short",
        records: 1,
        produce: |kafka, topic| good(kafka, topic, b"bad", false),
        damage: Some(CUT_SHORT.damage),
    },
    BadBatch {
        name: "several",
        records: MANY,
        produce: produce_batch,
        damage: Some(GARBAGE.damage),
    },
    BadBatch {
        name: "bomb",
        records: 1,
        produce: |kafka, topic| good(kafka, topic, &vec![0; 60 << 20], true),
        damage: None,
    },
];

/// Topics of each kind under each policy: good records, a batch that cannot be opened, good records.
async fn cases(kafka: &mut Kafka) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut damages = Vec::new();
    for on_invalid in ["dead_letter", "drop", "pass_through"] {
        for batch in &BATCHES {
            let topic = kafka.unique_topic(batch.name, 1).await;
            let route = format!("{}-{on_invalid}", batch.name);
            produce(kafka, &topic, &route, 0..GOOD);
            (batch.produce)(kafka, &topic);
            produce(kafka, &topic, &route, GOOD..2 * GOOD);
            damages.extend(batch.damage.map(|damage| (topic.clone(), damage)));
            cases.push(Case {
                route,
                topic,
                on_invalid,
                records: batch.records,
            });
        }
    }
    kafka.terminate().await;
    for (topic, damage) in damages {
        let segment = kafka.segment(&topic, 0);
        let number = raw::number_of(&segment, GOOD as i64);
        raw::damage(&segment, number, damage);
    }
    kafka.restart().await;
    cases
}

/// Waits until the dead letters of a case are there, and checks each.
async fn has_dead_letters(relay: &Relay, case: &Case) {
    let expected = if case.is_dropped() { 0 } else { case.records };
    let letters = dead(relay, &case.route).await;
    assert_eq!(letters.len(), expected, "{}: {letters:#?}", case.route);
    let mut offsets = Vec::new();
    for letter in &letters {
        assert_eq!(letter["reason"], "undecodable", "{letter:#?}");
        assert_eq!(letter["left_out"], true, "{letter:#?}");
        assert_eq!(letter["size"], 0, "{letter:#?}");
        assert_eq!(letter["position"]["partition"], 0, "{letter:#?}");
        offsets.push(letter["position"]["offset"].as_i64().expect("an offset"));
    }
    offsets.sort_unstable();
    let bad: Vec<_> = (GOOD as i64..(GOOD + expected) as i64).collect();
    assert_eq!(offsets, bad, "{}", case.route);
    if let Some(letter) = letters.first() {
        let ids = json!({ "ids": [letter["dead_id"]] }).to_string();
        let (status, answer) = relay
            .request("POST", "/api/v1/dead/redrive", None, &ids)
            .await
            .expect("an answer");
        assert_eq!(status, 200, "{answer}");
        assert!(
            answer.contains("\"refused\"") && answer.contains("there is nothing to send"),
            "{answer}"
        );
    }
}

/// Counters of a case: each record once, under its policy.
async fn is_counted(relay: &Relay, case: &Case) {
    let metrics = relay.metrics().await.expect("metrics");
    let of = [("route", case.route.as_str()), ("reason", "undecodable")];
    let dropped = if case.is_dropped() { case.records } else { 0 };
    let counted = metrics.sum("postdate_dropped_total", &of);
    assert_eq!(counted as usize, dropped, "{}", case.route);
    let [route, reason] = of;
    let invalid = [route, reason, ("policy", case.policy())];
    let counted = metrics.sum("postdate_invalid_total", &invalid);
    assert_eq!(counted as usize, case.records, "{}", case.route);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_record_that_cannot_be_opened_becomes_a_dead_letter_or_is_dropped_and_its_partition_is_read_on()
 {
    let (redis, mut kafka) = tokio::join!(Redis::start(), Kafka::start());
    let cases = cases(&mut kafka).await;
    let to = kafka.unique_topic("to", 1).await;
    let group = names::unique("g");
    let ingress =
        |topic: &str| format!("{{ kafka = \"main\", topic = \"{topic}\", group = \"{group}\" }}");
    let target = format!("{{ kafka = \"main\", topic = \"{to}\" }}");
    let mut config = Config::new(&redis).kafka("main", &kafka);
    for case in &cases {
        let policy = format!(
            "on_undecodable = \"skip\"\non_invalid = \"{}\"",
            case.on_invalid
        );
        config = config.route(&case.route, &ingress(&case.topic), &target, &policy);
    }
    let sound = kafka.unique_topic("sound", 1).await;
    config = config.route("sound", &ingress(&sound), &target, "");
    let relay = Relay::start(&config).await;
    // Another partition is read meanwhile.
    produce(&kafka, &sound, "sound", 0..2 * GOOD);
    for case in &cases {
        commits(&kafka, &group, &case.topic, case.end()).await;
    }
    commits(&kafka, &group, &sound, 2 * GOOD as i64).await;
    for case in &cases {
        has_dead_letters(&relay, case).await;
        is_counted(&relay, case).await;
    }
    let expected = 2 * GOOD * (cases.len() + 1);
    let mut arrived: BTreeMap<String, usize> = BTreeMap::new();
    for record in read_all(&kafka, &to, expected) {
        *arrived.entry(text(&record)).or_default() += 1;
    }
    assert_eq!(records_of(&kafka, &to), expected as i64, "each once");
    assert_eq!(arrived.len(), expected, "{arrived:#?}");
    eventually("nothing stands", async || {
        let (_, ready) = relay.get("/readyz").await?;
        anyhow::ensure!(!ready.contains("stands at"), "{ready}");
        anyhow::Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_is_killed_while_it_skips_loses_no_dead_letter_and_no_record() {
    let (redis, mut kafka) = tokio::join!(Redis::start(), Kafka::start());
    let topics = &damaged(&mut kafka).await[..3];
    let to = kafka.unique_topic("to", 1).await;
    let group = names::unique("g");
    let target = format!("{{ kafka = \"main\", topic = \"{to}\" }}");
    let mut config = Config::new(&redis).kafka("main", &kafka);
    for (index, topic) in topics.iter().enumerate() {
        let from = format!("{{ kafka = \"main\", topic = \"{topic}\", group = \"{group}\" }}");
        let route = format!("r{index}");
        config = config.route(&route, &from, &target, "on_undecodable = \"skip\"");
    }
    let mut relay = Relay::start(&config).await;
    // Killed as soon as a dead letter is in the store: its position may be committed by then, or not.
    eventually("a dead letter", async || {
        let mut letters = 0;
        for index in 0..topics.len() {
            letters += dead(&relay, &format!("r{index}")).await.len();
        }
        anyhow::ensure!(letters > 0, "none");
        anyhow::Ok(())
    })
    .await;
    relay.kill9().await;
    relay.restart().await;
    for (index, topic) in topics.iter().enumerate() {
        commits(&kafka, &group, topic, 3).await;
        let letters = dead(&relay, &format!("r{index}")).await;
        assert!((1..=2).contains(&letters.len()), "{topic}: {letters:#?}");
        for letter in letters {
            assert_eq!(letter["reason"], "undecodable", "{letter:#?}");
            assert_eq!(letter["position"]["offset"], 1, "{letter:#?}");
        }
    }
    let mut arrived: BTreeMap<String, usize> = BTreeMap::new();
    let there = usize::try_from(records_of(&kafka, &to)).expect("a number");
    for record in read_all(&kafka, &to, there) {
        *arrived.entry(text(&record)).or_default() += 1;
    }
    assert_eq!(arrived.len(), 2, "{arrived:#?}");
    for (body, times) in arrived {
        assert!(times >= topics.len(), "{body}: {times}");
    }
}

/// The route of a topic, which skips what cannot be opened.
fn skipping(name: &str, topic: &str, group: &str) -> Arc<Route> {
    let mut route = Route::clone(&route(name, topic, group));
    route.policy.on_undecodable = OnUndecodable::Skip;
    Arc::new(route)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_committed_past_a_skipped_record_before_it_is_safe_and_a_crash_repeats_it() {
    let mut kafka = Kafka::start().await;
    let topics = damaged(&mut kafka).await;
    let group = names::unique("g");
    // The first skips, the second waits, and the client library passes over a batch of the third.
    let routes = || {
        vec![
            skipping("r0", &topics[0], &group),
            route("r1", &topics[1], &group),
            skipping("r2", &topics[4], &group),
        ]
    };
    let memory = Arc::new(RecordingSink::default()).keeping();
    let reader = IngressFixture::start_reading(&kafka, &group, routes(), &memory);
    has_skipped(&memory, &topics[0]).await;
    has_skipped(&memory, &topics[4]).await;
    memory.has("m", 2).await;
    is_read_on(&reader, "r0").await;
    stands(&reader, "r1", 1).await;
    // The records before and behind are safe. The one that cannot be opened is not yet.
    memory.resolve(|offset| offset != 1);
    for topic in [&topics[0], &topics[4]] {
        commits(&kafka, &group, topic, 1).await;
    }
    reader.force().await;
    for topic in [&topics[0], &topics[4]] {
        assert_eq!(committed(&kafka, &group, topic, 0), Some(1));
    }

    let memory = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start_reading(&kafka, &group, routes(), &memory);
    has_skipped(&memory, &topics[0]).await;
    has_skipped(&memory, &topics[4]).await;
    commits(&kafka, &group, &topics[0], 3).await;
    commits(&kafka, &group, &topics[4], 3).await;
    stands(&reader, "r1", 1).await;
    assert_eq!(committed(&kafka, &group, &topics[1], 0), Some(1));
    assert_eq!((reader.lost("r0"), reader.lost("r2")), (0, 0));
    reader.stop().await;
}

/// Waits until the record at offset 1 was handed over without content, once.
async fn has_skipped(memory: &RecordingSink, topic: &str) {
    eventually("offset 1 is skipped", async || {
        let taken = memory.taken.lock();
        let at_1: Vec<_> = taken
            .iter()
            .filter(|taken| taken.topic == *topic && taken.offset == 1)
            .map(|taken| (taken.missing.clone(), taken.message.body.clone()))
            .collect();
        match at_1.as_slice() {
            [(Some(Missing::Everything(_)), None)] => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}
