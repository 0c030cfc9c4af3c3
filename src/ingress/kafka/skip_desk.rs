//! The desk of skips: takes them from whoever asks, and hands each to the consumer that reads the route.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::domain::{Route, RouteName, SkipGoal, SkipOutcome};

/// Longest wait for a consumer's answer: a tick of the consumer, and the client library's own deadline.
const SKIP_DEADLINE: Duration = Duration::from_secs(6);
/// Most skips that wait for one consumer.
const MAX_WAITING: usize = 16;

/// A skip on its way to the consumer.
pub(super) struct SkipRequest {
    pub(super) route: RouteName,
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) goal: SkipGoal,
    pub(super) answer: oneshot::Sender<SkipOutcome>,
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

    /// Has reading of a partition of one of the route's topics go on where the goal says.
    pub async fn skip(
        &self,
        route: &RouteName,
        topic: &str,
        partition: i32,
        goal: SkipGoal,
    ) -> SkipOutcome {
        let Some(consumer) = self.0.lock().get(route).cloned() else {
            return SkipOutcome::NotHere;
        };
        let (answer, answered) = oneshot::channel();
        if consumer
            .try_send(SkipRequest {
                route: route.clone(),
                topic: topic.to_owned(),
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

impl SkipQueue {
    /// The next one, if any waits.
    pub(super) fn next(&self) -> Option<SkipRequest> {
        self.0.lock().try_recv().ok()
    }
}
