//! Passing messages: each goes to its target, unless it is in a loop. And what goes to no target any more.

use super::{JudgedBatch, Source};
use crate::domain::{DeadReason, Flags, retry};
use crate::ingress::bundling::PlacedMessage;
use crate::ingress::dead_letter;
use crate::ingress::loops::Passage;
use crate::ingress::publish_desk::DirectMessage;

impl Source {
    pub(super) fn pass_on(&self, message: DirectMessage, judged: &mut JudgedBatch) {
        let passage = self.passage(&message);
        if passage != Passage::Usual {
            self.metrics.loops.inc();
        }
        match passage {
            Passage::Usual => {}
            Passage::Returned => self.note(
                "a message that was delayed comes back on a route that it passed: a loop",
                "returned",
                "it carries x-delay-due and no delay header that could be read",
            ),
            Passage::Repeated => self.note(
                "the same content passes again and again: perhaps a loop",
                "repeated",
                "a thousand times within ten seconds",
            ),
            Passage::Looping => {
                return self.stop_loop(message.placed(&self.route), judged);
            }
        }
        judged.passing.push(message);
    }

    /// Whether a message goes round. One that its source delivers twice has not.
    fn passage(&self, message: &DirectMessage) -> Passage {
        let flags = message.entry.flags;
        if flags.has(Flags::SOURCE_REREAD) || flags.has(Flags::SOURCE_REDELIVERY) {
            return Passage::Usual;
        }
        let now_us = self.intake.store.clock().local().mono_us();
        self.loops.pass(&message.entry.message, now_us)
    }

    /// Takes a message out of its loop: makes it a dead letter.
    fn stop_loop(&self, message: PlacedMessage, judged: &mut JudgedBatch) {
        let error =
            "it came back again and again with x-delay-due and no delay header that could be read";
        self.note("a message went round and was stopped", "loop", error);
        self.bury(DeadReason::Loop, error, message, judged);
    }

    /// Makes a message a dead letter that its consumers have given back too often.
    pub(super) fn stop_retrying(&self, message: PlacedMessage, judged: &mut JudgedBatch) {
        let reason = DeadReason::Retries;
        let times = message.entry.given_back();
        let error = format!("its consumers gave it back {times} times");
        let what = "a message was given back too often and is a dead letter";
        self.note(what, reason.as_str(), &error);
        self.bury(reason, &error, message, judged);
    }

    /// Makes a message that was valid a dead letter.
    fn bury(
        &self,
        reason: DeadReason,
        error: &str,
        message: PlacedMessage,
        judged: &mut JudgedBatch,
    ) {
        let PlacedMessage {
            partition,
            target,
            mut entry,
            receipt,
        } = message;
        let now = entry.due;
        retry::remember(&mut entry, now, reason.as_str(), error);
        // The quota does not refuse it: an exhausted quota pauses the route's ingress instead.
        self.submitter.reporter.take_quota(entry.stored_size());
        let op = dead_letter::to_write_op(&self.route, reason, target, entry, now);
        judged.work.command(partition, op, receipt);
    }

    /// Logs what happened to a message of the route, together with what happens to others meanwhile.
    pub(super) fn note(&self, what: &'static str, word: &'static str, error: &str) {
        self.intake.bursts.note(what, &self.route.name, word, error);
    }
}
