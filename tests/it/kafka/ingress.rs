//! The consumer: what it hands on, what it commits, and that nothing is skipped.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use postdate::domain::{FirstStart, HeaderValue, ReadMark, Route, UnixMs, Verdict};
use postdate::ingress::{Delivery, Feed, Missing, Sink};
use rdkafka::Message as _;
use rdkafka::consumer::BaseConsumer;
use rdkafka::message::{Header, Headers as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use super::fixture::{
    EgressFixture, IngressFixture, RecordingSink, commits, committed, committed_of, produce,
    read_all, rewind,
};
use super::raw::{self, RawRecord};
use crate::support::{Kafka, eventually, names};

type Plain = (
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Vec<(&'static str, Option<Vec<u8>>)>,
);

/// Null and empty, repeated, binary and null headers.
fn awkward() -> Vec<Plain> {
    let bytes = |b: &[u8]| Some(b.to_vec());
    vec![
        (None, None, vec![]),
        (bytes(b""), bytes(b""), vec![("", bytes(b""))]),
        (
            bytes(b"\0\xff"),
            bytes(b"\xfe\0"),
            vec![("b", bytes(b"\x80\0")), ("a", None), ("b", bytes(b"2"))],
        ),
        (
            None,
            bytes(b"body"),
            vec![
                ("trace", bytes(b"1")),
                ("TRACE", None),
                ("\u{fc}", bytes(b"\xc3")),
            ],
        ),
        (bytes(b"k"), None, vec![("tombstone", bytes(b""))]),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_byte_survives_the_way_in_and_out() {
    let kafka = Kafka::shared().await;
    let from = kafka.unique_topic("from", 1).await;
    let to = kafka.unique_topic("to", 1).await;
    let producer: BaseProducer = kafka.client().create().expect("a producer");
    for (i, (key, body, headers)) in awkward().iter().enumerate() {
        let mut record = BaseRecord::<[u8], [u8]>::to(&from).timestamp(1_000_000 + i as i64);
        (record.key, record.payload) = (key.as_deref(), body.as_deref());
        let mut owned = OwnedHeaders::new();
        for (key, value) in headers {
            owned = owned.insert(Header {
                key,
                value: value.as_deref(),
            });
        }
        producer.send(record.headers(owned)).expect("room");
    }
    producer.flush(Duration::from_secs(20)).expect("flushed");

    let memory = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start(kafka, &names::unique("g"), &[&from], &memory);
    let count = awkward().len();
    eventually("all are read", async || {
        let found = memory.taken.lock().len();
        if found == count { Ok(()) } else { Err(found) }
    })
    .await;
    let writer = EgressFixture::start(kafka);
    for (i, taken) in memory.taken.lock().iter().enumerate() {
        assert_eq!(
            (taken.offset, taken.produced),
            (i as i64, Some(UnixMs(1_000_000 + i as i64)))
        );
        writer.submit(i as u64, &to, taken.message.clone());
    }
    assert!(
        writer
            .verdicts(count)
            .await
            .values()
            .all(Verdict::is_confirmed)
    );
    let out: Vec<Plain> = read_all(kafka, &to, count)
        .iter()
        .zip(awkward())
        .map(|(record, (_, _, names))| {
            let headers: Vec<_> = record
                .headers()
                .map(|h| h.iter().collect())
                .unwrap_or_default();
            assert_eq!(headers.len(), names.len());
            let headers = headers.iter().zip(names).map(|(h, (name, _))| {
                assert_eq!(h.key, name);
                (name, h.value.map(<[u8]>::to_vec))
            });
            (
                record.key().map(<[u8]>::to_vec),
                record.payload().map(<[u8]>::to_vec),
                headers.collect(),
            )
        })
        .collect();
    assert_eq!(out, awkward());
    reader.stop().await;
    writer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_name_that_is_not_utf8_makes_one_record_malformed_and_stops_nothing() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("malformed", 1).await;
    raw::produce(
        kafka,
        &topic,
        5,
        &RawRecord {
            body: b"bad",
            header: (b"x-\xff", b"1"),
        },
    );
    raw::produce(
        kafka,
        &topic,
        -1,
        &RawRecord {
            body: b"good",
            header: (b"x-y", b"1"),
        },
    );
    let memory = Arc::new(RecordingSink::default());
    let group = names::unique("g");
    let reader = IngressFixture::start(kafka, &group, &[&topic], &memory);
    commits(kafka, &group, &topic, 2).await;
    reader.stop().await;
    let taken = memory.taken.lock();
    assert!(matches!(taken[0].missing, Some(Missing::Headers(_))));
    assert!(taken[0].message.headers.is_empty());
    assert_eq!(taken[0].message.body.as_deref(), Some(&b"bad"[..]));
    assert_eq!(taken[0].produced, Some(UnixMs(5)));
    assert_eq!(taken[1].missing, None);
    assert_eq!(taken[1].produced, None, "a record without a timestamp");
    assert_eq!(
        taken[1].message.headers[0].value,
        HeaderValue::Bytes("1".into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_resolved_prefix_is_committed_and_the_rest_is_read_again() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("prefix", 1).await;
    let group = names::unique("g");
    produce(kafka, &topic, "m", 0..10);
    let memory = Arc::new(RecordingSink::default()).keeping();
    let reader = IngressFixture::start(kafka, &group, &[&topic], &memory);
    memory.has("m", 10).await;
    commits(kafka, &group, &topic, 0).await;
    memory.resolve(|offset| offset > 3);
    memory.resolve(|offset| offset < 2);
    commits(kafka, &group, &topic, 2).await;
    memory.resolve(|offset| offset == 2);
    commits(kafka, &group, &topic, 3).await;
    // It dies with offset 3 unresolved: that one and all after it come again, none before.
    reader.force().await;
    assert_eq!(committed(kafka, &group, &topic, 0), Some(3));
    let again = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start(kafka, &group, &[&topic], &again);
    commits(kafka, &group, &topic, 10).await;
    let offsets: Vec<_> = again.taken.lock().iter().map(|t| t.offset).collect();
    assert_eq!(offsets, (3..10).collect::<Vec<_>>());
    reader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gaps_in_the_offsets_stop_nothing_and_aborted_records_are_never_seen() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("gaps", 1).await;
    let group = names::unique("g");
    let producer: BaseProducer = kafka
        .client()
        .set("transactional.id", &topic)
        .create()
        .expect("a producer");
    let patience = Duration::from_secs(30);
    producer.init_transactions(patience).expect("transactions");
    // Each transaction ends with a marker, which takes an offset: 0-9, 11-20 and 22-31 hold records.
    for kind in ["kept", "aborted", "kept"] {
        producer.begin_transaction().expect("begun");
        for i in 0..10 {
            producer
                .send(BaseRecord::<str, str>::to(&topic).payload(&format!("{kind}-{i}")))
                .expect("room");
        }
        producer.flush(patience).expect("flushed");
        match kind {
            "kept" => producer.commit_transaction(patience).expect("committed"),
            _ => producer.abort_transaction(patience).expect("aborted"),
        }
    }
    let memory = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start(kafka, &group, &[&topic], &memory);
    // Beyond the last marker.
    commits(kafka, &group, &topic, 33).await;
    reader.stop().await;
    let offsets: Vec<_> = memory.taken.lock().iter().map(|t| t.offset).collect();
    assert_eq!(offsets, (0..10).chain(22..32).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_waits_for_what_is_outstanding_and_repeats_nothing() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("clean", 1).await;
    let group = names::unique("g");
    produce(kafka, &topic, "m", 0..50);
    let memory = Arc::new(RecordingSink::default()).keeping();
    let reader = IngressFixture::start(kafka, &group, &[&topic], &memory);
    memory.has("m", 50).await;
    reader.shutdown.begin();
    let ended = reader.tasks.ended(Duration::from_millis(500)).await;
    assert!(ended.is_err(), "it ended with records outstanding");
    memory.resolve(|_| true);
    reader.stop().await;
    assert_eq!(committed(kafka, &group, &topic, 0), Some(50));
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_that_join_and_leave_in_mid_flow_lose_and_repeat_nothing() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("rebalance", 6).await;
    let group = names::unique("g");
    let memory = Arc::new(RecordingSink::default());
    let first = IngressFixture::start(kafka, &group, &[&topic], &memory);
    produce(kafka, &topic, "m", 0..2000);
    memory.has("m", 100).await;
    let second = IngressFixture::start(kafka, &group, &[&topic], &memory);
    produce(kafka, &topic, "m", 2000..4000);
    // Each partition that moved was opened a second time.
    eventually("partitions move to the second", async || {
        let sources = memory.sources.lock().len();
        if sources > 6 { Ok(()) } else { Err(sources) }
    })
    .await;
    produce(kafka, &topic, "m", 4000..5000);
    first.stop().await;
    produce(kafka, &topic, "m", 5000..6000);
    memory.has("m", 6000).await;
    second.stop().await;
    let repeated: BTreeMap<_, _> = memory
        .bodies()
        .into_iter()
        .filter(|(_, times)| *times > 1)
        .collect();
    assert_eq!(repeated, BTreeMap::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_sink_pauses_its_partition_only_and_everything_comes_in_order() {
    let kafka = Kafka::shared().await;
    let slow = kafka.unique_topic("slow", 1).await;
    let quick = kafka.unique_topic("quick", 1).await;
    produce(kafka, &slow, "s", 0..100_000);
    let memory = Arc::new(RecordingSink::default()).keeping();
    let group = names::unique("g");
    let reader = IngressFixture::start(kafka, &group, &[&slow, &quick], &memory);
    memory.has("s", 65_536).await;
    produce(kafka, &quick, "q", 0..100);
    memory.has("q", 100).await;
    let of_slow = || {
        memory
            .taken
            .lock()
            .iter()
            .filter(|t| t.topic == slow)
            .count()
    };
    // A poll may be on its way when the pause begins, no more.
    assert!(of_slow() < 67_000, "{} are outstanding", of_slow());
    eventually("the lag is what is not resolved", async || {
        let found = (reader.lag("r0"), reader.lag("r1"), reader.unresolved("r0"));
        if found == (100_000, 100, of_slow() as i64) {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
    eventually("all of them come as they are resolved", async || {
        memory.resolve(|_| true);
        let found = of_slow();
        if found == 100_000 { Ok(()) } else { Err(found) }
    })
    .await;
    let offsets: Vec<_> = memory
        .taken
        .lock()
        .iter()
        .filter(|t| t.topic == slow)
        .map(|t| t.offset)
        .collect();
    assert_eq!(offsets, (0..100_000).collect::<Vec<_>>());
    memory.resolve(|_| true);
    reader.stop().await;
    assert_eq!(committed(kafka, &group, &slow, 0), Some(100_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_re_created_topic_is_read_from_its_first_record() {
    let kafka = Kafka::shared().await;
    let group = names::unique("g");
    // Fewer records than the old one had, as many, and more: only the first makes Kafka complain.
    for count in [20, 50, 120] {
        let topic = kafka.unique_topic("recreated", 1).await;
        let memory = Arc::new(RecordingSink::default());
        let reader = IngressFixture::start(kafka, &group, &[&topic], &memory);
        produce(kafka, &topic, "old", 0..50);
        commits(kafka, &group, &topic, 50).await;
        kafka.re_create_topic(&topic, 1).await;
        produce(kafka, &topic, "new", 0..count);
        memory.has("new", count).await;
        commits(kafka, &group, &topic, count as i64).await;
        reader.stop().await;
        assert_eq!(
            committed(kafka, &group, &topic, 0),
            Some(count as i64),
            "{count} records"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_re_created_with_unresolved_records_commits_none_of_the_old_ones() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("unresolved", 1).await;
    let group = names::unique("g");
    produce(kafka, &topic, "old", 0..50);
    let memory = Arc::new(RecordingSink::default()).keeping();
    let reader = IngressFixture::start(kafka, &group, &[&topic], &memory);
    memory.has("old", 50).await;
    commits(kafka, &group, &topic, 0).await;
    kafka.re_create_topic(&topic, 1).await;
    produce(kafka, &topic, "new", 0..120);
    // The store is back: what was read of the old topic resolves now.
    memory.resolve(|_| true);
    eventually("all of the new topic are read and committed", async || {
        memory.resolve(|_| true);
        let found = committed(kafka, &group, &topic, 0);
        if found == Some(120) {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
    memory.has("new", 120).await;
    reader.stop().await;
}

/// A sink that asks the broker what its group has committed when the first records come.
struct Asking {
    consumer: BaseConsumer,
    topic: String,
    found: OnceLock<Option<i64>>,
}

struct AskingFeed(Arc<Asking>);

impl Sink for Asking {
    type Feed = AskingFeed;

    async fn open(self: &Arc<Self>, _: &Arc<Route>, _: String) -> Option<AskingFeed> {
        Some(AskingFeed(self.clone()))
    }

    async fn read_mark(&self, _: &str) -> Result<Option<ReadMark>, String> {
        Ok(None)
    }

    async fn first_start(&self, _: &str, seen: FirstStart) -> Result<FirstStart, String> {
        Ok(seen)
    }
}

impl Feed for AskingFeed {
    async fn until_open(&self) {}

    async fn until_ready(&self) {}

    async fn until_closed(&self) {
        std::future::pending::<()>().await;
    }

    async fn take(&mut self, batch: Vec<Delivery>) -> Vec<Delivery> {
        self.0
            .found
            .get_or_init(|| committed_of(&self.0.consumer, &self.0.topic, 0));
        for delivery in batch {
            delivery.receipt.resolve();
        }
        Vec::new()
    }

    fn had_time(&self) -> bool {
        false
    }
}

/// A first commit that nobody has seen there, and that is not there later, would be taken for one that never
/// arrived: what was read of a topic that is gone would be committed of the next one of its name.
#[tokio::test(flavor = "multi_thread")]
async fn where_reading_begins_is_committed_before_a_record_is_read() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("begins", 1).await;
    let group = names::unique("g");
    produce(kafka, &topic, "old", 0..50);
    let consumer: BaseConsumer = kafka
        .client()
        .set("group.id", &group)
        .create()
        .expect("a consumer");
    assert_eq!(
        committed_of(&consumer, &topic, 0),
        None,
        "nothing yet; it is connected now"
    );
    let asking = Arc::new(Asking {
        consumer,
        topic: topic.clone(),
        found: OnceLock::new(),
    });
    let reader = IngressFixture::start(kafka, &group, &[&topic], &asking);
    let found = eventually("records come", async || {
        asking.found.get().copied().ok_or("none yet")
    });
    assert_eq!(found.await, Some(0));
    reader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_re_created_while_nobody_reads_is_read_from_its_first_record() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("away", 1).await;
    let group = names::unique("g");
    let memory = Arc::new(RecordingSink::default());
    produce(kafka, &topic, "old", 0..50);
    let reader = IngressFixture::start(kafka, &group, &[&topic], &memory);
    commits(kafka, &group, &topic, 50).await;
    reader.stop().await;
    kafka.re_create_topic(&topic, 1).await;
    produce(kafka, &topic, "new", 0..120);
    let reader = IngressFixture::start(kafka, &group, &[&topic], &memory);
    memory.has("new", 120).await;
    reader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rewound_offsets_are_read_again() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("rewound", 1).await;
    let group = names::unique("g");
    produce(kafka, &topic, "m", 0..30);
    let memory = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start(kafka, &group, &[&topic], &memory);
    commits(kafka, &group, &topic, 30).await;
    reader.stop().await;
    rewind(kafka, &group, &topic, 10);
    let again = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start(kafka, &group, &[&topic], &again);
    commits(kafka, &group, &topic, 30).await;
    let offsets: Vec<_> = again.taken.lock().iter().map(|t| t.offset).collect();
    assert_eq!(offsets, (10..30).collect::<Vec<_>>());
    reader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_topic_costs_its_own_route_only_and_is_found_when_it_is_made() {
    let kafka = Kafka::shared().await;
    let there = kafka.unique_topic("there", 1).await;
    let missing = names::unique("absent");
    let memory = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start(kafka, &names::unique("g"), &[&there, &missing], &memory);
    produce(kafka, &there, "there", 0..10);
    memory.has("there", 10).await;
    kafka.create_topic(&missing, 2).await;
    produce(kafka, &missing, "made", 0..10);
    memory.has("made", 10).await;
    reader.stop().await;
}
