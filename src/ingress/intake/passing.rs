//! Passing messages: each goes to its target, unless it is in a loop.

use std::sync::Arc;

use super::{Intake, JudgedBatch, Source};
use crate::domain::{DeadReason, Flags, Route, retry};
use crate::ingress::dead_letter;
use crate::ingress::loops::Passage;
use crate::ingress::pass_through::{PassThroughDependencies, PassThroughPublisher, PassingRecord};
use crate::telemetry::RouteMetrics;

impl Intake {
    /// The publisher of one source's passing messages.
    pub(super) fn pass_through(
        &self,
        route: &Route,
        metrics: &Arc<RouteMetrics>,
    ) -> PassThroughPublisher {
        let dependencies = PassThroughDependencies {
            lanes: self.lanes.clone(),
            submitter: self.submitter(route, metrics),
            metrics: metrics.clone(),
            bursts: self.bursts.clone(),
            quota: self.quota.clone(),
        };
        PassThroughPublisher::new(route, dependencies)
    }
}

impl Source {
    pub(super) fn pass_on(&self, passing: PassingRecord, judged: &mut JudgedBatch) {
        let message = &passing.entry.message;
        // A message that its source delivers twice has not gone round.
        let flags = passing.entry.flags;
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
            Passage::Looping => return self.stop_loop(passing, judged),
        }
        judged.passing.push(passing);
    }

    /// Takes a message out of its loop: makes it a dead letter.
    fn stop_loop(&self, passing: PassingRecord, judged: &mut JudgedBatch) {
        let PassingRecord {
            mut entry,
            target,
            partition,
            receipt,
            ..
        } = passing;
        let reason = DeadReason::Loop;
        let now = entry.due;
        let error = "it came back again and again with x-delay-due and no new delay header";
        self.intake.bursts.note(
            "a message went round and was stopped",
            &self.route.name,
            "loop",
            error,
        );
        retry::remember(&mut entry, now, reason.as_str(), error);
        if self.route.dead_letter_to.is_none() {
            self.metrics.dead_letter(reason.as_str());
        }
        // The quota does not refuse it: an exhausted quota pauses the route's ingress instead.
        self.intake
            .quota
            .take(&self.route.name, entry.stored_size());
        let op = dead_letter::to_write_op(
            &self.route,
            reason,
            self.route.target_ref(&target),
            entry,
            now,
        );
        judged.work.command(partition, op, receipt);
    }
}
