//! The store is wiped, replaced, or an older copy of itself.

use std::time::Duration;

use super::{Crew, arrived, logged};
use crate::support::relay::Relay;
use crate::support::{Rabbitmq, Redis, eventually};

async fn command(redis: &Redis, words: &[&str]) {
    let mut raw = redis.connection().await.expect("connected");
    let mut command = redis::cmd(words[0]);
    command
        .arg(&words[1..])
        .exec_async(&mut raw)
        .await
        .unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

async fn changes(relay: &Relay) -> f64 {
    relay
        .metrics()
        .await
        .expect("metrics")
        .sum("postdate_store_changes_total", &[])
}

#[tokio::test]
async fn a_wiped_store_is_noticed_said_and_used_again_once_it_was_looked_at() {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let mut crew = Crew::start(&redis, rabbitmq, 2, "").await;
    // Lost with the store, and known to be: they are not part of the accounts.
    command(&redis, &["FLUSHALL"]).await;
    for relay in &crew.relays {
        logged(relay, "the store was wiped or replaced").await;
        logged(relay, "the store may be used").await;
    }
    for relay in &mut crew.relays {
        relay.ready().await;
        assert!(changes(relay).await > 0.5, "it is counted");
        assert!(
            relay.log().contains("postdate replay --route"),
            "what helps is named"
        );
    }
    crew.shared().await;
    crew.send(rabbitmq, 200, 300, 5).await;
    crew.accounted(0).await;
}

/// A message stored just before wakes its shard; a shard that may not claim it must not go round and round,
/// or on one thread nothing else would run, ever.
#[tokio::test]
async fn a_store_that_is_wiped_under_load_is_used_again() {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let mut crew = Crew::plan(&redis, rabbitmq, "").await;
    crew.relays
        .push(Relay::start_with(&crew.config, &[("TOKIO_WORKER_THREADS", "1")]).await);
    crew.shared().await;
    crew.run
        .unobserved("what is lost with the store is late for ever");
    let work = async {
        crew.flows(200).await;
        command(&redis, &["FLUSHALL"]).await;
        logged(&crew.relays[0], "the store may be used").await;
        crew.flows(200).await;
    };
    crew.under_load(rabbitmq, 300, work).await;
}

#[tokio::test]
async fn a_store_that_was_wiped_and_may_not_be_used_ends_the_relay() {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let mut crew = Crew::start(&redis, rabbitmq, 1, "").await;
    command(
        &redis,
        &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"],
    )
    .await;
    command(&redis, &["FLUSHALL"]).await;
    let ended = crew.relays[0]
        .wait(Duration::from_secs(60))
        .await
        .expect("it ends by itself");
    assert_eq!(ended.code(), Some(1));
    let log = crew.relays[0].log();
    assert!(log.contains("maxmemory-policy is allkeys-lru"), "{log}");
}

/// A store's identity that changes, and is the former one again before a preflight could look at the new one: as
/// where a name points to another server for a moment.
#[tokio::test]
async fn a_former_store_that_is_back_is_used_again_and_the_next_replacement_is_noticed_too() {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let mut crew = Crew::start(&redis, rabbitmq, 1, "").await;
    let mut raw = redis.connection().await.expect("connected");
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*:{members}:store")
        .query_async(&mut raw)
        .await
        .expect("keys");
    let store = keys.first().expect("the store's own key");
    let former: String = redis::cmd("HGET")
        .arg(store)
        .arg("generation")
        .query_async(&mut raw)
        .await
        .expect("an identity");
    let mut say = async |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        command
            .arg(&words[1..])
            .exec_async(&mut raw)
            .await
            .unwrap_or_else(|error| panic!("{words:?}: {error}"));
    };

    // A preflight makes a connection of its own.
    say(&["CONFIG", "SET", "maxclients", "1"]).await;
    say(&["HSET", store, "generation", "another"]).await;
    logged(&crew.relays[0], "the store was wiped or replaced").await;
    logged(
        &crew.relays[0],
        "checking whether the store may be used failed; retrying",
    )
    .await;
    say(&["HSET", store, "generation", &former]).await;
    logged(
        &crew.relays[0],
        "the store may be used; continuing: it is the one that was used before",
    )
    .await;
    say(&["CONFIG", "SET", "maxclients", "1000"]).await;
    crew.relays[0].ready().await;

    say(&["HSET", store, "generation", "another"]).await;
    logged(
        &crew.relays[0],
        "the store may be used; continuing with messages stored from now on",
    )
    .await;
    crew.relays[0].ready().await;
    assert_eq!(changes(&crew.relays[0]).await as u64, 2, "both are counted");
    assert_eq!(
        crew.relays[0]
            .log()
            .matches("the store was wiped or replaced")
            .count(),
        2,
        "and told"
    );
    crew.send(rabbitmq, 100, 300, 5).await;
    crew.accounted(0).await;
}

#[tokio::test]
async fn an_older_copy_is_noticed_and_what_it_makes_us_repeat_has_its_cause() {
    let (mut redis, rabbitmq) = tokio::join!(
        Redis::start_with("redis-server", &["--appendfsync", "always"]),
        Rabbitmq::shared()
    );
    let crew = Crew::start(&redis, rabbitmq, 2, "[timer]\nclaim = \"2s\"").await;
    // So far ahead that all of them wait together at some moment, however slow the machine is.
    crew.send(rabbitmq, 200, 15_000, 5).await;
    eventually("all of them are stored", async || {
        let stored = crew.relays[0].metrics().await?.sum("postdate_pending", &[]);
        if stored > 199.5 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{stored}"))
        }
    })
    .await;
    let backup = redis.backup();
    arrived(&crew.run).await;
    redis.restore(&backup).await;
    for relay in &crew.relays {
        logged(
            relay,
            "the store went back: what was stored since then may be lost",
        )
        .await;
        assert!(changes(relay).await > 0.5, "it is counted");
    }
    crew.accounted(0).await;
    let report = crew.run.report();
    assert!(
        report.duplicates() > 0,
        "the copy held what had been published: {report}"
    );
    let mut rollbacks = 0.0;
    for relay in &crew.relays {
        rollbacks += relay
            .total("postdate_redelivered_total", &[("cause", "store_rollback")])
            .await;
    }
    assert!(rollbacks > 0.5, "by their cause");
}
