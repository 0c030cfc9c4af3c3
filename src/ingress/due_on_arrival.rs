//! Messages that are due on arrival: an unnamed message that is due already goes straight to its target. The
//! target's confirm releases its source. A message that is refused, or gets no verdict, is stored like any
//! other under the retry policy, and its source is released once the store has it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tracing::debug;

use super::{Receipt, dead_letter};
use crate::domain::failure_policy::{
    self, FailedMessage, FailedPublish, FailureDecision, PublishFlow,
};
use crate::domain::{Entry, Partition, Route, Target, UnixMs, Verdict, retry};
use crate::egress::{Lanes, Publication, PublishBatch, VerdictInbox};
use crate::lifecycle::{Shutdown, Stage, Tasks};
use crate::store::{Bundle, DeadLetterQuota, RouteTrail, Store, WriteOp};
use crate::telemetry::{BurstLog, DeliveryFacts, DeliverySpan, RouteMetrics, Tracer};

/// A message that has not left its lane within this time is stored instead.
const LANE_DEADLINE_US: i64 = 5_000_000;
/// Low bits of a ticket, which are an index in a batch. The other bits are the number of the batch.
const INDEX_BITS: u32 = 24;

/// Publishes messages that are due on arrival, for all sources.
pub(super) struct DueOnArrival(Arc<DuePublisher>);

/// Everything that publishing on arrival is built from.
pub(super) struct DueOnArrivalDependencies<'a> {
    pub(super) store: &'a Store,
    pub(super) lanes: &'a Arc<dyn Lanes>,
    pub(super) tracer: &'a Tracer,
    pub(super) bursts: &'a Arc<BurstLog>,
    pub(super) quota: &'a Arc<DeadLetterQuota>,
    pub(super) tasks: &'a Tasks,
    /// Ends it once its sources have ended.
    pub(super) shutdown: &'a Shutdown,
}

struct DuePublisher {
    store: Store,
    lanes: Arc<dyn Lanes>,
    tracer: Tracer,
    quota: Arc<DeadLetterQuota>,
    verdicts: Arc<VerdictInbox>,
    in_flight: Mutex<HashMap<u64, DueBatch>>,
    next: AtomicU64,
    bursts: Arc<BurstLog>,
    tasks: Tasks,
}

/// A message that is due already.
pub(super) struct DueMessage {
    pub(super) target: Arc<Target>,
    pub(super) entry: Entry,
    /// The partition that stores the message if it must be stored.
    pub(super) partition: Partition,
    pub(super) receipt: Receipt,
}

/// Messages of one route that were submitted to one lane together.
struct DueBatch {
    batch: Arc<PublishBatch>,
    route: Arc<Route>,
    metrics: Arc<RouteMetrics>,
    trail: Option<Arc<RouteTrail>>,
    /// Partition and receipt of each message, until it has a verdict.
    open: Vec<Option<(Partition, Receipt)>>,
    left: usize,
    handed_us: i64,
}

/// The moment at which verdicts were taken, by Redis's clock and by the monotonic one, microseconds.
#[derive(Clone, Copy)]
struct VerdictMoment {
    store_us: Option<i64>,
    mono_us: i64,
}

/// A message that was not confirmed.
struct FailedDue {
    route: Arc<Route>,
    metrics: Arc<RouteMetrics>,
    target: Arc<Target>,
    entry: Entry,
    partition: Partition,
    receipt: Receipt,
    verdict: Verdict,
}

impl DueOnArrival {
    pub(super) fn start(dependencies: &DueOnArrivalDependencies<'_>) -> Self {
        let &DueOnArrivalDependencies {
            store,
            lanes,
            tracer,
            bursts,
            quota,
            tasks,
            shutdown,
        } = dependencies;
        let publisher = Arc::new(DuePublisher {
            store: store.clone(),
            lanes: lanes.clone(),
            tracer: tracer.clone(),
            quota: quota.clone(),
            verdicts: Arc::default(),
            in_flight: Mutex::default(),
            next: AtomicU64::new(1),
            bursts: bursts.clone(),
            tasks: tasks.clone(),
        });
        let worker = publisher.clone();
        let shutdown = shutdown.clone();
        tasks.of(Stage::Publishing).spawn("direct", async move {
            loop {
                tokio::select! {
                    () = shutdown.forced() => return,
                    verdicts = worker.verdicts.take() => {
                        for failed in worker.take_verdicts(verdicts) {
                            worker.clone().store_failed(failed);
                        }
                    }
                    // The sources have drained, so no new messages come, and all verdicts are in.
                    () = shutdown.draining(), if worker.in_flight.lock().is_empty() => return,
                }
            }
        });
        Self(publisher)
    }

