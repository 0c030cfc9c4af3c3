//! `postdate purge` and its call, against a running relay.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable};
use postdate::store::{ClaimRequest, SettleAnswer};
use serde_json::{Value, json};

use crate::store::fixture::{LONG, StoreFixture, config};
use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, eventually, names, relay};

/// A relay whose route `orders` delivers, and whose `failing` never does, on a store of one partition under this prefix.
async fn start(prefix: &str) -> (Relay, String) {
    let (file, queue) = plan(prefix).await;
    (Relay::start(&file).await, queue)
}

/// The configuration of such relays, and the beginning of their queues' names.
async fn plan(prefix: &str) -> (Config, String) {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let queue = names::unique("purge");
    for end in ["orders-in", "failing-in", "out"] {
        rabbitmq
            .declare_queue(&format!("{queue}-{end}"), QueueKind::Classic)
            .await;
    }
    let from = |name: &str| format!(r#"{{ rabbitmq = "main", queue = "{queue}-{name}-in" }}"#);
    let to =
        |queue: &str| format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{queue}" }}"#);
    let retry = "retry = { attempts = 1000, initial = \"10m\", max = \"10m\" }";
    let file = Config::under(&format!("url = \"{}\"", redis.url()), prefix)
        .redis("partitions = 1")
        .rabbitmq("main", rabbitmq)
        .route(
            "orders",
            &from("orders"),
            &to(&format!("{queue}-out")),
            "max_delay = \"2d\"",
        )
        .route(
            "failing",
            &from("failing"),
            &to(&format!("{queue}-missing")),
            retry,
        );
    (file, queue)
}

async fn post(relay: &Relay, path: &str, body: &Value) -> (u16, Value) {
    let path = format!("/api/v1{path}");
    let (status, text) = relay
        .request("POST", &path, None, &body.to_string())
        .await
        .expect("an answer");
    (
        status,
        serde_json::from_str(&text).unwrap_or(Value::String(text)),
    )
}

async fn pending(relay: &Relay, route: &str) -> Vec<Value> {
    let path = format!("/api/v1/messages?route={route}&limit=1000");
    let page = relay.read(&path).await;
    page["items"].as_array().expect("items").clone()
}

/// Sends so many messages of ten bytes, and waits until all of the route's are there and `is_ready`.
async fn send(
    relay: &Relay,
    route: &str,
    count: usize,
    delay: &str,
    is_ready: impl Fn(&Value) -> bool,
) {
    let before = pending(relay, route).await.len();
    for _ in 0..count {
        let body = json!({ "delay": delay, "body": "ten  bytes" });
        let (status, answer) = post(relay, &format!("/routes/{route}/messages"), &body).await;
        assert_eq!(status, 202, "{answer}");
    }
    eventually("they wait", async || {
        let waiting = pending(relay, route).await;
        if waiting.len() == before + count && waiting.iter().all(&is_ready) {
            Ok(())
        } else {
            Err(waiting.len())
        }
    })
    .await;
}

async fn cli(relay: &Relay, line: &str) -> Output {
    let mut command = Command::new(relay::binary());
    command
        .args(line.split(' '))
        .env_clear()
        .env("POSTDATE_URL", relay.url());
    tokio::task::spawn_blocking(move || command.output().expect("the binary runs"))
        .await
        .expect("no panic")
}

async fn said(relay: &Relay, line: &str) -> String {
    let output = cli(relay, line).await;
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout)
        .expect("UTF-8")
        .trim_end()
        .to_owned()
}

#[tokio::test]
async fn a_purge_says_what_it_would_do_does_it_when_told_and_touches_nothing_else() {
    let (relay, _) = start(&names::unique("purge")).await;
    send(&relay, "orders", 250, "1h", |_| true).await;
    send(&relay, "orders", 5, "3h", |_| true).await;
    send(&relay, "failing", 2, "1ms", |message| {
        message["failures"] == 1
    })
    .await;
    send(&relay, "failing", 3, "1h", |_| true).await;

    let dry = said(&relay, "purge --route orders").await;
    assert_eq!(
        dry,
        "orders: 255 message(s) of 2550 bytes would be cancelled; add --yes to cancel them"
    );
    assert_eq!(
        pending(&relay, "orders").await.len(),
        255,
        "a dry run changes nothing"
    );
    let early: Value =
        serde_json::from_str(&said(&relay, "purge --route orders --to +2h --yes --json").await)
            .expect("JSON");
    let sums = json!({
        "route": "orders", "dry_run": false, "messages": 250, "bytes": 2500, "in_flight": 0, "changed": 0,
        "next": null
    });
    assert_eq!(early, sums, "over more than one page");
    assert_eq!(pending(&relay, "orders").await.len(), 5);
    let cancelled = [
        ("route", "orders"),
        ("op", "purge"),
        ("result", "cancelled"),
    ];
    assert_eq!(
        relay.total("postdate_commands_total", &cancelled).await as u64,
        250
    );

    let retrying = said(&relay, "purge --route failing --state retrying --yes").await;
    assert_eq!(retrying, "failing: 2 message(s) of 20 bytes cancelled");
    let left = pending(&relay, "failing").await;
    assert!(
        left.len() == 3 && left.iter().all(|message| message["failures"] == 0),
        "{left:?}"
    );
    let waiting = said(&relay, "purge --route failing --state waiting --yes").await;
    assert_eq!(waiting, "failing: 3 message(s) of 30 bytes cancelled");
    assert_eq!(
        pending(&relay, "orders").await.len(),
        5,
        "another route's stay"
    );
    assert_eq!(
        said(&relay, "purge --route failing --yes").await,
        "failing: 0 message(s) of 0 bytes cancelled"
    );

    let audit = relay.read("/api/v1/audit?limit=100").await;
    let noted = |subject: &str, result: &str| {
        audit["items"]
            .as_array()
            .expect("items")
            .iter()
            .any(|entry| {
                let is = |name: &str, part: &str| {
                    entry[name].as_str().is_some_and(|text| text.contains(part))
                };
                is("call", "/purge") && is("subject", subject) && is("result", result)
            })
    };
    assert!(
        noted("state=retrying", "2 cancelled, 0 in flight, 0 changed"),
        "{audit}"
    );
    assert!(noted("dry_run", "would be cancelled"), "{audit}");
}

