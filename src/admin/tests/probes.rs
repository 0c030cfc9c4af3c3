//! Probes, metrics, and routes as they are shown.

use serde_json::json;

use super::super::testing::{READ_TOKEN, TestServer};
use super::guarded;
use crate::domain::{Clock, RouteName};
use crate::health::{Overdue, OverduePlace};

#[tokio::test]
async fn readiness_names_each_part_and_says_why_not() {
    let server = TestServer::start().await;
    let ready = async || {
        let answer = server.call("GET", "/readyz", Some(READ_TOKEN), "").await;
        guarded(&answer);
        (answer.status, answer.json())
    };
    let redis = server.health.part("redis", true);
    let kafka = server.health.part("kafka:main", false);
    redis.up();
    kafka.down("connection refused");
    let part = |name: &str, state: &str| json!({ "name": name, "state": state });
    let (status, mut body) = ready().await;
    for list in ["parts", "troubles"] {
        let since = body[list][0]
            .as_object_mut()
            .and_then(|told| told.remove("since"));
        assert!(
            since.is_some_and(|since| since.as_str().is_some_and(|since| since.ends_with('Z'))),
            "since when"
        );
    }
    let waiting = json!({ "name": "kafka:main", "state": "waiting", "why": "connection refused" });
    let trouble = json!({
        "part": "kafka:main", "why": "connection refused", "follows": [], "command": "postdate check --connect", "runbook": "postdatepartdown",
    });
    let expected = json!({
        "ready": false, "draining": false, "parts": [waiting, part("redis", "up")], "troubles": [trouble],
    });
    assert_eq!((status, body), (503, expected));
    let open = server.call("GET", "/readyz", None, "").await;
    assert_eq!(open.status, 503);
    assert!(
        open.body.contains("kafka:main") && !open.body.contains("refused"),
        "{open:?}"
    );
    kafka.up();
    let body = json!({ "ready": true, "draining": false, "parts": [part("kafka:main", "up"), part("redis", "up")], "troubles": [] });
    assert_eq!(ready().await, (200, body));
    kafka.down("gone");
    let (status, body) = ready().await;
    assert_eq!(
        (status, &body["parts"][0]["state"]),
        (200, &json!("degraded"))
    );
    redis.down("gone");
    assert_eq!(ready().await.0, 503);
    redis.up();
    server.health.drain();
    let (status, body) = ready().await;
    assert_eq!(
        (status, &body["ready"], &body["draining"]),
        (503, &json!(false), &json!(true))
    );
    let live = server.call("GET", "/livez", None, "").await;
    assert_eq!((live.status, live.json()), (200, json!({ "live": true })));
    server.end().await;
}

#[tokio::test]
async fn metrics_are_open_metrics() {
    let server = TestServer::start().await;
    for (_, route) in server.metrics.routes() {
        route.stored.inc_by(3);
    }
    let answer = server.call("GET", "/metrics", None, "").await;
    assert_eq!(answer.status, 200);
    guarded(&answer);
    let kind = answer.header("content-type");
    assert_eq!(
        kind,
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    assert!(answer.body.ends_with("# EOF\n"), "{}", answer.body);
    assert!(
        answer
            .body
            .contains("postdate_stored_total{route=\"mail\"} 3\n"),
        "{}",
        answer.body
    );
    let head = server.call("HEAD", "/metrics", None, "").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    server.end().await;
}

#[tokio::test]
async fn a_route_is_shown_in_the_words_of_the_configuration() {
    let server = TestServer::start().await;
    let (_, mail) = server
        .metrics
        .routes()
        .find(|(name, _)| name.as_str() == "mail")
        .expect("configured");
    mail.pending.set(7);
    mail.in_flight.set(2);
    mail.dead.set(1);
    let health = server
        .health
        .route(&RouteName::new("mail").expect("a name"));
    health.ingress_waits("max_pending", true);
    let now = Clock::start().wall();
    let oldest = Overdue {
        asked: now.plus(-12_500),
        seen: now,
    };
    health.overdue.report(OverduePlace::Waiting, Some(oldest));
    server
        .health
        .side_part("source:mail")
        .down("topic t is missing");
    server
        .health
        .side_part("source:orders")
        .down("nothing of this route's");
    server
        .health
        .side_part("target:main:mail/")
        .down("it refuses");
    let answer = server
        .call("GET", "/api/v1/routes/mail", Some(READ_TOKEN), "")
        .await;
    guarded(&answer);
    let expected = json!({
        "name": "mail",
        "from": { "rabbitmq": "main", "queue": "mail.delayed", "prefetch": 500 },
        "to": { "rabbitmq": "main", "exchange": "mail", "routing_key": "preserve" },
        "allow_targets": [],
        "dead_letter_to": "dead/key",
        "policy": {
            "delay_from": "produced", "max_delay": "30d", "max_size": "1MiB", "max_headers": "64KiB",
            "max_pending": 10_000_000, "max_pending_bytes": "4GiB", "commands": true, "copies": false, "on_invalid": "dead_letter", "on_undecodable": "wait", "on_refused": "retry", "on_unroutable": "retry",
            "max_lateness": "0s", "on_expired": "dead_letter", "consumer_retry": null, "on_duplicate": "keep",
            "dedupe": "0s", "rate": 0, "burst": 0, "jitter": "0s", "order": "none",
            "history": "1h", "history_max": 100_000,
            "retry": { "attempts": 16, "initial": "1s", "max": "5m" },
            "dead_letters": { "max": 100_000, "max_bytes": "256MiB", "max_message": "16MiB", "keep": "30d" },
            "dialects": [],
            "headers": {
                "delay": "x-delay", "deliver_at": "x-deliver-at", "id": "x-delay-id",
                "op": "x-delay-op", "target": "x-delay-target", "expires": "x-delay-expires",
            },
        },
        "pending": 7, "in_flight": 2, "dead": 1, "paused": ["max_pending"],
        "publishing_paused": false, "pauses": [],
        "troubles": ["source:mail: topic t is missing", "target:main:mail/: it refuses"],
    });
    let late_s = |route: &mut serde_json::Value| {
        let late_s = route
            .as_object_mut()
            .and_then(|route| route.remove("oldest_overdue_s"));
        late_s.and_then(|late_s| late_s.as_f64()).unwrap_or(0.0)
    };
    let mut shown = answer.json();
    assert!((12.5..60.0).contains(&late_s(&mut shown)), "{shown}");
    assert_eq!((answer.status, shown), (200, expected.clone()));
    let mut list = server
        .call("GET", "/api/v1/routes", Some(READ_TOKEN), "")
        .await
        .json();
    assert!(late_s(&mut list["items"][0]) >= 12.5, "{list}");
    let names: Vec<_> = list["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|r| r["name"].clone())
        .collect();
    assert_eq!(names, ["mail", "orders", "renamed"]);
    assert_eq!(
        (&list["items"][0], &list["next"]),
        (&expected, &json!(null))
    );
    let orders = &list["items"][1];
    assert_eq!(
        orders["from"],
        json!({ "kafka": "main", "topic": "orders.delayed", "group": "postdate", "start": "earliest" })
    );
    assert_eq!(orders["to"], json!({ "kafka": "main", "topic": "orders" }));
    server.end().await;
}
