//! Partitions that come, go, wait, and are overtaken: what one of them suffers is its own, and nothing is silent.

use std::sync::Arc;
use std::time::Duration;

use postdate::health::PartState;
use postdate::ingress::ReadBudget;
use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

use super::fixture::{IngressFixture, RecordingSink, commits, committed, produce};
use crate::support::{Kafka, eventually, names};

/// Deletes a partition's records before an offset, as retention would.
async fn delete_before(kafka: &Kafka, topic: &str, offset: i64) {
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Offset(offset))
        .expect("an offset");
    let deleted = kafka
        .admin()
        .delete_records(&list, &AdminOptions::new())
        .await
        .expect("an answer");
    deleted.elements()[0].error().expect("deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_was_paused_when_it_was_taken_away_is_read_when_it_comes_back() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("paused", 2).await;
    let group = names::unique("g");
    produce(kafka, &topic, "m", 0..400);
    let memory = Arc::new(RecordingSink::default()).keeping();
    let elsewhere = Arc::new(RecordingSink::default()).keeping();
    // Some thirty records fill each window.
    let budget = Arc::new(ReadBudget::new(30_000));
    let first = IngressFixture::start_within(kafka, &group, &[&topic], &memory, &budget);
    eventually("both windows are full", async || {
        let held = budget.used();
        if held >= 14_000 { Ok(()) } else { Err(held) }
    })
    .await;
    let second = IngressFixture::start(kafka, &group, &[&topic], &elsewhere);
    kafka.shared_out(&group, &topic, 2).await;
    second.force().await;
    kafka.shared_out(&group, &topic, 1).await;
    memory.release();
    memory.has("m", 400).await;
    eventually("all of both is committed", async || {
        let found: i64 = (0..2)
            .filter_map(|partition| committed(kafka, &group, &topic, partition))
            .sum();
        if found == 400 { Ok(()) } else { Err(found) }
    })
    .await;
    first.stop().await;
}

/// Time that a consumer that stops gives its group to let it go, less a second.
const LEAVES_WITHIN: std::time::Duration = std::time::Duration::from_secs(4);

