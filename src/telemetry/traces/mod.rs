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
mod otlp;

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

pub use self::context::{SpanContext, TRACEPARENT};
pub use self::export::SpanExporter;
use self::otlp::{Span, SpanKind, SpanValue};
use super::config::Collector;
use crate::domain::{Clock, Endpoint, Entry, Message, Route, Target, Text, UnixMs};

/// Spans that may wait for the exporter. Each takes a kilobyte or two.
const MAX_QUEUED: usize = 4096;
/// Characters of an error that a span keeps.
const MAX_ERROR_CHARS: usize = 200;

/// Records spans, or nothing where traces are off. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<TraceQueue>>);

/// The queue to the exporter.
#[derive(Debug)]
struct TraceQueue {
    spans: mpsc::Sender<Span>,
    clock: Clock,
    /// Spans that were not exported.
    lost: Counter,
}

/// Span of a message's admission, until the message is safe.
#[derive(Debug)]
pub struct AdmissionSpan {
    queue: Arc<TraceQueue>,
    span: Span,
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
    /// A tracer, and the exporter that sends what it records.
    /// Fails if the authorities of the collector's TLS cannot be read.
    pub fn new(
        collector: Collector,
        replica: &str,
        clock: Clock,
        lost: Counter,
    ) -> Result<(Self, SpanExporter), String> {
        let (spans, queued) = mpsc::channel(MAX_QUEUED);
        let exporter = SpanExporter::new(collector, replica.to_owned(), queued, lost.clone())?;
        Ok((Self(Some(Arc::new(TraceQueue { spans, clock, lost }))), exporter))
    }

    /// Begins the span of a message's admission, and puts its context into the message. `None` if traces are off, or
    /// if the producer does not record the message's trace.
    pub fn admit(&self, route: &Route, message: &mut Message, due: UnixMs) -> Option<Box<AdmissionSpan>> {
        let queue = self.0.as_ref()?;
        let producer = SpanContext::of(message)?;
        let context = SpanContext::new_in(producer.trace);
        let now_us = queue.clock.wall_us();
        let now = UnixMs(now_us.div_euclid(1000));
        context.replace_in(message);
        context::note_admission(message, now);
        let (system, source) = match &route.from {
            Endpoint::Kafka { topic, .. } => ("kafka", topic),
            Endpoint::Rabbitmq { queue, .. } => ("rabbitmq", queue),
        };
        let attributes = vec![
            ("messaging.system", SpanValue::Text(system.to_owned())),
            ("messaging.operation.type", SpanValue::Text("receive".to_owned())),
            ("messaging.destination.name", SpanValue::Text(source.clone())),
            ("postdate.route", SpanValue::Text(route.name.to_string())),
            ("postdate.due_unix_ms", SpanValue::Number(due.0)),
            ("postdate.delay_ms", SpanValue::Number(due.since(now))),
            ("postdate.delivery.trace_id", SpanValue::Text(format!("{:032x}", context.delivery_trace()))),
        ];
        let span = Span {
            name: format!("receive {source}"),
            kind: SpanKind::Consumer,
            context,
            parent: Some(producer.span),
            link: None,
            begun_us: now_us,
            ended_us: now_us,
            attributes,
            error: None,
        };
        Some(Box::new(AdmissionSpan { queue: queue.clone(), span }))
    }

    /// Begins the spans of the deliveries of a batch: of those messages whose trace is recorded.
    pub fn deliver(&self, entries: &[Entry]) -> Vec<DeliverySpan> {
        if self.0.is_none() {
            return Vec::new();
        }
        let begin = |(index, entry): (u32, &Entry)| {
            let admission = SpanContext::of(&entry.message)?;
            let context = SpanContext::new_in(admission.delivery_trace());
            let traceparent = Text::from(context.to_string());
            let admitted_at = context::admission(&entry.message);
            Some(DeliverySpan { index, admission, context, admitted_at, traceparent })
        };
        (0..).zip(entries).filter_map(begin).collect()
    }

    /// Records how a delivery ended.
    pub fn delivered(&self, span: &DeliverySpan, facts: &DeliveryFacts<'_>) {
        let Some(queue) = &self.0 else { return };
        let name = facts.target.name();
        let system = match facts.target {
            Target::Kafka { .. } => "kafka",
            Target::Rabbitmq { .. } => "rabbitmq",
        };
        let late_ms = facts.ended_us.div_euclid(1000) - facts.due.0;
        let mut attributes = vec![
            ("messaging.system", SpanValue::Text(system.to_owned())),
            ("messaging.operation.type", SpanValue::Text("send".to_owned())),
            ("messaging.destination.name", SpanValue::Text(name.clone())),
            ("messaging.message.id", SpanValue::Text(facts.id.to_owned())),
            ("postdate.route", SpanValue::Text(facts.route.name.to_string())),
            ("postdate.due_unix_ms", SpanValue::Number(facts.due.0)),
            ("postdate.lateness_ms", SpanValue::Number(late_ms)),
            ("postdate.attempt", SpanValue::Number(facts.attempt.into())),
        ];
        if let Some(admitted_at) = span.admitted_at {
            attributes.push(("postdate.delay_ms", SpanValue::Number(facts.due.since(admitted_at))));
        }
        let mut error = None;
        if let Some((reason, sentence)) = &facts.failure {
            attributes.push(("error.type", SpanValue::Text((*reason).to_owned())));
            error = Some(sentence.as_str().chars().take(MAX_ERROR_CHARS).collect());
        }
        queue.record(Span {
            name: format!("send {name}"),
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

impl TraceQueue {
    /// Queues a span, or counts it as lost if the exporter does not keep up.
    fn record(&self, span: Span) {
        if self.spans.try_send(span).is_err() {
            self.lost.inc();
        }
    }
}

impl AdmissionSpan {
    /// Ends the span: its message is safe, or `error` says why not.
    pub fn end(mut self, error: Option<&str>) {
        self.span.ended_us = self.queue.clock.wall_us();
        self.span.error = error.map(str::to_owned);
        self.queue.record(self.span);
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
        format!("{:032x}", self.context.trace)
    }
}
