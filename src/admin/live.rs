//! Live overview: all that the console's first page shows, at one moment. It is made at most once a second, however many
//! look, and shared by all who do.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State as Extract;
use axum::response::sse::{Event, Sse};
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::time::timeout;

use super::caches::SharedOverview;
use super::context::Admin;
use super::health::part_views;
use super::overview::{histogram_view, registered, replica_views};
use super::problem::Problem;
use super::routes::{refresh_counts, route_views};
use super::times::rfc3339;
use super::troubles::trouble_views;
use crate::api::{
    FlowSeries, LiveFlow, LiveRoute, OverviewMoment, OverviewView, RedisMemoryView, RouteSeries,
};
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

/// The overview, [`SHARED_AGE`] old at most.
async fn latest(admin: &Admin) -> Result<SharedOverview, Problem> {
    let clock = admin.state.clock;
    let mut last = admin.live.lock().await;
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
    // Steps carry Redis's time.
    let store_now = admin.state.store.get().map(|store| store.clock().now());
    let step = metrics.flow.latest(store_now.unwrap_or(now));
    let mut routes = Vec::new();
    for route in route_views(admin) {
        let flow = step
            .as_ref()
            .and_then(|step| step.routes.get(&route.name))
            .copied()
            .unwrap_or_default();
        routes.push(LiveRoute {
            flow: flow.into(),
            route,
        });
    }
    let RedisMemory { used, limit } = admin.state.health.store().memory();
    let look = admin.state.health.look();
    OverviewMoment {
        now_ms: now.0,
        now: rfc3339(now),
        replica: admin.state.replica.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ready: look.ready,
        draining: look.draining,
        parts: part_views(&look),
        troubles: trouble_views(admin, &look.troubles),
        routes,
        unconfigured_routes: admin.state.health.store().unconfigured(),
        replicas,
        histogram,
        redis: (used > 0).then_some(RedisMemoryView {
            used_bytes: used as i64,
            limit_bytes: (limit > 0).then_some(limit as i64),
        }),
    }
}

fn flow_series(steps: &[FlowStep], names: impl Iterator<Item = String>) -> FlowSeries {
    let mut routes = BTreeMap::new();
    for name in names {
        let mut series = RouteSeries::default();
        for step in steps {
            let flow = LiveFlow::from(step.routes.get(&name).copied().unwrap_or_default());
            series.rate_in.push(flow.rate_in);
            series.rate_out.push(flow.rate_out);
            series.late_p99_ms.push(flow.late_p99_ms);
        }
        routes.insert(name, series);
    }
    FlowSeries {
        step_ms: FLOW_STEP.as_millis() as u64,
        end_ms: steps.last().map(|step| step.at.0),
        routes,
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
    let shared = latest(&admin).await?;
    let names = admin.routes().map(|route| route.name.to_string());
    let series = flow_series(&admin.state.metrics.flow.steps(), names);
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
        let shared = latest(&admin).await.ok()?;
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
        let series = flow_series(&steps, ["a".to_owned(), "b".to_owned()].into_iter());
        assert_eq!((series.step_ms, series.end_ms), (2000, Some(4_000)));
        assert_eq!(series.routes["a"].rate_in, [2.0, 0.0]);
        assert_eq!(series.routes["a"].late_p99_ms, [Some(2.5), None]);
        assert_eq!(series.routes["b"].rate_out, [0.0, 0.0]);
        assert_eq!(flow_series(&[], std::iter::empty()).end_ms, None);
    }
}
