//! The credit of a route: what hangs, and what falls due elsewhere, takes no room from what can leave.

use std::time::Duration;

use anyhow::anyhow;
use postdate::domain::{Partitions, RouteName};
use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::support::relay::Config;
use crate::support::{Kafka, Redis, Relay, Run, When, eventually, names};

/// Partitions of the store, as configured by default.
const PARTITIONS: u16 = 64;
/// Messages a second of a limited route.
const RATE: u64 = 100;
/// How long more falls due than the rate lets go.
const OVERLOAD_MS: u64 = 20_000;
/// Time in which everything is stored before the first message is due.
const STORED_MS: u64 = 8000;
/// A message may be due this much earlier than one that leaves before it.
const OVERTAKEN_MS: i64 = 2000;

async fn metric(relay: &Relay, name: &str, route: &str) -> f64 {
    relay
        .metrics()
        .await
        .map_or(f64::NAN, |metrics| metrics.sum(name, &[("route", route)]))
}

/// Names of messages whose partitions of the store all belong to one timer shard, or to any other.
fn names_in(first_shard: bool, count: usize) -> Vec<String> {
    let shards = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(1, 8));
    let partitions = Partitions::new(PARTITIONS).expect("some");
    let route = RouteName::new("limited").expect("a name");
    let is_wanted = |name: &String| {
        let partition = partitions.of_name(&route, name);
        (usize::from(partition.0) % shards == 0) == (first_shard || shards == 1)
    };
    (0..)
        .map(|n| format!("{first_shard}-{n}"))
        .filter(is_wanted)
        .take(count)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_in_one_shard_does_not_starve_the_partitions_of_another() {
    let (kafka, redis) = tokio::join!(Kafka::shared(), Redis::shared());
    let from = kafka.unique_topic("from", 1).await;
    let to = kafka.unique_topic("to", 1).await;
    let source = format!("{{ kafka = \"main\", topic = \"{from}\", group = \"{from}\" }}");
    let target = format!("{{ kafka = \"main\", topic = \"{to}\" }}");
    let config = Config::new(redis).kafka("main", kafka).route(
        "limited",
        &source,
        &target,
        &format!("rate = {RATE}"),
    );
    let relay = Relay::start(&config).await;
    let run = Run::new();
    run.collect_kafka(kafka, &to, 1);
    let label = format!("kafka:{to}");
    let flood = OVERLOAD_MS * RATE * 3 / 2 / 1000;
    let trickle = OVERLOAD_MS / 1000;
    let message = |name: String, due_ms: u64| {
        run.message(&label, When::Delay(STORED_MS + due_ms))
            .contract("x-delay-id", &name)
    };
    let mut messages = Vec::new();
    for (n, name) in (0..).zip(names_in(true, flood as usize)) {
        messages.push(message(name, n * OVERLOAD_MS / flood));
    }
    for (n, name) in (0..).zip(names_in(false, trickle as usize)) {
        messages.push(message(name, n * 1000));
    }
    run.send_kafka(kafka, &from, messages).await;
    run.drain(&relay).await;
    run.report().assert_accounted(0);

    let mut overtaken = run.ledger().overtaken().to_vec();
    overtaken.retain(|(_, by_ms)| *by_ms > OVERTAKEN_MS);
    let longest = overtaken.iter().map(|(_, by_ms)| by_ms).max();
    assert!(
        overtaken.is_empty(),
        "{} of {} left after others that were due later, by up to {longest:?} ms",
        overtaken.len(),
        flood + trickle,
    );
}

/// A key for each of two partitions, as the relay's producer chooses them.
async fn keys(kafka: &Kafka, scratch: &str) -> [String; 2] {
    let mut config = kafka.client();
    config.set("partitioner", "murmur2_random");
    let producer: FutureProducer = config.create().expect("a producer");
    let mut keys = [None, None];
    for n in 0.. {
        let key = format!("k{n}");
        let record = FutureRecord::to(scratch).payload("").key(&key);
        let sent = producer.send(record, Duration::from_secs(10)).await;
        let partition = sent.expect("it is there").partition as usize;
        keys[partition].get_or_insert(key);
        if let [Some(first), Some(second)] = &keys {
            return [first.clone(), second.clone()];
        }
    }
    unreachable!("keys do not end")
}

/// Messages in the claims of a route, as Redis has them.
async fn claimed(redis: &Redis, prefix: &str, route: &str) -> anyhow::Result<u64> {
    let pattern = format!("{prefix}:*:claims");
    let mut count = 0;
    for key in redis.command::<Vec<String>>(&["KEYS", &pattern]).await? {
        let ids: Vec<String> = redis.command(&["ZRANGE", &key, "0", "-1"]).await?;
        let of_route = ids.iter().filter_map(|id| {
            let (name, rest) = id.split_once('/')?;
            (name == route).then(|| rest.rsplit('.').next().unwrap_or_default())
        });
        for messages in of_route {
            count += u64::from_str_radix(messages, 36)?;
        }
    }
    Ok(count)
}

