//! On a cluster: fail-overs, slots that move under load, and one that nobody serves.

use std::time::Duration;

use postdate::domain::{Partition, UnixMs};

use super::flow::Flow;
use crate::store::fixture::{StoreFixture, config_of, far, past, settlement, sweep, unnamed};
use crate::support::{Cluster, Kafka, eventually, names};

const REPLICATED: &str = "durability = \"replicated\"\nwait_replicas = 1\nwait_timeout = \"500ms\"";

#[tokio::test]
async fn an_orderly_failover_and_a_killed_master_cost_no_message() {
    let (kafka, mut cluster) = tokio::join!(Kafka::shared(), Cluster::start());
    let mut flow = Flow::start(kafka, &format!("{}\n{REPLICATED}", cluster.lines())).await;
    flow.send(kafka, 300, 8000).await;
    flow.stored(300).await;
    assert!(flow.is_under_way(), "the failover must come in mid-flow");
    cluster.failover(0, None).await;
    flow.logged("the topology of redis has changed", 2).await;
    flow.send(kafka, 100, 2000).await;
    let replica = cluster.replica_of(1).await;
    cluster.kill9(1).await;
    flow.send(kafka, 100, 2000).await;
    cluster.promoted(replica).await;
    // Its own replica, so that the tier can be had there again.
    cluster.restart(1).await;
    cluster.settled(1).await;
    flow.send(kafka, 100, 1000).await;
    flow.accounted().await;
}

/// Plain writes to a paused master that was replaced are thrown away.
#[tokio::test]
async fn a_paused_master_is_left_and_nothing_is_lost() {
    let (kafka, mut cluster) = tokio::join!(Kafka::shared(), Cluster::start());
    let mut flow = Flow::start(kafka, &format!("{}\n{REPLICATED}", cluster.lines())).await;
    flow.send(kafka, 300, 8000).await;
    flow.stored(300).await;
    let replica = cluster.replica_of(0).await;
    cluster.stop(0);
    flow.send(kafka, 100, 2000).await;
    cluster.promoted(replica).await;
    flow.logged("the topology of redis has changed", 2).await;
    cluster.cont(0);
    flow.send(kafka, 100, 1000).await;
    cluster.settled(1).await;
    flow.accounted().await;
}

#[tokio::test]
async fn slots_migrate_under_load() {
    let (kafka, cluster) = tokio::join!(Kafka::shared(), Cluster::start_with("redis-server", 0));
    let mut flow = Flow::start(kafka, &cluster.lines()).await;
    flow.send(kafka, 500, 10_000).await;
    flow.stored(500).await;
    for p in 0..8 {
        let slot = cluster.slot(&format!("{{{p}}}")).await;
        let from = cluster.master_of(slot).await;
        let to = (from + 1) % 3;
        cluster
            .begin_migration(slot, from, to)
            .await
            .expect("begun");
        flow.send(kafka, 50, 3000).await;
        cluster.move_keys(slot, from, to).await.expect("moved");
        cluster.end_migration(slot, from, to).await.expect("ended");
    }
    assert!(flow.is_under_way(), "they must move in mid-flow");
    flow.accounted().await;
}

