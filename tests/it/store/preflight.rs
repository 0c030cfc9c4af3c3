//! Servers that the store refuses, and the name by which each refusal is overridden.

use postdate::store::config::{Config, Overrides};
use postdate::store::{PreflightFailure, preflight};

use super::fixture::config;
use crate::support::{Redis, names};

async fn refusal(config: &Config) -> String {
    match preflight(config, true).await {
        Err(PreflightFailure::Refused(why)) => why.to_string(),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

async fn set(redis: &Redis, command: &[&str]) {
    let mut raw = redis.connection().await.expect("connected");
    let mut cmd = redis::cmd(command[0]);
    cmd.arg(&command[1..]);
    cmd.query_async::<()>(&mut raw)
        .await
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
}

#[tokio::test]
async fn a_good_store_is_described_once_and_never_again() {
    let redis = Redis::shared().await;
    let config = config(&redis.url(), &names::unique("pre"), 4);
    assert_eq!(
        preflight(&config, false).await,
        Ok(()),
        "an empty store fits everybody"
    );
    let mut raw = redis.connection().await.expect("connected");
    let meta = format!("{}:meta", config.prefix);
    let there: bool = redis::cmd("EXISTS")
        .arg(&meta)
        .query_async(&mut raw)
        .await
        .expect("asked");
    assert!(!there, "only asked");
    assert_eq!(preflight(&config, true).await, Ok(()));
    assert_eq!(preflight(&config, true).await, Ok(()));
    let found: Vec<String> = redis::cmd("HMGET")
        .arg(&meta)
        .arg("format")
        .arg("partitions")
        .query_async(&mut raw)
        .await
        .expect("read");
    assert_eq!(found, ["2", "4"]);
}

#[tokio::test]
async fn another_count_of_partitions_an_unknown_format_or_a_foreign_prefix_is_refused() {
    let redis = Redis::shared().await;
    let mut config = config(&redis.url(), &names::unique("pre"), 4);
    preflight(&config, true).await.expect("a good store");
    config.partitions = postdate::domain::Partitions::new(5).expect("some");
    assert!(
        refusal(&config)
            .await
            .contains("the store has 4 partitions, redis.partitions says 5")
    );
    config.partitions = postdate::domain::Partitions::new(4).expect("some");
    let meta = format!("{}:meta", config.prefix);
    set(redis, &["HSET", &meta, "format", "3"]).await;
    let later = refusal(&config).await;
    assert!(
        later.ends_with("holds a store of format 3; this version reads format 2"),
        "{later}"
    );
    set(redis, &["HSET", &meta, "format", "1"]).await;
    let earlier = refusal(&config).await;
    assert!(
        earlier.contains("let the version that wrote it deliver what waits there"),
        "{earlier}"
    );
    set(redis, &["DEL", &meta]).await;
    set(redis, &["SET", &meta, "another's"]).await;
    assert!(
        refusal(&config)
            .await
            .contains("is in use by something else")
    );
}

#[tokio::test]
async fn an_evicting_policy_is_refused_and_overridden_by_name() {
    let redis = Redis::start_with("redis-server", &["--maxmemory-policy", "allkeys-lru"]).await;
    let mut config = config(&redis.url(), "pre", 1);
    assert!(
        refusal(&config)
            .await
            .contains("maxmemory-policy is allkeys-lru")
    );
    config.overrides = Overrides {
        no_persistence: true,
        unchecked: true,
        ..Overrides::default()
    };
    refusal(&config).await;
    config.overrides = Overrides {
        eviction: true,
        ..Overrides::default()
    };
    assert_eq!(preflight(&config, true).await, Ok(()));
}

#[tokio::test]
async fn no_persistence_is_refused_and_overridden_by_name() {
    let redis = Redis::start_with("redis-server", &["--appendonly", "no"]).await;
    let mut config = config(&redis.url(), "pre", 1);
    assert!(refusal(&config).await.contains("redis persists nothing"));
    config.overrides = Overrides {
        eviction: true,
        unchecked: true,
        ..Overrides::default()
    };
    refusal(&config).await;
    config.overrides = Overrides {
        no_persistence: true,
        ..Overrides::default()
    };
    assert_eq!(preflight(&config, true).await, Ok(()));
    // Snapshots alone: a warning, no refusal.
    config.overrides = Overrides::default();
    set(&redis, &["CONFIG", "SET", "save", "3600 1"]).await;
    assert_eq!(preflight(&config, true).await, Ok(()));
}

#[tokio::test]
async fn a_config_that_is_denied_is_refused_and_overridden_by_name() {
    let redis = Redis::start().await;
    set(
        &redis,
        &[
            "ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-config",
        ],
    )
    .await;
    let url = redis.url().replace("redis://", "redis://limited:secret@");
    let mut config = config(&url, "pre", 1);
    let why = refusal(&config).await;
    assert!(
        why.contains("CONFIG GET is denied") && !why.contains("secret"),
        "{why}"
    );
    config.overrides = Overrides {
        eviction: true,
        no_persistence: true,
        ..Overrides::default()
    };
    refusal(&config).await;
    config.overrides = Overrides {
        unchecked: true,
        ..Overrides::default()
    };
    assert_eq!(preflight(&config, true).await, Ok(()));
}

#[tokio::test]
async fn a_store_that_is_not_there_is_away_and_not_refused() {
    let mut redis = Redis::start().await;
    let config = config(&redis.url(), "pre", 1);
    redis.kill9().await;
    assert!(matches!(
        preflight(&config, true).await,
        Err(PreflightFailure::Away(_))
    ));
    redis.restart().await;
    set(&redis, &["REPLICAOF", "127.0.0.1", "1"]).await;
    let answer = preflight(&config, true).await;
    assert!(
        matches!(&answer, Err(PreflightFailure::Away(why)) if why.contains("replica")),
        "{answer:?}"
    );
}
