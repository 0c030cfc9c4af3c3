//! Live overview: all that the console's first page shows, at one moment. It is made at most once a second, however many
//! look, and shared by all who do.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State as Extract;
use axum::response::sse::{Event, Sse};
use futures_util::Stream;
use futures_util::stream::unfold;
use serde::{Serialize, Serializer};
use tokio::sync::Mutex;
use tokio::time::timeout;
use utoipa::ToSchema;

use super::context::Admin;
use super::health::{PartView, part_views};
use super::overview::{
    HistogramView, ReplicaStatusView, histogram_view, registered, replica_views,
};
use super::problem::Problem;
use super::routes::{RouteView, refresh_counts, route_views};
use super::times::rfc3339;
use super::troubles::{TroubleView, trouble_views};
use crate::domain::Clock;
use crate::health::RedisMemory;
use crate::lifecycle::tick;
use crate::telemetry::flow::FLOW_STEP;
use crate::telemetry::{FlowStep, RouteFlow};

/// Time between two events of a stream.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);
/// Age up to which an overview is shared. Streams wake up together, and the first of them makes it for all.
const SHARED_AGE: Duration = Duration::from_millis(900);
/// How long an overview waits for what the store tells. What the replica itself knows does not wait longer: whether the
/// store answers is the first that whoever looks wants to know.
const FIGURES_WAIT: Duration = Duration::from_secs(1);
/// Events after which a stream ends by itself, so that no answer takes longer than any may.
const MAX_EVENTS: usize = if cfg!(test) { 1 } else { 50 };

/// All that the first page shows.
#[derive(Serialize, ToSchema)]
#[schema(as = Overview)]
pub(super) struct OverviewView {
    #[serde(flatten, serialize_with = "write_shared")]
    #[schema(value_type = OverviewMoment)]
    moment: Arc<OverviewMoment>,
    /// Flow of the last five minutes.
    series: FlowSeries,
}

/// The state of everything at one moment.
#[derive(Serialize, ToSchema)]
pub(super) struct OverviewMoment {
    /// The moment, Unix ms, by the replica's clock.
    now_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    now: Option<String>,
    /// Name of the replica that answers.
    replica: String,
    /// Its version of Postdate.
    version: &'static str,
    /// True while it takes work.
    ready: bool,
    /// True while it ends in order.
    draining: bool,
    /// Parts of this replica, as in `/readyz`.
    parts: Vec<PartView>,
    /// Their troubles, as in `/readyz`.
    troubles: Vec<TroubleView>,
    /// The routes, by name.
    routes: Vec<LiveRoute>,
    /// Routes that are not configured here and that the store has messages of, as far as this replica has seen.
    unconfigured_routes: BTreeSet<String>,
    /// The replicas, by name.
    replicas: Vec<ReplicaStatusView>,
    /// Messages that wait, by when they fall due; absent where Redis does not answer within a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    histogram: Option<HistogramView>,
    /// Memory of the fullest Redis; absent until it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    redis: Option<RedisMemoryView>,
}

/// A route, and how it flows now.
#[derive(Serialize, ToSchema)]
struct LiveRoute {
    #[serde(flatten)]
    route: RouteView,
    #[serde(flatten)]
    flow: LiveFlow,
}

/// Flow of a route over the last seconds.
#[derive(Serialize, ToSchema)]
struct LiveFlow {
    /// Messages a second read from its source, over all replicas.
    rate_in: f64,
    /// Messages a second published and confirmed, over all replicas.
    rate_out: f64,
    /// Median lateness of what was delivered after a delay, ms, of the slowest replica; null: nothing was.
    late_p50_ms: Option<f64>,
    /// Lateness that one in a hundred exceeds, ms.
    late_p99_ms: Option<f64>,
}

/// Memory of a Redis.
#[derive(Serialize, ToSchema)]
#[schema(as = RedisMemory)]
struct RedisMemoryView {
    /// Bytes in use.
    used_bytes: i64,
    /// Its limit, bytes; null: it has none.
    limit_bytes: Option<i64>,
}

