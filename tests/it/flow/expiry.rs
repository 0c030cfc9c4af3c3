//! Messages that are worthless when they are late: what is not wanted any more is not published, whatever made it late,
//! and costs nobody else anything.

use serde_json::{Value, json};

use super::fixture::{FlowFixture, Path, Side, await_metric, config};
use super::refused::path_to_two_keys;
use super::wire::Wire;
use crate::support::relay::Relay;
use crate::support::run::now_ms;
use crate::support::{eventually, names};

const PATHS: [(Side, Side); 2] = [(Side::Kafka, Side::Kafka), (Side::Quorum, Side::Classic)];

fn paths(what: &str) -> Vec<Path> {
    PATHS
        .iter()
        .map(|&(from, to)| Path::new(format!("{what}-{}", from.word()), from, to))
        .collect()
}

fn case(path: &Path, what: &str) -> String {
    format!("{} | {what}", path.route)
}

fn message(path: &Path, what: &str, headers: &[(&str, &str)]) -> (Wire, i64) {
    let plain = path.from.plain(&case(path, what), "k", b"v");
    let wire = headers
        .iter()
        .fold(plain, |wire, (name, value)| wire.header(name, value));
    (wire, now_ms())
}

/// The dead letters of a route: their cases, by their headers, with their reasons.
async fn dead(relay: &Relay, route: &str) -> Vec<Value> {
    let page = relay.read(&format!("/api/v1/dead?route={route}")).await;
    page["items"].as_array().expect("items").clone()
}

async fn until(moment_ms: i64) {
    let left = (moment_ms - now_ms()).max(0).unsigned_abs();
    tokio::time::sleep(std::time::Duration::from_millis(left)).await;
}

/// Waits for a route's expired messages.
async fn await_expired(relay: &Relay, path: &Path, count: u32) {
    let labels = [("route", path.route.as_str())];
    await_metric(relay, "expired_total", &labels, count).await;
}

#[tokio::test]
async fn after_an_outage_what_is_stale_is_dead_and_the_rest_arrives() {
    let fixture = FlowFixture::new().await;
    let paths = paths("stale");
    fixture.open(&paths).await;
    let mut config = config(&fixture);
    for path in &paths {
        config = path.configure(config, "max_lateness = \"2s\"");
    }
    let mut relay = Relay::start(&config).await;
    relay.reads_all_sources().await;
    let late = now_ms() + 5000;
    let due = late.to_string();
    let at = |ms: i64| (late + ms).to_string();
    let (soon, later) = (at(500), at(600_000));
    for path in &paths {
        let sent = [
            message(path, "stale by its route", &[("x-deliver-at", &due)]),
            message(
                path,
                "stale by a span",
                &[("x-deliver-at", &due), ("x-delay-expires", "1s")],
            ),
            message(
                path,
                "stale by a moment",
                &[
                    ("x-deliver-at", &due),
                    ("x-delay-expires", &soon),
                    ("x-delay-id", "named"),
                ],
            ),
            message(
                path,
                "fresh by a span",
                &[("x-deliver-at", &due), ("x-delay-expires", "10m")],
            ),
            message(
                path,
                "fresh by a moment",
                &[("x-deliver-at", &due), ("x-delay-expires", &later)],
            ),
        ];
        fixture.send(path, &sent).await;
        await_metric(&relay, "pending", &[("route", &path.route)], 5).await;
    }
    fixture.await_committed(&paths).await;
    relay.kill9().await;
    // These are stale when they are read.
    for path in &paths {
        let sent = [
            message(
                path,
                "stale when read",
                &[
                    ("x-deliver-at", &due),
                    ("x-delay-expires", &soon),
                    ("x-delay-id", "named when read"),
                ],
            ),
            message(path, "passing", &[("x-delay-expires", "1ms")]),
        ];
        fixture.send(path, &sent).await;
    }
    until(late + 3000).await;
    relay.restart().await;
    let fresh = |path: &Path| {
        ["fresh by a span", "fresh by a moment", "passing"].map(|what| case(path, what))
    };
    let expected: Vec<_> = paths.iter().flat_map(fresh).collect();
    fixture.await_cases(&expected).await;
    for path in &paths {
        await_expired(&relay, path, 4).await;
        let labels = [("route", path.route.as_str())];
        await_metric(&relay, "dead", &labels, 4).await;
        let letters = dead(&relay, &path.route).await;
        for name in ["named", "named when read"] {
            let named = letters.iter().filter(|letter| letter["id"] == name);
            assert_eq!(named.count(), 1, "{name}: {letters:?}");
        }
        for letter in &letters {
            assert_eq!(letter["reason"], "expired", "{letter}");
            assert!(letter["expires_ms"].is_i64(), "{letter}");
            let why = &letter["history"][0]["error"];
            assert!(
                why.as_str()
                    .is_some_and(|why| why.starts_with("wanted until 20"))
            );
        }
        let reading = relay
            .total("postdate_publish_failures_total", &labels)
            .await;
        assert!(reading < 0.5, "none was tried: {reading}");
        let paused = relay.total("postdate_ingress_paused", &labels).await;
        assert!(paused < 0.5, "they pause nothing");
    }
    let arrived = fixture.arrived();
    assert_eq!(arrived.len(), expected.len(), "{:?}", arrived.keys());
    for (case, arrivals) in &arrived {
        assert_eq!(arrivals.len(), 1, "{case}");
        let keeps = arrivals[0].wire.has_header("x-delay-expires");
        assert_eq!(keeps, case.ends_with("passing"), "{case}");
    }
    // Whoever sends one again wants it: it has no expiry, neither its own nor its route's.
    for path in &paths {
        let ids: Vec<_> = dead(&relay, &path.route)
            .await
            .iter()
            .map(|letter| letter["dead_id"].clone())
            .collect();
        let body = json!({ "ids": ids }).to_string();
        let answer = relay.request("POST", "/api/v1/dead/redrive", None, &body);
        assert_eq!(answer.await.expect("an answer").0, 200);
        let all = [
            "stale by its route",
            "stale by a span",
            "stale by a moment",
            "stale when read",
        ];
        fixture.await_cases(&all.map(|what| case(path, what))).await;
    }
}

