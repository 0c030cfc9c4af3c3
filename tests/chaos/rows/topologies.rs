//! Sentinel and Cluster: masters that die, hang and come back, slots that move.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::common::{limit_recovery, says_again};
use crate::outcome::Outcome;
use crate::scenario::{MIN_IN_FLIGHT, Scale, Scenario, Setup};
use crate::support::accounting::{Id, Stamp};
use crate::support::eventually::within;
use crate::support::{Cluster, Redis, Sentinel, eventually};

/// How long the replicas may take to follow their new master before the next is hurt.
const SETTLES: Duration = Duration::from_secs(180);

/// Durability of a store of more than one node.
const REPLICATED: &str = "durability = \"replicated\"";

async fn with_sentinels(scale: Scale, durability: &str) -> (Scenario, Sentinel) {
    let sentinel = Sentinel::start().await;
    let stored = Some(format!("{}\n{durability}", sentinel.lines()));
    let setup = Setup {
        stored,
        patience: Duration::from_secs(90),
        ..Setup::default()
    };
    (Scenario::start(scale, setup).await, sentinel)
}

pub(super) async fn kill_master(scale: Scale) -> Outcome {
    let (mut scenario, mut sentinel) = with_sentinels(scale, REPLICATED).await;
    scenario.under_load().await;
    let old = sentinel.settled_within(SETTLES, 2).await.expect("a master");
    scenario.inject(&scenario.all()).await;
    scenario.precondition_claims();
    sentinel.kill9(old).await;
    let master = sentinel.promoted(old).await;
    scenario.healed();
    scenario.note(format!("node {master} took over"));
    scenario.moment(2000, 4000).await;
    sentinel.restart(old).await;
    scenario.stores = vec![sentinel.node(master).url()];
    scenario.account().await;
    limit_recovery(&mut scenario, 20_000);
    scenario.close().await
}

