//! The trail from outside: what became of messages that are gone, told by the API and by `postdate show`.

use std::process::Command;

use serde_json::{Value, json};

use crate::flow::fixture::{FlowFixture, Path, Side, config};
use crate::flow::wire::Wire;
use crate::support::run::now_ms;
use crate::support::{Relay, eventually, relay};

async fn get(relay: &Relay, route: &str, id: &str) -> (u16, Value) {
    let path = format!("/api/v1/routes/{route}/messages/{id}");
    let (status, text) = relay.get(&path).await.expect("an answer");
    (
        status,
        serde_json::from_str(&text).unwrap_or(Value::String(text)),
    )
}

async fn edit(relay: &Relay, method: &str, id: &str, body: &str) {
    let path = format!("/api/v1/routes/orders/messages/{id}");
    let (status, text) = relay
        .request(method, &path, None, body)
        .await
        .expect("an answer");
    assert_eq!(status, 200, "{text}");
}

/// Waits until a message has this state and these events, and returns the answer.
async fn told(relay: &Relay, id: &str, state: &str, events: &[&str]) -> Value {
    eventually(&format!("{id} is {state}: {events:?}"), async || {
        let (_, answer) = get(relay, "orders", id).await;
        let trail = answer["trail"].as_array().cloned().unwrap_or_default();
        let words: Vec<&str> = trail
            .iter()
            .filter_map(|event| event["event"].as_str())
            .collect();
        if answer["state"] == state && words == events {
            Ok(answer)
        } else {
            Err(answer)
        }
    })
    .await
}

/// What became of a route's messages lately.
async fn lately(relay: &Relay, route: &str) -> Vec<Value> {
    let (status, text) = relay
        .get(&format!("/api/v1/routes/{route}/trail"))
        .await
        .expect("asked");
    assert_eq!(status, 200, "{text}");
    let page: Value = serde_json::from_str(&text).expect("JSON");
    page["items"].as_array().expect("a list").clone()
}

/// What `postdate show` prints.
async fn shown(relay: &Relay, id: &str) -> String {
    let (is_good, text) = command(relay, &["show", id]).await;
    assert!(is_good, "{id}: {text}");
    text
}

/// Runs a command. Returns whether it succeeded, and all that it wrote.
async fn command(relay: &Relay, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(relay::binary());
    command
        .args(arguments)
        .env_clear()
        .env("POSTDATE_URL", relay.url())
        .env("TZ", "UTC");
    let output = tokio::task::spawn_blocking(move || command.output().expect("the binary runs"));
    let output = output.await.expect("no panic");
    let written =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("UTF-8"));
    (output.status.success(), written.concat())
}

fn message(id: &str, headers: &[(&str, &str)]) -> (Wire, i64) {
    let plain = Side::Kafka.plain(id, "k", b"body").header("x-delay-id", id);
    (
        headers
            .iter()
            .fold(plain, |message, (name, value)| message.header(name, value)),
        now_ms(),
    )
}

/// A message without a name is known by the id that it arrived with, even one that was due on arrival.
async fn nameless(fixture: &FlowFixture, relay: &Relay, path: &Path) {
    for (case, delay) in [("due at once", "0"), ("nameless", "100")] {
        let wire = Side::Kafka
            .plain(case, "k", b"body")
            .header("x-delay", delay);
        fixture.send(path, &[(wire, now_ms())]).await;
        fixture.await_cases(&[case.to_owned()]).await;
        let (stamp, _) = fixture.arrived()[case][0].wire.clone().take_stamp();
        told(
            relay,
            &stamp.id.expect("an id"),
            "delivered",
            &["delivered"],
        )
        .await;
    }
}

