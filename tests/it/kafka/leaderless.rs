//! One partition of a target topic cannot be written, for longer than two time-outs: it has no leader, or too few
//! in-sync replicas. Its messages wait and cost nothing; those of the other partition go on.

use std::time::Duration;

use anyhow::{Context, ensure};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::support::eventually::{START_LIMIT, within};
use crate::support::run::Message;
use crate::support::{Config, Kafka, Redis, Relay, Run, When, eventually, names};

/// Longer than two time-outs of a message, which are all the attempts that it has.
const OUTAGE: Duration = Duration::from_secs(75);
/// Messages of one kind to one partition.
const COUNT: usize = 10;
/// The node that is killed, and the partition that needs it.
const KILLED: usize = 2;
const HANGING: i32 = 1;

/// What the hanging partition lacks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lack {
    Leader,
    Replicas,
}

impl Lack {
    /// The brokers of the two partitions: the second one needs the third broker.
    fn placement(self) -> [&'static [i32]; 2] {
        match self {
            Self::Leader => [&[1], &[3]],
            Self::Replicas => [&[1, 2], &[1, 3]],
        }
    }

    fn least_replicas(self) -> &'static str {
        match self {
            Self::Leader => "1",
            Self::Replicas => "2",
        }
    }

    /// How the log names the trouble.
    fn sentence(self, topic: &str) -> String {
        match self {
            Self::Leader => format!("partition {HANGING} of {topic} has no leader"),
            Self::Replicas => {
                format!("partition {HANGING} of {topic} has too few in-sync replicas")
            }
        }
    }

    /// Waits until the brokers say that the partition lacks it, or no longer does. A broker takes its time to start.
    async fn shows(self, kafka: &Kafka, topic: &str, is_missing: bool) {
        let shown = within(START_LIMIT, async || {
            let consumer: BaseConsumer = kafka.client().create()?;
            let metadata = consumer.fetch_metadata(Some(topic), Duration::from_secs(5))?;
            let partitions = metadata.topics().first().context("no topic")?.partitions();
            let hanging = partitions
                .iter()
                .find(|partition| partition.id() == HANGING)
                .context("no partition")?;
            let lacks = match self {
                Self::Leader => hanging.leader() < 0,
                Self::Replicas => hanging.isr().len() < 2,
            };
            ensure!(lacks == is_missing, "{lacks}");
            anyhow::Ok(())
        });
        if let Err(last) = shown.await {
            panic!("{self:?} is missing: {is_missing}; last: {last}");
        }
    }
}

/// Keys that Kafka's own partitioner puts into each of two partitions.
async fn keys() -> [Vec<String>; 2] {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("keys", 2).await;
    let producer: FutureProducer = kafka
        .client()
        .set("partitioner", "murmur2_random")
        .create()
        .expect("a producer");
    let mut keys = [Vec::new(), Vec::new()];
    for n in 0.. {
        let key = format!("key-{n}");
        let record = FutureRecord::to(&topic).key(&key).payload("");
        let sent = producer.send(record, Duration::from_secs(20)).await;
        keys[sent.expect("taken").partition as usize].push(key);
        if keys.iter().all(|keys| keys.len() >= COUNT) {
            break;
        }
    }
    keys
}

