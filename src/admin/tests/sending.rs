//! Send: what reaches the ingress, what is refused, and following it to its end.

use std::io;

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};

use super::super::InjectError;
use super::super::router::router;
use super::super::testing::{InjectBehaviour, TestServer, open_admin, state, text};
use super::super::troubles::obstacles;
use super::problem;
use crate::domain::{HeaderValue, Message, Origin, RouteName, UnixMs, testing};
use crate::telemetry::{MAX_FOLLOWERS, MessageEnd};

fn last(server: &TestServer) -> (RouteName, Message) {
    server
        .recorder
        .injected
        .lock()
        .pop()
        .expect("something was sent")
}

#[tokio::test]
async fn a_kafka_route_gets_a_record_with_its_delay_headers() {
    let server = TestServer::start().await;
    let body = json!({
        "delay": 2000, "id": "order-7", "key": "k", "body": "hällo", "headers": { "x-delay-target": "t", "A": "" },
    });
    let answer = server.send("orders", body).await;
    assert_eq!(
        (answer.status, answer.json()),
        (202, json!({ "id": "order-7", "route": "orders" }))
    );
    let (route, message) = last(&server);
    assert_eq!(route.as_str(), "orders");
    assert_eq!((message.origin, message.properties), (Origin::Kafka, None));
    assert_eq!(message.key.as_deref(), Some(&b"k"[..]));
    assert_eq!(message.body.as_deref(), Some("hällo".as_bytes()));
    let headers: Vec<_> = message
        .headers
        .iter()
        .map(|h| (h.name.as_str(), h.value.clone()))
        .collect();
    let bytes = |text: &'static str| HeaderValue::Bytes(Bytes::from_static(text.as_bytes()));
    let expected = [
        ("A", ""),
        ("x-delay-target", "t"),
        ("x-delay", "2000"),
        ("x-delay-id", "order-7"),
    ]
    .map(|(n, v)| (n, bytes(v)));
    assert_eq!(headers, expected);
    server.end().await;
}

#[tokio::test]
async fn a_queue_gets_a_persistent_message_with_long_strings() {
    let server = TestServer::start().await;
    let answer = server
        .send(
            "mail",
            json!({ "at": 1_800_000_000_000_i64, "body_base64": "AP8=" }),
        )
        .await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let (route, message) = last(&server);
    assert_eq!((route.as_str(), message.origin), ("mail", Origin::Rabbitmq));
    assert_eq!(message.body.as_deref(), Some(&[0, 0xff][..]));
    assert_eq!(message.key.as_deref(), Some(&b""[..]));
    assert_eq!(
        message.properties.expect("AMQP has them").delivery_mode,
        Some(2)
    );
    assert!(
        message
            .headers
            .iter()
            .all(|h| matches!(h.value, HeaderValue::LongString(_))),
        "{:?}",
        message.headers
    );
    assert_eq!(
        text(&message.headers, "x-deliver-at").as_deref(),
        Some("1800000000000")
    );
    assert_eq!(text(&message.headers, "x-delay"), None);
    server.end().await;
}

#[tokio::test]
async fn without_an_id_it_gets_a_fresh_one_and_without_a_delay_none_at_all() {
    let server = TestServer::start().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let answer = server.send("renamed", json!({})).await.json();
        let (_, message) = last(&server);
        let id = text(&message.headers, "name").expect("under the route's own name for it");
        assert_eq!(answer["id"], id.as_str());
        assert!(
            id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') && id.len() < 64,
            "{id}"
        );
        assert_eq!(text(&message.headers, "after").as_deref(), Some("0"));
        assert_eq!((message.key, message.body), (None, Some(Bytes::new())));
        ids.push(id);
    }
    ids.dedup();
    assert_eq!(ids.len(), 3, "an id came twice");
    server.end().await;
}

#[tokio::test]
async fn what_the_route_would_not_take_is_refused_and_not_sent() {
    let server = TestServer::start().await;
    let answer = server.send("orders", json!({ "delay": "abc" })).await;
    let detail = problem(&answer, 400);
    assert!(detail.contains("not a delay"), "{detail}");
    assert_eq!(answer.json()["reason"], "bad_delay");
    for (route, body, part) in [
        (
            "orders",
            json!({ "delay": 1, "at": 1 }),
            "cannot stand together",
        ),
        (
            "orders",
            json!({ "body": "", "body_base64": "" }),
            "cannot stand together",
        ),
        ("orders", json!({ "body_base64": "A" }), "not base64"),
        ("orders", json!({ "id": "~abc" }), "cannot begin"),
        ("orders", json!({ "id": "\"a\"" }), "cannot begin"),
        (
            "orders",
            json!({ "headers": { "X-Delay": "1s" } }),
            "`X-Delay`",
        ),
        (
            "orders",
            json!({ "headers": { "x-delay-op": "cancel" } }),
            "`x-delay-op`",
        ),
        (
            "orders",
            json!({ "headers": { "x-deliver-at": "1" } }),
            "`x-deliver-at`",
        ),
        (
            "orders",
            json!({ "headers": { "x-delay-id": "1" } }),
            "`x-delay-id`",
        ),
        ("renamed", json!({ "headers": { "After": "1" } }), "`After`"),
        ("mail", json!({ "key": "k" }), "routes from Kafka"),
        (
            "orders",
            json!({ "delay": 3_700_000, "wait": true }),
            "within an hour",
        ),
    ] {
        let detail = problem(&server.send(route, body).await, 400);
        assert!(detail.contains(part), "{detail}");
    }
    assert!(
        server.recorder.injected.lock().is_empty(),
        "something was sent"
    );
    server.end().await;
}

