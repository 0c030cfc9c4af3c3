//! Load of a run: messages sent at random moments, by a plan that waits for nobody. Due times are those of the plan, so a
//! stall of the sender or of the broker shows in the lateness of every message that it delays.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use super::tally::{MARK_HEADER, MessageMark};
use super::types::{BenchRequest, RECORD_KEY};
use crate::domain::{
    Clock, Entry, Header, HeaderValue, Message, Origin, Properties, RoutingKey, Target, Text,
    UnixMs, Verdict,
};
use crate::egress::{Lane, Publication, VerdictInbox};

/// Most messages submitted to the lane at once.
const SUBMIT_BATCH: usize = 500;
/// Most messages without a verdict. At this number sending waits, and falls behind its plan.
const MAX_UNCONFIRMED: u64 = 20_000;
/// Time between two checks whether sending may go on, microseconds.
const RECHECK_US: i64 = 1_000;
/// Time for a message to leave its lane, microseconds. After that it is not sent.
const SUBMIT_TIMEOUT_US: i64 = 30_000_000;
/// Length of the random bytes that bodies are cut from, beyond the length of one body.
const NOISE_BYTES: usize = 64 * 1024;

/// Counts of the messages sent.
#[derive(Default)]
pub(super) struct SendCounts {
    /// Messages submitted to the lane.
    pub(super) all: AtomicU64,
    /// Messages that the broker has confirmed.
    pub(super) confirmed: AtomicU64,
    /// Messages that the broker has not taken, or not surely.
    pub(super) failed: AtomicU64,
    /// Reason of the first failure.
    pub(super) why: Mutex<Option<String>>,
    /// Greatest delay behind the plan, microseconds.
    pub(super) behind_us: AtomicI64,
    /// The latest due time, Unix ms.
    pub(super) last_due: AtomicI64,
}

impl SendCounts {
    /// The number of messages submitted.
    pub(super) fn sent(&self) -> u64 {
        self.all.load(Ordering::Acquire)
    }

    /// The number of messages without a verdict yet.
    pub(super) fn open(&self) -> u64 {
        let heard = self.confirmed.load(Ordering::Acquire) + self.failed.load(Ordering::Acquire);
        self.sent().saturating_sub(heard)
    }

