//! Spans in OpenTelemetry's protocol, as one `ExportTraceServiceRequest`. The fields and their numbers are those of
//! `opentelemetry/proto/trace/v1/trace.proto`, which is stable.

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

/// Part of a message's way that a span tells, by OpenTelemetry's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanKind {
    Producer = 4,
    Consumer = 5,
}

/// Value of an attribute.
#[derive(Clone, Debug)]
pub(super) enum SpanValue {
    Text(String),
    Number(i64),
}

/// Number of a status that is an error.
const STATUS_ERROR: i32 = 2;
/// Flag of a span whose trace is recorded.
const SAMPLED_FLAG: u32 = 1;

#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<ProtoSpan>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "AnyKind", tags = "1, 3")]
    value: Option<AnyKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum AnyKind {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

#[derive(Clone, PartialEq, Message)]
struct ProtoSpan {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "13")]
    links: Vec<Link>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Link {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(fixed32, tag = "6")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// Body of an answer that is an error, by `google/rpc/status.proto`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(string, tag = "2")]
    message: String,
}

/// The number of spans that a collector rejected from a request which it took, and its words about them. An answer that
/// cannot be read rejects none.
pub(super) fn rejected_spans(answer: &[u8]) -> (u64, String) {
    let response = ExportResponse::decode(answer).unwrap_or_default();
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
    let scope = Scope {
        name: "postdate".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let scope_spans = ScopeSpans {
        scope: Some(scope),
        spans: spans.into_iter().map(proto_span).collect(),
    };
    let resource = Some(Resource {
        attributes: attributes.into(),
    });
    let resource_spans = ResourceSpans {
        resource,
        scope_spans: vec![scope_spans],
    };
    ExportRequest {
        resource_spans: vec![resource_spans],
    }
    .encode_to_vec()
}

fn proto_span(span: Span) -> ProtoSpan {
    let nanos = |us: i64| us.max(0).unsigned_abs().saturating_mul(1000);
    ProtoSpan {
        trace_id: span.context.trace.to_be_bytes().into(),
        span_id: span.context.span.to_be_bytes().into(),
        parent_span_id: span
            .parent
            .map(|id| id.to_be_bytes().into())
            .unwrap_or_default(),
        name: span.name,
        kind: span.kind as i32,
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
            code: STATUS_ERROR,
        }),
        flags: SAMPLED_FLAG,
    }
}

fn proto_link(link: SpanContext) -> Link {
    let trace_id = link.trace.to_be_bytes().into();
    Link {
        trace_id,
        span_id: link.span.to_be_bytes().into(),
        flags: SAMPLED_FLAG,
    }
}

fn key_value(key: &str, value: SpanValue) -> KeyValue {
    let value = match value {
        SpanValue::Text(text) => AnyKind::Text(text),
        SpanValue::Number(number) => AnyKind::Number(number),
    };
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
}

#[cfg(test)]
pub(super) mod testing {
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
        let partial_success = Some(PartialSuccess {
            rejected_spans,
            error_message: message.to_owned(),
        });
        ExportResponse { partial_success }.encode_to_vec()
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
