//! Replicas that die, hang and are replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use postdate::api::{CancelManyRequest, CancelResult, CancelledPage, Word};
use tokio::time::Instant;

use super::common::{limit_no_duplicate, limit_recovery, says_again, send};
use crate::load::Way;
use crate::mutants::LOST_CLAIM;
use crate::outcome::Outcome;
use crate::scenario::{Scale, Scenario, Setup};
use crate::support::accounting::{Id, Outcome as Sent, Stamp};
use crate::support::process::Signal;
use crate::support::producers::kafka_producer;
use crate::support::proxy::Mode;
use crate::support::run::now_ms;
use crate::support::{When, eventually};

/// Limits the messages that came again from expired claims to those in flight at the injection.
fn limit_claims(scenario: &mut Scenario) {
    let mut came = BTreeMap::<Id, usize>::new();
    let mut again = BTreeSet::new();
    for delivery in scenario.run.ledger().deliveries_from(0) {
        let Some(stamp) = Stamp::read(&delivery.body) else {
            continue;
        };
        *came.entry(stamp.id.clone()).or_default() += 1;
        if says_again(&delivery) {
            again.insert(stamp.id);
        }
    }
    let repeated = again.iter().filter(|id| came[id] > 1).count();
    let in_flight = scenario.in_flight();
    scenario.limit(
        repeated <= in_flight,
        format!(
            "{repeated} messages came again from claims that expired, {in_flight} were in flight"
        ),
    );
}

/// Three replicas under load.
async fn loaded(scale: Scale, setup: Setup) -> Scenario {
    let mut scenario = Scenario::start(scale, setup).await;
    scenario.under_load().await;
    scenario
}

async fn kill(scenario: &mut Scenario, victims: &[usize]) {
    for &victim in victims {
        scenario.relays[victim].kill9().await;
    }
}

/// Restarts the victims, marks the fault as healed, and counts everything three seconds later.
async fn back_again(scenario: &mut Scenario, victims: &[usize]) {
    for &victim in victims {
        scenario.relays[victim].restart().await;
    }
    scenario.healed();
    scenario.moment(3000, 3000).await;
    scenario.account().await;
}

pub(super) async fn kill_one(scale: Scale) -> Outcome {
    let mut scenario = loaded(scale, Setup::default()).await;
    let victim = [scenario.rng.usize(0..3)];
    scenario.inject(&victim).await;
    scenario.precondition_claims();
    kill(&mut scenario, &victim).await;
    scenario.moment(1000, 6000).await;
    back_again(&mut scenario, &victim).await;
    limit_claims(&mut scenario);
    let takeover = scenario.outcome.takeover_ms.unwrap_or(0);
    let limit = 13_000;
    scenario.limit(
        takeover <= limit,
        format!("what was due waited for {takeover} ms, the limit is {limit}"),
    );
    scenario.close().await
}

pub(super) async fn kill_all(scale: Scale) -> Outcome {
    let mut scenario = loaded(scale, Setup::default()).await;
    let victims = scenario.all();
    scenario.inject(&victims).await;
    scenario.precondition_claims();
    kill(&mut scenario, &victims).await;
    scenario.moment(5000, 15_000).await;
    back_again(&mut scenario, &victims).await;
    limit_recovery(&mut scenario, 20_000);
    scenario.close().await
}

/// All of a machine: the store hangs, and a second later everything dies. Redis writes each command to its file before
/// it answers: with `everysec` it holds writes back for up to two seconds while the disk is busy, and a kill takes them.
pub(super) async fn kill_with_redis(scale: Scale) -> Outcome {
    let redis = ["--appendfsync", "always"].map(String::from).to_vec();
    let mut scenario = loaded(
        scale,
        Setup {
            redis,
            ..Setup::default()
        },
    )
    .await;
    let victims = scenario.all();
    scenario.inject(&victims).await;
    scenario.precondition_claims();
    scenario.redis.stop();
    scenario.moment(800, 1500).await;
    kill(&mut scenario, &victims).await;
    scenario.redis.restart().await;
    back_again(&mut scenario, &victims).await;
    limit_recovery(&mut scenario, 20_000);
    scenario.close().await
}

