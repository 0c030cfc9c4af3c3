//! Publishing test messages of `send` into a route's own ingress, over the same lanes as every other message.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::admin::{AdmittedMessage, Inject, InjectError, InvalidMessage};
use crate::domain::{Clock, Entry, InvalidReason, Message, Route, Verdict};
use crate::egress::{Lanes, Publication, VerdictInbox};
use crate::ingress::admit::{Admission, admit};

/// Time for a message to leave its lane, microseconds. After that it is not sent at all.
const SUBMIT_DEADLINE_US: i64 = 5_000_000;

/// Publishes to ingress topics and queues.
pub(super) struct IngressInject {
    lanes: Arc<dyn Lanes>,
    clock: Clock,
}

impl IngressInject {
    pub(super) fn new(lanes: Arc<dyn Lanes>, clock: Clock) -> Self {
        Self { lanes, clock }
    }
}

impl Inject for IngressInject {
    fn admit(&self, route: &Route, message: Message) -> Result<AdmittedMessage, InvalidMessage> {
        let mut route = route.clone();
        route.policy.max_lateness_ms = 0;
        let (admission, message) = admit(message, None, None, &route, self.clock.wall().into());
        match admission {
            Admission::Delayed { asked, target, .. } => Ok(AdmittedMessage {
                due: asked.due,
                request: asked.request,
                target,
                message,
            }),
            Admission::Invalid { reason, error } => Err(InvalidMessage {
                reason,
                error: error.to_string(),
            }),
            Admission::Spent { request, .. } => Err(InvalidMessage {
                reason: InvalidReason::BadRetry,
                error: format!(
                    "its consumers have given it back {} times already",
                    request.given_back - 1
                ),
            }),
            Admission::PassThrough { .. } | Admission::Cancel { .. } | Admission::Change { .. } => {
                Err(InvalidMessage {
                    reason: InvalidReason::BadOp,
                    error: "a message with a delay and without a command is expected".to_owned(),
                })
            }
        }
    }

    fn inject<'a>(
        &'a self,
        route: &'a Arc<Route>,
        message: Message,
    ) -> BoxFuture<'a, Result<(), InjectError>> {
        let Some(target) = route.ingress_target().map(Arc::new) else {
            let why = "the route reads several topics".to_owned();
            return Box::pin(async { Err(InjectError::Refused(why)) });
        };
        let due = self.clock.wall();
        let entry = Entry::new(due, message);
        let verdicts: Arc<VerdictInbox> = Arc::default();
        let lane = self.lanes.lane(&target);
        let not_after_us = self.clock.mono_us() + SUBMIT_DEADLINE_US;
        lane.submit(Publication::alone(
            entry,
            target,
            0,
            &verdicts,
            not_after_us,
        ));
        Box::pin(async move {
            match verdicts
                .take()
                .await
                .into_iter()
                .next()
                .map(|(_, verdict)| verdict)
            {
                Some(Verdict::Confirmed(_)) => Ok(()),
                Some(Verdict::Refused { reason, error }) => Err(InjectError::Refused(format!(
                    "{}: {error}",
                    reason.as_str()
                ))),
                Some(Verdict::Unknown { error } | Verdict::Interrupted { error }) => {
                    Err(InjectError::Unconfirmed(error.to_string()))
                }
                Some(Verdict::NotTried | Verdict::Expired) | None => Err(InjectError::Unreachable(
                    "it did not answer in time".to_owned(),
                )),
            }
        })
    }
}
