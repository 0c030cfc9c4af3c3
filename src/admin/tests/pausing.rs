//! `pause` and `resume`: refusals. What they do in a store is in `tests/it/api.rs`.

use super::super::testing::{READ_TOKEN, TestServer, WRITE_TOKEN};

#[tokio::test]
async fn what_cannot_be_paused_is_said() {
    let server = TestServer::start().await;
    for (route, body, status, part) in [
        ("order", "{}", 404, "did you mean `orders`?"),
        ("orders", r#"{"only":"half"}"#, 400, "half"),
        ("orders", r#"{"onyl":"ingress"}"#, 400, "onyl"),
        ("orders", "", 400, ""),
        ("orders", "{}", 503, "Redis cannot be reached"),
    ] {
        for verb in ["pause", "resume"] {
            let path = format!("/api/v1/routes/{route}/{verb}");
            let answer = server.call("POST", &path, Some(WRITE_TOKEN), body).await;
            let problem = answer.json();
            let detail = problem["detail"].as_str().expect("a sentence");
            assert!(
                answer.status == status && detail.contains(part),
                "{path} {body}: {problem}"
            );
        }
    }
    let read = server
        .call(
            "POST",
            "/api/v1/routes/orders/pause",
            Some(READ_TOKEN),
            "{}",
        )
        .await;
    assert_eq!(read.status, 403);
    server.end().await;
}
