//! What has no delay header passes through, byte for byte and in order.
//!
//! While the target takes all, a whole batch is on its way at once. A message that is refused for its own sake is
//! treated by its route's `on_refused`: by default it leaves the line for the store, and the others go on. Where a
//! target is away or missing, or its word is not known, the source waits: the message is tried again in place.
//! What is on its way with it may overtake it; the rest of the batch then goes one by one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::bundling::Work;
use super::intake::Submitter;
use super::target_wait::TargetWait;
use super::{Receipt, dead_letter};
use crate::domain::failure::{self, FailedMessage, FailedPublish, FailureDecision, PublishFlow};
use crate::domain::message::stamped;
use crate::domain::{Entry, Partition, Route, Target, UnixMs, Verdict, retry};
use crate::egress::{Batch, Lanes, Publication, Verdicts};
use crate::lifecycle::Shutdown;
use crate::store::DeadRoom;
use crate::telemetry::{Bursts, RouteMetrics};

/// A target that has not answered for so long is waited for: the source says so.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

/// One source's way past the store.
pub(super) struct Through {
    lanes: Arc<dyn Lanes>,
    submitter: Submitter,
    metrics: Arc<RouteMetrics>,
    bursts: Arc<Bursts>,
    room: Arc<DeadRoom>,
    verdicts: Arc<Verdicts>,
    wait: TargetWait,
    next: u64,
}

/// What a source's way past the store is built from.
pub(super) struct Parts {
    pub(super) lanes: Arc<dyn Lanes>,
    /// The way into the store of what leaves the line.
    pub(super) submitter: Submitter,
    pub(super) metrics: Arc<RouteMetrics>,
    pub(super) bursts: Arc<Bursts>,
    pub(super) room: Arc<DeadRoom>,
}

/// One record on its way.
pub(super) struct Passing {
    pub(super) entry: Entry,
    pub(super) target: Arc<Target>,
    /// Where it is stored if it must be.
    pub(super) partition: Partition,
    pub(super) receipt: Receipt,
    /// Tries in a row that found its target away.
    waits: u32,
}

impl Passing {
    pub(super) fn new(entry: Entry, target: Arc<Target>, partition: Partition, receipt: Receipt) -> Self {
        Self { entry, target, partition, receipt, waits: 0 }
    }
}

/// The same while it is with its lane, its entry apart.
struct Underway {
    target: Arc<Target>,
    partition: Partition,
    receipt: Receipt,
    waits: u32,
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

/// What failed of what was handed over together.
struct Round {
    /// To be tried again in place, in order, and when.
    back: Vec<Passing>,
    wait_until: Option<UnixMs>,
    /// What leaves the line for the store.
    work: Work,
}

impl Through {
    pub(super) fn new(route: &Route, parts: Parts) -> Self {
        let Parts { lanes, submitter, metrics, bursts, room } = parts;
        let wait = TargetWait::new(route.name.clone(), metrics.clone());
        Self { lanes, submitter, metrics, bursts, room, verdicts: Arc::default(), wait, next: 0 }
    }

    /// Publishes these, in order; returns when each is confirmed, dropped, or has its place in the store's order.
    /// While the route's publishing is paused it waits. When shutting down is forced, or begins while it waits,
    /// it returns with what is left unresolved: the source delivers it again.
    pub(super) async fn publish(&mut self, route: &Arc<Route>, batch: Vec<Passing>, shutdown: &Shutdown) {
        let mut line = Line { waiting: batch.into(), singly: false };
        let mut pauses = self.submitter.store.pauses();
        while let Some(next) = line.next() {
            // It waits here: what passes through does not enter the store because its route is paused.
            tokio::select! {
                () = shutdown.draining() => if !pauses.may_publish(route.name.as_str()) { return },
                () = pauses.until_publishing(route.name.as_str()) => {}
            }
            let Some(refused) = self.once(route, next, shutdown).await else { return };
            let Round { back, wait_until, work } = self.judge(route, refused);
            self.submitter.submit_all(work).await;
            let Some(at) = wait_until else {
                self.wait.end();
                continue;
            };
            line.refused(back);
            let wait_ms = at.since(self.submitter.store.clock().now()).max(1);
            tokio::select! {
                () = shutdown.draining() => return,
                () = tokio::time::sleep(Duration::from_millis(wait_ms as u64)) => {}
            }
        }
    }

    /// Hands all of them over in order and waits for every verdict; returns those that failed, in order. `None`:
    /// shutting down is forced, or has begun while the target does not answer.
    async fn once(
        &mut self,
        route: &Arc<Route>,
        waiting: Vec<Passing>,
        shutdown: &Shutdown,
    ) -> Option<Vec<(Passing, Verdict)>> {
        let first = self.next;
        self.next += waiting.len() as u64;
        let mut left = waiting.len();
        let mut entries = Vec::with_capacity(left);
        let mut underway = Vec::with_capacity(left);
        for Passing { entry, target, partition, receipt, waits } in waiting {
            self.tell_of_repeat(route, &entry);
            entries.push(entry);
            underway.push(Some(Underway { target, partition, receipt, waits }));
        }
        let entries = Arc::new(entries);
        self.submit(first, &entries, &underway);
        let mut failed = Vec::new();
        while left > 0 {
            let verdicts = self.answers(&underway, shutdown).await?;
            let mut safe = Vec::with_capacity(verdicts.len());
            for (ticket, verdict) in verdicts {
                let index = ticket.wrapping_sub(first) as usize;
                let Some(answered) = underway.get_mut(index).and_then(Option::take) else { continue };
                left -= 1;
                let Underway { target, partition, receipt, waits } = answered;
                if verdict == Verdict::Confirmed {
                    safe.push(receipt);
                } else {
                    let entry = entries[index].clone();
                    failed.push((index, Passing { entry, target, partition, receipt, waits }, verdict));
                }
            }
            self.metrics.passed_through.inc_by(safe.len() as u64);
            Receipt::resolve_all(safe);
        }
        failed.sort_by_key(|(index, ..)| *index);
        Some(failed.into_iter().map(|(_, passing, verdict)| (passing, verdict)).collect())
    }

