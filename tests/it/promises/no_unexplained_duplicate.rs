//! Promise: a duplicate has a cause that the relay counts (`postdate_redelivered_total`). Other tests of it:
//! `outage/rereads.rs`, `store/dedupe.rs`, and the rule `unexplained` of `tests/model`.

use crate::fixture::four_routes;
use crate::outage::repeats;
use crate::support::process::Signal;
use crate::support::{Kafka, Rabbitmq, Redis, Relay, eventually};

#[tokio::test]
async fn sigterm_in_mid_flow_and_a_restart_repeat_nothing() {
    let (redis, kafka, rabbitmq) =
        tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let fixture = four_routes(redis, kafka, rabbitmq).await;
    let mut relay = Relay::start(&fixture.config).await;
    fixture.send(kafka, rabbitmq).await;
    let before = fixture.run.ledger().missing().len();
    assert!(before > 0, "the stop must come in mid-flow");
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
    relay.restart().await;
    fixture.run.drain(&relay).await;
    fixture.run.report().assert_accounted(0);
}

#[tokio::test]
async fn kill_9_between_storing_and_committing() {
    let (redis, kafka, rabbitmq) =
        tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let mut fixture = four_routes(redis, kafka, rabbitmq).await;
    fixture.config = fixture.config.section("[timer]\nclaim = \"2s\"");
    let mut relay = Relay::start(&fixture.config).await;
    let mut explained = 0;
    for _ in 0..3 {
        let before = relay
            .metrics()
            .await
            .expect("metrics")
            .sum("postdate_stored_total", &[]);
        tokio::join!(fixture.send(kafka, rabbitmq), async {
            eventually("something more is stored", async || {
                let stored = relay.metrics().await?.sum("postdate_stored_total", &[]);
                if stored > before {
                    Ok(())
                } else {
                    Err(anyhow::anyhow!("{stored}"))
                }
            })
            .await;
            // At once: positions are committed every 100 ms.
            relay.signal(Signal::KILL);
        });
        relay.restart().await;
        // A kill takes what was counted since the last look with it: so this life ends its repeats, and they
        // are counted, before it is killed in turn. What it reads again it may not have read yet.
        fixture.run.drain(&relay).await;
        relay.reads_all_sources().await;
        fixture.run.drain(&relay).await;
        explained += repeats(&relay).await;
    }
    assert!(explained > 0, "three kills repeated nothing");
    fixture.run.report().assert_accounted(explained);
}

#[tokio::test]
async fn two_replicas_that_share_the_work_repeat_nothing_of_each_other() {
    let (redis, kafka, rabbitmq) =
        tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let fixture = four_routes(redis, kafka, rabbitmq).await;
    let mut relays = [
        Relay::start(&fixture.config).await,
        Relay::start(&fixture.config).await,
    ];
    for relay in &relays {
        eventually("it serves half of the store", async || {
            let owned = relay.metrics().await?.sum("postdate_partitions_owned", &[]);
            if (owned - 32.0).abs() < 0.5 {
                Ok(())
            } else {
                Err(anyhow::anyhow!("it owns {owned}"))
            }
        })
        .await;
    }
    fixture.send(kafka, rabbitmq).await;
    fixture.run.drain(&relays[0]).await;
    fixture.run.report().assert_accounted(0);
    for relay in &mut relays {
        assert!(
            relay.total("postdate_published_total", &[]).await > 0.5,
            "each has a share in it"
        );
        assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
    }
}
