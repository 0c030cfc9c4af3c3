//! What becomes of a message that passes through: to its target, unless it goes round.

use std::sync::Arc;

use super::{Intake, Judged, Source};
use crate::domain::{DeadReason, Flags, Route, retry};
use crate::ingress::dead_letter;
use crate::ingress::loops::Passage;
use crate::ingress::pass_through::{self, Passing, Through};
use crate::telemetry::RouteMetrics;

impl Intake {
    /// One source's way past the store.
    pub(super) fn through(&self, route: &Route, metrics: &Arc<RouteMetrics>) -> Through {
        let parts = pass_through::Parts {
            lanes: self.lanes.clone(),
            submitter: self.submitter(metrics),
            metrics: metrics.clone(),
            bursts: self.bursts.clone(),
            room: self.room.clone(),
        };
        Through::new(route, parts)
    }
}

impl Source {
    pub(super) fn passing(&self, passing: Passing, judged: &mut Judged) {
        let message = &passing.entry.message;
        // What its source delivers twice has not gone round.
        let flags = passing.entry.flags;
        let is_again = flags.has(Flags::SOURCE_REREAD) || flags.has(Flags::SOURCE_REDELIVERY);
        let now_us = self.intake.store.clock().local().mono_us();
        let passage = if is_again { Passage::Usual } else { self.loops.pass(message, now_us) };
        if passage != Passage::Usual {
            self.metrics.loops.inc();
        }
        let (bursts, name) = (&self.intake.bursts, &self.route.name);
        match passage {
            Passage::Usual => {}
            Passage::Returned => {
                let what = "a message that was delayed comes back on a route that it passed: a loop";
                bursts.note(what, name, "returned", "it carries x-delay-due and no new delay header");
            }
            Passage::Repeated => {
                let what = "the same content passes again and again: perhaps a loop";
                bursts.note(what, name, "repeated", "a thousand times within ten seconds");
            }
            Passage::Looping => return self.stop_loop(passing, judged),
        }
        judged.through.push(passing);
    }

    /// Takes a message that goes round out of its loop: a dead letter.
    fn stop_loop(&self, passing: Passing, judged: &mut Judged) {
        let Passing { mut entry, target, partition, receipt, .. } = passing;
        let (reason, now) = (DeadReason::Loop, entry.due);
        let error = "it came back again and again with x-delay-due and no new delay header";
        self.intake.bursts.note("a message went round and was stopped", &self.route.name, "loop", error);
        retry::remember(&mut entry, now, reason.as_str(), error);
        if self.route.dead_letter_to.is_none() {
            self.metrics.dead_letter(reason.as_str());
        }
        // Where no room is left it is kept all the same: the route's ingress pauses then.
        self.intake.room.take(&self.route.name, entry.stored_size());
        let op = dead_letter::bury(&self.route, reason, self.route.target_ref(&target), entry, now);
        judged.work.command(partition, op, receipt);
    }
}
