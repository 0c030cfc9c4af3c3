//! Pass-through: publishes messages without a delay header, byte for byte and in order.
//!
//! While the target takes all messages, a whole batch is in flight at once. A message that is refused for its
//! own sake is treated by the route's `on_refused`: by default it leaves the queue for the store, and the
//! others go on. While a target is away or missing, or gives no verdict, the source waits and the message is
//! retried in place. Messages that were in flight with it may overtake it; the rest of the batch then goes one
//! by one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::bundling::StoreWork;
use super::publish_desk::{DirectMessage, FailedDirect, LaneRun, PublishDesk};
use super::submitter::Submitter;
use super::target_wait::TargetWait;
use super::{Ledger, Receipt};
use crate::domain::{UnixMs, Verdict, retry};
use crate::egress::{Lanes, Ticket, VerdictInbox};
use crate::health::SILENT_US;
use crate::lifecycle::Shutdown;
use crate::publishing::VerdictTime;

/// Longest wait for a verdict before the source reports that it waits for its target.
const VERDICT_WAIT: Duration = Duration::from_micros(SILENT_US as u64);

/// Publishes the passing messages of one source.
pub(super) struct PassThroughPublisher {
    submitter: Arc<Submitter>,
    lanes: Arc<dyn Lanes>,
    desk: PublishDesk,
    verdicts: Arc<VerdictInbox>,
    wait: TargetWait,
}

/// How a round of publishing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundEnd {
    /// Every message has its verdict.
    AllJudged,
    /// The process ends.
    Ended,
    /// Messages stand behind that must not wait in their queue.
    Pressed,
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

/// Waits until messages that must not wait in their queue stand behind those of this ledger.
async fn pressed(ledger: Option<&Arc<Ledger>>) {
    match ledger {
        Some(ledger) => ledger.pressed().await,
        None => std::future::pending().await,
    }
}

impl PassThroughPublisher {
    pub(super) fn new(submitter: Arc<Submitter>, lanes: Arc<dyn Lanes>) -> Self {
        let reporter = &submitter.reporter;
        let desk = PublishDesk::new(lanes.clone(), reporter.health());
        let name = &reporter.route().name;
        Self {
            verdicts: desk.verdicts(),
            wait: TargetWait::new(name.clone(), reporter.health().route(name)),
            submitter,
            lanes,
            desk,
        }
    }

