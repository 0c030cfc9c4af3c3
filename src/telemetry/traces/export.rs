//! The exporter: posts what was recorded to the collector, some spans at a time. A request that the collector does not
//! take is sent again for half a minute. A collector that is slow, away or refusing for longer loses spans, and nothing
//! else.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{info, warn};

use super::losses::{SpanLoss, SpanLosses};
use super::otlp;
use super::post::{CollectorClient, PostFailure, PostResult, TakenRequest};
use super::queue::{SpanBatch, SpanReceiver};
use crate::backoff::Backoff;

/// Longest time for which a span waits for others.
const GATHER_TIME: Duration = Duration::from_secs(1);
/// Time for which a request that the collector may still take is sent again. Also the longest `Retry-After` that is
/// honoured.
const RETRY_LIMIT: Duration = Duration::from_secs(30);

/// Longest time for the last requests once the process ends.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);
/// Part of the time for a shutdown that the last requests may take, less than the last stage of a drain has for itself: no
/// collector makes a drain late.
const FLUSH_SHARE: u32 = 20;

/// Sends spans to a collector.
#[derive(Debug)]
pub struct SpanExporter {
    transport: SpanTransport,
    replica: String,
    spans: SpanReceiver,
    losses: SpanLosses,
    /// Longest time for the last requests once the process ends.
    flush_limit: Duration,
    /// The request that is under way, or waits to be sent again.
    pending: Option<PendingRequest>,
    /// Earliest moment of the next try.
    next_try: Instant,
    /// Moment of the last try of any request, once the process ends.
    last_try: Option<Instant>,
    /// Failed tries in a row.
    failures: u32,
    /// The last request was given up.
    is_losing: bool,
    /// The collector rejected spans of the last request that it took.
    is_rejecting: bool,
}

/// Posts the body of a request.
pub(super) type PostRequest = dyn Fn(&[u8]) -> PostResult + Send + Sync;

/// Way to the collector.
#[derive(Clone)]
pub(super) struct SpanTransport {
    /// The collector's address, for the log.
    pub(super) endpoint: String,
    /// Posts a request. Blocks for a bounded time.
    pub(super) post: Arc<PostRequest>,
}

impl fmt::Debug for SpanTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpanTransport")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl SpanTransport {
    /// The way to a collector by HTTP.
    pub(super) fn http(endpoint: String, client: CollectorClient) -> Self {
        Self {
            endpoint,
            post: Arc::new(move |body| client.post(body)),
        }
    }
}

/// Spans on their way to the collector, in one request.
#[derive(Debug)]
struct PendingRequest {
    body: Bytes,
    spans: u64,
    /// Bytes that the spans took in the queue.
    bytes: usize,
    /// End of the tries. It is set by the first one.
    until: Option<Instant>,
    /// The try that is under way.
    attempt: Option<JoinHandle<PostResult>>,
}

impl SpanExporter {
    pub(super) fn new(
        transport: SpanTransport,
        replica: String,
        spans: SpanReceiver,
        losses: SpanLosses,
        shutdown_timeout: Duration,
    ) -> Self {
        Self {
            transport,
            replica,
            spans,
            losses,
            flush_limit: (shutdown_timeout / FLUSH_SHARE).min(FLUSH_LIMIT),
            pending: None,
            next_try: Instant::now(),
            last_try: None,
            failures: 0,
            is_losing: false,
            is_rejecting: false,
        }
    }

    /// Exports until `ends` resolves, and then what has been recorded until then, for a bounded time.
    pub async fn run(mut self, ends: impl Future<Output = ()>) {
        let mut batch = SpanBatch::default();
        tokio::select! {
            () = ends => {}
            () = self.export(&mut batch) => {}
        }
        self.spans.close();
        let now = Instant::now();
        // A try in the middle leaves the other half to its answer.
        self.last_try = Some(now + self.flush_limit / 2);
        if tokio::time::timeout_at(now + self.flush_limit, self.flush(&mut batch))
            .await
            .is_err()
        {
            let pending = self.pending.map_or(0, |pending| pending.spans);
            let lost = pending + batch.spans.len() as u64 + self.spans.len();
            self.losses.add(SpanLoss::Shutdown, lost);
            warn!(
                lost,
                "the collector of traces did not take the last spans in time"
            );
        }
    }

    /// Exports until nobody can record any more. What was gathered and not sent yet is in `batch`.
    async fn export(&mut self, batch: &mut SpanBatch) {
        while self.gather(batch).await {
            self.post(batch).await;
        }
    }

