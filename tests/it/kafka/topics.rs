//! Sources of several topics: by name, by a pattern, those that appear later; and where reading begins in what nobody has
//! read yet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postdate::domain::{Endpoint, Route, StartRule, TopicPattern, Topics, UnixMs, testing};
use rdkafka::admin::{AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use super::fixture::{IngressFixture, RecordingSink, commits, produce, route};
use super::undecodable::peak_mib;
use crate::support::relay::{Config, Relay};
use crate::support::{Kafka, Redis, eventually, names};

fn reading(name: &str, topics: Topics, group: &str, start: StartRule) -> Arc<Route> {
    let mut route = Route::clone(&route(name, "", group));
    route.from = testing::kafka_source(topics, group);
    if let Endpoint::Kafka { start: rule, .. } = &mut route.from {
        *rule = start;
    }
    Arc::new(route)
}

/// What was taken of each topic.
fn taken(sink: &RecordingSink) -> BTreeMap<String, Vec<String>> {
    let mut by_topic: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for taken in sink.taken.lock().iter() {
        let body = taken.message.body.clone().unwrap_or_default();
        by_topic
            .entry(taken.topic.clone())
            .or_default()
            .push(String::from_utf8_lossy(&body).into_owned());
    }
    by_topic
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_reads_all_topics_that_match_its_pattern_and_new_ones_within_a_minute() {
    let kafka = Kafka::shared().await;
    let mark = names::unique("p");
    let topic = |kind: &str| format!("{mark}.{kind}.delayed");
    for kind in ["eu", "us", "named"] {
        kafka.create_topic(&topic(kind), 2).await;
        produce(kafka, &topic(kind), kind, 0..20);
    }
    kafka.create_topic(&format!("{mark}.eu.other"), 1).await;
    produce(kafka, &format!("{mark}.eu.other"), "other", 0..5);
    let group = names::unique("g");
    let pattern = format!("{mark}\\..*\\.delayed");
    let pattern = Topics::Pattern(TopicPattern::new(&pattern).expect("a pattern"));
    let none = Topics::Pattern(TopicPattern::new(&format!("{mark}-none")).expect("a pattern"));
    let routes = vec![
        reading("all", pattern, &group, StartRule::Earliest),
        reading("none", none, &group, StartRule::Earliest),
        reading(
            "one",
            Topics::one(topic("named")),
            &group,
            StartRule::Earliest,
        ),
    ];
    let sink = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start_reading(kafka, &group, routes.clone(), &sink);
    for kind in ["eu", "us", "named"] {
        sink.has(kind, 20).await;
    }
    let waits = reader.route("none").source_waits();
    assert_eq!(
        waits.as_deref(),
        Some(&*format!("no topic matches \"{mark}-none\" yet"))
    );
    assert_eq!(reader.route("all").source_waits(), None);

    kafka.create_topic(&topic("new"), 1).await;
    produce(kafka, &topic("new"), "new", 0..20);
    sink.has("new", 20).await;
    commits(kafka, &group, &topic("new"), 20).await;
    reader.stop().await;
    let by_topic = taken(&sink);
    let topics: Vec<_> = by_topic.keys().cloned().collect();
    let mut expected: Vec<_> = ["eu", "named", "new", "us"].map(topic).into();
    expected.sort();
    assert_eq!(topics, expected, "and nothing of what does not match");
    for (topic, bodies) in by_topic {
        assert_eq!(bodies.len(), 20, "{topic}: {bodies:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn named_topics_are_all_read_and_a_missing_one_costs_only_itself() {
    let kafka = Kafka::shared().await;
    let topics: Vec<String> = ["a", "b", "c"].map(names::unique).into();
    for topic in &topics[..2] {
        kafka.create_topic(topic, 1).await;
    }
    produce(kafka, &topics[0], "a", 0..10);
    produce(kafka, &topics[1], "b", 0..10);
    let group = names::unique("g");
    let named = Topics::Named(topics.clone());
    let sink = Arc::new(RecordingSink::default());
    let routes = vec![reading("all", named, &group, StartRule::Earliest)];
    let reader = IngressFixture::start_reading(kafka, &group, routes, &sink);
    sink.has("a", 10).await;
    sink.has("b", 10).await;
    eventually("the missing one is named", async || {
        let why = reader.route("all").source_waits().unwrap_or_default();
        if why.starts_with(&format!("topic {}: ", topics[2])) {
            Ok(())
        } else {
            Err(why)
        }
    })
    .await;
    kafka.create_topic(&topics[2], 1).await;
    produce(kafka, &topics[2], "c", 0..10);
    sink.has("c", 10).await;
    eventually("nothing is wrong any more", async || {
        reader.route("all").source_waits().map_or(Ok(()), Err)
    })
    .await;
    reader.stop().await;
}

/// Two consumers of one group begin at once, with what one store remembers.
#[tokio::test(flavor = "multi_thread")]
async fn latest_reads_what_comes_after_the_first_start_and_all_of_what_is_made_later() {
    let kafka = Kafka::shared().await;
    let topics: Vec<String> = ["old", "later"].map(names::unique).into();
    kafka.create_topic(&topics[0], 4).await;
    produce(kafka, &topics[0], "before", 0..40);
    let group = names::unique("g");
    let route = || {
        let named = Topics::Named(topics.clone());
        vec![reading("r", named, &group, StartRule::Latest)]
    };
    let sink = Arc::new(RecordingSink::default());
    let readers = [0, 1].map(|_| IngressFixture::start_reading(kafka, &group, route(), &sink));
    kafka.shared_out(&group, &topics[0], 2).await;
    for partition in 0..4 {
        eventually(
            "the start is committed before anything is read",
            async || {
                let found = super::fixture::committed(kafka, &group, &topics[0], partition);
                found.map(drop).ok_or("nothing is committed")
            },
        )
        .await;
    }
    produce(kafka, &topics[0], "after", 0..40);
    sink.has("after", 40).await;

    // Partitions and a topic that are made later, with records that come before anybody reads them.
    let more = NewPartitions::new(&topics[0], 6);
    let grown = kafka
        .admin()
        .create_partitions([&more], &AdminOptions::new())
        .await;
    grown.expect("an answer")[0]
        .as_ref()
        .expect("more partitions");
    kafka.create_topic(&topics[1], 1).await;
    produce(kafka, &topics[1], "later", 0..20);
    let client: BaseProducer = kafka.client().create().expect("a producer");
    for (number, partition) in [4, 5].into_iter().enumerate() {
        let body = format!("grown-{number}");
        let record = BaseRecord::<str, str>::to(&topics[0])
            .partition(partition)
            .payload(&body);
        client.send(record).expect("room");
    }
    client.flush(Duration::from_secs(20)).expect("flushed");
    sink.has("later", 20).await;
    sink.has("grown", 2).await;
    for reader in readers {
        reader.stop().await;
    }
    produce(kafka, &topics[0], "pause", 0..40);
    let again = IngressFixture::start_reading(kafka, &group, route(), &sink);
    sink.has("pause", 40).await;
    again.stop().await;
    let bodies = sink.bodies();
    let old: Vec<_> = bodies
        .keys()
        .filter(|body| body.starts_with("before"))
        .collect();
    assert!(old.is_empty(), "{old:?}");
    assert!(bodies.values().all(|count| *count == 1), "{bodies:?}");
}

/// Producers' clocks are ahead, by as much as a broker takes, and a day behind, while records come all the time: what is
/// there is not read, and of what comes nothing is left out.
#[tokio::test(flavor = "multi_thread")]
async fn latest_believes_no_clock_of_a_producer() {
    const AHEAD_MS: i64 = 1_800_000;
    const BEHIND_MS: i64 = 86_400_000;
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("clocks", 2).await;
    let client: BaseProducer = kafka.client().create().expect("a producer");
    let now = postdate::domain::Clock::start().wall().0;
    let send = {
        let topic = topic.clone();
        move |phase: &str| {
            for (partition, clock) in [(0, now + AHEAD_MS), (1, now - BEHIND_MS)] {
                let body = format!("{phase}-{partition}");
                let record = BaseRecord::<str, str>::to(&topic)
                    .partition(partition)
                    .timestamp(clock)
                    .payload(&body);
                client.send(record).expect("room");
            }
            client.flush(Duration::from_secs(20)).expect("flushed");
        }
    };
    send("before");
    let is_over = Arc::new(AtomicBool::new(false));
    let until = is_over.clone();
    let sending = tokio::task::spawn_blocking(move || {
        let mut sent = 0;
        while !until.load(Ordering::Relaxed) {
            send(&format!("{sent:06}"));
            sent += 1;
        }
        send("after");
        sent
    });
    let group = names::unique("g");
    let route = reading("r", Topics::one(topic.clone()), &group, StartRule::Latest);
    let sink = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start_reading(kafka, &group, vec![route], &sink);
    for partition in 0..2 {
        eventually("where it begins is committed", async || {
            let found = super::fixture::committed(kafka, &group, &topic, partition);
            found.map(drop).ok_or("nothing is committed")
        })
        .await;
    }
    is_over.store(true, Ordering::Relaxed);
    let sent: usize = sending.await.expect("sent");
    sink.has("after", 2).await;
    let bodies = sink.bodies();
    assert!(bodies.keys().all(|body| !body.starts_with("before")));
    for partition in ["-0", "-1"] {
        let numbers = bodies
            .keys()
            .filter_map(|body| body.strip_suffix(partition));
        let numbers: Vec<usize> = numbers.filter_map(|number| number.parse().ok()).collect();
        let first = numbers.first().copied().unwrap_or(sent);
        assert_eq!(numbers, (first..sent).collect::<Vec<_>>(), "of {sent}");
    }
    reader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_moment_reads_what_came_then_and_later() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("since", 1).await;
    let client: BaseProducer = kafka.client().create().expect("a producer");
    let since = postdate::domain::Clock::start().wall().0 - 3_600_000;
    for number in 0..10 {
        let body = format!("m-{number}");
        let record = BaseRecord::<str, str>::to(&topic)
            .timestamp(since + (number - 6) * 1000)
            .payload(&body);
        client.send(record).expect("room");
    }
    client.flush(Duration::from_secs(20)).expect("flushed");
    let group = names::unique("g");
    let rule = StartRule::Since(UnixMs(since));
    let sink = Arc::new(RecordingSink::default());
    let reader = IngressFixture::start_reading(
        kafka,
        &group,
        vec![reading("r", Topics::one(&topic), &group, rule)],
        &sink,
    );
    commits(kafka, &group, &topic, 10).await;
    reader.stop().await;
    let bodies: Vec<String> = sink.bodies().into_keys().collect();
    assert_eq!(bodies, ["m-6", "m-7", "m-8", "m-9"]);
}

/// As many topics as a route may have, and one more.
#[tokio::test(flavor = "multi_thread")]
async fn a_pattern_reads_a_thousand_topics_and_says_that_there_are_more() {
    const TOPICS: usize = 1000;
    let (redis, kafka) = tokio::join!(Redis::start(), Kafka::start());
    let names: Vec<String> = (0..TOPICS).map(|n| format!("many.{n}")).collect();
    let topic = |name| NewTopic::new(name, 1, TopicReplication::Fixed(1));
    let topics: Vec<NewTopic<'_>> = names.iter().map(|name| topic(name)).collect();
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(60)));
    for topics in topics.chunks(100) {
        let created = kafka.admin().create_topics(topics, &options).await;
        for created in created.expect("kafka answers") {
            created.expect("created");
        }
    }
    kafka.create_topic("to", 1).await;
    let producer: BaseProducer = kafka.client().create().expect("a producer");
    for name in &names {
        let delay = OwnedHeaders::new().insert(Header {
            key: "x-delay",
            value: Some("1s"),
        });
        let record = BaseRecord::to(name).key("k").payload(name).headers(delay);
        producer.send(record).expect("room");
    }
    producer.flush(Duration::from_secs(60)).expect("flushed");
    let from = r#"{ kafka = "main", topic_pattern = "many\\..*", group = "many" }"#;
    let to = r#"{ kafka = "main", topic = "to" }"#;
    let config = Config::new(&redis)
        .kafka("main", &kafka)
        .route("many", from, to, "");
    let began = Instant::now();
    let relay = Relay::start(&config).await;
    eventually("one message of each topic is published", async || {
        let published = relay.total("postdate_published_total", &[]).await;
        anyhow::ensure!(published >= TOPICS as f64, "{published}");
        anyhow::Ok(())
    })
    .await;
    let peak = peak_mib(relay.id());
    println!("published after {:?}, {peak} MiB", began.elapsed());
    assert!(peak < 200, "{peak} MiB");
    let (_, metrics) = relay.get("/metrics").await.expect("an answer");
    let samples = metrics.lines().filter(|line| !line.starts_with('#'));
    let of_topics: Vec<_> = samples.filter(|line| line.contains("many.")).collect();
    assert!(of_topics.is_empty(), "{of_topics:?}");

    kafka.create_topic("many.too", 1).await;
    eventually("what is not read is said", async || {
        let (_, ready) = relay.get("/readyz").await?;
        let said = "1001 topics match";
        anyhow::ensure!(ready.contains(said), "{ready}");
        anyhow::Ok(())
    })
    .await;
}
