//! The parts of `/readyz` beside the connections: each route's source, each target, whether the store takes messages
//! in, and whether each route delivers in time. None of them closes readiness: what is in trouble costs its own
//! messages only. Each is a metric too, and its begin and end a line of the log.

mod asking;
mod lateness;
mod standstill;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing::{info, warn};

use self::asking::{LateLook, MemoryLook};
use self::lateness::Lateness;
use self::standstill::Standstill;
use super::App;
use crate::domain::{Clock, Endpoint, Route, Target, Text, route};
use crate::egress::Lanes;
use crate::lifecycle::readiness::ReadinessState;
use crate::lifecycle::{Readiness, ReadinessPart, Shutdown, tick};
use crate::store::{Memory, Store};
use crate::telemetry::{Metrics, TargetChange};

/// A master is nearly full from this share of its `maxmemory` on.
const NEARLY_FULL: f64 = 0.9;

/// Announces the parts and keeps them true until the lanes end.
pub(super) fn start(app: &App, lanes: Arc<dyn Lanes>, slot: &Arc<OnceLock<Store>>, shutdown: Shutdown) {
    let (routes, readiness) = (&app.config.routes, &app.readiness);
    let side = |name: String| readiness.side_part(name);
    let targets: BTreeMap<Text, Arc<Target>> = routes
        .iter()
        .flat_map(|route| route.targets())
        .map(|target| (route::describe(target), target.clone()))
        .collect();
    let parts = Parts {
        targets: targets.into_iter().map(|(name, target)| (side(format!("target:{name}")), target)).collect(),
        routes: routes
            .iter()
            .map(|route| Watched {
                source: side(format!("source:{}", route.name)),
                source_waits: false,
                standstill: Standstill::default(),
                delivery: side(format!("route:{}", route.name)),
                route: route.clone(),
                lateness: Lateness::default(),
            })
            .collect(),
        room: side("store:room".to_owned()),
        readiness: readiness.clone(),
        metrics: app.metrics.clone(),
        lanes,
        slot: slot.clone(),
        clock: app.clock,
        nearly_full: false,
    };
    let late = LateLook::new(slot.clone(), app.metrics.clone());
    let memory = MemoryLook::new(slot.clone(), app.metrics.clone());
    app.tasks.spawn("parts:late", at_each_tick(late, shutdown.clone()));
    app.tasks.spawn("parts:memory", at_each_tick(memory, shutdown.clone()));
    app.tasks.spawn("parts", at_each_tick(parts, shutdown));
}

/// Something that is done at each tick of a period.
trait Recurring: Send + 'static {
    const PERIOD: Duration;

    fn round(&mut self) -> impl Future<Output = ()> + Send;
}

/// Runs until draining begins.
async fn at_each_tick<R: Recurring>(mut recurring: R, shutdown: Shutdown) {
    let rounds = async {
        loop {
            tick(R::PERIOD).await;
            recurring.round().await;
        }
    };
    tokio::select! {
        () = shutdown.draining() => {}
        () = rounds => {}
    }
}

/// A route's parts.
struct Watched {
    route: Arc<Route>,
    source: ReadinessPart,
    /// Whether the route itself was last seen to wait, its connection apart.
    source_waits: bool,
    /// What was read from it and does not get on.
    standstill: Standstill,
    delivery: ReadinessPart,
    lateness: Lateness,
}

struct Parts {
    targets: Vec<(ReadinessPart, Arc<Target>)>,
    routes: Vec<Watched>,
    /// Whether the store takes messages in.
    room: ReadinessPart,
    readiness: Readiness,
    metrics: Arc<Metrics>,
    lanes: Arc<dyn Lanes>,
    slot: Arc<OnceLock<Store>>,
    clock: Clock,
    nearly_full: bool,
}

impl Recurring for Parts {
    const PERIOD: Duration = Duration::from_secs(1);

    async fn round(&mut self) {
        self.look();
    }
}

impl Parts {
    fn look(&mut self) {
        let now_us = self.clock.mono_us();
        for (target, change) in self.metrics.target_failures.changes(now_us) {
            tell(&target, &change);
        }
        let trouble = trouble(&self.readiness);
        for (part, target) in &self.targets {
            let why = self
                .lanes
                .lane(target)
                .trouble()
                .or_else(|| self.metrics.target_failures.why(target, now_us));
            show(part, why.or_else(|| named(&trouble, &target_connection(target))));
        }
        self.look_at_room();
        self.look_at_routes(&trouble);
        for (name, state) in self.readiness.parts() {
            self.metrics.part_up(name, state == ReadinessState::Up);
        }
    }

