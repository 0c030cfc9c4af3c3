//! What is already due when it arrives, and has no name, goes straight to its target. Its source is released
//! on the target's confirm; refused, or without an answer, it is stored like any other, with the retry
//! policy, and its source is released once the store has it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tracing::debug;

use super::{Receipt, dead_letter};
use crate::domain::failure::{self, FailedMessage, FailedPublish, FailureDecision, PublishFlow};
use crate::domain::{Entry, Partition, Route, Target, Verdict, retry};
use crate::egress::{Batch, Lanes, Publication, Verdicts};
use crate::lifecycle::{Shutdown, Stage, Tasks};
use crate::store::{Bundle, DeadRoom, Store, WriteOp};
use crate::telemetry::{Bursts, RouteMetrics};

/// A message that has not left its lane by then is stored instead.
const PATIENCE_US: i64 = 5_000_000;
/// A ticket is the number of its batch, and in its lowest bits the place in that.
const PLACE_BITS: u32 = 24;

/// All that is on its way straight to a target.
pub(super) struct Direct(Arc<Inner>);

struct Inner {
    store: Store,
    lanes: Arc<dyn Lanes>,
    room: Arc<DeadRoom>,
    verdicts: Arc<Verdicts>,
    underway: Mutex<HashMap<u64, Underway>>,
    next: AtomicU64,
    bursts: Arc<Bursts>,
    tasks: Tasks,
}

/// A message that is due already.
pub(super) struct Due {
    pub(super) target: Arc<Target>,
    pub(super) entry: Entry,
    /// Where it is stored if it must be.
    pub(super) partition: Partition,
    pub(super) receipt: Receipt,
}

/// Messages of one route that were handed to one lane together.
struct Underway {
    batch: Arc<Batch>,
    route: Arc<Route>,
    metrics: Arc<RouteMetrics>,
    /// Of those without a verdict: where they are stored if they must be, and their receipts.
    open: Vec<Option<(Partition, Receipt)>>,
    left: usize,
    handed_us: i64,
}

/// A message that did not go straight out.
struct NotSent {
    route: Arc<Route>,
    metrics: Arc<RouteMetrics>,
    target: Arc<Target>,
    entry: Entry,
    partition: Partition,
    receipt: Receipt,
    verdict: Verdict,
}

impl Direct {
    pub(super) fn start(
        store: &Store,
        lanes: &Arc<dyn Lanes>,
        bursts: &Arc<Bursts>,
        room: &Arc<DeadRoom>,
        tasks: &Tasks,
        shutdown: &Shutdown,
    ) -> Self {
        let inner = Arc::new(Inner {
            store: store.clone(),
            lanes: lanes.clone(),
            room: room.clone(),
            verdicts: Arc::default(),
            underway: Mutex::default(),
            next: AtomicU64::new(1),
            bursts: bursts.clone(),
            tasks: tasks.clone(),
        });
        let (judge, shutdown) = (inner.clone(), shutdown.clone());
        tasks.of(Stage::Publishing).spawn("direct", async move {
            loop {
                tokio::select! {
                    () = shutdown.forced() => return,
                    verdicts = judge.verdicts.take() => {
                        for failed in judge.judge(verdicts) {
                            judge.clone().keep(failed);
                        }
                    }
                    // Every answer is in, and nothing new comes: the sources have drained.
                    () = shutdown.draining(), if judge.underway.lock().is_empty() => return,
                }
            }
        });
        Self(inner)
    }

    /// Hands these to their lanes, in order.
    pub(super) fn publish(&self, route: &Arc<Route>, metrics: &Arc<RouteMetrics>, batch: Vec<Due>) {
        let inner = &self.0;
        let mut batch = batch.into_iter().peekable();
        while let Some(first) = batch.next() {
            let target = first.target.clone();
            let mut together = vec![first];
            while let Some(next) = batch.next_if(|next| Arc::ptr_eq(&next.target, &target)) {
                together.push(next);
            }
            let publications = inner.enter(route, metrics, &target, together);
            inner.lanes.lane(&target).submit_all(publications);
        }
    }
}

