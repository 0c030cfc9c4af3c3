//! One lane per target: what is missing delays only its own messages, is tried again, and arrives once it
//! is there; out of attempts or hopeless, it is a dead letter with its reason.

use lapin::ExchangeKind;

use super::fixture::{FlowFixture, Path, Side, await_metric, config};
use super::wire::{CASE, Record, Wire, bytes};
use crate::support::relay::{Config, Relay};
use crate::support::run::now_ms;
use crate::support::{eventually, names};

/// Messages to each target.
const EACH: usize = 20;
const PATIENT: &str = "retry = { attempts = 10000, initial = \"100ms\", max = \"200ms\" }";
const HASTY: &str = "retry = { attempts = 2, initial = \"50ms\", max = \"50ms\" }";

/// A target that is not there yet.
struct Missing {
    /// As `x-delay-target` names it.
    text: String,
    /// Topic or exchange; and the queue behind it.
    name: String,
    reason: &'static str,
}

fn missing(to: Side) -> Vec<Missing> {
    let name = |kind| names::unique(kind);
    if to == Side::Kafka {
        let name = name("missing");
        return vec![Missing {
            text: name.clone(),
            name,
            reason: "unknown_target",
        }];
    }
    let [absent, unbound] = ["absent", "unbound"].map(name);
    vec![
        Missing {
            text: format!("{absent}/key"),
            name: absent,
            reason: "unknown_target",
        },
        Missing {
            text: format!("{unbound}/key"),
            name: unbound,
            reason: "unroutable",
        },
    ]
}

fn plain(from: Side, case: &str) -> Wire {
    from.plain(case, "k", b"v")
}

fn configure(path: &Path, missing: &[Missing], retry: &str, config: Config) -> Config {
    let targets: Vec<_> = missing.iter().map(|m| format!("\"{}\"", m.text)).collect();
    let more = format!("allow_targets = [{}]\n{retry}", targets.join(", "));
    config.route(&path.route, &path.source_text(), &path.target_text(), &more)
}

/// Makes what the ones that are "unroutable" need to be only that.
async fn half_there(fixture: &FlowFixture, missing: &[Missing]) {
    for m in missing.iter().filter(|m| m.reason == "unroutable") {
        fixture
            .rabbitmq
            .declare_exchange(&m.name, ExchangeKind::Fanout)
            .await;
    }
}

fn paths(kind: &str) -> Vec<(Path, Vec<Missing>)> {
    let ends = [
        (Side::Kafka, Side::Kafka),
        (Side::Kafka, Side::Classic),
        (Side::Classic, Side::Kafka),
        (Side::Quorum, Side::Quorum),
    ];
    let path = |(from, to): (Side, Side)| {
        (
            Path::new(format!("{}-to-{}-{kind}", from.word(), to.word()), from, to),
            missing(to),
        )
    };
    ends.into_iter().map(path).collect()
}

