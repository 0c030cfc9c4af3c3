//! Invalid messages: carries out the route's `on_invalid`.

use super::{JudgedBatch, ReadMessage, Source};
use crate::domain::failure_policy::PublishFlow;
use crate::domain::route::Choice;
use crate::domain::{DeadReason, InvalidReason, Message, OnInvalid, Route, Text, retry};
use crate::ingress::admit::on_invalid;
use crate::ingress::{dead_letter, headers};

impl Source {
    pub(super) fn invalid(
        &self,
        reason: InvalidReason,
        error: &Text,
        incomplete: bool,
        read: ReadMessage,
        judged: &mut JudgedBatch,
    ) {
        let policy = on_invalid(&self.route, incomplete);
        self.metrics.invalid(reason, policy.as_str());
        self.note("an invalid message", reason.as_str(), error.as_str());
        let id = named(&read.entry.message, &self.route);
        match policy {
            OnInvalid::PassThrough => {
                let flow = PublishFlow::Passing { waits: 0 };
                judged.soonest = read.entry.due;
                let message = self.direct(read, self.route.to.clone(), flow);
                self.pass_on(message, judged);
            }
            OnInvalid::Drop => {
                self.submitter
                    .reporter
                    .dropped_invalid(reason, id.as_ref(), read.entry.due);
                read.receipt.resolve();
            }
            OnInvalid::DeadLetter => {
                self.bury_invalid(DeadReason::Invalid(reason), error, id, read, judged);
            }
        }
    }

    /// Makes an invalid message a dead letter: in the partition of its name, so that it can be found by the name.
    fn bury_invalid(
        &self,
        reason: DeadReason,
        error: &Text,
        id: Option<Text>,
        mut read: ReadMessage,
        judged: &mut JudgedBatch,
    ) {
        read.entry.id = id;
        let p = self.partition_of_message(&read);
        let ReadMessage {
            mut entry, receipt, ..
        } = read;
        let now = entry.due;
        retry::remember(&mut entry, now, reason.as_str(), error.as_str());
        let Some(entry) = dead_letter::fit_entry(entry, &self.route.policy) else {
            let what = "a message over dead_letters.max_message goes back to its queue's own \
                        dead-letter exchange";
            self.note(what, reason.as_str(), error.as_str());
            receipt.reject();
            return;
        };
        let op =
            dead_letter::to_write_op(&self.route, reason, self.route.own_target_ref(), entry, now);
        judged.work.command(p, op, receipt);
    }
}

/// The producer's name for a message that is invalid for another reason.
fn named(message: &Message, route: &Route) -> Option<Text> {
    let found = headers::find_delay_headers(&message.headers, &route.policy);
    found
        .id
        .iter()
        .find_map(|header| headers::id(header.value, message.origin).ok().flatten())
}
