//! Judges each second which source, target or route is in trouble, and why, and whether the store's capacity is: what has
//! no owner who would say so. None of them makes the replica unready: a part in trouble costs its own messages only. Each part is a
//! metric too, and the log has a line when its trouble begins and one when it ends.

mod lateness_poll;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::lateness_poll::LatenessPoll;
use super::App;
use super::store_room;
use crate::domain::topics::DerivedTargets;
use crate::domain::{Clock, Endpoint, Route, Target, Text, duration, route};
use crate::egress::Lanes;
use crate::health::{
    self, Health, Part, PartState, PartTrouble, RouteHealth, RouteLateness, Standstill, TroubleLog,
};
use crate::lifecycle::{Shutdown, tick};
use crate::store::Store;
use crate::telemetry::{Metrics, RouteMetrics};

/// Announces the parts and keeps them up to date until the lanes end.
pub(super) fn start(
    app: &App,
    lanes: Arc<dyn Lanes>,
    slot: &Arc<OnceLock<Store>>,
    shutdown: Shutdown,
) {
    let routes = &app.config.routes;
    let health = &app.health;
    let of_store = |name: String| health.side_part_of(name, "redis".to_owned());
    let mut targets: BTreeMap<Text, WatchedTarget> = BTreeMap::new();
    for route in routes {
        for target in route.targets() {
            let watched = targets
                .entry(route::describe(target))
                .or_insert_with(|| WatchedTarget::new(target));
            watched
                .derived
                .extend(route.derived_targets(target).cloned());
        }
    }
    let parts = HealthWatch {
        targets: targets
            .into_iter()
            .map(|(name, target)| {
                let needs = target_connection(&target.configured);
                let part = health.side_part_of(format!("target:{name}"), needs);
                (part, target)
            })
            .collect(),
        routes: routes
            .iter()
            .map(|route| RouteParts {
                source: health.side_part_of(
                    format!("source:{}", route.name),
                    source_connection(&route.from),
                ),
                standstill: Standstill::default(),
                delivery: of_store(format!("route:{}", route.name)),
                health: health.route(&route.name),
                route: route.clone(),
                lateness: RouteLateness::new(app.clock.wall()),
            })
            .collect(),
        store_part: of_store("store:room".to_owned()),
        log: TroubleLog::default(),
        health: health.clone(),
        metrics: app.metrics.clone(),
        lanes,
        slot: slot.clone(),
        clock: app.clock,
    };
    let late = LatenessPoll::new(slot.clone(), app.config.routes.clone(), app.health.clone());
    app.tasks
        .spawn("parts:late", at_each_tick(late, shutdown.clone()));
    app.tasks.spawn("parts", at_each_tick(parts, shutdown));
}

/// A target of the configuration, whose part of health it is.
struct WatchedTarget {
    configured: Arc<Target>,
    /// Those of each route that derives its targets from topics in this way.
    derived: Vec<Arc<DerivedTargets>>,
}

impl WatchedTarget {
    fn new(target: &Arc<Target>) -> Self {
        Self {
            configured: target.clone(),
            derived: Vec::new(),
        }
    }
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
    shutdown.until_draining(rounds).await;
}

/// Parts of one route.
struct RouteParts {
    route: Arc<Route>,
    health: Arc<RouteHealth>,
    source: Part,
    /// Detects records that were read from the source and stand still.
    standstill: Standstill,
    delivery: Part,
    lateness: RouteLateness,
}

/// All parts beside the connections, and the sources of their state.
struct HealthWatch {
    targets: Vec<(Part, WatchedTarget)>,
    routes: Vec<RouteParts>,
    /// The part `store:room`: the store's capacity to take messages in.
    store_part: Part,
    log: TroubleLog,
    health: Health,
    metrics: Arc<Metrics>,
    lanes: Arc<dyn Lanes>,
    slot: Arc<OnceLock<Store>>,
    clock: Clock,
}

impl PeriodicTask for HealthWatch {
    const PERIOD: Duration = Duration::from_secs(1);

    async fn round(&mut self) {
        self.update();
    }
}

impl HealthWatch {
    /// Why a target takes no message, and whether that is only because it does not answer. Of targets that are derived from
    /// topics the first that does not says so for all.
    fn trouble_of(&self, target: &WatchedTarget, now_us: i64) -> Option<(String, bool)> {
        let of_one = |target: &Arc<Target>| {
            let lane = self.lanes.lane(target);
            let of_lane = lane
                .trouble_of(target)
                .or_else(|| lane.partial_trouble_of(target));
            let targets = self.health.targets();
            let is_silent = of_lane.is_none() && targets.is_silent(target);
            let why = of_lane.or_else(|| targets.why(target, now_us))?;
            Some((why, is_silent))
        };
        if target.derived.is_empty() {
            return of_one(&target.configured);
        }
        let known = target.derived.iter().flat_map(|derived| derived.known());
        let mut troubles = known.filter_map(|target| {
            let (why, is_silent) = of_one(&target)?;
            Some((format!("{}: {why}", target.name()), is_silent))
        });
        let (first, is_silent) = troubles.next()?;
        Some(match troubles.count() {
            0 => (first, is_silent),
            more => (format!("{first} (and {more} more)"), is_silent),
        })
    }

