//! Dead letters by HTTP: refusals. What is found, redriven and dropped in a store is in `tests/it/api.rs`.

use serde_json::{Value, json};

use super::super::dead::ListedOrder;
use super::super::page::write_cursor;
use super::super::testing::{DEAD_ID, READ_TOKEN, TestServer, WRITE_TOKEN};
use crate::api::DeadLetterFilter;
use crate::store::DeadId;

async fn get(server: &TestServer, path: &str) -> (u16, Value) {
    let answer = server.call("GET", path, Some(READ_TOKEN), "").await;
    (answer.status, answer.json())
}

async fn post(server: &TestServer, action: &str, body: Value) -> (u16, Value) {
    let path = format!("/api/v1/dead/{action}");
    let answer = server
        .call("POST", &path, Some(WRITE_TOKEN), &body.to_string())
        .await;
    (answer.status, answer.json())
}

/// A cursor that the list of all dead letters could have given.
fn cursor_of_all() -> String {
    let id = DeadId::parse(DEAD_ID).expect("an id");
    let query = (DeadLetterFilter::default(), ListedOrder::Oldest);
    let written = write_cursor(query, (1000, id.as_str()));
    written.unwrap_or_else(|_| panic!("written"))
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_a_sentence() {
    let server = TestServer::start().await;
    for (query, says) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("reason=attempt", "did you mean `attempts`?"),
        ("from=yesterday", "RFC 3339"),
        ("from=100000000007&to=100000000007", "before"),
        ("from=1798761600", "are these seconds?"),
        ("cursor=AAAA", "cursor"),
        ("root=orders", "unknown field"),
    ] {
        let (status, problem) = get(&server, &format!("/api/v1/dead?{query}")).await;
        assert_eq!(status, 400, "{query}: {problem}");
        assert!(
            problem["detail"]
                .as_str()
                .expect("a sentence")
                .contains(says),
            "{query}: {problem}"
        );
    }
    let cursor = cursor_of_all();
    let (status, problem) = get(
        &server,
        &format!("/api/v1/dead?route=orders&cursor={cursor}"),
    )
    .await;
    assert_eq!(status, 400, "{problem}");
    let (status, problem) = get(&server, &format!("/api/v1/dead?cursor={cursor}")).await;
    assert_eq!(status, 503, "its own list takes it: {problem}");
    let other_order = format!("/api/v1/dead?order=newest&cursor={cursor}");
    assert_eq!(get(&server, &other_order).await.0, 400);
    assert_eq!(
        get(&server, "/api/v1/dead?route=ordes").await.1["nearest"],
        "orders"
    );
    for (path, expected) in [
        ("order-3?route=ordes".to_owned(), 404),
        ("order-3?bod=true".to_owned(), 400),
        ("x".repeat(500), 400),
    ] {
        let (status, problem) = get(&server, &format!("/api/v1/dead/{path}")).await;
        assert_eq!(status, expected, "{path}: {problem}");
    }
    server.end().await;
}

#[tokio::test]
async fn an_action_must_say_which_dead_letters() {
    let server = TestServer::start().await;
    let many: Vec<String> = (0..101).map(|n| n.to_string()).collect();
    for action in ["redrive", "drop"] {
        for body in [
            json!({}),
            json!({ "ids": [] }),
            json!({ "ids": many }),
            json!({ "ids": [DEAD_ID], "filter": {} }),
            json!({ "ids": [DEAD_ID], "cursor": "x" }),
            json!({ "ids": [""] }),
            json!({ "filter": { "reasn": "attempts" } }),
            json!({ "filter": { "reason": "because" } }),
            json!({ "filter": {}, "route": "orders" }),
            json!({ "filter": { "from": "1798761600" } }),
        ] {
            let (status, problem) = post(&server, action, body.clone()).await;
            assert_eq!(status, 400, "{body}: {problem}");
        }
        assert_eq!(
            post(&server, action, json!({ "filter": { "route": "ordes" } }))
                .await
                .0,
            404
        );
    }
    assert_eq!(
        post(&server, "drop", json!({ "ids": [DEAD_ID], "target": "x" }))
            .await
            .0,
        400
    );
    server.end().await;
}
