//! Traces of delayed messages, as a collector gets them: by OpenTelemetry's own types.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message as _;

use crate::flow::fixture::{FlowFixture, Path, Side, config};
use crate::flow::wire::{CASE, Wire};
use crate::support::run::now_ms;
use crate::support::{Relay, eventually};

/// Time by which messages are delayed.
const DELAY_MS: i64 = 1200;
/// Lateness of a message beside a collector that is in trouble, at most.
const LATE_MS: i64 = 1000;
/// Value of the header `authorization` that the collector wants.
const AUTHORIZATION: &str = "Bearer of-the-collector";
/// Trace and span of the producer.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A collector's endpoint, with the spans that it was sent.
#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
}

impl Collector {
    /// Listens on a free port. Returns its URL.
    async fn listen(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/v1/traces", listener.local_addr().expect("bound"));
        let app = axum::Router::new().route("/v1/traces", post(take)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        url
    }

    /// Waits for spans of a message: of its admission, and of so many deliveries.
    async fn spans_of(&self, case: &str, deliveries: usize) -> (Span, Vec<Span>) {
        let id = format!("{case}-id");
        let what = format!("the spans of {case}");
        let found = eventually(&what, async || {
            let spans = self.spans.lock().expect("spans");
            let sent: Vec<Span> =
                spans.iter().filter(|span| text(span, "messaging.message.id") == id).cloned().collect();
            let link = sent.first().and_then(|span| span.links.first()).cloned().ok_or("no delivery")?;
            let admission = spans.iter().find(|span| span.span_id == link.span_id).ok_or("no admission")?;
            if sent.len() == deliveries { Ok((admission.clone(), sent)) } else { Err("fewer deliveries") }
        });
        found.await
    }
}

async fn take(State(collector): State<Collector>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let is_protobuf = headers.get("content-type").is_some_and(|value| value == "application/x-protobuf");
    let is_known = headers.get("authorization").is_some_and(|value| value == AUTHORIZATION);
    if !is_protobuf || !is_known {
        return StatusCode::BAD_REQUEST;
    }
    let Ok(request) = ExportTraceServiceRequest::decode(body) else { return StatusCode::BAD_REQUEST };
    for resource_spans in request.resource_spans {
        let resource = resource_spans.resource.expect("a resource");
        let names = resource.attributes.iter().map(|attribute| attribute.key.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["service.name", "service.version", "service.instance.id"]);
        let spans = resource_spans.scope_spans.into_iter().flat_map(|scope| scope.spans);
        collector.spans.lock().expect("spans").extend(spans);
    }
    StatusCode::OK
}

fn attributes(span: &Span) -> BTreeMap<String, Value> {
    let value = |attribute: &opentelemetry_proto::tonic::common::v1::KeyValue| {
        Some((attribute.key.clone(), attribute.value.clone()?.value?))
    };
    span.attributes.iter().filter_map(value).collect()
}

fn text(span: &Span, name: &str) -> String {
    match attributes(span).get(name) {
        Some(Value::StringValue(text)) => text.clone(),
        _ => String::new(),
    }
}

fn number(span: &Span, name: &str) -> i64 {
    match attributes(span).get(name) {
        Some(Value::IntValue(number)) => *number,
        other => panic!("{name} is {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut all, byte| {
        write!(all, "{byte:02x}").expect("a string");
        all
    })
}

/// A delayed message of a producer that records its trace, or does not.
fn delayed(from: Side, case: &str, flags: &str) -> Wire {
    from.plain(case, "key", b"body")
        .header("x-delay", &format!("{DELAY_MS}ms"))
        .header("x-delay-id", &format!("{case}-id"))
        .header("traceparent", &format!("00-{TRACE}-{PARENT}-{flags}"))
        .header("tracestate", "vendor=1")
}

/// The headers of a message that arrived, as text.
fn headers(wire: &Wire) -> BTreeMap<String, String> {
    match wire {
        Wire::Kafka(record) => {
            let text = |value: &Option<Vec<u8>>| {
                String::from_utf8_lossy(value.as_deref().unwrap_or_default()).into()
            };
            record.headers.iter().map(|(name, value)| (name.clone(), text(value))).collect()
        }
        Wire::Amqp(amqp) => {
            let text = |value: &lapin::types::AMQPValue| match value {
                lapin::types::AMQPValue::LongString(text) => text.to_string(),
                other => format!("{other:?}"),
            };
            amqp.headers.inner().iter().map(|(name, value)| (name.to_string(), text(value))).collect()
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
    let asked = number(admission, "postdate.delay_ms");
    assert!((DELAY_MS - 1000..=DELAY_MS + 5).contains(&asked), "{asked}");
    let of_delivery = text(admission, "postdate.delivery.trace_id");
    for (attempt, delivery) in (1..).zip(deliveries) {
        assert_eq!(delivery.kind(), SpanKind::Producer);
        assert_eq!(hex(&delivery.trace_id), of_delivery, "a trace of its own, which the admission names");
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
    assert!(state.starts_with("postdate=") && state.ends_with(",vendor=1"), "{state}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_trace_goes_on_through_the_delay_and_any_other_passes_unchanged() {
    let fixture = FlowFixture::new().await;
    let paths = [
        ("k-k", Side::Kafka, Side::Kafka),
        ("c-k", Side::Classic, Side::Kafka),
        ("q-c", Side::Quorum, Side::Classic),
    ]
    .map(|(route, from, to)| Path::new(route, from, to));
    fixture.open(&paths).await;
    let late = Path::new("retried", Side::Classic, Side::Classic);
    fixture.make(late.from, &late.ingress).await;
    let collector = Collector::default();
    let section =
        format!("[traces]\nendpoint = \"{}\"\nauthorization = \"{AUTHORIZATION}\"", collector.listen().await);
    let config =
        paths.iter().fold(config(&fixture).section(&section), |config, path| path.configure(config, ""));
    let retry = r#"retry = { attempts = 20, initial = "1500ms", max = "1500ms" }"#;
    let relay = Relay::start(&late.configure(config, retry)).await;

    fixture.send(&late, &[(delayed(late.from, "retried", "01"), now_ms())]).await;
    for path in &paths {
        let recorded = delayed(path.from, &path.route, "01");
        let other = delayed(path.from, &format!("{}-other", path.route), "00");
        fixture.send(path, &[(recorded, now_ms()), (other, now_ms())]).await;
    }
    let cases: Vec<String> =
        paths.iter().flat_map(|path| [path.route.clone(), format!("{}-other", path.route)]).collect();
    fixture.await_cases(&cases).await;
    for path in &paths {
        let arrived = fixture.arrived();
        let received = &arrived[&path.route][0];
        let received_headers = headers(&received.wire);
        let due_ms = received.wire.clone().take_stamp().0.due_ms.expect("stamped");
        let spans = collector.spans_of(&path.route, 1).await;
        check(path, &received_headers, &spans, due_ms);
        let others = headers(&arrived[&format!("{}-other", path.route)][0].wire);
        assert_eq!(others["traceparent"], format!("00-{TRACE}-{PARENT}-00"));
        assert_eq!(others["tracestate"], "vendor=1");
        assert!(!others.contains_key(CASE) || others[CASE].ends_with("-other"));
    }

    eventually("a delivery has failed", async || {
        let spans = collector.spans.lock().expect("spans");
        let failed = spans.iter().any(|span| text(span, "messaging.message.id") == "retried-id");
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
    check(&late, &headers(&received.wire), &spans, stamp.due_ms.expect("stamped"));
    let failed = &spans.1[0];
    assert_eq!(text(failed, "error.type"), "unknown_target");
    let admitted = number(&spans.0, "postdate.due_unix_ms");
    assert_eq!(number(failed, "postdate.due_unix_ms"), admitted, "the moment that was asked for");
    let (_, metrics) = relay.get("/metrics").await.expect("metrics");
    let lateness = metrics.lines().filter(|line| line.starts_with("postdate_lateness_seconds_bucket"));
    let of_delivery = text(&spans.0, "postdate.delivery.trace_id");
    assert!(
        lateness.into_iter().any(|line| line.contains(&format!("# {{trace_id=\"{of_delivery}\"}}"))),
        "an exemplar"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_in_trouble_loses_spans_and_delays_nothing() {
    let fixture = FlowFixture::new().await;
    let path = Path::new("traced", Side::Classic, Side::Kafka);
    fixture.open(std::slice::from_ref(&path)).await;
    // Takes connections, and says nothing.
    let hung = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = hung.local_addr().expect("bound");
    let section = format!("[traces]\nendpoint = \"http://{address}/v1/traces\"\ntimeout = \"500ms\"");
    let mut relay = Relay::start(&path.configure(config(&fixture).section(&section), "")).await;
    let cases: Vec<String> = (0..20).map(|n| format!("message-{n}")).collect();
    for case in &cases {
        fixture.send(&path, &[(delayed(path.from, case, "01"), now_ms())]).await;
    }
    fixture.await_cases(&cases).await;
    let arrived = fixture.arrived();
    for case in &cases {
        let arrival = arrived[case][0].clone();
        let due_ms = arrival.wire.take_stamp().0.due_ms.expect("stamped");
        assert!(
            arrival.received_ms - due_ms < LATE_MS,
            "{case} came {} ms late",
            arrival.received_ms - due_ms
        );
    }
    eventually("lost spans are counted", async || {
        let lost = relay.metrics().await?.sum("postdate_spans_lost_total", &[]);
        if lost >= 1.0 { Ok(()) } else { Err(anyhow::anyhow!("{lost} lost")) }
    })
    .await;
    assert!(relay.log().contains("spans cannot be exported; they are lost"));
    let began = std::time::Instant::now();
    let ended = relay.terminate().await;
    assert!(ended.success() || ended.code() == Some(143), "{ended:?}");
    assert!(began.elapsed() < Duration::from_secs(10), "it took {:?}", began.elapsed());
}
