//! The API and the commands that speak it, against a running relay.

mod many;

use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::anyhow;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::{Value, json};

use crate::support::run::now_ms;
use crate::support::{Config, Kafka, Redis, Relay, eventually, relay};

const READ: &str = "canary-read-Pa55";
const WRITE: &str = "canary-write-Pa55";
const WRITE_OF_BOB: &str = "canary-bob-Pa55";

async fn start(kafka: &Kafka) -> Relay {
    start_on(kafka).await.0
}

/// The relay, and the topic that it reads.
async fn start_on(kafka: &Kafka) -> (Relay, String) {
    let from = kafka.unique_topic("from", 1).await;
    let to = kafka.unique_topic("to", 1).await;
    let route = |config: Config, name: &str| {
        config.route(
            name,
            &format!("{{ kafka = \"main\", topic = \"{from}\", group = \"{from}\" }}"),
            &format!("{{ kafka = \"main\", topic = \"{to}\" }}"),
            "max_delay = \"2d\"",
        )
    };
    let config = route(
        Config::new(Redis::shared().await).kafka("main", kafka),
        "orders",
    );
    let tokens = [
        (
            "POSTDATE_ADMIN__READ_TOKENS",
            "[\"old\", \"looker canary-read-Pa55\"]",
        ),
        (
            "POSTDATE_ADMIN__WRITE_TOKENS",
            "[\"ann canary-write-Pa55\", \"bob canary-bob-Pa55\"]",
        ),
    ];
    (Relay::start_with(&config, &tokens).await, from)
}

/// Makes invalid messages of these ids, and returns their dead letters' ids in that order.
async fn bury(relay: &Relay, kafka: &Kafka, topic: &str, ids: &[&str]) -> Vec<String> {
    let producer: FutureProducer = kafka.client().create().expect("a producer");
    for id in ids {
        let header = |key, value| Header {
            key,
            value: Some(value),
        };
        let headers = OwnedHeaders::new()
            .insert(header("x-delay-id", *id))
            .insert(header("x-delay", "soon"));
        let record = FutureRecord::<(), _>::to(topic)
            .payload("body")
            .headers(headers);
        producer
            .send(record, Duration::from_secs(30))
            .await
            .expect("produced");
    }
    eventually("they are dead", async || {
        let (_, list) = get(relay, "/dead").await;
        let of = |id: &&str| {
            let letter = list["items"]
                .as_array()?
                .iter()
                .find(|letter| letter["id"] == *id)?;
            letter["dead_id"].as_str().map(str::to_owned)
        };
        ids.iter()
            .map(of)
            .collect::<Option<Vec<_>>>()
            .ok_or(list.clone())
    })
    .await
}

async fn call(
    relay: &Relay,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: Option<Value>,
) -> (u16, Value) {
    let (status, _, answer) = call_with(relay, (method, path), token, body, None).await;
    (status, answer)
}

/// The same with a header; answers the `ETag` too.
async fn call_with(
    relay: &Relay,
    (method, path): (&str, &str),
    token: Option<&str>,
    body: Option<Value>,
    header: Option<(&'static str, &str)>,
) -> (u16, Option<String>, Value) {
    let url = format!("{}{path}", relay.url());
    let method = method.to_owned();
    let token = token.map(str::to_owned);
    let header = header.map(|(name, value)| (name, value.to_owned()));
    let sent = tokio::task::spawn_blocking(move || {
        let mut request = ureq::http::Request::builder().method(&*method).uri(&url);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let request = request.header("content-type", "application/json");
        let request = request
            .body(body.map(|b| b.to_string()).unwrap_or_default())
            .expect("a request");
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(60)))
            .build()
            .into();
        let mut answer = agent.run(request).expect("an answer");
        let header = |name: &str| {
            answer
                .headers()
                .get(name)
                .map(|text| text.to_str().expect("ASCII").to_owned())
        };
        let tag = header("etag");
        // A stream of events goes on for most of a minute, and for longer than this call may take on a slow machine.
        let is_stream =
            header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
        let text = if is_stream {
            String::new()
        } else {
            answer.body_mut().read_to_string().expect("text")
        };
        (answer.status().as_u16(), tag, text)
    });
    let (status, tag, text) = sent.await.expect("no panic");
    (
        status,
        tag,
        serde_json::from_str(&text).unwrap_or(Value::String(text)),
    )
}

async fn write(relay: &Relay, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    call(relay, method, &format!("/api/v1{path}"), Some(WRITE), body).await
}

async fn get(relay: &Relay, path: &str) -> (u16, Value) {
    call(relay, "GET", &format!("/api/v1{path}"), Some(READ), None).await
}

/// Sends messages of these ids, and returns when all of them wait.
async fn keep(relay: &Relay, ids: &[&str], delay: &str) {
    for id in ids {
        let sent = write(
            relay,
            "POST",
            "/routes/orders/messages",
            Some(json!({ "id": id, "delay": delay, "key": "k" })),
        );
        assert_eq!(sent.await.0, 202);
    }
    eventually("they are stored", async || {
        let (_, list) = get(relay, "/messages?limit=1000").await;
        let stored = |id: &&str| {
            list["items"]
                .as_array()
                .is_some_and(|l| l.iter().any(|m| m["id"] == *id))
        };
        if ids.iter().all(stored) {
            Ok(())
        } else {
            Err(list)
        }
    })
    .await;
}

