//! The desk of messages that ingress publishes itself: it hands them to their lanes, and keeps each until its verdict.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::bundling::{PlacedMessage, StoreWork};
use super::submitter::Submitter;
use super::{Receipt, dead_letter};
use crate::domain::failure_policy::{FailedPublish, PublishFlow};
use crate::domain::message::stamped;
use crate::domain::{Entry, Flags, MonoUs, Partition, Route, Target, UnixMs, Verdict};
use crate::egress::{Lane, Lanes, Publication, PublishBatch, Ticket, VerdictInbox};
use crate::health::{Health, PublishPlace};
use crate::publishing::{Fate, HandedOver, VerdictTime};

/// Longest wait of a message for its lane if it can be stored instead.
const LANE_DEADLINE: Duration = Duration::from_secs(5);

/// A message that ingress publishes itself.
pub(super) struct DirectMessage {
    pub(super) entry: Entry,
    pub(super) target: Arc<Target>,
    /// The partition that stores the message if it must be stored.
    pub(super) partition: Partition,
    pub(super) receipt: Receipt,
    pub(super) flow: PublishFlow,
}

/// A message whose publish failed.
pub(super) struct FailedDirect {
    /// The way into the store for the message's route.
    pub(super) submitter: Arc<Submitter>,
    /// Tickets grow in the order in which messages were handed over.
    pub(super) ticket: Ticket,
    pub(super) message: DirectMessage,
    pub(super) verdict: Verdict,
}

/// Messages on their way to their brokers. Dropping it withdraws what no broker has been sent: the source that waited
/// for it is gone, and delivers it again.
pub(super) struct PublishDesk {
    lanes: Arc<dyn Lanes>,
    verdicts: Arc<VerdictInbox>,
    in_flight: BTreeMap<u64, InFlight>,
    next: u64,
    place: PublishPlace,
    /// Unanswered publishes were reported last.
    has_reported: bool,
}

/// Messages for one lane, in order.
pub(super) struct LaneRun {
    lane: Arc<dyn Lane>,
    publications: Vec<Publication>,
}

impl LaneRun {
    pub(super) fn submit(self) {
        self.lane.submit_all(self.publications);
    }
}

/// Messages of one route that were handed to one lane together.
struct InFlight {
    submitter: Arc<Submitter>,
    batch: Arc<PublishBatch>,
    handed: MonoUs,
    /// The rest of each message, until it has a verdict.
    open: Vec<Option<OpenMessage>>,
    left: usize,
}

struct OpenMessage {
    partition: Partition,
    receipt: Receipt,
    flow: PublishFlow,
}

impl PublishDesk {
    pub(super) fn new(lanes: Arc<dyn Lanes>, health: &Health) -> Self {
        Self {
            lanes,
            verdicts: Arc::default(),
            in_flight: BTreeMap::new(),
            next: 1,
            place: PublishPlace::new(health),
            has_reported: false,
        }
    }

