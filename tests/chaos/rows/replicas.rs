//! Replicas that die, hang and are replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::common::{bar_no_duplicate, bar_recovery, says_again, send};
use crate::load::Way;
use crate::mutants::LOST_CLAIM;
use crate::outcome::Outcome;
use crate::stage::{Scale, Setup, Stage};
use crate::support::accounting::{Id, Outcome as Sent, Stamp};
use crate::support::process::Signal;
use crate::support::producers::kafka_producer;
use crate::support::proxy::Mode;
use crate::support::run::now_ms;
use crate::support::{When, eventually};

/// What came again from claims that expired stays within what was in flight.
fn bar_claims(stage: &mut Stage) {
    let (mut came, mut again) = (BTreeMap::<Id, usize>::new(), BTreeSet::new());
    for delivery in stage.run.ledger().deliveries_from(0) {
        let Some(stamp) = Stamp::read(&delivery.body) else { continue };
        *came.entry(stamp.id.clone()).or_default() += 1;
        if says_again(&delivery) {
            again.insert(stamp.id);
        }
    }
    let repeated = again.iter().filter(|id| came[id] > 1).count();
    let in_flight = stage.in_flight();
    let bar = format!("{repeated} messages came again from claims that expired, {in_flight} were in flight");
    stage.bar(repeated <= in_flight, bar);
}

/// Three replicas under load.
async fn loaded(scale: Scale, setup: Setup) -> Stage {
    let mut stage = Stage::start(scale, setup).await;
    stage.under_load().await;
    stage
}

async fn kill(stage: &mut Stage, victims: &[usize]) {
    for &victim in victims {
        stage.relays[victim].kill9().await;
    }
}

/// They are back, the world is whole, and a while later all is counted.
async fn back_again(stage: &mut Stage, victims: &[usize]) {
    for &victim in victims {
        stage.relays[victim].restart().await;
    }
    stage.healed();
    stage.moment(3000, 3000).await;
    stage.account().await;
}

pub(super) async fn kill_one(scale: Scale) -> Outcome {
    let mut stage = loaded(scale, Setup::default()).await;
    let victim = [stage.rng.usize(0..3)];
    stage.strike(&victim).await;
    stage.bites_claims();
    kill(&mut stage, &victim).await;
    stage.moment(1000, 6000).await;
    back_again(&mut stage, &victim).await;
    bar_claims(&mut stage);
    let (takeover, limit) = (stage.outcome.takeover_ms.unwrap_or(0), 13_000);
    stage.bar(takeover <= limit, format!("what was due waited for {takeover} ms, the bar is {limit}"));
    stage.close().await
}

pub(super) async fn kill_all(scale: Scale) -> Outcome {
    let mut stage = loaded(scale, Setup::default()).await;
    let victims = stage.all();
    stage.strike(&victims).await;
    stage.bites_claims();
    kill(&mut stage, &victims).await;
    stage.moment(5000, 15_000).await;
    back_again(&mut stage, &victims).await;
    bar_recovery(&mut stage, 20_000);
    stage.close().await
}

/// All of a machine: the store hangs, and a second later everything dies.
pub(super) async fn kill_with_redis(scale: Scale) -> Outcome {
    let mut stage = loaded(scale, Setup::default()).await;
    let victims = stage.all();
    stage.strike(&victims).await;
    stage.bites_claims();
    stage.redis.stop();
    stage.moment(800, 1500).await;
    kill(&mut stage, &victims).await;
    stage.redis.restart().await;
    back_again(&mut stage, &victims).await;
    bar_recovery(&mut stage, 20_000);
    stage.close().await
}

pub(super) async fn stop_one(scale: Scale) -> Outcome {
    let mut stage = loaded(scale, Setup::default()).await;
    let victim = stage.rng.usize(0..3);
    let stale = stage.total("postdate_stale_claims_total", &[]).await;
    stage.strike(&[victim]).await;
    stage.bites_claims();
    stage.relays[victim].signal(Signal::STOP);
    tokio::time::sleep(Duration::from_secs(3 * stage.setup.claim_s)).await;
    let continued = now_ms();
    stage.relays[victim].signal(Signal::CONT);
    stage.healed();
    stage.moment(3000, 3000).await;
    stage.account().await;
    let stale = stage.total("postdate_stale_claims_total", &[]).await - stale;
    stage.note(format!("{stale} stale answers refused"));
    stage.bar(stale > 0.0, "no answer to a lost claim was refused");
    let (late, in_flight) = (first_tries_after(&stage, continued), stage.in_flight());
    stage.note(format!("{late} publishes of its own that came after another's"));
    stage.bar(late <= in_flight / 4, format!("{late} messages were {LOST_CLAIM}"));
    bar_claims(&mut stage);
    stage.close().await
}

/// Ways whose target takes nothing for a while.
const HELD_UP: &[&str] = &["k-k", "r-k"];

