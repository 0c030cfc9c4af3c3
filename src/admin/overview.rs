//! Overview of the store and the cluster: due times, partitions, replicas.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State as Extract;
use serde::Deserialize;
use utoipa::IntoParams;

use super::context::Admin;
use super::extract::QueryParams;
use super::problem::{Problem, StoreAway};
use super::times::rfc3339;
use crate::api::{HistogramView, Page, PartitionStatus, ReplicaStatusView};
use crate::domain::RouteName;
use crate::store::{DueMonth, RegisteredReplica, ReplicaStatus, Store};

/// Longest time that the later days of a month are taken as they were read.
const MONTH_AGE: Duration = Duration::from_secs(60);

/// Query of the histogram.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct HistogramQuery {
    /// Of this route only.
    route: Option<String>,
}

/// Messages that wait, by when they fall due
#[utoipa::path(
    get, path = "/api/v1/histogram", operation_id = "getHistogram", params(HistogramQuery),
    responses(
        (status = 200, description = "The histogram.", body = HistogramView),
        (status = 400, description = "An unknown parameter."),
        (status = 404, description = "No such route."),
        StoreAway,
    )
)]
pub(super) async fn histogram(
    Extract(admin): Extract<Arc<Admin>>,
    QueryParams(query): QueryParams<HistogramQuery>,
) -> Result<Json<HistogramView>, Problem> {
    let route = query
        .route
        .as_deref()
        .map(|name| admin.route(name))
        .transpose()?
        .map(|r| &r.name);
    histogram_view(&admin, route).await.map(Json)
}

/// The histogram of a route, or of all.
pub(super) async fn histogram_view(
    admin: &Admin,
    route: Option<&RouteName>,
) -> Result<HistogramView, Problem> {
    let later = later_days(admin, route).await?;
    let histogram = admin.browse(admin.store()?.histogram(route)).await?;
    let first_day = histogram.day.iter().sum();
    Ok(HistogramView {
        now_ms: histogram.now.0,
        now: rfc3339(histogram.now),
        exact: histogram.exact,
        overdue: histogram.overdue,
        minute: histogram.minute,
        hour: histogram.hour,
        day: histogram.day,
        month: std::iter::once(first_day)
            .chain(later.later_days.iter().copied())
            .collect(),
        month_exact: histogram.exact && later.exact,
    })
}

/// The later days of the month of a route, or of all, [`MONTH_AGE`] old at most: they change slowly, and reading them costs
/// as much as the rest of a histogram.
async fn later_days(admin: &Admin, route: Option<&RouteName>) -> Result<Arc<DueMonth>, Problem> {
    let now_us = admin.state.clock.mono_us();
    if let Some(month) = admin
        .months
        .since(route, now_us - MONTH_AGE.as_micros() as i64)
    {
        return Ok(month);
    }
    let month = Arc::new(admin.browse(admin.store()?.month(route)).await?);
    admin.months.put(route, now_us, Arc::clone(&month));
    Ok(month)
}

/// All partitions of the store
#[utoipa::path(
    get, path = "/api/v1/partitions", operation_id = "listPartitions",
    responses(
        (status = 200, description = "The partitions, all of them.", body = Page<PartitionStatus>),
        StoreAway,
    )
)]
pub(super) async fn partitions(
    Extract(admin): Extract<Arc<Admin>>,
) -> Result<Json<Page<PartitionStatus>>, Problem> {
    let store = admin.store()?;
    let views = admin.browse(store.partition_views()).await?;
    let members = admin.browse(store.replicas()).await?;
    let mut items = Vec::with_capacity(views.len());
    for v in views {
        let owner = members
            .iter()
            .find(|m| m.is_alive() && m.status.partitions.contains(&v.partition));
        items.push(PartitionStatus {
            number: v.partition.0,
            messages: v.messages,
            bytes: v.bytes,
            dead: v.dead,
            claims: v.claims,
            owner: owner.map(|m| m.status.name.clone()),
            round_ms: owner.and_then(|m| m.round_ms(v.partition)),
            head_ms: v.head.map(|head| head.0),
            head: v.head.and_then(rfc3339),
        });
    }
    Ok(Json(Page { items, next: None }))
}

