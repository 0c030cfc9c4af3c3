//! Messages that go round, by a binding or by two relays that face each other: told, counted and stopped. Equal
//! messages in a row are none of it.

use anyhow::anyhow;

use super::fixture::{FlowFixture, Path, Side, await_metric, config};
use crate::support::eventually;
use crate::support::relay::Relay;
use crate::support::run::now_ms;

/// Passes of one message through one relay, and its first publish.
const MOST_COPIES: usize = 9;
const TOLD: &str = "a message that was delayed comes back on a route that it passed: a loop";
const STOPPED: &str = "a message went round and was stopped";

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
async fn a_delayed_message_that_a_binding_brings_back_is_told_and_stopped() {
    let fixture = FlowFixture::new().await;
    let looping = Path::new("looping", Side::Classic, Side::Classic);
    let beside = Path::new("beside", Side::Quorum, Side::Classic);
    fixture.open(&[looping.clone(), beside.clone()]).await;
    fixture
        .rabbitmq
        .bind(&looping.ingress, &looping.target, "")
        .await;
    let config = beside.configure(looping.configure(config(&fixture), ""), "");
    let mut relay = Relay::start(&config).await;

    for case in ["round", "and round"] {
        let wire = looping
            .from
            .plain(case, "k", case.as_bytes())
            .header("x-delay", "100");
        fixture.send(&looping, &[(wire, now_ms())]).await;
    }
    // Equal messages in a row, which pass: nobody waits and nobody is told.
    let equal: Vec<_> = (0..300)
        .map(|_| (beside.from.plain("equal", "k", b"v"), now_ms()))
        .collect();
    fixture.send(&beside, &equal).await;
    let of = |reason| [("route", looping.route.as_str()), ("reason", reason)];
    await_metric(&relay, "dead_letters_total", &of("loop"), 2).await;
    await_metric(&relay, "dead", &[("route", &looping.route)], 2).await;
    await_metric(
        &relay,
        "passed_through_total",
        &[("route", &beside.route)],
        300,
    )
    .await;
    await_metric(&relay, "loops_total", &[("route", &beside.route)], 0).await;
    assert!(
        relay
            .total("postdate_loops_total", &[("route", &looping.route)])
            .await
            >= 2.0
    );
    for part in [TOLD, STOPPED] {
        await_log(&relay, part).await;
    }
    fixture
        .await_cases(&["round", "and round", "equal"].map(str::to_owned))
        .await;
    let arrived = fixture.arrived();
    for case in ["round", "and round"] {
        assert!(
            arrived[case].len() <= MOST_COPIES,
            "{case}: {}",
            arrived[case].len()
        );
    }

    // One that was never delayed goes round without a mark: it is told, and not stopped.
    let again = "the same content passes again and again: perhaps a loop";
    assert!(!relay.log().contains(again), "300 equal messages are none");
    // Twenty of them, so that they pass often enough on a slow machine too.
    let unmarked: Vec<_> = (0..20)
        .map(|_| (looping.from.plain("unmarked", "k", b"v"), now_ms()))
        .collect();
    fixture.send(&looping, &unmarked).await;
    await_log(&relay, again).await;
    assert!(relay.terminate().await.success(), "a clean end");
}

#[tokio::test]
async fn a_delayed_message_between_two_relays_that_face_each_other_is_stopped() {
    let fixture = FlowFixture::new().await;
    let there = Path::new("there", Side::Kafka, Side::Kafka);
    let back = Path {
        route: "back".into(),
        ingress: there.target.clone(),
        target: there.ingress.clone(),
        ..there.clone()
    };
    fixture.open(std::slice::from_ref(&there)).await;
    let one = Relay::start(&there.configure(config(&fixture), "")).await;
    let other = Relay::start(&back.configure(config(&fixture), "")).await;
    let wire = there
        .from
        .plain("round", "k", b"v")
        .header("x-delay", "100");
    fixture.send(&there, &[(wire, now_ms())]).await;
    eventually("one of them stops it", async || {
        let mut dead = 0.0;
        for relay in [&one, &other] {
            dead += relay
                .metrics()
                .await?
                .sum("postdate_dead_letters_total", &[("reason", "loop")]);
        }
        if (dead - 1.0).abs() < 0.1 {
            Ok(())
        } else {
            Err(anyhow!("{dead}"))
        }
    })
    .await;
    assert!(
        one.log().contains(TOLD) || other.log().contains(TOLD),
        "it was told"
    );
    // It went by both topics before it died; their collectors may come later.
    fixture.await_cases(&["round".to_owned()]).await;
    let copies = fixture.arrived()["round"].len();
    assert!(copies <= MOST_COPIES, "{copies}");
}

#[tokio::test]
async fn an_invalid_message_that_passes_and_comes_back_is_stopped_too() {
    let fixture = FlowFixture::new().await;
    let looping = Path::new("bad", Side::Quorum, Side::Classic);
    fixture.open(std::slice::from_ref(&looping)).await;
    fixture
        .rabbitmq
        .bind(&looping.ingress, &looping.target, "")
        .await;
    let config = looping.configure(config(&fixture), "on_invalid = \"pass_through\"");
    let mut relay = Relay::start(&config).await;
    let wire = looping
        .from
        .plain("bad", "k", b"bad")
        .header("x-delay", "soon")
        .header("x-delay-due", "1795255200000");
    fixture.send(&looping, &[(wire, now_ms())]).await;
    let of = [("route", looping.route.as_str()), ("reason", "loop")];
    await_metric(&relay, "dead_letters_total", &of, 1).await;
    await_log(&relay, TOLD).await;
    await_log(&relay, STOPPED).await;
    fixture.await_cases(&["bad".to_owned()]).await;
    let copies = fixture.arrived()["bad"].len();
    assert!(copies <= MOST_COPIES, "{copies}");
    assert!(relay.terminate().await.success(), "a clean end");
}
