//! Traces of delayed messages, as a collector gets them: by OpenTelemetry's own types.

mod collector;
mod trouble;
mod unchanged;

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;

use self::collector::{Collector, hex, number, section, text};
use crate::flow::fixture::{FlowFixture, Path, Side, config};
use crate::flow::wire::{CASE, Wire};
use crate::replay::fixture::{ReplayFixture, ago, record};
use crate::support::run::now_ms;
use crate::support::{Relay, eventually};

/// Time by which messages are delayed.
const DELAY_MS: i64 = 1200;
/// Delay of a message whose replica ends before it is due.
const HANDED_DELAY_MS: i64 = 8000;
/// Trace and span of the producer.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A delayed message of a producer that records its trace, or does not.
fn delayed(from: Side, case: &str, flags: &str) -> Wire {
    delayed_by(from, case, flags, DELAY_MS)
}

fn delayed_by(from: Side, case: &str, flags: &str, delay_ms: i64) -> Wire {
    let message = from
        .plain(case, "key", b"body")
        .header("x-delay", &format!("{delay_ms}ms"));
    traced(message.header("x-delay-id", &format!("{case}-id")), flags)
}

/// The message with the context of its producer.
fn traced(message: Wire, flags: &str) -> Wire {
    let message = message.header("traceparent", &format!("00-{TRACE}-{PARENT}-{flags}"));
    message.header("tracestate", "vendor=1")
}

/// The headers of a message that arrived, as text.
fn headers(wire: &Wire) -> BTreeMap<String, String> {
    match wire {
        Wire::Kafka(record) => {
            let text = |value: &Option<Vec<u8>>| {
                String::from_utf8_lossy(value.as_deref().unwrap_or_default()).into()
            };
            record
                .headers
                .iter()
                .map(|(name, value)| (name.clone(), text(value)))
                .collect()
        }
        Wire::Amqp(amqp) => {
            let text = |value: &lapin::types::AMQPValue| match value {
                lapin::types::AMQPValue::LongString(text) => text.to_string(),
                other => format!("{other:?}"),
            };
            amqp.headers
                .inner()
                .iter()
                .map(|(name, value)| (name.to_string(), text(value)))
                .collect()
        }
    }
}

