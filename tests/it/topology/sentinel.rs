//! Behind sentinels: the relay follows the master, and under `replicated` loses nothing on the way.

use std::time::Duration;

use postdate::store::config::Topology;

use super::flow::Flow;
use super::replicated;
use crate::store::fixture::{StoreFixture, config_of, far, unnamed};
use crate::support::{Kafka, Sentinel, names};

const REPLICATED: &str = "durability = \"replicated\"\nwait_replicas = 1\nwait_timeout = \"500ms\"";
/// Sentinels that are slow on a busy machine may promote twice in a row, and the second time a replica that has not what
/// the other one confirmed: where nothing may be lost whoever takes over, all confirm.
pub(super) const BY_ALL: &str =
    "durability = \"replicated\"\nwait_replicas = 2\nwait_timeout = \"500ms\"";
const CHANGED: &str = "the topology of redis has changed";

#[tokio::test]
async fn a_killed_master_costs_no_message() {
    let (kafka, mut sentinel) = tokio::join!(Kafka::shared(), Sentinel::start());
    let mut flow = Flow::start(kafka, &format!("{}\n{BY_ALL}", sentinel.lines())).await;
    flow.send(kafka, 300, 6000).await;
    flow.stored(300).await;
    assert!(flow.is_under_way(), "the kill must come in mid-flow");
    sentinel.kill9(0).await;
    flow.send(kafka, 100, 1000).await;
    sentinel.promoted(0).await;
    flow.logged(CHANGED, 2).await;
    sentinel.restart(0).await;
    sentinel.settled(2).await;
    flow.send(kafka, 100, 1000).await;
    flow.accounted().await;
}

/// Plain writes lose four fifths of what a paused and resumed master acknowledges; it calls itself one for 8 s.
#[tokio::test]
async fn a_master_that_is_paused_and_goes_on_is_left_and_nothing_is_lost() {
    let (kafka, mut sentinel) = tokio::join!(Kafka::shared(), Sentinel::start());
    let mut flow = Flow::start(kafka, &format!("{}\n{BY_ALL}", sentinel.lines())).await;
    flow.send(kafka, 300, 8000).await;
    flow.stored(300).await;
    assert!(flow.is_under_way(), "the pause must come in mid-flow");
    sentinel.stop(0);
    let paused = tokio::time::Instant::now();
    flow.send(kafka, 100, 1000).await;
    sentinel.promoted(0).await;
    // By then it has another master: the old one still calls itself so when it goes on.
    flow.logged(CHANGED, 2).await;
    tokio::time::sleep_until(paused + Duration::from_secs(6)).await;
    sentinel.cont(0);
    flow.send(kafka, 200, 2000).await;
    flow.accounted().await;
}

/// The replicas are cut off, messages come, and the master dies with all that only it has. Answers what is lost.
async fn lost_with_the_only_copy(kafka: &Kafka, mutant: &str) -> usize {
    let mut sentinel = Sentinel::start().await;
    let environment: &[_] = if mutant.is_empty() {
        &[]
    } else {
        &[("POSTDATE_MUTANT", mutant)]
    };
    let lines = format!("{}\n{REPLICATED}", sentinel.lines());
    let mut flow = Flow::start_with(kafka, &lines, environment).await;
    flow.send(kafka, 50, 3000).await;
    flow.stored(50).await;
    for node in [1, 2] {
        sentinel.stop(node);
    }
    // What is sent from now on must not be found in their sockets either.
    let cut = sentinel
        .node(0)
        .command::<i64>(&["CLIENT", "KILL", "TYPE", "replica"])
        .await;
    assert_eq!(cut.expect("killed"), 2);
    flow.send(kafka, 100, 4000).await;
    if mutant.is_empty() {
        flow.logged("writes and claims are not confirmed", 1).await;
    } else {
        flow.stored(150).await;
        // The false acknowledgement follows within 100 ms, and shows nowhere.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    sentinel.kill9(0).await;
    for node in [1, 2] {
        sentinel.cont(node);
    }
    sentinel.promoted(0).await;
    if mutant.is_empty() {
        flow.accounted().await;
    } else {
        flow.run
            .drain_within(&flow.relay, Duration::from_secs(15))
            .await;
    }
    flow.run.report().lost.len()
}

#[tokio::test]
async fn what_no_replica_has_is_not_acknowledged_and_without_the_wait_would_be_lost() {
    let kafka = Kafka::shared().await;
    assert_eq!(lost_with_the_only_copy(kafka, "").await, 0);
    assert!(
        lost_with_the_only_copy(kafka, "no_wait").await > 0,
        "the fault did not bite"
    );
}

#[tokio::test]
async fn a_dead_sentinel_and_one_that_names_another_are_outvoted() {
    let (mut sentinel, liar) = tokio::join!(Sentinel::start(), Sentinel::start());
    let mut nodes = sentinel.topology();
    let (Topology::Sentinel { nodes: list, .. }, Topology::Sentinel { nodes: others, .. }) =
        (&mut nodes, liar.topology())
    else {
        unreachable!("both are behind sentinels");
    };
    list.push(others[0].clone());
    sentinel.kill9_sentinel(2).await;
    let mut config = config_of(nodes, &names::unique("store"), 1);
    config.durability = replicated(2, 1000);
    let fixture = StoreFixture::of(config, sentinel.node(0), 0).await;
    fixture.keep(vec![unnamed(far(), "a")]).await;
    assert_eq!(fixture.counts().await.messages, 1);
    assert_eq!(
        fixture.check().await.bundles.len(),
        1,
        "it is where the majority says"
    );
    let elsewhere: usize = liar.node(0).command(&["DBSIZE"]).await.expect("asked");
    assert_eq!(elsewhere, 0);
}
