//! Passing messages that a target refuses: each costs its neighbours nothing, is treated by `on_refused`, and
//! while a source waits for it, that is said.

use anyhow::anyhow;
use lapin::ExchangeKind;

use super::fixture::{FlowFixture, Path, Side, await_metric, config};
use super::wire::{CASE, Record, Wire, bytes};
use crate::support::relay::Relay;
use crate::support::run::now_ms;
use crate::support::{QueueKind, eventually};

const PATIENT: &str = "retry = { attempts = 10000, initial = \"100ms\", max = \"200ms\" }";
/// Keys of the direct exchange: one has a queue from the start, the other one once it is bound.
const BOUND: &str = "bound";
const UNBOUND: &str = "unbound";

/// A queue's route to a direct exchange of which the queue of the same name is bound under one key.
pub(super) async fn path_to_two_keys(fixture: &FlowFixture, route: &str) -> Path {
    let path = Path::new(route, Side::Quorum, Side::Classic);
    fixture.make(path.from, &path.ingress).await;
    fixture
        .rabbitmq
        .declare_exchange(&path.target, ExchangeKind::Direct)
        .await;
    fixture
        .rabbitmq
        .declare_queue(&path.target, QueueKind::Classic)
        .await;
    fixture
        .rabbitmq
        .bind(&path.target, &path.target, BOUND)
        .await;
    fixture.collect(path.to, &path.target).await;
    path
}

async fn await_log(relay: &Relay, part: &str) {
    eventually(&format!("the log says {part:?}"), async || {
        if relay.log().contains(part) {
            Ok(())
        } else {
            Err(anyhow!("not yet"))
        }
    })
    .await;
}