/// Drops the dead letter `bad`, redrives the dead letter `mended`.
async fn dead_letters(relay: &Relay) {
    let bad = told(relay, "bad", "dead", &["dead"]).await;
    assert_eq!(
        (&bad["trail"][0]["reason"], &bad["trail"][0]["dead_id"]),
        (&json!("bad_delay"), &bad["dead_id"])
    );
    let drop = json!({ "ids": ["bad"] }).to_string();
    let (status, answer) = relay
        .request("POST", "/api/v1/dead/drop", None, &drop)
        .await
        .expect("an answer");
    assert_eq!(status, 200, "{answer}");
    let dropped = told(relay, "bad", "dropped", &["dead", "dropped"]).await;
    assert!(
        dropped["dead_id"].is_null() && dropped["trail"][1]["dead_id"] == bad["dead_id"],
        "{dropped}"
    );
    let words = shown(relay, "bad").await;
    assert!(
        words.contains("became a dead letter ") && words.contains("dropped "),
        "{words}"
    );

    let dead = told(relay, "mended", "dead", &["dead"]).await;
    let redrive = json!({ "ids": ["mended"] }).to_string();
    let (status, answer) = relay
        .request("POST", "/api/v1/dead/redrive", None, &redrive)
        .await
        .expect("an answer");
    assert_eq!(status, 200, "{answer}");
    let mended = told(
        relay,
        "mended",
        "delivered",
        &["dead", "redriven", "delivered"],
    )
    .await;
    assert_eq!(
        (&mended["trail"][1]["by"], &mended["trail"][1]["dead_id"]),
        (&json!("anybody at this machine"), &dead["dead_id"])
    );
    assert!(shown(relay, "mended").await.contains("redriven "));
}

