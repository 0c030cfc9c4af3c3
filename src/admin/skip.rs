//! Skipping an offset at which a Kafka partition of a route stands, or saying where it begins. `app` provides the skip
//! itself.

use std::sync::Arc;

use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::{Extension, Json};
use futures_util::future::BoxFuture;

use super::audit_note::AuditNote;
use super::auth::Caller;
use super::context::Admin;
use super::extract::{JsonBody, NamedRoute, RoutePath, acting_body};
use super::problem::Problem;
use super::times::moment;
use crate::api::{SkipRequest, SkippedView};
use crate::domain::{Endpoint, RouteName, SkipGoal, SkipOutcome};

/// Says where reading of partitions goes on.
pub trait Skip: Send + Sync {
    /// Has reading of a partition of the route's topic go on where the goal says. The wait is bounded.
    fn skip<'a>(
        &'a self,
        route: &'a RouteName,
        topic: &'a str,
        partition: i32,
        goal: SkipGoal,
    ) -> BoxFuture<'a, SkipOutcome>;
}

acting_body!(SkipRequest);

/// Skip an offset of a standing Kafka partition, or say where one begins
///
/// A partition stands at a batch that the Kafka client cannot open: too large once decompressed, of an unknown codec,
/// or damaged. `offset` passes over exactly one offset, and only if the partition stands there: the record at that offset
/// is lost to the route. Every record before it is committed first. A partition also stands if its committed position
/// cannot be true and too many records would be read again. `to` or `since` says where it begins: records from there on
/// are read, whether they were read before or not, and those before it are not. Ask the replica that reads the partition:
/// it has a line in its log, and the part `source:ROUTE` in its `/readyz`.
#[utoipa::path(
    post, path = "/api/v1/routes/{route}/skip", operation_id = "skipOffset", params(RoutePath),
    request_body = SkipRequest,
    responses(
        (status = 200, description = "Reading goes on there.", body = SkippedView),
        (status = 400, description = "No partition, no `topic` where the route reads several, or not one of `offset`, `to` and `since`."),
        (status = 404, description = "No such route, it reads no topic, or this replica does not read the partition."),
        (status = 409, description = "The partition does not stand at this offset, does not wait for a word, or its log
            does not have the offset. Nothing was skipped."),
        (status = 503, description = "The Kafka client refused. Nothing was skipped."),
        (status = 504, description = "The consumer did not answer in time. It may be done all the same.")
    )
)]
pub(super) async fn skip(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    NamedRoute(route): NamedRoute,
    JsonBody(request): JsonBody<SkipRequest>,
) -> Result<(Extension<AuditNote>, Json<SkippedView>), Problem> {
    let Endpoint::Kafka { topics, .. } = &route.from else {
        return Err(Problem::not_found(format!(
            "route {} reads a queue, which has no offsets",
            route.name
        )));
    };
    let topic = match request.topic.as_deref().or(topics.single()) {
        Some(topic) if topics.has(topic) => topic,
        Some(_) => {
            return Err(Problem::not_found(format!(
                "route {} does not read this topic",
                route.name
            )));
        }
        None => {
            return Err(Problem::bad(format!(
                "route {} reads several topics: say which by `topic`",
                route.name
            )));
        }
    };
    let goal = read_goal(&request)?;
    let partition = request.partition;
    let place = format!("partition {partition} of topic {topic}");
    let wanted = match goal {
        SkipGoal::Past(offset) => format!("past offset {offset}"),
        SkipGoal::To(offset) => format!("to offset {offset}"),
        SkipGoal::Since(since) => format!("since {} ms", since.0),
    };
    caller.is_about(format!("{place}, {wanted}"));
    let next = match admin
        .state
        .skip
        .skip(&route.name, topic, partition, goal)
        .await
    {
        SkipOutcome::GoesOn(next) => next,
        outcome => return Err(refusal(&outcome, &place, goal, &admin.state.replica)),
    };
    let done = match goal {
        SkipGoal::Past(offset) => format!("skipped offset {offset}"),
        SkipGoal::To(_) | SkipGoal::Since(_) => format!("skipped to offset {next}"),
    };
    let view = SkippedView {
        route: route.name.to_string(),
        topic: topic.to_owned(),
        partition,
        offset: request.offset,
        next,
    };
    Ok((Extension(AuditNote::new(done)), Json(view)))
}

fn read_goal(request: &SkipRequest) -> Result<SkipGoal, Problem> {
    let goal = match (request.offset, request.to, &request.since) {
        (Some(offset), None, None) => SkipGoal::Past(offset),
        (None, Some(offset), None) => SkipGoal::To(offset),
        (None, None, Some(since)) => SkipGoal::Since(moment("since", since)?),
        _ => return Err(Problem::bad("one of `offset`, `to` and `since` is needed")),
    };
    match goal {
        SkipGoal::Past(offset) | SkipGoal::To(offset) if !(0..i64::MAX).contains(&offset) => {
            Err(Problem::bad("partition and offset begin at 0"))
        }
        _ if request.partition < 0 => Err(Problem::bad("partition and offset begin at 0")),
        _ => Ok(goal),
    }
}

/// The answer to a skip that was not done.
fn refusal(outcome: &SkipOutcome, place: &str, goal: SkipGoal, replica: &str) -> Problem {
    let (wanted, state) = match goal {
        SkipGoal::Past(offset) => (offset, "does not stand"),
        SkipGoal::To(offset) => (offset, "does not wait for a word"),
        SkipGoal::Since(time) => (time.0, "does not wait for a word"),
    };
    match outcome {
        SkipOutcome::StandsElsewhere(at) => conflict(format!(
            "{place} stands at offset {at}, not at {wanted}; nothing was skipped"
        )),
        SkipOutcome::GoesOn(next) | SkipOutcome::DoesNotStand(next) => conflict(format!(
            "{place} {state}: its next record is expected at offset {next}; nothing was skipped"
        )),
        SkipOutcome::NotRead(why) => conflict(format!("{place}: {why}; nothing was skipped")),
        SkipOutcome::OutsideLog(begin, end) => conflict(format!(
            "{place} has offsets from {begin} to {end}; nothing was skipped"
        )),
        SkipOutcome::NotHere => Problem::not_found(format!(
            "replica {replica} does not read {place}; ask the replica whose log says that it stands"
        )),
        SkipOutcome::Failed(why) => Problem::unavailable(format!(
            "{place} cannot be moved right now: {why}; nothing was skipped"
        )),
        SkipOutcome::NoAnswer => Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            format!(
                "the consumer of {place} did not answer in time; look where it stands, and ask again"
            ),
        ),
    }
}

fn conflict(detail: String) -> Problem {
    Problem::new(StatusCode::CONFLICT, detail)
}