/// A replica goes on when others hold what it held, and have handed it over, and know nothing of its fate yet.
pub(super) async fn stop_while_target_hangs(scale: Scale) -> Outcome {
    let setup = Setup { slow_targets: HELD_UP, ..Setup::default() };
    let mut stage = loaded(scale, setup).await;
    let victim = stage.rng.usize(0..3);
    let proxy = stage.kafka.get().proxy.clone();
    // Claimed when the replica is stopped, and due soon after it.
    for way in stage.ways.clone().into_iter().filter(|way| HELD_UP.contains(&way.name)) {
        let key = if way.from_kafka { "key" } else { &way.source };
        let message = |n: u64| stage.run.message(&way.label(), When::At(1700 + n % 500)).key(key);
        send(&stage, &way, (0..300).map(message).collect()).await;
    }
    stage.strike(&[victim]).await;
    stage.bites_claims();
    stage.relays[victim].signal(Signal::STOP);
    let stopped = now_ms();
    proxy.set(Mode::Hole);
    // Its claims expire and are swept a second later at most; then the others hold them.
    tokio::time::sleep(Duration::from_secs(stage.setup.claim_s) + Duration::from_millis(1500)).await;
    stage.relays[victim].signal(Signal::CONT);
    stage.moment(1500, 2000).await;
    proxy.set(Mode::Pass);
    stage.healed();
    stage.moment(3000, 3000).await;
    stage.account().await;
    let (taken, twice) = taken_over(&stage, stopped);
    stage.note(format!("{taken} messages of its were handed over by others, {twice} of them came twice"));
    stage.bites(taken >= 10, format!("only {taken} messages were held by others when it went on"));
    // What it had handed to its client library before it was stopped is in a socket, as it were.
    stage.bar(twice <= taken / 20, format!("{twice} messages were {LOST_CLAIM}, or given to a third"));
    stage.close().await
}

/// Messages to the targets that hung which say that they may be repeats, and nobody had received when the first
/// holder was stopped; and how many of them came more than once.
fn taken_over(stage: &Stage, stopped_ms: i64) -> (usize, usize) {
    let ways = stage.ways.iter().filter(|way| HELD_UP.contains(&way.name));
    let targets: Vec<_> = ways.map(Way::label).collect();
    let mut arrived: BTreeMap<Id, (usize, bool, bool)> = BTreeMap::new();
    for delivery in stage.run.ledger().deliveries_from(0) {
        let Some(stamp) = Stamp::read(&delivery.body).filter(|s| targets.contains(&s.target)) else {
            continue;
        };
        let (times, again, before) = arrived.entry(stamp.id).or_default();
        *times += 1;
        *again |= says_again(&delivery);
        *before |= delivery.received_ms <= stopped_ms + 100;
    }
    let taken = arrived.values().filter(|(_, again, before)| *again && !before);
    let twice = taken.clone().filter(|(times, ..)| *times > 1);
    (taken.count(), twice.count())
}

/// Messages of which a first publish (it says nothing of an attempt) arrived after this moment, when a later one
/// had arrived before: somebody published what was not his any more, or had it in a socket all the while.
fn first_tries_after(stage: &Stage, moment_ms: i64) -> usize {
    let (mut later, mut count) = (BTreeSet::new(), 0);
    for delivery in stage.run.ledger().deliveries_from(0) {
        let Some(stamp) = Stamp::read(&delivery.body) else { continue };
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
    let setup = Setup { redis_lines: "partitions = 2".into(), ..Setup::default() };
    let mut stage = Stage::start(scale, setup).await;
    // Close together and of few partitions: many share a bundle, of which some are cancelled.
    let way = stage.ways[0].clone();
    let messages: Vec<_> = (0..400)
        .map(|n| {
            let message = stage.run.message(&way.label(), When::At(DUE + n % 100)).key("key");
            let name = message.id().to_string();
            message.contract("x-delay-id", &name)
        })
        .collect();
    let ids: Vec<Id> = messages.iter().map(|message| message.id().clone()).collect();
    let producer = kafka_producer(stage.kafka.get().server.client());
    let due = Instant::now() + Duration::from_millis(DUE);
    stage.run.send_kafka_by(&producer, &way.source, messages).await;
    eventually("all are stored", async || {
        let stored = stage.total("postdate_stored_total", &[]).await;
        if stored >= 400.0 { Ok(()) } else { Err(stored) }
    })
    .await;
    let mut cancelled = 0;
    for id in ids.iter().step_by(4) {
        let name = id.to_string().replace('/', "%2F");
        let path = format!("/api/v1/routes/{}/messages/{name}", way.name);
        let (status, answer) = stage.relays[0].request("DELETE", &path, None, "").await.expect("an answer");
        if status == 200 {
            // It must not arrive: the answer is a promise.
            stage.run.ledger().resolve(id, Sent::Fail);
            cancelled += 1;
        } else if Instant::now() < due {
            stage.note(format!("not cancelled: {status} {answer}"));
        }
    }
    stage.bites(cancelled >= 50, format!("only {cancelled} could be cancelled in time"));
    // Claimed by now, and not yet due.
    tokio::time::sleep_until(due.checked_sub(Duration::from_millis(500)).expect("later than that")).await;
    let mut in_flight = 0;
    for relay in &stage.relays {
        in_flight += relay.metrics().await.expect("metrics").sum("postdate_in_flight", &[]) as usize;
    }
    stage.outcome.in_flight.push(in_flight);
    stage.bites_claims();
    let victims = stage.all();
    kill(&mut stage, &victims).await;
    for relay in &mut stage.relays {
        relay.restart().await;
    }
    stage.healed();
    stage.note(format!("{cancelled} were cancelled"));
    stage.account().await;
    stage.close().await
}

pub(super) async fn rolling(scale: Scale) -> Outcome {
    let mut stage = Stage::start(scale, Setup { longest_ms: 4000, ..Setup::default() }).await;
    stage.under_load().await;
    stage.strike(&stage.all()).await;
    stage.bites_claims();
    for replica in stage.all() {
        let began = Instant::now();
        let ended = stage.relays[replica].terminate().await;
        let took = began.elapsed();
        stage.bar(ended.code() == Some(0), format!("replica {replica} ended with {ended}"));
        stage.bar(took <= Duration::from_secs(25), format!("replica {replica} took {took:?} to end"));
        stage.relays[replica].restart().await;
        stage.moment(500, 2000).await;
    }
    stage.healed();
    stage.account().await;
    bar_no_duplicate(&mut stage);
    stage.close().await
}