    fn look_at_room(&mut self) {
        let used = self.metrics.store_memory.get().max(0) as u64;
        let memory = Memory { used, limit: self.metrics.store_memory_limit.get().max(0) as u64 };
        let nearly_full = memory.share() >= NEARLY_FULL;
        let percent = (memory.share() * 100.0) as u64;
        if nearly_full && !self.nearly_full {
            warn!(
                used = memory.used,
                limit = memory.limit,
                "redis is nearly full; at maxmemory ingress waits"
            );
        } else if self.nearly_full && !nearly_full {
            info!(used = memory.used, limit = memory.limit, "redis has room again");
        }
        self.nearly_full = nearly_full;
        let waits = self.slot.get().and_then(Store::writes_wait);
        let unconfirmed = || {
            let why = self.slot.get().and_then(Store::unconfirmed)?;
            Some(format!("what is stored and claimed is not confirmed: {why}"))
        };
        let why = waits.map(|why| format!("the store takes nothing in: {why}")).or_else(unconfirmed);
        show(&self.room, why.or_else(|| nearly_full.then(|| format!("redis uses {percent} % of maxmemory"))));
    }

    /// Shows each route's source and delivery. A source whose connection is away waits with it, without log lines of
    /// its own: those of the connection say so for all its routes.
    fn look_at_routes(&mut self, trouble: &BTreeMap<String, String>) {
        let now = self.slot.get().map(|store| store.clock().now());
        let mono_us = self.clock.mono_us();
        for watched in &mut self.routes {
            let Some(metrics) = self.metrics.route(&watched.route.name) else { continue };
            let stands = watched.standstill.look(&metrics.oldest_unresolved(), mono_us);
            let waits = metrics.source_waits().or(stands);
            let name = &watched.route.name;
            match (&waits, std::mem::replace(&mut watched.source_waits, waits.is_some())) {
                (Some(why), false) => warn!(route = %name, why, "the source waits"),
                (None, true) => info!(route = %name, "the source is read again"),
                _ => {}
            }
            show(&watched.source, waits.or_else(|| named(trouble, &source_connection(&watched.route.from))));
            let late_s = now.map_or(0.0, |now| metrics.count_overdue(now));
            let paused = metrics.publishing_paused.get() != 0;
            let change = watched.lateness.look(late_s);
            let count = metrics.pending.get() + metrics.in_flight.get();
            let now_s = mono_us as f64 / 1e6;
            let catches_up = watched.lateness.catches_up(now_s, late_s, count);
            let place = metrics.overdue.place();
            let catching_up = catches_up.then_some(count);
            let causes = || lateness::causes(&watched.route, paused, catching_up, place, trouble);
            if let Some(change) = change {
                change.tell(name, late_s, &causes());
            }
            let why = watched
                .lateness
                .is_late()
                .then(|| format!("its oldest message is {late_s:.0} s late: {}", causes()));
            show(&watched.delivery, why);
        }
    }
}

/// Each part that is not up, and why.
fn trouble(readiness: &Readiness) -> BTreeMap<String, String> {
    let why = |state| match state {
        ReadinessState::Up => None,
        ReadinessState::Waiting(why) | ReadinessState::Degraded(why) => Some(why),
    };
    readiness.parts().into_iter().filter_map(|(name, state)| Some((name, why(state)?))).collect()
}

/// A part's trouble with the part's name, where it has any.
fn named(trouble: &BTreeMap<String, String>, part: &str) -> Option<String> {
    trouble.get(part).map(|why| format!("{part}: {why}"))
}

/// The part of the connection that a source is read over.
fn source_connection(source: &Endpoint) -> String {
    match source {
        Endpoint::Kafka { connection, group, .. } => format!("kafka:{connection}:{group}"),
        Endpoint::Rabbitmq { connection, .. } => format!("rabbitmq:{connection}"),
    }
}

/// The part of the connection that a target is published over.
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

fn tell(target: &Text, change: &TargetChange) {
    match change {
        TargetChange::Fails { reason, error } => {
            warn!(%target, reason, %error, "publishing to a target fails");
        }
        TargetChange::Works { failures, lasted_us } => {
            let lasted_s = lasted_us / 1_000_000;
            info!(%target, failures, lasted_s, "publishing to a target works again");
        }
        TargetChange::Silent => warn!(%target, "a target does not answer publishes"),
        TargetChange::Answers => info!(%target, "a target answers publishes again"),
    }
}