    /// The inbox of the verdicts.
    pub(super) fn verdicts(&self) -> Arc<VerdictInbox> {
        self.verdicts.clone()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// The target of the oldest message that has no verdict, and when it was handed over.
    pub(super) fn oldest(&self) -> Option<(&Target, MonoUs)> {
        let (_, oldest) = self.in_flight.first_key_value()?;
        Some((&oldest.batch.target, oldest.handed))
    }

    /// Reports which targets have not answered, and since when.
    pub(super) fn report_unanswered(&mut self) {
        if self.in_flight.is_empty() && !self.has_reported {
            return;
        }
        self.has_reported = !self.in_flight.is_empty();
        let in_flight = self.in_flight.values();
        self.place
            .unanswered(in_flight.map(|one| (&*one.batch.target, one.handed.0)));
    }

    /// Registers messages of one route before their verdicts can come. The caller submits them to their lanes, in order.
    pub(super) fn register(
        &mut self,
        submitter: &Arc<Submitter>,
        messages: Vec<DirectMessage>,
    ) -> Vec<LaneRun> {
        let mut runs = Vec::new();
        let mut messages = messages.into_iter().peekable();
        while let Some(first) = messages.next() {
            let target = first.target.clone();
            let is_passing = first.flow.is_passing();
            let mut together = vec![first];
            while let Some(next) = messages.next_if(|next| {
                Arc::ptr_eq(&next.target, &target) && next.flow.is_passing() == is_passing
            }) {
                together.push(next);
            }
            runs.push(self.register_run(submitter, target, together));
        }
        runs
    }

    fn register_run(
        &mut self,
        submitter: &Arc<Submitter>,
        target: Arc<Target>,
        together: Vec<DirectMessage>,
    ) -> LaneRun {
        let store = &submitter.store;
        let reporter = &submitter.reporter;
        let handed = store.clock().local().mono();
        let flow = together[0].flow;
        let (ids, not_after_us) = match flow {
            PublishFlow::Passing { .. } => (Vec::new(), i64::MAX),
            // None of them has a name: the store alone can say whether it is free.
            PublishFlow::Delayed | PublishFlow::Dying => (
                store.unique_ids(together.iter().map(|message| message.partition)),
                after(handed, LANE_DEADLINE),
            ),
        };
        let mut entries = Vec::with_capacity(together.len());
        let mut open = Vec::with_capacity(together.len());
        for message in together {
            entries.push(message.entry);
            open.push(Some(OpenMessage {
                partition: message.partition,
                receipt: message.receipt,
                flow: message.flow,
            }));
        }
        let spans = if flow.is_passing() {
            Vec::new()
        } else {
            reporter.spans(&entries)
        };
        let number = self.next;
        self.next += 1;
        let batch = Arc::new(PublishBatch {
            spans,
            entries: Arc::new(entries),
            ids,
            expiries: 0,
            target,
            clock: (flow == PublishFlow::Delayed).then(|| store.clock().clone()),
            copies: reporter.route().policy.copies,
            number,
            verdicts: self.verdicts.clone(),
            listener: Some(reporter.clone()),
            not_after_us: not_after_us.into(),
        });
        let left = open.len();
        let mut publications = Vec::with_capacity(left);
        for index in 0..left as u32 {
            publications.push(Publication {
                batch: batch.clone(),
                index,
            });
        }
        let lane = self.lanes.lane(&batch.target);
        let in_flight = InFlight {
            submitter: submitter.clone(),
            batch,
            handed,
            open,
            left,
        };
        self.in_flight.insert(number, in_flight);
        LaneRun { lane, publications }
    }

    /// Takes verdicts. Returns the receipts of confirmed messages, and the messages that failed.
    pub(super) fn judge(
        &mut self,
        verdicts: Vec<(Ticket, Verdict)>,
        at: VerdictTime,
    ) -> (Vec<Receipt>, Vec<FailedDirect>) {
        let mut safe = Vec::with_capacity(verdicts.len());
        let mut failed = Vec::new();
        for (ticket, verdict) in verdicts {
            let Some(in_flight) = self.in_flight.get_mut(&ticket.batch) else {
                continue;
            };
            let Some(one) = in_flight
                .open
                .get_mut(ticket.index as usize)
                .and_then(Option::take)
            else {
                continue;
            };
            in_flight.left -= 1;
            let batch = &in_flight.batch;
            let handed_over = HandedOver {
                batch,
                index: ticket.index,
                flow: one.flow,
                handed: in_flight.handed,
            };
            in_flight
                .submitter
                .reporter
                .heard(handed_over, &verdict, at);
            if verdict.is_confirmed() {
                safe.push(one.receipt);
            } else {
                let mut entry = batch.entries[ticket.index as usize].clone();
                entry.id = batch.ids.get(ticket.index as usize).cloned();
                let message = DirectMessage {
                    entry,
                    target: batch.target.clone(),
                    partition: one.partition,
                    receipt: one.receipt,
                    flow: one.flow,
                };
                let submitter = in_flight.submitter.clone();
                failed.push(FailedDirect {
                    submitter,
                    ticket,
                    message,
                    verdict,
                });
            }
            if in_flight.left == 0 {
                self.in_flight.remove(&ticket.batch);
            }
        }
        (safe, failed)
    }

    /// Forgets all messages, and withdraws what no broker has been sent.
    pub(super) fn withdraw(&mut self) {
        self.take_back();
    }

    /// Withdraws what no broker has been sent, and returns all messages without a verdict, in order. Each may have been
    /// sent.
    pub(super) fn take_back(&mut self) -> Vec<DirectMessage> {
        let mut messages = Vec::new();
        for in_flight in std::mem::take(&mut self.in_flight).into_values() {
            let batch = &in_flight.batch;
            batch.not_after_us.store(0, Ordering::Release);
            for (entry, one) in batch.entries.iter().zip(in_flight.open) {
                let Some(one) = one else { continue };
                let mut entry = entry.clone();
                entry.flags = entry.flags.with(Flags::CONFIRM_UNKNOWN);
                entry.handouts += 1;
                messages.push(DirectMessage {
                    entry,
                    target: batch.target.clone(),
                    partition: one.partition,
                    receipt: one.receipt,
                    flow: one.flow,
                });
            }
        }
        self.report_unanswered();
        messages
    }
}

impl Drop for PublishDesk {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// The monotonic microseconds this long after a moment.
fn after(moment: MonoUs, wait: Duration) -> i64 {
    moment.0 + wait.as_micros() as i64
}

impl DirectMessage {
    /// The message on its way into the store instead.
    pub(super) fn placed(self, route: &Route) -> PlacedMessage {
        PlacedMessage {
            partition: self.partition,
            target: route.target_ref(&self.target),
            entry: self.entry,
            receipt: self.receipt,
        }
    }

