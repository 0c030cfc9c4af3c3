//! Why a group gives nothing to read, or a partition nothing new, is named: another kind of consumer in the group, and a
//! transaction that is open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use postdate::health::PartState;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use super::fixture::{IngressFixture, RecordingSink, produce};
use crate::support::{Kafka, eventually, names};

/// Longer than a consumer waits for a group that says nothing before it restarts.
const JOIN_LIMIT: Duration = Duration::from_secs(22);

/// A member of a group that shares the partitions by another assignor, until it is told to leave.
struct OtherMember {
    leaves: Arc<AtomicBool>,
    polling: tokio::task::JoinHandle<()>,
}

impl OtherMember {
    async fn join(kafka: &Kafka, group: &str, topic: &str) -> Self {
        let mut config = kafka.client();
        config
            .set("group.id", group)
            .set("partition.assignment.strategy", "range");
        let consumer: BaseConsumer = config.create().expect("a consumer");
        consumer.subscribe(&[topic]).expect("subscribed");
        let leaves = Arc::new(AtomicBool::new(false));
        let has_joined = Arc::new(AtomicBool::new(false));
        let (told, tells) = (leaves.clone(), has_joined.clone());
        let polling = tokio::task::spawn_blocking(move || {
            while !told.load(Ordering::SeqCst) {
                drop(consumer.poll(Duration::from_millis(100)));
                let assigned = consumer.assignment().expect("its assignment").count();
                tells.store(assigned > 0, Ordering::SeqCst);
            }
        });
        eventually("the other member has its partitions", async || {
            ensure!(has_joined.load(Ordering::SeqCst), "not yet");
            Ok(())
        })
        .await;
        Self { leaves, polling }
    }

    async fn leave(self) {
        self.leaves.store(true, Ordering::SeqCst);
        self.polling.await.expect("no panic");
    }
}

/// The reason why the consumer waits.
fn why(reader: &IngressFixture) -> Option<String> {
    match reader.health.parts().remove(0).1 {
        PartState::Up => None,
        PartState::Waiting(why) | PartState::Degraded(why) => Some(why),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_another_kind_of_consumers_is_named_and_waited_for_without_a_restart() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("shared", 1).await;
    let group = names::unique("g");
    let other = OtherMember::join(kafka, &group, &topic).await;
    produce(kafka, &topic, "m", 0..10);
    let memory = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start(kafka, &group, &[&topic], &memory);
    let is_named = |reason: Option<String>| {
        reason.is_some_and(|reason| {
            reason.contains("Inconsistent group protocol")
                && reason.contains("another application uses this group")
        })
    };
    eventually("the reason is named", async || {
        ensure!(is_named(why(&reader)), "{:?}", why(&reader));
        Ok(())
    })
    .await;
    let source = reader.route("r0").source_waits().expect("the source waits");
    assert!(is_named(Some(source.clone())), "{source}");
    let until = Instant::now() + JOIN_LIMIT;
    while Instant::now() < until {
        assert!(is_named(why(&reader)), "{:?}", why(&reader));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    other.leave().await;
    memory.has("m", 10).await;
    eventually("nothing is wrong any more", async || {
        let (part, source) = (why(&reader), reader.route("r0").source_waits());
        ensure!(part.is_none() && source.is_none(), "{part:?}, {source:?}");
        Ok(())
    })
    .await;
    reader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_before_a_source_is_named_until_it_ends() {
    let kafka = Kafka::shared().await;
    let patience = Duration::from_secs(30);
    for ends_well in [true, false] {
        let topic = kafka.unique_topic("open", 1).await;
        let group = names::unique("g");
        let producer: BaseProducer = kafka
            .client()
            .set("transactional.id", &topic)
            .create()
            .expect("a producer");
        producer.init_transactions(patience).expect("transactions");
        let memory = Arc::new(RecordingSink::default());
        let reader = IngressFixture::start(kafka, &group, &[&topic], &memory);
        produce(kafka, &topic, "before", 0..5);
        memory.has("before", 5).await;
        producer.begin_transaction().expect("begun");
        producer
            .send(BaseRecord::<str, str>::to(&topic).payload("within-0"))
            .expect("room");
        producer.flush(patience).expect("flushed");
        produce(kafka, &topic, "behind", 0..50);
        let health = reader.route("r0");
        eventually("the transaction is named", async || {
            let why = health.source_waits().unwrap_or_default();
            ensure!(
                why.contains("offset 5 until a producer ends its transaction, with 51 records"),
                "{why:?}"
            );
            assert_eq!(health.waits_for(), ["open_transaction"]);
            Ok(())
        })
        .await;
        if ends_well {
            producer.commit_transaction(patience).expect("committed");
            memory.has("within", 1).await;
        } else {
            producer.abort_transaction(patience).expect("aborted");
        }
        memory.has("behind", 50).await;
        eventually("nothing is wrong any more", async || {
            let (why, paused) = (health.source_waits(), health.waits_for());
            ensure!(why.is_none() && paused.is_empty(), "{why:?} {paused:?}");
            Ok(())
        })
        .await;
        reader.stop().await;
    }
}