/// A member that the group still counted would keep its partitions from the others until its session ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_has_stopped_has_left_its_group() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("left", 6).await;
    let group = names::unique("g");
    let mut left = 0;
    for round in 0..5 {
        let memory = Arc::new(RecordingSink::default());
        let [first, second] =
            [0, 1].map(|_| IngressFixture::start(kafka, &group, &[&topic], &memory));
        kafka.shared_out(&group, &topic, 2).await;
        for (consumer, rest) in [(first, 1), (second, 0)] {
            // The second one stops in the middle of the rebalance that the first one's end has caused.
            let began = tokio::time::Instant::now();
            consumer.stop().await;
            // On a machine that stands still meanwhile it has given up.
            if began.elapsed() < LEAVES_WITHIN {
                assert_eq!(kafka.members(&group), rest, "round {round}");
                left += 1;
            }
        }
    }
    assert!(left > 0, "no consumer had the time to leave");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_partitions_that_wait_share_one_budget_and_leave_some_of_it_to_others() {
    let kafka = Kafka::shared().await;
    let many = kafka.unique_topic("many", 100).await;
    let quick = kafka.unique_topic("quick", 1).await;
    produce(kafka, &many, "m", 0..20_000);
    let memory = Arc::new(RecordingSink::default()).keeping();
    let most = 2 << 20;
    let one = 300;
    let budget = Arc::new(ReadBudget::new(most));
    let reader = IngressFixture::start_within(
        kafka,
        &names::unique("g"),
        &[&many, &quick],
        &memory,
        &budget,
    );
    eventually("the budget is used up", async || {
        let held = budget.used();
        if held >= most * 3 / 4 {
            Ok(())
        } else {
            Err(held)
        }
    })
    .await;
    produce(kafka, &quick, "q", 0..20);
    memory.has("q", 20).await;
    assert!(
        budget.used() <= most + 101 * one,
        "{} are held",
        budget.used()
    );
    memory.release();
    memory.has("m", 20_000).await;
    reader.stop().await;
    assert_eq!(budget.used(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_deleted_before_they_were_read_are_told_and_counted() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("overtaken", 1).await;
    let group = names::unique("g");
    produce(kafka, &topic, "a", 0..100);
    let memory = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start(kafka, &group, &[&topic], &memory);
    commits(kafka, &group, &topic, 100).await;
    assert_eq!(reader.lost("r0"), 0);
    reader.stop().await;
    // While no relay ran.
    produce(kafka, &topic, "b", 0..100);
    delete_before(kafka, &topic, 150).await;
    let memory = Arc::new(RecordingSink::default()).keeping();
    let budget = Arc::new(ReadBudget::new(10_000));
    let reader = IngressFixture::start_within(kafka, &group, &[&topic], &memory, &budget);
    eventually("what is gone is counted", async || {
        let lost = reader.lost("r0");
        if lost == 50 { Ok(()) } else { Err(lost) }
    })
    .await;
    eventually("the window is full", async || {
        let held = budget.used();
        if held >= 5_000 { Ok(()) } else { Err(held) }
    })
    .await;
    // While one waits, beyond the next offset that it would read.
    delete_before(kafka, &topic, 190).await;
    produce(kafka, &topic, "c", 0..10);
    eventually("what goes while it waits is counted", async || {
        let lost = reader.lost("r0");
        if lost > 50 { Ok(()) } else { Err(lost) }
    })
    .await;
    memory.release();
    commits(kafka, &group, &topic, 210).await;
    let read = memory.taken.lock().len() as u64;
    assert_eq!(
        reader.lost("r0") + read,
        110,
        "each is read, or counted once"
    );
    reader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn markers_of_transactions_leave_no_lag_behind() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("markers", 1).await;
    let group = names::unique("g");
    let producer: BaseProducer = kafka
        .client()
        .set("transactional.id", &topic)
        .create()
        .expect("a producer");
    let patience = Duration::from_secs(30);
    producer.init_transactions(patience).expect("transactions");
    let memory = Arc::new(RecordingSink::default()).keeping();
    let reader = IngressFixture::start(kafka, &group, &[&topic], &memory);
    for kind in ["kept", "aborted", "aborted"] {
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
    memory.has("kept", 10).await;
    eventually("what is read and waits is lag too", async || {
        let lag = reader.lag("r0");
        let unresolved = reader.unresolved("r0");
        if (lag, unresolved) == (33, 10) {
            Ok(())
        } else {
            Err(format!("{lag}, {unresolved}"))
        }
    })
    .await;
    memory.release();
    commits(kafka, &group, &topic, 33).await;
    eventually("no lag is left", async || {
        let lag = reader.lag("r0");
        let unresolved = reader.unresolved("r0");
        if (lag, unresolved) == (0, 0) {
            Ok(())
        } else {
            Err(format!("{lag}, {unresolved}"))
        }
    })
    .await;
    reader.stop().await;
    assert_eq!(memory.taken.lock().len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_without_a_leader_costs_its_own_route_only_and_is_told() {
    let mut kafka = Kafka::start_three().await;
    let good = names::unique("good");
    let bad = names::unique("bad");
    let group = names::unique("g");
    // Each lies on one node only.
    let topics = [(&good, &[&[1][..]][..]), (&bad, &[&[3][..]][..])];
    let topics = topics.map(|(name, nodes)| {
        NewTopic::new(name, 1, TopicReplication::Variable(nodes)).set("min.insync.replicas", "1")
    });
    let made = kafka
        .admin()
        .create_topics(&topics, &AdminOptions::new())
        .await
        .expect("an answer");
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    kafka.leader(&good, 0).await;
    kafka.leader(&bad, 0).await;
    assert_eq!(
        committed(&kafka, &group, &good, 0),
        None,
        "the group has its coordinator while all are there"
    );
    produce(&kafka, &bad, "bad", 0..10);
    kafka.kill9_node(2).await;
    let memory = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start(&kafka, &group, &[&good, &bad], &memory);
    produce(&kafka, &good, "good", 0..10);
    memory.has("good", 10).await;
    commits(&kafka, &group, &good, 10).await;
    eventually("it says what cannot be read", async || {
        match reader.health.parts().remove(0).1 {
            PartState::Degraded(why) if why.contains(&bad) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert!(reader.health.is_ready(), "the others flow");
    kafka.start_again().await;
    memory.has("bad", 10).await;
    eventually("it says that all is well", async || {
        match reader.health.parts().remove(0).1 {
            PartState::Up => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    reader.stop().await;
}
