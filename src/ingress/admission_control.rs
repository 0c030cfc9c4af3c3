//! Admission control: opens and closes the gate of each route's ingress, and sets for how many messages.
//!
//! A gate stays closed
//! - while the route is paused by hand
//! - while the route has `max_pending` messages, or `max_pending_bytes` of them
//! - while the route's dead-letter quota is exhausted
//! - while Redis has no room left for the route
//! - while the store does not answer, and until the store has once said what is paused.
//!
//! The counts are shown as metrics: pending messages, dead letters, and the difference of the clocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::permits::{AdmissionGate, GateControl, MessageVolume, share_of};
use super::redis_memory::{ALL_WAIT_SHARE, room};
use crate::domain::{Route, RouteName};
use crate::health::{Health, RedisMemory};
use crate::lifecycle::{Shutdown, Tasks, tick};
use crate::mutants::{self, Mutant};
use crate::store::{Counts, DeadFilter, DeadLetterQuota, RoutePauses, Store, StoreError};
use crate::telemetry::Metrics;

/// Longest time between two counts.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between two counts, while a route has used up its share. Doubles up to [`COUNT_INTERVAL`]
/// while a count finds no capacity.
const MIN_RECOUNT_INTERVAL: Duration = Duration::from_millis(50);
/// How long a count is fresh.
const COUNT_FRESH_FOR: Duration = Duration::from_millis(150);
/// Deadline of a count. A later answer counts as none.
const COUNT_TIMEOUT: Duration = Duration::from_secs(3);
/// Invalid dead letters that one step drops.
const TRIM_BATCH: usize = 1000;

/// Counts all routes, and sets their gates by the counts.
struct AdmissionController {
    routes: Vec<Arc<Route>>,
    store: Store,
    quota: Arc<DeadLetterQuota>,
    metrics: Arc<Metrics>,
    health: Health,
    admission: BTreeMap<RouteName, GateControl>,
    /// Notified when a gate wants a count.
    count_now: Arc<Notify>,
    /// The number of replicas that share the capacity.
    replicas: Box<dyn Fn() -> usize + Send + Sync>,
    pauses: RoutePauses,
    /// Routes at `max_pending` or `max_pending_bytes`, or with an exhausted dead-letter quota.
    at_limit: BTreeSet<RouteName>,
    /// Routes with an exhausted dead-letter quota.
    dead_letters_full: BTreeSet<RouteName>,
    /// The memory of Redis, as far as is known.
    memory: RedisMemory,
    /// Routes that wait for room in it.
    without_room: BTreeSet<RouteName>,
    max_skew: Duration,
    skewed: bool,
}

/// Everything that admission control is built from.
pub struct AdmissionDependencies<'a> {
    /// The routes that are taken in.
    pub routes: &'a [Arc<Route>],
    /// The store that counts their messages.
    pub store: &'a Store,
    /// The dead-letter quota of each route.
    pub quota: &'a Arc<DeadLetterQuota>,
    /// Receives the counts.
    pub metrics: &'a Arc<Metrics>,
    /// Receives why the routes wait.
    pub health: &'a Health,
    /// The number of replicas that take in, this one included.
    pub replicas: Box<dyn Fn() -> usize + Send + Sync>,
    /// Difference between the clocks that is worth a warning.
    pub max_skew: Duration,
    /// Runs the task.
    pub tasks: &'a Tasks,
    /// Ends the task.
    pub shutdown: &'a Shutdown,
}

