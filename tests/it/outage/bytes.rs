//! A backlog in bytes: what is claimed and held is bounded for the whole process, whatever falls due at once.

use std::time::Duration;

use super::repeats;
use crate::support::proxy::Mode;
use crate::support::relay::Config;
use crate::support::{
    Kafka, Proxy, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names,
};

const SIZE: usize = 512 << 10;
const LARGE: usize = 300;
/// Messages of [`SIZE`] that one route may have in memory: half of the process's bytes.
const HALF: f64 = 128.0;

async fn metric(relay: &Relay, name: &str, route: &str) -> f64 {
    relay
        .metrics()
        .await
        .map_or(f64::NAN, |metrics| metrics.sum(name, &[("route", route)]))
}

async fn publishing(relay: &Relay, route: &str, command: &str) {
    let path = format!("/api/v1/routes/{route}/{command}");
    let answer = relay
        .request("POST", &path, None, r#"{"only": "publishing"}"#)
        .await
        .expect("an answer");
    assert_eq!(answer.0, 200, "{answer:?}");
}

#[tokio::test]
async fn a_route_whose_target_takes_nothing_holds_half_of_the_bytes_and_the_others_go_on() {
    let (kafka, rabbitmq, redis) =
        tokio::join!(Kafka::shared(), Rabbitmq::shared(), Redis::start());
    let [redis_link, target_link] = [
        Proxy::before(redis.port()).await,
        Proxy::before(rabbitmq.port()).await,
    ];
    let from = kafka.unique_topic("large", 3).await;
    let beside = kafka.unique_topic("beside", 1).await;
    let to = kafka.unique_topic("to", 1).await;
    let queue = names::unique("large");
    rabbitmq.declare_queue(&queue, QueueKind::Classic).await;
    let source =
        |topic: &str| format!("{{ kafka = \"main\", topic = \"{topic}\", group = \"{topic}\" }}");
    let far = format!(
        "[rabbitmq.far]\nurl = \"amqp://guest:guest@127.0.0.1:{}/%2f\"",
        target_link.port()
    );
    let far_target =
        format!("{{ rabbitmq = \"far\", exchange = \"\", routing_key = \"{queue}\" }}");
    let config = Config::new(&redis)
        .through(&redis, redis_link.port())
        .kafka("main", kafka)
        .section(&far)
        .section("[timer]\nclaim = \"4s\"")
        .route("large", &source(&from), &far_target, "")
        .route(
            "beside",
            &source(&beside),
            &format!("{{ kafka = \"main\", topic = \"{to}\" }}"),
            "",
        );
    let mut relay = Relay::start(&config).await;
    let run = Run::new();
    run.collect_kafka(kafka, &to, 1);
    run.collect_rabbitmq(rabbitmq, &queue);

    publishing(&relay, "large", "pause").await;
    let label = format!("rabbitmq:{queue}");
    let large = (0..LARGE).map(|n| {
        run.message(&label, When::Delay(1000))
            .key(&n.to_string())
            .size(SIZE)
            .random()
    });
    run.send_kafka(kafka, &from, large.collect()).await;
    eventually("all of it waits in the store", async || {
        let pending = metric(&relay, "postdate_pending", "large").await;
        if pending >= LARGE as f64 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{pending}"))
        }
    })
    .await;

    target_link.set(Mode::Hole);
    redis_link.set(Mode::Rate(20 << 20));
    publishing(&relay, "large", "resume").await;
    eventually("it holds what it may", async || {
        let held = metric(&relay, "postdate_in_flight", "large").await;
        if held >= HALF / 2.0 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{held}"))
        }
    })
    .await;
    for _ in 0..10 {
        let small = run.message(&format!("kafka:{to}"), When::Delay(200));
        run.send_kafka(kafka, &beside, vec![small]).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let held = metric(&relay, "postdate_in_flight", "large").await;
        assert!(held <= HALF, "{held} messages of {SIZE} bytes are held");
    }
    eventually("the other route goes on", async || {
        let published = metric(&relay, "postdate_published_total", "beside").await;
        if published >= 10.0 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{published}"))
        }
    })
    .await;

    target_link.set(Mode::Pass);
    run.drain(&relay).await;
    let explained = repeats(&relay).await;
    run.report().assert_accounted(explained);
    let expired = relay
        .total("postdate_redelivered_total", &[("cause", "claim_expired")])
        .await;
    assert!(expired < 1.0, "{expired} messages of claims that expired");
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", relay.id())).expect("its status");
    println!(
        "{}",
        status
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap_or("no peak")
    );
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
}

/// Messages that are due at one moment. Each is a bundle of its own: to measure all of them takes longer than a claim
/// lasts over the slow link.
const AT_ONCE: usize = 2000;
const ALONE_SIZE: usize = 66_000;
/// Messages that are published while the link is slow: those of a first claim, and of some behind it.
const FIRST_PUBLISHED: f64 = 130.0;
/// The time in which they are stored.
const STORED_WITHIN: Duration = Duration::from_secs(30);

