//! `order = "key"` on a cluster, over fail-overs.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::anyhow;

use super::flow::Flow;
use crate::support::accounting::Stamp;
use crate::support::{Cluster, Kafka, When, eventually};

const REPLICATED: &str = "durability = \"replicated\"\nwait_replicas = 1\nwait_timeout = \"500ms\"";
const KEYS: usize = 12;
const MESSAGES: u64 = 240;

/// Each key's messages as they first arrived: when they were due, and the number under which they were made.
fn firsts(flow: &Flow) -> BTreeMap<String, Vec<(i64, u64)>> {
    let mut seen = BTreeSet::new();
    let mut firsts = BTreeMap::<_, Vec<_>>::new();
    for delivery in flow.run.ledger().deliveries_from(0) {
        let stamp = Stamp::read(&delivery.body).expect("one of ours");
        if seen.insert(stamp.id.seq) {
            firsts
                .entry(stamp.key.expect("a key"))
                .or_default()
                .push((stamp.due_ms, stamp.id.seq));
        }
    }
    firsts
}

#[tokio::test]
async fn keys_arrive_in_order_though_the_masters_of_their_partitions_change() {
    let (kafka, mut cluster) = tokio::join!(Kafka::shared(), Cluster::start());
    let lines = format!("{}\n{REPLICATED}", cluster.lines());
    let mut flow = Flow::start_as(kafka, &lines, &[], "order = \"key\"").await;
    let pause = async |verb: &str| {
        let path = format!("/api/v1/routes/one/{verb}");
        // 503 until every node is reached.
        eventually(verb, async || {
            match flow
                .relay
                .request("POST", &path, None, "{\"only\":\"publishing\"}")
                .await?
            {
                (200, _) => Ok(()),
                (status, body) => Err(anyhow!("{status}: {body}")),
            }
        })
        .await;
    };
    // What is stored too late for its moment would take its place among what is left; nothing leaves before all is
    // stored.
    pause("pause").await;
    let message = |n: u64| {
        let when = When::Delay(fastrand::u64(..4) * 400 + n * 20);
        flow.message(when)
            .key(&format!("key-{}", fastrand::usize(..KEYS)))
    };
    flow.send_all(kafka, (0..MESSAGES).map(message).collect())
        .await;
    flow.stored(MESSAGES).await;
    pause("resume").await;
    let arrived = async |count: usize| {
        eventually(&format!("{count} have arrived"), async || {
            match flow.run.ledger().delivered() {
                found if found >= count => Ok(()),
                found => Err(format!("{found}")),
            }
        })
        .await;
    };
    arrived(20).await;
    cluster.failover(0, None).await;
    flow.logged("the topology of redis has changed", 1).await;
    arrived(80).await;
    let replica = cluster.replica_of(1).await;
    cluster.kill9(1).await;
    cluster.promoted(replica).await;
    // Its own replica, so that the tier can be had there again.
    cluster.restart(1).await;
    cluster.settled(1).await;
    arrived(MESSAGES as usize).await;
    let found = firsts(&flow);
    assert_eq!(found.values().map(Vec::len).sum::<usize>() as u64, MESSAGES);
    for (key, found) in found {
        let mut expected = found.clone();
        expected.sort_unstable();
        assert_eq!(found, expected, "{key}");
    }
    flow.accounted().await;
}
