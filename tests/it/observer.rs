//! The observer itself: what it must find. What is silent is planted from outside: a consumer beside the relay holds
//! what it was given, and a log that says nothing.

use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;

use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names};

/// A relay whose source had another consumer first, which holds what it was given first; the trouble of another route is
/// no reason for that.
struct Theft {
    run: Run,
    relay: Option<Relay>,
    target: String,
    source: String,
    /// Gives back what it holds when its connection is closed.
    thief: lapin::Connection,
    /// Consumes as long as it is there.
    held: Option<(lapin::Consumer, lapin::message::Delivery)>,
}

impl Theft {
    async fn of(when: When) -> Self {
        let redis = Redis::shared().await;
        let rabbitmq = Rabbitmq::shared().await;
        let run = Run::new();
        let [source, target, missing] = ["source", "target", "missing"].map(names::unique);
        rabbitmq.declare_queue(&source, QueueKind::Classic).await;
        rabbitmq.declare_queue(&target, QueueKind::Classic).await;
        run.collect_rabbitmq(rabbitmq, &target);
        let to = format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#);
        let from = |queue: &str| format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#);
        let config = Config::new(redis).rabbitmq("main", rabbitmq);
        let config =
            config
                .route("one", &from(&source), &to, "")
                .route("beside", &from(&missing), &to, "");
        let thief = rabbitmq.connect().await.expect("a connection");
        let channel = thief.create_channel().await.expect("a channel");
        channel
            .basic_qos(1, BasicQosOptions::default())
            .await
            .expect("one at a time");
        let options = BasicConsumeOptions::default();
        let consumer = channel.basic_consume(
            source.as_str().into(),
            "".into(),
            options,
            FieldTable::default(),
        );
        let mut consumer = consumer.await.expect("a consumer");
        let mut theft = Self {
            run,
            relay: None,
            target,
            source,
            thief,
            held: None,
        };
        theft.send(when).await;
        let held = consumer.next().await.expect("it comes");
        theft.held = Some((consumer, held.expect("a delivery")));
        theft.relay = Some(Relay::start(&config).await);
        theft
    }

    async fn send(&self, when: When) {
        let message = self.run.message(&format!("rabbitmq:{}", self.target), when);
        let rabbitmq = Rabbitmq::shared().await;
        self.run
            .send_rabbitmq(rabbitmq, "", Some(&self.source), vec![message])
            .await;
    }

    /// What the observer says of it.
    async fn noticed(self) -> String {
        eventually("the observer notices", async || {
            let silences = self.run.noticed();
            silences.first().cloned().ok_or("nothing yet")
        })
        .await;
        drop(self.relay);
        let said = self.run.silences().remove(0);
        assert!(said.contains("route one"), "{said}");
        said
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_late_and_nothing_says_why_is_found() {
    let said = Theft::of(When::Delay(500)).await.noticed().await;
    assert!(said.contains("are late for"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_nobody_stores_is_found_before_it_is_due() {
    let said = Theft::of(When::Delay(600_000)).await.noticed().await;
    assert!(
        said.contains("are confirmed for") && said.contains("0 are in the store"),
        "{said}"
    );
}

/// It comes before it counts as late.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_another_overtakes_is_found() {
    let mut theft = Theft::of(When::At(7000)).await;
    theft.send(When::At(13_000)).await;
    eventually("the later one arrives", async || {
        let delivered = theft.run.ledger().delivered();
        if delivered > 0 {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    drop(theft.held.take());
    theft
        .thief
        .close(200, "given back".into())
        .await
        .expect("closed");
    let said = theft.noticed().await;
    assert!(said.contains("was overtaken"), "{said}");
}

/// One that nobody holds any more, as often as the sweep takes it away.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_outlives_its_lease_is_found() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let [source, target, prefix] = ["source", "target", "store"].map(names::unique);
    for queue in [&source, &target] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let from = format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#);
    let to = format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#);
    let config = Config::under(&format!("url = \"{}\"", redis.url()), &prefix)
        .rabbitmq("main", rabbitmq)
        .route("one", &from, &to, "");
    let relay = Relay::start(&config).await;
    let mut raw = redis.connection().await.expect("connected");
    let said = eventually("the observer notices", async || {
        redis::cmd("ZADD")
            .arg(format!("{prefix}:{{3}}:claims"))
            .arg(1)
            .arg("one/0/lost.1.1")
            .exec_async(&mut raw)
            .await
            .expect("claimed");
        relay.noticed().first().cloned().ok_or("nothing yet")
    })
    .await;
    assert!(said.contains("has outlived its lease"), "{said}");
    assert!(
        !relay.silences().is_empty(),
        "taken: its drop fails nothing"
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
