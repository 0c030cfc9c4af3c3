//! The relay itself away.

use std::time::Duration;

use super::repeats;
use crate::four::four_routes;
use crate::support::process::Signal;
use crate::support::{Kafka, Rabbitmq, Redis, Relay, eventually};

#[tokio::test]
async fn what_fell_due_while_the_relay_was_down_goes_out_at_start() {
    let (redis, kafka, rabbitmq) = tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let four = four_routes(redis, kafka, rabbitmq).await;
    let mut relay = Relay::start(&four.config).await;
    four.send(kafka, rabbitmq).await;
    // Into the store first, so that the stop finds them there.
    eventually("something is stored", async || {
        let stored = relay.metrics().await?.sum("postdate_stored_total", &[]);
        if stored > 0.0 { Ok(()) } else { Err(anyhow::anyhow!("nothing")) }
    })
    .await;
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
    // The last one is due two seconds after the sending.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!four.run.ledger().missing().is_empty(), "something must be left to do");
    relay.restart().await;
    four.run.drain(&relay).await;
    four.run.report().assert_accounted(0);
}

#[tokio::test]
async fn kill_9_between_storing_and_committing() {
    let (redis, kafka, rabbitmq) = tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let mut four = four_routes(redis, kafka, rabbitmq).await;
    four.config = four.config.section("[timer]\nclaim = \"2s\"");
    let mut relay = Relay::start(&four.config).await;
    let mut explained = 0;
    for _ in 0..3 {
        let before = relay.metrics().await.expect("metrics").sum("postdate_stored_total", &[]);
        tokio::join!(four.send(kafka, rabbitmq), async {
            eventually("something more is stored", async || {
                let stored = relay.metrics().await?.sum("postdate_stored_total", &[]);
                if stored > before { Ok(()) } else { Err(anyhow::anyhow!("{stored}")) }
            })
            .await;
            // At once: positions are committed every 100 ms.
            relay.signal(Signal::KILL);
        });
        relay.restart().await;
        // A kill takes what was counted since the last look with it: so this life ends its repeats, and they
        // are counted, before it is killed in turn.
        four.run.drain(&relay).await;
        explained += repeats(&relay).await;
    }
    assert!(explained > 0, "three kills repeated nothing");
    four.run.report().assert_accounted(explained);
}