#[tokio::test]
async fn an_unroutable_passing_message_is_treated_by_on_refused_and_stops_nobody_by_default() {
    let fixture = FlowFixture::new().await;
    let mut config = config(&fixture);
    let mut paths = Vec::new();
    for policy in ["retry", "wait", "dead_letter", "drop"] {
        let path = path_to_two_keys(&fixture, &policy.replace('_', "-")).await;
        let more = format!("on_refused = \"{policy}\"\n{PATIENT}");
        config = config.route(&path.route, &path.source_text(), &path.target_text(), &more);
        paths.push(path);
    }
    let mut relay = Relay::start(&config).await;
    let case = |path: &Path, what: &str| format!("{} | {what}", path.route);
    for path in &paths {
        let plain = |what: &str, key: &str| path.from.plain(&case(path, what), key, b"v");
        let bad = plain("bad", UNBOUND);
        let passing = plain("passing", BOUND);
        let delayed = plain("delayed", BOUND).header("x-delay", "100");
        fixture.send(path, &[(bad, now_ms())]).await;
        // What is on its way together with the first refused one may overtake it.
        let labels = [("route", path.route.as_str()), ("reason", "unroutable")];
        eventually("it is refused", async || {
            let failures = relay
                .metrics()
                .await?
                .sum("postdate_publish_failures_total", &labels);
            if failures > 0.5 {
                Ok(())
            } else {
                Err(anyhow!("{failures}"))
            }
        })
        .await;
        fixture
            .send(path, &[(passing, now_ms()), (delayed, now_ms())])
            .await;
    }
    let [retry, wait, dead_letter, drop] = &paths[..] else {
        panic!("four routes")
    };
    for path in [retry, dead_letter, drop] {
        fixture
            .await_cases(&["passing", "delayed"].map(|what| case(path, what)))
            .await;
    }
    // One that left the line is stored, and its source was released.
    for (path, name, value) in [
        (retry, "passed_through_total", 1),
        (retry, "stored_total", 2),
        (retry, "dead", 0),
        (dead_letter, "publish_failures_total", 1),
        (dead_letter, "pending", 0),
        (drop, "publish_failures_total", 1),
        (drop, "pending", 0),
    ] {
        await_metric(&relay, name, &[("route", &path.route)], value).await;
    }
    let dead = [
        ("route", dead_letter.route.as_str()),
        ("reason", "unroutable"),
    ];
    await_metric(&relay, "dead_letters_total", &dead, 1).await;
    let dropped = [("route", drop.route.as_str()), ("reason", "refused")];
    await_metric(&relay, "dropped_total", &dropped, 1).await;
    // The source that waits says so, by metric, by log and in the API.
    let paused = [("route", wait.route.as_str()), ("reason", "target")];
    await_metric(&relay, "ingress_paused", &paused, 1).await;
    await_log(&relay, "trouble begins").await;
    let (_, body) = relay
        .get(&format!("/api/v1/routes/{}", wait.route))
        .await
        .expect("a route");
    assert!(body.contains("\"paused\":[\"target\"]"), "{body}");
    assert!(
        !fixture.arrived().contains_key(&case(wait, "passing")),
        "the order stands"
    );
    for path in [retry, dead_letter, drop] {
        await_metric(
            &relay,
            "ingress_paused",
            &[("route", &path.route), ("reason", "target")],
            0,
        )
        .await;
    }

    for path in &paths {
        fixture
            .rabbitmq
            .bind(&path.target, &path.target, UNBOUND)
            .await;
    }
    fixture
        .await_cases(&[case(retry, "bad"), case(wait, "bad")])
        .await;
    fixture
        .await_cases(&["passing", "delayed"].map(|what| case(wait, what)))
        .await;
    await_metric(&relay, "ingress_paused", &paused, 0).await;
    await_log(&relay, "trouble is over").await;
    let order = fixture.order_at(&wait.target);
    assert_eq!(
        order[..2],
        [case(wait, "bad"), case(wait, "passing")],
        "{order:?}"
    );
    let arrived = fixture.arrived();
    let [late] = &arrived[&case(retry, "bad")][..] else {
        panic!("once: {arrived:?}")
    };
    let (stamp, rest) = late.wire.clone().take_stamp();
    assert!(
        stamp.attempt.is_some_and(|n| n >= 2) && stamp.due_ms.is_some(),
        "{stamp:?}"
    );
    assert_eq!(rest.case(), case(retry, "bad"));
    let [waited] = &arrived[&case(wait, "bad")][..] else {
        panic!("once: {arrived:?}")
    };
    assert_eq!(
        waited.wire.clone().take_stamp().0,
        super::wire::Stamp::default(),
        "in place it passes byte for byte"
    );
    for path in [dead_letter, drop] {
        assert!(!arrived.contains_key(&case(path, "bad")));
    }
    assert!(relay.terminate().await.success(), "a clean end");
    for path in &paths {
        assert_eq!(
            fixture.rabbitmq.queue_len(&path.ingress).await,
            0,
            "all of it was answered"
        );
    }
}

#[tokio::test]
async fn what_can_never_be_published_is_dead_at_once_and_its_neighbours_pass() {
    const GOOD: usize = 20;
    let fixture = FlowFixture::new().await;
    let paths = ["retry", "wait", "drop"]
        .map(|policy| (Path::new(policy, Side::Kafka, Side::Classic), policy));
    let mut config = config(&fixture);
    for (path, policy) in &paths {
        fixture.open(std::slice::from_ref(path)).await;
        // The default `retry`: sixteen attempts would take half an hour.
        config = path.configure(config, &format!("on_refused = \"{policy}\""));
    }
    let mut relay = Relay::start(&config).await;
    for (path, _) in &paths {
        let key = Some(vec![0, 0, 0, 255]);
        let record = Record {
            key,
            value: bytes("v"),
            headers: vec![(CASE.to_owned(), bytes("bad"))],
        };
        let mut messages = vec![(Wire::Kafka(record), now_ms())];
        for n in 0..GOOD {
            let plain = path.from.plain(&format!("{} | {n}", path.route), "k", b"v");
            messages.push((
                if n % 2 == 0 {
                    plain
                } else {
                    plain.header("x-delay", "100")
                },
                now_ms(),
            ));
        }
        fixture.send(path, &messages).await;
    }
    for (path, _) in &paths {
        let all = (0..GOOD).map(|n| format!("{} | {n}", path.route));
        fixture.await_cases(&all.collect::<Vec<_>>()).await;
        let labels = [("route", path.route.as_str()), ("reason", "unpublishable")];
        await_metric(&relay, "dead_letters_total", &labels, 1).await;
        await_metric(&relay, "publish_failures_total", &labels, 1).await;
    }
    assert_eq!(fixture.arrived().len(), GOOD * paths.len());
    assert!(relay.terminate().await.success(), "a clean end");
}

