//! What has no delay header passes through, byte for byte and in order, and never enters the store: refused,
//! it is tried again in place while its source waits; hopeless or out of attempts, it becomes a dead letter
//! and the rest goes on.
//!
//! While the target takes all, a whole batch is on its way at once. What is on its way with the first one that
//! is refused may overtake that one; the rest of the batch then goes one by one, each when the one before it
//! is confirmed or dead.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, warn};

use super::{Receipt, bury};
use crate::domain::{Entry, Partition, Route, Target, Text, Verdict, retry};
use crate::egress::{Batch, Lanes, Publication, Verdicts};
use crate::lifecycle::Shutdown;
use crate::store::{DeadRoom, Store};
use crate::telemetry::{Bursts, RouteMetrics};

/// One source's way past the store.
pub(super) struct Through {
    lanes: Arc<dyn Lanes>,
    store: Store,
    metrics: Arc<RouteMetrics>,
    bursts: Arc<Bursts>,
    room: Arc<DeadRoom>,
    verdicts: Arc<Verdicts>,
    next: u64,
}

/// One record on its way.
struct Passing {
    entry: Entry,
    target: Arc<Target>,
    receipt: Receipt,
}

/// What of a batch is still to go, in order.
struct Line<T> {
    waiting: VecDeque<T>,
    singly: bool,
}

impl<T> Line<T> {
    /// What goes next; nothing at the end.
    fn next(&mut self) -> Option<Vec<T>> {
        let count = if self.singly { self.waiting.len().min(1) } else { self.waiting.len() };
        (count > 0).then(|| self.waiting.drain(..count).collect())
    }

    /// These go again, before all others.
    fn refused(&mut self, again: Vec<T>) {
        self.singly = true;
        for one in again.into_iter().rev() {
            self.waiting.push_front(one);
        }
    }
}

impl Through {
    pub(super) fn new(
        lanes: Arc<dyn Lanes>,
        store: Store,
        metrics: Arc<RouteMetrics>,
        bursts: Arc<Bursts>,
        room: Arc<DeadRoom>,
    ) -> Self {
        Self { lanes, store, metrics, bursts, room, verdicts: Arc::default(), next: 0 }
    }

    /// Publishes these, in order; returns when each is confirmed or dead. While the route's publishing is
    /// paused it waits. When shutting down is forced, or begins while it is paused, it returns with what is
    /// left unresolved: the source delivers it again.
    pub(super) async fn publish(
        &mut self,
        route: &Arc<Route>,
        batch: Vec<(Entry, Arc<Target>, Receipt)>,
        shutdown: &Shutdown,
    ) {
        let passing = |(entry, target, receipt)| Passing { entry, target, receipt };
        let mut line = Line { waiting: batch.into_iter().map(passing).collect(), singly: false };
        let mut pauses = self.store.pauses();
        while let Some(next) = line.next() {
            // It can wait nowhere else: what passes through never enters the store.
            tokio::select! {
                () = shutdown.draining() => if !pauses.may_publish(route.name.as_str()) { return },
                () = pauses.until_publishing(route.name.as_str()) => {}
            }
            let refused = tokio::select! {
                () = shutdown.forced() => return,
                refused = self.once(route, next) => refused,
            };
            let mut back = Vec::with_capacity(refused.len());
            let mut wait_ms = None;
            for (passing, verdict) in refused {
                if let Some((passing, ms)) = self.again_or_dead(route, passing, &verdict).await {
                    wait_ms.get_or_insert(ms);
                    back.push(passing);
                }
            }
            let Some(ms) = wait_ms else { continue };
            line.refused(back);
            tokio::select! {
                () = shutdown.forced() => return,
                () = tokio::time::sleep(Duration::from_millis(ms)) => {}
            }
        }
    }

