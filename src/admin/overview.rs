//! Overview of the store and the cluster: due times, partitions, replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State as Extract;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::context::Admin;
use super::extract::QueryParams;
use super::page::Page;
use super::problem::{Problem, StoreAway};
use super::times::rfc3339;
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

/// Messages that wait, by when they fall due. A bundle counts whole, by its first due time.
#[derive(Serialize, ToSchema)]
#[schema(as = Histogram)]
pub(super) struct HistogramView {
    /// Beginning of the windows, Unix ms, by Redis's clock.
    now_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    now: Option<String>,
    /// True if everything was read; else the numbers are estimated from a part of it.
    exact: bool,
    /// Due already and not claimed yet.
    overdue: u64,
    /// The next minute, by second: 60 numbers.
    minute: Vec<u64>,
    /// The next hour, by minute: 60 numbers.
    hour: Vec<u64>,
    /// The next day, by hour: 24 numbers.
    day: Vec<u64>,
    /// The next 30 days, by day: 30 numbers. Those after the first are up to a minute old.
    month: Vec<u64>,
    /// True if everything within the month was read; else its numbers are estimated.
    month_exact: bool,
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
    let later = admin.months.later_days(admin, route).await?;
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

/// Later days of the month, by route, each read once a minute at most: they change slowly, and reading them costs as much
/// as the rest of a histogram.
#[derive(Default)]
pub(super) struct DueMonths(Mutex<BTreeMap<Option<RouteName>, KnownMonth>>);

/// A month, and when it was read.
struct KnownMonth {
    /// Monotonic microseconds.
    read_us: i64,
    month: Arc<DueMonth>,
}

impl DueMonths {
    /// The later days of a route, or of all, [`MONTH_AGE`] old at most.
    async fn later_days(
        &self,
        admin: &Admin,
        route: Option<&RouteName>,
    ) -> Result<Arc<DueMonth>, Problem> {
        let now_us = admin.state.clock.mono_us();
        let key = route.cloned();
        if let Some(known) = self.0.lock().get(&key)
            && now_us - known.read_us < MONTH_AGE.as_micros() as i64
        {
            return Ok(Arc::clone(&known.month));
        }
        let month = Arc::new(admin.browse(admin.store()?.month(route)).await?);
        self.0.lock().insert(
            key,
            KnownMonth {
                read_us: now_us,
                month: Arc::clone(&month),
            },
        );
        Ok(month)
    }
}

/// A partition of the store.
#[derive(Serialize, ToSchema)]
#[schema(as = Partition)]
pub(super) struct PartitionStatus {
    /// Its number.
    #[serde(rename = "partition")]
    number: u16,
    /// Messages pending and in flight.
    messages: i64,
    /// Bytes of their bundles.
    bytes: i64,
    /// Dead letters.
    dead: i64,
    /// Bundles in flight.
    claims: u64,
    /// The replica that serves it, by its own word; none while it changes hands.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    owner: Option<String>,
    /// Time from that replica's last claim round over it to its last heartbeat, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    round_ms: Option<i64>,
    /// The earliest due time of what is pending, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    head_ms: Option<i64>,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    head: Option<String>,
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
    let view = |v: crate::store::PartitionView| {
        let owner = members
            .iter()
            .find(|m| m.is_alive() && m.status.partitions.contains(&v.partition));
        PartitionStatus {
            number: v.partition.0,
            messages: v.messages,
            bytes: v.bytes,
            dead: v.dead,
            claims: v.claims,
            owner: owner.map(|m| m.status.name.clone()),
            round_ms: owner.and_then(|m| m.round_ms(v.partition)),
            head_ms: v.head.map(|head| head.0),
            head: v.head.and_then(rfc3339),
        }
    };
    Ok(Json(Page {
        items: views.into_iter().map(view).collect(),
        next: None,
    }))
}

/// A replica: one process of Postdate.
#[derive(Serialize, ToSchema)]
#[schema(as = Replica)]
pub(super) struct ReplicaStatusView {
    /// Its name: `cluster.name`.
    name: String,
    /// Its version of Postdate.
    version: String,
    /// True for the replica that answers.
    this: bool,
    /// True if its last heartbeat is recent enough; a replica that is not alive is shown for a minute.
    alive: bool,
    /// True while it takes work.
    ready: bool,
    /// True while it ends in order.
    draining: bool,
    /// Partitions that it serves.
    partitions: usize,
    /// Time since its last heartbeat, ms; unknown of a replica that is not in the registry (yet, or any more).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    silent_ms: Option<i64>,
    /// Time from the last claim round of its slowest timer shard to that heartbeat, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    round_ms: Option<i64>,
    /// Its clock minus Redis's, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    clock_skew_ms: Option<i64>,
}

impl ReplicaStatusView {
    fn of(member: RegisteredReplica, this: bool) -> Self {
        Self {
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
    let view = |member: RegisteredReplica| {
        let this = own == Some(&*member.nonce);
        ReplicaStatusView::of(member, this)
    };
    let mut items: Vec<_> = latest_lives(members).into_iter().map(view).collect();
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
            ..ReplicaStatusView::of(alone, true)
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
