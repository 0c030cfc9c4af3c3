//! Servers that are full, have become replicas, or want a password.

use postdate::domain::Partition;
use postdate::store::config::{Login, Topology};
use postdate::store::{ClaimRequest, PreflightFailure, preflight};

use crate::store::fixture::{StoreFixture, config_of, far, keep, past, settlement, unnamed};
use crate::support::{Cluster, Proxy, Redis, Sentinel, eventually, names};

/// One node of three is full: what is to be stored there waits, what is due there goes out, the others go on.
#[tokio::test]
async fn a_full_node_takes_nothing_in_and_lets_everything_out() {
    let cluster = Cluster::start_with("redis-server", 0).await;
    let home = |p: u16| {
        let cluster = &cluster;
        async move {
            cluster
                .master_of(cluster.slot(&format!("{{{p}}}")).await)
                .await
        }
    };
    let full = home(0).await;
    let mut other = 1;
    while home(other).await == full {
        other += 1;
    }
    let config = config_of(cluster.topology(), &names::unique("store"), 16);
    let fixture = StoreFixture::of(config, cluster.node(full), 0).await;
    fixture.keep(vec![unnamed(past(), "a")]).await;
    cluster
        .node(full)
        .command::<()>(&["CONFIG", "SET", "maxmemory", "1mb"])
        .await
        .expect("set");
    let second = fixture.at(fixture.p);
    let waiting = tokio::spawn(async move { second.keep(vec![unnamed(far(), "b")]).await });
    eventually("the writer waits", async || {
        if fixture.store.write_failure().is_some() {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    let elsewhere = fixture.at(Partition(other));
    elsewhere.keep(vec![unnamed(past(), "c")]).await;
    let claimed = fixture.claim(600_000).await;
    assert_eq!(claimed.len(), 1, "what is due goes out");
    fixture
        .store
        .settle(fixture.p, &[settlement(&claimed[0])])
        .await
        .expect("and is taken out");
    assert!(!waiting.is_finished());
    cluster
        .node(full)
        .command::<()>(&["CONFIG", "SET", "maxmemory", "0"])
        .await
        .expect("set");
    waiting.await.expect("stored in the end");
    assert_eq!(fixture.store.write_failure(), None);
    assert_eq!(fixture.check().await.bundles.len(), 1);
}

/// As behind a managed service's one address.
#[tokio::test]
async fn a_server_that_becomes_a_replica_is_left_until_it_is_a_master_again() {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    fixture.keep(vec![unnamed(past(), "a")]).await;
    redis
        .command::<()>(&["REPLICAOF", "127.0.0.1", "1"])
        .await
        .expect("said");
    let second = fixture.at(fixture.p);
    let waiting = tokio::spawn(async move { second.keep(vec![unnamed(far(), "b")]).await });
    eventually("it is left", async || {
        if fixture.store.is_reachable() {
            Err("not yet")
        } else {
            Ok(())
        }
    })
    .await;
    assert!(!waiting.is_finished());
    redis
        .command::<()>(&["REPLICAOF", "NO", "ONE"])
        .await
        .expect("said");
    waiting.await.expect("stored in the end");
    assert_eq!(fixture.claim(600_000).await.len(), 1);
    assert_eq!(fixture.check().await.bundles.len(), 2);
}

/// A failover behind one address: connections to the former master stay open, and it lacks what came since.
#[tokio::test]
async fn what_is_claimed_at_a_new_master_is_not_looked_for_at_the_former_one() {
    let former = Redis::start().await;
    let follow = format!("127.0.0.1 {}", former.port());
    let master = Redis::start_with("redis-server", &["--replicaof", &follow]).await;
    let proxy = Proxy::before(former.port()).await;
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let fixture = StoreFixture::through(&master, &url, 1).await;
    fixture.keep(vec![unnamed(past(), "a")]).await;
    // Every role has its connection.
    for claimed in fixture.claim(600_000).await {
        fixture.settle(&claimed).await;
    }
    eventually("the replica follows", async || {
        let info: String = former.command(&["INFO", "replication"]).await?;
        anyhow::ensure!(info.contains("state=online"), "{info}");
        anyhow::Ok(())
    })
    .await;
    let say = async |server: &Redis, command: &[&str]| {
        server.command::<()>(command).await.expect("said");
    };
    say(&master, &["REPLICAOF", "NO", "ONE"]).await;
    proxy.lead_to(master.port());
    say(&former, &["REPLICAOF", "127.0.0.1", "1"]).await;
    for _ in 0..100 {
        fixture.keep(vec![unnamed(past(), "b")]).await;
    }
    let due: Vec<String> = fixture.command(&["KEYS", &fixture.key("due:*")]).await;
    let due_set = due[0].rsplit_once("due:").expect("a due set").1;
    let request = ClaimRequest {
        partition: fixture.p,
        due_sets: vec![(due_set.to_owned(), 1000)],
        lookahead_ms: 0,
        lease_ms: 600_000,
        max_bundles: 1000,
    };
    let claimed = fixture.store.claim(&request).await.expect("claimed");
    assert_eq!(claimed.len(), 100);
    for one in claimed {
        assert!(one.bundle.is_ok(), "{:?}", one.bundle);
    }
}

fn login(password: &str) -> Login {
    Login {
        username: Some("relay".to_owned()),
        password: Some(postdate::credential::Credential::inline(password)),
        tls: false,
    }
}

const USER: [&str; 8] = [
    "ACL", "SETUSER", "relay", "on", ">hunter2", "~*", "&*", "+@all",
];

#[tokio::test]
async fn sentinels_and_the_master_are_logged_in_at() {
    let sentinel = Sentinel::start().await;
    for node in 0..3 {
        sentinel
            .node(node)
            .command::<()>(&USER)
            .await
            .expect("a user");
    }
    for watcher in 0..3 {
        sentinel
            .ask_sentinel::<()>(watcher, &USER)
            .await
            .expect("a user");
    }
    let with = |password: &str| {
        let Topology::Sentinel { nodes, master, .. } = sentinel.topology() else {
            unreachable!("it is")
        };
        let topology = Topology::Sentinel {
            nodes,
            master,
            login: login(password),
            sentinel_login: login(password),
        };
        config_of(topology, &names::unique("store"), 1)
    };
    match preflight(&with("hunter3"), true).await {
        Err(PreflightFailure::Away(why)) => assert!(!why.contains("hunter3"), "{why}"),
        other => panic!("expected to wait, got {other:?}"),
    }
    let config = with("hunter2");
    assert_eq!(preflight(&config, true).await, Ok(()));
    let fixture = StoreFixture::of(config, sentinel.node(0), 0).await;
    fixture.keep(vec![unnamed(far(), "a")]).await;
    let ours = |list: String| {
        list.lines()
            .filter(|line| line.contains("user=relay"))
            .count()
    };
    assert!(
        ours(
            sentinel
                .node(0)
                .command(&["CLIENT", "LIST"])
                .await
                .expect("a list")
        ) >= 5
    );
    assert!(
        ours(
            sentinel
                .ask_sentinel(1, &["CLIENT", "LIST"])
                .await
                .expect("a list")
        ) >= 1
    );
}

#[tokio::test]
async fn every_node_of_a_cluster_is_logged_in_at() {
    let cluster = Cluster::start_with("redis-server", 0).await;
    for node in 0..3 {
        cluster
            .node(node)
            .command::<()>(&USER)
            .await
            .expect("a user");
    }
    let Topology::Cluster { nodes, .. } = cluster.topology() else {
        unreachable!("it is")
    };
    let topology = Topology::Cluster {
        nodes,
        login: login("hunter2"),
    };
    let config = config_of(topology, &names::unique("store"), 16);
    assert_eq!(preflight(&config, true).await, Ok(()));
    let fixture = StoreFixture::of(config, cluster.node(0), 0).await;
    for p in (0..16).map(Partition) {
        fixture
            .store
            .write(p, vec![keep(vec![unnamed(far(), "a")])])
            .await
            .expect("stored");
    }
    for node in 0..3 {
        let list: String = cluster
            .node(node)
            .command(&["CLIENT", "LIST"])
            .await
            .expect("a list");
        assert!(
            list.lines()
                .filter(|line| line.contains("user=relay"))
                .count()
                >= 5,
            "{list}"
        );
    }
}

/// A cluster that is there and has a hole where this store wants to be: waited for, and said.
#[tokio::test]
async fn a_cluster_without_one_of_our_slots_is_waited_for_at_start() {
    let cluster = Cluster::start_with("redis-server", 0).await;
    let slot = cluster.slot("{3}").await;
    let node = cluster.master_of(slot).await;
    cluster.uncover(slot).await;
    let config = config_of(cluster.topology(), &names::unique("store"), 8);
    let answer = preflight(&config, true).await;
    let said = "1 slots that the store uses are not served";
    assert!(
        matches!(&answer, Err(PreflightFailure::Away(why)) if why.contains(said)),
        "{answer:?}"
    );
    // Nobody's but this store's: three partitions fewer do not need it.
    assert_eq!(
        preflight(
            &config_of(cluster.topology(), &names::unique("store"), 3),
            true
        )
        .await,
        Ok(())
    );
    cluster.cover(slot, node).await;
    assert_eq!(preflight(&config, true).await, Ok(()));
}
