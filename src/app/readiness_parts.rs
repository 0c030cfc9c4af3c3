//! Parts of `/readyz` beside the connections: each route's source, each target, the store's capacity, and each route's
//! delivery in time. None of them makes the replica unready: a part in trouble costs its own messages only. Each part is a
//! metric too, and the log has a line when its trouble begins and one when it ends.

mod lateness;
mod lateness_poll;
mod standstill;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing::{info, warn};

use self::lateness::RouteLateness;
use self::lateness_poll::LatenessPoll;
use self::standstill::Standstill;
use super::App;
use super::store_room::StoreRoom;
use crate::domain::{Clock, Endpoint, Route, Target, Text, route};
use crate::egress::Lanes;
use crate::lifecycle::readiness::ReadinessState;
use crate::lifecycle::{Readiness, ReadinessPart, Shutdown, tick};
use crate::store::Store;
use crate::telemetry::{Metrics, TargetChange};

/// Announces the parts and keeps them up to date until the lanes end.
pub(super) fn start(
    app: &App,
    lanes: Arc<dyn Lanes>,
    slot: &Arc<OnceLock<Store>>,
    shutdown: Shutdown,
) {
    let routes = &app.config.routes;
    let readiness = &app.readiness;
    let side = |name: String| readiness.side_part(name);
    let targets: BTreeMap<Text, Arc<Target>> = routes
        .iter()
        .flat_map(|route| route.targets())
        .map(|target| (route::describe(target), target.clone()))
        .collect();
    let parts = ReadinessParts {
        targets: targets
            .into_iter()
            .map(|(name, target)| (side(format!("target:{name}")), target))
            .collect(),
        routes: routes
            .iter()
            .map(|route| RouteParts {
                source: side(format!("source:{}", route.name)),
                source_waits: false,
                standstill: Standstill::default(),
                delivery: side(format!("route:{}", route.name)),
                route: route.clone(),
                lateness: RouteLateness::default(),
            })
            .collect(),
        store_part: side("store:room".to_owned()),
        store_room: StoreRoom::default(),
        readiness: readiness.clone(),
        metrics: app.metrics.clone(),
        lanes,
        slot: slot.clone(),
        clock: app.clock,
    };
    let late = LatenessPoll::new(slot.clone(), app.metrics.clone());
    app.tasks
        .spawn("parts:late", at_each_tick(late, shutdown.clone()));
    app.tasks.spawn("parts", at_each_tick(parts, shutdown));
}

/// A task that runs at each tick of a period.
trait PeriodicTask: Send + 'static {
    const PERIOD: Duration;

    fn round(&mut self) -> impl Future<Output = ()> + Send;
}

/// Runs a task at each tick until draining begins.
async fn at_each_tick<T: PeriodicTask>(mut task: T, shutdown: Shutdown) {
    let rounds = async {
        loop {
            tick(T::PERIOD).await;
            task.round().await;
        }
    };
    tokio::select! {
        () = shutdown.draining() => {}
        () = rounds => {}
    }
}

/// Parts of one route.
struct RouteParts {
    route: Arc<Route>,
    source: ReadinessPart,
    /// True if the source itself waited at the last update; trouble of its connection does not count.
    source_waits: bool,
    /// Detects records that were read from the source and stand still.
    standstill: Standstill,
    delivery: ReadinessPart,
    lateness: RouteLateness,
}

/// All parts beside the connections, and the sources of their state.
struct ReadinessParts {
    targets: Vec<(ReadinessPart, Arc<Target>)>,
    routes: Vec<RouteParts>,
    /// ReadinessPart `store:room`: the store's capacity to take messages in.
    store_part: ReadinessPart,
    store_room: StoreRoom,
    readiness: Readiness,
    metrics: Arc<Metrics>,
    lanes: Arc<dyn Lanes>,
    slot: Arc<OnceLock<Store>>,
    clock: Clock,
}

impl PeriodicTask for ReadinessParts {
    const PERIOD: Duration = Duration::from_secs(1);

    async fn round(&mut self) {
        self.update();
    }
}

impl ReadinessParts {
    fn update(&mut self) {
        let now_us = self.clock.mono_us();
        for (target, change) in self.metrics.target_failures.changes(now_us) {
            log_target(&target, &change);
        }
        let trouble = trouble(&self.readiness);
        for (part, target) in &self.targets {
            let lane = self.lanes.lane(target);
            let why = lane
                .trouble_of(target)
                .or_else(|| lane.partial_trouble_of(target))
                .or_else(|| self.metrics.target_failures.why(target, now_us));
            show(
                part,
                why.or_else(|| named(&trouble, &target_connection(target))),
            );
        }
        show(
            &self.store_part,
            self.store_room.look(self.slot.get(), &self.metrics),
        );
        self.update_routes(&trouble);
        for (name, state) in self.readiness.parts() {
            self.metrics.part_up(name, state == ReadinessState::Up);
        }
    }