#[tokio::test]
async fn no_claim_expires_while_a_slow_link_tells_how_large_its_bundles_are() {
    let (kafka, redis) = tokio::join!(Kafka::shared(), Redis::start());
    let link = Proxy::before(redis.port()).await;
    let from = kafka.unique_topic("many", 3).await;
    let to = kafka.unique_topic("to", 1).await;
    let config = Config::new(&redis)
        .through(&redis, link.port())
        .kafka("main", kafka)
        .section("[timer]\nclaim = \"4s\"")
        .route(
            "many",
            &format!("{{ kafka = \"main\", topic = \"{from}\", group = \"{from}\" }}"),
            &format!("{{ kafka = \"main\", topic = \"{to}\" }}"),
            "",
        );
    let mut relay = Relay::start(&config).await;
    let run = Run::new();
    run.collect_kafka(kafka, &to, 1);
    // Due earlier than all are stored, none leaves before.
    publishing(&relay, "many", "pause").await;
    let label = format!("kafka:{to}");
    let due = tokio::time::Instant::now() + STORED_WITHIN;
    let delay = When::Delay(STORED_WITHIN.as_millis() as u64);
    let sent = (0..AT_ONCE).map(|n| {
        run.message(&label, delay)
            .key(&n.to_string())
            .size(ALONE_SIZE)
            .random()
    });
    run.send_kafka(kafka, &from, sent.collect()).await;
    eventually("all of it waits in the store", async || {
        let pending = metric(&relay, "postdate_pending", "many").await;
        if pending >= AT_ONCE as f64 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{pending}"))
        }
    })
    .await;
    run.unobserved("a slow link makes messages late, and nothing is in trouble");
    relay.unobserved("a slow link makes messages late, and nothing is in trouble");
    tokio::time::sleep_until(due).await;
    publishing(&relay, "many", "resume").await;
    link.set(Mode::Rate(3 << 19));
    eventually(
        "contents come, and further claims behind them",
        async || {
            let published = metric(&relay, "postdate_published_total", "many").await;
            if published >= FIRST_PUBLISHED {
                Ok(())
            } else {
                Err(anyhow::anyhow!("{published}"))
            }
        },
    )
    .await;
    link.set(Mode::Pass);
    run.drain(&relay).await;
    let expired = relay
        .total("postdate_redelivered_total", &[("cause", "claim_expired")])
        .await;
    assert!(expired < 1.0, "{expired} messages of claims that expired");
    run.report().assert_accounted(0);
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
}

/// Partitions of a Kafka topic with a backlog, and messages of [`WIDE_SIZE`] in each: 5 MiB.
const WIDE: usize = 100;
const WIDE_MESSAGES: usize = 80;
const WIDE_SIZE: usize = 64 << 10;
/// Most that the relay may occupy while its ingress waits, kB.
const MOST_KB: u64 = 400_000;
/// Time in which a relay that read too much would have done so: a peak is no event.
const READS: Duration = Duration::from_secs(15);

/// The most that a relay's life has occupied so far, kB.
fn peak_kb(relay: &Relay) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", relay.id())).expect("its status");
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next());
    peak.and_then(|kb| kb.parse().ok()).expect("a peak")
}

/// Waits until the relay knows of a backlog that it does not take in, and then for what it may read meanwhile.
async fn waits(relay: &Relay) {
    eventually("a backlog waits", async || {
        let lag = metric(relay, "postdate_ingress_lag", "wide").await;
        if lag >= (WIDE * WIDE_MESSAGES / 2) as f64 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{lag}"))
        }
    })
    .await;
    tokio::time::sleep(READS).await;
}

#[tokio::test]
async fn a_backlog_in_a_hundred_partitions_fits_into_memory_while_ingress_waits() {
    let (kafka, redis) = tokio::join!(Kafka::shared(), Redis::start());
    let link = Proxy::before(redis.port()).await;
    let from = kafka.unique_topic("wide", WIDE).await;
    let to = kafka.unique_topic("to", 1).await;
    let source = format!("{{ kafka = \"main\", topic = \"{from}\", group = \"{from}\" }}");
    let config = Config::new(&redis)
        .through(&redis, link.port())
        .kafka("main", kafka)
        .route(
            "wide",
            &source,
            &format!("{{ kafka = \"main\", topic = \"{to}\" }}"),
            "",
        );
    let mut relay = Relay::start(&config).await;
    let run = Run::new();
    eventually("it reads", async || {
        let first = run.message(&format!("kafka:{to}"), When::Delay(3_600_000));
        run.send_kafka(kafka, &from, vec![first]).await;
        let stored = metric(&relay, "postdate_stored_total", "wide").await;
        if stored >= 1.0 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{stored}"))
        }
    })
    .await;
    let answer = relay
        .request(
            "POST",
            "/api/v1/routes/wide/pause",
            None,
            r#"{"only": "ingress"}"#,
        )
        .await;
    assert_eq!(answer.expect("an answer").0, 200);
    for n in 0..WIDE_MESSAGES {
        let message = |p: usize| {
            let message = run.message(&format!("kafka:{to}"), When::Delay(3_600_000));
            message.key(&format!("{p}-{n}")).size(WIDE_SIZE)
        };
        run.send_kafka(kafka, &from, (0..WIDE).map(message).collect())
            .await;
    }
    waits(&relay).await;
    let paused_kb = peak_kb(&relay);
    // It begins anew and finds all of it, paused.
    relay.restart().await;
    waits(&relay).await;
    let found_kb = peak_kb(&relay);
    // The store goes away while all of it is read.
    let answer = relay
        .request(
            "POST",
            "/api/v1/routes/wide/resume",
            None,
            r#"{"only": "ingress"}"#,
        )
        .await;
    assert_eq!(answer.expect("an answer").0, 200);
    link.set(Mode::Hole);
    tokio::time::sleep(READS).await;
    let away_kb = peak_kb(&relay);
    println!(
        "peaks: {paused_kb} kB paused, {found_kb} kB found paused, {away_kb} kB with the store away"
    );
    assert!(
        paused_kb.max(found_kb).max(away_kb) <= MOST_KB,
        "{paused_kb}, {found_kb}, {away_kb} kB"
    );
    link.set(Mode::Pass);
    eventually("it takes in what waited", async || {
        let stored = metric(&relay, "postdate_stored_total", "wide").await;
        if stored >= 100.0 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{stored}"))
        }
    })
    .await;
}
