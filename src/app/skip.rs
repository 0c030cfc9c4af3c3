//! Skips of standing Kafka partitions for the API: the ingress's desk, in the API's words.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::admin::{Skip, SkipResult};
use crate::domain::{KafkaPosition, RouteName};
use crate::ingress::kafka::skip::{SkipDesk, SkipOutcome};

/// Hands skips to the consumers.
pub(super) struct IngressSkip(pub(super) SkipDesk);

impl Skip for IngressSkip {
    fn skip<'a>(
        &'a self,
        route: &'a RouteName,
        position: KafkaPosition,
    ) -> BoxFuture<'a, SkipResult> {
        async move {
            match self.0.skip(route, position).await {
                SkipOutcome::Skipped => SkipResult::Skipped,
                SkipOutcome::StandsElsewhere(at) => SkipResult::StandsElsewhere(at),
                SkipOutcome::DoesNotStand(next) => SkipResult::DoesNotStand(next),
                SkipOutcome::NotHere => SkipResult::NotHere,
                SkipOutcome::Failed(why) => SkipResult::Failed(why),
                SkipOutcome::NoAnswer => SkipResult::NoAnswer,
            }
        }
        .boxed()
    }
}
