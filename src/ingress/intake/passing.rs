//! Passing messages: each goes to its target, unless it is in a loop. And what goes to no target any more.

use std::sync::Arc;

use super::{JudgedBatch, Source};
use crate::domain::{DeadReason, Entry, Flags, Partition, Target, retry};
use crate::ingress::loops::Passage;
use crate::ingress::{Receipt, dead_letter};

impl Source {
    pub(super) fn pass_on(
        &self,
        entry: Entry,
        target: Arc<Target>,
        partition: Partition,
        receipt: Receipt,
        judged: &mut JudgedBatch,
    ) {
        let message = &entry.message;
        // A message that its source delivers twice has not gone round.
        let flags = entry.flags;
        let is_again = flags.has(Flags::SOURCE_REREAD) || flags.has(Flags::SOURCE_REDELIVERY);
        let now_us = self.intake.store.clock().local().mono_us();
        let passage = if is_again {
            Passage::Usual
        } else {
            self.loops.pass(message, now_us)
        };
        if passage != Passage::Usual {
            self.metrics.loops.inc();
        }
        let bursts = &self.intake.bursts;
        let name = &self.route.name;
        match passage {
            Passage::Usual => {}
            Passage::Returned => {
                let what =
                    "a message that was delayed comes back on a route that it passed: a loop";
                bursts.note(
                    what,
                    name,
                    "returned",
                    "it carries x-delay-due and no new delay header",
                );
            }
            Passage::Repeated => {
                let what = "the same content passes again and again: perhaps a loop";
                bursts.note(
                    what,
                    name,
                    "repeated",
                    "a thousand times within ten seconds",
                );
            }
            Passage::Looping => {
                return self.stop_loop(entry, &target, partition, receipt, judged);
            }
        }
        judged.pass(entry, target, partition, receipt);
    }

    /// Takes a message out of its loop: makes it a dead letter.
    fn stop_loop(
        &self,
        entry: Entry,
        target: &Arc<Target>,
        partition: Partition,
        receipt: Receipt,
        judged: &mut JudgedBatch,
    ) {
        let error = "it came back again and again with x-delay-due and no new delay header";
        let what = "a message went round and was stopped";
        self.intake
            .bursts
            .note(what, &self.route.name, "loop", error);
        self.bury(
            DeadReason::Loop,
            error,
            entry,
            target,
            partition,
            receipt,
            judged,
        );
    }

    /// Makes a message a dead letter that its consumers have given back too often.
    pub(super) fn stop_retrying(
        &self,
        entry: Entry,
        target: &Arc<Target>,
        partition: Partition,
        receipt: Receipt,
        judged: &mut JudgedBatch,
    ) {
        let reason = DeadReason::Retries;
        let error = format!("its consumers gave it back {} times", entry.given_back());
        let what = "a message was given back too often and is a dead letter";
        self.intake
            .bursts
            .note(what, &self.route.name, reason.as_str(), &error);
        self.bury(reason, &error, entry, target, partition, receipt, judged);
    }

    /// Makes a message that was valid a dead letter.
    #[allow(
        clippy::too_many_arguments,
        reason = "a message with all that belongs to it"
    )]
    fn bury(
        &self,
        reason: DeadReason,
        error: &str,
        mut entry: Entry,
        target: &Arc<Target>,
        partition: Partition,
        receipt: Receipt,
        judged: &mut JudgedBatch,
    ) {
        let now = entry.due;
        retry::remember(&mut entry, now, reason.as_str(), error);
        // The quota does not refuse it: an exhausted quota pauses the route's ingress instead.
        self.submitter.reporter.take_quota(entry.stored_size());
        let op = dead_letter::to_write_op(
            &self.route,
            reason,
            self.route.target_ref(target),
            entry,
            now,
        );
        judged.work.command(partition, op, receipt);
    }
}
