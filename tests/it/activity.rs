//! What all replicas did lately, as the API tells it.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, eventually, names};

/// The numbers of the last 24 hours together.
async fn totals(relay: &Relay) -> Value {
    let activity = relay.read("/api/v1/activity").await;
    let slots = activity["slots"].as_array().expect("slots");
    let counts = [
        "delivered",
        "late",
        "failed",
        "dead",
        "started",
        "paused",
        "resumed",
        "store_changed",
    ];
    let total = |name: &str| -> u64 { slots.iter().filter_map(|slot| slot[name].as_u64()).sum() };
    counts
        .into_iter()
        .map(|name| (name.to_owned(), json!(total(name))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[tokio::test]
async fn what_was_done_is_told_over_restarts() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let [good, bad, target] = ["good", "bad", "target"].map(names::unique);
    for queue in [&good, &bad, &target] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let from = |queue: &str| format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#);
    let to =
        |key: &str| format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{key}" }}"#);
    let config = Config::new(redis)
        .rabbitmq("main", rabbitmq)
        .route("good", &from(&good), &to(&target), "")
        .route(
            "bad",
            &from(&bad),
            &to(&names::unique("nowhere")),
            "retry = { attempts = 2, initial = \"10ms\", max = \"10ms\" }",
        );
    let mut relay = Relay::start(&config).await;
    eventually("it has said that it started", async || {
        let told = totals(&relay).await;
        ensure!(told["started"] == 1, "{told}");
        anyhow::Ok(())
    })
    .await;
    for (route, path, body) in [
        ("good", "pause", json!({"only": "publishing"})),
        (
            "good",
            "messages",
            json!({"id": "late", "delay": "1ms", "body": "b"}),
        ),
        (
            "good",
            "messages",
            json!({"id": "later", "delay": "5s", "body": "b"}),
        ),
        (
            "bad",
            "messages",
            json!({"id": "dead", "delay": "1ms", "body": "b"}),
        ),
    ] {
        let path = format!("/api/v1/routes/{route}/{path}");
        let (status, text) = relay
            .request("POST", &path, None, &body.to_string())
            .await
            .expect("an answer");
        assert!((200..300).contains(&status), "{path}: {text}");
    }
    eventually("the first is late", async || {
        let route = relay.read("/api/v1/overview").await["routes"][1].clone();
        ensure!(route["oldest_overdue_s"].as_f64() > Some(1.5), "{route}");
        anyhow::Ok(())
    })
    .await;
    let (status, text) = relay
        .request("POST", "/api/v1/routes/good/resume", None, "{}")
        .await
        .expect("an answer");
    assert_eq!(status, 200, "{text}");
    for id in ["late", "later"] {
        let path = format!("/api/v1/routes/good/messages/{id}");
        eventually("it is delivered", async || {
            let message = relay.read(&path).await;
            ensure!(message["state"] == "delivered", "{message}");
            anyhow::Ok(())
        })
        .await;
    }
    eventually("the other one is dead", async || {
        let dead = relay.total("postdate_dead_letters_total", &[]).await;
        ensure!(dead > 0.5, "{dead}");
        anyhow::Ok(())
    })
    .await;
    // What no minute has reported yet is reported at the end.
    assert!(relay.terminate().await.success());
    relay.restart().await;
    let expected = json!({
        "delivered": 2, "late": 1, "failed": 2, "dead": 1,
        "started": 2, "paused": 1, "resumed": 1, "store_changed": 0,
    });
    eventually("both lives are told", async || {
        let told = totals(&relay).await;
        ensure!(told == expected, "{told}");
        anyhow::Ok(())
    })
    .await;
}
