//! Pass-through: publishes messages without a delay header, byte for byte and in order.
//!
//! While the target takes all messages, a whole batch is in flight at once. A message that is refused for its
//! own sake is treated by the route's `on_refused`: by default it leaves the queue for the store, and the
//! others go on. While a target is away or missing, or gives no verdict, the source waits and the message is
//! retried in place. Messages that were in flight with it may overtake it; the rest of the batch then goes one
//! by one. A worn message, which its queue may drop after a few deliveries more, never waits in its queue: it is
//! stored too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::bundling::StoreWork;
use super::intake::Submitter;
use super::target_wait::TargetWait;
use super::{Receipt, dead_letter};
use crate::domain::failure_policy::{
    self, FailedMessage, FailedPublish, FailureDecision, PublishFlow,
};
use crate::domain::message::stamped;
use crate::domain::{Entry, KafkaPosition, Partition, Route, Target, UnixMs, Verdict, retry};
use crate::egress::{Lanes, Publication, PublishBatch, VerdictInbox};
use crate::lifecycle::Shutdown;
use crate::store::DeadLetterQuota;
use crate::telemetry::{BurstLog, RouteMetrics};

/// Longest wait for a verdict before the source reports that it waits for its target.
const VERDICT_WAIT: Duration = Duration::from_secs(2);

/// Longest wait of a message for its lane if its queue has delivered it often.
const WORN_WAIT: Duration = Duration::from_secs(1);

/// Publishes the passing messages of one source.
pub(super) struct PassThroughPublisher {
    lanes: Arc<dyn Lanes>,
    submitter: Submitter,
    metrics: Arc<RouteMetrics>,
    bursts: Arc<BurstLog>,
    quota: Arc<DeadLetterQuota>,
    verdicts: Arc<VerdictInbox>,
    wait: TargetWait,
    next: u64,
}

/// Everything that a [`PassThroughPublisher`] is built from.
pub(super) struct PassThroughDependencies {
    pub(super) lanes: Arc<dyn Lanes>,
    /// The way into the store for messages that leave the queue.
    pub(super) submitter: Submitter,
    pub(super) metrics: Arc<RouteMetrics>,
    pub(super) bursts: Arc<BurstLog>,
    pub(super) quota: Arc<DeadLetterQuota>,
}

/// A passing message with its receipt.
pub(super) struct PassingRecord {
    pub(super) entry: Entry,
    pub(super) target: Arc<Target>,
    /// The partition that stores the message if it must be stored.
    pub(super) partition: Partition,
    pub(super) receipt: Receipt,
    /// Attempts in a row that found the target away.
    waits: u32,
}

impl PassingRecord {
    pub(super) fn new(
        entry: Entry,
        target: Arc<Target>,
        partition: Partition,
        receipt: Receipt,
    ) -> Self {
        Self {
            entry,
            target,
            partition,
            receipt,
            waits: 0,
        }
    }
}

/// A [`PassingRecord`] that is with its lane. The batch of the lane has its entry.
struct PassingInFlight {
    target: Arc<Target>,
    partition: Partition,
    receipt: Receipt,
    waits: u32,
}

/// The batches of one round that are with their lanes. Dropping them withdraws what no broker has been sent: the source
/// that waited for it is gone, and delivers it again.
struct SubmittedBatches(Vec<Arc<PublishBatch>>);

impl Drop for SubmittedBatches {
    fn drop(&mut self) {
        for batch in &self.0 {
            batch.not_after_us.store(0, Ordering::Release);
        }
    }
}

/// The messages of a batch that are still to be published, in order.
struct RetryQueue<T> {
    waiting: VecDeque<T>,
    singly: bool,
}

impl<T> RetryQueue<T> {
    /// Takes the messages to publish next. `None` at the end.
    fn next(&mut self) -> Option<Vec<T>> {
        let count = if self.singly {
            self.waiting.len().min(1)
        } else {
            self.waiting.len()
        };
        (count > 0).then(|| self.waiting.drain(..count).collect())
    }

    /// Puts failed messages back in front, in order. All messages go one by one from then on.
    fn put_back(&mut self, again: Vec<T>) {
        self.singly = true;
        for one in again.into_iter().rev() {
            self.waiting.push_front(one);
        }
    }
}