impl Inner {
    /// Enters them, before their verdicts can come.
    fn enter(
        &self,
        route: &Arc<Route>,
        metrics: &Arc<RouteMetrics>,
        target: &Arc<Target>,
        together: Vec<Due>,
    ) -> Vec<Publication> {
        let handed_us = self.store.clock().local().mono_us();
        let ids = self.store.unique_ids(together.iter().map(|due| due.partition));
        let mut entries = Vec::with_capacity(together.len());
        let mut open = Vec::with_capacity(together.len());
        for (Due { entry, partition, receipt, .. }, id) in together.into_iter().zip(&ids) {
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
        let batch = Arc::new(Batch {
            entries: Arc::new(entries),
            ids,
            expiries: 0,
            target: target.clone(),
            first_ticket: number << PLACE_BITS,
            verdicts: self.verdicts.clone(),
            not_after_us: (handed_us + PATIENCE_US).into(),
        });
        let left = open.len();
        let publication = |index| Publication { batch: batch.clone(), index };
        let publications = (0..left as u32).map(publication).collect();
        let (route, metrics) = (route.clone(), metrics.clone());
        let underway = Underway { batch, route, metrics, open, left, handed_us };
        self.underway.lock().insert(number, underway);
        publications
    }

    /// Releases the sources of what is confirmed; returns the others.
    fn judge(&self, verdicts: Vec<(u64, Verdict)>) -> Vec<NotSent> {
        let clock = self.store.clock();
        let (now_us, mono_us) = (clock.now_us(), clock.local().mono_us());
        let (mut safe, mut failed) = (Vec::with_capacity(verdicts.len()), Vec::new());
        let mut underway = self.underway.lock();
        for (ticket, verdict) in verdicts {
            let number = ticket >> PLACE_BITS;
            let index = (ticket & ((1 << PLACE_BITS) - 1)) as usize;
            let Some(together) = underway.get_mut(&number) else { continue };
            let Some((partition, receipt)) = together.open.get_mut(index).and_then(Option::take) else {
                continue;
            };
            together.left -= 1;
            let Underway { batch, route, metrics, handed_us, .. } = &*together;
            if verdict == Verdict::Confirmed {
                let due_us = batch.entries[index].due.0 * 1000;
                let late_us = now_us.unwrap_or(due_us) - due_us;
                metrics.published.inc();
                metrics.lateness.observe(late_us.max(0) as f64 / 1e6);
                metrics.confirm.observe((mono_us - handed_us).max(0) as f64 / 1e6);
                safe.push(receipt);
            } else {
                let (route, metrics) = (route.clone(), metrics.clone());
                let mut entry = batch.entries[index].clone();
                entry.id = Some(batch.ids[index].clone());
                let target = batch.target.clone();
                failed.push(NotSent { route, metrics, target, entry, partition, receipt, verdict });
            }
            if together.left == 0 {
                underway.remove(&number);
            }
        }
        drop(underway);
        Receipt::resolve_all(safe);
        failed
    }

    /// Stores a message that did not go straight out, or what became of it.
    fn keep(self: Arc<Self>, failed: NotSent) {
        let Some(op) = self.op(&failed) else { return failed.receipt.resolve() };
        let inner = self.clone();
        self.tasks.spawn("ingress:answers", async move {
            match inner.store.write(failed.partition, vec![op]).await {
                Ok(_) => failed.receipt.resolve(),
                // Shutting down was forced; there may be thousands of these.
                Err(why) => debug!(error = %why, "not stored; its source will deliver it again"),
            }
        });
    }

    /// What the store is to do with a message that did not go straight out; `None`: it is dropped.
    fn op(&self, failed: &NotSent) -> Option<WriteOp> {
        let NotSent { route, metrics, target, entry, verdict, .. } = failed;
        let now = self.store.clock().now();
        let target = route.target_ref(target);
        let one = |entry| Bundle { target: target.clone(), entries: Arc::new(vec![entry]) };
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
        let (handouts, flow, jitter) = (entry.handouts + 1, PublishFlow::Delayed, fastrand::f64());
        let publish = FailedPublish { entry, verdict, handouts, flow, now, jitter };
        let quota = |size| self.room.take(&route.name, size);
        let FailedMessage { mut entry, decision, is_full } = failure::decide(publish, route, quota);
        if let Some(reason) = is_full {
            let error = retry::describe(verdict).1;
            self.bursts.note(failure::QUOTA_FULL, &route.name, reason.as_str(), error);
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
                Some(dead_letter::bury(route, reason, target.clone(), entry, now))
            }
            FailureDecision::Drop => {
                metrics.dropped(failure::DROP_REASON, 1);
                None
            }
        }
    }
}
