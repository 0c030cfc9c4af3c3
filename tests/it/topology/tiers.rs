//! Durability tiers: each one's waits and refusals.

use postdate::store::config::{Config, Durability, Topology};
use postdate::store::{PreflightFailure, preflight};

use super::{fsynced, replicated};
use crate::store::fixture::{StoreFixture, config, far, past, settlement, unnamed};
use crate::support::{Redis, Sentinel, eventually, names};

/// A master and a replica of it, with these options both.
async fn pair(program: &str, options: &[&str]) -> (Redis, Redis) {
    let master = Redis::start_with(program, options).await;
    let follow = format!("127.0.0.1 {}", master.port());
    let following = [options, &["--replicaof", &follow]].concat();
    let replica = Redis::start_with(program, &following).await;
    eventually("the replica follows", async || {
        let info: String = master.command(&["INFO", "replication"]).await?;
        anyhow::ensure!(info.contains("state=online"), "{info}");
        anyhow::Ok(())
    })
    .await;
    (master, replica)
}

fn tier(redis: &Redis, durability: Durability) -> Config {
    let mut config = config(&redis.url(), &names::unique("store"), 1);
    config.durability = durability;
    config
}

async fn calls(redis: &Redis, command: &str) -> u64 {
    let stats: String = redis
        .command(&["INFO", "commandstats"])
        .await
        .expect("asked");
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|line| line.split(',').next()?.parse().ok())
        .unwrap_or(0)
}

/// The programs there are.
fn programs() -> Vec<String> {
    std::iter::once("redis-server".to_owned())
        .chain(crate::support::redis::valkey())
        .collect()
}

/// A store that was applied and not confirmed must not count when it is repeated, on a new connection too: a wait
/// after a call that writes nothing says yes on Valkey.
#[tokio::test]
async fn interleaving_10_what_no_replica_has_is_neither_stored_nor_claimed() {
    for program in programs() {
        let (master, mut replica) = pair(&program, &[]).await;
        let fixture = StoreFixture::of(tier(&master, replicated(1, 200)), &master, 0).await;
        assert_eq!(preflight(&fixture.config, true).await, Ok(()));
        fixture.keep(vec![unnamed(past(), "a")]).await;
        replica.stop();
        let before = calls(&master, "evalsha").await;
        let store = fixture.store.clone();
        let request = fixture.request(600_000).await;
        let second = fixture.at(fixture.p);
        let claim = tokio::spawn(async move { store.claim(&request).await });
        let write = tokio::spawn(async move { second.keep(vec![unnamed(far(), "b")]).await });
        // Each has been applied and repeated, and still counts for nothing.
        eventually("both calls are repeated", async || {
            let now = calls(&master, "evalsha").await;
            if now >= before + 6 {
                Ok(())
            } else {
                Err(format!("{now} after {before}"))
            }
        })
        .await;
        let mut raw = master.connection().await.expect("connected");
        let kill = redis::cmd("CLIENT")
            .arg("KILL")
            .arg("TYPE")
            .arg("normal")
            .arg("SKIPME")
            .arg("yes")
            .clone();
        kill.query_async::<i64>(&mut raw).await.expect("killed");
        let before = calls(&master, "evalsha").await;
        eventually("both calls are repeated on new connections", async || {
            let now = calls(&master, "evalsha").await;
            if now >= before + 4 {
                Ok(())
            } else {
                Err(format!("{now} after {before}"))
            }
        })
        .await;
        assert!(
            !claim.is_finished() && !write.is_finished(),
            "{program}: no replica has it"
        );
        assert!(
            fixture.store.write_failure().is_some(),
            "and ingress says so"
        );
        replica.cont();
        let claimed = claim.await.expect("not cancelled").expect("claimed");
        assert_eq!(claimed.len(), 1, "{program}: once");
        write.await.expect("not cancelled");
        let fixture = StoreFixture::of(fixture.config.clone(), &master, 0).await;
        let snapshot = fixture.check().await;
        assert_eq!(snapshot.bundles.len(), 2, "once");
        fixture
            .store
            .settle(fixture.p, &[settlement(&claimed[0])])
            .await
            .expect("settled");
        assert_eq!(fixture.store.write_failure(), None);
    }
}

#[tokio::test]
async fn too_few_replicas_are_waited_for_at_start_and_said() {
    let redis = Redis::shared().await;
    let answer = preflight(&tier(redis, replicated(1, 200)), true).await;
    let said =
        "0 replicas follow this master, and durability = \"replicated\" with wait_replicas = 1";
    assert!(
        matches!(&answer, Err(PreflightFailure::Away(why)) if why.contains(said)),
        "{answer:?}"
    );
}