    /// Adds a passing message to the work for the store, as a delayed one that is due now: it must not wait in its queue.
    pub(super) fn leave_queue(mut self, submitter: &Submitter, work: &mut StoreWork) {
        submitter.reporter.leaves_queue();
        make_delayed(&mut self.entry);
        work.store(self.placed(submitter.reporter.route()));
    }
}

impl FailedDirect {
    /// See [`DirectMessage::carry_out`].
    pub(super) fn carry_out(
        self,
        now: UnixMs,
        work: &mut StoreWork,
    ) -> Option<(DirectMessage, UnixMs)> {
        self.message
            .carry_out(&self.verdict, &self.submitter, now, work)
    }
}

impl DirectMessage {
    /// Decides what becomes of the message after this verdict. What leaves its source is added to the work for the store.
    /// Returns the message if it waits in its source, and until when.
    pub(super) fn carry_out(
        self,
        verdict: &Verdict,
        submitter: &Submitter,
        now: UnixMs,
        work: &mut StoreWork,
    ) -> Option<(DirectMessage, UnixMs)> {
        let Self {
            entry,
            target,
            partition,
            receipt,
            flow,
        } = self;
        let failed = FailedPublish {
            entry: &entry,
            verdict,
            handouts: entry.handouts + 1,
            flow,
            now,
            jitter: fastrand::f64(),
        };
        let at = submitter.store.clock().local().mono();
        let fate = submitter.reporter.fate(failed, &target, at);
        let route = submitter.reporter.route();
        let own = route.target_ref(&target);
        match fate {
            Fate::Wait(entry, until) => {
                let waits = match flow {
                    PublishFlow::Passing { waits } => waits + 1,
                    PublishFlow::Delayed | PublishFlow::Dying => 0,
                };
                let message = DirectMessage {
                    entry,
                    target,
                    partition,
                    receipt,
                    flow: PublishFlow::Passing { waits },
                };
                return Some((message, until));
            }
            Fate::Again(mut entry) => {
                if *verdict != Verdict::NotTried {
                    submitter.reporter.put_back(1);
                }
                if flow.is_passing() {
                    make_delayed(&mut entry);
                }
                work.store(PlacedMessage {
                    partition,
                    target: own,
                    entry,
                    receipt,
                });
            }
            Fate::Dying(entry) => {
                let op = dead_letter::dying_op(route, own, entry);
                work.command(partition, op, receipt);
            }
            Fate::Dead(entry, reason) => {
                let op = dead_letter::dead_op(route, reason, own, entry);
                work.command(partition, op, receipt);
            }
            Fate::Dropped(message) => {
                submitter.reporter.dropped(&message);
                receipt.resolve();
            }
        }
        None
    }
}

/// Turns a passing message into a delayed one. The headers that Postdate sets on a delayed message must appear once, so
/// the message's own ones are removed.
fn make_delayed(entry: &mut Entry) {
    entry
        .message
        .headers
        .retain(|header| !stamped::is_one(&header.name));
    entry.asked.get_or_insert(entry.due);
}