#[tokio::test]
async fn what_is_in_flight_stays_and_is_counted_and_a_cursor_belongs_to_its_conditions() {
    let prefix = names::unique("purge");
    let (file, queue) = plan(&prefix).await;
    // What grows nobody claims.
    let relay = Relay::start(&file.redis("growing_bundles = false")).await;
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    send(&relay, "orders", 4, "1h", |_| true).await;
    send(&relay, "orders", 3, "3h", |_| true).await;
    // Another process has claimed what is due within two hours.
    let store = StoreFixture::of(config(&redis.url(), &prefix, 1), redis, 0).await;
    let request = ClaimRequest {
        lookahead_ms: 7_200_000,
        ..store.request(LONG).await
    };
    let claimed = store.store.claim(&request).await.expect("claimed");
    assert_eq!(
        claimed
            .iter()
            .map(|claimed| claimed.skip.len())
            .sum::<usize>(),
        4
    );
    let (status, answer) = post(
        &relay,
        "/routes/orders/purge",
        &json!({ "state": "waiting", "dry_run": true }),
    )
    .await;
    assert_eq!(
        (status, &answer["messages"], &answer["next"]),
        (200, &json!(3), &Value::Null)
    );
    assert_eq!(answer["in_flight"], 4);
    for (body, part) in [
        (json!({ "state": "dead" }), "state"),
        (json!({ "from": "soon" }), "`from` is no moment"),
        (
            json!({ "from": "100000000007", "to": "100000000005" }),
            "`from` is later than `to`",
        ),
        (json!({ "from": "1798761600" }), "are these seconds?"),
        (json!({ "cursor": "x" }), "`cursor`"),
        (json!({ "all": true }), "all"),
    ] {
        let (status, problem) = post(&relay, "/routes/orders/purge", &body).await;
        let text = problem.to_string();
        assert!(
            status == 400 && text.contains(part),
            "{body}: {status} {text}"
        );
    }
    assert_eq!(pending(&relay, "orders").await.len(), 3, "nothing was done");
    let (_, answer) = post(&relay, "/routes/orders/purge", &json!({})).await;
    assert_eq!(
        (&answer["messages"], &answer["in_flight"]),
        (&json!(3), &json!(4))
    );
    assert_eq!(answer["dry_run"], false);
    for claimed in &claimed {
        assert_eq!(
            store.give_back(&claimed.claim, None).await,
            SettleAnswer::Applied(vec![]),
            "it stayed"
        );
    }
    assert_eq!(rabbitmq.queue_len(&format!("{queue}-out")).await, 0);
}

/// Replicas hear of a pause one after the other, and what they have taken in waits for company before it is stored.
#[tokio::test]
async fn a_purge_right_after_a_pause_leaves_nothing_behind() {
    let (file, queue) = plan(&names::unique("purge")).await;
    let relays = [Relay::start(&file).await, Relay::start(&file).await];
    let connection = Rabbitmq::shared().await.connect().await.expect("connected");
    let channel = connection.create_channel().await.expect("a channel");
    let is_done = AtomicBool::new(false);
    let producer = async {
        let mut headers = FieldTable::default();
        headers.insert("x-delay".into(), AMQPValue::LongInt(3_600_000));
        let properties = BasicProperties::default().with_headers(headers);
        let ingress = format!("{queue}-orders-in");
        while !is_done.load(Ordering::Acquire) {
            let sent = channel.basic_publish(
                "".into(),
                ingress.as_str().into(),
                BasicPublishOptions::default(),
                b"ten  bytes",
                properties.clone(),
            );
            sent.await.expect("sent");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let operator = async {
        eventually("some wait", async || {
            match pending(&relays[0], "orders").await.len() {
                100.. => Ok(()),
                few => Err(few),
            }
        })
        .await;
        said(&relays[0], "pause orders --only ingress").await;
        said(&relays[0], "purge --route orders --yes").await;
        is_done.store(true, Ordering::Release);
    };
    tokio::join!(producer, operator);
    // What was taken in after all would be stored within a second.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(pending(&relays[0], "orders").await.len(), 0);
}
