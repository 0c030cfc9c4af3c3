//! Readiness while a replica starts: it is not given away before the sources are read.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;

use crate::support::eventually::within;
use crate::support::proxy::Mode;
use crate::support::{Config, Kafka, Proxy, QueueKind, Rabbitmq, Redis, Relay, eventually, names};

/// Time that each trip to Redis takes in each direction: the store is there long before the replica has joined.
const SLOW_LINK: Duration = Duration::from_millis(60);

/// Longest time without a line of the log while a server says nothing: the five seconds after which a part in trouble has
/// one, and what a busy machine needs. An attempt to connect ends after ten.
const TOLD_WITHIN: Duration = Duration::from_secs(9);

/// Status and parts of `/readyz`.
async fn health(relay: &Relay) -> anyhow::Result<(u16, Vec<String>)> {
    let (status, text) = relay.get("/readyz").await?;
    let answer: Value = serde_json::from_str(&text)?;
    let parts = answer["parts"].as_array().into_iter().flatten();
    Ok((
        status,
        parts
            .filter_map(|part| part["name"].as_str())
            .map(str::to_owned)
            .collect(),
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_a_start_waits_for_is_named_at_once_and_a_ready_replica_stays_ready() {
    let (redis, kafka, rabbitmq) =
        tokio::join!(Redis::start(), Kafka::shared(), Rabbitmq::shared());
    let link = Proxy::before(redis.port()).await;
    link.set(Mode::Delay(SLOW_LINK));
    let [topic, queue, to] = ["ready", "ready", "ready"].map(names::unique);
    kafka.create_topic(&topic, 1).await;
    for queue in [&queue, &to] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let url = format!("url = \"redis://127.0.0.1:{}\"", link.port());
    let target = format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{to}" }}"#);
    let config = Config::under(&url, &names::unique("ready"))
        .kafka("main", kafka)
        .rabbitmq("main", rabbitmq)
        .route(
            "record",
            &format!(r#"{{ kafka = "main", topic = "{topic}", group = "{topic}" }}"#),
            &target,
            "",
        )
        .route(
            "queue",
            &format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#),
            &target,
            "",
        );
    let relay = Relay::spawn(&config, &[]);
    let (_, named) = eventually("it answers", async || health(&relay).await).await;
    let group = format!("kafka:main:{topic}");
    for part in ["redis", "store", "rabbitmq:main", "kafka:main", &group] {
        assert!(
            named.iter().any(|name| name == part),
            "{part} is not among {named:?}"
        );
    }
    let mut joined = std::pin::pin!(kafka.shared_out(&topic, &topic, 1));
    let mut was_ready = false;
    loop {
        let (status, _) = health(&relay).await.expect("an answer");
        assert!(
            !was_ready || status == 200,
            "it was ready, and is not any more"
        );
        was_ready |= status == 200;
        let is_read = tokio::time::timeout(Duration::from_millis(5), &mut joined)
            .await
            .is_ok();
        if is_read {
            break;
        }
    }
    eventually("it is ready", async || match health(&relay).await? {
        (200, _) => Ok(()),
        (status, parts) => Err(anyhow::anyhow!("{status}: {parts:?}")),
    })
    .await;
}

/// A server that takes connections and says nothing: each of the three.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_says_nothing_from_the_start_is_told_within_seconds() {
    let (redis, kafka, rabbitmq) =
        tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let ports = [redis.port(), kafka.port(), rabbitmq.port()];
    let servers = ["redis", "kafka", "rabbitmq"];
    let silent = [0, 1, 2].map(async |silent| {
        let proxy = Proxy::before(ports[silent]).await;
        proxy.set(Mode::Hole);
        let mut by_way = ports;
        by_way[silent] = proxy.port();
        let [topic, queue] = ["silent", "silent"].map(names::unique);
        kafka.create_topic(&topic, 1).await;
        rabbitmq.declare_queue(&queue, QueueKind::Classic).await;
        let store = format!("url = \"redis://127.0.0.1:{}\"", by_way[0]);
        let config = Config::under(&store, &names::unique("silent"))
            .section(&format!(
                "[kafka.main]\nbrokers = \"127.0.0.1:{}\"",
                by_way[1]
            ))
            .section(&format!(
                "[rabbitmq.main]\nurl = \"amqp://guest:guest@127.0.0.1:{}/%2f\"",
                by_way[2]
            ))
            .route(
                "r",
                &format!(r#"{{ kafka = "main", topic = "{topic}", group = "{topic}" }}"#),
                &format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{queue}" }}"#),
                "",
            );
        let mut relay = Relay::spawn(&config, &[]);
        eventually("it answers", async || health(&relay).await).await;
        let name = servers[silent];
        let told = within(TOLD_WITHIN, async || {
            let log = relay.log();
            let mut warnings = log
                .lines()
                .filter(|line| line.contains(r#""level":"WARN""#));
            if warnings.any(|line| line.contains(name)) {
                Ok(())
            } else {
                Err(log)
            }
        });
        if let Err(log) = told.await {
            panic!("{name} says nothing, and nothing is told:\n{log}");
        }
        proxy.set(Mode::Pass);
        proxy.reset();
        relay.ready().await;
    });
    join_all(silent).await;
}