    /// Publishes a batch in order. Returns when each message is confirmed, dropped, or has its place in the
    /// store's order. Waits while the route's publishing is paused. If shutting down is forced, or begins
    /// during a wait, the rest stays unresolved: the source delivers it again. Once messages stand behind the batch
    /// that must not wait in their queue, what waits of it goes to the store, its place in the order lost.
    pub(super) async fn publish(&mut self, batch: Vec<DirectMessage>, shutdown: &Shutdown) {
        let Some(first) = batch.first() else { return };
        let ledger = first.receipt.ledger().cloned();
        let mut queue = RetryQueue {
            waiting: batch.into(),
            singly: false,
        };
        let route = self.submitter.reporter.route().clone();
        let mut pauses = self.submitter.store.pauses();
        while let Some(next) = queue.next() {
            // Wait here: a pause of the route does not send passing messages to the store.
            let is_pressed = tokio::select! {
                () = shutdown.draining() => if pauses.may_publish(route.name.as_str()) { false } else { return },
                () = pauses.until_publishing(route.name.as_str()) => false,
                () = pressed(ledger.as_ref()) => true,
            };
            if is_pressed {
                self.leave_queue(next.into_iter().chain(queue.waiting), Vec::new())
                    .await;
                return;
            }
            let mut failed = Vec::new();
            match self
                .publish_once(next, &mut failed, ledger.as_ref(), shutdown)
                .await
            {
                RoundEnd::AllJudged => {}
                RoundEnd::Ended => {
                    self.desk.withdraw();
                    return;
                }
                RoundEnd::Pressed => {
                    let open = self.desk.take_back();
                    self.leave_queue(open.into_iter().chain(queue.waiting), failed)
                        .await;
                    return;
                }
            }
            let now = self.submitter.store.clock().now();
            let mut work = StoreWork::new(route.clone(), now);
            let (back, wait_until) = self.carry_out(failed, now, &mut work);
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
                () = pressed(ledger.as_ref()) => {
                    self.leave_queue(queue.waiting.into_iter(), Vec::new()).await;
                    return;
                }
            }
        }
    }

    /// Gives up the messages of a batch whose publishing was dropped: their source delivers them again.
    pub(super) fn give_up(&mut self) {
        self.desk.withdraw();
    }

    /// Stores what waits, and what becomes of failed messages.
    async fn leave_queue(
        &mut self,
        waiting: impl Iterator<Item = DirectMessage>,
        failed: Vec<FailedDirect>,
    ) {
        let now = self.submitter.store.clock().now();
        let mut work = StoreWork::new(self.submitter.reporter.route().clone(), now);
        let (back, _) = self.carry_out(failed, now, &mut work);
        for message in back.into_iter().chain(waiting) {
            message.leave_queue(&self.submitter, &mut work);
        }
        self.submitter.submit_all(work).await;
        self.wait.end();
    }

    /// Hands all messages to their lanes in order, waits for every verdict, and adds the messages that failed, in order.
    async fn publish_once(
        &mut self,
        messages: Vec<DirectMessage>,
        failed: &mut Vec<FailedDirect>,
        ledger: Option<&Arc<Ledger>>,
        shutdown: &Shutdown,
    ) -> RoundEnd {
        let runs = self.desk.register(&self.submitter, messages);
        runs.into_iter().for_each(LaneRun::submit);
        while !self.desk.is_empty() {
            if self.wait.is_waiting() {
                self.desk.report_unanswered();
            }
            let verdicts = tokio::select! {
                verdicts = self.next_verdicts(shutdown) => verdicts,
                () = pressed(ledger) => return RoundEnd::Pressed,
            };
            let Some(verdicts) = verdicts else {
                return RoundEnd::Ended;
            };
            let at = VerdictTime::now(self.submitter.store.clock());
            let (safe, now_failed) = self.desk.judge(verdicts, at);
            Receipt::resolve_all(safe);
            failed.extend(now_failed);
        }
        self.desk.report_unanswered();
        failed.sort_by_key(|failed: &FailedDirect| failed.ticket);
        RoundEnd::AllJudged
    }

    /// Takes the next verdicts, and reports a long wait for them. `None` if shutting down is forced, or has begun while
    /// the target does not answer. Cancel-safe.
    async fn next_verdicts(&mut self, shutdown: &Shutdown) -> Option<Vec<(Ticket, Verdict)>> {
        loop {
            let is_waiting = self.wait.is_waiting();
            let answered_by = self.answered_by();
            tokio::select! {
                () = shutdown.forced() => return None,
                verdicts = self.verdicts.take() => return Some(verdicts),
                () = shutdown.draining(), if is_waiting => return None,
                () = tokio::time::sleep_until(answered_by), if !is_waiting => {
                    self.desk.report_unanswered();
                    let Some((target, _)) = self.desk.oldest() else { continue };
                    let lane = self.lanes.lane(target);
                    let trouble = lane
                        .trouble_of(target)
                        .or_else(|| lane.partial_trouble_of(target));
                    let error = trouble.as_deref().unwrap_or("no answer yet");
                    self.wait.begin(&target.name(), "unavailable", error);
                }
            }
        }
    }

    /// When the target of the oldest message must have answered.
    fn answered_by(&self) -> Instant {
        let now = self.submitter.store.clock().local().mono();
        let handed = self.desk.oldest().map_or(now, |(_, handed)| handed);
        let silent_us = (now.0 - handed.0).max(0) as u64;
        Instant::now() + VERDICT_WAIT.saturating_sub(Duration::from_micros(silent_us))
    }

    /// Carries out what becomes of the failed messages of one round. Returns those that wait in their source, in order,
    /// and until when.
    fn carry_out(
        &mut self,
        failed: Vec<FailedDirect>,
        now: UnixMs,
        work: &mut StoreWork,
    ) -> (Vec<DirectMessage>, Option<UnixMs>) {
        let mut back = Vec::new();
        let mut wait_until = None;
        for one in failed {
            let verdict = one.verdict.clone();
            let Some((message, until)) = one.carry_out(now, work) else {
                continue;
            };
            if verdict != Verdict::NotTried {
                let (reason, error) = retry::describe(&verdict);
                self.wait
                    .begin(&message.target.name(), reason, error.as_str());
            }
            wait_until.get_or_insert(until);
            back.push(message);
        }
        (back, wait_until)
    }
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
