//! Skipping an offset at which a Kafka partition of a route stands. `app` provides the skip itself.

use std::sync::Arc;

use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::{Extension, Json};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::audit_note::AuditNote;
use super::context::Admin;
use super::extract::{JsonBody, NamedRoute, RoutePath};
use super::problem::Problem;
use crate::domain::{Endpoint, KafkaPosition, RouteName};

/// Passes over offsets at which partitions stand.
pub trait Skip: Send + Sync {
    /// Has a partition of the route's topic pass over one offset, if it stands there. The wait is bounded.
    fn skip<'a>(
        &'a self,
        route: &'a RouteName,
        position: KafkaPosition,
    ) -> BoxFuture<'a, SkipResult>;
}

/// Result of a skip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipResult {
    /// The offset is passed over, and reading goes on behind it.
    Skipped,
    /// The partition stands at another offset. Nothing was changed.
    StandsElsewhere(i64),
    /// The partition does not stand. The next record is expected at this offset.
    DoesNotStand(i64),
    /// The partition is not one that this replica reads.
    NotHere,
    /// It failed for this reason. Nothing was changed.
    Failed(String),
    /// No answer came in time. The offset may be skipped yet.
    NoAnswer,
}

/// The offset that is to be skipped.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Skipping)]
pub(super) struct SkipRequest {
    /// The partition of the route's topic.
    #[schema(minimum = 0)]
    partition: i32,
    /// The offset at which it stands.
    #[schema(minimum = 0)]
    offset: i64,
}

/// An offset that was skipped.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Skipped)]
pub(super) struct SkippedView {
    /// The route.
    route: String,
    /// Its topic.
    topic: String,
    /// The partition.
    partition: i32,
    /// The offset that was skipped.
    offset: i64,
    /// The offset from which reading goes on.
    next: i64,
}

/// Skip an offset of a standing Kafka partition
///
/// A partition stands at a batch that the Kafka client cannot open: too large once decompressed, of an unknown codec,
/// or damaged. This passes over exactly one offset, and only if the partition stands there: the record at that offset is
/// lost to the route. Every record before it is committed first. Ask the replica that reads the partition: it has a line
/// in its log, and the part `source:ROUTE` in its `/readyz`.
#[utoipa::path(
    post, path = "/api/v1/routes/{route}/skip", operation_id = "skipOffset", params(RoutePath),
    request_body = SkipRequest,
    responses(
        (status = 200, description = "It was skipped.", body = SkippedView),
        (status = 400, description = "No partition, or no offset."),
        (status = 404, description = "No such route, it reads no topic, or this replica does not read the partition."),
        (status = 409, description = "The partition does not stand at this offset. Nothing was skipped."),
        (status = 415, description = "The body is not said to be `application/json`. Nothing was skipped."),
        (status = 503, description = "The Kafka client refused. Nothing was skipped."),
        (status = 504, description = "The consumer did not answer in time. It may be skipped all the same.")
    )
)]
pub(super) async fn skip(
    Extract(admin): Extract<Arc<Admin>>,
    NamedRoute(route): NamedRoute,
    JsonBody(request): JsonBody<SkipRequest>,
) -> Result<(Extension<AuditNote>, Json<SkippedView>), Problem> {
    let SkipRequest { partition, offset } = request;
    let Endpoint::Kafka { topic, .. } = &route.from else {
        return Err(Problem::not_found(format!(
            "route {} reads a queue, which has no offsets",
            route.name
        )));
    };
    if partition < 0 || !(0..i64::MAX).contains(&offset) {
        return Err(Problem::bad("partition and offset begin at 0"));
    }
    let place = format!("partition {partition} of topic {topic}");
    match admin
        .state
        .skip
        .skip(&route.name, KafkaPosition { partition, offset })
        .await
    {
        SkipResult::Skipped => {
            let note = AuditNote::new(format!("{place}, offset {offset}"), "skipped");
            let route = route.name.to_string();
            let view = SkippedView {
                route,
                topic: topic.clone(),
                partition,
                offset,
                next: offset + 1,
            };
            Ok((Extension(note), Json(view)))
        }
        SkipResult::StandsElsewhere(at) => Err(conflict(format!(
            "{place} stands at offset {at}, not at {offset}; nothing was skipped"
        ))),
        SkipResult::DoesNotStand(next) => Err(conflict(format!(
            "{place} does not stand: its next record is expected at offset {next}; nothing was skipped"
        ))),
        SkipResult::NotHere => Err(Problem::not_found(format!(
            "replica {} does not read {place}; ask the replica whose log says that it stands",
            admin.state.replica
        ))),
        SkipResult::Failed(why) => Err(Problem::unavailable(format!(
            "{place} cannot be moved right now: {why}; nothing was skipped"
        ))),
        SkipResult::NoAnswer => Err(Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            format!(
                "the consumer of {place} did not answer in time; look where it stands, and ask again"
            ),
        )),
    }
}

fn conflict(detail: String) -> Problem {
    Problem::new(StatusCode::CONFLICT, detail)
}
