//! Publishing: what is told of each publish, and what becomes of a message whose publish failed.
//!
//! Three ways lead to the lanes of [`crate::egress`]: the timer publishes due messages, and ingress publishes messages
//! that are due on arrival and messages that pass through. Each keeps an account of what it handed over. The meaning of
//! an end for metrics, the target's health, traces, the trail, followers and the log is the same for all, and is told
//! here.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::warn;

use crate::domain::failure_policy::{
    self, DropReason, FailedMessage, FailedPublish, FailureDecision, PublishFlow,
};
use crate::domain::route::OnUnroutable;
use crate::domain::{
    DeadReason, Entry, InvalidReason, KafkaPosition, MonoUs, Route, RouteName, StoreClock, Target,
    Text, UnixMs, Verdict, dying_message, retry,
};
use crate::egress::{PublishBatch, SendListener};
use crate::health::{ActivityKind, Health};
use crate::store::{DeadLetter, DeadLetterQuota, Delivered, RouteTrail, Store};
use crate::telemetry::{
    BurstLog, DeliveryFacts, DeliverySpan, FollowRegistry, MessageEnd, Metrics, RouteMetrics,
    Tracer,
};

/// The reporters of the routes of this process.
#[derive(Default)]
pub struct Reporters(BTreeMap<RouteName, Arc<RouteReporter>>);

/// Everybody who is told of publishes.
pub struct Listeners<'a> {
    /// Its trails receive the ends of messages.
    pub store: &'a Store,
    /// The metrics of the process.
    pub metrics: &'a Metrics,
    /// Told how well targets take publishes.
    pub health: &'a Health,
    /// Told how followed messages end.
    pub watch: &'a Arc<FollowRegistry>,
    /// Logs possible repeats and failures, in bursts.
    pub bursts: &'a Arc<BurstLog>,
    /// Records deliveries.
    pub tracer: &'a Tracer,
    /// The dead-letter quota of each route.
    pub quota: &'a Arc<DeadLetterQuota>,
}

/// Tells what happens to the publishes of one route.
pub struct RouteReporter {
    route: Arc<Route>,
    metrics: Arc<RouteMetrics>,
    health: Health,
    /// `None`: the route has no trail.
    trail: Option<Arc<RouteTrail>>,
    watch: Arc<FollowRegistry>,
    bursts: Arc<BurstLog>,
    tracer: Tracer,
    quota: Arc<DeadLetterQuota>,
}

/// A message that was handed to its lane.
#[derive(Clone, Copy)]
pub struct HandedOver<'a> {
    /// The batch that has the message.
    pub batch: &'a PublishBatch,
    /// Index of the message in the batch.
    pub index: u32,
    /// The way of the message.
    pub flow: PublishFlow,
    /// The moment at which it was handed over.
    pub handed: MonoUs,
}

/// The moment at which verdicts were taken.
#[derive(Clone, Copy, Debug)]
pub struct VerdictTime {
    /// Microseconds by Redis's clock; `None` while that is not known.
    pub store_us: Option<i64>,
    /// By the monotonic clock.
    pub mono: MonoUs,
}

/// What becomes of a message whose publish failed.
#[derive(Debug)]
pub enum Fate {
    /// The store keeps the message until its new due time.
    Again(Entry),
    /// The message is published again at this moment, and its source waits.
    Wait(Entry, UnixMs),
    /// The store keeps the message until `dead_letter_to` has confirmed it; then it is a dead letter.
    Dying(Entry),
    /// The message is a dead letter.
    Dead(Entry, DeadReason),
    /// Nothing is kept of the message.
    Dropped(DroppedMessage),
}

/// A message of which nothing is kept.
#[derive(Debug)]
pub struct DroppedMessage {
    reason: DropReason,
    /// Why its publish failed: a word, and the exact error.
    failure: (&'static str, Text),
    at: UnixMs,
    id: Option<Text>,
    /// The due time that its producer asked for.
    due: Option<UnixMs>,
}

impl Reporters {
    /// The reporters of these routes.
    pub fn new(routes: &[Arc<Route>], listeners: &Listeners<'_>) -> Self {
        let mut reporters = BTreeMap::new();
        for route in routes {
            let Some(metrics) = listeners.metrics.route(&route.name) else {
                continue;
            };
            let reporter = RouteReporter {
                route: route.clone(),
                metrics: metrics.clone(),
                health: listeners.health.clone(),
                trail: listeners.store.trail(&route.name).cloned(),
                watch: listeners.watch.clone(),
                bursts: listeners.bursts.clone(),
                tracer: listeners.tracer.clone(),
                quota: listeners.quota.clone(),
            };
            reporters.insert(route.name.clone(), Arc::new(reporter));
        }
        Self(reporters)
    }