/// The binary with its token in a file, and what a pipe does that is closed early.
async fn tokens_from_a_file(relay: &Relay) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    std::fs::write(&file, format!("{READ}\nanother\n")).expect("written");
    let mut command = Command::new(relay::binary());
    command
        .arg("status")
        .env_clear()
        .env("POSTDATE_URL", relay.url())
        .env("POSTDATE_TOKEN_FILE", &file);
    let run = tokio::task::spawn_blocking(move || command.output().expect("the binary runs"));
    let output = run.await.expect("no panic");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let unknown = cli(relay, &["cancel", "nobody"]).await;
    assert!(
        text(&unknown.stderr).contains("no message `nobody` waits on any route"),
        "{}",
        text(&unknown.stderr)
    );
}

async fn cli(relay: &Relay, args: &[&str]) -> Output {
    let mut command = Command::new(relay::binary());
    command
        .args(args)
        .env_clear()
        .env("POSTDATE_URL", relay.url())
        .env("POSTDATE_TOKEN", WRITE);
    tokio::task::spawn_blocking(move || command.output().expect("the binary runs"))
        .await
        .expect("no panic")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Two who look at one message, and both want to change it.
async fn racing_edits(relay: &Relay) {
    keep(relay, &["tagged"], "1h").await;
    let at = "/api/v1/routes/orders/messages/tagged";
    let show = async || {
        let (status, tag, shown) = call_with(relay, ("GET", at), Some(READ), None, None).await;
        assert_eq!(status, 200, "{shown}");
        (tag.expect("an ETag"), shown["due_ms"].clone())
    };
    let edit = async |method: &'static str, tag: &str| {
        let body = (method == "PATCH").then(|| json!({ "delay": "2h" }));
        let (status, _, answer) = call_with(
            relay,
            (method, at),
            Some(WRITE),
            body,
            Some(("if-match", tag)),
        )
        .await;
        (status, answer["result"].as_str().map(str::to_owned))
    };
    let is = |result: &str| Some(result.to_owned());
    let (first, _) = show().await;
    assert_eq!(show().await.0, first, "looking changes nothing");
    assert_eq!(edit("PATCH", &first).await, (200, is("rescheduled")));
    let (second, moved) = show().await;
    for method in ["PATCH", "DELETE"] {
        assert_eq!(edit(method, &first).await, (412, is("changed")), "{method}");
        for wrong in ["tagged", "\"a\", \"b\"", "W/\"a\"", "\"\""] {
            assert_eq!(edit(method, wrong).await, (400, None), "{method} {wrong}");
        }
    }
    assert_eq!(show().await, (second.clone(), moved), "nothing was changed");
    assert_eq!(
        edit("PATCH", "*").await,
        (200, is("rescheduled")),
        "whatever it is"
    );
    let (third, _) = show().await;
    assert_eq!(edit("DELETE", &second).await, (412, is("changed")));
    assert_eq!(edit("DELETE", &third).await, (200, is("cancelled")));
    for method in ["PATCH", "DELETE"] {
        assert_eq!(
            edit(method, &third).await,
            (404, is("unknown")),
            "it is not there any more"
        );
    }
    // Of one that is not there the nearest is named.
    for (method, body) in [("PATCH", Some(json!({ "delay": 1 }))), ("DELETE", None)] {
        let (status, problem) = write(relay, method, "/routes/orders/messages/a-11", body).await;
        assert_eq!(
            (status, &problem["nearest"]),
            (404, &json!("a-1")),
            "{problem}"
        );
    }
}