#[tokio::test]
async fn what_became_of_each_message_is_told_by_the_api_and_by_the_command() {
    let fixture = FlowFixture::new().await;
    let path = Path::new("orders", Side::Kafka, Side::Kafka);
    fixture.open(std::slice::from_ref(&path)).await;
    let more = "max_delay = \"2d\"\nhistory = \"1h\"\nhistory_max = 1000";
    let mut relay = Relay::start(&path.configure(config(&fixture), more)).await;
    let began = now_ms() - 1000;
    let far = [("x-delay", "1h")];
    let messages = [
        message("passed", &[]),
        message("delivered", &[("x-delay", "100")]),
        message("withdrawn", &far),
        message("withdrawn", &[("x-delay-op", "cancel")]),
        message("by-hand", &far),
        message("sooner", &far),
        message(
            "sooner",
            &[("x-delay", "200"), ("x-delay-op", "reschedule")],
        ),
        message("later", &far),
        message("twice", &far),
        message("twice", &far),
        message("bad", &[("x-delay", "soon")]),
        message("mended", &[("x-delay", "soon")]),
    ];
    fixture.send(&path, &messages).await;

    let delivered = told(&relay, "delivered", "delivered", &["delivered"]).await;
    let event = &delivered["trail"][0];
    assert_eq!(
        (&event["target"], &event["connection"], &event["attempt"]),
        (&json!(path.target), &json!("kafka.b"), &json!(1)),
        "{delivered}"
    );
    assert!(
        event["late_ms"].is_i64() && event["at_ms"].is_i64() && event["at"].is_string(),
        "{delivered}"
    );
    assert!(
        delivered["due_ms"].is_null() && delivered["route"] == "orders",
        "{delivered}"
    );
    let late = event["late_ms"].as_i64().zip(event["at_ms"].as_i64());
    let due_ms = late.map(|(late, at)| at - late);
    assert_eq!(event["due_ms"].as_i64(), due_ms, "{delivered}");
    assert_eq!(event["landed"]["partition"], 0, "{delivered}");
    let offset = event["landed"]["offset"].as_i64().expect("an offset");
    assert!((0..=1).contains(&offset), "{delivered}");
    let place = format!(
        "to kafka b, topic {}, partition 0, offset {offset}, first attempt",
        path.target
    );
    let words = shown(&relay, "delivered").await;
    assert!(words.contains(&place), "{words}");

    nameless(&fixture, &relay, &path).await;
    let withdrawn = told(&relay, "withdrawn", "cancelled", &["cancelled"]).await;
    let event = &withdrawn["trail"][0];
    assert_eq!(
        (&event["by"], &event["position"]),
        (&json!("header"), &json!({ "partition": 0, "offset": 3 }))
    );
    let words = shown(&relay, "withdrawn").await;
    assert!(
        words.contains("by a command in a message (Kafka partition 0, offset 3)"),
        "{words}"
    );

    edit(&relay, "DELETE", "by-hand", "").await;
    // What this replica has not written yet is told too, so that nobody doubts his own cancel.
    let (status, gone) = get(&relay, "orders", "by-hand").await;
    assert!(
        status == 200 && gone["state"] == "cancelled",
        "{status}: {gone}"
    );
    let (is_done, again) = command(&relay, &["cancel", "by-hand"]).await;
    assert!(
        !is_done
            && again.contains("no message `by-hand` of the route `orders` waits: cancelled at ")
            && again.contains(", by anybody at this machine"),
        "{again}"
    );
    let cancelled = told(&relay, "by-hand", "cancelled", &["cancelled"]).await;
    assert_eq!(cancelled["trail"][0]["by"], "anybody at this machine");
    let due = cancelled["trail"][0]["due_ms"].as_i64();
    assert!(due.is_some_and(|due| due > now_ms()), "{cancelled}");
    assert!(
        shown(&relay, "by-hand")
            .await
            .contains("by anybody at this machine")
    );

    let sooner = told(&relay, "sooner", "delivered", &["moved", "delivered"]).await;
    assert!(sooner["trail"][0]["due_ms"].is_i64(), "{sooner}");
    assert_eq!(
        sooner["trail"][0]["position"],
        json!({ "partition": 0, "offset": 6 })
    );

    // A move changes neither when it came nor what was asked for then.
    let (_, before) = get(&relay, "orders", "later").await;
    edit(&relay, "PATCH", "later", "{\"delay\":\"2h\"}").await;
    let later = told(&relay, "later", "pending", &["moved"]).await;
    assert!(
        later["due_ms"].is_i64() && later["trail"][0]["due_ms"] == later["due_ms"],
        "{later}"
    );
    assert_eq!(later["delay_ms"], 3_600_000, "{later}");
    let received_ms = later["received_ms"].as_i64().expect("it came");
    assert!((began..=now_ms()).contains(&received_ms), "{later}");
    assert_eq!(later["received_ms"], before["received_ms"], "{later}");
    let words = shown(&relay, "later").await;
    assert!(words.contains(", with a delay of 1 h"), "{words}");
    assert!(
        words.contains("state     pending") && words.contains("trail     moved "),
        "{words}"
    );

    let twice = told(&relay, "twice", "pending", &["deduplicated"]).await;
    assert_eq!(
        twice["trail"][0]["position"],
        json!({ "partition": 0, "offset": 9 })
    );
    assert!(
        shown(&relay, "twice")
            .await
            .contains("a duplicate was suppressed ")
    );

    dead_letters(&relay).await;

    fixture.await_cases(&["passed".to_owned()]).await;
    let (status, problem) = get(&relay, "orders", "passed").await;
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(
        status == 404 && detail.contains("trail goes back to "),
        "{problem}"
    );

    let events = lately(&relay, "orders").await;
    for (id, event) in [
        ("delivered", "delivered"),
        ("by-hand", "cancelled"),
        ("bad", "dropped"),
        ("mended", "redriven"),
    ] {
        let is_it = |listed: &Value| listed["id"] == id && listed["event"] == event;
        assert_eq!(
            events.iter().filter(|listed| is_it(listed)).count(),
            1,
            "{id}: {events:#?}"
        );
    }
    assert!(events.is_sorted_by_key(|event| std::cmp::Reverse(event["at_ms"].as_i64())));

    // What the last half second brought is written at the end, and read by the next.
    edit(&relay, "DELETE", "later", "").await;
    assert!(relay.terminate().await.success(), "a clean end");
    relay.restart().await;
    told(&relay, "later", "cancelled", &["moved", "cancelled"]).await;
    assert_eq!(
        relay.total("postdate_trail_lost_total", &[]).await as u64,
        0
    );
    assert!(relay.terminate().await.success(), "a clean end");
}

#[tokio::test]
async fn a_route_without_a_history_says_so() {
    let fixture = FlowFixture::new().await;
    let path = Path::new("orders", Side::Kafka, Side::Kafka);
    fixture.open(std::slice::from_ref(&path)).await;
    let relay = Relay::start(&path.configure(config(&fixture), "history = \"0s\"")).await;
    fixture
        .send(&path, &[message("delivered", &[("x-delay", "100")])])
        .await;
    fixture.await_cases(&["delivered".to_owned()]).await;
    let detail = eventually("it has left", async || {
        let (status, problem) = get(&relay, "orders", "delivered").await;
        if status == 404 {
            Ok(problem["detail"].to_string())
        } else {
            Err(problem)
        }
    })
    .await;
    assert!(detail.contains("the route has no trail"), "{detail}");
    assert_eq!(lately(&relay, "orders").await, Vec::<Value>::new());
}
