//! `skip`: each answer. What it does to a topic is in `tests/it/kafka`.

use super::super::testing::{READ_TOKEN, TestServer, WRITE_TOKEN};
use super::problem;

#[tokio::test]
async fn only_the_offset_at_which_a_partition_stands_is_skipped() {
    let server = TestServer::start().await;
    for (route, body, status, part) in [
        (
            "order",
            r#"{"partition":0,"offset":7}"#,
            404,
            "did you mean `orders`?",
        ),
        (
            "mail",
            r#"{"partition":0,"offset":7}"#,
            404,
            "reads a queue",
        ),
        ("orders", r#"{"partition":0}"#, 400, "offset"),
        (
            "orders",
            r#"{"partition":-1,"offset":7}"#,
            400,
            "begin at 0",
        ),
        (
            "orders",
            r#"{"partition":0,"offset":-1}"#,
            400,
            "begin at 0",
        ),
        (
            "orders",
            r#"{"partition":0,"offset":9223372036854775807}"#,
            400,
            "begin at 0",
        ),
        (
            "orders",
            r#"{"partition":0,"offset":8}"#,
            409,
            "stands at offset 7, not at 8; nothing was skipped",
        ),
        (
            "orders",
            r#"{"partition":1,"offset":7}"#,
            409,
            "expected at offset 7; nothing was skipped",
        ),
        (
            "orders",
            r#"{"partition":2,"offset":7}"#,
            404,
            "replica this-one does not read partition 2",
        ),
    ] {
        let path = format!("/api/v1/routes/{route}/skip");
        let said = problem(
            &server.call("POST", &path, Some(WRITE_TOKEN), body).await,
            status,
        );
        assert!(said.contains(part), "{path} {body}: {said}");
    }
    let path = "/api/v1/routes/orders/skip";
    let body = r#"{"partition":0,"offset":7}"#;
    assert_eq!(
        server
            .call("POST", path, Some(READ_TOKEN), body)
            .await
            .status,
        403
    );
    let answer = server.call("POST", path, Some(WRITE_TOKEN), body).await;
    assert_eq!(
        (answer.status, &answer.json()["next"]),
        (200, &serde_json::json!(8))
    );
    server.end().await;
}
