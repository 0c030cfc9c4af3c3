//! Sources that wait, and what becomes of them meanwhile.

use std::time::Duration;

use tokio::time::sleep;

use super::common::{limit_recovery, send};
use crate::load::Way;
use crate::outcome::Outcome;
use crate::scenario::{Broker, MIN_IN_FLIGHT, Scale, Scenario, Setup};
use crate::servers;
use crate::support::process::Signal;
use crate::support::proxy::Mode;
use crate::support::{When, eventually};

/// Longer than Kafka's session (10 s) and RabbitMQ's (two heartbeats of 2 s).
const SESSION: Duration = Duration::from_secs(13);
/// Deliveries go back to their queue two seconds after a pause by hand.
const GIVEN_BACK: Duration = Duration::from_secs(3);
/// A clean stop takes half of `shutdown_timeout` at most.
const CLEAN: Duration = Duration::from_secs(15);
/// `shutdown_timeout`, and the time that a busy machine takes to notice.
const FORCED: Duration = Duration::from_secs(25);
/// Records that fill the windows of a route's partitions, so that the client library pauses them.
const FILLERS: usize = 450;
const FILLER_BYTES: usize = 200_000;

/// Tells the API to pause or resume a route, wholly or this part of it.
async fn command(scenario: &Scenario, way: &Way, command: &str, body: &str) {
    let path = format!("/api/v1/routes/{}/{command}", way.name);
    eventually(&format!("{path} is answered"), async || {
        let (status, answer) = scenario.relays[0]
            .request("POST", &path, None, body)
            .await?;
        anyhow::ensure!(status < 300, "{status} {answer}");
        Ok(())
    })
    .await;
}

/// Waits until every replica says that these routes' ingress waits.
async fn waits(scenario: &Scenario, ways: &[Way], reason: &str) {
    for (way, relay) in ways
        .iter()
        .flat_map(|way| scenario.relays.iter().map(move |relay| (way, relay)))
    {
        eventually(&format!("{} waits", way.name), async || {
            let labels = [("route", way.name), ("reason", reason)];
            let waits = relay
                .metrics()
                .await?
                .sum("postdate_ingress_paused", &labels);
            anyhow::ensure!(waits > 0.5, "it does not");
            Ok(())
        })
        .await;
    }
}

/// How a replica ends on SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// With 0, in seconds.
    Clean,
    /// By itself before it would be killed: what it published and what it read cannot be told to a store that hangs,
    /// and an exit code of 1 says so.
    Unsettled,
}

/// SIGTERM to all replicas, one after the other. They start again, ready or not.
async fn terminate_all(scenario: &mut Scenario, stop: Stop) {
    for replica in scenario.all() {
        let began = std::time::Instant::now();
        let ended = scenario.relays[replica].terminate().await;
        let took = began.elapsed();
        let is_held = match stop {
            Stop::Clean => ended.code() == Some(0) && took < CLEAN,
            Stop::Unsettled => matches!(ended.code(), Some(0 | 1)) && took < FORCED,
        };
        scenario.limit(
            is_held,
            format!("replica {replica} ended with {ended} after {took:?}"),
        );
        scenario.relays[replica].spawn_again();
    }
    listen(scenario).await;
}

async fn kill_all(scenario: &mut Scenario) {
    for replica in scenario.all() {
        scenario.relays[replica].kill9().await;
        scenario.relays[replica].spawn_again();
    }
    listen(scenario).await;
}

/// Waits until the replicas answer, and a moment more: a source that is read all the same is read by then.
async fn listen(scenario: &mut Scenario) {
    for relay in &scenario.relays {
        eventually("a replica listens", async || {
            relay.get("/livez").await.map(drop)
        })
        .await;
    }
    scenario.moment(1000, 2000).await;
}