#[tokio::test]
async fn a_stale_message_replaces_the_one_that_waits_under_its_name() {
    let fixture = FlowFixture::new().await;
    let path = Path::new("stale-replaces".to_owned(), Side::Kafka, Side::Kafka);
    let paths = [path];
    fixture.open(&paths).await;
    let [path] = &paths;
    let config = path.configure(config(&fixture), "on_duplicate = \"replace\"");
    let relay = Relay::start(&config).await;
    let labels = [("route", path.route.as_str())];
    let old = message(path, "old", &[("x-delay", "1h"), ("x-delay-id", "a")]);
    fixture.send(path, &[old]).await;
    await_metric(&relay, "pending", &labels, 1).await;
    let past = (now_ms() - 60_000).to_string();
    let headers = [
        ("x-deliver-at", past.as_str()),
        ("x-delay-expires", "1s"),
        ("x-delay-id", "a"),
    ];
    fixture
        .send(path, &[message(path, "stale", &headers)])
        .await;
    await_expired(&relay, path, 1).await;
    await_metric(&relay, "dead", &labels, 1).await;
    await_metric(&relay, "pending", &labels, 0).await;
    let letters = dead(&relay, &path.route).await;
    assert_eq!(letters[0]["id"], "a", "{letters:?}");
}

#[tokio::test]
async fn a_retry_is_not_later_than_the_message_is_wanted_and_then_its_name_and_key_are_free() {
    let fixture = FlowFixture::new().await;
    let patient = "retry = { attempts = 100, initial = \"1m\", max = \"1m\" }\norder = \"key\"";
    let mut config = config(&fixture);
    let mut paths = Vec::new();
    for (name, policy) in [("expires-dead", "dead_letter"), ("expires-drop", "drop")] {
        let path = path_to_two_keys(&fixture, name).await;
        let more = format!("on_expired = \"{policy}\"\n{patient}");
        config = config.route(&path.route, &path.source_text(), &path.target_text(), &more);
        paths.push(path);
    }
    let relay = Relay::start(&config).await;
    relay.reads_all_sources().await;
    for path in &paths {
        let unbound = path.from.plain(&case(path, "unbound"), "unbound", b"v");
        let unbound = unbound
            .header("x-delay", "200")
            .header("x-delay-id", "order-7")
            .header("x-delay-expires", "3s");
        fixture.send(path, &[(unbound, now_ms())]).await;
    }
    for path in &paths {
        // The first retry would come after half a minute at the earliest.
        let began = std::time::Instant::now();
        await_expired(&relay, path, 1).await;
        assert!(began.elapsed().as_secs() < 20);
        let labels = [("route", path.route.as_str())];
        let dropped = [("route", path.route.as_str()), ("reason", "expired")];
        let is_dropped = path.route == "expires-drop";
        await_metric(&relay, "pending", &labels, 0).await;
        await_metric(&relay, "dropped_total", &dropped, u32::from(is_dropped)).await;
        await_metric(&relay, "dead", &labels, u32::from(!is_dropped)).await;
        let next = path.from.plain(&case(path, "next"), "bound", b"v");
        let next = next
            .header("x-delay", "200")
            .header("x-delay-id", "order-7");
        fixture.send(path, &[(next, now_ms())]).await;
        fixture.await_cases(&[case(path, "next")]).await;
        let duplicates = relay.total("postdate_duplicates_total", &labels).await;
        assert!(duplicates < 0.5, "its name was free");
    }
}

