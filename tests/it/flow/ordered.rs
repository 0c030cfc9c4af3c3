//! `order = "key"` from outside: a key whose message is refused. Killed relays are `promises/in_order.rs`.

use super::fixture::{FlowFixture, Path, Side, await_metric, config};
use crate::support::run::now_ms;
use crate::support::{Relay, names};

/// One key's second message is for a topic that is not there, another's for one that takes no records of its size.
#[tokio::test]
async fn what_a_broker_refuses_holds_back_its_own_key_alone_and_only_up_to_its_attempts() {
    let fixture = FlowFixture::new().await;
    let path = Path::new("refusing", Side::Kafka, Side::Kafka);
    fixture.open(std::slice::from_ref(&path)).await;
    let [missing, small] = ["missing", "small"].map(names::unique);
    fixture
        .kafka
        .create_topic_with(&small, 1, &[("max.message.bytes", "2000")])
        .await;
    fixture.collect(Side::Kafka, &small).await;
    let more = format!(
        "allow_targets = [\"{missing}\", \"{small}\"]\norder = \"key\"\n\
         retry = {{ attempts = 4, initial = \"1s\", max = \"1s\" }}"
    );
    let config =
        config(&fixture).route(&path.route, &path.source_text(), &path.target_text(), &more);
    let relay = Relay::start(&config).await;
    let (now, large) = (now_ms(), vec![b'x'; 5000]);
    let mut sent = Vec::new();
    for n in 0..5 {
        for (key, target, body) in [
            ("missing", &missing, &b"body"[..]),
            ("small", &small, &large[..]),
            ("well", &path.target, b"body"),
        ] {
            let body = if n == 1 { body } else { b"body" };
            let wire = path.from.plain(&format!("{key} {n}"), key, body);
            let wire = wire.header("x-deliver-at", &(now + 1000 + 20 * n).to_string());
            sent.push((
                if n == 1 {
                    wire.header("x-delay-target", target)
                } else {
                    wire
                },
                now,
            ));
        }
    }
    fixture.send(&path, &sent).await;
    let arrive: Vec<String> = ["missing", "small", "well"]
        .iter()
        .flat_map(|key| {
            (0..5)
                .filter(|n| *key == "well" || *n != 1)
                .map(move |n| format!("{key} {n}"))
        })
        .collect();
    fixture.await_cases(&arrive).await;
    let of = |reason| [("route", path.route.as_str()), ("reason", reason)];
    await_metric(&relay, "dead_letters_total", &of("unknown_target"), 1).await;
    await_metric(&relay, "publish_failures_total", &of("unknown_target"), 4).await;
    await_metric(&relay, "dead_letters_total", &of("too_big_for_target"), 1).await;
    await_metric(
        &relay,
        "publish_failures_total",
        &of("too_big_for_target"),
        1,
    )
    .await;
    let order = fixture.order_at(&path.target);
    for key in ["missing", "small", "well"] {
        let found: Vec<_> = order.iter().filter(|case| case.starts_with(key)).collect();
        let expected: Vec<_> = arrive.iter().filter(|case| case.starts_with(key)).collect();
        assert_eq!(found, expected);
    }
    let place = |case: &str| {
        order
            .iter()
            .position(|other| other == case)
            .expect("it is there")
    };
    let held = place("missing 2");
    assert!(
        ["small 4", "well 4"].iter().all(|case| place(case) < held),
        "others do not wait: {order:?}"
    );
}
