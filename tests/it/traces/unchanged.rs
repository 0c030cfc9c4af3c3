//! The context of a trace without a collector: it passes as it came.

use super::collector::Collector;
use super::{PARENT, TRACE, delayed, headers, traced};
use crate::flow::fixture::{FlowFixture, Path, Side, config};
use crate::support::Relay;
use crate::support::run::now_ms;

/// Routes within and across technologies.
fn paths() -> [Path; 4] {
    [
        ("k-k", Side::Kafka, Side::Kafka),
        ("c-c", Side::Classic, Side::Classic),
        ("k-q", Side::Kafka, Side::Quorum),
        ("q-k", Side::Quorum, Side::Kafka),
    ]
    .map(|(route, from, to)| Path::new(route, from, to))
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_collector_the_context_of_a_recorded_trace_passes_unchanged_delayed_or_not() {
    let fixture = FlowFixture::new().await;
    let paths = paths();
    fixture.open(&paths).await;
    let config = paths
        .iter()
        .fold(config(&fixture), |config, path| path.configure(config, ""));
    let relay = Relay::start(&config).await;
    pass(&fixture, &paths, true).await;
    assert!(relay.total("postdate_spans_lost_total", &[]).await < 0.5);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_collector_the_context_of_a_message_without_a_delay_passes_unchanged() {
    let fixture = FlowFixture::new().await;
    let paths = paths();
    fixture.open(&paths).await;
    let collector = Collector::default();
    let traces = super::section(&collector.listen().await);
    let config = config(&fixture).section(&traces);
    let config = paths
        .iter()
        .fold(config, |config, path| path.configure(config, ""));
    let mut relay = Relay::start(&config).await;
    pass(&fixture, &paths, false).await;
    // A stop exports what there is.
    assert!(relay.terminate().await.success());
    assert!(collector.requests().is_empty(), "no span");
}

/// Sends one message without a delay on each path, and a delayed one where `with_delayed` says so. Checks the headers of
/// the arrivals.
async fn pass(fixture: &FlowFixture, paths: &[Path], with_delayed: bool) {
    let delayed_case = |path: &Path| format!("{}-delayed", path.route);
    let mut cases = Vec::new();
    for path in paths {
        fixture
            .send(
                path,
                &[(
                    traced(path.from.plain(&path.route, "key", b"body"), "01"),
                    now_ms(),
                )],
            )
            .await;
        cases.push(path.route.clone());
        if with_delayed {
            let case = delayed_case(path);
            fixture
                .send(path, &[(delayed(path.from, &case, "01"), now_ms())])
                .await;
            cases.push(case);
        }
    }
    fixture.await_cases(&cases).await;
    let arrived = fixture.arrived();
    for case in &cases {
        let received = headers(&arrived[case][0].wire);
        assert_eq!(
            received["traceparent"],
            format!("00-{TRACE}-{PARENT}-01"),
            "{case}"
        );
        assert_eq!(received["tracestate"], "vendor=1", "{case}");
    }
}