#[tokio::test]
async fn a_reschedule_moves_a_span_and_is_too_late_past_a_moment() {
    let fixture = FlowFixture::new().await;
    let paths = paths("moved");
    fixture.open(&paths).await;
    let mut config = config(&fixture);
    for path in &paths {
        config = path.configure(config, "");
    }
    let relay = Relay::start(&config).await;
    relay.reads_all_sources().await;
    let last = (now_ms() + 3_600_000).to_string();
    let [span, moment] = ["span", "moment"].map(names::unique);
    for path in &paths {
        let sent = [
            message(
                path,
                "span",
                &[
                    ("x-delay", "30m"),
                    ("x-delay-id", &span),
                    ("x-delay-expires", "30m"),
                ],
            ),
            message(
                path,
                "moment",
                &[
                    ("x-delay", "30m"),
                    ("x-delay-id", &moment),
                    ("x-delay-expires", &last),
                ],
            ),
        ];
        fixture.send(path, &sent).await;
        await_metric(&relay, "pending", &[("route", &path.route)], 2).await;
        let shown = async |id: &str| {
            let path = format!("/api/v1/routes/{}/messages/{id}", path.route);
            relay.read(&path).await
        };
        let moved = async |id: &str, delay: &str| {
            let path = format!("/api/v1/routes/{}/messages/{id}", path.route);
            let body = json!({ "delay": delay }).to_string();
            let answer = relay.request("PATCH", &path, None, &body).await;
            answer.expect("an answer").0
        };
        assert_eq!(moved(&moment, "2h").await, 409);
        assert_eq!(moved(&moment, "40m").await, 200);
        assert_eq!(
            shown(&moment).await["expires_ms"],
            json!(last.parse::<i64>().expect("ms"))
        );
        assert_eq!(moved(&span, "2h").await, 200);
        let moved_on = shown(&span).await;
        let (due, expires) = (&moved_on["due_ms"], &moved_on["expires_ms"]);
        let after = expires
            .as_i64()
            .zip(due.as_i64())
            .map(|(expires, due)| expires - due);
        assert_eq!(after, Some(1_800_000), "{moved_on}");
        // The command of a producer alike.
        let command = [
            ("x-delay-op", "reschedule"),
            ("x-delay-id", moment.as_str()),
            ("x-delay", "3h"),
        ];
        fixture
            .send(path, &[message(path, "command", &command)])
            .await;
        let late = [
            ("route", path.route.as_str()),
            ("op", "reschedule"),
            ("result", "too_late"),
        ];
        await_metric(&relay, "commands_total", &late, 2).await;
        eventually("nothing else has changed", async || {
            let expires = shown(&moment).await["expires_ms"].clone();
            if expires == json!(last.parse::<i64>().expect("ms")) {
                Ok(())
            } else {
                Err(anyhow::anyhow!("{expires}"))
            }
        })
        .await;
    }
}
