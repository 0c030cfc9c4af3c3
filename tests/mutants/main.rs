//! Does the accounting see what it is there to see? Each planted fault of `src/mutants.rs` must be caught by
//! its kind, in a scenario in which the relay without a fault is accounted for.
#![allow(clippy::expect_used, reason = "a test that cannot go on panics")]
#![allow(clippy::print_stdout, reason = "shown when the test fails")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read clocks and the environment as their users do"
)]

#[path = "../support/mod.rs"]
mod support;

mod scenario;

use std::time::Duration;

use scenario::{Scenario, passed};
use support::process::Signal;
use support::proxy::Mode;
use support::{Kafka, Proxy, Rabbitmq, Redis};

#[tokio::test]
async fn no_fault_passes_and_dropped_early_and_misrouted_messages_are_caught() {
    let (redis, kafka, rabbitmq) =
        tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let plain = async |mutant| {
        let scenario = Scenario::start(redis, kafka, rabbitmq, mutant).await;
        scenario.send(kafka, rabbitmq, 4000).await;
        scenario.faults().await
    };
    let (none, drop, early, wrong_target) = tokio::join!(
        plain(""),
        plain("drop"),
        plain("early"),
        plain("wrong_target")
    );
    passed(&none);
    caught("drop", &drop, "lost");
    caught("early", &early, "early");
    caught("wrong_target", &wrong_target, "misrouted");
}

#[tokio::test]
async fn an_acknowledgement_before_the_store_has_answered_is_caught() {
    let (kafka, rabbitmq) = tokio::join!(Kafka::shared(), Rabbitmq::shared());
    let crash = async |mutant: &str| {
        let mut redis = Redis::start().await;
        let mut scenario = Scenario::start(&redis, kafka, rabbitmq, mutant).await;
        // Its consumer asks the store where it stands before it reads.
        scenario.send_rabbitmq(rabbitmq, 1000).await;
        scenario.arrived().await;
        // It is sent to all the while: soon after Redis hangs the relay notices, and takes nothing more.
        scenario
            .while_sending_rabbitmq(rabbitmq, 10_000, async {
                scenario
                    .counts("postdate_admitted_total", Scenario::COUNT + 1)
                    .await;
                redis.stop();
                let before = scenario.admitted().await;
                // What it takes from now on is not stored. A faithful relay may have its fill already.
                if !mutant.is_empty() {
                    scenario
                        .counts("postdate_admitted_total", before + 10)
                        .await;
                }
            })
            .await;
        // A false acknowledgement is on its way now; a faithful relay gives none that could be awaited.
        tokio::time::sleep(Duration::from_secs(1)).await;
        scenario.relay.signal(Signal::KILL);
        // A redis that only went on would still do what its sockets hold.
        redis.restart().await;
        scenario.relay.restart().await;
        scenario.faults().await
    };
    let (none, mutant) = tokio::join!(crash(""), crash("ack_before_store"));
    passed(&none);
    caught("ack_before_store", &mutant, "lost");
}

#[tokio::test]
async fn a_repeat_without_a_cause_is_caught() {
    let (kafka, rabbitmq) = tokio::join!(Kafka::shared(), Rabbitmq::shared());
    let crash = async |mutant| {
        let redis = Redis::start().await;
        let proxy = Proxy::before(redis.port()).await;
        // All are claimed for some seconds before the first is due, on a slow machine too.
        let timer = "[timer]\nlookahead = \"8s\"\nclaim = \"20s\"";
        let port = proxy.port();
        let mut scenario = Scenario::start_with(&redis, kafka, rabbitmq, mutant, timer, port).await;
        scenario.send(kafka, rabbitmq, 10_000).await;
        // Claimed, not yet due: published while the store cannot be reached, and killed before it could be told.
        scenario
            .counts("postdate_in_flight", 2 * Scenario::COUNT)
            .await;
        proxy.set(Mode::Hole);
        scenario.publishes(Scenario::COUNT).await;
        scenario.relay.signal(Signal::KILL);
        // Redis goes on, without what its clients had sent: one that was restarted would be a cause of its own.
        proxy.reset();
        proxy.set(Mode::Pass);
        scenario.relay.restart().await;
        scenario.faults().await
    };
    let (none, mutant) = tokio::join!(crash(""), crash("forget_expiry"));
    passed(&none);
    caught("forget_expiry", &mutant, "duplicates");
}

#[tokio::test]
async fn what_settles_on_less_than_a_routed_confirm_is_caught() {
    let (redis, kafka, rabbitmq) =
        tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let unroutable = async |mutant| {
        let scenario = Scenario::start(redis, kafka, rabbitmq, mutant).await;
        scenario.unbind(rabbitmq).await;
        scenario.send(kafka, rabbitmq, 1000).await;
        // All are due after a second; a faulty relay shows nothing that could be awaited.
        tokio::time::sleep(Duration::from_secs(2)).await;
        scenario.bind(rabbitmq).await;
        scenario.faults().await
    };
    let (none, settle, ignore) = tokio::join!(
        unroutable(""),
        unroutable("settle_before_confirm"),
        unroutable("ignore_returned")
    );
    passed(&none);
    caught("settle_before_confirm", &settle, "lost");
    caught("ignore_returned", &ignore, "lost");
}

#[tokio::test]
async fn an_unknown_confirm_that_counts_as_a_confirm_is_caught() {
    let (redis, kafka) = tokio::join!(Redis::shared(), Kafka::shared());
    let dies = async |mutant| {
        let mut rabbitmq = Rabbitmq::start().await;
        let scenario = Scenario::start(redis, kafka, &rabbitmq, mutant).await;
        // Its way to the exchange is opened by the first publish.
        scenario.send(kafka, &rabbitmq, 1000).await;
        scenario.arrived().await;
        scenario.send(kafka, &rabbitmq, 6000).await;
        let due = tokio::time::Instant::now() + Duration::from_secs(6);
        scenario
            .counts("postdate_admitted_total", 4 * Scenario::COUNT)
            .await;
        rabbitmq.stop();
        let delivered = scenario.run.ledger().delivered();
        assert_eq!(
            delivered,
            2 * Scenario::COUNT,
            "it must hang before anything more is due"
        );
        // Published into the sockets of a broker that hangs, and then dies with them.
        tokio::time::sleep_until(due + Duration::from_millis(500)).await;
        rabbitmq.restart().await;
        scenario.faults().await
    };
    let (none, mutant) = tokio::join!(dies(""), dies("unknown_is_confirmed"));
    passed(&none);
    caught("unknown_is_confirmed", &mutant, "lost");
}

/// The harness must name this kind of fault.
fn caught(mutant: &str, faults: &[String], kind: &str) {
    println!("{mutant}: {faults:#?}");
    assert!(
        faults.iter().any(|fault| fault.starts_with(kind)),
        "{mutant} was not caught by {kind}: {faults:?}"
    );
}
