//! A collector of traces, as the relay sees it, and spans by OpenTelemetry's own types.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::net::TcpListener;

use crate::support::eventually;

/// Value of the header `authorization` that the collector wants.
const AUTHORIZATION: &str = "Bearer of-the-collector";
/// Seconds for which each answer asks to be left alone. They count where it is retryable.
const RETRY_AFTER: &str = "1";

/// A collector's endpoint, with the spans that it took.
#[derive(Clone, Default)]
pub(super) struct Collector {
    pub(super) spans: Arc<Mutex<Vec<Span>>>,
    /// `service.instance.id` of each span, by the span's id.
    instances: Arc<Mutex<BTreeMap<Vec<u8>, String>>>,
    /// Answer to each request, whose spans are not taken; `None`: they are.
    answer: Arc<Mutex<Option<Answer>>>,
    /// Moments of the requests.
    requests: Arc<Mutex<Vec<Instant>>>,
}

type Answer = (StatusCode, Vec<u8>);
/// An answer with the wait that it asks for, in seconds.
type WaitAnswer = (StatusCode, [(&'static str, &'static str); 1], Vec<u8>);

impl Collector {
    /// Listens on a free port. Returns its URL.
    pub(super) async fn listen(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/v1/traces", listener.local_addr().expect("bound"));
        self.serve(listener);
        url
    }

    pub(super) fn serve(&self, listener: TcpListener) {
        let app = axum::Router::new()
            .route("/v1/traces", post(take))
            .with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
    }

    /// Answers each request from now on so, and takes no spans. Waits for `requests` of them.
    pub(super) async fn refuse(&self, status: StatusCode, body: Vec<u8>, requests: usize) {
        *self.answer.lock().expect("the answer") = Some((status, body));
        let before = self.requests().len();
        eventually("requests to the collector", async || {
            let asked = self.requests().len() - before;
            if asked >= requests {
                Ok(())
            } else {
                Err(format!("{asked} of {requests}"))
            }
        })
        .await;
    }

    /// Takes spans again.
    pub(super) fn accept(&self) {
        *self.answer.lock().expect("the answer") = None;
    }

    pub(super) fn requests(&self) -> Vec<Instant> {
        self.requests.lock().expect("requests").clone()
    }

    /// The replica or replay that sent a span.
    pub(super) fn instance_of(&self, span: &Span) -> String {
        self.instances.lock().expect("instances")[&span.span_id].clone()
    }

    /// Waits for the span of an admission on a route, from an instance whose name has this end.
    pub(super) async fn admission_on(&self, route: &str, instance_end: &str) -> Span {
        eventually("the span of an admission", async || {
            let spans = self.spans.lock().expect("spans").clone();
            let is_it = |span: &&Span| {
                text(span, "messaging.operation.type") == "process"
                    && text(span, "postdate.route") == route
                    && self.instance_of(span).ends_with(instance_end)
            };
            spans.iter().find(is_it).cloned().ok_or("none")
        })
        .await
    }

    /// Waits for spans of a message: of its admission, and of so many deliveries.
    pub(super) async fn spans_of(&self, case: &str, deliveries: usize) -> (Span, Vec<Span>) {
        let id = format!("{case}-id");
        let what = format!("the spans of {case}");
        let found = eventually(&what, async || {
            let spans = self.spans.lock().expect("spans");
            let sent: Vec<Span> = spans
                .iter()
                .filter(|span| text(span, "messaging.message.id") == id)
                .cloned()
                .collect();
            let link = sent
                .first()
                .and_then(|span| span.links.first())
                .cloned()
                .ok_or("no delivery")?;
            let admission = spans
                .iter()
                .find(|span| span.span_id == link.span_id)
                .ok_or("no admission")?;
            if sent.len() == deliveries {
                Ok((admission.clone(), sent))
            } else {
                Err("fewer deliveries")
            }
        });
        found.await
    }
}

async fn take(State(collector): State<Collector>, headers: HeaderMap, body: Bytes) -> WaitAnswer {
    let (status, body) = answer(&collector, &headers, body);
    (status, [("retry-after", RETRY_AFTER)], body)
}

fn answer(collector: &Collector, headers: &HeaderMap, body: Bytes) -> Answer {
    let is_protobuf = headers
        .get("content-type")
        .is_some_and(|value| value == "application/x-protobuf");
    let is_known = headers
        .get("authorization")
        .is_some_and(|value| value == AUTHORIZATION);
    if !is_protobuf || !is_known {
        return (StatusCode::BAD_REQUEST, Vec::new());
    }
    let Ok(request) = ExportTraceServiceRequest::decode(body) else {
        return (StatusCode::BAD_REQUEST, Vec::new());
    };
    collector
        .requests
        .lock()
        .expect("requests")
        .push(Instant::now());
    if let Some(answer) = collector.answer.lock().expect("the answer").clone() {
        return answer;
    }
    for resource_spans in request.resource_spans {
        let resource = resource_spans.resource.expect("a resource");
        let names = resource
            .attributes
            .iter()
            .map(|attribute| attribute.key.as_str());
        assert_eq!(
            names.collect::<Vec<_>>(),
            ["service.name", "service.version", "service.instance.id"]
        );
        let instance = resource.attributes[2]
            .value
            .clone()
            .and_then(|value| value.value);
        let Some(Value::StringValue(instance)) = instance else {
            panic!("no instance")
        };
        let spans = resource_spans
            .scope_spans
            .into_iter()
            .flat_map(|scope| scope.spans);
        for span in spans {
            collector
                .instances
                .lock()
                .expect("instances")
                .insert(span.span_id.clone(), instance.clone());
            collector.spans.lock().expect("spans").push(span);
        }
    }
    (
        StatusCode::OK,
        ExportTraceServiceResponse {
            partial_success: None,
        }
        .encode_to_vec(),
    )
}

fn attributes(span: &Span) -> BTreeMap<String, Value> {
    let value = |attribute: &opentelemetry_proto::tonic::common::v1::KeyValue| {
        Some((attribute.key.clone(), attribute.value.clone()?.value?))
    };
    span.attributes.iter().filter_map(value).collect()
}

pub(super) fn text(span: &Span, name: &str) -> String {
    match attributes(span).get(name) {
        Some(Value::StringValue(text)) => text.clone(),
        _ => String::new(),
    }
}

pub(super) fn number(span: &Span, name: &str) -> i64 {
    match attributes(span).get(name) {
        Some(Value::IntValue(number)) => *number,
        other => panic!("{name} is {other:?}"),
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut all, byte| {
        write!(all, "{byte:02x}").expect("a string");
        all
    })
}

/// The section of a collector at this address.
pub(super) fn section(endpoint: &str) -> String {
    format!("[traces]\nendpoint = \"{endpoint}\"\nauthorization = \"{AUTHORIZATION}\"")
}