fn replica_view(member: RegisteredReplica, this: bool) -> ReplicaStatusView {
    ReplicaStatusView {
        this,
        alive: member.is_alive(),
        ready: member.status.ready && member.is_alive(),
        draining: false,
        partitions: member.status.partitions.len(),
        silent_ms: Some(member.silent_ms),
        round_ms: member.status.rounds.iter().copied().max(),
        clock_skew_ms: Some(member.status.skew_ms),
        name: member.status.name,
        version: member.status.version,
    }
}

/// The replicas
///
/// By name. If Redis cannot be asked, the list holds only the replica that answers.
#[utoipa::path(
    get, path = "/api/v1/replicas", operation_id = "listReplicas",
    responses((status = 200, description = "The replicas, all of them.", body = Page<ReplicaStatusView>))
)]
pub(super) async fn replicas(Extract(admin): Extract<Arc<Admin>>) -> Json<Page<ReplicaStatusView>> {
    Json(Page {
        items: replica_views(&admin, registered(&admin).await),
        next: None,
    })
}

/// The members without those that came back under their name: what a dead one had claimed is its own affair, and who
/// asks for replicas counts names.
fn latest_lives(members: Vec<RegisteredReplica>) -> Vec<RegisteredReplica> {
    let alive: BTreeSet<String> = members
        .iter()
        .filter(|member| member.is_alive())
        .map(|member| member.status.name.clone())
        .collect();
    members
        .into_iter()
        .filter(|member| member.is_alive() || !alive.contains(&member.status.name))
        .collect()
}

/// The replicas in the registry; none if the store does not answer.
pub(super) async fn registered(admin: &Admin) -> Vec<RegisteredReplica> {
    match admin.state.store.get() {
        Some(store) => admin.browse(store.replicas()).await.unwrap_or_default(),
        None => Vec::new(),
    }
}

/// These replicas and the one that answers, by name.
pub(super) fn replica_views(
    admin: &Admin,
    members: Vec<RegisteredReplica>,
) -> Vec<ReplicaStatusView> {
    let health = &admin.state.health;
    let own = admin.state.store.get().map(Store::nonce);
    let mut items = Vec::new();
    for member in latest_lives(members) {
        let this = own == Some(&*member.nonce);
        items.push(replica_view(member, this));
    }
    if !items.iter().any(|replica| replica.this) {
        let status = ReplicaStatus {
            name: admin.state.replica.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..ReplicaStatus::default()
        };
        let alone = RegisteredReplica {
            nonce: String::new(),
            heartbeat: 0,
            silent_ms: 0,
            status,
        };
        items.push(ReplicaStatusView {
            silent_ms: None,
            clock_skew_ms: None,
            ..replica_view(alone, true)
        });
    }
    for this in items.iter_mut().filter(|replica| replica.this) {
        this.ready = health.is_ready();
        this.draining = health.is_draining();
    }
    items.sort_by(|a, b| a.name.cmp(&b.name));
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_came_back_under_its_name_is_one() {
        let member = |name: &str, nonce: &str, silent_ms| RegisteredReplica {
            nonce: nonce.to_owned(),
            heartbeat: 0,
            silent_ms,
            status: ReplicaStatus {
                name: name.to_owned(),
                heartbeat_ms: 1000,
                ..ReplicaStatus::default()
            },
        };
        let members = vec![
            member("r1", "a", 20_000),
            member("r1", "b", 60_000),
            member("r1", "c", 100),
            member("r2", "d", 20_000),
        ];
        let latest = latest_lives(members);
        let nonces: Vec<_> = latest.iter().map(|member| member.nonce.as_str()).collect();
        assert_eq!(nonces, ["c", "d"]);
    }
}
