//! Dead letters by HTTP: pages, ids and filters, and what cannot be asked.

use serde_json::{Value, json};

use super::super::testing::{DEAD, READ, Server, WRITE};

async fn get(server: &Server, path: &str) -> (u16, Value) {
    let answer = server.call("GET", path, Some(READ), "").await;
    (answer.status, answer.json())
}

async fn post(server: &Server, act: &str, body: Value) -> (u16, Value) {
    let answer = server.call("POST", &format!("/api/v1/dead/{act}"), Some(WRITE), &body.to_string()).await;
    (answer.status, answer.json())
}

#[tokio::test]
async fn pages_go_on_where_the_last_ended_and_show_bodies_on_request_only() {
    let server = Server::start().await;
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let (status, page) = get(&server, &format!("/api/v1/dead?route=orders&limit=3{cursor}")).await;
        assert_eq!(status, 200, "{page}");
        for item in page["items"].as_array().expect("items") {
            assert_eq!((&item["state"], &item["reason"]), (&json!("dead"), &json!("attempts")));
            assert!(item["body"].is_null() && item["headers"].is_null(), "{item}");
            seen.push(item["dead_at_ms"].as_i64().expect("a moment"));
        }
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, (1000..1010).collect::<Vec<_>>());
    let (_, page) = get(&server, "/api/v1/dead?body=true&to=1002").await;
    assert_eq!(page["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(page["items"][0]["body"], "body");
    assert_eq!(page["items"][0]["headers"][0], json!({ "name": "h", "value": { "base64": "/w==" } }));
    let (_, last) = get(&server, "/api/v1/dead/orders.attempts.0.n.9").await;
    assert_eq!(last["error"], "the checksum does not match");
    server.end().await;
}

#[tokio::test]
async fn one_is_found_by_its_own_id_or_its_messages() {
    let server = Server::start().await;
    for (id, status) in [
        (DEAD, 200),
        ("order-3", 200),
        ("order-3?route=orders", 200),
        ("order-3?route=mail", 404),
        ("order-3?route=ordes", 404),
        ("twice", 409),
        ("nobody", 404),
        ("orders.attempts.0.n.z", 404),
        ("order-3?bod=true", 400),
    ] {
        let (is, answer) = get(&server, &format!("/api/v1/dead/{id}")).await;
        assert_eq!(is, status, "{id}: {answer}");
    }
    let (_, shown) = get(&server, "/api/v1/dead/order-3?body=true").await;
    assert_eq!((&shown["dead_id"], &shown["body"]), (&json!("orders.attempts.0.n.2"), &json!("body")));
    let (status, _) = get(&server, &format!("/api/v1/dead/{}", "x".repeat(500))).await;
    assert_eq!(status, 400);
    server.end().await;
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_a_sentence() {
    let server = Server::start().await;
    for (query, says) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("reason=attempt", "did you mean `attempts`?"),
        ("from=yesterday", "RFC 3339"),
        ("from=7&to=7", "before"),
        ("cursor=AAAA", "cursor"),
        ("root=orders", "unknown field"),
    ] {
        let (status, problem) = get(&server, &format!("/api/v1/dead?{query}")).await;
        assert_eq!(status, 400, "{query}: {problem}");
        assert!(problem["detail"].as_str().expect("a sentence").contains(says), "{query}: {problem}");
    }
    let (_, page) = get(&server, "/api/v1/dead?limit=1").await;
    let next = page["next"].as_str().expect("more");
    let (status, problem) = get(&server, &format!("/api/v1/dead?route=orders&cursor={next}")).await;
    assert_eq!(status, 400, "{problem}");
    assert_eq!(get(&server, "/api/v1/dead?route=ordes").await.1["nearest"], "orders");
    let many: Vec<String> = (0..101).map(|n| n.to_string()).collect();
    for act in ["redrive", "drop"] {
        for body in [
            json!({}),
            json!({ "ids": [] }),
            json!({ "ids": many }),
            json!({ "ids": [DEAD], "filter": {} }),
            json!({ "ids": [DEAD], "cursor": "x" }),
            json!({ "ids": [""] }),
            json!({ "filter": { "reasn": "attempts" } }),
            json!({ "filter": { "reason": "because" } }),
            json!({ "filter": {}, "route": "orders" }),
        ] {
            let (status, problem) = post(&server, act, body.clone()).await;
            assert_eq!(status, 400, "{body}: {problem}");
        }
        assert_eq!(post(&server, act, json!({ "filter": { "route": "ordes" } })).await.0, 404);
    }
    assert_eq!(post(&server, "drop", json!({ "ids": [DEAD], "target": "x" })).await.0, 400);
    server.end().await;
}

#[tokio::test]
async fn acts_answer_one_by_one() {
    let server = Server::start().await;
    let results = |answer: &Value| -> Vec<String> {
        let items = answer["items"].as_array().expect("items");
        let mut results: Vec<_> =
            items.iter().map(|i| format!("{} {}", i["id"].as_str().expect("an id"), i["result"])).collect();
        results.sort();
        results
    };
    let ids = json!({ "ids": [DEAD, "order-3", "twice", "nobody", "orders.attempts.0.n.9"] });
    let (_, redriven) = post(&server, "redrive", ids.clone()).await;
    let expected = [
        "nobody \"unknown\"",
        "order-3 \"redriven\"",
        "orders.attempts.0.n.1 \"redriven\"",
        "orders.attempts.0.n.9 \"refused\"",
        "twice \"ambiguous\"",
    ];
    assert_eq!(results(&redriven), expected);
    let (_, dropped) = post(&server, "drop", ids).await;
    assert_eq!(results(&dropped).iter().filter(|r| r.ends_with("\"dropped\"")).count(), 3);
    let (_, refused) = post(&server, "redrive", json!({ "ids": [DEAD], "target": "elsewhere" })).await;
    assert_eq!(results(&refused), ["orders.attempts.0.n.1 \"refused\""]);
    let (_, all) = post(&server, "drop", json!({ "filter": {} })).await;
    assert_eq!((results(&all).len(), &all["next"]), (10, &Value::Null));
    server.end().await;
}
