//! The servers themselves: sentinels promote, a cluster fails over, slots move and are uncovered.

use crate::support::{Cluster, Sentinel, eventually};

#[tokio::test]
async fn sentinels_promote_a_replica_of_a_killed_master_and_take_it_back() {
    let mut sentinel = Sentinel::start().await;
    assert_eq!(sentinel.master().await, Some(0));
    sentinel.kill9(0).await;
    let new = sentinel.promoted(0).await;
    assert_ne!(new, 0);
    sentinel.restart(0).await;
    sentinel.settled(2).await;
}

#[tokio::test]
async fn a_cluster_fails_over_moves_slots_and_leaves_one_uncovered() {
    let mut cluster = Cluster::start().await;
    let key = "{orders}";
    let slot = cluster.slot(key).await;
    let old = cluster.master_of(slot).await;
    cluster
        .node(old)
        .command::<()>(&["SET", key, "kept"])
        .await
        .expect("written");
    let new = cluster.failover(old, None).await;
    cluster.agreed(slot, Some(new)).await;
    let other = (0..3).find(|&n| n != old).expect("another");
    cluster.migrate(slot, other).await.expect("moved");
    assert_eq!(
        cluster
            .node(other)
            .command::<String>(&["GET", key])
            .await
            .expect("read"),
        "kept"
    );
    cluster.uncover(slot).await;
    let refused = cluster
        .node(other)
        .command::<String>(&["GET", key])
        .await
        .expect_err("uncovered");
    assert_eq!(refused.code(), Some("CLUSTERDOWN"));
    cluster.cover(slot, other).await;
    cluster.kill9(other).await;
    let replica = (3..6).find(|&n| n != new).expect("a replica");
    eventually("a replica takes over", async || {
        let masters = cluster.masters().await?;
        anyhow::ensure!(
            !masters.contains_key(&other) && masters.len() == 3,
            "{masters:?}, {replica}"
        );
        anyhow::Ok(())
    })
    .await;
    cluster.restart(other).await;
    cluster.settled(1).await;
}