/// The failed messages of one round, by what becomes of them.
struct FailedRound {
    /// Messages to retry in place, in order.
    back: Vec<PassingRecord>,
    wait_until: Option<UnixMs>,
    /// Messages that leave the queue for the store.
    work: StoreWork,
}

impl PassThroughPublisher {
    pub(super) fn new(route: &Route, dependencies: PassThroughDependencies) -> Self {
        let PassThroughDependencies {
            lanes,
            submitter,
            metrics,
            bursts,
            quota,
        } = dependencies;
        let wait = TargetWait::new(route.name.clone(), metrics.clone());
        Self {
            lanes,
            submitter,
            metrics,
            bursts,
            quota,
            verdicts: Arc::default(),
            wait,
            next: 0,
        }
    }

    /// Publishes a batch in order. Returns when each message is confirmed, dropped, or has its place in the
    /// store's order. Waits while the route's publishing is paused. If shutting down is forced, or begins
    /// during a wait, the rest stays unresolved: the source delivers it again.
    pub(super) async fn publish(
        &mut self,
        route: &Arc<Route>,
        batch: Vec<PassingRecord>,
        shutdown: &Shutdown,
    ) {
        let mut queue = RetryQueue {
            waiting: batch.into(),
            singly: false,
        };
        let mut pauses = self.submitter.store.pauses();
        while let Some(next) = queue.next() {
            // Wait here: a pause of the route does not send passing messages to the store, unless they are worn.
            let next = if pauses.may_publish(route.name.as_str()) {
                next
            } else {
                self.store_worn(route, next).await
            };
            if next.is_empty() {
                continue;
            }
            tokio::select! {
                () = shutdown.draining() => if !pauses.may_publish(route.name.as_str()) { return },
                () = pauses.until_publishing(route.name.as_str()) => {}
            }
            let Some(refused) = self.publish_once(route, next, shutdown).await else {
                return;
            };
            let FailedRound {
                back,
                wait_until,
                work,
            } = self.decide_round(route, refused);
            self.submitter.submit_all(work).await;
            let Some(at) = wait_until else {
                self.wait.end();
                continue;
            };
            queue.put_back(back);
            let wait_ms = at.since(self.submitter.store.clock().now()).max(1);
            tokio::select! {
                () = shutdown.draining() => return,
                () = tokio::time::sleep(Duration::from_millis(wait_ms as u64)) => {}
            }
        }
    }

