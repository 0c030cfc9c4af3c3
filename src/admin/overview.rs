//! What is due when, how each partition stands, and who serves.

use std::sync::Arc;

use axum::Json;
use axum::extract::State as Extract;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::Asked;
use super::page::Page;
use super::problem::Problem;
use super::router::Admin;
use super::times::rfc3339;
use crate::store::{RegisteredReplica, ReplicaStatus};

/// Of which route.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct OneOrAll {
    /// Of this route only.
    route: Option<String>,
}

/// Messages that wait, by when they fall due. A bundle counts whole, by its first due time.
#[derive(Serialize, ToSchema)]
pub(super) struct Histogram {
    /// When the windows begin, Unix ms, by Redis's clock.
    now_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    now: Option<String>,
    /// Whether everything was read; else the numbers are estimated from some of the partitions.
    exact: bool,
    /// Due already and not claimed yet.
    overdue: u64,
    /// The next minute, by second: 60 numbers.
    minute: Vec<u64>,
    /// The next hour, by minute: 60 numbers.
    hour: Vec<u64>,
    /// The next day, by hour: 24 numbers.
    day: Vec<u64>,
}

/// How much falls due when
#[utoipa::path(
    get, path = "/api/v1/histogram", operation_id = "getHistogram", params(OneOrAll),
    responses(
        (status = 200, description = "The histogram.", body = Histogram),
        (status = 400, description = "An unknown parameter."),
        (status = 404, description = "No such route."),
        (status = 503, description = "Redis is away."),
        (status = 504, description = "Redis did not answer in time."),
    )
)]
pub(super) async fn histogram(
    Extract(admin): Extract<Arc<Admin>>,
    Asked(of): Asked<OneOrAll>,
) -> Result<Json<Histogram>, Problem> {
    let route = of.route.as_deref().map(|name| admin.route(name)).transpose()?.map(|r| &r.name);
    let histogram = admin.browse(admin.store()?.histogram(route)).await?;
    Ok(Json(Histogram {
        now_ms: histogram.now.0,
        now: rfc3339(histogram.now),
        exact: histogram.exact,
        overdue: histogram.overdue,
        minute: histogram.minute,
        hour: histogram.hour,
        day: histogram.day,
    }))
}

/// A slice of the store.
#[derive(Serialize, ToSchema)]
pub(super) struct Partition {
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
    /// How long before its last beat that replica had finished a claim round over it, ms.
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
        (status = 200, description = "The partitions, all of them.", body = Page<Partition>),
        (status = 503, description = "Redis is away."),
        (status = 504, description = "Redis did not answer in time."),
    )
)]
pub(super) async fn partitions(
    Extract(admin): Extract<Arc<Admin>>,
) -> Result<Json<Page<Partition>>, Problem> {
    let store = admin.store()?;
    let views = admin.browse(store.partition_views()).await?;
    let members = admin.browse(store.replicas()).await?;
    let view = |v: crate::store::PartitionView| {
        let owner = members.iter().find(|m| m.is_alive() && m.status.partitions.contains(&v.partition));
        Partition {
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
    Ok(Json(Page { items: views.into_iter().map(view).collect(), next: None }))
}

/// A process that serves.
#[derive(Serialize, ToSchema)]
pub(super) struct Replica {
    /// Its name: `cluster.name`.
    name: String,
    /// Its version of Postdate.
    version: String,
    /// Whether it is the one that answers.
    this: bool,
    /// Whether it was heard of lately enough; one that was not is shown for a minute.
    alive: bool,
    /// Whether it is willing to take work.
    ready: bool,
    /// Whether it is ending.
    draining: bool,
    /// Partitions that it serves.
    partitions: usize,
    /// How long ago it was last heard of, ms; not known of one that is not with the others (yet, or any more).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    silent_ms: Option<i64>,
    /// How long before that the slowest of its timer shards had finished a claim round, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    round_ms: Option<i64>,
    /// Its clock minus Redis's, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    clock_skew_ms: Option<i64>,
}

impl Replica {
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
/// By name. Where Redis cannot be asked: the one that answers, alone.
#[utoipa::path(
    get, path = "/api/v1/replicas", operation_id = "listReplicas",
    responses((status = 200, description = "The replicas, all of them.", body = Page<Replica>))
)]
pub(super) async fn replicas(Extract(admin): Extract<Arc<Admin>>) -> Json<Page<Replica>> {
    let (readiness, store) = (&admin.state.readiness, admin.state.store.get());
    let mut items = Vec::new();
    if let Some(store) = store
        && let Ok(members) = admin.browse(store.replicas()).await
    {
        let own = store.nonce();
        items.extend(members.into_iter().map(|m| {
            let this = m.nonce == own;
            Replica::of(m, this)
        }));
    }
    if !items.iter().any(|replica| replica.this) {
        let presence = ReplicaStatus {
            name: admin.state.replica.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..ReplicaStatus::default()
        };
        let alone = RegisteredReplica { nonce: String::new(), heartbeat: 0, silent_ms: 0, status: presence };
        items.push(Replica { silent_ms: None, clock_skew_ms: None, ..Replica::of(alone, true) });
    }
    for this in items.iter_mut().filter(|replica| replica.this) {
        (this.ready, this.draining) = (readiness.is_ready(), readiness.is_draining());
    }
    items.sort_by(|a, b| a.name.cmp(&b.name));
    Json(Page { items, next: None })
}
