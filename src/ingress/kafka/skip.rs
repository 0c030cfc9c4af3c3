//! Skips: an operator has a standing partition pass over one offset.
//!
//! The consumer of the partition does it on its own thread, and only if the partition stands at exactly that offset. The
//! offset is entered into the ledger as a record that is resolved at once. A commit passes it only after every record
//! before it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::Offset;
use rdkafka::consumer::Consumer;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use super::rebalance::{ANSWER_TIMEOUT, GroupClient, GroupContext};
use super::undecodable::Standstill;
use crate::domain::{KafkaPosition, Route, RouteName};
use crate::ingress::Sink;

/// Longest wait for a consumer's answer: a tick of the consumer, and the client library's own deadline.
const SKIP_DEADLINE: Duration = Duration::from_secs(6);
/// Most skips that wait for one consumer.
const MAX_WAITING: usize = 16;

/// Outcome of a skip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipOutcome {
    /// The offset is passed over, and reading goes on behind it.
    Skipped,
    /// The partition stands at another offset. Nothing was changed.
    StandsElsewhere(i64),
    /// The partition does not stand. The next record is expected at this offset.
    DoesNotStand(i64),
    /// The partition is not one that this replica reads.
    NotHere,
    /// The client library refused, for this reason. Nothing was changed.
    Failed(String),
    /// No answer came in time. The offset may be skipped yet.
    NoAnswer,
}

/// A skip on its way to the consumer.
pub(super) struct SkipRequest {
    route: RouteName,
    position: KafkaPosition,
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

    /// Passes over one offset of a partition of the route's topic.
    pub async fn skip(&self, route: &RouteName, position: KafkaPosition) -> SkipOutcome {
        let Some(consumer) = self.0.lock().get(route).cloned() else {
            return SkipOutcome::NotHere;
        };
        let (answer, answered) = oneshot::channel();
        if consumer
            .try_send(SkipRequest {
                route: route.clone(),
                position,
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
                position,
                answer,
            }) = request
            else {
                return;
            };
            // Nobody waits for the answer any more: whoever asked was told that it is not known.
            if answer.is_closed() {
                continue;
            }
            let outcome = self.skip(consumer, &route, position);
            if answer.send(outcome).is_err() {
                warn!(%route, partition = position.partition, offset = position.offset, "the answer to a skip came too late");
            }
        }
    }

    fn skip(
        &self,
        consumer: &GroupClient<S>,
        route: &RouteName,
        position: KafkaPosition,
    ) -> SkipOutcome {
        let KafkaPosition { partition, offset } = position;
        let topic = self
            .setup
            .routes
            .iter()
            .find(|(_, read)| read.name == *route)
            .map(|(topic, _)| topic);
        let Some(topic) = topic else {
            return SkipOutcome::NotHere;
        };
        {
            let mut state = self.state.lock();
            let Some(assignment) = state.find(topic, partition) else {
                return SkipOutcome::NotHere;
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
            if let Err(error) =
                consumer.seek(topic, partition, Offset::Offset(offset + 1), ANSWER_TIMEOUT)
            {
                return SkipOutcome::Failed(error.to_string());
            }
            assignment.pass_over(offset);
        }
        warn!(consumer = %self.setup.owner, %route, %topic, partition, offset, "an offset is skipped by an operator");
        if let Some(metrics) = self.setup.deps.metrics.route(route) {
            metrics.dropped("skipped", 1);
        }
        self.show_troubles();
        SkipOutcome::Skipped
    }
}