/// The master hangs, is replaced, and goes on as if nothing had happened; then the same happens to the new one.
pub(super) async fn stop_masters(scale: Scale) -> Outcome {
    let (mut scenario, mut sentinel) = with_sentinels(scale, REPLICATED).await;
    scenario.under_load().await;
    let mut master = sentinel.settled_within(SETTLES, 2).await.expect("a master");
    let mut unmet = Vec::new();
    let mut stale_ms = Vec::new();
    let mut calls = 0;
    let mut switches = 0;
    for switch in 1..=scale.cycles {
        switches = switch as usize;
        scenario.inject(&scenario.all()).await;
        let before = scripts_run(sentinel.node(master)).await;
        sentinel.stop(master);
        let heir = sentinel.promoted(master).await;
        scenario.moment(0, 5000).await;
        sentinel.cont(master);
        scenario.healed();
        let claimed = scenario.in_flight();
        let began = Instant::now();
        // The sentinels tell it some seconds later; until then it answers whoever still asks it.
        let mut said = None;
        let mut after = before;
        while let Some(count) = as_a_master(sentinel.node(master)).await {
            (said, after) = (Some(began.elapsed()), count);
            // On a busy machine they may have made it the master again.
            if sentinel.master().await == Some(master) {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
        println!(
            "switch {switch}: {claimed} in flight, node {heir} took over, two masters for {said:?}"
        );
        match said {
            Some(said) if claimed >= MIN_IN_FLIGHT => {
                stale_ms.push(said.as_millis());
                calls += after.saturating_sub(before);
            }
            Some(_) => unmet.push(format!(
                "switch {switch}: only {claimed} messages were in flight"
            )),
            None => unmet.push(format!(
                "switch {switch}: the old master never called itself one"
            )),
        }
        match sentinel.settled_within(SETTLES, 2).await {
            Ok(now) => master = now,
            Err(missing) => {
                scenario.note(format!(
                    "no further switch, for the replicas do not follow: {missing}"
                ));
                break;
            }
        }
    }
    if let Some(master) = sentinel.master().await {
        scenario.stores = vec![sentinel.node(master).url()];
    }
    scenario.account().await;
    scenario.outcome.unmet_cycles = unmet.len().min(switches - 1);
    scenario.outcome.cycles = switches - scenario.outcome.unmet_cycles;
    scenario.precondition(!stale_ms.is_empty(), unmet.join("; "));
    let least = stale_ms.iter().min().unwrap_or(&0);
    let most = stale_ms.iter().max().unwrap_or(&0);
    scenario.note(format!(
        "{} times there were two masters, for {least} to {most} ms; the stale ones ran {calls} scripts meanwhile",
        stale_ms.len()
    ));
    fault_of_two_masters(&mut scenario);
    limit_recovery(&mut scenario, 20_000);
    scenario.close().await
}

/// How many scripts a server has run.
async fn scripts_run(node: &Redis) -> u64 {
    let info = info(node, "commandstats").await;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.and_then(|line| line.split(',').next())
        .map_or(0, |calls| calls.parse().expect("a number"))
}

/// The same of one that calls itself a master.
async fn as_a_master(node: &Redis) -> Option<u64> {
    let role = info(node, "replication").await;
    if role.contains("role:master") {
        Some(scripts_run(node).await)
    } else {
        None
    }
}

/// Reads a section of a server's `INFO`. The sentinels end all its connections when they change its role.
async fn info(node: &Redis, section: &str) -> String {
    eventually("a server answers INFO", async || {
        node.command::<String>(&["INFO", section]).await
    })
    .await
}

/// A message that came twice and neither time said that it may have been before was claimed of two masters, which
/// knew nothing of each other.
fn fault_of_two_masters(scenario: &mut Scenario) {
    let mut plain: BTreeMap<Id, Vec<(Stamp, i64)>> = BTreeMap::new();
    for delivery in scenario.run.ledger().deliveries_from(0) {
        let Some(stamp) = Stamp::read(&delivery.body) else {
            continue;
        };
        if !says_again(&delivery) {
            plain
                .entry(stamp.id.clone())
                .or_default()
                .push((stamp, delivery.received_ms));
        }
    }
    plain.retain(|_, came| came.len() > 1);
    scenario.outcome.wrong += plain.len();
    if !plain.is_empty() {
        let struck = scenario.injected_ms();
        let some: Vec<_> = plain
            .iter()
            .take(5)
            .map(|(id, came)| {
                let stamp = &came[0].0;
                let times = came.iter().map(|(_, at)| at - struck);
                let due = stamp.due_ms - struck;
                let times = times.collect::<Vec<_>>();
                format!(
                    "{id} to {}, due {due} ms after the fault, came {times:?}",
                    stamp.target
                )
            })
            .collect();
        let count = plain.len();
        let some = some.join("; ");
        scenario
            .outcome
            .faults
            .push(format!("published from a stale master: {count} ({some})"));
    }
}

/// The master can no longer reach its replicas and answers as before; then a replica takes over.
pub(super) async fn lagging_replicas(scale: Scale) -> Outcome {
    lagging(scale, Dies::Master).await
}

/// The same, and replicas of Postdate die with the master: nobody knows any more what they had published meanwhile. By
/// dice one of them dies, or all: those that live find the rollback by the numbers of their calls, and where none lives
/// the master's identity alone tells of it.
pub(super) async fn owner_and_master(scale: Scale) -> Outcome {
    lagging(scale, Dies::MasterAndOwners).await
}

/// Who dies once the replicas of the store lag behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dies {
    Master,
    MasterAndOwners,
}

async fn lagging(scale: Scale, dies: Dies) -> Outcome {
    let (mut scenario, mut sentinel) = with_sentinels(scale, REPLICATED).await;
    scenario.under_load().await;
    let old = sentinel.settled_within(SETTLES, 2).await.expect("a master");
    scenario.inject(&scenario.all()).await;
    scenario.precondition_claims();
    // What is written from now on reaches nobody else, and dies with the master.
    let others = hang_replicas(&mut sentinel, old).await;
    // What was sent to them already would still be in their sockets: they are cut off as well.
    let cut = sentinel
        .node(old)
        .command::<u64>(&["CLIENT", "KILL", "TYPE", "replica"])
        .await;
    scenario.precondition(
        cut.is_ok_and(|cut| cut == 2),
        "the replicas were not cut off",
    );
    scenario.moment(1500, 3000).await;
    sentinel.kill9(old).await;
    let killed = match dies {
        Dies::Master => 0,
        Dies::MasterAndOwners if scenario.rng.bool() => scenario.relays.len(),
        Dies::MasterAndOwners => 1,
    };
    for relay in &mut scenario.relays[..killed] {
        relay.kill9().await;
    }
    for other in others {
        sentinel.cont(other);
    }
    let master = sentinel.promoted(old).await;
    if killed > 0 {
        scenario.moment(1000, 6000).await;
    }
    for relay in &mut scenario.relays[..killed] {
        relay.restart().await;
    }
    scenario.healed();
    scenario.moment(2000, 4000).await;
    scenario.stores = vec![sentinel.node(master).url()];
    scenario.account().await;
    match dies {
        Dies::Master => fault_of_two_masters(&mut scenario),
        // What the dead replica had read comes again from its source, and such a copy says nothing of itself. So the
        // counter is asked.
        Dies::MasterAndOwners => {
            let cause = [("cause", "store_rollback")];
            let counted = scenario.total("postdate_redelivered_total", &cause).await;
            scenario.limit(
                counted > 0.5,
                "nothing was counted as a repeat for the new master",
            );
        }
    }
    limit_recovery(&mut scenario, 20_000);
    scenario.close().await
}

/// Stops both replicas at the same point of what the master wrote. One after the other they would differ by what the
/// second alone confirmed, which is lost if the sentinels take the first: that is what `wait_replicas = 1` of two
/// promises (docs/guarantees.md), and no cut between the master and its replicas.
async fn hang_replicas(sentinel: &mut Sentinel, master: usize) -> [usize; 2] {
    let others = [(master + 1) % 3, (master + 2) % 3];
    for _ in 0..20 {
        sentinel.stop(master);
        let reached = within(Duration::from_millis(500), async || {
            let one = offset(sentinel.node(others[0])).await;
            let other = offset(sentinel.node(others[1])).await;
            match one {
                Some(reached) if one == other => Ok(reached),
                _ => Err(format!("{one:?} and {other:?}")),
            }
        })
        .await;
        if reached.is_ok() {
            for other in others {
                sentinel.stop(other);
            }
        }
        sentinel.cont(master);
        match reached {
            Ok(reached) => {
                println!("both replicas hang at offset {reached}");
                return others;
            }
            // It was stopped between writing to one and to the other.
            Err(apart) => println!("the replicas differ: {apart}; once more"),
        }
    }
    panic!("the replicas never stood at the same offset");
}

/// How much of the master's stream a replica has taken; `None` while the node is none.
async fn offset(node: &Redis) -> Option<u64> {
    let info = info(node, "replication").await;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("slave_repl_offset:"));
    line.map(|offset| offset.trim().parse().expect("a number"))
}

