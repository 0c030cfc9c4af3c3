//! `postdate send` against a running relay, through both brokers.

use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{Config, Kafka, QueueKind, Rabbitmq, Redis, Relay, eventually, names, relay};

async fn send(url: &str, token: &str, args: &[&str]) -> Output {
    let mut command = Command::new(relay::binary());
    command
        .arg("send")
        .args(args)
        .env_clear()
        .env("POSTDATE_URL", url)
        .env("POSTDATE_TOKEN", token);
    tokio::task::spawn_blocking(move || command.output().expect("the binary runs"))
        .await
        .expect("no panic")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn refused(output: &Output, code: i32, part: &str) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(
        error.starts_with("error: ") && error.contains(part),
        "{error}"
    );
    assert!(!error.contains("Pa55word"), "{error}");
}

#[tokio::test]
async fn a_message_is_followed_through_both_brokers() {
    let (redis, kafka, rabbitmq) =
        tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let from = kafka.unique_topic("from", 1).await;
    let to = kafka.unique_topic("to", 1).await;
    let queue = names::unique("from");
    let target = names::unique("to");
    rabbitmq.declare_queue(&queue, QueueKind::Classic).await;
    rabbitmq.declare_queue(&target, QueueKind::Classic).await;
    let config = Config::new(redis)
        .kafka("main", kafka)
        .rabbitmq("main", rabbitmq)
        .route(
            "orders",
            &format!("{{ kafka = \"main\", topic = \"{from}\", group = \"{from}\" }}"),
            &format!("{{ kafka = \"main\", topic = \"{to}\" }}"),
            "",
        )
        .route(
            "mail",
            &format!("{{ rabbitmq = \"main\", queue = \"{queue}\" }}"),
            &format!("{{ rabbitmq = \"main\", exchange = \"\", routing_key = \"{target}\" }}"),
            "",
        );
    let mut relay = Relay::start_with(
        &config,
        &[("POSTDATE_ADMIN__WRITE_TOKENS", "[\"Pa55word\"]")],
    )
    .await;
    let url = relay.url();

    for route in ["orders", "mail"] {
        let args = [
            "--route", route, "--delay", "300ms", "--id", "a-1", "--body", "hello", "--wait",
        ];
        let output = send(&url, "Pa55word", &args).await;
        let out = text(&output.stdout);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{route}: {out}{}",
            text(&output.stderr)
        );
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[0], "a-1");
        assert!(
            lines[1].starts_with("published at 20") && lines[1].ends_with(" ms late, attempt 1"),
            "{out}"
        );
        assert_eq!(lines.len(), 2, "{out}");

        let output = send(&url, "Pa55word", &["--route", route, "--json", "--wait"]).await;
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
        assert_eq!(
            (output.status.code(), &answer["result"]),
            (Some(0), &"published".into()),
            "{answer}"
        );
        assert!(
            answer["lateness_ms"]
                .as_f64()
                .is_some_and(|late| late >= 0.0),
            "{answer}"
        );
    }
    assert_eq!(rabbitmq.queue_len(&target).await, 2);

    refused(
        &send(&url, "Pa55word", &["--route", "nobody"]).await,
        1,
        "nobody",
    );
    refused(
        &send(&url, "wrong", &["--route", "orders"]).await,
        1,
        "POSTDATE_TOKEN",
    );
    refused(
        &send("http://127.0.0.1:1", "Pa55word", &["--route", "orders"]).await,
        1,
        "cannot be reached",
    );
    refused(
        &send(&url, "Pa55word", &["--route", "orders", "--delay", "soon"]).await,
        1,
        "soon",
    );
    refused(
        &send(
            &url,
            "Pa55word",
            &["--route", "orders", "--file", "/nowhere"],
        )
        .await,
        64,
        "/nowhere",
    );
    refused(
        &send("redis://h", "Pa55word", &["--route", "orders"]).await,
        64,
        "POSTDATE_URL",
    );

    assert!(relay.terminate().await.success());
    let log = relay.log();
    let said = |message: &str| {
        log.lines()
            .filter(|l| l.contains(&format!("\"message\":\"{message}\"")))
            .count()
    };
    let expected = [
        "postdate starts",
        "admin listens",
        "ready",
        "draining",
        "drained",
    ];
    let counts = expected.map(|message| (message, said(message)));
    let once = expected.map(|message| (message, 1));
    assert_eq!(counts, once, "{log}");
    assert!(said("connected to redis") > 0, "{log}");
}

/// Whichever of several replicas publishes it, the one that was asked hears of it.
#[tokio::test]
async fn a_message_is_followed_whichever_replica_publishes_it() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let queue = names::unique("from");
    let target = names::unique("to");
    rabbitmq.declare_queue(&queue, QueueKind::Classic).await;
    rabbitmq.declare_queue(&target, QueueKind::Classic).await;
    let config = Config::new(redis).rabbitmq("main", rabbitmq).route(
        "mail",
        &format!("{{ rabbitmq = \"main\", queue = \"{queue}\" }}"),
        &format!("{{ rabbitmq = \"main\", exchange = \"\", routing_key = \"{target}\" }}"),
        "",
    );
    let mut relays = Vec::new();
    for _ in 0..3 {
        relays.push(Relay::start(&config).await);
    }
    // Who is asked knows the others: each has its share.
    eventually("the partitions are shared", async || {
        let owned = relays[0]
            .metrics()
            .await?
            .sum("postdate_partitions_owned", &[]);
        if owned < 30.0 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{owned} are its own"))
        }
    })
    .await;
    let url = relays[0].url();
    let sends = (0..12).map(|_| send(&url, "", &["--route", "mail", "--delay", "3s", "--wait"]));
    for output in futures_util::future::join_all(sends).await {
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{error}");
        assert!(
            text(&output.stdout).contains(" ms late, attempt 1"),
            "{}",
            text(&output.stdout)
        );
    }
    let mut publishers = 0;
    for relay in &relays {
        let published = relay
            .metrics()
            .await
            .expect("metrics")
            .sum("postdate_published_total", &[]);
        publishers += usize::from(published > 0.0);
    }
    assert!(
        publishers > 1,
        "one replica published all of them: nothing was tested"
    );
}
