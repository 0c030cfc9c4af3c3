//! A new content for a message that waits, by the API, by the command line and by a header: what arrives is the new one,
//! once, and what was not named is as it was.

use serde_json::{Value, json};

use super::fixture::{FlowFixture, Path, Side, await_metric, config};
use super::wire::{CASE, Wire};
use crate::support::relay::Relay;
use crate::support::run::now_ms;
use crate::support::{eventually, names};

const PATHS: [(Side, Side); 3] = [
    (Side::Kafka, Side::Kafka),
    (Side::Quorum, Side::Classic),
    (Side::Classic, Side::Kafka),
];

fn case(path: &Path, what: &str) -> String {
    format!("{} | {what}", path.route)
}

fn message(path: &Path, what: &str, body: &str, headers: &[(&str, &str)]) -> (Wire, i64) {
    let plain = path.from.plain(&case(path, what), "k", body.as_bytes());
    let wire = headers
        .iter()
        .fold(plain, |wire, (name, value)| wire.header(name, value));
    (wire, now_ms())
}

fn body(wire: &Wire) -> String {
    let bytes = match wire {
        Wire::Kafka(record) => record.value.clone().unwrap_or_default(),
        Wire::Amqp(amqp) => amqp.body.clone(),
    };
    String::from_utf8(bytes).expect("UTF-8")
}

fn place(path: &Path, id: &str) -> String {
    format!("/api/v1/routes/{}/messages/{id}", path.route)
}

/// Replaces by the API. Answers the status and the result, or the reason.
async fn put(relay: &Relay, path: &Path, id: &str, body: &Value) -> (u16, Value) {
    let (place, body) = (place(path, id), body.to_string());
    let answer = relay.request("PUT", &place, None, &body).await;
    let (status, text) = answer.expect("an answer");
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    let told = [&answer["result"], &answer["reason"]];
    let told = told.into_iter().find(|told| !told.is_null());
    (status, told.cloned().unwrap_or_default())
}