pub(super) async fn cluster_failover(scale: Scale) -> Outcome {
    let mut cluster = Cluster::start().await;
    let stored = Some(format!("{}\n{REPLICATED}", cluster.lines()));
    let setup = Setup {
        stored,
        patience: Duration::from_secs(90),
        ..Setup::default()
    };
    let mut scenario = Scenario::start(scale, setup).await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    scenario.precondition_claims();
    let handed = cluster.failover(0, None).await;
    scenario.moment(1000, 3000).await;
    let heir = cluster.replica_of(1).await;
    cluster.kill9(1).await;
    cluster.promoted(heir).await;
    scenario.healed();
    scenario.note(format!(
        "node {handed} took over in order, node {heir} from one that was killed"
    ));
    scenario.moment(2000, 4000).await;
    cluster.restart(1).await;
    scenario.quiet().await;
    let masters = cluster.masters().await.expect("the cluster's table");
    scenario.stores = masters
        .keys()
        .map(|&node| cluster.node(node).url())
        .collect();
    scenario.account().await;
    limit_recovery(&mut scenario, 20_000);
    scenario.close().await
}

pub(super) async fn moving_slots(scale: Scale) -> Outcome {
    let cluster = Cluster::start().await;
    let setup = Setup {
        stored: Some(cluster.lines()),
        redis_lines: "partitions = 16".into(),
        patience: Duration::from_secs(90),
        ..Setup::default()
    };
    let mut scenario = Scenario::start(scale, setup).await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    scenario.precondition_claims();
    for partition in 0..16 {
        let slot = cluster.slot(&format!("{{{partition}}}")).await;
        let to = scenario.rng.usize(0..3);
        cluster.migrate(slot, to).await.expect("the slot moves");
        sleep(Duration::from_millis(200)).await;
    }
    scenario.healed();
    scenario.stores = (0..3).map(|node| cluster.node(node).url()).collect();
    scenario.account().await;
    let duplicates = scenario.outcome.duplicates;
    scenario.note(format!("16 slots moved, {duplicates} duplicates"));
    limit_recovery(&mut scenario, 20_000);
    scenario.close().await
}