    /// The reporter of a route. `None` if this process does not serve the route.
    pub fn of(&self, route: &RouteName) -> Option<&Arc<RouteReporter>> {
        self.0.get(route)
    }
}

impl VerdictTime {
    /// Now.
    pub fn now(clock: &StoreClock) -> Self {
        Self {
            store_us: clock.now_us(),
            mono: clock.local().mono(),
        }
    }
}

impl RouteReporter {
    /// A reporter that only counts, for `benches/`.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn counting(
        route: Arc<Route>,
        metrics: Arc<RouteMetrics>,
        clock: crate::domain::Clock,
    ) -> Self {
        let quota = DeadLetterQuota::new(std::slice::from_ref(&route));
        Self {
            route,
            metrics,
            health: Health::default(),
            trail: None,
            watch: Arc::default(),
            bursts: Arc::new(BurstLog::new(clock)),
            tracer: Tracer::default(),
            quota,
        }
    }

    /// The route of the publishes.
    pub fn route(&self) -> &Arc<Route> {
        &self.route
    }

    /// The metrics of the route.
    pub fn metrics(&self) -> &Arc<RouteMetrics> {
        &self.metrics
    }

    /// What is known of the health of the process.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The trail of the route, if it has one.
    pub fn trail(&self) -> Option<&Arc<RouteTrail>> {
        self.trail.as_ref()
    }

    /// Begins the spans of messages whose traces are recorded.
    pub fn spans(&self, entries: &[Entry]) -> Vec<DeliverySpan> {
        self.tracer.deliver(entries)
    }

    /// Takes this many bytes of the route's dead-letter quota. Returns whether they were there.
    pub fn take_quota(&self, bytes: usize) -> bool {
        self.quota.take(&self.route.name, bytes)
    }

    /// Tells the verdict on a message.
    pub fn heard(&self, message: HandedOver<'_>, verdict: &Verdict, at: VerdictTime) {
        if *verdict == Verdict::NotTried {
            return;
        }
        self.end_span(message, verdict, at);
        if *verdict == Verdict::Expired {
            return;
        }
        let target = &message.batch.target;
        let Verdict::Confirmed(landed) = *verdict else {
            let (reason, error) = retry::describe(verdict);
            self.metrics.publish_failure(reason);
            self.health.activity().note(ActivityKind::Failed);
            if !self.is_expected(message, verdict) {
                self.health
                    .targets()
                    .failed(target, at.mono.0, reason, &error);
            }
            return;
        };
        self.health.targets().confirmed(target, at.mono.0);
        self.metrics
            .confirm
            .observe(message.took_us(at) as f64 / 1e6);
        match message.flow {
            PublishFlow::Delayed => self.delivered(message, landed, at),
            // Told once the store has the message as a dead letter.
            PublishFlow::Dying => {}
            PublishFlow::Passing { .. } => {
                self.metrics.passed_through.inc();
            }
        }
    }

    /// Reports whether the route expects that nobody wants some of its messages: no trouble of the target.
    fn is_expected(&self, message: HandedOver<'_>, verdict: &Verdict) -> bool {
        self.route.policy.on_unroutable != OnUnroutable::Retry
            && message.flow == PublishFlow::Delayed
            && failure_policy::is_unwanted(message.entry(), verdict)
    }

    /// Tells that a delayed message has arrived.
    fn delivered(&self, message: HandedOver<'_>, landed: Option<KafkaPosition>, at: VerdictTime) {
        let entry = message.entry();
        let due = entry.asked_due();
        let due_us = due.0 * 1000;
        let now_us = at.store_us.unwrap_or(due_us);
        self.metrics.published.inc();
        self.health.activity().delivered(now_us - due_us);
        if let Some(id) = message.batch.ids.get(message.index as usize) {
            self.watch
                .report(&self.route.name, id.as_str(), || MessageEnd::Published {
                    published_at: UnixMs(now_us / 1000),
                    due,
                    lateness_ms: (now_us - due_us) as f64 / 1e3,
                    attempt: message.attempt(),
                });
            if let Some(trail) = &self.trail {
                trail.delivered(
                    id.as_str(),
                    UnixMs(now_us / 1000),
                    &Delivered {
                        late_ms: (now_us - due_us) / 1000,
                        attempt: message.attempt(),
                        target: &message.batch.target,
                        landed,
                    },
                );
            }
        }
        let span = DeliverySpan::of(&message.batch.spans, message.index);
        self.metrics
            .delivered_late(now_us - due_us, span.map(DeliverySpan::trace_id));
    }

