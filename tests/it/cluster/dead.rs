//! What is known of a replica that is dead.

use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use serde_json::{Value, json};

use super::Crew;
use crate::support::eventually::within;
use crate::support::run::now_ms;
use crate::support::{Rabbitmq, Redis, Relay, eventually};

/// Longest time until a late route is named, and what a busy machine may need on top.
const NAMED: Duration = Duration::from_secs(5 + 10);
/// Longest time until the messages of a dead replica have arrived, and what a busy machine may need on top.
const ARRIVED: Duration = Duration::from_secs(35 + 30);

/// Why the route is late, as a relay says; `None` while it is in time.
async fn late_because(relay: &Relay) -> anyhow::Result<Option<String>> {
    let (_, text) = relay.get("/readyz").await?;
    let ready: Value = serde_json::from_str(&text)?;
    let mut parts = ready["parts"].as_array().into_iter().flatten();
    let part = parts
        .find(|part| part["name"] == "route:orders")
        .ok_or_else(|| anyhow!("no part of the route: {ready}"))?;
    Ok(part["why"].as_str().map(str::to_owned))
}

/// What the replicas said at their last heartbeats.
async fn entries(redis: &Redis) -> anyhow::Result<Vec<Value>> {
    let keys: Vec<String> = redis.command(&["KEYS", "*:{members}:replicas"]).await?;
    let registry = keys.first().ok_or_else(|| anyhow!("no registry"))?;
    let entries: Vec<String> = redis.command(&["HVALS", registry]).await?;
    let status = |entry: &String| {
        let at = entry.find('{').ok_or_else(|| anyhow!("{entry}"))?;
        Ok(serde_json::from_str(&entry[at..])?)
    };
    entries.iter().map(status).collect()
}

/// They are claimed long before they are due, and come back when the claim ends, some twenty seconds late.
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_a_dead_replica_held_in_time_are_told_as_late_until_they_arrive() {
    const DUE_MS: u64 = 12_000;
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let timer = "[timer]\nclaim = \"30s\"\nlookahead = \"20s\"";
    let mut crew = Crew::start(&redis, rabbitmq, 2, timer).await;
    crew.send(rabbitmq, 200, DUE_MS, 1).await;
    let due = Instant::now() + Duration::from_millis(DUE_MS);
    let holds = eventually("one of them has claimed messages", async || {
        for (at, relay) in crew.relays.iter().enumerate() {
            if relay.metrics().await?.sum("postdate_in_flight", &[]) > 0.5 {
                return Ok(at);
            }
        }
        Err(anyhow!("nobody has"))
    })
    .await;
    // Nobody can ask a dead one what it had claimed.
    eventually("all have told what they have claimed", async || {
        let mut claiming = 0;
        for relay in &crew.relays {
            let claimed = relay.metrics().await?.sum("postdate_in_flight", &[]);
            claiming += usize::from(claimed > 0.5);
        }
        let told = entries(&redis).await?;
        let told = told
            .iter()
            .filter(|status| status["overdue"]["orders"].is_i64());
        let told = told.count();
        ensure!(told >= claiming, "{told} of {claiming}");
        anyhow::Ok(())
    })
    .await;
    let mut dead = crew.relays.remove(holds);
    dead.kill9().await;

    let until_named = due.saturating_duration_since(Instant::now()) + NAMED;
    within(until_named, async || {
        let why = late_because(&crew.relays[0]).await?.unwrap_or_default();
        ensure!(why.contains("a replica is dead"), "{why}");
        anyhow::Ok(())
    })
    .await
    .unwrap_or_else(|last| panic!("the dead replica is not named: {last}"));
    assert!(
        !crew.run.ledger().missing().is_empty(),
        "it held some of them"
    );
    let named = Instant::now();
    while !crew.run.ledger().missing().is_empty() {
        assert!(named.elapsed() < ARRIVED, "they do not come back");
        let why = late_because(&crew.relays[0]).await.expect("an answer");
        assert!(
            why.is_some(),
            "forgotten after {} s",
            named.elapsed().as_secs()
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    eventually("the route is in time again", async || {
        match late_because(&crew.relays[0]).await? {
            None => Ok(()),
            Some(why) => Err(anyhow!("{why}")),
        }
    })
    .await;
    crew.relays.push(dead);
    crew.accounted(0).await;
}

#[tokio::test]
async fn the_entry_of_a_dead_replica_is_kept_until_its_claims_have_ended() {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let _crew = Crew::start(&redis, rabbitmq, 1, "").await;
    let keys: Vec<String> = redis
        .command(&["KEYS", "*:{members}:replicas"])
        .await
        .expect("keys");
    let registry = keys.first().expect("the registry");
    // All have been silent for 70 s. The last one lives: it may be silent for three heartbeats.
    for (nonce, heartbeat_ms, claim_ms) in [
        ("short", 1_000, 10_000),
        ("long", 1_000, 120_000),
        ("slow", 30_000, 10_000),
    ] {
        let status = json!({ "name": nonce, "heartbeat_ms": heartbeat_ms, "claim_ms": claim_ms });
        let entry = format!("1 {} {status}", now_ms() - 70_000);
        let written: i64 = redis
            .command(&["HSET", registry, nonce, &entry])
            .await
            .expect("written");
        assert_eq!(written, 1);
    }
    let kept = eventually("an entry is removed", async || {
        let kept: Vec<String> = redis.command(&["HKEYS", registry]).await?;
        ensure!(!kept.iter().any(|nonce| nonce == "short"), "{kept:?}");
        anyhow::Ok(kept)
    })
    .await;
    for nonce in ["long", "slow"] {
        assert!(kept.iter().any(|kept| kept == nonce), "{nonce}: {kept:?}");
    }
}