#[tokio::test]
async fn a_broker_that_fails_is_told_apart() {
    let server = TestServer::start().await;
    let failures: [(InjectError, u16); 3] = [
        (InjectError::Unreachable("refused".to_owned()), 503),
        (InjectError::Refused("no such topic".to_owned()), 502),
        (InjectError::Unconfirmed("30 s".to_owned()), 504),
    ];
    for (failure, status) in failures {
        *server.recorder.behaviour.lock() = InjectBehaviour::Fail(failure.clone());
        for wait in [false, true] {
            let answer = server
                .send("orders", json!({ "id": "a", "wait": wait }))
                .await;
            assert_eq!(problem(&answer, status), failure.to_string());
            assert_eq!(answer.json()["id"], "a");
        }
    }
    server.health.drain();
    let sent = server.recorder.injected.lock().len();
    problem(&server.send("orders", json!({})).await, 503);
    assert_eq!(
        server.recorder.injected.lock().len(),
        sent,
        "sent while draining"
    );
    server.end().await;
}

#[tokio::test]
async fn waiting_follows_it_to_its_end() {
    let server = TestServer::start().await;
    let orders = RouteName::new("orders").expect("a name");
    let published = MessageEnd::Published {
        published_at: UnixMs(1_800_000_000_002),
        due: UnixMs(1_800_000_000_000),
        lateness_ms: 1.75,
        attempt: 2,
    };
    for (id, outcome, expected) in [
        (
            "a",
            published,
            json!({
                "id": "a", "route": "orders", "result": "published",
                "published_at_ms": 1_800_000_000_002_i64, "published_at": "2027-01-15T08:00:00.002Z",
                "due_ms": 1_800_000_000_000_i64, "due": "2027-01-15T08:00:00Z",
                "lateness_ms": 1.75, "attempt": 2,
            }),
        ),
        (
            "b",
            MessageEnd::Dead {
                reason: "unroutable".to_owned(),
            },
            json!({ "id": "b", "route": "orders", "result": "dead", "reason": "unroutable" }),
        ),
    ] {
        let report = async {
            server.recorder.arrived.notified().await;
            server.watch.report(&orders, id, || outcome);
        };
        let request = json!({ "id": id, "delay": 1500, "wait": true });
        let (answer, ()) = tokio::join!(server.send("orders", request), report);
        assert_eq!((answer.status, answer.json()), (200, expected));
    }
    let all: Vec<_> = (0..MAX_FOLLOWERS)
        .map(|i| server.watch.follow(&orders, &i.to_string()))
        .collect();
    assert!(
        all.iter().all(Option::is_some),
        "an ended one is still followed"
    );
    let sent = server.recorder.injected.lock().len();
    problem(&server.send("orders", json!({ "wait": true })).await, 503);
    assert_eq!(
        server.recorder.injected.lock().len(),
        sent,
        "sent and not followed"
    );
    server.end().await;
}

/// A call without a connection, so that time can be paused.
async fn direct(behaviour: InjectBehaviour, body: Body) -> (u16, Value) {
    let (state, recorder) = state();
    *recorder.behaviour.lock() = behaviour;
    let admin = open_admin(state);
    let request = Request::post("/api/v1/routes/orders/messages")
        .header("content-type", "application/json")
        .body(body)
        .expect("a request");
    let response = TowerToHyperService::new(router(admin))
        .call(request)
        .await
        .expect("infallible");
    let status = response.status().as_u16();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX)
        .await
        .expect("a body");
    (status, serde_json::from_slice(&body).expect("JSON"))
}

#[tokio::test(start_paused = true)]
async fn every_wait_is_bounded() {
    let never = futures_util::stream::pending::<Result<Bytes, io::Error>>();
    let (status, _) = direct(InjectBehaviour::Confirm, Body::from_stream(never)).await;
    assert_eq!(status, 408);
    let (status, body) = direct(InjectBehaviour::Hold, Body::from(r#"{"id":"a"}"#)).await;
    assert_eq!((status, &body["id"]), (504, &json!("a")));
    let (status, body) = direct(
        InjectBehaviour::Confirm,
        Body::from(r#"{"id":"a","delay":60000,"wait":true}"#),
    )
    .await;
    assert_eq!((status, &body["id"]), (504, &json!("a")));
    assert!(
        body["detail"]
            .as_str()
            .is_some_and(|d| d.contains("was sent")),
        "{body}"
    );
}

#[tokio::test]
async fn what_keeps_a_message_from_arriving_is_named() {
    let (state, _) = state();
    let orders = RouteName::new("orders").expect("a name");
    let health = state.health.clone();
    let admin = open_admin(state);
    let route = admin
        .route("orders")
        .unwrap_or_else(|_| panic!("configured"))
        .clone();
    let named = || obstacles(&admin, &route).join("; ");
    let before = named();
    assert_eq!(before, "");
    let of_route = health.route(&orders);
    of_route.paused(testing::paused());
    of_route.ingress_waits("max_pending", true);
    health
        .part("target:main:orders", false)
        .down("it does not exist");
    health
        .part("target:main:of.another.route", false)
        .down("it is no concern of this one");
    let after = named();
    for expected in [
        "publishing of the route is paused by hand since 1970-01-01T00:00:01.000Z by ann: #4711",
        "(max_pending)",
        "target:main:orders: it does not exist",
    ] {
        assert!(after.contains(expected), "{after}");
    }
    assert!(!after.contains("another"), "{after}");
}
