//! What everything is like at one moment: parts and their troubles, routes and their flow, replicas, due times.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use super::{RouteView, Word};

// The server only writes it: who needs no `series` reads an `OverviewMoment`.
/// All that the first page shows.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Overview)]
pub struct OverviewView {
    #[serde(flatten, serialize_with = "write_shared")]
    #[schema(value_type = OverviewMoment)]
    pub(crate) moment: Arc<OverviewMoment>,
    /// Flow of the last five minutes.
    pub series: FlowSeries,
}

fn write_shared<S: Serializer>(moment: &Arc<OverviewMoment>, to: S) -> Result<S::Ok, S::Error> {
    moment.serialize(to)
}

/// The state of everything at one moment.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OverviewMoment {
    /// The moment, Unix ms, by the replica's clock.
    pub now_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub now: Option<String>,
    /// Name of the replica that answers.
    pub replica: String,
    /// Its version of Postdate.
    pub version: String,
    /// True while it takes work.
    pub ready: bool,
    /// True while it ends in order.
    pub draining: bool,
    /// Parts of this replica, as in `/readyz`.
    pub parts: Vec<PartView>,
    /// Their troubles, as in `/readyz`.
    pub troubles: Vec<TroubleView>,
    /// The routes, by name.
    pub routes: Vec<LiveRoute>,
    /// Routes that are not configured here and that the store has messages of, as far as this replica has seen.
    pub unconfigured_routes: BTreeSet<String>,
    /// The replicas, by name.
    pub replicas: Vec<ReplicaStatusView>,
    /// Messages that wait, by when they fall due; absent where Redis does not answer within a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub histogram: Option<HistogramView>,
    /// Memory of the fullest Redis; absent until it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub redis: Option<RedisMemoryView>,
}

/// A route, and how it flows now.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LiveRoute {
    #[serde(flatten)]
    pub(crate) route: RouteView,
    #[serde(flatten)]
    pub(crate) flow: LiveFlow,
}

/// Flow of a route over the last seconds.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LiveFlow {
    /// Messages a second read from its source, over all replicas.
    pub rate_in: f64,
    /// Messages a second published and confirmed, over all replicas.
    pub rate_out: f64,
    /// Median lateness of what was delivered after a delay, ms, of the slowest replica; null: nothing was.
    pub late_p50_ms: Option<f64>,
    /// Lateness that one in a hundred exceeds, ms.
    pub late_p99_ms: Option<f64>,
}

/// Memory of a Redis.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = RedisMemory)]
pub struct RedisMemoryView {
    /// Bytes in use.
    pub used_bytes: i64,
    /// Its limit, bytes; null: it has none.
    pub limit_bytes: Option<i64>,
}

/// Flow of all routes, step by step.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FlowSeries {
    /// Time between two values, ms.
    pub step_ms: u64,
    /// Moment of the last values, Unix ms; null: there are none yet.
    pub end_ms: Option<i64>,
    /// By route, its values, the oldest first.
    pub routes: BTreeMap<String, RouteSeries>,
}

/// Flow of one route, step by step.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct RouteSeries {
    /// Messages a second read.
    pub rate_in: Vec<f64>,
    /// Messages a second published.
    pub rate_out: Vec<f64>,
    /// Lateness that one in a hundred exceeded, ms; null where nothing was delivered after a delay.
    pub late_p99_ms: Vec<Option<f64>>,
}

/// Messages that wait, by when they fall due. A bundle counts whole, by its first due time.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Histogram)]
pub struct HistogramView {
    /// Beginning of the windows, Unix ms, by Redis's clock.
    pub now_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub now: Option<String>,
    /// True if everything was read; else the numbers are estimated from a part of it.
    pub exact: bool,
    /// Due already and not claimed yet.
    pub overdue: u64,
    /// The next minute, by second: 60 numbers.
    pub minute: Vec<u64>,
    /// The next hour, by minute: 60 numbers.
    pub hour: Vec<u64>,
    /// The next day, by hour: 24 numbers.
    pub day: Vec<u64>,
    /// The next 30 days, by day: 30 numbers. Those after the first are up to a minute old.
    pub month: Vec<u64>,
    /// True if everything within the month was read; else its numbers are estimated.
    pub month_exact: bool,
}

/// A partition of the store.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Partition)]
pub struct PartitionStatus {
    /// Its number.
    #[serde(rename = "partition")]
    pub number: u16,
    /// Messages pending and in flight.
    pub messages: i64,
    /// Bytes of their bundles.
    pub bytes: i64,
    /// Dead letters.
    pub dead: i64,
    /// Bundles in flight.
    pub claims: u64,
    /// The replica that serves it, by its own word; none while it changes hands.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub owner: Option<String>,
    /// Time from that replica's last claim round over it to its last heartbeat, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub round_ms: Option<i64>,
    /// The earliest due time of what is pending, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub head_ms: Option<i64>,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub head: Option<String>,
}

/// A replica: one process of Postdate.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Replica)]
pub struct ReplicaStatusView {
    /// Its name: `cluster.name`.
    pub name: String,
    /// Its version of Postdate.
    pub version: String,
    /// True for the replica that answers.
    pub this: bool,
    /// True if its last heartbeat is recent enough; a replica that is not alive is shown until its claims have
    /// ended, for a minute at least.
    pub alive: bool,
    /// True while it takes work.
    pub ready: bool,
    /// True while it ends in order.
    pub draining: bool,
    /// Partitions that it serves.
    pub partitions: usize,
    /// Time since its last heartbeat, ms; unknown of a replica that is not in the registry (yet, or any more).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub silent_ms: Option<i64>,
    /// Time from the last claim round of its slowest timer shard to that heartbeat, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub round_ms: Option<i64>,
    /// Its clock minus Redis's, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub clock_skew_ms: Option<i64>,
}

/// Answer of the liveness probe.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Live)]
pub struct LivenessView {
    /// True.
    pub live: bool,
}

/// Answer of the readiness probe.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Readiness)]
pub struct ReadinessView {
    /// True if the status is 200.
    pub ready: bool,
    /// True while the process ends in order.
    pub draining: bool,
    /// Redis, each broker, each route's source, each target, and whether each route delivers in time.
    pub parts: Vec<PartView>,
    /// One for each cause of what is not up: the store first, then the longest.
    pub troubles: Vec<TroubleView>,
}

/// One thing that the process needs.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Part)]
pub struct PartView {
    /// The part's name.
    pub name: String,
    /// `waiting`: never reached yet; `degraded`: lost later.
    #[schema(value_type = PartStateView)]
    pub state: Word<PartStateView>,
    /// The trouble, unless it is up; only for callers with a right.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub why: Option<String>,
    /// The part that it waits for; absent while it is up, or in trouble by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub because: Option<String>,
    /// Since when it is so, by the replica's clock, RFC 3339; absent while it is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub since: Option<String>,
}

/// ReadinessState of one part.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = PartState)]
#[serde(rename_all = "snake_case")]
pub enum PartStateView {
    /// Reached.
    Up,
    /// Never reached yet.
    Waiting,
    /// Lost later.
    Degraded,
}

/// A cause of trouble, with what follows from it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Trouble)]
pub struct TroubleView {
    /// The part that is in trouble.
    pub part: String,
    /// Why, in a sentence; only for callers with a right.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub why: Option<String>,
    /// Since when, by the replica's clock, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub since: Option<String>,
    /// The parts that are not up because of it.
    pub follows: Vec<String>,
    /// A command that shows more, or that mends it.
    pub command: String,
    /// Heading of what to do about it, in the runbooks.
    pub runbook: String,
}