    /// Ends the span of a message's delivery, if its trace is recorded.
    fn end_span(&self, message: HandedOver<'_>, verdict: &Verdict, at: VerdictTime) {
        let Some(span) = DeliverySpan::of(&message.batch.spans, message.index) else {
            return;
        };
        let due = message.entry().asked_due();
        let facts = DeliveryFacts {
            route: &self.route,
            target: &message.batch.target,
            id: message.batch.ids[message.index as usize].as_str(),
            due,
            attempt: message.attempt(),
            took_us: message.took_us(at),
            ended_us: at.store_us.unwrap_or(due.0 * 1000),
            failure: (!verdict.is_confirmed()).then(|| retry::describe(verdict)),
        };
        self.tracer.delivered(span, &facts);
    }

    /// Tells that a passing message leaves its queue for the store: the queue has delivered it, or one behind it, so often
    /// that it may drop it.
    pub fn leaves_queue(&self) {
        let what = "a passing message leaves its queue, which has delivered it often and may drop it; it is stored";
        let name = &self.route.name;
        self.bursts
            .note(what, name, "delivered_often", "its queue counts deliveries");
    }

    /// Decides what becomes of a message whose publish to `target` failed, and logs it. Counts come once the store has heard of
    /// it, or is about to: by [`put_back`](Self::put_back), [`died`](Self::died) and [`dropped`](Self::dropped).
    pub fn fate(&self, failed: FailedPublish<'_>, target: &Target, at: MonoUs) -> Fate {
        let FailedMessage {
            mut entry,
            decision,
            is_full,
        } = failure_policy::decide(failed, &self.route, |bytes| self.take_quota(bytes));
        let FailedPublish {
            verdict, flow, now, ..
        } = failed;
        let (word, error) = retry::describe(verdict);
        let note = |what, word| self.bursts.note(what, &self.route.name, word, &error);
        if let Some(reason) = is_full {
            note(failure_policy::QUOTA_FULL, reason.as_str());
        }
        match decision {
            FailureDecision::WaitUntil(until) => {
                self.will_retry(verdict, target, until.since(now), at);
                Fate::Wait(entry, until)
            }
            FailureDecision::RetryAt(due) => {
                if let Some(what) = goes_to_store(flow) {
                    note(what, word);
                }
                self.will_retry(verdict, target, due.since(now), at);
                if due != entry.due {
                    entry.asked.get_or_insert(entry.due);
                    entry.due = due;
                }
                Fate::Again(entry)
            }
            FailureDecision::DeadLetterVia(reason) => {
                if flow.is_passing() {
                    note("a passing message became a dead letter", reason.as_str());
                }
                dying_message::begin(&mut entry, now, reason);
                Fate::Dying(entry)
            }
            FailureDecision::DeadLetter(reason) => {
                if flow.is_passing() {
                    note("a passing message became a dead letter", reason.as_str());
                } else if flow == PublishFlow::Dying {
                    // The target can never take it. The store keeps it as a dead letter, so nothing is lost.
                    warn!(route = %self.route.name, reason = word, %error, "dead_letter_to can never take a dead letter");
                }
                Fate::Dead(entry, reason)
            }
            FailureDecision::Drop(reason) => {
                let due = entry.requested_due();
                let id = entry.id;
                Fate::Dropped(DroppedMessage {
                    reason,
                    failure: (word, error),
                    at: now,
                    id,
                    due,
                })
            }
        }
    }

    /// Tells the target's health when a failed message is published again.
    fn will_retry(&self, verdict: &Verdict, target: &Target, wait_ms: i64, at: MonoUs) {
        if *verdict != Verdict::NotTried {
            self.health
                .targets()
                .tried_again(target, at.0 + wait_ms * 1000);
        }
    }

    /// Tells that so many messages are in the store until they are published again.
    pub fn put_back(&self, messages: u64) {
        self.metrics.retries.inc_by(messages);
    }

