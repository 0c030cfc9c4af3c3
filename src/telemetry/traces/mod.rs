//! Traces: a span where a delayed message is admitted, and one for each delivery that is tried, sent to a collector by
//! OpenTelemetry's protocol (OTLP). Only messages whose `traceparent` says that their producer records the trace have
//! spans; all others cost a look at their headers.
//!
//! The span of admission belongs to the producer's trace, and ends when the message is safe. A delivery, which may be a
//! month later, belongs to a trace of its own, linked to the span of admission: no trace stays open for a month. The id of
//! that trace follows from the span of admission, which names it too, so each is found from the other. The message
//! carries its context in its headers, through the store and all replicas.

mod context;
mod export;
mod losses;
mod otlp;
mod post;
mod queue;

use std::sync::Arc;
use std::time::Duration;

pub use self::context::{SpanContext, TRACEPARENT, is_context_header};
pub use self::export::SpanExporter;
use self::export::SpanTransport;
pub use self::losses::{SpanLoss, SpanLosses};
#[cfg(test)]
use self::otlp::testing;
use self::otlp::{Span, SpanKind, SpanValue};
use self::post::CollectorClient;
use self::queue::{SpanQueue, span_queue};
use super::config::Collector;
use crate::domain::{Clock, Endpoint, Entry, Message, Route, RoutingKey, Target, Text, UnixMs};

/// Operation of an admission, by OpenTelemetry's conventions.
const PROCESS_OPERATION: &str = "process";
/// Operation of a delivery, by OpenTelemetry's conventions.
const SEND_OPERATION: &str = "send";
/// Name of RabbitMQ's default exchange in OpenTelemetry's conventions.
const DEFAULT_EXCHANGE: &str = "amq.default";
/// Characters of an error that a span keeps.
const MAX_ERROR_CHARS: usize = 200;

/// Records spans, or nothing where traces are off. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<TraceQueue>>);

/// The queue to the exporter, and the clock.
#[derive(Debug)]
struct TraceQueue {
    spans: SpanQueue,
    clock: Clock,
}

/// Span of a message's admission, until the message is safe.
#[derive(Debug)]
pub struct AdmissionSpan {
    queue: Arc<TraceQueue>,
    route: Arc<Route>,
    context: SpanContext,
    /// The producer's span.
    parent: u64,
    due: UnixMs,
    begun_us: i64,
}

/// Span of one message's delivery, before its verdict.
#[derive(Debug)]
pub struct DeliverySpan {
    /// Index of the message in its batch.
    index: u32,
    admission: SpanContext,
    context: SpanContext,
    admitted_at: Option<UnixMs>,
    /// The value of the delivered message's `traceparent`.
    traceparent: Text,
}

/// Facts about a delivery that its span tells.
#[derive(Clone, Debug)]
pub struct DeliveryFacts<'a> {
    /// The route of the message.
    pub route: &'a Route,
    /// The target that it was published to.
    pub target: &'a Target,
    /// The message's `x-delay-id`.
    pub id: &'a str,
    /// The due time that was asked for.
    pub due: UnixMs,
    /// The number of the attempt, from 1 on.
    pub attempt: u32,
    /// Time between the hand-over to the client library and the verdict, microseconds.
    pub took_us: i64,
    /// The moment of the verdict, Unix microseconds.
    pub ended_us: i64,
    /// Reason and sentence of a failure.
    pub failure: Option<(&'static str, Text)>,
}

impl Tracer {
    /// A tracer, and the exporter that sends what it records. The last spans have a small share of `shutdown_timeout`.
    /// Fails if the authorities of the collector's TLS cannot be read.
    pub fn new(
        collector: Collector,
        replica: &str,
        clock: Clock,
        losses: &SpanLosses,
        shutdown_timeout: Duration,
    ) -> Result<(Self, SpanExporter), String> {
        let endpoint = collector.endpoint.clone();
        let transport = SpanTransport::http(endpoint, CollectorClient::new(collector, clock)?);
        let (spans, queued) = span_queue(losses.clone());
        let exporter = SpanExporter::new(
            transport,
            replica.to_owned(),
            queued,
            losses.clone(),
            shutdown_timeout,
        );
        Ok((Self(Some(Arc::new(TraceQueue { spans, clock }))), exporter))
    }

    /// Begins the span of a message's admission, and puts its context into the message. `None` if traces are off, or
    /// if the producer does not record the message's trace.
    pub fn admit(
        &self,
        route: &Arc<Route>,
        message: &mut Message,
        due: UnixMs,
    ) -> Option<Box<AdmissionSpan>> {
        let queue = self.0.as_ref()?;
        let producer = SpanContext::of(message)?;
        let context = SpanContext::new_in(producer.trace);
        let begun_us = queue.clock.wall_us();
        context.replace_in(message);
        context::note_admission(message, unix_ms(begun_us));
        let parent = producer.span;
        Some(Box::new(AdmissionSpan {
            queue: queue.clone(),
            route: route.clone(),
            context,
            parent,
            due,
            begun_us,
        }))
    }

    /// Begins the spans of the deliveries of a batch: of those messages whose trace is recorded.
    pub fn deliver(&self, entries: &[Entry]) -> Vec<DeliverySpan> {
        if self.0.is_none() {
            return Vec::new();
        }
        let mut spans = Vec::new();
        for (index, entry) in (0..).zip(entries) {
            let Some(admission) = SpanContext::of(&entry.message) else {
                continue;
            };
            let context = SpanContext::new_in(admission.delivery_trace());
            let traceparent = Text::from(context.to_string());
            let admitted_at = context::admission(&entry.message);
            spans.push(DeliverySpan {
                index,
                admission,
                context,
                admitted_at,
                traceparent,
            });
        }
        spans
    }

