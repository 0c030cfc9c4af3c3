//! Where reading begins when the committed position cannot be true: it is beyond the log's end, or gone.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::admin::AdminOptions;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use postdate::domain::{ReadMark, SkipGoal, SkipOutcome, UnixMs};

use super::fixture::{IngressFixture, RecordingSink, commit_beyond, commits, committed, rewind};
use crate::support::{Kafka, eventually, names};

const HOUR: Duration = Duration::from_secs(3600);

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("after 1970").as_millis() as i64
}

/// Produces `KIND-0` .. to partition 0, as if it was so long ago.
fn produce_aged(
    kafka: &Kafka,
    topic: &str,
    kind: &str,
    range: std::ops::Range<usize>,
    age: Duration,
) {
    let producer: BaseProducer = kafka.client().create().expect("a producer");
    let produced = now_ms() - age.as_millis() as i64;
    for i in range {
        let body = format!("{kind}-{i}");
        let record = BaseRecord::<(), _>::to(topic).partition(0).payload(&body);
        producer.send(record.timestamp(produced)).expect("room");
        if i % 50_000 == 49_999 {
            producer.flush(Duration::from_secs(20)).expect("flushed");
        }
    }
    producer.flush(Duration::from_secs(20)).expect("flushed");
}

/// 1,900 records of an hour ago, and 100 of this moment.
fn produce_2000(kafka: &Kafka, topic: &str) {
    produce_aged(kafka, topic, "m", 0..1900, HOUR);
    produce_aged(kafka, topic, "m", 1900..2000, Duration::ZERO);
}

fn offsets(memory: &RecordingSink) -> Vec<i64> {
    memory.taken.lock().iter().map(|t| t.offset).collect()
}

