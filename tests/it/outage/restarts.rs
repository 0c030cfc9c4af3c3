//! The relay itself away.

use std::time::{Duration, Instant};

use anyhow::ensure;
use lapin::ExchangeKind;

use super::repeats;
use crate::fixture::{FourRoutesFixture, four_routes};
use crate::support::process::Signal;
use crate::support::{
    Config, Kafka, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names,
};

#[tokio::test]
async fn what_fell_due_while_the_relay_was_down_goes_out_at_start() {
    let (redis, kafka, rabbitmq) =
        tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let fixture = four_routes(redis, kafka, rabbitmq).await;
    let mut relay = Relay::start(&fixture.config).await;
    // Ten seconds of load, so that the stop comes into the middle of it on a slow machine too.
    let sent_until = tokio::time::Instant::now() + Duration::from_secs(10);
    tokio::join!(
        fixture.send_kafka(kafka, 100),
        fixture.send_rabbitmq(rabbitmq, 100)
    );
    // Into the store first, so that the stop finds them there.
    eventually("something is stored", async || {
        let stored = relay.metrics().await?.sum("postdate_stored_total", &[]);
        if stored > 0.0 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("nothing"))
        }
    })
    .await;
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
    tokio::time::sleep_until(sent_until).await;
    assert!(
        !fixture.run.ledger().missing().is_empty(),
        "something must be left to do"
    );
    relay.restart().await;
    fixture.run.drain(&relay).await;
    fixture.run.report().assert_accounted(0);
}

/// They come fast enough to wait at ingress for company, and those that wait die with the process.
#[tokio::test]
async fn kill_9_while_far_messages_are_stored() {
    let (redis, kafka) = tokio::join!(Redis::shared(), Kafka::shared());
    let run = Run::new();
    let source = names::unique("source");
    let target = names::unique("target");
    tokio::join!(
        kafka.create_topic(&source, 2),
        kafka.create_topic(&target, 2)
    );
    run.collect_kafka(kafka, &target, 2);
    // Ten seconds and more is far.
    let label = format!("kafka:{target}");
    let messages: Vec<_> = (0..6000)
        .map(|n| run.message(&label, When::Delay(15_000 + n / 2)))
        .collect();
    run.send_kafka(kafka, &source, messages).await;
    let from = format!(r#"{{ kafka = "main", topic = "{source}", group = "{source}" }}"#);
    let to = format!(r#"{{ kafka = "main", topic = "{target}" }}"#);
    let config = Config::new(redis)
        .kafka("main", kafka)
        .route("far", &from, &to, "");
    let mut relay = Relay::start(&config.section("[timer]\nclaim = \"2s\"")).await;
    eventually("something is stored", async || {
        let stored = relay.metrics().await?.sum("postdate_stored_total", &[]);
        if stored > 0.0 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("nothing"))
        }
    })
    .await;
    relay.signal(Signal::KILL);
    relay.restart().await;
    run.drain(&relay).await;
    run.report().assert_accounted(repeats(&relay).await);
}

/// A target that takes nothing, and has not been sent anything that it could still answer.
#[derive(Clone, Copy, Debug)]
enum Target {
    KafkaIsGone,
    RabbitmqIsGone,
}

#[tokio::test]
async fn a_clean_stop_returns_what_waits_for_a_target_that_is_away_and_repeats_nothing() {
    let (redis, mut kafka, mut rabbitmq) =
        tokio::join!(Redis::start(), Kafka::start(), Rabbitmq::start());
    let fixture = four_routes(&redis, &kafka, &rabbitmq).await;
    let mut relay = Relay::start(&fixture.config).await;
    for target in [Target::KafkaIsGone, Target::RabbitmqIsGone] {
        relay.reads_all_sources().await;
        let waiting = send_ahead(&fixture, &kafka, &rabbitmq).await;
        let due = Instant::now() + AHEAD + Duration::from_secs(1);
        eventually("all are stored", async || {
            let stored = relay.metrics().await?.sum("postdate_pending", &[]);
            ensure!(stored >= waiting as f64, "{stored}");
            Ok(())
        })
        .await;
        match target {
            Target::KafkaIsGone => kafka.kill9().await,
            Target::RabbitmqIsGone => rabbitmq.kill9().await,
        }
        assert_eq!(
            fixture.run.ledger().missing().len(),
            waiting,
            "{target:?}: it is away before anything is due"
        );
        tokio::time::sleep_until(due.into()).await;
        let code = relay.terminate().await.code();
        assert_eq!(code, Some(0), "{target:?}: a clean stop");
        match target {
            Target::KafkaIsGone => kafka.restart().await,
            Target::RabbitmqIsGone => rabbitmq.restart().await,
        }
        relay.restart().await;
        fixture.run.drain(&relay).await;
        fixture.run.report().assert_accounted(0);
    }
}