pub(super) async fn stop_one(scale: Scale) -> Outcome {
    let mut scenario = loaded(scale, Setup::default()).await;
    let victim = scenario.rng.usize(0..3);
    let stale = scenario.total("postdate_stale_claims_total", &[]).await;
    scenario.inject(&[victim]).await;
    scenario.precondition_claims();
    scenario.relays[victim].signal(Signal::STOP);
    tokio::time::sleep(Duration::from_secs(3 * scenario.setup.claim_s)).await;
    let continued = now_ms();
    scenario.relays[victim].signal(Signal::CONT);
    scenario.healed();
    scenario.moment(3000, 3000).await;
    scenario.account().await;
    let stale = scenario.total("postdate_stale_claims_total", &[]).await - stale;
    scenario.note(format!("{stale} stale answers refused"));
    scenario.limit(stale > 0.0, "no answer to a lost claim was refused");
    let late = first_tries_after(&scenario, continued);
    let in_flight = scenario.in_flight();
    scenario.note(format!(
        "{late} publishes of its own that came after another's"
    ));
    scenario.limit(
        late <= in_flight / 4,
        format!("{late} messages were {LOST_CLAIM}"),
    );
    limit_claims(&mut scenario);
    scenario.close().await
}

/// Ways whose target takes nothing for a while.
const HELD_UP: &[&str] = &["k-k", "r-k"];

/// A replica goes on when others hold what it held, and have handed it over, and know nothing of its fate yet.
pub(super) async fn stop_while_target_hangs(scale: Scale) -> Outcome {
    let setup = Setup {
        slow_targets: HELD_UP,
        ..Setup::default()
    };
    let mut scenario = loaded(scale, setup).await;
    let victim = scenario.rng.usize(0..3);
    let proxy = scenario.kafka.get().proxy.clone();
    // Claimed when the replica is stopped, and due soon after it.
    for way in scenario
        .ways
        .clone()
        .into_iter()
        .filter(|way| HELD_UP.contains(&way.name))
    {
        let key = if way.from_kafka { "key" } else { &way.source };
        let message = |n: u64| {
            scenario
                .run
                .message(&way.label(), When::At(1700 + n % 500))
                .key(key)
        };
        send(&scenario, &way, (0..300).map(message).collect()).await;
    }
    scenario.inject(&[victim]).await;
    scenario.precondition_claims();
    scenario.relays[victim].signal(Signal::STOP);
    let stopped = now_ms();
    proxy.set(Mode::Hole);
    // Its claims expire and are swept a second later at most; then the others hold them.
    tokio::time::sleep(Duration::from_secs(scenario.setup.claim_s) + Duration::from_millis(1500))
        .await;
    scenario.relays[victim].signal(Signal::CONT);
    scenario.moment(1500, 2000).await;
    proxy.set(Mode::Pass);
    scenario.healed();
    scenario.moment(3000, 3000).await;
    scenario.account().await;
    let (taken, twice) = taken_over(&scenario, stopped);
    scenario.note(format!(
        "{taken} messages of its were handed over by others, {twice} of them came twice"
    ));
    scenario.precondition(
        taken >= 10,
        format!("only {taken} messages were held by others when it went on"),
    );
    // What it had handed to its client library before it was stopped is in a socket, as it were.
    scenario.limit(
        twice <= taken / 20,
        format!("{twice} messages were {LOST_CLAIM}, or given to a third"),
    );
    scenario.close().await
}

/// Messages to the targets that hung which say that they may be repeats, and nobody had received when the first
/// holder was stopped; and how many of them came more than once.
fn taken_over(scenario: &Scenario, stopped_ms: i64) -> (usize, usize) {
    let ways = scenario
        .ways
        .iter()
        .filter(|way| HELD_UP.contains(&way.name));
    let targets: Vec<_> = ways.map(Way::label).collect();
    let mut arrived: BTreeMap<Id, (usize, bool, bool)> = BTreeMap::new();
    for delivery in scenario.run.ledger().deliveries_from(0) {
        let Some(stamp) = Stamp::read(&delivery.body).filter(|s| targets.contains(&s.target))
        else {
            continue;
        };
        let (times, again, before) = arrived.entry(stamp.id).or_default();
        *times += 1;
        *again |= says_again(&delivery);
        *before |= delivery.received_ms <= stopped_ms + 100;
    }
    let taken = arrived
        .values()
        .filter(|(_, again, before)| *again && !before);
    let twice = taken.clone().filter(|(times, ..)| *times > 1);
    (taken.count(), twice.count())
}

