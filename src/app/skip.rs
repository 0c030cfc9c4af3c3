//! Skips at Kafka partitions for the API: the ingress's desk.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::admin::Skip;
use crate::domain::{RouteName, SkipGoal, SkipOutcome};
use crate::ingress::kafka::skip_desk::SkipDesk;

/// Hands skips to the consumers.
pub(super) struct IngressSkip(pub(super) SkipDesk);

impl Skip for IngressSkip {
    fn skip<'a>(
        &'a self,
        route: &'a RouteName,
        topic: &'a str,
        partition: i32,
        goal: SkipGoal,
    ) -> BoxFuture<'a, SkipOutcome> {
        self.0.skip(route, topic, partition, goal).boxed()
    }
}