/// What is sent by [`send_ahead`] is due after this.
const AHEAD: Duration = Duration::from_secs(10);

/// Sends to each route what is due later. Returns how many messages.
async fn send_ahead(fixture: &FourRoutesFixture, kafka: &Kafka, rabbitmq: &Rabbitmq) -> usize {
    const EACH: usize = 50;
    let run = &fixture.run;
    let [k_k, k_r, r_k, r_r] = &fixture.routes;
    let messages = |label: String, key: &str| {
        let due = When::Delay(AHEAD.as_millis() as u64);
        let one = || run.message(&label, due).key(key);
        (0..EACH).map(|_| one()).collect::<Vec<_>>()
    };
    tokio::join!(
        run.send_kafka(
            kafka,
            &k_k.source,
            messages(format!("kafka:{}", k_k.target), "key")
        ),
        run.send_kafka(
            kafka,
            &k_r.source,
            messages(format!("rabbitmq:{}", k_r.target), "key")
        ),
        run.send_rabbitmq(
            rabbitmq,
            "",
            None,
            messages(format!("kafka:{}", r_k.target), &r_k.source)
        ),
        run.send_rabbitmq(
            rabbitmq,
            "",
            Some(&r_r.source),
            messages(format!("rabbitmq:{}", r_r.target), &r_r.target)
        ),
    );
    fixture.routes.len() * EACH
}

/// A position says nothing of what is behind it: a topic's records that are stored behind one that waits come again, and the
/// log says so.
#[tokio::test]
async fn a_clean_stop_tells_which_records_of_a_topic_are_read_again() {
    let kafka = Kafka::shared().await;
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let source = kafka.unique_topic("source", 1).await;
    let [queue, exchange] = ["queue", "exchange"].map(names::unique);
    rabbitmq.declare_queue(&queue, QueueKind::Classic).await;
    let run = Run::new();
    run.collect_rabbitmq(rabbitmq, &queue);
    let from = format!(r#"{{ kafka = "main", topic = "{source}", group = "{source}" }}"#);
    let to =
        format!(r#"{{ rabbitmq = "main", exchange = "{exchange}", routing_key = "{queue}" }}"#);
    let config = Config::new(&redis)
        .kafka("main", kafka)
        .rabbitmq("main", rabbitmq)
        .route("one", &from, &to, "");
    let mut relay = Relay::start(&config).await;
    let label = format!("rabbitmq:{queue}");
    let messages = [When::Now, When::Delay(20_000), When::Delay(20_000)];
    let messages = messages.map(|when| run.message(&label, when));
    run.send_kafka(kafka, &source, messages.into()).await;
    eventually("one waits, and two are stored", async || {
        let metrics = relay.metrics().await?;
        let stored = metrics.sum("postdate_stored_total", &[]);
        let waits = metrics.sum("postdate_ingress_paused", &[("reason", "target")]);
        ensure!(
            stored > 1.5 && waits > 0.5,
            "{stored} stored, {waits} waits"
        );
        Ok(())
    })
    .await;
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
    let log = relay.log();
    let told = log.lines().find(|line| line.contains("will be read again"));
    let told = told.expect("the log says so");
    assert!(told.contains(r#""records":2"#), "{told}");
    rabbitmq
        .declare_exchange(&exchange, ExchangeKind::Direct)
        .await;
    rabbitmq.bind(&queue, &exchange, &queue).await;
    relay.restart().await;
    run.drain(&relay).await;
    run.report().assert_accounted(2);
}