/// Starts the task that counts. Returns each route's gate.
pub fn start(dependencies: AdmissionDependencies<'_>) -> BTreeMap<RouteName, AdmissionGate> {
    let AdmissionDependencies {
        routes,
        store,
        quota,
        metrics,
        health,
        replicas,
        max_skew,
        tasks,
        shutdown,
    } = dependencies;
    let count_now = Arc::new(Notify::new());
    let (admission, gates) = routes
        .iter()
        .map(|route| {
            let (control, gate) = GateControl::new(&count_now);
            ((route.name.clone(), control), (route.name.clone(), gate))
        })
        .unzip();
    let mut controller = AdmissionController {
        routes: routes.to_vec(),
        store: store.clone(),
        quota: quota.clone(),
        metrics: metrics.clone(),
        health: health.clone(),
        admission,
        count_now,
        replicas,
        pauses: store.pauses(),
        at_limit: BTreeSet::new(),
        dead_letters_full: BTreeSet::new(),
        memory: RedisMemory::default(),
        without_room: BTreeSet::new(),
        max_skew,
        skewed: false,
    };
    let shutdown = shutdown.clone();
    tasks.spawn("gates", async move {
        loop {
            tokio::select! {
                () = shutdown.forced() => return,
                () = controller.count_all() => {}
            }
            tokio::select! {
                () = shutdown.forced() => return,
                () = controller.wait_for_next_count() => {}
            }
        }
    });
    gates
}

impl AdmissionController {
    /// Waits for the next count. Pauses take effect at once meanwhile, and routes that have used up their share
    /// are counted again.
    async fn wait_for_next_count(&mut self) {
        let count_now = self.count_now.clone();
        let mut pause = MIN_RECOUNT_INTERVAL;
        let mut wanted = false;
        let mut stale = false;
        let mut next = std::pin::pin!(tick(COUNT_INTERVAL));
        let mut ready = std::pin::pin!(tokio::time::sleep(pause));
        let mut fresh = std::pin::pin!(tokio::time::sleep(COUNT_FRESH_FOR));
        loop {
            let wants = wanted || self.admission.values().any(GateControl::has_waiting);
            tokio::select! {
                () = &mut next => return,
                () = self.pauses.changed() => self.set_gates(),
                () = count_now.notified(), if !wanted => wanted = true,
                () = &mut ready, if wants => {
                    let has_capacity = self.recount().await;
                    pause = if has_capacity { MIN_RECOUNT_INTERVAL } else { COUNT_INTERVAL.min(2 * pause) };
                    wanted = false;
                    stale = false;
                    ready.set(tokio::time::sleep(pause));
                    fresh.set(tokio::time::sleep(COUNT_FRESH_FOR));
                }
                () = &mut fresh, if !stale => {
                    self.admission.values().for_each(GateControl::set_stale);
                    stale = true;
                }
            }
        }
    }

    /// Counts for the routes that wait for capacity. Reports whether no source waits any more.
    async fn recount(&mut self) -> bool {
        let returned = self.returned();
        self.read_memory().await;
        match tokio::time::timeout(
            COUNT_TIMEOUT,
            self.store
                .counts(self.routes.iter().map(|route| &route.name)),
        )
        .await
        {
            Ok(Ok(counts)) => {
                self.share_out(&counts, &returned);
                !self.admission.values().any(GateControl::has_waiting)
            }
            Ok(Err(why)) => {
                debug!(error = %why, "counting pending messages failed; retrying");
                false
            }
            Err(_) => {
                debug!("counting pending messages timed out; retrying");
                false
            }
        }
    }

    /// The permits of each route that were returned before a count.
    fn returned(&self) -> BTreeMap<RouteName, MessageVolume> {
        self.admission
            .iter()
            .map(|(name, control)| (name.clone(), control.returned()))
            .collect()
    }

    /// Gives each route this replica's share of the capacity that a count saw.
    fn share_out(
        &self,
        counts: &BTreeMap<RouteName, Counts>,
        returned: &BTreeMap<RouteName, MessageVolume>,
    ) {
        let replicas = (self.replicas)();
        for route in &self.routes {
            let counted = counts.get(&route.name).copied().unwrap_or_default();
            let before = returned.get(&route.name).copied().unwrap_or_default();
            if let Some(control) = self.admission.get(&route.name) {
                let share = share_of(most_pending(route), pending(&counted), replicas);
                let room = self.room(&counted).div_ceil(replicas.max(1) as u64);
                control.set_share(
                    before,
                    MessageVolume {
                        bytes: share.bytes.min(room),
                        ..share
                    },
                );
            }
        }
    }