/// Reads all of a topic, commits it, and stops.
async fn read(kafka: &Kafka, group: &str, topic: &str, count: i64) {
    let memory = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start(kafka, group, &[topic], &memory);
    commits(kafka, group, topic, count).await;
    reader.stop().await;
    assert_eq!(offsets(&memory), (0..count).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_beyond_the_end_costs_the_last_ten_minutes_and_not_the_whole_log() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("beyond", 1).await;
    let group = names::unique("g");
    produce_2000(kafka, &topic);
    read(kafka, &group, &topic, 2000).await;
    commit_beyond(kafka, &group, &topic, 2003);
    let again = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start(kafka, &group, &[&topic], &again);
    commits(kafka, &group, &topic, 2000).await;
    // What is written now lies below the position that was committed.
    produce_aged(kafka, &topic, "n", 0..10, Duration::ZERO);
    commits(kafka, &group, &topic, 2010).await;
    assert_eq!(offsets(&again), (1900..2010).collect::<Vec<_>>());
    assert_eq!(reader.lost("r0"), 0);
    reader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_restored_under_its_name_costs_the_last_ten_minutes() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("restored", 1).await;
    let group = names::unique("g");
    produce_2000(kafka, &topic);
    let memory = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start(kafka, &group, &[&topic], &memory);
    commits(kafka, &group, &topic, 2000).await;
    kafka.re_create_topic(&topic, 1).await;
    produce_2000(kafka, &topic);
    produce_aged(kafka, &topic, "new", 0..10, Duration::ZERO);
    memory.has("new", 10).await;
    commits(kafka, &group, &topic, 2010).await;
    reader.stop().await;
    let again = offsets(&memory).split_off(2000);
    assert!(
        again.len() <= 120,
        "{} again: {:?}",
        again.len(),
        &again[..5]
    );
}

/// Its records went with its commits, or its commits alone are lost: the brokers tell no more than that there is none.
async fn lose_commits(kafka: &Kafka, group: &str) {
    let deleted = kafka
        .admin()
        .delete_groups(&[group], &AdminOptions::new())
        .await
        .expect("an answer");
    deleted[0].as_ref().expect("deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_is_lost_costs_the_last_ten_minutes_before_the_stores_mark() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("lost", 1).await;
    let group = names::unique("g");
    produce_2000(kafka, &topic);
    read(kafka, &group, &topic, 2000).await;
    lose_commits(kafka, &group).await;
    let again = Arc::new(RecordingSink::default());
    let mark = ReadMark {
        until: 2000,
        resolved: Some(UnixMs(now_ms())),
    };
    let source = format!("kafka/main/{group}/{topic}/0");
    again.marks.lock().insert(source, mark);
    let reader = IngressFixture::start(kafka, &group, &[&topic], &again);
    commits(kafka, &group, &topic, 2000).await;
    reader.stop().await;
    assert_eq!(offsets(&again), (1900..2000).collect::<Vec<_>>());
}

/// Waits until the route's source is down, for a reason that says all of this.
async fn waits(reader: &IngressFixture, route: &str, says: &[&str]) {
    eventually(&format!("{route} waits for a word"), async || {
        let why = reader.route(route).source_waits().unwrap_or_default();
        if says.iter().all(|part| why.contains(part)) {
            Ok(())
        } else {
            Err(why)
        }
    })
    .await;
}

async fn word(reader: &IngressFixture, goal: SkipGoal) -> SkipOutcome {
    reader.skip("r0", 0, goal).await
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_100_000_records_are_read_again_only_on_an_operators_word() {
    let kafka = Kafka::shared().await;
    let (topic, other) = (
        kafka.unique_topic("many", 1).await,
        kafka.unique_topic("other", 1).await,
    );
    let group = names::unique("g");
    produce_aged(kafka, &topic, "m", 0..10, HOUR);
    produce_aged(kafka, &topic, "m", 10..100_011, Duration::ZERO);
    let memory = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start(kafka, &group, &[&topic], &memory);
    commits(kafka, &group, &topic, 100_011).await;
    reader.stop().await;
    commit_beyond(kafka, &group, &topic, 100_020);
    let again = Arc::new(RecordingSink::default());
    let start = || IngressFixture::start(kafka, &group, &[&topic, &other], &again);
    let reader = start();
    let place = format!("topic {topic}/0: its position 100020 is beyond the log's end 100011");
    let says = [
        place.as_str(),
        "100001 records would be read again",
        "`postdate skip --route r0 --partition 0 --to 10`",
        "`--since MOMENT`",
    ];
    waits(&reader, "r0", &says).await;
    // The others flow.
    produce_aged(kafka, &other, "o", 0..10, Duration::ZERO);
    again.has("o", 10).await;
    assert_eq!(reader.route("r1").source_waits(), None);
    for (goal, refused) in [
        (SkipGoal::To(100_012), SkipOutcome::OutsideLog(0, 100_011)),
        (SkipGoal::To(-1), SkipOutcome::OutsideLog(0, 100_011)),
    ] {
        assert_eq!(word(&reader, goal).await, refused);
    }
    let past = word(&reader, SkipGoal::Past(10)).await;
    assert!(matches!(past, SkipOutcome::NotRead(_)), "{past:?}");
    // The log grows beyond the position, and the relay starts anew: the position is no truer for that.
    produce_aged(kafka, &topic, "n", 0..20, Duration::ZERO);
    reader.stop().await;
    let reader = start();
    waits(&reader, "r0", &["100001 records", "--to 10`"]).await;
    assert_eq!(
        again.bodies().len(),
        10,
        "nothing is read without a word but the other topic"
    );
    assert_eq!(reader.lost("r0"), 0);
    let taken_over = word(&reader, SkipGoal::To(100_011)).await;
    assert_eq!(taken_over, SkipOutcome::GoesOn(100_011));
    again.has("n", 20).await;
    commits(kafka, &group, &topic, 100_031).await;
    assert_eq!(reader.route("r0").source_waits(), None);
    assert_eq!(
        word(&reader, SkipGoal::To(10)).await,
        SkipOutcome::DoesNotStand(100_031)
    );
    assert_eq!(again.bodies().len(), 30);
    reader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_of_a_time_begins_at_the_first_record_of_it() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("since", 1).await;
    let group = names::unique("g");
    produce_aged(kafka, &topic, "m", 0..100_001, HOUR);
    produce_aged(kafka, &topic, "n", 0..10, Duration::ZERO);
    // The commit says nothing of a time, so all that was read counts.
    rewind(kafka, &group, &topic, 100_012);
    let memory = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start(kafka, &group, &[&topic], &memory);
    waits(&reader, "r0", &["100011 records", "--to 0`"]).await;
    let since = SkipGoal::Since(UnixMs(now_ms() - HOUR.as_millis() as i64 / 2));
    assert_eq!(word(&reader, since).await, SkipOutcome::GoesOn(100_001));
    commits(kafka, &group, &topic, 100_011).await;
    assert_eq!(committed(kafka, &group, &topic, 0), Some(100_011));
    assert_eq!(offsets(&memory), (100_001..100_011).collect::<Vec<_>>());
    reader.stop().await;
}
