//! Skips: an operator has a standing partition pass over one offset, or says where one begins that waits for a word.
//!
//! The consumer of the partition does it on its own thread. It passes over an offset only if the partition stands at
//! exactly that one. The offset is entered into the ledger as a record that is resolved at once. A commit passes it only
//! after every record before it. A word on where to begin is obeyed only if the partition waits for one
//! (see `start_positions`), and only within the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::Offset;
use rdkafka::consumer::Consumer;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use super::group_state::TopicPartition;
use super::rebalance::{ANSWER_TIMEOUT, GroupClient, GroupContext};
use super::undecodable::Standstill;
use crate::domain::{Route, RouteName, SkipGoal, SkipOutcome};
use crate::ingress::Sink;

/// Longest wait for a consumer's answer: a tick of the consumer, and the client library's own deadline.
const SKIP_DEADLINE: Duration = Duration::from_secs(6);
/// Most skips that wait for one consumer.
const MAX_WAITING: usize = 16;

/// A skip on its way to the consumer.
pub(super) struct SkipRequest {
    route: RouteName,
    partition: i32,
    goal: SkipGoal,
    answer: oneshot::Sender<SkipOutcome>,
}

/// Takes skips, and hands each to the consumer that reads the route. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct SkipDesk(Arc<Mutex<BTreeMap<RouteName, mpsc::Sender<SkipRequest>>>>);

impl SkipDesk {
    /// The queue of the consumer that reads these routes.
    pub(super) fn open<'a>(&self, routes: impl IntoIterator<Item = &'a Arc<Route>>) -> SkipQueue {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        self.0.lock().extend(
            routes
                .into_iter()
                .map(|route| (route.name.clone(), sender.clone())),
        );
        SkipQueue(Mutex::new(receiver))
    }

    /// Has reading of a partition of the route's topic go on where the goal says.
    pub async fn skip(&self, route: &RouteName, partition: i32, goal: SkipGoal) -> SkipOutcome {
        let Some(consumer) = self.0.lock().get(route).cloned() else {
            return SkipOutcome::NotHere;
        };
        let (answer, answered) = oneshot::channel();
        if consumer
            .try_send(SkipRequest {
                route: route.clone(),
                partition,
                goal,
                answer,
            })
            .is_err()
        {
            return SkipOutcome::NoAnswer;
        }
        match tokio::time::timeout(SKIP_DEADLINE, answered).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => SkipOutcome::NoAnswer,
        }
    }
}

/// Skips that wait for one consumer. Outlives the restarts of the consumer.
pub(super) struct SkipQueue(Mutex<mpsc::Receiver<SkipRequest>>);

impl<S: Sink> GroupContext<S> {
    /// Carries out the skips that wait.
    pub(super) fn carry_out_skips(&self, consumer: &GroupClient<S>) {
        loop {
            let request = self.setup.skips.0.lock().try_recv();
            let Ok(SkipRequest {
                route,
                partition,
                goal,
                answer,
            }) = request
            else {
                return;
            };
            // Nobody waits for the answer any more: whoever asked was told that it is not known.
            if answer.is_closed() {
                continue;
            }
            let outcome = self.skip(consumer, &route, partition, goal);
            if answer.send(outcome).is_err() {
                warn!(%route, partition, ?goal, "the answer to a skip came too late");
            }
        }
    }

    fn skip(
        &self,
        consumer: &GroupClient<S>,
        route: &RouteName,
        partition: i32,
        goal: SkipGoal,
    ) -> SkipOutcome {
        let mut topics = self.setup.routes.iter();
        let Some((topic, _)) = topics.find(|(_, read)| read.name == *route) else {
            return SkipOutcome::NotHere;
        };
        let key = (topic.to_string(), partition);
        let outcome = match goal {
            SkipGoal::Past(offset) => self.pass_over(consumer, &key, offset),
            SkipGoal::To(offset) => self.begin_at(consumer, &key, offset),
            SkipGoal::Since(time) => self.begin_since(consumer, &key, time),
        };
        if let SkipOutcome::GoesOn(next) = outcome {
            warn!(consumer = %self.setup.owner, %route, %topic, partition, ?goal, next, "an operator says where reading goes on");
        }
        self.show_troubles();
        outcome
    }

    /// Passes over an offset at which a partition stands.
    fn pass_over(
        &self,
        consumer: &GroupClient<S>,
        key: &TopicPartition,
        offset: i64,
    ) -> SkipOutcome {
        let mut state = self.state.lock();
        let Some(assignment) = state.find(&key.0, key.1) else {
            return state.not_read(key);
        };
        match assignment.standstill.standing() {
            Some(Standstill::Undecodable { offset: at }) if at == offset => {}
            Some(Standstill::Undecodable { offset: at }) => {
                return SkipOutcome::StandsElsewhere(at);
            }
            Some(Standstill::OpenTransaction { .. }) | None => {
                return SkipOutcome::DoesNotStand(assignment.next);
            }
        }
        if let Err(error) = consumer.seek(&key.0, key.1, Offset::Offset(offset + 1), ANSWER_TIMEOUT)
        {
            return SkipOutcome::Failed(error.to_string());
        }
        assignment.pass_over(offset);
        if let Some(metrics) = self.setup.deps.metrics.route(&assignment.route.name) {
            metrics.dropped("skipped", 1);
        }
        SkipOutcome::GoesOn(offset + 1)
    }
}