    /// Takes verdicts and counts them. It never returns.
    pub(super) async fn hear(&self, verdicts: &VerdictInbox) {
        loop {
            for (_, verdict) in verdicts.take().await {
                let why = match verdict {
                    Verdict::Confirmed(_) => {
                        self.confirmed.fetch_add(1, Ordering::AcqRel);
                        continue;
                    }
                    Verdict::Refused { reason, error } => format!("{}: {error}", reason.as_str()),
                    Verdict::Unknown { error } | Verdict::Interrupted { error } => {
                        error.to_string()
                    }
                    Verdict::NotTried | Verdict::Expired => {
                        "the broker did not take it in time".to_owned()
                    }
                };
                self.why.lock().get_or_insert(why);
                self.failed.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}

/// Plan of the sending.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendPlan {
    /// Average time between two messages, microseconds.
    pub(super) gap_us: f64,
    /// Length of the sending, microseconds.
    pub(super) length_us: i64,
    /// Least and greatest delay of a message, ms.
    pub(super) delay_ms: (i64, i64),
}

/// Makes and sends the messages of one run.
pub(super) struct BenchSender {
    run: String,
    clock: Clock,
    lane: Arc<dyn Lane>,
    target: Arc<Target>,
    verdicts: Arc<VerdictInbox>,
    sent: Arc<SendCounts>,
    origin: Origin,
    deliver_at: Text,
    /// Key of each record, where all must have the same.
    key: Option<Bytes>,
    noise: Bytes,
    size: usize,
}

impl BenchSender {
    pub(super) fn new(
        request: &BenchRequest,
        run: &str,
        clock: Clock,
        (lane, target): (Arc<dyn Lane>, Arc<Target>),
        verdicts: &Arc<VerdictInbox>,
        sent: &Arc<SendCounts>,
    ) -> Self {
        let routes_by_key = matches!(
            &*request.route.to,
            Target::Rabbitmq {
                routing_key: RoutingKey::Key,
                ..
            }
        );
        let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
            .take(request.size + NOISE_BYTES)
            .collect();
        Self {
            run: run.to_owned(),
            clock,
            lane,
            target,
            verdicts: verdicts.clone(),
            sent: sent.clone(),
            origin: request.origin(),
            deliver_at: request.route.policy.headers.deliver_at.as_str().into(),
            key: routes_by_key.then(|| Bytes::from_static(RECORD_KEY.as_bytes())),
            noise: noise.into(),
            size: request.size,
        }
    }

    /// Sends messages by the plan, from now on. Cancel-safe: every submitted message is counted.
    pub(super) async fn run(&self, plan: SendPlan) {
        let begin_us = self.clock.mono_us();
        // The offset is fixed for the run: a step of the clock meanwhile ends the run.
        let wall_us = self.clock.wall_us() - begin_us;
        // Gaps are exponential, as those of many producers that know nothing of each other.
        let gap_us = || -(1.0 - fastrand::f64()).ln() * plan.gap_us;
        let is_over = |at_us: f64| at_us as i64 - begin_us >= plan.length_us;
        let mut next_us = begin_us as f64 + gap_us();
        while !is_over(next_us) {
            self.until(next_us as i64).await;
            let now_us = self.clock.mono_us();
            self.sent
                .behind_us
                .fetch_max(now_us - next_us as i64, Ordering::AcqRel);
            let first = self.sent.sent();
            let mut batch = Vec::new();
            while batch.len() < SUBMIT_BATCH && next_us as i64 <= now_us && !is_over(next_us) {
                let delay = fastrand::i64(plan.delay_ms.0..=plan.delay_ms.1);
                let due = UnixMs((wall_us + next_us as i64).div_euclid(1000) + 1 + delay);
                batch.push(self.publication(first + batch.len() as u64, due, now_us));
                next_us += gap_us();
            }
            self.sent
                .all
                .fetch_add(batch.len() as u64, Ordering::AcqRel);
            self.lane.submit_all(batch);
        }
    }

    /// Waits for a moment, and then until fewer than [`MAX_UNCONFIRMED`] messages are without a verdict.
    async fn until(&self, at_us: i64) {
        let mut at_us = at_us;
        loop {
            tokio::time::sleep(self.clock.until(at_us)).await;
            if self.sent.open() < MAX_UNCONFIRMED {
                return;
            }
            at_us = self.clock.mono_us() + RECHECK_US;
        }
    }

    fn publication(&self, number: u64, due: UnixMs, now_us: i64) -> Publication {
        self.sent.last_due.fetch_max(due.0, Ordering::AcqRel);
        let text = |text: String| match self.origin {
            Origin::Kafka => HeaderValue::Bytes(text.into()),
            Origin::Rabbitmq => HeaderValue::LongString(text.into()),
        };
        let mark = MessageMark {
            run: &self.run,
            number,
            due,
        };
        let from = fastrand::usize(..NOISE_BYTES);
        let message = Message {
            origin: self.origin,
            key: match self.origin {
                Origin::Kafka => Some(match &self.key {
                    Some(key) => key.clone(),
                    None => format!("{:08x}", fastrand::u32(..)).into(),
                }),
                Origin::Rabbitmq => Some(Bytes::new()),
            },
            body: Some(self.noise.slice(from..from + self.size)),
            headers: vec![
                Header::new(self.deliver_at.clone(), text(due.0.to_string())),
                Header::new(MARK_HEADER, text(mark.text())),
            ],
            properties: (self.origin == Origin::Rabbitmq).then(|| {
                Box::new(Properties {
                    delivery_mode: Some(2),
                    ..Properties::default()
                })
            }),
        };
        let entry = Entry::new(due, message);
        Publication::alone(
            entry,
            self.target.clone(),
            number,
            &self.verdicts,
            now_us + SUBMIT_TIMEOUT_US,
        )
    }
}
