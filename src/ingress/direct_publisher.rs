//! Publishes messages for which no source waits: unnamed messages that are due on arrival. They go straight to their
//! targets. The target's confirm releases the source. A message that is refused, gets no verdict, or waits too long for its lane is stored under the retry policy, and its
//! source is released once the store has it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Receipt;
use super::bundling::StoreWork;
use super::publish_desk::{DirectMessage, FailedDirect, LaneRun, PublishDesk};
use super::submitter::Submitter;
use crate::egress::Lanes;
use crate::health::Health;
use crate::lifecycle::{Shutdown, Stage, Tasks, tick};
use crate::publishing::VerdictTime;
use crate::store::Store;

/// Time between two reports of what has no answer.
const TICK_INTERVAL: Duration = Duration::from_secs(1);

/// Publishes such messages, of all sources. Cheap to clone.
#[derive(Clone)]
pub(super) struct DirectPublisher {
    desk: Arc<Mutex<PublishDesk>>,
    tasks: Tasks,
}

impl DirectPublisher {
    /// Starts it. It ends once its sources have ended and all verdicts are in.
    pub(super) fn start(
        store: &Store,
        lanes: Arc<dyn Lanes>,
        health: &Health,
        tasks: &Tasks,
        shutdown: &Shutdown,
    ) -> Self {
        let desk = PublishDesk::new(lanes, health);
        let inbox = desk.verdicts();
        let publisher = Self {
            desk: Arc::new(Mutex::new(desk)),
            tasks: tasks.clone(),
        };
        let worker = publisher.clone();
        let clock = store.clock().clone();
        let shutdown = shutdown.clone();
        tasks.of(Stage::Publishing).spawn("direct", async move {
            let mut ticked = pin!(tick(TICK_INTERVAL));
            loop {
                tokio::select! {
                    () = shutdown.forced() => return,
                    verdicts = inbox.take() => {
                        let at = VerdictTime::now(&clock);
                        let (safe, failed) = worker.desk.lock().judge(verdicts, at);
                        Receipt::resolve_all(safe);
                        worker.store_failed(failed);
                    }
                    () = ticked.as_mut() => {
                        ticked.set(tick(TICK_INTERVAL));
                        worker.desk.lock().report_unanswered();
                    }
                    // The sources have drained, so no new messages come, and all verdicts are in.
                    () = shutdown.draining(), if worker.desk.lock().is_empty() => return,
                }
            }
        });
        publisher
    }

    /// Hands messages of one route to their lanes, in order.
    pub(super) fn publish(&self, submitter: &Arc<Submitter>, messages: Vec<DirectMessage>) {
        if messages.is_empty() {
            return;
        }
        // Lanes are not called under the lock, which all sources share with the worker.
        let runs = self.desk.lock().register(submitter, messages);
        runs.into_iter().for_each(LaneRun::submit);
    }

    /// Stores failed messages, or what the failure policy makes of them.
    fn store_failed(&self, failed: Vec<FailedDirect>) {
        let mut failed = failed.into_iter().peekable();
        while let Some(first) = failed.next() {
            let submitter = first.submitter.clone();
            let now = submitter.store.clock().now();
            let mut work = StoreWork::new(submitter.reporter.route().clone(), now);
            let mut next = Some(first);
            while let Some(one) = next {
                let waits = one.carry_out(now, &mut work);
                debug_assert!(waits.is_none(), "no source waits for these");
                next = failed.next_if(|next| Arc::ptr_eq(&next.submitter, &submitter));
            }
            self.tasks.spawn("ingress:answers", async move {
                submitter.submit_all(work).await;
            });
        }
    }
}