#[tokio::test]
async fn what_is_named_is_new_and_the_rest_arrives_as_it_was() {
    let fixture = FlowFixture::new().await;
    let paths: Vec<Path> = PATHS
        .iter()
        .map(|&(from, to)| Path::new(format!("put-{}-{}", from.word(), to.word()), from, to))
        .collect();
    fixture.open(&paths).await;
    let mut config = config(&fixture);
    for path in &paths {
        config = path.configure(config, "max_delay = \"1d\"");
    }
    let mut relay = Relay::start(&config).await;
    relay.reads_all_sources().await;
    let id = |path: &Path, what: &str| format!("{what}-{}", path.ingress);
    for path in &paths {
        let named = |what: &str| {
            let id = id(path, what);
            let headers = [
                ("x-delay", "2h"),
                ("x-delay-id", id.as_str()),
                ("kept", "yes"),
            ];
            message(path, what, "old", &headers)
        };
        let nameless = message(path, "nameless", "old", &[("x-delay", "3h")]);
        let sent = [
            named("body"),
            named("headers"),
            named("target"),
            named("late"),
            nameless,
        ];
        fixture.send(path, &sent).await;
        await_metric(&relay, "pending", &[("route", &path.route)], 5).await;
    }
    let done = (200, json!("replaced"));
    for path in &paths {
        let shown = async |what: &str| relay.read(&place(path, &id(path, what))).await;
        let put = async |what: &str, body: Value| put(&relay, path, &id(path, what), &body).await;
        let before = shown("body").await;
        assert_eq!(put("body", json!({ "body": "new" })).await, done);
        let after = shown("body").await;
        for same in ["due_ms", "asked_ms", "headers", "key", "target", "id"] {
            assert_eq!(before[same], after[same], "{same}");
        }
        assert_ne!(before["version"], after["version"]);
        assert!(after["received_ms"].as_i64() > before["received_ms"].as_i64());

        let headers = json!({ CASE: case(path, "headers"), "x-tenant": "acme" });
        assert_eq!(put("headers", json!({ "headers": headers })).await, done);
        let other = path.other_text();
        let headers = json!({ CASE: case(path, "target"), "x-delay-target": other });
        let all = json!({ "headers": headers, "body_base64": "bmV3", "delay": "1h" });
        assert_eq!(put("target", all).await, done);

        // What cannot be is refused, and nothing is changed.
        let before = shown("late").await;
        for (wrong, status, told) in [
            (json!({}), 400, Value::Null),
            (json!({ "because": "for nothing" }), 400, Value::Null),
            (json!({ "id": "another" }), 400, Value::Null),
            (
                json!({ "body": "a", "body_base64": "YQ==" }),
                400,
                Value::Null,
            ),
            (json!({ "body_base64": "%" }), 400, Value::Null),
            (json!({ "delay": "1s", "at": 1 }), 400, Value::Null),
            (
                json!({ "headers": { "X-Delay-Id": "b" } }),
                400,
                Value::Null,
            ),
            (json!({ "delay": "soon" }), 400, json!("bad_delay")),
            (json!({ "delay": "2d" }), 400, json!("too_far")),
            (
                json!({ "headers": { "x-delay-target": "nowhere" } }),
                400,
                json!("forbidden_target"),
            ),
            (
                json!({ "headers": { "x-delay-expires": now_ms().to_string() } }),
                400,
                json!("bad_expiry"),
            ),
        ] {
            assert_eq!(put("late", wrong.clone()).await, (status, told), "{wrong}");
        }
        assert_eq!(
            put("nobody", json!({ "body": "x" })).await,
            (404, json!("unknown"))
        );
        assert_eq!(shown("late").await, before);
        // An expiry of its own holds for what is named later.
        let last = (now_ms() + 10_800_000).to_string();
        let wanted = json!({ "headers": { CASE: case(path, "late"), "x-delay-expires": last } });
        assert_eq!(put("late", wanted).await, done);
        assert_eq!(
            put("late", json!({ "delay": "4h" })).await,
            (409, json!("too_late"))
        );
        assert_eq!(shown("late").await["expires_ms"].to_string(), last);

        // One without a name of its own.
        let list = relay
            .read(&format!("/api/v1/messages?route={}", path.route))
            .await;
        let items = list["items"].as_array().expect("items");
        let own = items
            .iter()
            .find_map(|item| item["id"].as_str().filter(|id| id.starts_with('~')));
        let own = own.expect("a nameless one");
        let answer = self::put(&relay, path, own, &json!({ "body": "newer" })).await;
        assert_eq!(answer, done);
        assert_eq!(relay.read(&place(path, own)).await["id"], own);

        // All of them now.
        for what in ["body", "headers", "target", "late"] {
            assert_eq!(put(what, json!({ "delay": 0 })).await, done, "{what}");
        }
        let now = self::put(&relay, path, own, &json!({ "at": now_ms() + 100 })).await;
        assert_eq!(now, done);
        let all = ["body", "headers", "target", "late", "nameless"].map(|what| case(path, what));
        fixture.await_cases(&all).await;
    }
    for path in &paths {
        await_metric(&relay, "pending", &[("route", &path.route)], 0).await;
        let replaced = [
            ("route", path.route.as_str()),
            ("op", "replace"),
            ("result", "replaced"),
        ];
        await_metric(&relay, "commands_total", &replaced, 10).await;
    }
    let arrived = fixture.arrived();
    for path in &paths {
        for (what, content) in [
            ("body", "new"),
            ("headers", "old"),
            ("target", "new"),
            ("late", "old"),
            ("nameless", "newer"),
        ] {
            let [arrival] = &arrived[&case(path, what)][..] else {
                panic!("{what} came {} times", arrived[&case(path, what)].len());
            };
            assert_eq!(body(&arrival.wire), content, "{what}");
            let has_kept = arrival.wire.has_header("kept");
            assert_eq!(has_kept, what == "body", "{what}: {arrival:?}");
            assert_eq!(arrival.wire.has_header("x-tenant"), what == "headers");
            let at = if what == "target" {
                &path.other
            } else {
                &path.target
            };
            assert_eq!(&arrival.at, at, "{what}");
        }
        // The trail tells who did it.
        let id = id(path, "body");
        eventually("the trail has it", async || {
            let shown = relay.read(&place(path, &id)).await;
            let trail = shown["trail"].as_array().cloned().unwrap_or_default();
            let by = |event: &Value| (event["event"].clone(), event["by"].clone());
            let who = json!("anybody at this machine");
            if trail
                .iter()
                .map(by)
                .any(|told| told == (json!("replaced"), who.clone()))
            {
                Ok(())
            } else {
                Err(anyhow::anyhow!("{shown}"))
            }
        })
        .await;
    }
    assert!(relay.terminate().await.success(), "a clean end");
}