    /// Records how a delivery ended.
    pub fn delivered(&self, span: &DeliverySpan, facts: &DeliveryFacts<'_>) {
        let Some(queue) = &self.0 else { return };
        let destination = destination_of(facts.target);
        let system = match facts.target {
            Target::Kafka { .. } => "kafka",
            Target::Rabbitmq { .. } => "rabbitmq",
        };
        let late_ms = facts.ended_us.div_euclid(1000) - facts.due.0;
        let mut attributes = vec![
            text("messaging.system", system),
            text("messaging.operation.name", SEND_OPERATION),
            text("messaging.operation.type", SEND_OPERATION),
            text("messaging.destination.name", &destination),
            text("messaging.message.id", facts.id),
            text("postdate.route", facts.route.name.as_str()),
            ("postdate.due_unix_ms", SpanValue::Number(facts.due.0)),
            ("postdate.lateness_ms", SpanValue::Number(late_ms)),
            ("postdate.attempt", SpanValue::Number(facts.attempt.into())),
        ];
        if let Target::Rabbitmq {
            routing_key: RoutingKey::Fixed(key),
            ..
        } = facts.target
        {
            attributes.push(text("messaging.rabbitmq.destination.routing_key", key));
        }
        if let Some(admitted_at) = span.admitted_at {
            attributes.push((
                "postdate.delay_ms",
                SpanValue::Number(facts.due.since(admitted_at)),
            ));
        }
        let mut error = None;
        if let Some((reason, sentence)) = &facts.failure {
            attributes.push(text("error.type", reason));
            error = Some(sentence.as_str().chars().take(MAX_ERROR_CHARS).collect());
        }
        queue.spans.record(Span {
            name: format!("{SEND_OPERATION} {destination}"),
            kind: SpanKind::Producer,
            context: span.context,
            parent: None,
            link: Some(span.admission),
            begun_us: facts.ended_us - facts.took_us.max(0),
            ended_us: facts.ended_us,
            attributes,
            error,
        });
    }
}

impl AdmissionSpan {
    /// Ends the span: its message is safe, or `error` says why not.
    pub fn end(self, error: Option<&str>) {
        let Self {
            queue,
            route,
            context,
            parent,
            due,
            begun_us,
        } = self;
        let (system, source) = match &route.from {
            // The route is the view of one topic.
            Endpoint::Kafka { topics, .. } => ("kafka", topics.to_string()),
            Endpoint::Rabbitmq { queue, .. } => ("rabbitmq", queue.clone()),
        };
        let mut attributes = vec![
            text("messaging.system", system),
            text("messaging.operation.name", PROCESS_OPERATION),
            text("messaging.operation.type", PROCESS_OPERATION),
            text("messaging.destination.name", &source),
            text("postdate.route", route.name.as_str()),
            ("postdate.due_unix_ms", SpanValue::Number(due.0)),
            (
                "postdate.delay_ms",
                SpanValue::Number(due.since(unix_ms(begun_us))),
            ),
            text(
                "postdate.delivery.trace_id",
                &trace_text(context.delivery_trace()),
            ),
        ];
        if let Endpoint::Kafka { group, .. } = &route.from {
            attributes.push(text("messaging.consumer.group.name", group));
        }
        queue.spans.record(Span {
            name: format!("{PROCESS_OPERATION} {source}"),
            kind: SpanKind::Consumer,
            context,
            parent: Some(parent),
            link: None,
            begun_us,
            ended_us: queue.clock.wall_us(),
            attributes,
            error: error.map(str::to_owned),
        });
    }
}

impl DeliverySpan {
    /// The span of a message, among those of its batch.
    pub fn of(spans: &[Self], index: u32) -> Option<&Self> {
        let at = spans.binary_search_by_key(&index, |span| span.index).ok()?;
        spans.get(at)
    }

    /// The value of the delivered message's `traceparent`.
    pub fn traceparent(&self) -> &Text {
        &self.traceparent
    }

    /// The id of the delivery's trace, as exemplars name it.
    pub fn trace_id(&self) -> String {
        trace_text(self.context.trace)
    }
}

/// The name of a target by OpenTelemetry's conventions: the topic; of RabbitMQ exchange and routing key, as far as the
/// target has them.
fn destination_of(target: &Target) -> String {
    match target {
        Target::Kafka { topic, .. } => topic.clone(),
        Target::Rabbitmq {
            exchange,
            routing_key: RoutingKey::Fixed(key),
            ..
        } => match (exchange.as_str(), key.as_str()) {
            ("", "") => DEFAULT_EXCHANGE.to_owned(),
            ("", only) | (only, "") => only.to_owned(),
            (exchange, key) => format!("{exchange}:{key}"),
        },
        Target::Rabbitmq { exchange, .. } if exchange.is_empty() => DEFAULT_EXCHANGE.to_owned(),
        Target::Rabbitmq { exchange, .. } => exchange.clone(),
    }
}

fn text(name: &'static str, value: &str) -> (&'static str, SpanValue) {
    (name, SpanValue::Text(value.to_owned()))
}

fn trace_text(trace: u128) -> String {
    format!("{trace:032x}")
}

fn unix_ms(us: i64) -> UnixMs {
    UnixMs(us.div_euclid(1000))
}