/// Messages of a route, those among them that hang, and the further lines of its configuration.
struct HangingRoute {
    name: &'static str,
    healthy: u64,
    hanging: u64,
    /// The hanging ones go to a topic of their own, which has no leader at all.
    is_apart: bool,
    more: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn what_hangs_takes_the_room_of_its_own_messages_only() {
    let redis = Redis::shared().await;
    let mut kafka = Kafka::start_three().await;
    let [from, to, away, scratch] = ["from", "to", "away", "scratch"].map(names::unique);
    let placed: [(&str, &[&[i32]]); 4] = [
        (&from, &[&[1]]),
        (&to, &[&[1], &[3]]),
        (&away, &[&[3]]),
        (&scratch, &[&[1], &[1]]),
    ];
    let routes = [
        HangingRoute {
            name: "plain",
            healthy: 3000,
            hanging: 20,
            is_apart: false,
            more: String::new(),
        },
        HangingRoute {
            name: "limited",
            healthy: 198,
            hanging: 2,
            is_apart: false,
            more: "rate = 50\n".to_owned(),
        },
        HangingRoute {
            name: "apart",
            healthy: 100,
            hanging: 250,
            is_apart: true,
            more: format!("rate = 50\nallow_targets = [\"{away}\"]\n"),
        },
    ];
    let admin = kafka.admin();
    for (name, nodes) in placed {
        let topic = NewTopic::new(name, nodes.len() as i32, TopicReplication::Variable(nodes))
            .set("min.insync.replicas", "1");
        let made = admin.create_topics(&[topic], &AdminOptions::new()).await;
        assert!(made.expect("an answer").iter().all(Result::is_ok), "{name}");
        kafka.leader(name, 0).await;
    }
    let [healthy, hanging] = keys(&kafka, &scratch).await;
    let prefix = names::unique("postdate");
    let store = format!("url = \"{}\"", redis.least_url());
    let mut config = Config::under(&store, &prefix).kafka("main", &kafka);
    let target = format!("{{ kafka = \"main\", topic = \"{to}\" }}");
    let mut sources = Vec::new();
    for route in &routes {
        let topic = format!("{from}-{}", route.name);
        let made = NewTopic::new(&topic, 1, TopicReplication::Variable(&[&[1]]))
            .set("min.insync.replicas", "1");
        admin
            .create_topics(&[made], &AdminOptions::new())
            .await
            .expect("an answer");
        kafka.leader(&topic, 0).await;
        let source = format!("{{ kafka = \"main\", topic = \"{topic}\", group = \"{topic}\" }}");
        config = config.route(route.name, &source, &target, &route.more);
        sources.push(topic);
    }
    let relay = Relay::start(&config).await;
    let run = Run::new();
    let [label, away_label] = [&to, &away].map(|topic| format!("kafka:{topic}"));
    let mut wanted = Vec::new();
    for (route, source) in routes.iter().zip(&sources) {
        let all = route.healthy + route.hanging;
        // Apart, all that hang are due before the others.
        let each = if route.is_apart {
            1
        } else {
            all / route.hanging
        };
        let mut messages = Vec::new();
        let mut hang = 0;
        for n in 0..all {
            let when = When::Delay(15_000 + n / 3);
            let hangs = n % each == 0 && hang < route.hanging;
            hang += u64::from(hangs);
            let message = if hangs && route.is_apart {
                run.message(&away_label, when)
                    .contract("x-delay-target", &away)
                    .key(&hanging)
            } else {
                let key = if hangs { &hanging } else { &healthy };
                run.message(&label, when).key(key)
            };
            if !hangs {
                wanted.push((route.name, message.id().clone()));
            }
            messages.push(message);
        }
        run.send_kafka(&kafka, source, messages).await;
        eventually("all of it waits in the store", async || {
            let pending = metric(&relay, "postdate_pending", route.name).await;
            (pending >= all as f64).then_some(()).ok_or(pending)
        })
        .await;
    }
    kafka.kill9_node(2).await;
    run.collect_kafka(&kafka, &to, 2);
    eventually("what does not hang arrives", async || {
        let ledger = run.ledger();
        let mut missing = wanted.iter().filter(|(_, id)| !ledger.has_seen(id));
        missing.next().map_or(Ok(()), |(route, id)| {
            Err(format!("{id} of {route} and {} more", missing.count()))
        })
    })
    .await;
    for route in &routes {
        let failed = metric(&relay, "postdate_publish_failures_total", route.name).await;
        assert!(
            failed < 1.0,
            "{}: {failed} failed while others waited",
            route.name
        );
        eventually("what is in flight is what is claimed", async || {
            let in_flight = metric(&relay, "postdate_in_flight", route.name).await;
            let claimed = claimed(redis, &prefix, route.name).await?;
            if in_flight as u64 == claimed && claimed <= route.hanging {
                Ok(())
            } else {
                Err(anyhow!("{}: {in_flight} of {claimed}", route.name))
            }
        })
        .await;
    }
    kafka.start_again().await;
    run.collect_kafka(&kafka, &away, 1);
    run.drain(&relay).await;
    let repeats = relay.total("postdate_redelivered_total", &[]).await;
    run.report().assert_accounted(repeats as usize);
}
