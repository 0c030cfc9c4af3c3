//! Promise: no message is published before its due time. Every report of `support::Run` checks it too, to the millisecond;
//! see also `flow/directions.rs`, `cluster/clocks.rs` and the rules `early` of `tests/model`.

use crate::flow::fixture::{FlowFixture, Path, Side, config};
use crate::flow::policies::message;
use crate::support::Relay;
use crate::support::run::now_ms;

#[tokio::test]
async fn jitter_spreads_what_falls_on_one_moment_and_is_never_early() {
    const MESSAGES: usize = 300;
    let fixture = FlowFixture::new().await;
    let paths = [
        Path::new("kafka", Side::Kafka, Side::Kafka),
        Path::new("rabbitmq", Side::Quorum, Side::Quorum),
    ];
    fixture.open(&paths).await;
    let config = paths.iter().fold(config(&fixture), |config, path| {
        path.configure(config, "jitter = \"2s\"")
    });
    let mut relay = Relay::start(&config).await;
    let base = now_ms() + 1500;
    let at = base.to_string();
    for path in &paths {
        let case = |n: usize| format!("{} {n}", path.route);
        let mut all: Vec<_> = (0..MESSAGES)
            .map(|n| message(path, &case(n), &[("x-deliver-at", &at)]))
            .collect();
        all.push(message(
            path,
            &case(MESSAGES),
            &[("x-deliver-at", &at), ("x-delay-id", "a")],
        ));
        fixture.send(path, &all).await;
    }
    let cases = paths
        .iter()
        .flat_map(|p| (0..=MESSAGES).map(move |n| format!("{} {n}", p.route)));
    fixture.await_cases(&cases.collect::<Vec<_>>()).await;
    for path in &paths {
        let mut dues = Vec::new();
        for n in 0..=MESSAGES {
            let arrival = fixture.arrived()[&format!("{} {n}", path.route)][0].clone();
            let due = arrival
                .wire
                .clone()
                .take_stamp()
                .0
                .due_ms
                .expect("a due time");
            assert!(
                (base..=base + 2000).contains(&due),
                "{due} is not within 2 s of {base}"
            );
            assert!(arrival.received_ms >= due, "{arrival:?}");
            dues.push(due - base);
        }
        dues.sort_unstable();
        let of = |quarter: i64| dues.iter().filter(|due| **due / 500 == quarter).count();
        let quarters = [of(0), of(1), of(2), of(3)];
        assert!(
            quarters.iter().all(|n| (30..130).contains(n)),
            "spread evenly: {quarters:?}"
        );
    }
    assert!(relay.terminate().await.success(), "a clean end");
}
