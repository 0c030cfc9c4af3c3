//! Redis answers and refuses: it is named within five seconds, also where nothing flows, ingress waits, and the reason
//! goes with its cause.

use std::time::Duration;

use serde_json::Value;

use super::accounted;
use crate::fixture::four_routes;
use crate::support::eventually::within;
use crate::support::{Kafka, Rabbitmq, Redis, Relay, eventually};

/// Time within which a reason is told, and within which it goes: five seconds, and what a busy machine adds.
const TOLD_WITHIN: Duration = Duration::from_secs(5 + 3);

/// A refusal, and how it begins and ends.
struct Refusal {
    begins: &'static [&'static str],
    ends: &'static [&'static str],
    /// Part of the reason.
    words: &'static str,
}

/// The reasons of the parts that are about the store.
async fn reasons(relay: &Relay) -> anyhow::Result<Vec<String>> {
    let (_, text) = relay.get("/readyz").await?;
    let health: Value = serde_json::from_str(&text)?;
    let parts = health["parts"].as_array().into_iter().flatten();
    let of_store = parts.filter(|part| {
        let name = part["name"].as_str().unwrap_or_default();
        (name == "redis" || name.starts_with("store")) && part["state"] != "up"
    });
    Ok(of_store
        .map(|part| part["why"].as_str().unwrap_or_default().to_owned())
        .collect())
}

async fn told(relay: &Relay, words: &str) {
    let asked = within(TOLD_WITHIN, async || {
        let reasons = reasons(relay).await?;
        anyhow::ensure!(reasons.iter().any(|why| why.contains(words)), "{reasons:?}");
        anyhow::Ok(())
    });
    asked
        .await
        .unwrap_or_else(|last| panic!("{words} is not told: {last}"));
}

async fn over(relay: &Relay, words: &str) {
    let asked = within(TOLD_WITHIN, async || {
        let reasons = reasons(relay).await?;
        anyhow::ensure!(reasons.is_empty(), "{reasons:?}");
        anyhow::Ok(())
    });
    asked
        .await
        .unwrap_or_else(|last| panic!("{words} is told on: {last}"));
}

async fn ingress_waits(relay: &Relay) {
    eventually("ingress waits for the store", async || {
        let metrics = relay.metrics().await?;
        let waits = metrics.sum("postdate_ingress_paused", &[("reason", "store")]);
        anyhow::ensure!(waits > 3.5, "on {waits} of four routes");
        anyhow::Ok(())
    })
    .await;
}

#[tokio::test]
async fn what_redis_refuses_is_named_also_when_nothing_flows_and_forgotten_when_it_is_mended() {
    let (redis, kafka, rabbitmq) =
        tokio::join!(Redis::start(), Kafka::shared(), Rabbitmq::shared());
    let mut fixture = four_routes(&redis, kafka, rabbitmq).await;
    fixture.config = fixture.config.section("[timer]\nclaim = \"2s\"");
    let relay = Relay::start(&fixture.config).await;
    relay.reads_all_sources().await;
    for Refusal {
        begins,
        ends,
        words,
    } in [
        Refusal {
            begins: &["CONFIG", "SET", "min-replicas-to-write", "1"],
            ends: &["CONFIG", "SET", "min-replicas-to-write", "0"],
            words: "min-replicas-to-write",
        },
        Refusal {
            begins: &["CONFIG", "SET", "maxmemory", "1"],
            ends: &["CONFIG", "SET", "maxmemory", "0"],
            words: "maxmemory",
        },
    ] {
        redis.command::<()>(begins).await.expect("it begins");
        told(&relay, words).await;
        ingress_waits(&relay).await;
        fixture.send(kafka, rabbitmq).await;
        redis.command::<()>(ends).await.expect("it ends");
        over(&relay, words).await;
        accounted(&fixture, &relay).await;
    }
}
