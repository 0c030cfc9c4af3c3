//! Many messages at once: found by what they are, and cancelled by their ids.

use serde_json::{Value, json};

use super::{READ, call, cli, get, keep, start, text, write};
use crate::support::{Kafka, Relay, eventually};

/// Sends messages with their content, and returns when all of them wait.
async fn keep_all(relay: &Relay, messages: &[Value]) {
    for message in messages {
        let mut message = message.clone();
        message["delay"] = "1h".into();
        let sent = write(relay, "POST", "/routes/orders/messages", Some(message));
        assert_eq!(sent.await.0, 202);
    }
    eventually("they are stored", async || {
        let (_, route) = get(relay, "/routes/orders").await;
        if route["pending"] == json!(messages.len()) {
            Ok(())
        } else {
            Err(route)
        }
    })
    .await;
}

fn ids(page: &Value) -> Vec<&str> {
    let items = page["items"].as_array().expect("items");
    let mut ids: Vec<&str> = items
        .iter()
        .filter_map(|item| item["id"].as_str())
        .collect();
    ids.sort_unstable();
    ids
}

#[tokio::test]
async fn what_waits_is_found_by_its_headers_and_its_body() {
    let mut relay = start(Kafka::shared().await).await;
    keep_all(
        &relay,
        &[
            json!({ "id": "a", "key": "1", "headers": { "x-tenant": "acme", "kind": "Mail" }, "body": "to=alice" }),
            json!({ "id": "b", "key": "2", "headers": { "X-Tenant": "acme" }, "body": "to=bob" }),
            json!({ "id": "c", "key": "1", "headers": { "x-tenant": "acme2" }, "body": "to=bobby" }),
            json!({ "id": "d", "headers": { "x-tenant": "" }, "body_base64": "/wBib2I=" }),
            json!({ "id": "cancel", "body": "" }),
        ],
    )
    .await;
    for (query, found) in [
        ("header=x-tenant:acme", &["a", "b"][..]),
        ("header=X-TENANT:acme&header=kind:Mail", &["a"]),
        ("header=x-tenant:acme&key=2", &["b"]),
        ("header=kind:mail", &[]),
        ("header=x-tenant:", &["d"]),
        ("contains=bob", &["b", "c", "d"]),
        ("contains=bob&header=x-tenant:acme2", &["c"]),
        ("contains=to%3Dbob&id_prefix=b", &["b"]),
        ("contains=", &["a", "b", "c", "cancel", "d"]),
        ("contains=nothing", &[]),
    ] {
        let (status, page) = write(&relay, "GET", &format!("/messages?{query}"), None).await;
        assert_eq!(
            (status, ids(&page)),
            (200, found.to_vec()),
            "{query}: {page}"
        );
        assert_eq!(page["scanned"], 5, "{query}");
    }
    let (status, page) = write(&relay, "GET", "/messages?contains=bob&limit=2", None).await;
    assert_eq!(
        (status, page["items"].as_array().map(Vec::len)),
        (200, Some(2))
    );
    let next = page["next"].as_str().expect("there is more");
    let other = format!("/messages?contains=bo&limit=2&cursor={next}");
    assert_eq!(
        write(&relay, "GET", &other, None).await.0,
        400,
        "another search"
    );
    // Who may not see bodies may not search in them.
    let (status, problem) = get(&relay, "/messages?contains=bob").await;
    assert_eq!(status, 403, "{problem}");
    assert_eq!(get(&relay, "/dead?contains=bob").await.0, 403);
    for wrong in ["header=nothing", "header=:a", "contains=a&contains=b"] {
        let (status, problem) = get(&relay, &format!("/messages?{wrong}")).await;
        assert_eq!(status, 400, "{wrong}: {problem}");
    }
    let (_, audit) = get(&relay, "/audit").await;
    let entries = audit["items"].as_array().expect("a list");
    let looks = entries
        .iter()
        .filter(|entry| entry["result"] == "bodies searched");
    assert!(looks.count() >= 6, "{audit}");

    // The message whose id is the word of a call.
    let (status, shown) = get(&relay, "/routes/orders/messages/cancel").await;
    assert_eq!((status, &shown["id"]), (200, &json!("cancel")), "{shown}");
    let moved = json!({ "delay": "2h" });
    let path = "/routes/orders/messages/cancel";
    assert_eq!(write(&relay, "PATCH", path, Some(moved)).await.0, 200);
    assert_eq!(
        write(&relay, "PUT", path, Some(json!({ "body": "x" })))
            .await
            .0,
        200
    );
    assert_eq!(write(&relay, "DELETE", path, None).await.0, 200);

    // By the commands too.
    let lines = cli(
        &relay,
        &["pending", "--header", "x-tenant=acme", "--contains", "bob"],
    )
    .await;
    let lines = text(&lines.stdout);
    assert!(
        lines.lines().count() == 2 && lines.contains(" b "),
        "{lines}"
    );
    let dry = ["purge", "--route", "orders", "--contains", "bob"];
    let dry = text(&cli(&relay, &dry).await.stdout);
    assert!(dry.starts_with("orders: 3 message(s) of "), "{dry}");
    let purge = [
        "purge",
        "--route",
        "orders",
        "--header",
        "x-tenant=acme2",
        "--yes",
    ];
    let purged = text(&cli(&relay, &purge).await.stdout);
    assert!(
        purged.starts_with("orders: 1 message(s) of 8 bytes cancelled"),
        "{purged}"
    );
    let (_, page) = get(&relay, "/messages").await;
    assert_eq!(ids(&page), ["a", "b", "d"]);
    let replace = ["replace", "a", "--body", "new", "--header", "x-tenant=none"];
    let replaced = cli(&relay, &replace).await;
    assert_eq!(
        text(&replaced.stdout),
        "a: replaced\n",
        "{}",
        text(&replaced.stderr)
    );
    let (_, shown) = get(&relay, "/routes/orders/messages/a").await;
    assert_eq!(
        (&shown["size"], &shown["headers"][0]["value"]),
        (&json!(3), &json!("none"))
    );
    for (args, code) in [
        (&["replace", "a"][..], 64),
        (&["replace", "a", "--delay", "1s", "--at", "+1h"], 64),
        (&["replace", "nobody", "--body", "x"], 1),
        (&["pending", "--header", "x"], 64),
    ] {
        let output = cli(&relay, args).await;
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?}: {}",
            text(&output.stderr)
        );
    }
    assert!(relay.terminate().await.success());
}