    /// Opens and closes each gate.
    fn set_gates(&self) {
        for route in &self.routes {
            let paused = self.pauses.of(route.name.as_str());
            let may_read = paused
                .as_ref()
                .is_some_and(|paused| paused.ingress.is_none());
            if let Some(paused) = paused {
                self.health.route(&route.name).paused(paused);
            }
            let open = may_read
                && !self.dead_letters_full.contains(&route.name)
                && !self.store.is_replaced();
            if let Some(control) = self.admission.get(&route.name) {
                control.set_open(open);
            }
        }
    }

    async fn count_all(&mut self) {
        let counted = tokio::time::timeout(COUNT_TIMEOUT, self.count())
            .await
            .unwrap_or_else(|_| Err(StoreError::Unavailable("no answer in time".to_owned())));
        // A store that was replaced has a part of readiness and a line of its own.
        let may_be_used = !self.store.is_replaced();
        let answers = counted.is_ok();
        let failure = counted.as_ref().err().map(StoreError::to_string);
        self.health.store().counted(failure);
        self.set_gates();
        for (route, excess) in counted
            .unwrap_or_default()
            .into_iter()
            .filter(|_| may_be_used)
        {
            self.trim(&route, excess).await;
        }
        let takes_nothing_in = !answers || !may_be_used || self.store.write_failure().is_some();
        let waits = takes_nothing_in || self.memory.share() >= ALL_WAIT_SHARE;
        for route in &self.routes {
            self.health.route(&route.name).ingress_waits("store", waits);
        }
        self.check_clock_skew();
    }

