//! `skip`: each answer. What it does to a topic is in `tests/it/kafka`.

use super::super::testing::{READ_TOKEN, TestServer, WRITE_TOKEN};
use super::problem;

#[tokio::test]
async fn only_a_partition_that_stands_or_waits_is_told_where_to_go_on() {
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
        (
            "orders",
            r#"{"partition":0}"#,
            400,
            "one of `offset`, `to` and `since`",
        ),
        (
            "orders",
            r#"{"partition":3,"to":7,"since":"-1h"}"#,
            400,
            "one of `offset`, `to` and `since`",
        ),
        (
            "orders",
            r#"{"partition":3,"since":"-1h"}"#,
            400,
            "`since` is no moment",
        ),
        ("orders", r#"{"partition":3,"to":-1}"#, 400, "begin at 0"),
        (
            "orders",
            r#"{"partition":3,"to":10}"#,
            409,
            "has offsets from 5 to 9; nothing was skipped",
        ),
        (
            "orders",
            r#"{"partition":1,"to":5}"#,
            409,
            "does not wait for a word: its next record is expected at offset 7",
        ),
        (
            "orders",
            r#"{"partition":3,"offset":5}"#,
            409,
            "partition 3 of topic orders.delayed: it waits; nothing was skipped",
        ),
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
    for (body, next) in [
        (r#"{"partition":3,"to":9}"#, 9),
        (r#"{"partition":3,"since":"2026-11-21T08:00:00Z"}"#, 6),
        (r#"{"partition":3,"since":"1763712000000"}"#, 6),
    ] {
        let answer = server.call("POST", path, Some(WRITE_TOKEN), body).await;
        assert_eq!(
            (answer.status, &answer.json()["next"]),
            (200, &serde_json::json!(next)),
            "{body}"
        );
    }
    server.end().await;
}