    /// Hands all of them over in order and waits for every verdict; returns those that failed, in order.
    async fn once(&mut self, route: &Arc<Route>, waiting: Vec<Passing>) -> Vec<(Passing, Verdict)> {
        let first = self.next;
        self.next += waiting.len() as u64;
        let mut left = waiting.len();
        let mut entries = Vec::with_capacity(left);
        let mut underway = Vec::with_capacity(left);
        for passing in waiting {
            if let Some(cause) = passing.entry.repeat_cause(0) {
                self.metrics.redelivered(cause, 1);
                let position = format!("{:?}", passing.entry.position);
                self.bursts.note(
                    "this publish may repeat an earlier one",
                    &route.name,
                    cause.as_str(),
                    position,
                );
            }
            entries.push(passing.entry);
            underway.push(Some((passing.target, passing.receipt)));
        }
        let entries = Arc::new(entries);
        self.submit(first, &entries, &underway);
        let mut failed = Vec::new();
        while left > 0 {
            let mut safe = Vec::new();
            for (ticket, verdict) in self.verdicts.take().await {
                let index = ticket.wrapping_sub(first) as usize;
                let Some((target, receipt)) = underway.get_mut(index).and_then(Option::take) else {
                    continue;
                };
                left -= 1;
                if verdict == Verdict::Confirmed {
                    safe.push(receipt);
                } else {
                    let entry = entries[index].clone();
                    failed.push((index, Passing { entry, target, receipt }, verdict));
                }
            }
            self.metrics.passed_through.inc_by(safe.len() as u64);
            Receipt::resolve_all(safe);
        }
        failed.sort_by_key(|(index, ..)| *index);
        failed.into_iter().map(|(_, passing, verdict)| (passing, verdict)).collect()
    }

    /// Hands them to their lanes, in order.
    fn submit(&self, first: u64, entries: &Arc<Vec<Entry>>, underway: &[Option<(Arc<Target>, Receipt)>]) {
        let targets: Vec<&Arc<Target>> = underway.iter().flatten().map(|(target, _)| target).collect();
        let mut index = 0;
        for together in targets.chunk_by(|one, other| Arc::ptr_eq(one, other)) {
            let target = together[0].clone();
            let batch = Arc::new(Batch {
                entries: entries.clone(),
                ids: Vec::new(),
                expiries: 0,
                target: target.clone(),
                first_ticket: first,
                verdicts: self.verdicts.clone(),
                not_after_us: i64::MAX.into(),
            });
            let indices = index..index + together.len() as u32;
            index = indices.end;
            let publication = |index| Publication { batch: batch.clone(), index };
            self.lanes.lane(&target).submit_all(indices.map(publication).collect());
        }
    }

    /// The record and how long to wait, or nothing if it is dead by now.
    async fn again_or_dead(
        &self,
        route: &Arc<Route>,
        mut passing: Passing,
        verdict: &Verdict,
    ) -> Option<(Passing, u64)> {
        if *verdict == Verdict::NotTried {
            return Some((passing, 100));
        }
        let (reason, error) = retry::describe(verdict);
        self.metrics.publish_failure(reason);
        if passing.entry.failures == 0 {
            debug!(route = %route.name, reason, %error, "a record that passes through was refused; its source waits");
        }
        let now = self.store.clock().now();
        passing.entry = retry::failed(&passing.entry, verdict, passing.entry.handouts + 1, now);
        let next = retry::after(verdict, passing.entry.failures, route.policy.retry, now, fastrand::f64());
        let size = passing.entry.message.body_len() + passing.entry.message.headers_len();
        match next {
            retry::Next::Dead(reason) if !self.room.take(&route.name, size) => {
                let what = "dead_letters is full: what is out of attempts is tried again";
                self.bursts.note(what, &route.name, reason.as_str(), &error);
                Some((passing, route.policy.retry.max_ms as u64))
            }
            retry::Next::Again(at) => Some((passing, at.since(now).max(1) as u64)),
            retry::Next::Dead(reason) => {
                warn!(route = %route.name, reason = reason.as_str(), %error, "a passing record became a dead letter");
                if route.dead_letter_to.is_none() {
                    self.metrics.dead_letter(reason.as_str());
                }
                let Passing { entry, target, receipt } = passing;
                let own = Arc::ptr_eq(&target, &route.to);
                let target = if own { Text::default() } else { Text::from(target.name()) };
                let p = Partition((fastrand::u16(..)) % self.store.partitions().count());
                let op = bury::bury(route, reason, target, entry, now);
                match self.store.write(p, vec![op]).await {
                    Ok(_) => receipt.resolve(),
                    Err(why) => warn!(error = %why, "not kept; its source will deliver it again"),
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_refusal_nothing_is_overtaken() {
        let mut line = Line { waiting: (0..6).collect(), singly: false };
        assert_eq!(line.next(), Some(vec![0, 1, 2, 3, 4, 5]), "all at once while all is well");
        line.refused(vec![1, 3, 4]);
        let (mut arrived, mut refusals) = (vec![], [1, 3, 3, 4].into_iter().peekable());
        while let Some(next) = line.next() {
            assert_eq!(next.len(), 1, "one at a time");
            if refusals.next_if_eq(&next[0]).is_some() {
                line.refused(next);
            } else {
                arrived.extend(next);
            }
        }
        assert_eq!(arrived, [1, 3, 4]);
        assert_eq!(refusals.next(), None, "each was refused as planned");
    }
}