    /// Drops the oldest dead letters of a route whose messages are to blame themselves. They pause nothing, so they give way.
    async fn trim(&self, route: &Arc<Route>, excess: u64) {
        let filter = DeadFilter {
            route: Some(route.name.clone()),
            invalid: Some(true),
            ..DeadFilter::default()
        };
        let dropping = async {
            let mut left = excess as usize;
            while left > 0 {
                let page = self
                    .store
                    .dead_page(&filter, None, left.min(TRIM_BATCH))
                    .await?;
                let ids: Vec<_> = page.marks.into_iter().map(|mark| mark.id).collect();
                if ids.is_empty() {
                    break;
                }
                let dropped = self
                    .store
                    .drop_dead(&ids)
                    .await?
                    .into_iter()
                    .filter(|there| *there)
                    .count();
                if let Some(metrics) = self.metrics.route(&route.name) {
                    metrics.dropped("dead_letters_full", dropped as u64);
                }
                warn!(route = %route.name, dropped, "dead_letters is full: dropped the oldest invalid or unpublishable ones");
                left = left.saturating_sub(ids.len());
            }
            Ok::<_, StoreError>(())
        };
        match tokio::time::timeout(COUNT_TIMEOUT, dropping).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => {
                debug!(route = %route.name, error = %why, "dropping dead letters failed; retrying");
            }
            Err(_) => debug!(route = %route.name, "dropping dead letters timed out; retrying"),
        }
    }

    /// Asks how full Redis is, and shows it. Without an answer the last one counts.
    async fn read_memory(&mut self) {
        match tokio::time::timeout(COUNT_TIMEOUT, self.store.redis_memory()).await {
            Ok(Ok(memory)) => {
                self.health.store().measured(memory);
                self.memory = memory;
            }
            Ok(Err(why)) => debug!(error = %why, "redis's memory is not known"),
            Err(_) => debug!("redis's memory was asked for in vain"),
        }
    }

    /// The room in Redis that is left for a route with these counts.
    fn room(&self, counts: &Counts) -> u64 {
        let held = counts
            .pending_bytes()
            .saturating_add(counts.dead_bytes.max(0) as u64);
        room(self.memory, held, self.routes.len())
    }

    /// Reports which routes wait for room in Redis.
    fn report_room(&mut self, counts: &BTreeMap<RouteName, Counts>) {
        let RedisMemory { used, limit } = self.memory;
        for route in &self.routes {
            let name = &route.name;
            let counts = counts.get(name).copied().unwrap_or_default();
            let waits = self.room(&counts) == 0;
            if waits && self.without_room.insert(name.clone()) {
                debug!(route = %name, bytes = counts.bytes, used, limit, "redis has no room left for the route; its ingress waits");
            } else if !waits && self.without_room.remove(name) {
                debug!(route = %name, bytes = counts.bytes, used, limit, "redis has room for the route again");
            }
            self.health.route(name).ingress_waits("store_memory", waits);
        }
    }

    /// Shows the difference of the clocks, and warns of a large one. Clocks that differ make messages late,
    /// never early: both must call a message due.
    fn check_clock_skew(&mut self) {
        let skew_us = self.store.clock().skew_us();
        self.metrics.clock_skew.set(skew_us as f64 / 1e6);
        let skewed = skew_us.unsigned_abs() > self.max_skew.as_micros() as u64;
        if skewed && !self.skewed {
            warn!(
                skew_ms = skew_us / 1000,
                max_ms = self.max_skew.as_millis() as u64,
                "this replica's clock and redis's differ by more than cluster.max_clock_skew; messages may be \
                 late by that"
            );
        } else if self.skewed && !skewed {
            info!(
                skew_ms = skew_us / 1000,
                "this replica's clock and redis's agree again"
            );
        }
        self.skewed = skewed;
    }

    /// Counts all routes, and sets their limits. Returns the routes whose invalid dead letters must be dropped,
    /// and how many.
    async fn count(&mut self) -> Result<Vec<(Arc<Route>, u64)>, StoreError> {
        let mut excess = Vec::new();
        let returned = self.returned();
        self.read_memory().await;
        let asked_at = Instant::now();
        let counts = self
            .store
            .counts(self.routes.iter().map(|route| &route.name))
            .await?;
        self.share_out(&counts, &returned);
        self.report_room(&counts);
        for route in &self.routes {
            let Some(metrics) = self.metrics.route(&route.name) else {
                continue;
            };
            let counts = counts.get(&route.name).copied().unwrap_or_default();
            metrics.show_counts(counts.messages, counts.dead);
            let health = self.health.route(&route.name);
            health.counted(counts.messages);
            let full = limit_reached(route, pending(&counts));
            health.ingress_waits("max_pending", full == Some("max_pending"));
            health.ingress_waits("max_pending_bytes", full == Some("max_pending_bytes"));
            let dead_letters = self.quota.counted(&route.name, &counts, asked_at);
            health.ingress_waits("dead_letters", dead_letters.full);
            if dead_letters.full {
                self.dead_letters_full.insert(route.name.clone());
            } else {
                self.dead_letters_full.remove(&route.name);
            }
            let Counts {
                messages: pending,
                dead,
                ..
            } = counts;
            let pending_bytes = counts.pending_bytes();
            match full.or(dead_letters.full.then_some("dead_letters")) {
                Some(limit) if self.at_limit.insert(route.name.clone()) => {
                    debug!(route = %route.name, pending, pending_bytes, dead, limit, "a limit is reached; ingress waits");
                }
                None if self.at_limit.remove(&route.name) => {
                    debug!(route = %route.name, pending, pending_bytes, dead, "below its limits; ingress goes on");
                }
                _ => {}
            }
            excess.extend((dead_letters.excess > 0).then(|| (route.clone(), dead_letters.excess)));
        }
        Ok(excess)
    }
}

/// The most that a route may have pending.
fn most_pending(route: &Route) -> MessageVolume {
    let bytes = if mutants::is(Mutant::NoByteQuota) {
        u64::MAX
    } else {
        route.policy.max_pending_bytes
    };
    MessageVolume {
        messages: route.policy.max_pending,
        bytes,
    }
}

/// Messages and bytes that a route has pending by a count, which may be wrong for a while.
fn pending(counts: &Counts) -> MessageVolume {
    MessageVolume {
        messages: counts.messages.max(0) as u64,
        bytes: counts.pending_bytes(),
    }
}

/// The key of the limit that a route has reached, if any.
fn limit_reached(route: &Route, pending: MessageVolume) -> Option<&'static str> {
    let most = most_pending(route);
    if pending.messages >= most.messages {
        Some("max_pending")
    } else if pending.bytes >= most.bytes {
        Some("max_pending_bytes")
    } else {
        None
    }
}