async fn one_partition_hangs(lack: Lack) {
    let (redis, source_kafka) = tokio::join!(Redis::shared(), Kafka::shared());
    let (mut kafka, keys) = tokio::join!(Kafka::start_three(), keys());
    let target = names::unique("target");
    let settings = [("min.insync.replicas", lack.least_replicas())];
    kafka
        .create_topic_placed(&target, &lack.placement(), &settings)
        .await;
    let run = Run::new();
    run.collect_kafka(&kafka, &target, 2);
    // A source whose passing message waits is not read on, so what hangs and what does not have sources of their own.
    let mut config = Config::new(redis)
        .kafka("source", source_kafka)
        .kafka("target", &kafka);
    let mut sources = Vec::new();
    for route in ["healthy", "hanging", "passing", "passing-hanging"] {
        let source = source_kafka.unique_topic(route, 1).await;
        config = config.route(
            route,
            &format!(r#"{{ kafka = "source", topic = "{source}", group = "{source}" }}"#),
            &format!(r#"{{ kafka = "target", topic = "{target}" }}"#),
            r#"retry = { attempts = 2, initial = "100ms", max = "500ms" }"#,
        );
        sources.push(source);
    }
    let relay = Relay::start(&config).await;
    let label = format!("kafka:{target}");
    let each = |keys: &[String], when: When| -> Vec<Message> {
        let messages = keys.iter().take(COUNT);
        messages
            .map(|key| run.message(&label, when).key(key))
            .collect()
    };
    let arrived = async |count: usize| {
        eventually(&format!("{count} arrive"), async || {
            let delivered = run.ledger().delivered();
            ensure!(delivered >= count, "{delivered}");
            anyhow::Ok(())
        })
        .await;
    };
    let [healthy, hanging, passing, passing_hanging] = &sources[..] else {
        panic!("four sources")
    };
    for keys in &keys {
        run.send_kafka(source_kafka, healthy, each(keys, When::Delay(0)))
            .await;
    }
    arrived(2 * COUNT).await;
    // A node that dies between writing and answering leaves a confirm unknown, and rightly.
    eventually("the relay has all confirms", async || {
        let confirmed = relay.total("postdate_published_total", &[]).await as usize;
        ensure!(confirmed == 2 * COUNT, "{confirmed}");
        anyhow::Ok(())
    })
    .await;

    kafka.kill9_node(KILLED).await;
    lack.shows(&kafka, &target, true).await;
    for (n, when) in [When::Delay(0), When::Delay(1500), When::At(8000)]
        .into_iter()
        .enumerate()
    {
        run.send_kafka(source_kafka, hanging, each(&keys[1], when))
            .await;
        run.send_kafka(source_kafka, healthy, each(&keys[0], when))
            .await;
        // Without a key they are the client's to place. It does not know of too few replicas at first.
        if lack == Lack::Leader || n == 2 {
            let unkeyed = (0..COUNT).map(|_| run.message(&label, when)).collect();
            run.send_kafka(source_kafka, healthy, unkeyed).await;
        }
    }
    run.send_kafka(source_kafka, passing_hanging, each(&keys[1], When::Now))
        .await;
    run.send_kafka(source_kafka, passing, each(&keys[0], When::Now))
        .await;
    let unkeyed = if lack == Lack::Leader { 3 } else { 1 };
    arrived((2 + 3 + 1 + unkeyed) * COUNT).await;
    tokio::time::sleep(OUTAGE).await;
    assert_eq!(
        run.ledger().delivered(),
        (2 + 3 + 1 + unkeyed) * COUNT,
        "only the hanging partition's messages are missing"
    );
    let dead = relay.total("postdate_dead_letters_total", &[]).await as usize;
    assert_eq!(dead, 0, "dead letters");
    let sentence = lack.sentence(&target);
    assert!(relay.log().contains(&sentence), "{sentence}");
    let (_, ready) = relay.get("/readyz").await.expect("an answer");
    assert!(ready.contains(&sentence), "{ready}");

    kafka.start_again().await;
    lack.shows(&kafka, &target, false).await;
    run.drain(&relay).await;
    let repeats = relay.total("postdate_redelivered_total", &[]).await as usize;
    let dead = relay.total("postdate_dead_letters_total", &[]).await as usize;
    assert_eq!(dead, 0, "dead letters");
    if lack == Lack::Leader {
        assert_eq!(repeats, 0, "repeats of what never left the process");
        let unknown = [("reason", "confirm_unknown")];
        let unknown = relay
            .total("postdate_publish_failures_total", &unknown)
            .await;
        assert!(unknown < 0.5, "{unknown} publishes are unknown");
    }
    run.report().assert_accounted(repeats);
    eventually("the log says that it is over", async || {
        let log = relay.log();
        ensure!(log.contains("trouble is over"));
        anyhow::Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_without_a_leader_costs_its_messages_nothing_and_no_others() {
    one_partition_hangs(Lack::Leader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_with_too_few_replicas_kills_nothing_and_delays_no_others() {
    one_partition_hangs(Lack::Replicas).await;
}
