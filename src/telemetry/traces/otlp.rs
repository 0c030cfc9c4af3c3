//! Spans in OpenTelemetry's protocol, as one `ExportTraceServiceRequest`.

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{self, Link};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{self as proto, ResourceSpans, ScopeSpans, Status};
use prost::Message;

use super::SpanContext;

/// A span as it is recorded.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) name: String,
    pub(super) kind: SpanKind,
    pub(super) context: SpanContext,
    /// Id of the span in the same trace that caused this one.
    pub(super) parent: Option<u64>,
    /// Span of another trace that caused this one.
    pub(super) link: Option<SpanContext>,
    pub(super) begun_us: i64,
    pub(super) ended_us: i64,
    pub(super) attributes: Vec<(&'static str, SpanValue)>,
    /// Sentence on what failed.
    pub(super) error: Option<String>,
}

impl Span {
    /// Bytes that the span takes in memory. Its encoding takes no more.
    pub(super) fn size(&self) -> usize {
        let text = |value: &SpanValue| {
            if let SpanValue::Text(text) = value {
                text.capacity()
            } else {
                0
            }
        };
        let attributes = self.attributes.capacity() * size_of::<(&str, SpanValue)>();
        let values = self
            .attributes
            .iter()
            .map(|(_, value)| text(value))
            .sum::<usize>();
        let error = self.error.as_ref().map_or(0, String::capacity);
        size_of::<Self>() + self.name.capacity() + attributes + values + error
    }
}

/// Part of a message's way that a span tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanKind {
    Producer,
    Consumer,
}

/// Value of an attribute.
#[derive(Clone, Debug)]
pub(super) enum SpanValue {
    Text(String),
    Number(i64),
}

/// Flag of a span whose trace is recorded.
const SAMPLED_FLAG: u32 = 1;

/// Body of an answer that is an error, by `google/rpc/status.proto`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(string, tag = "2")]
    message: String,
}

/// The number of spans that a collector rejected from a request which it took, and its words about them. An answer that
/// cannot be read rejects none.
pub(super) fn rejected_spans(answer: &[u8]) -> (u64, String) {
    let response = ExportTraceServiceResponse::decode(answer).unwrap_or_default();
    let partial = response.partial_success.unwrap_or_default();
    (
        partial.rejected_spans.max(0).unsigned_abs(),
        partial.error_message,
    )
}

/// The words of an answer that is an error; empty if it has none.
pub(super) fn status_message(answer: &[u8]) -> String {
    RpcStatus::decode(answer).unwrap_or_default().message
}

/// Encodes spans of a replica.
pub(super) fn encode(replica: &str, spans: Vec<Span>) -> Vec<u8> {
    let of_resource = [
        ("service.name", "postdate"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", replica),
    ];
    let attributes =
        of_resource.map(|(key, text)| key_value(key, SpanValue::Text(text.to_owned())));
    let scope = InstrumentationScope {
        name: "postdate".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_spans = ScopeSpans {
        scope: Some(scope),
        spans: spans.into_iter().map(proto_span).collect(),
        ..ScopeSpans::default()
    };
    let resource = Resource {
        attributes: attributes.into(),
        ..Resource::default()
    };
    let resource_spans = ResourceSpans {
        resource: Some(resource),
        scope_spans: vec![scope_spans],
        ..ResourceSpans::default()
    };
    ExportTraceServiceRequest {
        resource_spans: vec![resource_spans],
    }
    .encode_to_vec()
}

fn proto_span(span: Span) -> proto::Span {
    let nanos = |us: i64| us.max(0).unsigned_abs().saturating_mul(1000);
    proto::Span {
        trace_id: span.context.trace.to_be_bytes().into(),
        span_id: span.context.span.to_be_bytes().into(),
        parent_span_id: span
            .parent
            .map(|id| id.to_be_bytes().into())
            .unwrap_or_default(),
        name: span.name,
        kind: match span.kind {
            SpanKind::Producer => span::SpanKind::Producer,
            SpanKind::Consumer => span::SpanKind::Consumer,
        }
        .into(),
        start_time_unix_nano: nanos(span.begun_us),
        end_time_unix_nano: nanos(span.ended_us.max(span.begun_us)),
        attributes: span
            .attributes
            .into_iter()
            .map(|(key, value)| key_value(key, value))
            .collect(),
        links: span.link.into_iter().map(proto_link).collect(),
        status: span.error.map(|message| Status {
            message,
            code: StatusCode::Error.into(),
        }),
        flags: SAMPLED_FLAG,
        ..proto::Span::default()
    }
}

fn proto_link(link: SpanContext) -> Link {
    let trace_id = link.trace.to_be_bytes().into();
    Link {
        trace_id,
        span_id: link.span.to_be_bytes().into(),
        flags: SAMPLED_FLAG,
        ..Link::default()
    }
}

fn key_value(key: &str, value: SpanValue) -> KeyValue {
    let value = match value {
        SpanValue::Text(text) => Value::StringValue(text),
        SpanValue::Number(number) => Value::IntValue(number),
    };
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

#[cfg(test)]
pub(super) mod testing {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;

    use super::*;

    /// A span with a name of so many bytes, and nothing else.
    pub(in crate::telemetry::traces) fn span(name_bytes: usize) -> Span {
        Span {
            name: "n".repeat(name_bytes),
            kind: SpanKind::Producer,
            context: SpanContext {
                trace: u128::MAX,
                span: u64::MAX,
            },
            parent: None,
            link: None,
            begun_us: 0,
            ended_us: 0,
            attributes: Vec::new(),
            error: None,
        }
    }

    /// An answer that rejects some spans.
    pub(in crate::telemetry::traces) fn partial_success(
        rejected_spans: i64,
        message: &str,
    ) -> Vec<u8> {
        let partial_success = Some(ExportTracePartialSuccess {
            rejected_spans,
            error_message: message.to_owned(),
        });
        ExportTraceServiceResponse { partial_success }.encode_to_vec()
    }

    /// An answer that is an error.
    pub(in crate::telemetry::traces) fn status(message: &str) -> Vec<u8> {
        RpcStatus {
            message: message.to_owned(),
        }
        .encode_to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::span;
    use super::*;

    #[test]
    fn the_encoding_of_a_span_takes_no_more_bytes_than_the_span() {
        let empty = encode("", Vec::new()).len();
        let numbers = (0..12).map(|_| ("postdate.delivery.trace_id", SpanValue::Number(-1)));
        let texts = (0..12).map(|_| {
            (
                "messaging.consumer.group.name",
                SpanValue::Text(String::new()),
            )
        });
        let long = (0..12).map(|n| ("messaging.system", SpanValue::Text("x".repeat(n * 100))));
        let full = Span {
            parent: Some(u64::MAX),
            link: Some(SpanContext {
                trace: u128::MAX,
                span: u64::MAX,
            }),
            begun_us: i64::MAX,
            ended_us: i64::MAX,
            error: Some("e".repeat(800)),
            ..span(516)
        };
        for attributes in [
            Vec::new(),
            numbers.collect(),
            texts.collect(),
            long.collect(),
        ] {
            for template in [span(0), full.clone()] {
                let span = Span {
                    attributes: attributes.clone(),
                    ..template
                };
                let size = span.size();
                let encoded = encode("", vec![span.clone()]).len() - empty;
                assert!(encoded <= size, "{encoded} > {size}: {span:?}");
            }
        }
    }
}
