//! The observer itself: what it must find. What is silent is planted from outside: a consumer beside the relay holds
//! what it was given, and a log that says nothing.

use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;

use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names};

/// Plays one message that somebody beside the relay takes and holds; the trouble of another route is no reason for
/// it. What the observer says of it.
async fn stolen(when: When) -> String {
    let redis = Redis::shared().await;
    let rabbitmq = Rabbitmq::shared().await;
    let run = Run::new();
    let [source, target, missing] = ["source", "target", "missing"].map(names::unique);
    rabbitmq.declare_queue(&source, QueueKind::Classic).await;
    rabbitmq.declare_queue(&target, QueueKind::Classic).await;
    let to = format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#);
    let from = |queue: &str| format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#);
    let config = Config::new(redis).rabbitmq("main", rabbitmq);
    let config =
        config
            .route("one", &from(&source), &to, "")
            .route("beside", &from(&missing), &to, "");
    let connection = rabbitmq.connect().await.expect("a connection");
    let channel = connection.create_channel().await.expect("a channel");
    channel
        .basic_qos(1, BasicQosOptions::default())
        .await
        .expect("one at a time");
    // First in its queue's turn: the relay comes later.
    let options = BasicConsumeOptions::default();
    let consumer = channel.basic_consume(
        source.as_str().into(),
        "".into(),
        options,
        FieldTable::default(),
    );
    let mut consumer = consumer.await.expect("a consumer");
    let message = run.message(&format!("rabbitmq:{target}"), when);
    run.send_rabbitmq(rabbitmq, "", Some(&source), vec![message])
        .await;
    let _held = consumer
        .next()
        .await
        .expect("it comes")
        .expect("a delivery");
    let _relay = Relay::start(&config).await;
    eventually("the observer notices", async || {
        let silences = run.noticed();
        silences.first().cloned().ok_or("nothing yet")
    })
    .await;
    let said = run.silences().remove(0);
    assert!(said.contains("route one"), "{said}");
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_late_and_nothing_says_why_is_found() {
    let said = stolen(When::Delay(500)).await;
    assert!(said.contains("are late for"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_nobody_stores_is_found_before_it_is_due() {
    let said = stolen(When::Delay(600_000)).await;
    assert!(
        said.contains("are confirmed for") && said.contains("0 are in the store"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_in_trouble_without_a_line_of_the_log_is_found() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let missing = names::unique("missing");
    let from = format!(r#"{{ rabbitmq = "main", queue = "{missing}" }}"#);
    let to = r#"{ rabbitmq = "main", exchange = "", routing_key = "nowhere" }"#;
    let config = Config::new(redis)
        .rabbitmq("main", rabbitmq)
        .route("one", &from, to, "");
    let relay = Relay::start_with(&config, &[("POSTDATE_LOG", "off")]).await;
    let said = eventually("the observer notices", async || {
        relay.noticed().first().cloned().ok_or("nothing yet")
    })
    .await;
    assert!(
        said.starts_with("source:one is not up")
            && said.contains("metric true, line of the log false")
    );
    assert!(
        !relay.silences().is_empty(),
        "taken: its drop fails nothing"
    );
}
