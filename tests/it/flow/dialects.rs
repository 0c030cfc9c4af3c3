//! Headers that other worlds write already, end to end.

use lapin::types::AMQPValue;
use postdate::domain::{UnixMs, moment};

use super::fixture::{FlowFixture, Path, Side, await_metric, config};
use super::wire::Wire;
use crate::support::relay::Relay;
use crate::support::run::now_ms;

fn case(path: &Path, what: &str) -> String {
    format!("{} | {what}", path.route)
}

#[tokio::test]
async fn tasks_and_annotations_are_delayed_as_they_say_and_lose_what_delays_them_again() {
    let fixture = FlowFixture::new().await;
    let paths = [
        Path::new("dialects-kafka", Side::Kafka, Side::Kafka),
        Path::new("dialects-quorum", Side::Quorum, Side::Classic),
    ];
    fixture.open(&paths).await;
    let mut config = config(&fixture);
    for path in &paths {
        config = path.configure(config, "dialects = [\"celery\", \"amqp10\"]");
    }
    let relay = Relay::start(&config).await;
    relay.reads_all_sources().await;
    let due_ms = now_ms() + 1500;
    // As Python writes it.
    let python = |ms| {
        let text = moment::render(UnixMs(ms)).expect("a moment");
        text.replace('Z', "")
    };
    let (eta, later) = (python(due_ms), python(due_ms + 3_600_000));
    for path in &paths {
        let plain = |what: &str| path.from.plain(&case(path, what), "k", b"v");
        let mut at_once = plain("no eta");
        if let Wire::Amqp(amqp) = &mut at_once {
            amqp.headers.insert("eta".into(), AMQPValue::Void);
        }
        let sent = [
            plain("task").header("eta", &eta).header("id", "8f1c"),
            plain("annotated").header("x-opt-delivery-delay", "1500"),
            at_once.header("id", "8f1d"),
            plain("cancelled")
                .header("eta", &later)
                .header("id", "8f1e"),
            plain("cancel")
                .header("x-delay-op", "cancel")
                .header("id", "8f1e"),
        ];
        let sent: Vec<_> = sent.into_iter().map(|wire| (wire, now_ms())).collect();
        fixture.send(path, &sent).await;
    }
    let expected: Vec<_> = paths
        .iter()
        .flat_map(|path| ["task", "annotated", "no eta"].map(|what| case(path, what)))
        .collect();
    fixture.await_cases(&expected).await;
    let arrived = fixture.arrived();
    assert_eq!(arrived.len(), expected.len(), "{:?}", arrived.keys());
    for path in &paths {
        let wire = |what: &str| arrived[&case(path, what)][0].wire.clone();
        let task = wire("task");
        assert!(task.has_header("id") && !task.has_header("eta"), "{task:?}");
        let (stamp, _) = task.take_stamp();
        assert_eq!(stamp.id.as_deref(), Some("8f1c"));
        assert_eq!(stamp.due_ms, Some(due_ms));
        let annotated = wire("annotated");
        assert!(
            !annotated.has_header("x-opt-delivery-delay"),
            "{annotated:?}"
        );
        assert!(wire("no eta").has_header("id"));
        let cancelled = [
            ("route", path.route.as_str()),
            ("op", "cancel"),
            ("result", "cancelled"),
        ];
        await_metric(&relay, "commands_total", &cancelled, 1).await;
    }
}