/// Quorum queues that drop what was delivered more than four times, and five things that each cost a delivery of
/// what is delivered, while nothing can be taken in.
pub(super) async fn delivery_limits(scale: Scale) -> Outcome {
    let (kafka, rabbitmq) = tokio::join!(servers::kafka(), servers::own_rabbitmq());
    let kafka = Broker::Shared(kafka);
    let rabbitmq = Broker::Own(rabbitmq);
    let patience = Duration::from_secs(90);
    let setup = Setup {
        replicas: 2,
        claim_s: 10,
        delivery_limit: Some(3),
        patience,
        ..Setup::default()
    };
    let mut scenario = Scenario::start_on(scale, setup, kafka, rabbitmq).await;
    let sources: Vec<_> = scenario
        .ways
        .iter()
        .filter(|way| !way.from_kafka)
        .cloned()
        .collect();
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let store_is_away = scale.seed.is_multiple_of(2);
    if store_is_away {
        scenario.redis.stop();
    } else {
        for way in &sources {
            command(&scenario, way, "pause", r#"{"only":"ingress"}"#).await;
        }
        waits(&scenario, &sources, "paused").await;
    }
    sleep(GIVEN_BACK).await;
    scenario.quiet().await;
    let mut fates = ["SIGTERM", "SIGTERM", "SIGKILL", "SIGKILL", "broker"];
    scenario.rng.shuffle(&mut fates);
    let stop = if store_is_away {
        Stop::Unsettled
    } else {
        Stop::Clean
    };
    for fate in fates {
        match fate {
            "SIGTERM" => terminate_all(&mut scenario, stop).await,
            "SIGKILL" => kill_all(&mut scenario).await,
            _ => scenario.rabbitmq.own().restart().await,
        }
    }
    for way in &sources {
        let waiting = scenario.rabbitmq.own().queue_len(&way.source).await as usize;
        scenario.precondition(
            waiting >= MIN_IN_FLIGHT,
            format!("only {waiting} messages waited in {}", way.name),
        );
    }
    let cause = if store_is_away {
        "the store was away"
    } else {
        "ingress was paused"
    };
    scenario.note(format!("{cause}; meanwhile: {}", fates.join(", ")));
    if store_is_away {
        scenario.redis.cont();
    }
    for relay in &mut scenario.relays {
        relay.ready().await;
    }
    if !store_is_away {
        for way in &sources {
            command(&scenario, way, "resume", "{}").await;
        }
    }
    scenario.healed();
    scenario.moment(2000, 2000).await;
    scenario.account().await;
    limit_recovery(&mut scenario, 30_000);
    scenario.close().await
}

/// How often the channels are lost, and how long after one another: long enough to be subscribed again.
const LOSSES: usize = 100;
const BETWEEN_LOSSES: Duration = Duration::from_millis(400);

/// Quorum queues that drop what was delivered more than four times, whose channels are lost again and again while what
/// passes through waits for its target.
pub(super) async fn lost_channels(scale: Scale) -> Outcome {
    let setup = Setup {
        replicas: 2,
        delivery_limit: Some(3),
        proxied: true,
        patience: Duration::from_secs(120),
        ..Setup::default()
    };
    let mut scenario = Scenario::start(scale, setup).await;
    let ways: Vec<_> = scenario
        .ways
        .iter()
        .filter(|way| !way.from_kafka && way.to_kafka)
        .cloned()
        .collect();
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let kafka = scenario.kafka.get().proxy.clone();
    let rabbitmq = scenario.rabbitmq.get().proxy.clone();
    kafka.set(Mode::Refuse);
    kafka.reset();
    for way in &ways {
        let passing = |_| {
            scenario
                .run
                .message(&way.label(), When::Now)
                .key(&way.source)
        };
        send(&scenario, way, (0..MIN_IN_FLIGHT).map(passing).collect()).await;
    }
    for _ in 0..LOSSES {
        sleep(BETWEEN_LOSSES).await;
        rabbitmq.reset();
    }
    let stored = scenario.total("postdate_stored_total", &[]).await;
    let waiting = [("reason", "target")];
    let waits = scenario.total("postdate_ingress_paused", &waiting).await;
    scenario.precondition(
        waits > 0.5 || stored as usize >= MIN_IN_FLIGHT,
        "no source waited for its target",
    );
    kafka.set(Mode::Pass);
    scenario.healed();
    scenario.moment(2000, 2000).await;
    scenario.account().await;
    limit_recovery(&mut scenario, 60_000);
    scenario.close().await
}

/// Sources that wait, by hand or at `max_pending`, and are taken away meanwhile and come back.
pub(super) async fn gone_meanwhile(scale: Scale) -> Outcome {
    let setup = Setup {
        replicas: 2,
        claim_s: 10,
        // What passes through would wait for publishing to go on, and hold up what is to reach `max_pending`.
        least_ms: 1000,
        routes: "max_pending = 500".into(),
        rabbitmq_query: "?heartbeat=2",
        patience: Duration::from_secs(90),
        ..Setup::default()
    };
    let mut scenario = Scenario::start(scale, setup).await;
    let ways = scenario.ways.clone();
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let by_hand = (scale.seed / 3).is_multiple_of(2);
    let (part, reason) = if by_hand {
        ("ingress", "paused")
    } else {
        ("publishing", "max_pending")
    };
    for way in &ways {
        command(&scenario, way, "pause", &format!(r#"{{"only":"{part}"}}"#)).await;
    }
    waits(&scenario, &ways, reason).await;
    let filler = |n: usize| {
        let message = scenario.run.message(&ways[0].label(), When::Delay(2000));
        message.key(&format!("key-{}", n % 45)).size(FILLER_BYTES)
    };
    send(&scenario, &ways[0], (0..FILLERS).map(filler).collect()).await;
    scenario.quiet().await;
    // Time to read what can be read.
    scenario.moment(2000, 3000).await;
    let fate = ["rebalance", "session", "restart"][(scale.seed % 3) as usize];
    match fate {
        "rebalance" => rebalance(&mut scenario).await,
        "session" => {
            for relay in &mut scenario.relays {
                relay.signal(Signal::STOP);
            }
            sleep(SESSION).await;
            for relay in &mut scenario.relays {
                relay.signal(Signal::CONT);
            }
        }
        _ => {
            terminate_all(&mut scenario, Stop::Clean).await;
            kill_all(&mut scenario).await;
        }
    }
    for relay in &mut scenario.relays {
        relay.ready().await;
    }
    shared_out(&scenario, 2).await;
    let behind = scenario
        .kafka
        .get()
        .server
        .lag(&ways[0].source, &ways[0].source)
        .unwrap_or(0);
    scenario.precondition(
        behind >= FILLERS as u64 / 2,
        format!("only {behind} records of {} waited", ways[0].name),
    );
    scenario.note(format!(
        "waited: {reason}; meanwhile: {fate}; {behind} records of {} waited",
        ways[0].name
    ));
    for way in &ways {
        command(&scenario, way, "resume", "{}").await;
    }
    scenario.healed();
    scenario.moment(2000, 2000).await;
    scenario.account().await;
    limit_recovery(&mut scenario, 40_000);
    scenario.close().await
}

/// Another replica joins both groups, is given partitions, and leaves.
async fn rebalance(scenario: &mut Scenario) {
    let mut guest = scenario.spawn(2);
    guest.ready().await;
    shared_out(scenario, 3).await;
    let ended = guest.terminate().await;
    scenario.limit(
        ended.code() == Some(0),
        format!("the guest ended with {ended}"),
    );
}

/// Waits until each topic's partitions are those of so many replicas.
async fn shared_out(scenario: &Scenario, replicas: usize) {
    for way in scenario.ways.iter().filter(|way| way.from_kafka) {
        scenario
            .kafka
            .get()
            .server
            .shared_out(&way.source, &way.source, replicas)
            .await;
    }
}
