//! Brokers away: what the other one can do goes on meanwhile.

use std::time::{Duration, Instant};

use super::{accounted, away, health, logged};
use crate::fixture::four_routes;
use crate::support::eventually::{PATIENCE, within};
use crate::support::{
    Config, Kafka, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names,
};

/// The n-th message is due after n times this: eight seconds of load.
const STEP_MS: u64 = 80;

#[tokio::test]
async fn kafka_not_there_at_start_and_killed_in_mid_flow() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let mut kafka = Kafka::start().await;
    let fixture = four_routes(redis, &kafka, rabbitmq).await;
    kafka.terminate().await;
    let mut relay = Relay::spawn(&fixture.config, &[]);
    logged(&relay, &["kafka cannot be reached, waiting"]).await;
    health(&relay, 503).await;
    fixture.send_rabbitmq(rabbitmq, STEP_MS).await;
    kafka.restart().await;
    relay.ready().await;
    tokio::join!(
        fixture.send_kafka(&kafka, STEP_MS),
        fixture.send_rabbitmq(rabbitmq, STEP_MS)
    );
    assert!(
        !fixture.run.ledger().missing().is_empty(),
        "the kill must come in mid-flow"
    );
    kafka.kill9().await;
    fixture.send_rabbitmq(rabbitmq, STEP_MS).await;
    let reached = "kafka is reached again";
    logged(
        &relay,
        &[
            "kafka cannot be reached, waiting",
            reached,
            "kafka cannot be reached, waiting",
        ],
    )
    .await;
    health(&relay, 200).await;
    away().await;
    kafka.restart().await;
    fixture.send_kafka(&kafka, STEP_MS).await;
    accounted(&fixture, &relay).await;
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
}

/// Why each part that speaks of Kafka is not up.
async fn kafka_reasons(relay: &Relay) -> Vec<String> {
    let (_, text) = relay.get("/readyz").await.expect("an answer");
    let health: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let parts = health["parts"].as_array().into_iter().flatten();
    let down = parts.filter(|part| part["state"] != "up" && part.to_string().contains("kafka"));
    down.map(|part| part["why"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// A broker that refuses, and later one that hangs: its port accepts, so whoever looks for a refusal looks in vain.
#[tokio::test]
async fn the_reason_of_an_outage_is_not_that_of_the_one_before() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let mut kafka = Kafka::start().await;
    let fixture = four_routes(redis, &kafka, rabbitmq).await;
    let relay = Relay::start(&fixture.config).await;
    relay.reads_all_sources().await;
    let has_reason = async |expected: bool| {
        eventually(&format!("kafka is in trouble: {expected}"), async || {
            let reasons = kafka_reasons(&relay).await;
            if reasons.is_empty() == expected {
                Err(format!("{reasons:?}"))
            } else {
                Ok(reasons)
            }
        })
        .await
    };
    kafka.terminate().await;
    eventually("the refusal is told", async || {
        let reasons = kafka_reasons(&relay).await;
        let is_told = reasons.iter().any(|why| why.contains("refuses"));
        is_told.then_some(()).ok_or(format!("{reasons:?}"))
    })
    .await;
    kafka.restart().await;
    has_reason(false).await;
    kafka.stop();
    // Until every client has noticed, and has been told what there is to be told.
    let mut seen = has_reason(true).await;
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        seen.extend(kafka_reasons(&relay).await);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    kafka.cont();
    let old = seen.iter().find(|why| why.contains("refuses"));
    assert_eq!(old, None, "this broker refuses nothing");
    has_reason(false).await;
    fixture.send(&kafka, rabbitmq).await;
    accounted(&fixture, &relay).await;
}

#[tokio::test]
async fn rabbitmq_not_there_at_start_and_killed_in_mid_flow() {
    let (redis, kafka) = tokio::join!(Redis::shared(), Kafka::shared());
    let mut rabbitmq = Rabbitmq::start().await;
    let fixture = four_routes(redis, kafka, &rabbitmq).await;
    rabbitmq.terminate().await;
    let mut relay = Relay::spawn(&fixture.config, &[]);
    logged(&relay, &["rabbitmq is away"]).await;
    health(&relay, 503).await;
    fixture.send_kafka(kafka, STEP_MS).await;
    rabbitmq.restart().await;
    relay.ready().await;
    tokio::join!(
        fixture.send_kafka(kafka, STEP_MS),
        fixture.send_rabbitmq(&rabbitmq, STEP_MS)
    );
    assert!(
        !fixture.run.ledger().missing().is_empty(),
        "the kill must come in mid-flow"
    );
    rabbitmq.kill9().await;
    fixture.send_kafka(kafka, STEP_MS).await;
    logged(
        &relay,
        &["rabbitmq is away", "rabbitmq is up", "rabbitmq is away"],
    )
    .await;
    health(&relay, 200).await;
    away().await;
    rabbitmq.restart().await;
    fixture.send_rabbitmq(&rabbitmq, STEP_MS).await;
    accounted(&fixture, &relay).await;
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
}

/// A hanging message is split off from the confirmed ones, and known by its `~` id until it is settled.
#[tokio::test]
async fn what_was_split_off_leaves_no_name_behind() {
    let kafka = Kafka::shared().await;
    let (redis, mut rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::start());
    let source = kafka.unique_topic("source", 1).await;
    let queue = names::unique("queue");
    let run = Run::new();
    rabbitmq.declare_queue(&queue, QueueKind::Classic).await;
    run.collect_rabbitmq(&rabbitmq, &queue);
    let from = format!(r#"{{ kafka = "main", topic = "{source}", group = "{source}" }}"#);
    let to = format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{queue}" }}"#);
    let config = Config::new(&redis)
        .redis("partitions = 1")
        .kafka("main", kafka)
        .rabbitmq("main", &rabbitmq);
    let relay = Relay::start(&config.route("one", &from, &to, "")).await;
    let mut connection = redis.connection().await.expect("connected");
    let mut known = async || {
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg("*:names")
            .query_async(&mut connection)
            .await
            .expect("KEYS");
        keys
    };
    // As often as it takes to stop the broker in the middle of a bundle.
    let end = Instant::now() + PATIENCE;
    loop {
        let before = run.ledger().delivered();
        let message = |n: u64| {
            run.message(&format!("rabbitmq:{queue}"), When::At(4000 + n * 3))
                .key(&queue)
        };
        run.send_kafka(kafka, &source, (0..80).map(message).collect())
            .await;
        eventually("the first arrives", async || {
            if run.ledger().delivered() > before {
                Ok(())
            } else {
                Err("not yet")
            }
        })
        .await;
        rabbitmq.stop();
        let split = within(Duration::from_secs(3), async || {
            if known().await.is_empty() {
                Err("nothing hangs")
            } else {
                Ok(())
            }
        });
        let split = split.await;
        rabbitmq.cont();
        if split.is_ok() {
            break;
        }
        assert!(
            Instant::now() < end,
            "the broker never stopped in the middle of a bundle"
        );
    }
    run.drain(&relay).await;
    run.report().assert_accounted(super::repeats(&relay).await);
    assert_eq!(known().await, Vec::<String>::new());
}