#[tokio::test]
async fn messages_are_shown_moved_and_cancelled() {
    let mut relay = start(Kafka::shared().await).await;
    keep(&relay, &["b/7", "a-1", "c"], "1h").await;
    let (status, first) = get(&relay, "/messages?route=orders&limit=2").await;
    assert_eq!(
        (status, first["items"].as_array().map(Vec::len)),
        (200, Some(2))
    );
    let next = first["next"].as_str().expect("there is more");
    let (_, second) = get(
        &relay,
        &format!("/messages?route=orders&limit=2&cursor={next}"),
    )
    .await;
    assert_eq!(
        (&second["items"][0]["id"], &second["next"]),
        (&json!("c"), &Value::Null)
    );
    let (status, problem) = get(&relay, &format!("/messages?cursor={next}")).await;
    assert_eq!(status, 400, "{problem}");

    let (status, one) = get(&relay, "/routes/orders/messages/b%2F7").await;
    assert_eq!(status, 200, "{one}");
    assert_eq!(
        (&one["state"], &one["attempt"], &one["key"]),
        (&json!("pending"), &json!(1), &json!("k"))
    );
    assert!(
        one["target"].as_str().is_some_and(|t| t.starts_with("to")),
        "{one}"
    );
    let (status, problem) = get(&relay, "/routes/orders/messages/a-2").await;
    assert_eq!(
        (status, &problem["nearest"]),
        (404, &json!("a-1")),
        "{problem}"
    );
    let (status, problem) = get(&relay, "/routes/order/messages/a-1").await;
    assert_eq!(
        (status, &problem["nearest"]),
        (404, &json!("orders")),
        "{problem}"
    );

    let (status, moved) = write(
        &relay,
        "PATCH",
        "/routes/orders/messages/a-1",
        Some(json!({ "delay": "2h" })),
    )
    .await;
    assert_eq!(
        (status, &moved["result"]),
        (200, &json!("rescheduled")),
        "{moved}"
    );
    let (_, list) = get(&relay, "/messages").await;
    let ids: Vec<_> = list["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|m| m["id"].clone())
        .collect();
    assert_eq!(ids, ["b/7", "c", "a-1"]);
    let (status, problem) = write(
        &relay,
        "PATCH",
        "/routes/orders/messages/c",
        Some(json!({ "delay": "3d" })),
    )
    .await;
    assert_eq!(
        (status, &problem["reason"]),
        (400, &json!("too_far")),
        "{problem}"
    );
    for body in [
        json!({}),
        json!({ "delay": "1s", "due_ms": 1 }),
        json!({ "due": 1 }),
        json!({ "due_ms": 1_798_761_600 }),
        json!({ "delay": "soon" }),
    ] {
        assert_eq!(
            write(&relay, "PATCH", "/routes/orders/messages/c", Some(body))
                .await
                .0,
            400
        );
    }
    racing_edits(&relay).await;
    tokens_from_a_file(&relay).await;
    let (status, done) = write(&relay, "DELETE", "/routes/orders/messages/b%2F7", None).await;
    assert_eq!(
        (status, done),
        (
            200,
            json!({ "id": "b/7", "route": "orders", "result": "cancelled" })
        )
    );
    let (status, again) = write(&relay, "DELETE", "/routes/orders/messages/b%2F7", None).await;
    assert_eq!(
        (status, &again["result"]),
        (404, &json!("unknown")),
        "{again}"
    );
    let (status, unknown) = write(
        &relay,
        "PATCH",
        "/routes/orders/messages/z",
        Some(json!({ "delay": 1 })),
    )
    .await;
    assert_eq!(
        (status, &unknown["result"]),
        (404, &json!("unknown")),
        "{unknown}"
    );

    let long = "x".repeat(257);
    for path in [
        "/messages?limit=0",
        "/messages?limit=1001",
        "/messages?limit=x",
        "/messages?from=yesterday",
        "/messages?form=1",
        "/messages?from=2&to=1",
        "/messages?cursor=abc",
        "/messages?to=99999999999999999999",
        "/audit?cursor=%00",
        "/audit?limit=-1",
        "/histogram?rout=orders",
        &format!("/routes/orders/messages/{long}"),
    ] {
        let (status, problem) = get(&relay, path).await;
        assert_eq!(status, 400, "{path}: {problem}");
        assert!(
            problem["detail"].as_str().is_some_and(|d| d.len() > 10),
            "{path}: {problem}"
        );
    }
    assert_eq!(get(&relay, "/messages?route=order").await.0, 404);

    let (_, due) = get(&relay, "/histogram?route=orders").await;
    // The first day of the month is the sum of its hours.
    let found = (&due["month"][0], &due["exact"], &due["month_exact"]);
    assert_eq!(found, (&json!(2), &json!(true), &json!(true)), "{due}");
    let (_, partitions) = get(&relay, "/partitions").await;
    let sum: i64 = partitions["items"]
        .as_array()
        .expect("all")
        .iter()
        .filter_map(|p| p["messages"].as_i64())
        .sum();
    assert_eq!(sum, 2);
    assert_eq!(get(&relay, "/replicas").await.1["items"][0]["ready"], true);

    let (_, audit) = get(&relay, "/audit?limit=2").await;
    assert_eq!(
        audit["items"][0]["call"], "PATCH /api/v1/routes/orders/messages/z",
        "{audit}"
    );
    assert_eq!(
        (&audit["items"][0]["who"], &audit["items"][0]["status"]),
        (&json!("ann"), &json!("404"))
    );
    assert_eq!(
        audit["items"][1]["call"],
        "DELETE /api/v1/routes/orders/messages/b%2F7"
    );
    let older = get(
        &relay,
        &format!("/audit?cursor={}", audit["next"].as_str().expect("more")),
    )
    .await
    .1;
    assert_eq!(older["items"][0]["result"], "cancelled", "{older}");
    assert!(relay.terminate().await.success());
    let log = relay.log();
    assert!(
        log.contains("a call of the admin API") && !log.contains("Pa55"),
        "the log"
    );
}

#[tokio::test]
async fn every_operation_by_every_role() {
    let kafka = Kafka::shared().await;
    let (mut relay, topic) = start_on(kafka).await;
    keep(&relay, &["get", "patch", "put", "delete"], "1h").await;
    let dead = bury(&relay, kafka, &topic, &["shown", "redriven", "dropped"]).await;
    let (_, description) = call(&relay, "GET", "/api/v1/openapi.json", None, None).await;
    let mut walked = 0;
    let mut reasons = BTreeSet::new();
    for (path, methods) in description["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let id = if path.contains("/dead/") {
                dead[0].as_str()
            } else {
                method
            };
            let concrete = path.replace("{route}", "orders").replace("{id}", id);
            let body = || match (path.rsplit('/').next(), method.as_str()) {
                (Some("redrive"), _) => Some(json!({ "ids": [dead[1]] })),
                (Some("drop"), _) => Some(json!({ "ids": [dead[2]] })),
                (Some("skip"), _) => Some(json!({ "partition": 0, "offset": 0 })),
                (Some("cancel"), _) => Some(json!({ "ids": ["nobody"] })),
                (_, "patch") => Some(json!({ "delay": "2h" })),
                (_, "put") => Some(json!({ "body": "another" })),
                (_, "post") => Some(json!({})),
                _ => None,
            };
            let mut statuses = Vec::new();
            let why = format!("{method} {path}, 100% ✓");
            for token in [None, Some("wrong"), Some("old"), Some(READ), Some(WRITE)] {
                let mut body = body();
                let mut header = None;
                match &mut body {
                    Some(body) => body["because"] = why.as_str().into(),
                    None => header = Some(("postdate-because", why.as_str())),
                }
                let method = method.to_uppercase();
                let (status, _, answer) =
                    call_with(&relay, (&method, &concrete), token, body, header).await;
                assert!(status < 500, "{method} {path}: {answer}");
                statuses.push(status);
            }
            let done = statuses[4];
            // Nothing stands that could be skipped.
            let is_done = if path.ends_with("/skip") {
                done == 409
            } else {
                (200..300).contains(&done)
            };
            assert!(is_done, "{method} {path}: {done}");
            let expected = match operation["x-role"].as_str().expect("a role") {
                "open" => [done; 5],
                "read" => [401, 401, done, done, done],
                _ => [401, 401, 403, 403, done],
            };
            assert_eq!(statuses, expected, "{method} {path}");
            walked += 1;
            if method != "get" {
                reasons.insert(why);
            }
        }
    }
    assert!(walked >= 15, "{walked}");
    // Each write of each caller is an entry that says why.
    let (_, audit) = get(&relay, "/audit?limit=1000").await;
    let entries = audit["items"].as_array().expect("a list").iter();
    let told: BTreeSet<String> = entries
        .filter(|entry| entry["who"] == "ann")
        .filter(|entry| {
            !entry["call"]
                .as_str()
                .is_some_and(|call| call.starts_with("GET "))
        })
        .map(|entry| entry["because"].as_str().unwrap_or_default().to_owned())
        // Those that were sent before.
        .filter(|because| !because.is_empty())
        .collect();
    assert_eq!(told, reasons, "{audit}");
    // What was done was done by the writers' calls: once each.
    let (_, left) = get(&relay, "/dead").await;
    let left: Vec<_> = left["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|l| l["dead_id"].clone())
        .collect();
    assert_eq!(left, [json!(dead[0])]);
    eventually("its trail has its end", async || {
        let (_, message) = get(&relay, "/routes/orders/messages/delete").await;
        let why = "delete /api/v1/routes/{route}/messages/{id}, 100% ✓";
        let end = message["trail"].as_array().and_then(|trail| trail.last());
        let is_told = end.is_some_and(|end| end["because"] == why && end["by"] == "ann");
        if message["state"] == "cancelled" && is_told {
            Ok(())
        } else {
            Err(message)
        }
    })
    .await;
    assert!(relay.terminate().await.success());
}