#[tokio::test]
async fn an_uncovered_slot_costs_its_own_partitions_only() {
    let cluster = Cluster::start_with("redis-server", 0).await;
    let slot = cluster.slot("{3}").await;
    let node = cluster.master_of(slot).await;
    let config = config_of(cluster.topology(), &names::unique("store"), 8);
    let fixture = StoreFixture::of(config, cluster.node(node), 0).await;
    let all: Vec<Partition> = (0..8).map(Partition).collect();
    for p in &all {
        fixture
            .store
            .write(
                *p,
                vec![crate::store::fixture::keep(vec![unnamed(past(), "a")])],
            )
            .await
            .expect("stored");
    }
    let heads = async || {
        fixture
            .store
            .heads(&all, UnixMs(i64::MAX / 4))
            .await
            .expect("heads")
    };
    assert_eq!(heads().await.len(), 8);
    assert_eq!(fixture.counts().await.messages, 8);
    cluster.uncover(slot).await;
    eventually("the store sees the hole", async || {
        let seen: Vec<u16> = heads()
            .await
            .into_iter()
            .map(|head| head.partition.0)
            .collect();
        if seen == [0, 1, 2, 4, 5, 6, 7] {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    })
    .await;
    // What was known of the others' counts stays.
    assert_eq!(fixture.counts().await.messages, 8);
    let hidden = fixture.at(Partition(3));
    let waiting = tokio::spawn(async move { hidden.keep(vec![unnamed(far(), "b")]).await });
    for p in all.iter().filter(|p| p.0 != 3) {
        let other = fixture.at(*p);
        let claimed = other.claim(600_000).await;
        assert_eq!(claimed.len(), 1);
        other.keep(vec![unnamed(far(), "b")]).await;
        other
            .store
            .settle(*p, &[settlement(&claimed[0])])
            .await
            .expect("settled");
        sweep(&other.store, *p, 600_000, false)
            .await
            .expect("swept");
        other.store.scrub(*p).await.expect("scrubbed");
    }
    assert!(!waiting.is_finished(), "its own partition waits");
    assert!(
        sweep(&fixture.store, Partition(3), 600_000, false)
            .await
            .is_err(),
        "and holds nobody up"
    );
    eventually("and that shows", async || {
        if fixture.store.is_reachable() {
            Err("not yet")
        } else {
            Ok(())
        }
    })
    .await;
    cluster.cover(slot, node).await;
    waiting.await.expect("stored in the end");
    let mine = fixture.at(Partition(3));
    assert_eq!(
        mine.command::<i64>(&["ZCARD", &mine.key("idx")]).await,
        2,
        "what was there and what waited"
    );
    assert_eq!(
        heads()
            .await
            .iter()
            .filter(|head| head.partition.0 == 3)
            .count(),
        1,
        "the earlier one"
    );
}

/// A master that is away stalls its own partitions, not a look at all of them.
#[tokio::test]
async fn a_node_that_is_away_holds_up_nobody_elses_partitions() {
    let mut cluster = Cluster::start_with("redis-server", 0).await;
    let slot = cluster.slot("{0}").await;
    let node = cluster.master_of(slot).await;
    let config = config_of(cluster.topology(), &names::unique("store"), 8);
    let fixture = StoreFixture::of(config, cluster.node(node), 0).await;
    let all: Vec<Partition> = (0..8).map(Partition).collect();
    for p in &all {
        fixture
            .store
            .write(
                *p,
                vec![crate::store::fixture::keep(vec![unnamed(past(), "a")])],
            )
            .await
            .expect("stored");
    }
    let mut others = Vec::new();
    for p in &all {
        if cluster
            .master_of(cluster.slot(&format!("{{{p}}}")).await)
            .await
            != node
        {
            others.push(p.0);
        }
    }
    assert!(!others.is_empty() && others.len() < 8, "{others:?}");
    cluster.stop(node);
    eventually("the others are seen", async || {
        let heads = fixture.store.heads(&all, UnixMs(i64::MAX / 4)).await;
        let seen: Vec<u16> = heads
            .map_err(|e| e.to_string())?
            .iter()
            .map(|head| head.partition.0)
            .collect();
        if seen == others {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    })
    .await;
    for p in &others {
        let other = fixture.at(Partition(*p));
        let claimed = tokio::time::timeout(Duration::from_secs(30), other.claim(600_000)).await;
        assert_eq!(claimed.expect("not held up").len(), 1);
    }
    cluster.cont(node);
    let mine = fixture.at(Partition(0));
    eventually("it is back", async || {
        match mine.store.heads(&all, UnixMs(i64::MAX / 4)).await {
            Ok(heads) if heads.iter().any(|head| head.partition.0 == 0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}