/// Flow of all routes, step by step.
#[derive(Serialize, ToSchema)]
struct FlowSeries {
    /// Time between two values, ms.
    step_ms: u64,
    /// Moment of the last values, Unix ms; null: there are none yet.
    end_ms: Option<i64>,
    /// By route, its values, the oldest first.
    routes: BTreeMap<String, RouteSeries>,
}

/// Flow of one route, step by step.
#[derive(Default, Serialize, ToSchema)]
struct RouteSeries {
    /// Messages a second read.
    rate_in: Vec<f64>,
    /// Messages a second published.
    rate_out: Vec<f64>,
    /// Lateness that one in a hundred exceeded, ms; null where nothing was delivered after a delay.
    late_p99_ms: Vec<Option<f64>>,
}

impl From<RouteFlow> for LiveFlow {
    fn from(flow: RouteFlow) -> Self {
        let ms = |us: u64| us as f64 / 1e3;
        Self {
            rate_in: flow.rate_in,
            rate_out: flow.rate_out,
            late_p50_ms: flow.p50.map(ms),
            late_p99_ms: flow.p99.map(ms),
        }
    }
}

fn write_shared<S: Serializer>(moment: &Arc<OverviewMoment>, to: S) -> Result<S::Ok, S::Error> {
    moment.serialize(to)
}

/// The last overview, and its text for streams.
#[derive(Default)]
pub(super) struct LiveOverview(Mutex<Option<SharedOverview>>);

#[derive(Clone)]
struct SharedOverview {
    /// When it was made, monotonic microseconds.
    at_us: i64,
    moment: Arc<OverviewMoment>,
    text: Arc<str>,
}

impl LiveOverview {
    /// The overview, [`SHARED_AGE`] old at most.
    async fn latest(&self, admin: &Admin) -> Result<SharedOverview, Problem> {
        let clock = admin.state.clock;
        let mut last = self.0.lock().await;
        let now_us = clock.mono_us();
        if let Some(shared) = &*last
            && now_us - shared.at_us < SHARED_AGE.as_micros() as i64
        {
            return Ok(shared.clone());
        }
        let moment = Arc::new(overview_moment(admin, clock).await);
        let text = serde_json::to_string(&*moment).map_err(|error| {
            let detail = format!("the overview cannot be written: {error}");
            Problem::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, detail)
        })?;
        let shared = SharedOverview {
            at_us: now_us,
            moment,
            text: text.into(),
        };
        *last = Some(shared.clone());
        Ok(shared)
    }
}

async fn overview_moment(admin: &Admin, clock: Clock) -> OverviewMoment {
    // All at once: a Redis that hangs is waited for once. Without an answer the page shows what the process itself knows;
    // the parts say that Redis is away.
    let (_counted, histogram, members) = tokio::join!(
        timeout(FIGURES_WAIT, refresh_counts(admin)),
        timeout(FIGURES_WAIT, histogram_view(admin, None)),
        timeout(FIGURES_WAIT, registered(admin))
    );
    let histogram = histogram.ok().and_then(Result::ok);
    let replicas = replica_views(admin, members.unwrap_or_default());
    let now = clock.wall();
    let metrics = &admin.state.metrics;
    let step = metrics.flow.latest(now);
    let flow_of = |name: &str| {
        step.as_ref()
            .and_then(|step| step.routes.get(name))
            .copied()
            .unwrap_or_default()
    };
    let routes = route_views(admin).into_iter();
    let RedisMemory { used, limit } = admin.state.health.store().memory();
    let look = admin.state.health.look();
    OverviewMoment {
        now_ms: now.0,
        now: rfc3339(now),
        replica: admin.state.replica.clone(),
        version: env!("CARGO_PKG_VERSION"),
        ready: look.ready,
        draining: look.draining,
        parts: part_views(&look),
        troubles: trouble_views(admin, &look.troubles),
        routes: routes
            .map(|route| LiveRoute {
                flow: flow_of(route.name()).into(),
                route,
            })
            .collect(),
        unconfigured_routes: admin.state.health.store().unconfigured(),
        replicas,
        histogram,
        redis: (used > 0).then_some(RedisMemoryView {
            used_bytes: used as i64,
            limit_bytes: (limit > 0).then_some(limit as i64),
        }),
    }
}