#[tokio::test]
async fn a_dead_message_is_found_by_its_id() {
    let kafka = Kafka::shared().await;
    let (mut relay, topic) = start_on(kafka).await;
    let dead = bury(&relay, kafka, &topic, &["late"]).await;
    let (status, message) = get(&relay, "/routes/orders/messages/late").await;
    assert_eq!(status, 200, "{message}");
    let expected = (&json!("dead"), &json!(dead[0]), &json!("late"), &json!(4));
    assert_eq!(
        (
            &message["state"],
            &message["dead_id"],
            &message["id"],
            &message["size"]
        ),
        expected
    );
    let (status, problem) = write(&relay, "DELETE", "/routes/orders/messages/late", None).await;
    assert_eq!(
        (status, &problem["result"]),
        (404, &json!("unknown")),
        "{problem}"
    );
    assert!(relay.terminate().await.success());
}

#[tokio::test]
async fn the_commands_speak_the_api() {
    let mut relay = start(Kafka::shared().await).await;
    keep(&relay, &["a", "-b", "c", "d"], "1h").await;
    let ok = |output: &Output| {
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let pending = ok(&cli(&relay, &["pending", "--limit", "3"]).await);
    let lines: Vec<_> = pending.lines().collect();
    assert!(
        lines[0].starts_with("DUE ") && lines[1].contains("(in 59 min") && lines.len() == 5,
        "{pending}"
    );
    assert!(!pending.contains('\u{1b}'), "colour without a terminal");
    let json: Value =
        serde_json::from_str(&ok(&cli(&relay, &["pending", "--json"]).await)).expect("JSON");
    assert_eq!(json["items"].as_array().map(Vec::len), Some(4));
    let status = ok(&cli(&relay, &["status"]).await);
    assert!(
        status.contains("orders") && status.contains("ready") && status.contains("OVERDUE"),
        "{status}"
    );
    let top = ok(&cli(&relay, &["top"]).await);
    assert!(
        top.contains("REPLICA") && top.contains("PENDING") && top.contains("(in 59 min"),
        "{top}"
    );
    assert_eq!(
        ok(&cli(&relay, &["reschedule", "a", "--delay", "90m"]).await),
        "a: rescheduled\n"
    );
    assert_eq!(
        ok(&cli(&relay, &["cancel", "--route", "orders", "--", "-b"]).await),
        "-b: cancelled\n"
    );
    let both = cli(&relay, &["cancel", "c", "nobody", "--json"]).await;
    assert_eq!(both.status.code(), Some(1));
    let list: Value = serde_json::from_slice(&both.stdout).expect("JSON");
    assert_eq!(
        list[0],
        json!({ "id": "c", "route": "orders", "result": "cancelled" })
    );
    assert_eq!(list[1]["result"], "unknown", "{list}");
    let unknown = cli(&relay, &["cancel", "dd"]).await;
    assert_eq!(unknown.status.code(), Some(1));
    assert!(
        text(&unknown.stderr).contains("did you mean `d`?"),
        "{}",
        text(&unknown.stderr)
    );
    for (args, code) in [
        (&["cancel"][..], 64),
        (&["reschedule", "d"], 64),
        (&["reschedule", "d", "--delay", "1s", "--at", "+1h"], 64),
        (&["reschedule", "d", "--at", "soon"], 64),
        (&["cancel", "--route", "No", "d"], 64),
        (&["pending", "--route", "nobody"], 1),
        (&["pending", "--limit", "0"], 64),
        (&["completions", "tcsh"], 64),
    ] {
        let output = cli(&relay, args).await;
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?}: {}",
            text(&output.stderr)
        );
        assert!(text(&output.stderr).starts_with("error: "), "{args:?}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            ok(&cli(&relay, &["completions", shell]).await).contains("reschedule"),
            "{shell}"
        );
    }
    let folder = tempfile::tempdir().expect("a folder");
    ok(&cli(&relay, &["man", folder.path().to_str().expect("UTF-8")]).await);
    assert!(
        folder.path().join("postdate-cancel.1").exists()
            && folder.path().join("postdate.1").exists()
    );
    assert!(relay.terminate().await.success());
}