#[tokio::test]
async fn a_header_name_that_kafka_cannot_carry_is_bad_headers() {
    let fixture = FlowFixture::new().await;
    let path = Path::new("nul", Side::Classic, Side::Kafka);
    let elsewhere = Path::new("nul-elsewhere", Side::Classic, Side::Classic);
    fixture.open(&[path.clone(), elsewhere.clone()]).await;
    let config = elsewhere.configure(path.configure(config(&fixture), ""), "");
    let mut relay = Relay::start(&config).await;
    for path in [&path, &elsewhere] {
        let plain = |what: &str| {
            path.from
                .plain(&format!("{} | {what}", path.route), "k", b"v")
        };
        let messages = [
            plain("passing").header("a\0b", "v"),
            plain("delayed")
                .header("a\0b", "v")
                .header("x-delay", "100"),
            plain("good"),
        ];
        fixture
            .send(path, &messages.map(|wire| (wire, now_ms())))
            .await;
    }
    fixture
        .await_cases(&[format!("{} | good", path.route)])
        .await;
    fixture
        .await_cases(&["passing", "delayed"].map(|what| format!("{} | {what}", elsewhere.route)))
        .await;
    let labels = [("route", path.route.as_str()), ("reason", "bad_headers")];
    await_metric(&relay, "invalid_total", &labels, 2).await;
    await_metric(&relay, "dead_letters_total", &labels, 2).await;
    await_metric(&relay, "pending", &[("route", &path.route)], 0).await;
    assert_eq!(fixture.arrived().len(), 4, "{:?}", fixture.arrived().keys());
    assert!(relay.terminate().await.success(), "a clean end");
}

#[tokio::test]
async fn a_delayed_message_that_no_binding_wants_is_treated_by_on_unroutable() {
    let fixture = FlowFixture::new().await;
    let mut config = config(&fixture);
    let mut paths = Vec::new();
    for policy in ["retry", "dead_letter", "drop"] {
        let path = path_to_two_keys(&fixture, &policy.replace('_', "-")).await;
        let more = format!("on_unroutable = \"{policy}\"\n{PATIENT}");
        config = config.route(&path.route, &path.source_text(), &path.target_text(), &more);
        paths.push(path);
    }
    let mut relay = Relay::start(&config).await;
    for path in &paths {
        let delayed = |what: &str, key: &str| {
            let plain = path
                .from
                .plain(&format!("{} | {what}", path.route), key, b"v");
            (plain.header("x-delay", "100"), now_ms())
        };
        fixture
            .send(path, &[delayed("bad", UNBOUND), delayed("good", BOUND)])
            .await;
    }
    let good: Vec<_> = paths
        .iter()
        .map(|path| format!("{} | good", path.route))
        .collect();
    fixture.await_cases(&good).await;
    let [retry, dead_letter, drop] = &paths[..] else {
        panic!("three routes")
    };
    let dead = [
        ("route", dead_letter.route.as_str()),
        ("reason", "unroutable"),
    ];
    await_metric(&relay, "dead_letters_total", &dead, 1).await;
    let dropped = [("route", drop.route.as_str()), ("reason", "refused")];
    await_metric(&relay, "dropped_total", &dropped, 1).await;
    for (path, name, value) in [
        (retry, "pending", 1),
        (dead_letter, "publish_failures_total", 1),
        (dead_letter, "pending", 0),
        (drop, "publish_failures_total", 1),
        (drop, "pending", 0),
        (drop, "dead", 0),
    ] {
        await_metric(&relay, name, &[("route", &path.route)], value).await;
    }
    // What is expected is no trouble of the target.
    await_log(&relay, &format!("target:b:{}/", retry.target)).await;
    let log = relay.log();
    for path in [dead_letter, drop] {
        assert!(
            !log.contains(&format!("target:b:{}/", path.target)),
            "{log}"
        );
    }
    assert!(relay.terminate().await.success());
}