/// Checks the spans of a message that was delivered at the attempt `attempt`, and what its receiver was told.
fn check(path: &Path, received: &BTreeMap<String, String>, spans: &(Span, Vec<Span>), due_ms: i64) {
    let (admission, deliveries) = spans;
    assert_eq!(hex(&admission.trace_id), TRACE, "the producer's trace");
    assert_eq!(hex(&admission.parent_span_id), PARENT);
    assert_eq!(admission.kind(), SpanKind::Consumer);
    assert_eq!(text(admission, "postdate.route"), path.route);
    for (span, operation, destination) in [
        (admission, "process", &path.ingress),
        (&deliveries[0], "send", &path.target),
    ] {
        assert_eq!(span.name, format!("{operation} {destination}"));
        assert_eq!(text(span, "messaging.operation.name"), operation);
        assert_eq!(text(span, "messaging.operation.type"), operation);
        assert_eq!(text(span, "messaging.destination.name"), *destination);
    }
    let group = if path.from == Side::Kafka {
        path.ingress.as_str()
    } else {
        ""
    };
    assert_eq!(text(admission, "messaging.consumer.group.name"), group);
    let key = if path.to == Side::Quorum {
        path.target.as_str()
    } else {
        ""
    };
    assert_eq!(
        text(&deliveries[0], "messaging.rabbitmq.destination.routing_key"),
        key
    );
    let asked = number(admission, "postdate.delay_ms");
    // A record's delay counts from the moment it was made, by a clock that a busy machine reads late.
    assert!((1..=DELAY_MS + 500).contains(&asked), "{asked}");
    let of_delivery = text(admission, "postdate.delivery.trace_id");
    for (attempt, delivery) in (1..).zip(deliveries) {
        assert_eq!(delivery.kind(), SpanKind::Producer);
        assert_eq!(
            hex(&delivery.trace_id),
            of_delivery,
            "a trace of its own, which the admission names"
        );
        assert_ne!(of_delivery, TRACE);
        assert!(delivery.parent_span_id.is_empty());
        assert_eq!(delivery.links.len(), 1);
        assert_eq!(delivery.links[0].trace_id, admission.trace_id);
        assert_eq!(delivery.links[0].span_id, admission.span_id);
        assert_eq!(number(delivery, "postdate.attempt"), attempt);
        assert_eq!(text(delivery, "postdate.route"), path.route);
        assert!((asked - 1..=DELAY_MS + 5).contains(&number(delivery, "postdate.delay_ms")));
        let ended_ms = (delivery.end_time_unix_nano / 1_000_000) as i64;
        assert!(ended_ms >= due_ms, "{ended_ms} is before {due_ms}");
        assert!((ended_ms - due_ms - number(delivery, "postdate.lateness_ms")).abs() <= 1);
        assert!(delivery.start_time_unix_nano <= delivery.end_time_unix_nano);
        let is_last = attempt == deliveries.len() as i64;
        assert_eq!(delivery.status.is_some(), !is_last, "{delivery:?}");
    }
    let last = deliveries.last().expect("a delivery");
    let traceparent = format!("00-{}-{}-01", hex(&last.trace_id), hex(&last.span_id));
    assert_eq!(
        received.get("traceparent"),
        Some(&traceparent),
        "the receiver's trace goes on from the delivery"
    );
    let state = received.get("tracestate").expect("a tracestate");
    assert!(
        state.starts_with("postdate=") && state.ends_with(",vendor=1"),
        "{state}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_trace_goes_on_through_the_delay_and_any_other_passes_unchanged() {
    let fixture = FlowFixture::new().await;
    let paths = [
        ("k-k", Side::Kafka, Side::Kafka),
        ("c-k", Side::Classic, Side::Kafka),
        ("q-c", Side::Quorum, Side::Classic),
        ("c-q", Side::Classic, Side::Quorum),
        ("c-c", Side::Classic, Side::Classic),
    ]
    .map(|(route, from, to)| Path::new(route, from, to));
    fixture.open(&paths).await;
    let late = Path::new("retried", Side::Classic, Side::Classic);
    fixture.make(late.from, &late.ingress).await;
    let collector = Collector::default();
    let section = section(&collector.listen().await);
    let config = paths
        .iter()
        .fold(config(&fixture).section(&section), |config, path| {
            path.configure(config, "")
        });
    let retry = r#"retry = { attempts = 20, initial = "1500ms", max = "1500ms" }"#;
    let relay = Relay::start(&late.configure(config, retry)).await;

    fixture
        .send(&late, &[(delayed(late.from, "retried", "01"), now_ms())])
        .await;
    for path in &paths {
        let recorded = delayed(path.from, &path.route, "01");
        let other = delayed(path.from, &format!("{}-other", path.route), "00");
        fixture
            .send(path, &[(recorded, now_ms()), (other, now_ms())])
            .await;
    }
    let cases: Vec<String> = paths
        .iter()
        .flat_map(|path| [path.route.clone(), format!("{}-other", path.route)])
        .collect();
    fixture.await_cases(&cases).await;
    for path in &paths {
        let arrived = fixture.arrived();
        let received = &arrived[&path.route][0];
        let received_headers = headers(&received.wire);
        let due_ms = received
            .wire
            .clone()
            .take_stamp()
            .0
            .due_ms
            .expect("stamped");
        let spans = collector.spans_of(&path.route, 1).await;
        check(path, &received_headers, &spans, due_ms);
        let others = headers(&arrived[&format!("{}-other", path.route)][0].wire);
        assert_eq!(others["traceparent"], format!("00-{TRACE}-{PARENT}-00"));
        assert_eq!(others["tracestate"], "vendor=1");
        assert!(!others.contains_key(CASE) || others[CASE].ends_with("-other"));
    }

    eventually("a delivery has failed", async || {
        let spans = collector.spans.lock().expect("spans");
        let failed = spans
            .iter()
            .any(|span| text(span, "messaging.message.id") == "retried-id");
        if failed { Ok(()) } else { Err("none has") }
    })
    .await;
    fixture.make(late.to, &late.target).await;
    fixture.collect(late.to, &late.target).await;
    fixture.await_cases(&["retried".to_owned()]).await;
    let received = fixture.arrived()["retried"][0].clone();
    let stamp = received.wire.clone().take_stamp().0;
    let attempts = stamp.attempt.expect("a later attempt") as usize;
    assert!(attempts >= 2);
    let spans = collector.spans_of("retried", attempts).await;
    check(
        &late,
        &headers(&received.wire),
        &spans,
        stamp.due_ms.expect("stamped"),
    );
    let failed = &spans.1[0];
    assert_eq!(text(failed, "error.type"), "unknown_target");
    let admitted = number(&spans.0, "postdate.due_unix_ms");
    assert_eq!(
        number(failed, "postdate.due_unix_ms"),
        admitted,
        "the moment that was asked for"
    );
    let (_, metrics) = relay.get("/metrics").await.expect("metrics");
    let lateness = metrics
        .lines()
        .filter(|line| line.starts_with("postdate_lateness_seconds_bucket"));
    let of_delivery = text(&spans.0, "postdate.delivery.trace_id");
    assert!(
        lateness
            .into_iter()
            .any(|line| line.contains(&format!("# {{trace_id=\"{of_delivery}\"}}"))),
        "an exemplar"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redriven_message_goes_on_in_the_trace_of_its_first_delivery_on_whatever_replica() {
    let fixture = FlowFixture::new().await;
    let path = Path::new("redriven", Side::Kafka, Side::Kafka);
    fixture.make(path.from, &path.ingress).await;
    let collector = Collector::default();
    let config = config(&fixture).section(&section(&collector.listen().await));
    let config = path.configure(config, "retry = { attempts = 1 }");
    let mut first = Relay::start(&config).await;
    fixture
        .send(&path, &[(delayed(path.from, "redriven", "01"), now_ms())])
        .await;
    eventually("a dead letter", async || {
        let dead = first.metrics().await?.sum("postdate_dead", &[]);
        if dead > 0.5 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{dead}"))
        }
    })
    .await;
    assert!(first.terminate().await.success());
    let second = Relay::start(&config).await;
    fixture.make(path.to, &path.target).await;
    fixture.collect(path.to, &path.target).await;
    let ids = r#"{ "ids": ["redriven-id"] }"#;
    let (status, answer) = second
        .request("POST", "/api/v1/dead/redrive", None, ids)
        .await
        .expect("an answer");
    assert!(status == 200 && answer.contains("redriven"), "{answer}");
    fixture.await_cases(&["redriven".to_owned()]).await;
    let received = fixture.arrived()["redriven"][0].clone();
    let attempts = received
        .wire
        .clone()
        .take_stamp()
        .0
        .attempt
        .expect("a later attempt") as usize;
    let (admission, deliveries) = collector.spans_of("redriven", attempts).await;
    assert_eq!(hex(&admission.trace_id), TRACE);
    for (attempt, delivery) in (1..).zip(&deliveries) {
        assert_eq!(
            hex(&delivery.trace_id),
            text(&admission, "postdate.delivery.trace_id")
        );
        assert_eq!(delivery.links[0].span_id, admission.span_id);
        assert_eq!(number(delivery, "postdate.attempt"), attempt);
    }
    let [.., failed, delivered] = &deliveries[..] else {
        panic!("{deliveries:?}")
    };
    assert_eq!(text(failed, "error.type"), "unknown_target");
    assert_eq!(delivered.status, None);
    let traceparent = format!(
        "00-{}-{}-01",
        hex(&delivered.trace_id),
        hex(&delivered.span_id)
    );
    assert_eq!(headers(&received.wire)["traceparent"], traceparent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_another_replica_publishes_links_to_its_admission() {
    let fixture = FlowFixture::new().await;
    let path = Path::new("handed", Side::Kafka, Side::Classic);
    fixture.open(std::slice::from_ref(&path)).await;
    let collector = Collector::default();
    let config = path.configure(
        config(&fixture).section(&section(&collector.listen().await)),
        "",
    );
    let mut first = Relay::start(&config).await;
    let message = delayed_by(path.from, "handed", "01", HANDED_DELAY_MS);
    fixture.send(&path, &[(message, now_ms())]).await;
    let admission = collector.admission_on("handed", "").await;
    assert!(first.terminate().await.success());
    let _second = Relay::start(&config).await;
    fixture.await_cases(&["handed".to_owned()]).await;
    let (linked, deliveries) = collector.spans_of("handed", 1).await;
    assert_eq!(linked.span_id, admission.span_id);
    assert_ne!(
        collector.instance_of(&admission),
        collector.instance_of(&deliveries[0]),
        "two replicas"
    );
    assert_eq!(deliveries[0].links[0].trace_id, admission.trace_id);
    let delay_ms = number(&deliveries[0], "postdate.delay_ms");
    assert_eq!(
        delay_ms,
        number(&admission, "postdate.delay_ms"),
        "both know the moment of the admission"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replayed_message_links_to_the_replay_and_one_that_waits_is_known_to_it() {
    let collector = Collector::default();
    let traces = format!("\n{}", section(&collector.listen().await));
    let mut fixture = ReplayFixture::new(1, &traces).await;
    let due = (now_ms() + 3_600_000).to_string();
    let traceparent = format!("00-{TRACE}-{PARENT}-01");
    let sent = [
        ("x-delay-id", "again-id"),
        ("x-deliver-at", due.as_str()),
        ("traceparent", traceparent.as_str()),
    ];
    fixture.produce(&[record(0, "again", &sent)]).await;
    fixture.committed().await;
    let first = collector.admission_on("r", "").await;
    let since = ago(&fixture);
    let known = fixture.replay(&["--since", &since, "--yes"]).await;
    assert_eq!(
        known.counts(),
        [1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
        "it is in the store: {known:?}"
    );
    fixture.end().await;
    fixture.wipe().await;

    let done = fixture.replay(&["--since", &since, "--yes"]).await;
    assert_eq!((done.code, done.counts()[1]), (0, 1), "{done:?}");
    let admission = collector.admission_on("r", "-replay").await;
    assert_ne!(admission.span_id, first.span_id);
    assert_eq!(
        (hex(&admission.trace_id), hex(&admission.parent_span_id)),
        (TRACE.into(), PARENT.into())
    );
    fixture.begin().await;
    let path = "/api/v1/routes/r/messages/again-id";
    let (status, answer) = fixture
        .relay()
        .request("PATCH", path, None, r#"{ "delay": "10ms" }"#)
        .await
        .expect("an answer");
    assert_eq!(status, 200, "{answer}");
    fixture.arrived(&["again"]).await;
    let (linked, _) = collector.spans_of("again", 1).await;
    assert_eq!(linked.span_id, admission.span_id);
}