    fn update(&mut self) {
        let now_us = self.clock.mono_us();
        self.health.targets().look(now_us);
        let trouble = self.health.not_up();
        for (part, target) in &self.targets {
            let connection = target_connection(&target.configured);
            match self.trouble_of(target, now_us) {
                Some((why, true)) if !trouble.contains_key(&connection) => {
                    part.down_unanswered(why);
                }
                // The lane waits with its connection, and says so in its own words.
                Some((why, _)) => part.report(
                    Some(why),
                    trouble.contains_key(&connection).then_some(connection),
                ),
                None => drop(part.up()),
            }
        }
        let why = store_room::trouble(self.slot.get(), self.health.store());
        let redis = trouble.contains_key("redis").then(|| "redis".to_owned());
        self.store_part.report(why, redis);
        // A source may wait for a target that this look has found in trouble.
        self.update_routes(&self.health.not_up());
        self.log.look(&self.health.not_up(), self.clock.wall());
        self.show_figures();
    }

    /// Makes the metrics of what is known.
    fn show_figures(&self) {
        for (name, state) in self.health.parts() {
            self.metrics.part_up(name, state == PartState::Up);
        }
        let memory = self.health.store().memory();
        self.metrics.store_memory.set(memory.used as i64);
        self.metrics.store_memory_limit.set(memory.limit as i64);
        let unconfigured = self.health.store().unconfigured();
        self.metrics.unknown_routes.set(unconfigured.len() as i64);
    }

    /// Shows each route's source and delivery.
    fn update_routes(&mut self, trouble: &BTreeMap<String, PartTrouble>) {
        let now = self.slot.get().map(|store| store.clock().now());
        let (mono_us, wall) = (self.clock.mono_us(), self.clock.wall());
        for parts in &mut self.routes {
            parts.update_source(trouble, mono_us);
            let late_s = now.map_or(0.0, |now| parts.health.late_s(now));
            parts.update_delivery(trouble, mono_us, late_s);
            parts
                .delivery
                .lasts_since(wall.plus(-(late_s * 1e3) as i64));
            if let Some(metrics) = self.metrics.route(&parts.route.name) {
                parts.show_figures(metrics, late_s);
            }
        }
    }
}

impl RouteParts {
    /// Shows whether the source is read.
    fn update_source(&mut self, trouble: &BTreeMap<String, PartTrouble>, mono_us: i64) {
        // While publishing is paused, what passes through waits in its source: that is told of the pause, and is no
        // standstill after it either.
        let standstill = if self.health.publishing_pause().is_some() {
            self.standstill = Standstill::default();
            None
        } else {
            let oldest = self.health.oldest_unresolved();
            self.standstill.update(&oldest, mono_us)
        };
        let waits = self.health.source_waits().or(standstill);
        if let Some(why) = waits {
            let because = cause_of_waiting(&self.route, &self.health, trouble);
            self.source.report(Some(why), because);
        } else {
            self.source.up();
        }
    }

    /// Shows whether messages are late, and why.
    fn update_delivery(
        &mut self,
        trouble: &BTreeMap<String, PartTrouble>,
        mono_us: i64,
        late_s: f64,
    ) {
        let is_late = self.lateness.update(late_s);
        let now_s = mono_us as f64 / 1e6;
        let catches_up =
            self.lateness
                .catches_up(now_s, self.health.overdue.oldest(), self.health.messages());
        if !is_late {
            self.delivery.up();
            return;
        }
        let causes = health::causes(&self.route, &self.health, catches_up, trouble);
        let late = duration::words((late_s * 1e3) as i64);
        let why = format!("its oldest message is {late} late: {}", causes.words);
        if causes.is_known {
            self.delivery.down_because(why, causes.part);
        } else {
            self.delivery.down_unexplained(why);
        }
    }

    fn show_figures(&self, metrics: &RouteMetrics, late_s: f64) {
        metrics.oldest_overdue.set(late_s);
        let paused = self.health.publishing_pause().is_some();
        metrics.publishing_paused.set(i64::from(paused));
        for (reason, waits) in self.health.waits() {
            metrics.ingress_paused(reason, waits);
        }
    }
}

/// The parts that say whether the store can be used.
const STORE_PARTS: [&str; 3] = ["redis", "store", "store:room"];

/// The first of these parts that is not up.
fn first_in<'a>(
    trouble: &BTreeMap<String, PartTrouble>,
    mut parts: impl Iterator<Item = &'a str>,
) -> Option<String> {
    parts
        .find(|part| trouble.contains_key(*part))
        .map(str::to_owned)
}

/// The part because of which a source waits, as far as one is in trouble: its connection, the store, or a target of the
/// route. While its connection is up, a source that an operator has paused, or that has a trouble of its own, waits for
/// nobody else.
fn cause_of_waiting(
    route: &Route,
    health: &RouteHealth,
    trouble: &BTreeMap<String, PartTrouble>,
) -> Option<String> {
    let connection = source_connection(&route.from);
    if trouble.contains_key(&connection) {
        return Some(connection);
    }
    let reasons = health.waits_for();
    let own = health.source_trouble_now();
    // A Kafka source asks the store where it begins.
    if reasons.contains(&health::PAUSED) || own.is_some_and(|why| !why.contains("the store ")) {
        return None;
    }
    let store = first_in(trouble, STORE_PARTS.into_iter());
    if store.is_some() {
        return store;
    }
    let dead_letters = reasons.contains(&"dead_letters");
    let targets: Vec<String> = route
        .targets()
        .filter(|target| dead_letters || route.dead_letter_to.as_ref() != Some(target))
        .map(target_part)
        .collect();
    first_in(trouble, targets.iter().map(String::as_str))
}

/// The name of the part of a target.
fn target_part(target: &Arc<Target>) -> String {
    format!("target:{}", route::describe(target))
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