/// A master that refuses to write without replicas: nothing is lost, and it goes on by itself.
#[tokio::test]
async fn a_master_without_enough_replicas_refuses_and_is_asked_again() {
    let (master, mut replica) = pair(
        "redis-server",
        &[
            "--min-replicas-to-write",
            "1",
            "--min-replicas-max-lag",
            "2",
        ],
    )
    .await;
    let fixture = StoreFixture::of(tier(&master, replicated(1, 200)), &master, 0).await;
    fixture.keep(vec![unnamed(far(), "a")]).await;
    replica.kill9().await;
    eventually("it refuses to write", async || {
        match master.command::<()>(&["SET", "probe", "1"]).await {
            Err(error) if error.code() == Some("NOREPLICAS") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let second = fixture.at(fixture.p);
    let write = tokio::spawn(async move { second.keep(vec![unnamed(far(), "b")]).await });
    eventually("the writer waits", async || {
        if fixture.store.write_failure().is_some() {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    assert!(!write.is_finished());
    replica.restart().await;
    write.await.expect("stored in the end");
    assert_eq!(fixture.check().await.bundles.len(), 2);
}

#[tokio::test]
async fn fsynced_waits_for_disks_where_the_server_can() {
    let Some(program) = crate::support::redis::valkey() else {
        println!("no valkey-server here");
        return;
    };
    let (master, mut replica) = pair(&program, &["--appendfsync", "everysec"]).await;
    let config = tier(&master, fsynced(1, 3000));
    for (setting, wrong, right) in [
        ("appendfsync", "no", "everysec"),
        ("appendonly", "no", "yes"),
    ] {
        master
            .command::<()>(&["CONFIG", "SET", setting, wrong])
            .await
            .expect("set");
        match preflight(&config, true).await {
            Err(PreflightFailure::Refused(why)) => {
                assert!(why.to_string().contains(setting), "{why}");
            }
            other => panic!("{setting} {wrong}: expected a refusal, got {other:?}"),
        }
        master
            .command::<()>(&["CONFIG", "SET", setting, right])
            .await
            .expect("set");
    }
    assert_eq!(preflight(&config, true).await, Ok(()));
    let fixture = StoreFixture::of(config, &master, 0).await;
    fixture.keep(vec![unnamed(past(), "a")]).await;
    assert_eq!(fixture.claim(600_000).await.len(), 1);
    // Once each asked whether it can, and once each waited.
    assert!(calls(&master, "waitaof").await >= 5);
    assert_eq!(calls(&master, "wait").await, 0);
    replica.kill9().await;
    let second = fixture.at(fixture.p);
    let write = tokio::spawn(async move { second.keep(vec![unnamed(far(), "b")]).await });
    eventually("the writer waits", async || {
        if fixture.store.write_failure().is_some() {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    assert!(!write.is_finished(), "one disk is not enough");
    replica.restart().await;
    write.await.expect("stored in the end");
    // Without replicas the master's own disk is.
    let alone = StoreFixture::of(tier(&master, fsynced(0, 3000)), &master, 0).await;
    replica.kill9().await;
    alone.keep(vec![unnamed(far(), "a")]).await;
}

#[tokio::test]
async fn fsynced_without_waitaof_needs_a_sync_of_each_write() {
    let redis = Redis::start().await;
    let stats = calls(&redis, "waitaof").await;
    assert_eq!(stats, 0, "this is a Redis that does not have it");
    let config = tier(&redis, fsynced(0, 500));
    match preflight(&config, true).await {
        Err(PreflightFailure::Refused(why)) => {
            let why = why.to_string();
            assert!(
                why.contains("needs WAITAOF") && why.contains("appendfsync always"),
                "{why}"
            );
        }
        other => panic!("expected a refusal, got {other:?}"),
    }
    redis
        .command::<()>(&["CONFIG", "SET", "appendfsync", "always"])
        .await
        .expect("set");
    assert_eq!(preflight(&config, true).await, Ok(()));
    let fixture = StoreFixture::of(config, &redis, 0).await;
    fixture.keep(vec![unnamed(past(), "a")]).await;
    assert_eq!(fixture.claim(600_000).await.len(), 1);
    assert_eq!(
        calls(&redis, "wait").await,
        0,
        "its answer comes after its fsync"
    );
}

/// A master may come back without what the tier needs: then it is not used.
#[tokio::test]
async fn a_promoted_master_without_the_tier_is_not_used() {
    let sentinel = Sentinel::start_with("redis-server", &["--appendfsync", "always"]).await;
    let mut config = config("redis://unused", &names::unique("store"), 1);
    config.topology = sentinel.topology();
    assert!(matches!(config.topology, Topology::Sentinel { .. }));
    config.durability = fsynced(0, 500);
    let fixture = StoreFixture::of(config, sentinel.node(0), 0).await;
    fixture.keep(vec![unnamed(far(), "a")]).await;
    for node in [1, 2] {
        let set = sentinel
            .node(node)
            .command::<()>(&["CONFIG", "SET", "appendfsync", "everysec"])
            .await;
        set.expect("set");
    }
    sentinel.failover().await.expect("begun");
    let new = sentinel.promoted(0).await;
    let looked_at = async |times: u64| {
        eventually(
            "the new master is looked at, and found wanting",
            async || {
                let asked = calls(sentinel.node(new), "config|get").await;
                if asked >= times {
                    Ok(())
                } else {
                    Err(format!("{asked} times"))
                }
            },
        )
        .await;
    };
    // From here on the store has left the old one.
    looked_at(1).await;
    let second = fixture.at(fixture.p);
    let write = tokio::spawn(async move { second.keep(vec![unnamed(far(), "b")]).await });
    looked_at(6).await;
    assert!(!write.is_finished(), "it must not be stored there");
    sentinel
        .node(new)
        .command::<()>(&["CONFIG", "SET", "appendfsync", "always"])
        .await
        .expect("set");
    write.await.expect("stored in the end");
}