#[tokio::test]
async fn one_part_or_both_are_paused_and_resumed() {
    let mut relay = start(Kafka::shared().await).await;
    let paused = |parts: &[&str]| (200, json!({ "route": "orders", "paused": parts }));
    // Who paused each part, and when, is looked at below.
    let without_pauses = |(status, mut answer): (u16, Value)| {
        if let Some(answer) = answer.as_object_mut() {
            answer.remove("pauses");
        }
        (status, answer)
    };
    for (verb, body, expected) in [
        (
            "pause",
            json!({ "only": "publishing" }),
            paused(&["publishing"]),
        ),
        (
            "pause",
            json!({ "only": "publishing" }),
            paused(&["publishing"]),
        ),
        ("pause", json!({}), paused(&["ingress", "publishing"])),
        (
            "resume",
            json!({ "only": "ingress" }),
            paused(&["publishing"]),
        ),
        ("resume", json!({}), paused(&[])),
        ("resume", json!({}), paused(&[])),
    ] {
        let answer = write(
            &relay,
            "POST",
            &format!("/routes/orders/{verb}"),
            Some(body.clone()),
        )
        .await;
        assert_eq!(without_pauses(answer), expected, "{verb} {body}");
    }
    for body in [json!({ "only": "half" }), json!({ "onyl": "ingress" })] {
        assert_eq!(
            write(&relay, "POST", "/routes/orders/pause", Some(body))
                .await
                .0,
            400
        );
    }
    let unchanged = write(
        &relay,
        "POST",
        "/routes/orders/resume",
        Some(json!({ "only": "ingress" })),
    )
    .await;
    assert_eq!(
        without_pauses(unchanged),
        paused(&[]),
        "a refused call changes nothing"
    );
    for (args, said) in [
        (
            &["pause", "orders", "--only", "publishing"][..],
            "orders: ingress running, publishing paused\n",
        ),
        (
            &["pause", "orders"],
            "orders: ingress paused, publishing paused\n",
        ),
        (
            &["resume", "orders", "--only", "ingress"],
            "orders: ingress running, publishing paused\n",
        ),
        (
            &["resume", "orders", "--json"],
            "{\"route\":\"orders\",\"paused\":[],\"pauses\":[]}\n",
        ),
    ] {
        let output = cli(&relay, args).await;
        assert_eq!(
            output.status.code(),
            Some(0),
            "{args:?}: {}",
            text(&output.stderr)
        );
        assert_eq!(text(&output.stdout), said, "{args:?}");
    }
    assert!(relay.terminate().await.success());
}