#[tokio::test]
async fn many_are_cancelled_by_their_ids() {
    let mut relay = start(Kafka::shared().await).await;
    keep(&relay, &["a", "b", "c", "d"], "1h").await;
    let path = "/routes/orders/messages/cancel";
    let many = async |ids: &Value| write(&relay, "POST", path, Some(json!({ "ids": ids }))).await;
    let (status, answer) = many(&json!(["b", "nobody", "a", "b", "~0.0.0.0.0"])).await;
    let item = |id: &str, result: &str| json!({ "id": id, "route": "orders", "result": result });
    let expected = json!({ "items": [
        item("b", "cancelled"), item("nobody", "unknown"), item("a", "cancelled"),
        item("b", "unknown"), item("~0.0.0.0.0", "unknown"),
    ] });
    assert_eq!((status, answer), (200, expected));
    let thousand: Vec<String> = (0..1000).map(|n| format!("none-{n}")).collect();
    let (status, answer) = many(&json!(thousand)).await;
    assert_eq!(
        (status, answer["items"].as_array().map(Vec::len)),
        (200, Some(1000))
    );
    let more: Vec<String> = (0..1001).map(|n| format!("none-{n}")).collect();
    for wrong in [
        json!([]),
        json!(more),
        json!(["c", ""]),
        json!("c"),
        json!(["x".repeat(257)]),
    ] {
        let (status, problem) = many(&wrong).await;
        assert_eq!(status, 400, "{problem}");
    }
    let reader_path = format!("/api/v1{path}");
    let one = Some(json!({ "ids": ["c"] }));
    let as_reader = call(&relay, "POST", &reader_path, Some(READ), one);
    assert_eq!(as_reader.await.0, 403);
    let (_, page) = get(&relay, "/messages").await;
    assert_eq!(ids(&page), ["c", "d"], "nothing else was done");
    let (_, audit) = get(&relay, "/audit").await;
    let entries = audit["items"].as_array().expect("a list");
    assert!(
        entries
            .iter()
            .any(|entry| entry["result"] == "2 of 5 cancelled"),
        "{audit}"
    );

    let some = cli(&relay, &["cancel", "c", "nobody", "d"]).await;
    assert_eq!(some.status.code(), Some(1));
    assert_eq!(text(&some.stdout), "c: cancelled\nd: cancelled\n");
    assert!(
        text(&some.stderr).contains("no message `nobody` waits"),
        "{}",
        text(&some.stderr)
    );
    let gone = cli(&relay, &["cancel", "--route", "orders", "c", "d", "--json"]).await;
    let list: Value = serde_json::from_slice(&gone.stdout).expect("JSON");
    let results = list
        .as_array()
        .expect("a list")
        .iter()
        .map(|item| &item["result"]);
    assert_eq!(
        results.collect::<Vec<_>>(),
        ["unknown", "unknown"],
        "{list}"
    );
    assert!(relay.terminate().await.success());
}