#[tokio::test]
async fn a_replacement_that_comes_too_late_changes_nothing() {
    let fixture = FlowFixture::new().await;
    let path = Path::new(names::unique("late"), Side::Kafka, Side::Kafka);
    fixture.open(std::slice::from_ref(&path)).await;
    let config = path.configure(config(&fixture), "dedupe = \"10m\"");
    let mut relay = Relay::start(&config).await;
    relay.reads_all_sources().await;
    let named = |what: &str, headers: &[(&str, &str)]| {
        let all = [headers, &[("x-delay-id", "a")]].concat();
        message(&path, what, what, &all)
    };
    fixture
        .send(&path, &[named("first", &[("x-delay", "100")])])
        .await;
    fixture.await_cases(&[case(&path, "first")]).await;
    await_metric(&relay, "pending", &[("route", &path.route)], 0).await;
    let late = [("x-delay", "0"), ("x-delay-op", "replace")];
    fixture.send(&path, &[named("too late", &late)]).await;
    let labels = [
        ("route", path.route.as_str()),
        ("op", "replace"),
        ("result", "too_late"),
    ];
    await_metric(&relay, "commands_total", &labels, 1).await;
    let unknown = put(&relay, &path, "a", &json!({ "body": "x" })).await;
    assert_eq!(unknown, (404, json!("unknown")));
    assert!(relay.terminate().await.success(), "a clean end");
    assert_eq!(fixture.arrived().len(), 1, "nothing else came");
}

/// Its route's jitter has put it behind what may be asked for.
#[tokio::test]
async fn what_is_due_later_than_may_be_asked_for_keeps_its_due_time() {
    let fixture = FlowFixture::new().await;
    let path = Path::new(names::unique("far"), Side::Kafka, Side::Kafka);
    fixture.open(std::slice::from_ref(&path)).await;
    let config = path.configure(config(&fixture), "max_delay = \"1d\"\njitter = \"12h\"");
    let relay = Relay::start(&config).await;
    relay.reads_all_sources().await;
    for id in ["a", "b", "c", "d"] {
        let headers = [("x-delay", "1d"), ("x-delay-id", id)];
        fixture
            .send(&path, &[message(&path, id, "old", &headers)])
            .await;
    }
    await_metric(&relay, "pending", &[("route", &path.route)], 4).await;
    for id in ["a", "b", "c", "d"] {
        let before = relay.read(&place(&path, id)).await;
        let headers = json!({ "x-delay-expires": "1h" });
        for wanted in [json!({ "body": "new" }), json!({ "headers": headers })] {
            let answer = put(&relay, &path, id, &wanted).await;
            assert_eq!(answer, (200, json!("replaced")), "{before}");
        }
        let after = relay.read(&place(&path, id)).await;
        assert_eq!(after["due_ms"], before["due_ms"]);
        let expires = after["due_ms"].as_i64().map(|due| due + 3_600_000);
        assert_eq!(after["expires_ms"].as_i64(), expires, "{after}");
        let early = before["due_ms"].as_i64().expect("a time") - 1;
        let headers = json!({ "x-delay-expires": early.to_string() });
        let answer = put(&relay, &path, id, &json!({ "headers": headers })).await;
        assert_eq!(answer, (400, json!("bad_expiry")));
    }
}