#[tokio::test]
async fn whoever_looks_at_a_pause_is_told_who_made_it_and_why() {
    let mut relay = start(Kafka::shared().await).await;
    let because = "the supplier is down, #4711";
    let line = ["pause", "orders", "--because", because];
    let output = cli(&relay, &line).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // Somebody else's pause of what is paused already changes nothing.
    let (status, again) = call(
        &relay,
        "POST",
        "/api/v1/routes/orders/pause",
        Some(WRITE_OF_BOB),
        Some(json!({ "because": "me too" })),
    )
    .await;
    assert_eq!(status, 200, "{again}");
    for (pause, part) in again["pauses"]
        .as_array()
        .expect("a list")
        .iter()
        .zip(["ingress", "publishing"])
    {
        assert_eq!(
            (&pause["part"], &pause["by"], &pause["because"]),
            (&json!(part), &json!("ann"), &json!(because)),
            "{again}"
        );
        assert!(
            pause["since"].is_string() && pause["since_ms"].is_i64(),
            "{pause}"
        );
    }
    eventually("the trouble says who and why", async || {
        let (_, ready) = call(&relay, "GET", "/readyz", Some(READ), None).await;
        let (_, overview) = get(&relay, "/overview").await;
        let status = text(&cli(&relay, &["status"]).await.stdout);
        let said = |text: &str| text.contains("by ann") && text.contains(because);
        if said(&ready.to_string()) && said(&overview["troubles"].to_string()) && said(&status) {
            Ok(())
        } else {
            Err(anyhow!("{ready}; {overview}; {status}"))
        }
    })
    .await;
    for wrong in ["two\nlines", "", "turned\u{202e}round", &"x".repeat(501)] {
        let body = json!({ "because": wrong });
        let (status, problem) = write(&relay, "POST", "/routes/orders/resume", Some(body)).await;
        assert_eq!(status, 400, "{wrong:?}: {problem}");
        assert!(
            problem["detail"]
                .as_str()
                .is_some_and(|d| d.contains("1 to 500 bytes")),
            "{problem}"
        );
    }
    let (status, _, problem) = call_with(
        &relay,
        ("POST", "/api/v1/routes/orders/resume"),
        Some(WRITE),
        Some(json!({ "because": "once" })),
        Some(("postdate-because", "twice")),
    )
    .await;
    assert_eq!(status, 400, "{problem}");
    let (_, paused) = get(&relay, "/routes/orders").await;
    assert_eq!(
        paused["pauses"].as_array().map(Vec::len),
        Some(2),
        "{paused}"
    );
    assert!(relay.terminate().await.success());
}

/// Makes four invalid messages, two of them with the id `twice`, and returns their dead letters, oldest first.
async fn four_dead_letters(relay: &Relay, kafka: &Kafka, topic: &str) -> Vec<Value> {
    bury(relay, kafka, topic, &["a", "b", "twice"]).await;
    bury(relay, kafka, topic, &["twice"]).await;
    eventually("four are dead", async || {
        let (_, list) = get(relay, "/dead").await;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        if items.len() == 4 {
            Ok(items)
        } else {
            Err(list)
        }
    })
    .await
}

/// The dead letter's id of the message of this id.
fn dead_id_of<'a>(letters: &'a [Value], id: &str) -> &'a str {
    let letter = letters
        .iter()
        .find(|letter| letter["id"] == id)
        .expect("it is dead");
    letter["dead_id"].as_str().expect("an id")
}

fn dead_ids(letters: &[Value]) -> Vec<&str> {
    letters
        .iter()
        .map(|letter| letter["dead_id"].as_str().expect("an id"))
        .collect()
}

#[tokio::test]
async fn dead_letters_are_listed_by_page_and_shown_by_either_id() {
    let kafka = Kafka::shared().await;
    let (mut relay, topic) = start_on(kafka).await;
    let all = four_dead_letters(&relay, kafka, &topic).await;
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let (status, page) = get(&relay, &format!("/dead?route=orders&limit=3{cursor}")).await;
        assert_eq!(status, 200, "{page}");
        for item in page["items"].as_array().expect("items") {
            assert_eq!(
                (&item["state"], &item["reason"]),
                (&json!("dead"), &json!("bad_delay"))
            );
            assert!(
                item["body"].is_null() && item["headers"].is_null(),
                "{item}"
            );
            seen.push(item.clone());
        }
        let Some(next) = page["next"].as_str() else {
            break;
        };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(
        dead_ids(&seen),
        dead_ids(&all),
        "pages go on where the last ended"
    );
    let moments: Vec<i64> = seen
        .iter()
        .map(|item| item["dead_at_ms"].as_i64().expect("a moment"))
        .collect();
    assert!(moments.is_sorted(), "{moments:?}");
    let last = moments[3];
    let (_, earlier) = write(&relay, "GET", &format!("/dead?body=true&to={last}"), None).await;
    let earlier = earlier["items"].as_array().expect("items");
    assert_eq!(
        earlier.len(),
        moments.iter().filter(|at| **at < last).count()
    );
    for item in earlier {
        assert_eq!(item["body"], "body");
        assert_eq!(
            item["headers"][1],
            json!({ "name": "x-delay", "value": "soon" }),
            "{item}"
        );
    }

    let a = dead_id_of(&all, "a");
    for (path, expected) in [
        (a, 200),
        ("a", 200),
        ("a?route=orders", 200),
        ("twice", 409),
        ("nobody", 404),
        ("orders.attempts.0.n.z", 404),
    ] {
        let (status, answer) = get(&relay, &format!("/dead/{path}")).await;
        assert_eq!(status, expected, "{path}: {answer}");
    }
    let (_, shown) = write(&relay, "GET", "/dead/a?body=true", None).await;
    assert_eq!(
        (&shown["dead_id"], &shown["body"]),
        (&json!(a), &json!("body")),
        "{shown}"
    );
    let (_, shown) = get(&relay, "/dead/a").await;
    assert!(
        shown["body"].is_null() && shown["headers"].is_array(),
        "{shown}"
    );
    assert!(relay.terminate().await.success());
}