    /// Tells that a message is gone, which the store does not have any more.
    pub fn dropped(&self, message: &DroppedMessage) {
        let what = match message.reason {
            DropReason::Refused => "a refused message was dropped",
            DropReason::Expired => "an expired message was dropped",
        };
        let (word, error) = &message.failure;
        self.bursts.note(what, &self.route.name, word, error);
        if message.reason == DropReason::Expired {
            self.metrics.expired.inc();
        }
        let reason = message.reason.as_str();
        self.metrics.dropped(reason, 1);
        if let (Some(trail), Some(id)) = (&self.trail, &message.id) {
            trail.dropped(id.as_str(), message.at, message.due, reason);
        }
    }

    /// Tells that nothing is kept of an invalid message, and of which, if it says so.
    pub fn dropped_invalid(&self, reason: InvalidReason, id: Option<&Text>, at: UnixMs) {
        let reason = reason.as_str();
        self.metrics.dropped(reason, 1);
        let Some(id) = id else { return };
        self.tell_dead(id, reason);
        if let Some(trail) = &self.trail {
            trail.dropped(id.as_str(), at, None, reason);
        }
    }

    /// Tells that the store has a dead letter. `id`: of its message, if it has one.
    pub fn kept_dead(&self, reason: DeadReason, id: Option<&Text>) {
        if reason == DeadReason::Expired {
            self.metrics.expired.inc();
        }
        self.metrics.dead_letter(reason.as_str());
        self.health.activity().note(ActivityKind::Dead);
        if let Some(id) = id {
            self.tell_dead(id, reason.as_str());
        }
    }

    /// Tells whoever follows a message that it is dead.
    fn tell_dead(&self, id: &Text, reason: &str) {
        self.watch
            .report(&self.route.name, id.as_str(), || MessageEnd::Dead {
                reason: reason.to_owned(),
            });
    }

    /// Tells that the store has a dead letter of a message that was valid.
    pub fn died(&self, dead_letter: &DeadLetter) {
        let entry = dead_letter.bundle.entries.first();
        let id = entry.and_then(|entry| entry.id.clone());
        self.kept_dead(dead_letter.reason, id.as_ref());
        let Some(entry) = entry else {
            return;
        };
        let id = id.unwrap_or_default();
        let reason = dead_letter.reason.as_str();
        let error = entry
            .history
            .last()
            .map(|last| last.error.clone())
            .unwrap_or_default();
        warn!(
            route = %self.route.name, %id, reason,
            error = %error, failures = entry.failures, "a message became a dead letter"
        );
    }
}

impl std::fmt::Debug for RouteReporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = &self.route.name;
        f.debug_tuple("RouteReporter").field(name).finish()
    }
}

impl SendListener for RouteReporter {
    /// Counts a publish that may repeat an earlier one, with its cause.
    fn sent(&self, batch: &PublishBatch, index: u32) {
        let entry = &batch.entries[index as usize];
        let Some(cause) = entry.repeat_cause(batch.expiries) else {
            return;
        };
        self.metrics.redelivered(cause, 1);
        let what = "this publish may repeat an earlier one";
        let (route, cause) = (&self.route.name, cause.as_str());
        match (batch.ids.get(index as usize), entry.position) {
            (Some(id), _) => self.bursts.note_message(what, route, cause, id),
            (None, Some(KafkaPosition { partition, offset })) => {
                let place = format!("partition {partition}, offset {offset}");
                self.bursts.note_message(what, route, cause, place);
            }
            (None, None) => {
                self.bursts
                    .note_message(what, route, cause, "a queue's delivery");
            }
        }
    }
}

/// The log's words for a message that goes to the store since its publish failed. `None` for a delayed message: that
/// was to be expected.
fn goes_to_store(flow: PublishFlow) -> Option<&'static str> {
    match flow {
        PublishFlow::Delayed => None,
        PublishFlow::Dying => Some("dead_letter_to did not take a dead letter; retrying"),
        PublishFlow::Passing { .. } => {
            Some("a passing message was refused; it is stored and tried again")
        }
    }
}

impl HandedOver<'_> {
    fn entry(&self) -> &Entry {
        &self.batch.entries[self.index as usize]
    }

    /// The number of this publish, counted from 1.
    fn attempt(&self) -> u32 {
        self.entry().handouts + self.batch.expiries + 1
    }

    /// The time from the hand-over to the verdict, microseconds.
    fn took_us(&self, at: VerdictTime) -> i64 {
        at.mono.0.saturating_sub(self.handed.0).max(0)
    }
}