#[tokio::test]
async fn a_missing_target_delays_only_its_own_messages_which_arrive_once_it_is_there() {
    let fixture = FlowFixture::new().await;
    let paths = paths("patient");
    let mut config = config(&fixture);
    for (path, missing) in &paths {
        fixture.open(std::slice::from_ref(path)).await;
        half_there(&fixture, missing).await;
        config = configure(path, missing, PATIENT, config);
    }
    let mut relay = Relay::start(&config).await;

    let mut well = Vec::new();
    let mut held = Vec::new();
    for (path, missing) in &paths {
        let mut messages = Vec::new();
        for n in 0..EACH {
            for m in missing {
                let case = format!("{} | {} | {n}", path.route, m.text);
                let wire = plain(path.from, &case).header("x-delay-target", &m.text);
                messages.push((wire.header("x-delay", "200"), now_ms()));
                held.push((case, m.name.clone()));
            }
            let case = format!("{} | healthy | {n}", path.route);
            messages.push((plain(path.from, &case).header("x-delay", "300"), now_ms()));
            well.push(case);
        }
        fixture.send(path, &messages).await;
    }
    fixture.await_cases(&well).await;
    // Tried and refused, more than once, while the others were delivered.
    for (path, missing) in &paths {
        for m in missing {
            let labels = [("route", path.route.as_str()), ("reason", m.reason)];
            eventually("it is tried again", async || {
                let failures = relay
                    .metrics()
                    .await?
                    .sum("postdate_publish_failures_total", &labels);
                if failures > EACH as f64 {
                    Ok(())
                } else {
                    Err(anyhow::anyhow!("{labels:?}: {failures}"))
                }
            })
            .await;
        }
        await_metric(
            &relay,
            "published_total",
            &[("route", &path.route)],
            EACH as u32,
        )
        .await;
    }
    assert_eq!(
        fixture.arrived().len(),
        well.len(),
        "nothing goes where nothing is"
    );

    for (path, missing) in &paths {
        for m in missing {
            fixture.make(path.to, &m.name).await;
            fixture.collect(path.to, &m.name).await;
        }
    }
    fixture
        .await_cases(
            &held
                .iter()
                .map(|(case, _)| case.clone())
                .collect::<Vec<_>>(),
        )
        .await;
    await_metric(
        &relay,
        "published_total",
        &[],
        (well.len() + held.len()) as u32,
    )
    .await;
    await_metric(&relay, "dead", &[], 0).await;
    assert!(relay.terminate().await.success(), "a clean end");
    let arrived = fixture.arrived();
    assert_eq!(arrived.len(), well.len() + held.len());
    for (case, at) in &held {
        let [once] = &arrived[case][..] else {
            panic!("{case}: {:?}", arrived[case])
        };
        let (stamp, _) = once.wire.clone().take_stamp();
        assert!(
            once.at == *at && stamp.attempt.is_some_and(|n| n >= 2),
            "{once:?}"
        );
        assert!(
            stamp.due_ms.is_some_and(|due| due <= once.received_ms),
            "{once:?}"
        );
    }
    println!(
        "{} messages, {} of them to {} missing targets",
        arrived.len(),
        held.len(),
        held.len() / EACH
    );
}

#[tokio::test]
async fn out_of_attempts_or_hopeless_it_is_a_dead_letter_with_its_reason() {
    let fixture = FlowFixture::new().await;
    let paths = paths("hasty");
    let mut config = config(&fixture);
    for (path, missing) in &paths {
        fixture.open(std::slice::from_ref(path)).await;
        half_there(&fixture, missing).await;
        config = configure(path, missing, HASTY, config);
    }
    let relay = Relay::start(&config).await;

    let mut well = Vec::new();
    for (path, missing) in &paths {
        let case = |what: &str| format!("{} | {what}", path.route);
        let mut messages = Vec::new();
        // One that waited, one that is due at once, one that passes through: for a missing target that would wait.
        for m in missing {
            let wire = plain(path.from, &case(&m.text)).header("x-delay-target", &m.text);
            messages.push((wire.clone().header("x-delay", "200"), now_ms()));
            messages.push((wire.clone().header("x-delay", "0"), now_ms()));
            if m.reason != "unknown_target" {
                messages.push((wire, now_ms()));
            }
        }
        if (path.from, path.to) == (Side::Kafka, Side::Classic) {
            // What cannot be a routing key: neither text, nor short enough.
            for key in [vec![255, 0], vec![b'k'; 256]] {
                let headers = vec![(CASE.to_owned(), bytes(&case("key")))];
                let record = Record {
                    key: Some(key),
                    value: bytes("v"),
                    headers,
                };
                messages.push((Wire::Kafka(record).header("x-delay", "200"), now_ms()));
            }
        }
        messages.push((
            plain(path.from, &case("healthy")).header("x-delay", "300"),
            now_ms(),
        ));
        well.push(case("healthy"));
        fixture.send(path, &messages).await;
    }
    fixture.await_cases(&well).await;
    for (path, missing) in &paths {
        let keys = (path.from, path.to) == (Side::Kafka, Side::Classic);
        let of = |reason: &str| {
            let each = if reason == "unknown_target" { 2 } else { 3 };
            missing.iter().filter(|m| m.reason == reason).count() as u32 * each
        };
        // What is hopeless is tried once, the others twice.
        let hopeless = |reason: &str| {
            u32::from(keys && ["too_big_for_target", "unpublishable"].contains(&reason))
        };
        let mut all = 0;
        for reason in [
            "unknown_target",
            "unroutable",
            "too_big_for_target",
            "unpublishable",
        ] {
            let labels = [("route", path.route.as_str()), ("reason", reason)];
            let failing = of(reason);
            let hopeless = hopeless(reason);
            await_metric(&relay, "dead_letters_total", &labels, failing + hopeless).await;
            await_metric(
                &relay,
                "publish_failures_total",
                &labels,
                failing * 2 + hopeless,
            )
            .await;
            all += failing + hopeless;
        }
        await_metric(&relay, "dead", &[("route", &path.route)], all).await;
        await_metric(&relay, "pending", &[("route", &path.route)], 0).await;
    }
    assert_eq!(
        fixture.arrived().len(),
        well.len(),
        "a dead letter arrives nowhere"
    );
}

