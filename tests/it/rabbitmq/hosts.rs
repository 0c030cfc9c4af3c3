//! The way to RabbitMQ. A connection of several hosts of one cluster: one that is away costs nothing, and after a loss the
//! next one is tried. An answer that comes too late.

use std::time::Duration;

use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};

use crate::flow::fixture::await_metric;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, eventually, names, ports};

/// A message that is due after this delay.
async fn send(rabbitmq: &Rabbitmq, queue: &str, delay_ms: i64) {
    let connection = rabbitmq.connect().await.expect("a connection");
    let channel = connection.create_channel().await.expect("a channel");
    let mut headers = FieldTable::default();
    headers.insert("x-delay".into(), AMQPValue::LongLongInt(delay_ms));
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_headers(headers);
    let options = BasicPublishOptions::default();
    channel
        .basic_publish("".into(), queue.into(), options, b"body", properties)
        .await
        .expect("published");
}

/// A route between two queues of a connection with this address.
fn config(redis: &Redis, address: &str, from: &str, to: &str) -> Config {
    Config::new(redis)
        .section(&format!("[rabbitmq.main]\n{address}"))
        .route(
            "mail",
            &format!("{{ rabbitmq = \"main\", queue = \"{from}\" }}"),
            &format!("{{ rabbitmq = \"main\", exchange = \"\", routing_key = \"{to}\" }}"),
            "",
        )
}

#[tokio::test]
async fn the_next_host_is_tried_when_one_is_away_and_when_it_is_lost() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let [one, other] = [
        Proxy::before(rabbitmq.port()).await,
        Proxy::before(rabbitmq.port()).await,
    ];
    let queues = [names::unique("in"), names::unique("out")];
    for queue in &queues {
        rabbitmq.declare_queue(queue, QueueKind::Quorum).await;
    }
    let url = |port: u16| format!("\"amqp://guest:guest@127.0.0.1:{port}/%2f\"");
    let nobody = ports::free();
    let urls = [nobody, one.port(), other.port()].map(url).join(", ");
    let [from, to] = &queues;
    let config = config(redis, &format!("urls = [{urls}]"), from, to);
    let mut relay = Relay::start(&config).await;
    relay.reads_all_sources().await;
    send(rabbitmq, from, 100).await;
    await_metric(&relay, "published_total", &[("route", "mail")], 1).await;
    // All of its connections are at one of the two; that one goes away, and stays away.
    for (round, (lost, stays)) in [(&one, &other), (&other, &one)].into_iter().enumerate() {
        stays.set(Mode::Pass);
        lost.set(Mode::Refuse);
        lost.reset();
        eventually("all connections are at the other host", async || {
            match (lost.standing(), stays.standing()) {
                (0, 2..) => Ok(()),
                standing => Err(anyhow::anyhow!("{standing:?} stand")),
            }
        })
        .await;
        send(rabbitmq, from, 100).await;
        await_metric(
            &relay,
            "published_total",
            &[("route", "mail")],
            2 + round as u32,
        )
        .await;
    }
    let log = relay.log();
    assert!(
        log.contains("rabbitmq is away") && !log.contains("guest:guest"),
        "the log"
    );
    assert!(relay.terminate().await.success(), "a clean end");
}

/// The number of consumers of a queue.
async fn consumers(rabbitmq: &Rabbitmq, queue: &str) -> u32 {
    let connection = rabbitmq.connect().await.expect("a connection");
    let channel = connection.create_channel().await.expect("a channel");
    let options = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let declared = channel.queue_declare(queue.into(), options, FieldTable::default());
    declared.await.expect("it is there").consumer_count()
}

/// The broker has begun to lend messages to a consumer whose answer came too late. Nobody would read them.
#[tokio::test]
async fn a_consumer_that_is_answered_too_late_keeps_nothing_from_the_next_one() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let way = Proxy::before(rabbitmq.port()).await;
    let [from, to] = ["in", "out"].map(names::unique);
    for queue in [&from, &to] {
        rabbitmq.declare_queue(queue, QueueKind::Quorum).await;
    }
    // The connection outlives the silence.
    let url = format!(
        "amqp://guest:guest@127.0.0.1:{}/%2f?heartbeat=60",
        way.port()
    );
    let config = config(redis, &format!("url = \"{url}\""), &from, &to);
    let mut relay = Relay::start(&config).await;
    relay.reads_all_sources().await;
    let post = async |what: &str| {
        let path = format!("/api/v1/routes/mail/{what}");
        let answer = relay.request("POST", &path, None, r#"{"only":"ingress"}"#);
        let (status, text) = answer.await.expect("an answer");
        assert_eq!(status, 200, "{text}");
    };
    let has_consumers = async |wanted: u32| {
        eventually(&format!("{wanted} consumers"), async || {
            match consumers(rabbitmq, &from).await {
                found if found == wanted => Ok(()),
                found => Err(anyhow::anyhow!("{found}")),
            }
        })
        .await;
    };
    post("pause").await;
    has_consumers(0).await;
    // Each answer has its time, and so has the test to see the consumer before its answer is there.
    way.set(Mode::Delay(Duration::from_secs(3)));
    post("resume").await;
    has_consumers(1).await;
    way.set(Mode::Hole);
    eventually("the relay gives up", async || {
        let (_, told) = relay.get("/readyz").await?;
        anyhow::ensure!(told.contains("basic.consume: no answer"), "{told}");
        Ok(())
    })
    .await;
    way.set(Mode::Pass);
    for _ in 0..50 {
        send(rabbitmq, &from, 100).await;
    }
    await_metric(&relay, "published_total", &[("route", "mail")], 50).await;
    has_consumers(1).await;
    assert!(relay.terminate().await.success(), "a clean end");
}
