//! `pause` and `resume`: which part, and what is said of it.

use serde_json::{Value, json};

use super::super::testing::{READ, Server, WRITE};

async fn call(server: &Server, route: &str, verb: &str, body: &str) -> (u16, Value) {
    let answer = server.call("POST", &format!("/api/v1/routes/{route}/{verb}"), Some(WRITE), body).await;
    (answer.status, answer.json())
}

fn paused(ingress: bool, publishing: bool) -> (u16, Value) {
    let parts = [(ingress, "ingress"), (publishing, "publishing")];
    let parts: Vec<_> = parts.into_iter().filter_map(|(paused, part)| paused.then_some(part)).collect();
    (200, json!({ "route": "orders", "paused": parts }))
}

#[tokio::test]
async fn one_part_or_both_are_paused_and_resumed() {
    let server = Server::start().await;
    for (verb, body, then) in [
        ("pause", r#"{"only":"publishing"}"#, paused(false, true)),
        ("pause", r#"{"only":"publishing"}"#, paused(false, true)),
        ("pause", "{}", paused(true, true)),
        ("resume", r#"{"only":"ingress"}"#, paused(false, true)),
        ("resume", "{}", paused(false, false)),
        ("resume", "{}", paused(false, false)),
    ] {
        assert_eq!(call(&server, "orders", verb, body).await, then, "{verb} {body}");
    }
    server.end().await;
}

#[tokio::test]
async fn what_cannot_be_done_is_said_and_changes_nothing() {
    let server = Server::start().await;
    for (route, body, status, part) in [
        ("order", "{}", 404, "did you mean `orders`?"),
        ("orders", r#"{"only":"half"}"#, 400, "half"),
        ("orders", r#"{"onyl":"ingress"}"#, 400, "onyl"),
        ("orders", "", 400, ""),
        ("renamed", "{}", 503, "the store is unavailable: connection refused"),
    ] {
        let (got, problem) = call(&server, route, "pause", body).await;
        let detail = problem["detail"].as_str().expect("a sentence");
        assert!(got == status && detail.contains(part), "{route} {body}: {got} {problem}");
    }
    let read = server.call("POST", "/api/v1/routes/orders/pause", Some(READ), "{}").await;
    assert_eq!(read.status, 403);
    assert_eq!(call(&server, "orders", "resume", r#"{"only":"ingress"}"#).await, paused(false, false));
    server.end().await;
}