#[tokio::test]
async fn what_passes_through_waits_in_order_for_a_missing_target() {
    let fixture = FlowFixture::new().await;
    let paths = [
        Path::new("waiting-on-kafka", Side::Kafka, Side::Kafka),
        Path::new("waiting-on-rabbitmq", Side::Classic, Side::Classic),
        Path::new("others", Side::Kafka, Side::Classic),
    ];
    let mut config = config(&fixture);
    for path in &paths {
        fixture.make(path.from, &path.ingress).await;
        // The exchange is made a moment before its queue is bound to it.
        config = configure(
            path,
            &[],
            &format!("{PATIENT}\non_refused = \"wait\""),
            config,
        );
    }
    fixture.make(paths[2].to, &paths[2].target).await;
    fixture.collect(paths[2].to, &paths[2].target).await;
    let relay = Relay::start(&config).await;

    let mut wanted = Vec::new();
    for path in &paths[..2] {
        let cases: Vec<_> = (10..10 + EACH)
            .map(|n| format!("{} | {n}", path.route))
            .collect();
        let messages: Vec<_> = cases
            .iter()
            .map(|case| (plain(path.from, case), now_ms()))
            .collect();
        fixture.send(path, &messages).await;
        wanted.extend(cases);
        let labels = [("route", path.route.as_str())];
        eventually("they are refused", async || {
            let failures = relay
                .metrics()
                .await?
                .sum("postdate_publish_failures_total", &labels);
            if failures > 0.5 {
                Ok(())
            } else {
                Err(anyhow::anyhow!("{failures}"))
            }
        })
        .await;
        let paused = [("route", path.route.as_str()), ("reason", "target")];
        await_metric(&relay, "ingress_paused", &paused, 1).await;
    }
    let told = || relay.log().matches("trouble begins").count();
    eventually("each route tells", async || {
        if told() < 2 { Err("not yet") } else { Ok(()) }
    })
    .await;
    assert_eq!(told(), 2, "once a route: {}", relay.log());
    let other = "others | passes".to_owned();
    fixture
        .send(&paths[2], &[(plain(Side::Kafka, &other), now_ms())])
        .await;
    fixture.await_cases(std::slice::from_ref(&other)).await;
    assert_eq!(fixture.arrived().len(), 1, "the others wait");

    for path in &paths[..2] {
        fixture.make(path.to, &path.target).await;
        fixture.collect(path.to, &path.target).await;
    }
    fixture.await_cases(&wanted).await;
    await_metric(&relay, "passed_through_total", &[], wanted.len() as u32 + 1).await;
    await_metric(&relay, "ingress_paused", &[("reason", "target")], 0).await;
    for path in &paths[..2] {
        let order: Vec<_> = fixture.order_at(&path.target);
        let sent: Vec<_> = wanted
            .iter()
            .filter(|case| case.starts_with(&path.route))
            .cloned()
            .collect();
        assert_eq!(order, sent, "in order, each once");
    }
}
