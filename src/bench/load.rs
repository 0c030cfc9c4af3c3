//! The messages of a run: sent at random moments by a plan that waits for nobody. A due time is that of the plan,
//! so a stall of the sender or of the broker shows in every message that it holds up.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use super::tally::{MARK, Mark};
use super::types::{KEY, Request};
use crate::domain::{
    Clock, Entry, Header, HeaderValue, Message, Origin, Properties, RoutingKey, Target, Text, UnixMs, Verdict,
};
use crate::egress::{Lane, Publication, VerdictInbox};

/// Messages that are handed over at once.
const BATCH: usize = 500;
/// Messages that may be without their broker's word; sending waits above, and falls behind its plan.
const UNCONFIRMED: u64 = 20_000;
/// How often it is looked whether there is room again.
const ROOM_US: i64 = 1_000;
/// A message that has not left its lane by then is not sent.
const PATIENCE_US: i64 = 30_000_000;
/// Random bytes that bodies are cut from, beyond the length of one.
const NOISE: usize = 64 * 1024;

/// How the sending stands.
#[derive(Default)]
pub(super) struct Sent {
    /// Messages handed over.
    pub(super) all: AtomicU64,
    /// Of these those that the broker has.
    pub(super) confirmed: AtomicU64,
    /// Those that it has not, or not surely.
    pub(super) failed: AtomicU64,
    /// The first reason.
    pub(super) why: Mutex<Option<String>>,
    /// How far it was behind at most, microseconds.
    pub(super) behind_us: AtomicI64,
    /// The latest due time, Unix ms.
    pub(super) last_due: AtomicI64,
}

impl Sent {
    pub(super) fn sent(&self) -> u64 {
        self.all.load(Ordering::Acquire)
    }

    /// Messages of which nothing has been heard yet.
    pub(super) fn open(&self) -> u64 {
        let heard = self.confirmed.load(Ordering::Acquire) + self.failed.load(Ordering::Acquire);
        self.sent().saturating_sub(heard)
    }

    /// Takes the broker's word, for as long as there may be one.
    pub(super) async fn hear(&self, verdicts: &VerdictInbox) {
        loop {
            for (_, verdict) in verdicts.take().await {
                let why = match verdict {
                    Verdict::Confirmed => {
                        self.confirmed.fetch_add(1, Ordering::AcqRel);
                        continue;
                    }
                    Verdict::Refused { reason, error } => format!("{}: {error}", reason.as_str()),
                    Verdict::Unknown { error } => error.to_string(),
                    Verdict::NotTried => "the broker did not take it in time".to_owned(),
                };
                self.why.lock().get_or_insert(why);
                self.failed.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}

/// When messages are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Microseconds between two on average.
    pub(super) gap_us: f64,
    /// For how long, microseconds.
    pub(super) length_us: i64,
    /// Each is due so many ms later, at least and at most.
    pub(super) delay_ms: (i64, i64),
}

/// Makes and sends the messages of one run.
pub(super) struct Sender {
    run: String,
    clock: Clock,
    lane: Arc<dyn Lane>,
    target: Arc<Target>,
    verdicts: Arc<VerdictInbox>,
    sent: Arc<Sent>,
    origin: Origin,
    deliver_at: Text,
    /// The key of each record, if it must be the same.
    key: Option<Bytes>,
    noise: Bytes,
    size: usize,
}

impl Sender {
    pub(super) fn new(
        request: &Request,
        run: &str,
        clock: Clock,
        lane: Arc<dyn Lane>,
        (verdicts, sent): (&Arc<VerdictInbox>, &Arc<Sent>),
    ) -> Self {
        let routes_by_key =
            matches!(&*request.route.to, Target::Rabbitmq { routing_key: RoutingKey::Key, .. });
        let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(request.size + NOISE).collect();
        Self {
            run: run.to_owned(),
            clock,
            lane,
            target: Arc::new(request.route.ingress_target()),
            verdicts: verdicts.clone(),
            sent: sent.clone(),
            origin: request.origin(),
            deliver_at: request.route.policy.headers.deliver_at.as_str().into(),
            key: routes_by_key.then(|| Bytes::from_static(KEY.as_bytes())),
            noise: noise.into(),
            size: request.size,
        }
    }

    /// Sends what the plan says, from now on. Cancel-safe: what is handed over is counted.
    pub(super) async fn run(&self, plan: Plan) {
        let begin_us = self.clock.mono_us();
        // Fixed for the run: a clock that is stepped meanwhile ends it.
        let wall_us = self.clock.wall_us() - begin_us;
        // Random moments, as those of many producers that know nothing of each other.
        let gap_us = || -(1.0 - fastrand::f64()).ln() * plan.gap_us;
        let is_over = |at_us: f64| at_us as i64 - begin_us >= plan.length_us;
        let mut next_us = begin_us as f64 + gap_us();
        while !is_over(next_us) {
            self.until(next_us as i64).await;
            let now_us = self.clock.mono_us();
            self.sent.behind_us.fetch_max(now_us - next_us as i64, Ordering::AcqRel);
            let (first, mut batch) = (self.sent.sent(), Vec::new());
            while batch.len() < BATCH && next_us as i64 <= now_us && !is_over(next_us) {
                let delay = fastrand::i64(plan.delay_ms.0..=plan.delay_ms.1);
                let due = UnixMs((wall_us + next_us as i64).div_euclid(1000) + 1 + delay);
                batch.push(self.publication(first + batch.len() as u64, due, now_us));
                next_us += gap_us();
            }
            self.sent.all.fetch_add(batch.len() as u64, Ordering::AcqRel);
            self.lane.submit_all(batch);
        }
    }

    /// Waits for a moment, and until the broker has room.
    async fn until(&self, at_us: i64) {
        let mut at_us = at_us;
        loop {
            tokio::time::sleep(self.clock.until(at_us)).await;
            if self.sent.open() < UNCONFIRMED {
                return;
            }
            at_us = self.clock.mono_us() + ROOM_US;
        }
    }

    fn publication(&self, number: u64, due: UnixMs, now_us: i64) -> Publication {
        self.sent.last_due.fetch_max(due.0, Ordering::AcqRel);
        let text = |text: String| match self.origin {
            Origin::Kafka => HeaderValue::Bytes(text.into()),
            Origin::Rabbitmq => HeaderValue::LongString(text.into()),
        };
        let mark = Mark { run: &self.run, number, due };
        let from = fastrand::usize(..NOISE);
        let random_key = || format!("{:08x}", fastrand::u32(..)).into();
        let message = Message {
            origin: self.origin,
            key: match self.origin {
                Origin::Kafka => Some(self.key.clone().unwrap_or_else(random_key)),
                Origin::Rabbitmq => Some(Bytes::new()),
            },
            body: Some(self.noise.slice(from..from + self.size)),
            headers: vec![
                Header::new(self.deliver_at.clone(), text(due.0.to_string())),
                Header::new(MARK, text(mark.text())),
            ],
            properties: (self.origin == Origin::Rabbitmq)
                .then(|| Box::new(Properties { delivery_mode: Some(2), ..Properties::default() })),
        };
        let entry = Entry::new(due, message);
        Publication::alone(entry, self.target.clone(), number, &self.verdicts, now_us + PATIENCE_US)
    }
}
