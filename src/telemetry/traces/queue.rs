//! The queue of spans that wait for the exporter, bounded in bytes. A span keeps its bytes from its recording until the
//! collector has it, or until it is given up. A span that does not fit is lost: nobody waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::losses::{SpanLoss, SpanLosses};
use super::otlp::Span;

/// Bytes that all spans may take. A usual span has less than a kilobyte.
pub(super) const MAX_SPAN_BYTES: usize = 4 << 20;
/// Spans of one request at most.
pub(super) const MAX_BATCH_SPANS: usize = 512;
/// Bytes from which on a request is full.
pub(super) const MAX_BATCH_BYTES: usize = 512 << 10;
/// Places of the queue: more than spans can fit into their bytes.
const QUEUE_PLACES: usize = MAX_SPAN_BYTES / size_of::<Span>();

/// The end of the queue that records.
#[derive(Debug)]
pub(super) struct SpanQueue {
    spans: mpsc::Sender<Span>,
    bytes: Arc<AtomicUsize>,
    losses: SpanLosses,
}

/// The end of the queue that exports.
#[derive(Debug)]
pub(super) struct SpanReceiver {
    spans: mpsc::Receiver<Span>,
    bytes: Arc<AtomicUsize>,
}

/// Spans of one request.
#[derive(Debug, Default)]
pub(super) struct SpanBatch {
    pub(super) spans: Vec<Span>,
    /// Bytes of the spans in memory.
    pub(super) bytes: usize,
}

/// Makes a queue. `losses` counts the spans that do not fit.
pub(super) fn span_queue(losses: SpanLosses) -> (SpanQueue, SpanReceiver) {
    let (sender, receiver) = mpsc::channel(QUEUE_PLACES);
    let bytes = Arc::<AtomicUsize>::default();
    (
        SpanQueue {
            spans: sender,
            bytes: bytes.clone(),
            losses,
        },
        SpanReceiver {
            spans: receiver,
            bytes,
        },
    )
}

impl SpanQueue {
    /// Queues a span, or counts it as lost if the exporter does not keep up.
    pub(super) fn record(&self, span: Span) {
        let size = span.size();
        let taken = self.bytes.fetch_add(size, Ordering::Relaxed) + size;
        let loss = if taken > MAX_SPAN_BYTES {
            SpanLoss::QueueFull
        } else {
            match self.spans.try_send(span) {
                Ok(()) => return,
                Err(TrySendError::Full(_)) => SpanLoss::QueueFull,
                Err(TrySendError::Closed(_)) => SpanLoss::Shutdown,
            }
        };
        self.bytes.fetch_sub(size, Ordering::Relaxed);
        self.losses.add(loss, 1);
    }
}

impl SpanReceiver {
    /// Waits for a span, and moves it and those behind it to the batch until it is full. Answers false if none will come.
    /// Cancel-safe.
    pub(super) async fn receive(&mut self, batch: &mut SpanBatch) -> bool {
        let Some(span) = self.spans.recv().await else {
            return false;
        };
        batch.push(span);
        while !batch.is_full()
            && let Ok(span) = self.spans.try_recv()
        {
            batch.push(span);
        }
        true
    }

    /// Frees the bytes of spans that are exported or given up.
    pub(super) fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Refuses further spans. The waiting ones can still be received.
    pub(super) fn close(&mut self) {
        self.spans.close();
    }

    /// The number of spans that wait.
    pub(super) fn len(&self) -> u64 {
        self.spans.len() as u64
    }
}

impl SpanBatch {
    pub(super) fn is_full(&self) -> bool {
        self.spans.len() >= MAX_BATCH_SPANS || self.bytes >= MAX_BATCH_BYTES
    }

    fn push(&mut self, span: Span) {
        self.bytes += span.size();
        self.spans.push(span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::traces::testing::span;

    #[tokio::test]
    async fn what_exceeds_the_bytes_is_lost_and_counted_until_bytes_are_released() {
        let losses = SpanLosses::default();
        let (queue, mut receiver) = span_queue(losses.clone());
        let quarter = span(MAX_SPAN_BYTES / 4);
        for _ in 0..5 {
            queue.record(quarter.clone());
        }
        assert_eq!(
            losses.count(SpanLoss::QueueFull),
            2,
            "three fit, with what else a span takes"
        );
        queue.record(span(1));
        assert_eq!(receiver.len(), 4, "a small one still fits");

        let mut batch = SpanBatch::default();
        assert!(receiver.receive(&mut batch).await);
        queue.record(quarter.clone());
        assert_eq!(
            losses.count(SpanLoss::QueueFull),
            3,
            "what is being exported still has its bytes"
        );
        receiver.release(batch.bytes);
        queue.record(quarter);
        assert_eq!(losses.count(SpanLoss::QueueFull), 3);

        receiver.close();
        queue.record(span(1));
        assert_eq!(losses.count(SpanLoss::Shutdown), 1);
        let mut rest = SpanBatch::default();
        while receiver.receive(&mut rest).await {}
        receiver.release(rest.bytes);
        assert_eq!(
            receiver.bytes.load(Ordering::Relaxed),
            0,
            "every byte is accounted for"
        );
    }

    #[tokio::test]
    async fn small_spans_fill_the_bytes_too_and_a_batch_ends_by_number_or_by_bytes() {
        let losses = SpanLosses::default();
        let (queue, mut receiver) = span_queue(losses.clone());
        let fit = MAX_SPAN_BYTES / span(1).size();
        for _ in 0..=fit {
            queue.record(span(1));
        }
        assert_eq!(
            (receiver.len(), losses.count(SpanLoss::QueueFull)),
            (fit as u64, 1)
        );
        let mut batch = SpanBatch::default();
        assert!(receiver.receive(&mut batch).await);
        assert_eq!(batch.spans.len(), MAX_BATCH_SPANS);
        assert_eq!(batch.bytes, MAX_BATCH_SPANS * span(1).size());

        let (queue, mut receiver) = span_queue(losses);
        for _ in 0..4 {
            queue.record(span(MAX_BATCH_BYTES / 2));
        }
        let mut batch = SpanBatch::default();
        assert!(receiver.receive(&mut batch).await);
        assert_eq!(batch.spans.len(), 2);
    }
}