impl FlowSeries {
    fn of(steps: &[FlowStep], names: impl Iterator<Item = String>) -> Self {
        let series_of = |name: &str| {
            let mut series = RouteSeries::default();
            for step in steps {
                let flow = LiveFlow::from(step.routes.get(name).copied().unwrap_or_default());
                series.rate_in.push(flow.rate_in);
                series.rate_out.push(flow.rate_out);
                series.late_p99_ms.push(flow.late_p99_ms);
            }
            series
        };
        Self {
            step_ms: FLOW_STEP.as_millis() as u64,
            end_ms: steps.last().map(|step| step.at.0),
            routes: names.map(|name| (name.clone(), series_of(&name))).collect(),
        }
    }
}

/// Everything at one moment
///
/// Parts, routes with their flow, replicas, due times, and the flow of the last five minutes. At most a second old.
#[utoipa::path(
    get, path = "/api/v1/overview", operation_id = "getOverview",
    responses((status = 200, description = "The overview.", body = OverviewView))
)]
pub(super) async fn overview(
    Extract(admin): Extract<Arc<Admin>>,
) -> Result<Json<OverviewView>, Problem> {
    let shared = admin.live.latest(&admin).await?;
    let names = admin.routes().map(|route| route.name.to_string());
    let series = FlowSeries::of(&admin.state.metrics.flow.steps(), names);
    Ok(Json(OverviewView {
        moment: shared.moment,
        series,
    }))
}

/// Everything, once a second
///
/// Server-sent events named `overview`, each with what `/api/v1/overview` answers but for `series`. The stream ends by itself
/// after some 50 s, or when the replica drains: ask again. What a slow client has not read is not kept for it: its next event is the
/// state of then.
#[utoipa::path(
    get, path = "/api/v1/overview/stream", operation_id = "streamOverview",
    responses((status = 200, description = "The events.", body = String, content_type = "text/event-stream"))
)]
pub(super) async fn stream(
    Extract(admin): Extract<Arc<Admin>>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    Sse::new(unfold((admin, 0), |(admin, sent)| async move {
        if sent >= MAX_EVENTS {
            return None;
        }
        let drains = admin.shutdown.is_draining();
        if sent > 0 && !drains {
            tokio::select! {
                () = tick(EVENT_INTERVAL) => {}
                () = admin.shutdown.draining() => {}
            }
        }
        let shared = admin.live.latest(&admin).await.ok()?;
        let event = Event::default().event("overview").data(&*shared.text);
        // The last event of a replica that drains says so.
        let sent = if drains || admin.shutdown.is_draining() {
            MAX_EVENTS
        } else {
            sent + 1
        };
        Some((Ok(event), (admin, sent)))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::UnixMs;
    use crate::telemetry::RouteFlows;

    #[test]
    fn a_series_has_a_value_for_each_step_and_none_where_nothing_was_delivered() {
        let flow = RouteFlow {
            rate_in: 2.0,
            rate_out: 1.0,
            p50: Some(400),
            p99: Some(2_500),
        };
        let steps = [
            FlowStep {
                at: UnixMs(2_000),
                routes: RouteFlows::from([("a".to_owned(), flow)]),
            },
            FlowStep {
                at: UnixMs(4_000),
                routes: RouteFlows::new(),
            },
        ];
        let series = FlowSeries::of(&steps, ["a".to_owned(), "b".to_owned()].into_iter());
        assert_eq!((series.step_ms, series.end_ms), (2000, Some(4_000)));
        assert_eq!(series.routes["a"].rate_in, [2.0, 0.0]);
        assert_eq!(series.routes["a"].late_p99_ms, [Some(2.5), None]);
        assert_eq!(series.routes["b"].rate_out, [0.0, 0.0]);
        assert_eq!(FlowSeries::of(&[], std::iter::empty()).end_ms, None);
    }
}