    /// Sends what is left: the request that is under way, what was gathered, what is queued.
    async fn flush(&mut self, batch: &mut SpanBatch) {
        self.finish_pending().await;
        self.post(batch).await;
        while self.spans.receive(batch).await {
            self.post(batch).await;
        }
    }

    /// Waits for the first span, and then for others, until there are enough for a request. Answers false if none will
    /// come.
    async fn gather(&mut self, batch: &mut SpanBatch) -> bool {
        if !self.spans.receive(batch).await {
            return false;
        }
        let mut gathered = std::pin::pin!(tokio::time::sleep(GATHER_TIME));
        while !batch.is_full() {
            tokio::select! {
                () = &mut gathered => break,
                came = self.spans.receive(batch) => if !came { break },
            }
        }
        true
    }

    /// Sends a batch, and empties it.
    async fn post(&mut self, batch: &mut SpanBatch) {
        if batch.spans.is_empty() {
            return;
        }
        let SpanBatch { spans, bytes } = std::mem::take(batch);
        let count = spans.len() as u64;
        let body = otlp::encode(&self.replica, spans).into();
        self.pending = Some(PendingRequest {
            body,
            spans: count,
            bytes,
            until: None,
            attempt: None,
        });
        self.finish_pending().await;
    }

    /// Tries the pending request until the collector has taken or refused it, or time runs out. Goes on where an earlier
    /// call was dropped.
    async fn finish_pending(&mut self) {
        while let Some(pending) = &mut self.pending {
            if pending.attempt.is_none() {
                let at = self
                    .last_try
                    .map_or(self.next_try, |last| last.min(self.next_try));
                tokio::time::sleep_until(at).await;
            }
            let until = *pending
                .until
                .get_or_insert_with(|| Instant::now() + RETRY_LIMIT);
            let until = self.last_try.map_or(until, |last| last.min(until));
            let attempt = pending.attempt.get_or_insert_with(|| {
                let post = self.transport.post.clone();
                let body = pending.body.clone();
                tokio::task::spawn_blocking(move || post(&body))
            });
            let posted = attempt
                .await
                .unwrap_or_else(|error| Err(PostFailure::Refused(error.to_string())));
            pending.attempt = None;
            match posted {
                Ok(taken) => self.taken(&taken),
                Err(PostFailure::Refused(error)) => self.give_up(SpanLoss::Refused, &error),
                Err(PostFailure::Passing {
                    cause,
                    error,
                    retry_after,
                }) => {
                    self.failed(&error, retry_after, until);
                    if Instant::now() >= until {
                        self.give_up(cause, &error);
                    }
                }
            }
        }
    }

    /// Notes that the collector took the pending request, but for the spans that it rejected.
    fn taken(&mut self, taken: &TakenRequest) {
        let Some(request) = self.pending.take() else {
            return;
        };
        self.spans.release(request.bytes);
        if self.failures > 0 || self.is_losing {
            info!("the collector of traces takes spans again");
        }
        self.failures = 0;
        self.is_losing = false;
        let TakenRequest { rejected, message } = taken;
        // A collector cannot reject more spans than it was sent.
        let rejected = (*rejected).min(request.spans);
        self.losses.add(SpanLoss::Rejected, rejected);
        if rejected > 0 && !self.is_rejecting {
            warn!(
                rejected,
                answer = message,
                "the collector of traces rejected some spans; they are lost"
            );
        }
        self.is_rejecting = rejected > 0;
    }

    /// Counts the spans of the pending request as lost. The first time in a row is logged.
    fn give_up(&mut self, cause: SpanLoss, error: &str) {
        let Some(request) = self.pending.take() else {
            return;
        };
        self.spans.release(request.bytes);
        self.losses.add(cause, request.spans);
        if !self.is_losing {
            let endpoint = &self.transport.endpoint;
            warn!(endpoint, cause = cause.as_str(), error, "spans are lost");
        }
        self.is_losing = true;
    }

    /// Notes that a try failed, and when the next one may be. The last back-off ends with the tries; a `Retry-After` is
    /// kept to beyond them. The first time in a row is logged.
    fn failed(&mut self, error: &str, retry_after: Option<Duration>, until: Instant) {
        if self.failures == 0 {
            let endpoint = &self.transport.endpoint;
            warn!(
                endpoint,
                error, "spans cannot be exported; what is not taken soon is lost"
            );
        }
        self.failures = self.failures.saturating_add(1);
        let now = Instant::now();
        let mut wait = Backoff::CLIENT.wait(self.failures);
        if now < until {
            wait = wait.min(until - now);
        }
        self.next_try = now + wait.max(retry_after.unwrap_or_default().min(RETRY_LIMIT));
    }
}

#[cfg(test)]
mod tests;