    /// Stores the worn messages untried, and returns the others.
    async fn store_worn(
        &mut self,
        route: &Arc<Route>,
        waiting: Vec<PassingRecord>,
    ) -> Vec<PassingRecord> {
        let (worn, others): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|one| one.receipt.is_worn());
        let untried = worn.into_iter().map(|one| (one, Verdict::NotTried));
        let round = self.decide_round(route, untried.collect());
        self.submitter.submit_all(round.work).await;
        others
    }

    /// Submits all messages in order and waits for every verdict. Returns the messages that failed, in order.
    /// `None` if shutting down is forced, or has begun while the target does not answer.
    async fn publish_once(
        &mut self,
        route: &Arc<Route>,
        waiting: Vec<PassingRecord>,
        shutdown: &Shutdown,
    ) -> Option<Vec<(PassingRecord, Verdict)>> {
        let first = self.next;
        self.next += waiting.len() as u64;
        let mut left = waiting.len();
        let mut entries = Vec::with_capacity(left);
        let mut in_flight = Vec::with_capacity(left);
        for PassingRecord {
            entry,
            target,
            partition,
            receipt,
            waits,
        } in waiting
        {
            self.log_repeat(route, &entry);
            entries.push(entry);
            in_flight.push(Some(PassingInFlight {
                target,
                partition,
                receipt,
                waits,
            }));
        }
        let entries = Arc::new(entries);
        let _withdrawn_on_drop = self.submit(route, first, &entries, &in_flight);
        let mut failed = Vec::new();
        while left > 0 {
            let verdicts = self.next_verdicts(&in_flight, shutdown).await?;
            let mut safe = Vec::with_capacity(verdicts.len());
            for (ticket, verdict) in verdicts {
                let index = ticket.wrapping_sub(first) as usize;
                let Some(answered) = in_flight.get_mut(index).and_then(Option::take) else {
                    continue;
                };
                left -= 1;
                let PassingInFlight {
                    target,
                    partition,
                    receipt,
                    waits,
                } = answered;
                if verdict == Verdict::Confirmed {
                    safe.push(receipt);
                } else {
                    let entry = entries[index].clone();
                    failed.push((
                        index,
                        PassingRecord {
                            entry,
                            target,
                            partition,
                            receipt,
                            waits,
                        },
                        verdict,
                    ));
                }
            }
            self.metrics.passed_through.inc_by(safe.len() as u64);
            Receipt::resolve_all(safe);
        }
        failed.sort_by_key(|(index, ..)| *index);
        Some(
            failed
                .into_iter()
                .map(|(_, passing, verdict)| (passing, verdict))
                .collect(),
        )
    }

    /// Takes the next verdicts, and reports a long wait for them. `None` if the process ends first.
    async fn next_verdicts(
        &mut self,
        in_flight: &[Option<PassingInFlight>],
        shutdown: &Shutdown,
    ) -> Option<Vec<(u64, Verdict)>> {
        loop {
            let is_waiting = self.wait.is_waiting();
            tokio::select! {
                () = shutdown.forced() => return None,
                verdicts = self.verdicts.take() => return Some(verdicts),
                () = shutdown.draining(), if is_waiting => return None,
                () = tokio::time::sleep(VERDICT_WAIT), if !is_waiting => {
                    let Some(oldest) = in_flight.iter().flatten().next() else { continue };
                    let lane = self.lanes.lane(&oldest.target);
                    let trouble = lane
                        .trouble_of(&oldest.target)
                        .or_else(|| lane.partial_trouble_of(&oldest.target));
                    let error = trouble.as_deref().unwrap_or("no answer yet");
                    self.wait.begin(&oldest.target.name(), "unavailable", error);
                }
            }
        }
    }

    fn log_repeat(&self, route: &Route, entry: &Entry) {
        if let Some(cause) = entry.repeat_cause(0) {
            self.metrics.redelivered(cause, 1);
            let place = entry.position.map_or_else(
                || "a queue's delivery".to_owned(),
                |KafkaPosition { partition, offset }| {
                    format!("partition {partition}, offset {offset}")
                },
            );
            let what = "this publish may repeat an earlier one";
            self.bursts
                .note_message(what, &route.name, cause.as_str(), place);
        }
    }

    /// Submits the messages to their lanes, in order.
    fn submit(
        &self,
        route: &Route,
        first: u64,
        entries: &Arc<Vec<Entry>>,
        in_flight: &[Option<PassingInFlight>],
    ) -> SubmittedBatches {
        let mut submitted = SubmittedBatches(Vec::new());
        let messages: Vec<&PassingInFlight> = in_flight.iter().flatten().collect();
        let now_us = self.submitter.store.clock().local().mono_us();
        let mut index = 0;
        for together in messages.chunk_by(|one, other| {
            Arc::ptr_eq(&one.target, &other.target)
                && one.receipt.is_worn() == other.receipt.is_worn()
        }) {
            let target = together[0].target.clone();
            let not_after_us = if together[0].receipt.is_worn() {
                now_us + WORN_WAIT.as_micros() as i64
            } else {
                i64::MAX
            };
            let batch = Arc::new(PublishBatch {
                entries: entries.clone(),
                ids: Vec::new(),
                expiries: 0,
                spans: Vec::new(),
                target: target.clone(),
                copies: route.policy.copies,
                first_ticket: first,
                verdicts: self.verdicts.clone(),
                not_after_us: not_after_us.into(),
            });
            let indices = index..index + together.len() as u32;
            index = indices.end;
            let publication = |index| Publication {
                batch: batch.clone(),
                index,
            };
            self.lanes
                .lane(&target)
                .submit_all(indices.map(publication).collect());
            submitted.0.push(batch);
        }
        submitted
    }

    /// Decides on all failed messages of one round.
    fn decide_round(
        &mut self,
        route: &Arc<Route>,
        refused: Vec<(PassingRecord, Verdict)>,
    ) -> FailedRound {
        let now = self.submitter.store.clock().now();
        let mut round = FailedRound {
            back: Vec::new(),
            wait_until: None,
            work: StoreWork::new(route.clone(), now),
        };
        for (passing, verdict) in refused {
            self.carry_out(route, passing, &verdict, now, &mut round);
        }
        round
    }

    /// Decides on one failed message, and carries the decision out.
    fn carry_out(
        &mut self,
        route: &Arc<Route>,
        passing: PassingRecord,
        verdict: &Verdict,
        now: UnixMs,
        round: &mut FailedRound,
    ) {
        let PassingRecord {
            entry,
            target,
            partition,
            receipt,
            waits,
        } = passing;
        let (word, error) = retry::describe(verdict);
        let was_tried = *verdict != Verdict::NotTried;
        if was_tried {
            self.metrics.publish_failure(word);
        }
        let handouts = entry.handouts + 1;
        let flow = PublishFlow::Passing {
            waits,
            is_worn: receipt.is_worn(),
        };
        let jitter = fastrand::f64();
        let publish = FailedPublish {
            entry: &entry,
            verdict,
            handouts,
            flow,
            now,
            jitter,
        };
        let quota = |size| self.quota.take(&route.name, size);
        let FailedMessage {
            entry,
            decision,
            is_full,
        } = failure_policy::decide(publish, route, quota);
        if let Some(reason) = is_full {
            self.bursts.note(
                failure_policy::QUOTA_FULL,
                &route.name,
                reason.as_str(),
                &error,
            );
        }
        match decision {
            FailureDecision::WaitUntil(at) => {
                if was_tried {
                    self.wait.begin(&target.name(), word, error.as_str());
                }
                round.wait_until.get_or_insert(at);
                round.back.push(PassingRecord {
                    entry,
                    target,
                    partition,
                    receipt,
                    waits: waits + 1,
                });
            }
            FailureDecision::RetryAt(due) => {
                let what = if receipt.is_worn() {
                    "a passing message leaves its queue, which has delivered it often and may drop it; it is stored and tried again"
                } else {
                    "a passing message was refused; it is stored and tried again"
                };
                self.bursts.note(what, &route.name, word, &error);
                self.metrics.retries.inc();
                let target = route.target_ref(&target);
                round
                    .work
                    .store(partition, target, delayed(entry, due), receipt);
            }
            FailureDecision::DeadLetter(reason) | FailureDecision::DeadLetterVia(reason) => {
                let what = "a passing message became a dead letter";
                self.bursts.note(what, &route.name, reason.as_str(), &error);
                if matches!(decision, FailureDecision::DeadLetter(_)) {
                    self.metrics.dead_letter(reason.as_str());
                }
                let op =
                    dead_letter::to_write_op(route, reason, route.target_ref(&target), entry, now);
                round.work.command(partition, op, receipt);
            }
            FailureDecision::Drop => {
                self.bursts
                    .note("a refused message was dropped", &route.name, word, &error);
                self.metrics.dropped(failure_policy::DROP_REASON, 1);
                receipt.resolve();
            }
        }
    }
}

/// Turns a passing message into a delayed one. The headers that Postdate sets on a delayed message must appear
/// once, so the message's own ones are removed.
fn delayed(mut entry: Entry, due: UnixMs) -> Entry {
    entry
        .message
        .headers
        .retain(|header| !stamped::is_one(&header.name));
    entry.asked.get_or_insert(entry.due);
    entry.due = due;
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_refusal_nothing_is_overtaken() {
        let mut queue = RetryQueue {
            waiting: (0..6).collect(),
            singly: false,
        };
        assert_eq!(
            queue.next(),
            Some(vec![0, 1, 2, 3, 4, 5]),
            "all at once while all is well"
        );
        queue.put_back(vec![1, 3, 4]);
        let mut arrived = vec![];
        let mut refusals = [1, 3, 3, 4].into_iter().peekable();
        while let Some(next) = queue.next() {
            assert_eq!(next.len(), 1, "one at a time");
            if refusals.next_if_eq(&next[0]).is_some() {
                queue.put_back(next);
            } else {
                arrived.extend(next);
            }
        }
        assert_eq!(arrived, [1, 3, 4]);
        assert_eq!(refusals.next(), None, "each was refused as planned");
    }
}
