//! What is already due when it arrives, and has no name, goes straight to its target. Its source is released
//! on the target's confirm; refused, or without an answer, it is stored like any other, with the retry
//! policy, and its source is released once the store has it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tracing::warn;

use super::{Receipt, bury};
use crate::domain::{Entry, Partition, Route, Target, Text, Verdict, retry};
use crate::egress::{Lanes, Publication, Stamp, Verdicts};
use crate::lifecycle::{Shutdown, Tasks};
use crate::store::{Bundle, DeadRoom, Store, WriteOp};
use crate::telemetry::{Bursts, RouteMetrics};

/// A message that has not left its lane by then is stored instead.
const PATIENCE_US: i64 = 5_000_000;

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

struct Underway {
    route: Arc<Route>,
    metrics: Arc<RouteMetrics>,
    target: Arc<Target>,
    entries: Arc<Vec<Entry>>,
    id: Text,
    partition: Partition,
    receipt: Receipt,
    handed_us: i64,
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
        tasks.spawn("direct", async move {
            loop {
                tokio::select! {
                    () = shutdown.forced() => return,
                    verdicts = judge.verdicts.take() => {
                        for (ticket, verdict) in verdicts {
                            judge.clone().judge(ticket, &verdict);
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
            // Under one lock: entered before their verdicts can come.
            let mut underway = inner.underway.lock();
            let enter = |due| inner.enter(&mut underway, route, metrics, due);
            let publications = together.into_iter().map(enter).collect();
            drop(underway);
            inner.lanes.lane(&target).submit_all(publications);
        }
    }
}

impl Inner {
    fn enter(
        &self,
        underway: &mut HashMap<u64, Underway>,
        route: &Arc<Route>,
        metrics: &Arc<RouteMetrics>,
        due: Due,
    ) -> Publication {
        let Due { target, entry, partition, receipt } = due;
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let now_us = self.store.clock().local().mono_us();
        let id = Text::from(format!("~{}", self.store.unique()));
        if let Some(cause) = entry.repeat_cause(0) {
            metrics.redelivered(cause, 1);
            self.bursts.note("this publish may repeat an earlier one", &route.name, cause.as_str(), &id);
        }
        let stamp = Stamp { id: id.clone(), due: entry.due, attempt: 1 };
        let entries = Arc::new(vec![entry]);
        let (route, metrics) = (route.clone(), metrics.clone());
        let publication = Publication {
            entries: entries.clone(),
            index: 0,
            stamp: Some(stamp),
            target: target.clone(),
            ticket,
            verdicts: self.verdicts.clone(),
            not_after_us: now_us + PATIENCE_US,
        };
        let entered = Underway { route, metrics, target, entries, id, partition, receipt, handed_us: now_us };
        underway.insert(ticket, entered);
        publication
    }

    fn judge(self: Arc<Self>, ticket: u64, verdict: &Verdict) {
        let Some(underway) = self.underway.lock().remove(&ticket) else { return };
        if *verdict == Verdict::Confirmed {
            let clock = self.store.clock();
            let due_us = underway.entries[0].due.0 * 1000;
            let late_us = clock.now_us().unwrap_or(due_us) - due_us;
            underway.metrics.published.inc();
            underway.metrics.lateness.observe(late_us.max(0) as f64 / 1e6);
            let took_us = clock.local().mono_us() - underway.handed_us;
            underway.metrics.confirm.observe(took_us.max(0) as f64 / 1e6);
            underway.receipt.resolve();
            return;
        }
        let op = self.keep(&underway, verdict);
        let inner = self.clone();
        self.tasks.spawn("ingress:answers", async move {
            match inner.store.write(underway.partition, vec![op]).await {
                Ok(_) => underway.receipt.resolve(),
                Err(why) => warn!(error = %why, "not stored; its source will deliver it again"),
            }
        });
    }

    /// What the store is to do with a message that did not go straight out.
    fn keep(&self, underway: &Underway, verdict: &Verdict) -> WriteOp {
        let Underway { route, metrics, target, entries, id, .. } = underway;
        let now = self.store.clock().now();
        let own = Arc::ptr_eq(target, &route.to);
        let target = if own { Text::default() } else { Text::from(target.name()) };
        let mut entry = entries[0].clone();
        entry.id = Some(id.clone());
        let one = |entry| Bundle { target: target.clone(), entries: Arc::new(vec![entry]) };
        let route_name = route.name.clone();
        let store = |bundle| WriteOp::Store {
            route: route_name.clone(),
            on_duplicate: route.policy.on_duplicate,
            bundle,
        };
        if *verdict == Verdict::NotTried {
            return store(one(entry));
        }
        metrics.publish_failure(retry::describe(verdict).0);
        let mut failed = retry::failed(&entry, verdict, entry.handouts + 1, now);
        let size = failed.message.body_len() + failed.message.headers_len();
        let mut next = retry::after(verdict, failed.failures, route.policy.retry, now, fastrand::f64());
        if matches!(next, retry::Next::Dead(_)) && !self.room.take(&route.name, size) {
            // Nothing is lost because its grave is full.
            next = retry::Next::Again(now.plus(route.policy.retry.max_ms));
        }
        match next {
            retry::Next::Again(due) => {
                metrics.retries.inc();
                metrics.stored.inc();
                failed.asked = Some(failed.due);
                failed.due = due;
                store(one(failed))
            }
            retry::Next::Dead(reason) => {
                if route.dead_letter_to.is_none() {
                    metrics.dead_letter(reason.as_str());
                }
                bury::bury(route, reason, target.clone(), failed, now)
            }
        }
    }
}