/// Each item's id and result, in the order of ids.
fn results(answer: &Value) -> Vec<String> {
    let items = answer["items"].as_array().expect("items");
    let result =
        |item: &Value| format!("{} {}", item["id"].as_str().expect("an id"), item["result"]);
    let mut results: Vec<String> = items.iter().map(result).collect();
    results.sort();
    results
}

#[tokio::test]
async fn actions_on_dead_letters_answer_one_by_one() {
    let kafka = Kafka::shared().await;
    let (mut relay, topic) = start_on(kafka).await;
    let all = four_dead_letters(&relay, kafka, &topic).await;
    let a = dead_id_of(&all, "a");
    let act = async |action: &str, body: Value| {
        let (status, answer) = write(&relay, "POST", &format!("/dead/{action}"), Some(body)).await;
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let elsewhere = act("redrive", json!({ "ids": ["b"], "target": "elsewhere" })).await;
    assert_eq!(results(&elsewhere), ["b \"refused\""], "{elsewhere}");
    let ids = json!({ "ids": [a, "twice", "nobody"] });
    let redriven = act("redrive", ids.clone()).await;
    let mut expected = [
        "nobody \"unknown\"".to_owned(),
        format!("{a} \"redriven\""),
        "twice \"ambiguous\"".to_owned(),
    ];
    expected.sort();
    assert_eq!(results(&redriven), expected, "{redriven}");
    let again = act("redrive", ids).await;
    assert!(
        results(&again).contains(&format!("{a} \"unknown\"")),
        "{again}"
    );
    let dropped = act("drop", json!({ "ids": ["b", "nobody"] })).await;
    assert_eq!(
        results(&dropped),
        ["b \"dropped\"", "nobody \"unknown\""],
        "{dropped}"
    );
    let rest = act("drop", json!({ "filter": {} })).await;
    assert_eq!(
        (results(&rest).len(), &rest["next"]),
        (2, &Value::Null),
        "{rest}"
    );
    assert_eq!(get(&relay, "/dead").await.1["items"], json!([]));
    assert!(relay.terminate().await.success());
}

#[tokio::test]
async fn an_unreadable_dead_letter_says_why_and_cannot_be_redriven() {
    let kafka = Kafka::shared().await;
    let (mut relay, topic) = start_on(kafka).await;
    let dead = bury(&relay, kafka, &topic, &["a"]).await.remove(0);
    let mut redis = Redis::shared().await.connection().await.expect("connected");
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg(format!("*:d:{dead}"))
        .query_async(&mut redis)
        .await
        .expect("keys");
    let [key] = &keys[..] else {
        panic!("one content: {keys:?}")
    };
    redis::cmd("SET")
        .arg(key)
        .arg("damaged")
        .exec_async(&mut redis)
        .await
        .expect("set");
    let (status, shown) = get(&relay, &format!("/dead/{dead}")).await;
    assert_eq!(
        (status, &shown["error"]),
        (200, &json!("not a bundle")),
        "{shown}"
    );
    let (status, answer) = write(
        &relay,
        "POST",
        "/dead/redrive",
        Some(json!({ "ids": [dead] })),
    )
    .await;
    assert_eq!(
        (status, results(&answer)),
        (200, vec![format!("{dead} \"refused\"")]),
        "{answer}"
    );
    assert_eq!(
        answer["items"][0]["error"],
        "it cannot be read: not a bundle"
    );
    assert_eq!(
        get(&relay, &format!("/dead/{dead}?route=orders")).await.0,
        200,
        "it is where it was"
    );
    assert!(relay.terminate().await.success());
}

#[tokio::test]
async fn dead_commands_list_show_and_export() {
    let kafka = Kafka::shared().await;
    let (mut relay, topic) = start_on(kafka).await;
    let all = four_dead_letters(&relay, kafka, &topic).await;
    let ok = |output: &Output| {
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let table = ok(&cli(&relay, &["dead", "list"]).await);
    assert_eq!(table.lines().count(), 5, "{table}");
    assert!(table.starts_with("DEAD ID "), "{table}");
    let listed: Vec<&str> = table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let mut newest_first = dead_ids(&all);
    newest_first.reverse();
    assert_eq!(listed, newest_first);
    let some = ok(&cli(&relay, &["dead", "list", "--limit", "3", "--oldest"]).await);
    assert!(
        some.contains(dead_ids(&all)[0])
            && some.ends_with("there are more: --limit, --from, --to)\n"),
        "{some}"
    );
    let some = ok(&cli(&relay, &["dead", "list", "--limit", "3", "--json"]).await);
    let some: Value = serde_json::from_str(&some).expect("JSON");
    assert_eq!(some["items"].as_array().map(Vec::len), Some(3));
    assert!(some["next"].is_string(), "{some}");
    let lines = ok(&cli(&relay, &["dead", "export", "--route", "orders"]).await);
    let exported: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(dead_ids(&exported), dead_ids(&all));
    assert_eq!(exported[0]["body"], "body");
    let shown = ok(&cli(&relay, &["dead", "show", "a", "--json"]).await);
    assert!(
        shown.contains("\"id\":\"a\"") && !shown.contains("\"body\""),
        "{shown}"
    );
    let unknown = cli(&relay, &["dead", "show", "nobody/%"]).await;
    assert_eq!(unknown.status.code(), Some(1));
    let error = text(&unknown.stderr);
    assert!(
        error.contains("there is no dead letter `nobody/%`"),
        "{error}"
    );
    assert!(relay.terminate().await.success());
}

#[tokio::test]
async fn what_is_redriven_may_be_due_later_and_one_after_the_other() {
    let kafka = Kafka::shared().await;
    let (mut relay, topic) = start_on(kafka).await;
    four_dead_letters(&relay, kafka, &topic).await;
    for (body, says) in [
        (json!({ "ids": ["a"], "delay": "1h", "at": 5 }), "either"),
        (json!({ "ids": ["a"], "delay": "soon" }), "`delay`"),
        (
            json!({ "ids": ["a"], "at": 1_798_761_600 }),
            "are these seconds?",
        ),
        (json!({ "ids": ["a"], "spread": "x" }), "`spread`"),
    ] {
        let (status, problem) = write(&relay, "POST", "/dead/redrive", Some(body)).await;
        assert_eq!(status, 400, "{problem}");
        let detail = problem["detail"].as_str().expect("a sentence");
        assert!(detail.contains(says), "{detail}");
    }
    let far = json!({ "ids": ["a"], "delay": "4000d" });
    let (_, answer) = write(&relay, "POST", "/dead/redrive", Some(far)).await;
    assert_eq!(answer["items"][0]["result"], "refused", "{answer}");

    let before = now_ms();
    let line = [
        "dead", "redrive", "--route", "orders", "--yes", "--delay", "1h", "--spread", "20m",
    ];
    let output = cli(&relay, &line).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let (_, page) = get(&relay, "/messages?route=orders").await;
    let items = page["items"].as_array().expect("items");
    let due: Vec<i64> = items
        .iter()
        .map(|item| item["due_ms"].as_i64().expect("due"))
        .collect();
    assert_eq!(due.len(), 4, "{page}");
    let hour = 3_600_000;
    assert!((before + hour..now_ms() + hour).contains(&due[0]), "{page}");
    let steps: Vec<i64> = due.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(steps, [300_000; 3], "{page}");
    assert!(relay.terminate().await.success());
}

#[tokio::test]
async fn dead_commands_act_on_ids_and_on_many_only_with_yes() {
    let kafka = Kafka::shared().await;
    let (mut relay, topic) = start_on(kafka).await;
    let all = four_dead_letters(&relay, kafka, &topic).await;
    let a = dead_id_of(&all, "a");
    let run = async |args: &[&str]| {
        let output = cli(&relay, &[&["dead"][..], args].concat()).await;
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (code, _, error) = run(&["redrive", "b", "--target", "elsewhere"]).await;
    assert_eq!(code, Some(1), "{error}");
    let (code, out, error) = run(&["redrive", "a"]).await;
    assert_eq!((code, out), (Some(0), format!("{a} redriven\n")), "{error}");
    let (code, out, error) = run(&["drop", "b", "twice", "nobody", "--json"]).await;
    assert_eq!(code, Some(1), "{out}");
    assert!(error.contains("2 of 3 were not dropped"), "{error}");
    assert_eq!(
        serde_json::from_str::<Value>(&out)
            .expect("JSON")
            .as_array()
            .map(Vec::len),
        Some(3)
    );
    let (code, out, error) = run(&["redrive", "--route", "orders", "--dry-run"]).await;
    assert_eq!(
        (code, out.as_str()),
        (Some(0), "2 dead letter(s) would be redriven\n"),
        "{error}"
    );
    for args in [&["drop", "--all"][..], &["redrive", "--route", "orders"]] {
        let (code, out, error) = run(args).await;
        assert_eq!((code, out.as_str()), (Some(64), ""), "{args:?}");
        assert!(
            error.contains("2 dead letter(s)") && error.contains("--yes"),
            "{error}"
        );
    }
    let (code, out, _) = run(&[
        "redrive", "--route", "orders", "--reason", "attempts", "--yes",
    ])
    .await;
    assert_eq!(
        (code, out.as_str()),
        (Some(0), ""),
        "none of them is dead for this reason"
    );
    let (code, out, error) = run(&["drop", "--all", "--yes"]).await;
    assert_eq!((code, out.lines().count()), (Some(0), 2), "{error}");
    assert!(relay.terminate().await.success());
}