    /// Submits a batch to its lanes, in order.
    pub(super) fn publish(
        &self,
        route: &Arc<Route>,
        metrics: &Arc<RouteMetrics>,
        batch: Vec<DueMessage>,
    ) {
        let publisher = &self.0;
        let mut batch = batch.into_iter().peekable();
        while let Some(first) = batch.next() {
            let target = first.target.clone();
            let mut together = vec![first];
            while let Some(next) = batch.next_if(|next| Arc::ptr_eq(&next.target, &target)) {
                together.push(next);
            }
            let publications = publisher.enter(route, metrics, &target, together);
            publisher.lanes.lane(&target).submit_all(publications);
        }
    }
}

impl DuePublisher {
    /// Registers messages before their verdicts can come, and returns their publications.
    fn enter(
        &self,
        route: &Arc<Route>,
        metrics: &Arc<RouteMetrics>,
        target: &Arc<Target>,
        together: Vec<DueMessage>,
    ) -> Vec<Publication> {
        let handed_us = self.store.clock().local().mono_us();
        let ids = self
            .store
            .unique_ids(together.iter().map(|due| due.partition));
        let mut entries = Vec::with_capacity(together.len());
        let mut open = Vec::with_capacity(together.len());
        for (
            DueMessage {
                entry,
                partition,
                receipt,
                ..
            },
            id,
        ) in together.into_iter().zip(&ids)
        {
            if let Some(cause) = entry.repeat_cause(0) {
                metrics.redelivered(cause, 1);
                self.bursts.note_message(
                    "this publish may repeat an earlier one",
                    &route.name,
                    cause.as_str(),
                    id,
                );
            }
            entries.push(entry);
            open.push(Some((partition, receipt)));
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let batch = Arc::new(PublishBatch {
            spans: self.tracer.deliver(&entries),
            entries: Arc::new(entries),
            ids,
            expiries: 0,
            target: target.clone(),
            copies: route.policy.copies,
            first_ticket: number << INDEX_BITS,
            verdicts: self.verdicts.clone(),
            not_after_us: (handed_us + LANE_DEADLINE_US).into(),
        });
        let left = open.len();
        let publication = |index| Publication {
            batch: batch.clone(),
            index,
        };
        let publications = (0..left as u32).map(publication).collect();
        let trail = self.store.trail(&route.name).cloned();
        let route = route.clone();
        let metrics = metrics.clone();
        let in_flight = DueBatch {
            batch,
            route,
            metrics,
            trail,
            open,
            left,
            handed_us,
        };
        self.in_flight.lock().insert(number, in_flight);
        publications
    }

    /// Releases the sources of confirmed messages, and returns the failed ones.
    fn take_verdicts(&self, verdicts: Vec<(u64, Verdict)>) -> Vec<FailedDue> {
        let clock = self.store.clock();
        let now_us = clock.now_us();
        let mono_us = clock.local().mono_us();
        let mut safe = Vec::with_capacity(verdicts.len());
        let mut failed = Vec::new();
        let mut in_flight = self.in_flight.lock();
        for (ticket, verdict) in verdicts {
            let number = ticket >> INDEX_BITS;
            let index = (ticket & ((1 << INDEX_BITS) - 1)) as usize;
            let Some(together) = in_flight.get_mut(&number) else {
                continue;
            };
            let Some((partition, receipt)) = together.open.get_mut(index).and_then(Option::take)
            else {
                continue;
            };
            together.left -= 1;
            self.end_span(
                together,
                index,
                &verdict,
                VerdictMoment {
                    store_us: now_us,
                    mono_us,
                },
            );
            let DueBatch {
                batch,
                route,
                metrics,
                trail,
                handed_us,
                ..
            } = &*together;
            if verdict == Verdict::Confirmed {
                let due_us = batch.entries[index].due.0 * 1000;
                let late_us = now_us.unwrap_or(due_us) - due_us;
                metrics.published.inc();
                if let Some(trail) = trail {
                    let at = UnixMs((due_us + late_us) / 1000);
                    trail.delivered(
                        batch.ids[index].as_str(),
                        at,
                        late_us / 1000,
                        1,
                        &batch.target,
                    );
                }
                let span = DeliverySpan::of(&batch.spans, index as u32);
                metrics.delivered_late(late_us, span.map(DeliverySpan::trace_id));
                metrics
                    .confirm
                    .observe((mono_us - handed_us).max(0) as f64 / 1e6);
                safe.push(receipt);
            } else {
                let route = route.clone();
                let metrics = metrics.clone();
                let mut entry = batch.entries[index].clone();
                entry.id = Some(batch.ids[index].clone());
                let target = batch.target.clone();
                failed.push(FailedDue {
                    route,
                    metrics,
                    target,
                    entry,
                    partition,
                    receipt,
                    verdict,
                });
            }
            if together.left == 0 {
                in_flight.remove(&number);
            }
        }
        drop(in_flight);
        Receipt::resolve_all(safe);
        failed
    }

    /// Ends the span of a message's delivery, if its trace is recorded.
    fn end_span(&self, together: &DueBatch, index: usize, verdict: &Verdict, at: VerdictMoment) {
        let DueBatch {
            batch,
            route,
            handed_us,
            ..
        } = together;
        let Some(span) = DeliverySpan::of(&batch.spans, index as u32) else {
            return;
        };
        let due = batch.entries[index].asked_due();
        let facts = DeliveryFacts {
            route,
            target: &batch.target,
            id: batch.ids[index].as_str(),
            due,
            attempt: batch.entries[index].handouts + 1,
            took_us: at.mono_us - handed_us,
            ended_us: at.store_us.unwrap_or(due.0 * 1000),
            failure: (*verdict != Verdict::Confirmed).then(|| retry::describe(verdict)),
        };
        self.tracer.delivered(span, &facts);
    }

    /// Stores a failed message, or what the failure policy makes of it.
    fn store_failed(self: Arc<Self>, failed: FailedDue) {
        let Some(op) = self.failure_op(&failed) else {
            return failed.receipt.resolve();
        };
        let publisher = self.clone();
        self.tasks.spawn("ingress:answers", async move {
            match publisher.store.write(failed.partition, vec![op]).await {
                Ok(_) => failed.receipt.resolve(),
                // Shutting down was forced, so there may be thousands of these.
                Err(why) => debug!(error = %why, "not stored; its source will deliver it again"),
            }
        });
    }

    /// The write for a failed message. `None` if the message is dropped.
    fn failure_op(&self, failed: &FailedDue) -> Option<WriteOp> {
        let FailedDue {
            route,
            metrics,
            target,
            entry,
            verdict,
            ..
        } = failed;
        let now = self.store.clock().now();
        let target = route.target_ref(target);
        let one = |entry| Bundle {
            target: target.clone(),
            entries: Arc::new(vec![entry]),
        };
        let route_name = route.name.clone();
        let store = |bundle| WriteOp::Store {
            route: route_name.clone(),
            on_duplicate: route.policy.on_duplicate,
            bundle,
        };
        if *verdict == Verdict::NotTried {
            return Some(store(one(entry.clone())));
        }
        metrics.publish_failure(retry::describe(verdict).0);
        let handouts = entry.handouts + 1;
        let flow = PublishFlow::Delayed;
        let jitter = fastrand::f64();
        let publish = FailedPublish {
            entry,
            verdict,
            handouts,
            flow,
            now,
            jitter,
        };
        let quota = |size| self.quota.take(&route.name, size);
        let FailedMessage {
            mut entry,
            decision,
            is_full,
        } = failure_policy::decide(publish, route, quota);
        if let Some(reason) = is_full {
            let error = retry::describe(verdict).1;
            self.bursts.note(
                failure_policy::QUOTA_FULL,
                &route.name,
                reason.as_str(),
                error,
            );
        }
        match decision {
            FailureDecision::RetryAt(due) | FailureDecision::WaitUntil(due) => {
                metrics.retries.inc();
                metrics.stored.inc();
                entry.asked = Some(entry.due);
                entry.due = due;
                Some(store(one(entry)))
            }
            FailureDecision::DeadLetter(reason) | FailureDecision::DeadLetterVia(reason) => {
                if matches!(decision, FailureDecision::DeadLetter(_)) {
                    metrics.dead_letter(reason.as_str());
                }
                Some(dead_letter::to_write_op(
                    route,
                    reason,
                    target.clone(),
                    entry,
                    now,
                ))
            }
            FailureDecision::Drop => {
                metrics.dropped(failure_policy::DROP_REASON, 1);
                if let Some((trail, id)) = self.store.trail(&route.name).zip(entry.id.as_ref()) {
                    trail.dropped(id.as_str(), now, failure_policy::DROP_REASON);
                }
                None
            }
        }
    }
}