    /// Shows each route's source and delivery. A source whose connection is away waits with it and logs nothing: the
    /// connection logs it for all its routes.
    fn update_routes(&mut self, trouble: &BTreeMap<String, String>) {
        let now = self.slot.get().map(|store| store.clock().now());
        let mono_us = self.clock.mono_us();
        for route_parts in &mut self.routes {
            let Some(metrics) = self.metrics.route(&route_parts.route.name) else {
                continue;
            };
            let standstill = route_parts
                .standstill
                .update(&metrics.oldest_unresolved(), mono_us);
            let waits = metrics.source_waits().or(standstill);
            let name = &route_parts.route.name;
            match (
                &waits,
                std::mem::replace(&mut route_parts.source_waits, waits.is_some()),
            ) {
                (Some(why), false) => warn!(route = %name, why, "the source waits"),
                (None, true) => info!(route = %name, "the source is read again"),
                _ => {}
            }
            show(
                &route_parts.source,
                waits.or_else(|| named(trouble, &source_connection(&route_parts.route.from))),
            );
            let late_s = now.map_or(0.0, |now| metrics.count_overdue(now));
            let paused = metrics.publishing_paused.get() != 0;
            let change = route_parts.lateness.update(late_s);
            let count = metrics.pending.get() + metrics.in_flight.get();
            let now_s = mono_us as f64 / 1e6;
            let catches_up = route_parts.lateness.catches_up(now_s, late_s, count);
            let place = metrics.overdue.place();
            let route = &route_parts.route;
            let full = metrics.full_credits.cause();
            let causes = lateness::causes(route, paused, catches_up, place, full.as_ref(), trouble);
            let lateness = &mut route_parts.lateness;
            if let Some(news) = lateness.news(change, causes.is_known) {
                news.log(name, late_s, &causes.words);
            }
            let why = lateness.is_late().then(|| {
                let causes = causes.words;
                format!("its oldest message is {late_s:.0} s late: {causes}")
            });
            show(&route_parts.delivery, why);
        }
    }
}

/// The trouble of each part that is not up, by the part's name.
fn trouble(readiness: &Readiness) -> BTreeMap<String, String> {
    let why = |state| match state {
        ReadinessState::Up => None,
        ReadinessState::Waiting(why) | ReadinessState::Degraded(why) => Some(why),
    };
    readiness
        .parts()
        .into_iter()
        .filter_map(|(name, state)| Some((name, why(state)?)))
        .collect()
}

/// A part's trouble with the part's name before it; `None` if the part is up.
fn named(trouble: &BTreeMap<String, String>, part: &str) -> Option<String> {
    trouble.get(part).map(|why| format!("{part}: {why}"))
}

/// The name of the part of a source's connection.
fn source_connection(source: &Endpoint) -> String {
    match source {
        Endpoint::Kafka {
            connection, group, ..
        } => format!("kafka:{connection}:{group}"),
        Endpoint::Rabbitmq { connection, .. } => format!("rabbitmq:{connection}"),
    }
}

/// The name of the part of a target's connection.
fn target_connection(target: &Target) -> String {
    match target {
        Target::Kafka { connection, .. } => format!("kafka:{connection}"),
        Target::Rabbitmq { connection, .. } => format!("rabbitmq:{connection}"),
    }
}

fn show(part: &ReadinessPart, why: Option<String>) {
    match why {
        None => part.up(),
        Some(why) => part.down(why),
    };
}

/// Logs that publishes to a target begin to fail or to hang, or work again.
fn log_target(target: &Text, change: &TargetChange) {
    match change {
        TargetChange::Fails { reason, error } => {
            warn!(target_name = %target, reason, %error, "publishing to a target fails");
        }
        TargetChange::Works {
            failures,
            lasted_us,
        } => {
            let lasted_s = lasted_us / 1_000_000;
            info!(target_name = %target, failures, lasted_s, "publishing to a target works again");
        }
        TargetChange::Silent => warn!(target_name = %target, "a target does not answer publishes"),
        TargetChange::Answers => info!(target_name = %target, "a target answers publishes again"),
    }
}
