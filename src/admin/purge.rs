//! Purging a route: cancels its messages that wait, some at a time.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State as Extract;
use axum::{Extension, Json};

use super::audit_note::AuditNote;
use super::auth::Caller;
use super::conditions::Selection;
use super::context::Admin;
use super::extract::{JsonBody, NamedRoute, RoutePath, acting_body};
use super::problem::Problem;
use super::trail::record_cancel;
use crate::api::{PurgeAnswer, PurgeRequest, PurgeState};
use crate::domain::Route;
use crate::store::{IntendedMessage, StoredMessage, WriteOp, WriteResult};

/// Most messages that one call looks at: each takes a round trip.
const MAX_PURGE_ITEMS: usize = 200;
/// Time after which a pause of ingress is in effect on every replica, and all that was taken in before is stored, ms.
const PAUSE_TAKES_MS: i64 = 2000;

acting_body!(PurgeRequest);

/// Purge a route
///
/// Cancels its messages that wait, in due order, at most 200 a call: `next` of the answer is `cursor` of the next call.
/// With a condition on what they are (`id_prefix`, `key`, `header`, `contains`) a call looks at 10,000 messages at most, or for
/// 50 ms. What is in flight is left and counted. What a producer sends meanwhile may be cancelled too: pause the route's ingress
/// before. The first call waits until a pause that has just begun is in effect on every replica, 2 s at most. Dead
/// letters stay: `POST /api/v1/dead/drop` is for those.
#[utoipa::path(
    post, path = "/api/v1/routes/{route}/purge", operation_id = "purgeRoute", params(RoutePath),
    request_body = PurgeRequest,
    responses(
        (status = 200, description = "What was cancelled.", body = PurgeAnswer),
        (status = 400, description = "A state, a condition, a moment or a cursor that is none. Nothing was done."),
        (status = 404, description = "No such route. Nothing was done."),
        (status = 503, description = "Redis is away. Some of it may have been done."),
        (status = 504, description = "Redis did not answer in time. Some of it may have been done."),
    )
)]
pub(super) async fn purge(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    NamedRoute(route): NamedRoute,
    JsonBody(request): JsonBody<PurgeRequest>,
) -> Result<(Extension<AuditNote>, Json<PurgeAnswer>), Problem> {
    let selection = selection(&route, &request);
    let query = selection.query(
        &caller,
        Some(route.name.clone()),
        request.cursor.as_deref(),
        MAX_PURGE_ITEMS,
    )?;
    caller.is_about(subject(&request));
    let store = admin.store()?;
    let actor = caller.actor();
    let is_first = query.after.is_none();
    if is_first && !request.dry_run {
        until_ingress_stands(&admin, &route).await?;
    }
    let page = admin.browse(store.browse(&query)).await?;
    let next = page.next.map(|after| selection.cursor(after));
    let mut answer = PurgeAnswer {
        route: route.name.to_string(),
        dry_run: request.dry_run,
        messages: 0,
        bytes: 0,
        in_flight: if is_first {
            admin.browse(store.in_flight(&route.name)).await?
        } else {
            0
        },
        changed: 0,
        next: next.transpose()?,
    };
    for found in page
        .found
        .iter()
        .filter(|found| is_in(found, request.state))
    {
        let result = if request.dry_run {
            WriteResult::Cancelled
        } else {
            cancel(&admin, &route, found)
                .await
                .map_err(|problem| problem.after(format_args!("{} cancelled", answer.messages)))?
        };
        match result {
            WriteResult::Cancelled => {
                answer.messages += 1;
                if !request.dry_run {
                    let due = Some(found.entry.asked_due());
                    record_cancel(&admin, &route, found.id.as_str(), due, &actor)?;
                }
                answer.bytes += found.size as u64;
            }
            WriteResult::InFlight => answer.in_flight += 1,
            _ => answer.changed += 1,
        }
    }
    let verb = if request.dry_run {
        "would be cancelled"
    } else {
        "cancelled"
    };
    let PurgeAnswer {
        messages,
        in_flight,
        changed,
        ..
    } = answer;
    let result = format!("{messages} {verb}, {in_flight} in flight, {changed} changed");
    Ok((Extension(AuditNote::new(result)), Json(answer)))
}

fn selection(route: &Route, request: &PurgeRequest) -> Selection {
    Selection {
        route: Some(route.name.to_string()),
        state: request.state,
        from: request.from.clone(),
        to: request.to.clone(),
        id_prefix: request.id_prefix.clone(),
        key: request.key.clone(),
        header: request.header.clone(),
        contains: request.contains.clone(),
    }
}

/// Waits until a pause of the route's ingress that has just begun is in effect on every replica: what is taken in until
/// then would be stored behind the purge.
async fn until_ingress_stands(admin: &Admin, route: &Route) -> Result<(), Problem> {
    let store = admin.store()?;
    let paused = admin.browse(store.paused(&route.name)).await?;
    let Some(since) = paused.ingress.and_then(|pause| pause.since) else {
        return Ok(());
    };
    let stands_in_ms = PAUSE_TAKES_MS - store.clock().now().since(since);
    if (1..=PAUSE_TAKES_MS).contains(&stands_in_ms) {
        // Replicas do not say that they have stopped, so nothing tells of it but time.
        tokio::time::sleep(Duration::from_millis(stands_in_ms.unsigned_abs())).await;
    }
    Ok(())
}

fn is_in(found: &StoredMessage, state: Option<PurgeState>) -> bool {
    let own = if found.entry.failures > 0 {
        PurgeState::Retrying
    } else {
        PurgeState::Waiting
    };
    state.is_none_or(|state| state == own)
}

/// Cancels this very message: another one that took its name meanwhile stays.
async fn cancel(
    admin: &Admin,
    route: &Route,
    found: &StoredMessage,
) -> Result<WriteResult, Problem> {
    let store = admin.store()?;
    let id = found.id.as_str();
    let op = WriteOp::Cancel {
        route: route.name.clone(),
        id: found.id.clone(),
        of: Some(IntendedMessage::Seen(found.version.clone())),
    };
    let home = store.home_of(&route.name, id);
    let done = async {
        store
            .command(store.locate(&route.name, id, home).await?, op)
            .await
    };
    let result = admin.ask(done).await?;
    if let Some(metrics) = admin.state.metrics.route(&route.name) {
        let word = match result {
            WriteResult::Cancelled => "cancelled",
            WriteResult::InFlight => "in_flight",
            _ => "changed",
        };
        metrics.command("purge", word);
    }
    Ok(result)
}

/// The conditions of a request, for the audit log.
fn subject(request: &PurgeRequest) -> String {
    let mut conditions = Vec::new();
    if request.dry_run {
        conditions.push("dry_run".to_owned());
    }
    match request.state {
        Some(PurgeState::Waiting) => conditions.push("state=waiting".to_owned()),
        Some(PurgeState::Retrying) => conditions.push("state=retrying".to_owned()),
        None => {}
    }
    for (name, values) in [
        ("from", request.from.as_slice()),
        ("to", request.to.as_slice()),
        ("id_prefix", request.id_prefix.as_slice()),
        ("key", request.key.as_slice()),
        ("header", &request.header),
        ("contains", request.contains.as_slice()),
    ] {
        for value in values {
            conditions.push(format!("{name}={value}"));
        }
    }
    conditions.join(" ")
}