    /// The next verdicts. Says so while they are long in coming; `None` where the process ends first.
    async fn answers(
        &mut self,
        underway: &[Option<Underway>],
        shutdown: &Shutdown,
    ) -> Option<Vec<(u64, Verdict)>> {
        loop {
            let is_waiting = self.wait.is_waiting();
            tokio::select! {
                () = shutdown.forced() => return None,
                verdicts = self.verdicts.take() => return Some(verdicts),
                () = shutdown.draining(), if is_waiting => return None,
                () = tokio::time::sleep(ANSWER_PATIENCE), if !is_waiting => {
                    let Some(oldest) = underway.iter().flatten().next() else { continue };
                    let trouble = self.lanes.lane(&oldest.target).trouble();
                    let error = trouble.as_deref().unwrap_or("no answer yet");
                    self.wait.begin(&oldest.target.name(), "unavailable", error);
                }
            }
        }
    }

    fn tell_of_repeat(&self, route: &Route, entry: &Entry) {
        if let Some(cause) = entry.repeat_cause(0) {
            self.metrics.redelivered(cause, 1);
            let place = entry.position.map_or_else(
                || "a queue's delivery".to_owned(),
                |(partition, offset)| format!("partition {partition}, offset {offset}"),
            );
            let what = "this publish may repeat an earlier one";
            self.bursts.note_message(what, &route.name, cause.as_str(), place);
        }
    }

    /// Hands them to their lanes, in order.
    fn submit(&self, first: u64, entries: &Arc<Vec<Entry>>, underway: &[Option<Underway>]) {
        let targets: Vec<&Arc<Target>> = underway.iter().flatten().map(|one| &one.target).collect();
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

    /// Decides on what failed of one round.
    fn judge(&mut self, route: &Arc<Route>, refused: Vec<(Passing, Verdict)>) -> Round {
        let now = self.submitter.store.clock().now();
        let mut round = Round { back: Vec::new(), wait_until: None, work: Work::new(route.clone(), now) };
        for (passing, verdict) in refused {
            self.carry_out(route, passing, &verdict, now, &mut round);
        }
        round
    }

    /// Decides on one message that failed, and enters what follows from it.
    fn carry_out(
        &mut self,
        route: &Arc<Route>,
        passing: Passing,
        verdict: &Verdict,
        now: UnixMs,
        round: &mut Round,
    ) {
        let Passing { entry, target, partition, receipt, waits } = passing;
        let (word, error) = retry::describe(verdict);
        let was_tried = *verdict != Verdict::NotTried;
        if was_tried {
            self.metrics.publish_failure(word);
        }
        let (handouts, flow, jitter) = (entry.handouts + 1, PublishFlow::Passing { waits }, fastrand::f64());
        let publish = FailedPublish { entry: &entry, verdict, handouts, flow, now, jitter };
        let quota = |size| self.room.take(&route.name, size);
        let FailedMessage { entry, decision, is_full } = failure::decide(publish, route, quota);
        if let Some(reason) = is_full {
            self.bursts.note(failure::QUOTA_FULL, &route.name, reason.as_str(), &error);
        }
        match decision {
            FailureDecision::WaitUntil(at) => {
                if was_tried {
                    self.wait.begin(&target.name(), word, error.as_str());
                }
                round.wait_until.get_or_insert(at);
                round.back.push(Passing { entry, target, partition, receipt, waits: waits + 1 });
            }
            FailureDecision::RetryAt(due) => {
                let what = "a passing message was refused; it is stored and tried again";
                self.bursts.note(what, &route.name, word, &error);
                self.metrics.retries.inc();
                let target = route.target_ref(&target);
                round.work.store(partition, target, delayed(entry, due), receipt);
            }
            FailureDecision::DeadLetter(reason) | FailureDecision::DeadLetterVia(reason) => {
                let what = "a passing message became a dead letter";
                self.bursts.note(what, &route.name, reason.as_str(), &error);
                if matches!(decision, FailureDecision::DeadLetter(_)) {
                    self.metrics.dead_letter(reason.as_str());
                }
                let op = dead_letter::bury(route, reason, route.target_ref(&target), entry, now);
                round.work.command(partition, op, receipt);
            }
            FailureDecision::Drop => {
                self.bursts.note("a refused message was dropped", &route.name, word, &error);
                self.metrics.dropped(failure::DROP_REASON, 1);
                receipt.resolve();
            }
        }
    }
}

/// A message that leaves the line, as the store keeps it. What Postdate sets on a delayed message stands there once,
/// so what the message brought of those headers goes.
fn delayed(mut entry: Entry, due: UnixMs) -> Entry {
    entry.message.headers.retain(|header| !stamped::is_one(&header.name));
    entry.asked.get_or_insert(entry.due);
    entry.due = due;
    entry
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