/// Messages of which a first publish (it says nothing of an attempt) arrived after this moment, when a later one
/// had arrived before: somebody published what was not his any more, or had it in a socket all the while.
fn first_tries_after(scenario: &Scenario, moment_ms: i64) -> usize {
    let mut later = BTreeSet::new();
    let mut count = 0;
    for delivery in scenario.run.ledger().deliveries_from(0) {
        let Some(stamp) = Stamp::read(&delivery.body) else {
            continue;
        };
        if says_again(&delivery) {
            later.insert(stamp.id);
        } else if delivery.received_ms > moment_ms && later.contains(&stamp.id) {
            count += 1;
        }
    }
    count
}

/// Cancelled messages stay cancelled, whoever claims what is left of their bundles, however often.
pub(super) async fn cancelled(scale: Scale) -> Outcome {
    const DUE: u64 = 6000;
    let setup = Setup {
        redis_lines: "partitions = 2".into(),
        ..Setup::default()
    };
    let mut scenario = Scenario::start(scale, setup).await;
    // Close together and of few partitions: many share a bundle, of which some are cancelled.
    let way = scenario.ways[0].clone();
    let messages: Vec<_> = (0..400)
        .map(|n| {
            let message = scenario
                .run
                .message(&way.label(), When::At(DUE + n % 100))
                .key("key");
            let name = message.id().to_string();
            message.contract("x-delay-id", &name)
        })
        .collect();
    let ids: Vec<Id> = messages
        .iter()
        .map(|message| message.id().clone())
        .collect();
    let producer = kafka_producer(scenario.kafka.get().server.client());
    let due = Instant::now() + Duration::from_millis(DUE);
    scenario
        .run
        .send_kafka_by(&producer, &way.source, messages)
        .await;
    eventually("all are stored", async || {
        let stored = scenario.total("postdate_stored_total", &[]).await;
        if stored >= 400.0 { Ok(()) } else { Err(stored) }
    })
    .await;
    // One call: in a debug build a call for each takes longer than they wait.
    let wanted: Vec<&Id> = ids.iter().step_by(4).collect();
    let request = CancelManyRequest {
        ids: wanted.iter().map(ToString::to_string).collect(),
        because: None,
    };
    let (status, answer) = scenario.relays[0]
        .request(
            "POST",
            &format!("/api/v1/routes/{}/messages/cancel", way.name),
            None,
            &serde_json::to_string(&request).expect("JSON"),
        )
        .await
        .expect("an answer");
    assert_eq!(status, 200, "{answer}");
    let answer: CancelledPage = serde_json::from_str(&answer).expect("its answer");
    let mut cancelled = 0;
    for (id, item) in wanted.into_iter().zip(&answer.items) {
        if matches!(item.result, Word::Known(CancelResult::Cancelled)) {
            // It must not arrive: the answer is a promise.
            scenario.run.ledger().resolve(id, Sent::Fail);
            cancelled += 1;
        } else {
            scenario.note(format!("not cancelled: {item:?}"));
        }
    }
    scenario.precondition(
        cancelled >= 50,
        format!("only {cancelled} could be cancelled in time"),
    );
    // Claimed by now, and not yet due.
    tokio::time::sleep_until(
        due.checked_sub(Duration::from_millis(500))
            .expect("later than that"),
    )
    .await;
    let mut in_flight = 0;
    for relay in &scenario.relays {
        in_flight += relay
            .metrics()
            .await
            .expect("metrics")
            .sum("postdate_in_flight", &[]) as usize;
    }
    scenario.outcome.in_flight.push(in_flight);
    scenario.precondition_claims();
    let victims = scenario.all();
    kill(&mut scenario, &victims).await;
    for relay in &mut scenario.relays {
        relay.restart().await;
    }
    scenario.healed();
    scenario.note(format!("{cancelled} were cancelled"));
    scenario.account().await;
    scenario.close().await
}

pub(super) async fn rolling(scale: Scale) -> Outcome {
    let mut scenario = Scenario::start(
        scale,
        Setup {
            longest_ms: 4000,
            ..Setup::default()
        },
    )
    .await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    scenario.precondition_claims();
    for replica in scenario.all() {
        let began = Instant::now();
        let ended = scenario.relays[replica].terminate().await;
        let took = began.elapsed();
        scenario.limit(
            ended.code() == Some(0),
            format!("replica {replica} ended with {ended}"),
        );
        scenario.limit(
            took <= Duration::from_secs(25),
            format!("replica {replica} took {took:?} to end"),
        );
        scenario.relays[replica].restart().await;
        scenario.moment(500, 2000).await;
    }
    scenario.healed();
    scenario.account().await;
    limit_no_duplicate(&mut scenario);
    scenario.close().await
}
