//! Cancelling many messages of a route by their ids, in one call of the store a partition.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State as Extract;
use axum::{Extension, Json};
use futures_util::future::try_join_all;

use super::audit_note::AuditNote;
use super::auth::Caller;
use super::context::Admin;
use super::extract::{JsonBody, NamedRoute, RoutePath, acting_body, judge_id};
use super::messages::{count, unexpected_result};
use super::problem::Problem;
use super::trail::record_cancel;
use crate::api::{CancelAnswer, CancelManyRequest, CancelResult, CancelledPage, MAX_CANCELLED};
use crate::domain::{Partition, Route};
use crate::store::{StoreError, WriteOp, WriteResult};

/// Ids that are looked up at the same time on a route with key order, whose names may be in any partition.
const LOOKED_UP_AT_ONCE: usize = 100;

acting_body!(CancelManyRequest);

/// Cancel many messages
///
/// A definite answer for each, in the order of the ids. Those of a partition of the store are cancelled together.
#[utoipa::path(
    post, path = "/api/v1/routes/{route}/messages/cancel", operation_id = "cancelMessages", params(RoutePath),
    request_body = CancelManyRequest,
    responses(
        (status = 200, description = "What became of each.", body = CancelledPage),
        (status = 400, description = "No ids or more than 1,000, or an id that none can be. Nothing was done."),
        (status = 404, description = "No such route. Nothing was done."),
        (status = 503, description = "Redis is away. Some of it may have been done."),
        (status = 504, description = "Redis did not answer in time. Some of it may have been done."),
    )
)]
pub(super) async fn cancel_many(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    NamedRoute(route): NamedRoute,
    JsonBody(CancelManyRequest { ids, .. }): JsonBody<CancelManyRequest>,
) -> Result<(Extension<AuditNote>, Json<CancelledPage>), Problem> {
    if ids.is_empty() || ids.len() > MAX_CANCELLED {
        return Err(Problem::bad(format!(
            "`ids` holds 1 to {MAX_CANCELLED} ids"
        )));
    }
    ids.iter().try_for_each(|id| judge_id(id))?;
    caller.is_about(ids.join(" "));
    let results = admin.ask(cancel_all(&admin, &route, &ids)?).await?;
    let actor = caller.actor();
    let mut items = Vec::with_capacity(ids.len());
    for (id, result) in ids.into_iter().zip(results) {
        let (result, word) = match result {
            WriteResult::Cancelled => (CancelResult::Cancelled, "cancelled"),
            WriteResult::InFlight => (CancelResult::InFlight, "in_flight"),
            WriteResult::Published => (CancelResult::Published, "published"),
            WriteResult::Unknown => (CancelResult::Unknown, "unknown"),
            other => return Err(unexpected_result(&id, other)),
        };
        count(&admin, &route, "cancel", word);
        if result == CancelResult::Cancelled {
            record_cancel(&admin, &route, &id, None, &actor)?;
        }
        items.push(CancelAnswer {
            id,
            route: route.name.to_string(),
            result: result.into(),
        });
    }
    let done = items
        .iter()
        .filter(|item| item.result == CancelResult::Cancelled.into());
    let done = format!("{} of {} cancelled", done.count(), items.len());
    Ok((
        Extension(AuditNote::new(done)),
        Json(CancelledPage { items }),
    ))
}

/// Cancels the messages of these ids. Answers for each, in order.
fn cancel_all(
    admin: &Admin,
    route: &Route,
    ids: &[String],
) -> Result<impl Future<Output = Result<Vec<WriteResult>, StoreError>>, Problem> {
    let store = admin.store()?;
    Ok(async move {
        let mut of_partition: BTreeMap<Partition, Vec<usize>> = BTreeMap::new();
        let mut at = 0;
        for some in ids.chunks(LOOKED_UP_AT_ONCE) {
            let places = some
                .iter()
                .map(|id| store.locate(&route.name, id, store.home_of(&route.name, id)));
            for p in try_join_all(places).await? {
                of_partition.entry(p).or_default().push(at);
                at += 1;
            }
        }
        let calls = of_partition.into_iter().map(|(p, places)| async move {
            let mut ops = Vec::with_capacity(places.len());
            for &at in &places {
                ops.push(WriteOp::Cancel {
                    route: route.name.clone(),
                    id: ids[at].as_str().into(),
                    of: None,
                });
            }
            let results = store.commands(p, &ops).await?;
            Ok::<_, StoreError>(places.into_iter().zip(results).collect::<Vec<_>>())
        });
        let mut results = vec![WriteResult::Unknown; ids.len()];
        for (at, result) in try_join_all(calls).await?.into_iter().flatten() {
            results[at] = result;
        }
        Ok(results)
    })
}
