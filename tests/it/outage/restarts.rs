//! The relay itself away.

use std::time::Duration;

use super::repeats;
use crate::four::four_routes;
use crate::support::process::Signal;
use crate::support::{Config, Kafka, Rabbitmq, Redis, Relay, Run, When, eventually, names};

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

/// They come fast enough to wait at ingress for company, and those that wait die with the process.
#[tokio::test]
async fn kill_9_while_far_messages_are_stored() {
    let (redis, kafka) = tokio::join!(Redis::shared(), Kafka::shared());
    let (run, source, target) = (Run::new(), names::unique("source"), names::unique("target"));
    tokio::join!(kafka.create_topic(&source, 2), kafka.create_topic(&target, 2));
    run.collect_kafka(kafka, &target, 2);
    // Ten seconds and more is far.
    let label = format!("kafka:{target}");
    let messages: Vec<_> = (0..6000).map(|n| run.message(&label, When::Delay(15_000 + n / 2))).collect();
    run.send_kafka(kafka, &source, messages).await;
    let from = format!(r#"{{ kafka = "main", topic = "{source}", group = "{source}" }}"#);
    let to = format!(r#"{{ kafka = "main", topic = "{target}" }}"#);
    let config = Config::new(redis).kafka("main", kafka).route("far", &from, &to, "");
    let mut relay = Relay::start(&config.section("[timer]\nclaim = \"2s\"")).await;
    eventually("something is stored", async || {
        let stored = relay.metrics().await?.sum("postdate_stored_total", &[]);
        if stored > 0.0 { Ok(()) } else { Err(anyhow::anyhow!("nothing")) }
    })
    .await;
    relay.signal(Signal::KILL);
    relay.restart().await;
    run.drain(&relay).await;
    run.report().assert_accounted(repeats(&relay).await);
}
