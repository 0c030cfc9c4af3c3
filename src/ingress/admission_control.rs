//! Admission control: opens and closes the gate of each route's ingress, and sets for how many messages.
//!
//! A gate stays closed
//! - while the route is paused by hand
//! - while the route has `max_pending` messages
//! - while the route's dead-letter quota is exhausted
//! - while the store does not answer, and until the store has once said what is paused.
//!
//! The counts are shown as metrics: pending messages, dead letters, and the difference of the clocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tracing::{debug, info, warn};

use super::permits::{AdmissionGate, GateControl, share_of};
use crate::domain::{Route, RouteName};
use crate::lifecycle::{Shutdown, Tasks, tick};
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
    admission: BTreeMap<RouteName, GateControl>,
    /// Notified when a gate wants a count.
    count_now: Arc<Notify>,
    /// The number of replicas that share the capacity.
    replicas: Box<dyn Fn() -> usize + Send + Sync>,
    pauses: RoutePauses,
    /// Routes at `max_pending`, or with an exhausted dead-letter quota.
    at_limit: BTreeSet<RouteName>,
    /// Routes with an exhausted dead-letter quota.
    dead_letters_full: BTreeSet<RouteName>,
    max_skew: Duration,
    store_away: bool,
    /// The store answers, but refuses writes.
    store_refuses: bool,
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
    let AdmissionDependencies { routes, store, quota, metrics, replicas, max_skew, tasks, shutdown } =
        dependencies;
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
        admission,
        count_now,
        replicas,
        pauses: store.pauses(),
        at_limit: BTreeSet::new(),
        dead_letters_full: BTreeSet::new(),
        max_skew,
        store_away: false,
        store_refuses: false,
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
    async fn recount(&self) -> bool {
        let returned = self.returned();
        match tokio::time::timeout(COUNT_TIMEOUT, self.store.counts()).await {
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

    /// The number of permits of each route that were returned before a count.
    fn returned(&self) -> BTreeMap<RouteName, u64> {
        self.admission.iter().map(|(name, control)| (name.clone(), control.returned())).collect()
    }

    /// Gives each route this replica's share of the capacity that a count saw.
    fn share_out(&self, counts: &BTreeMap<String, Counts>, returned: &BTreeMap<RouteName, u64>) {
        let replicas = (self.replicas)();
        for route in &self.routes {
            let counted = counts.get(route.name.as_str()).map_or(0, |counts| counts.messages);
            let before = returned.get(&route.name).copied().unwrap_or_default();
            if let Some(control) = self.admission.get(&route.name) {
                control.set_share(before, share_of(route.policy.max_pending, counted, replicas));
            }
        }
    }

    /// Opens and closes each gate.
    fn set_gates(&self) {
        for route in &self.routes {
            let paused = self.pauses.of(route.name.as_str());
            if let (Some(metrics), Some(paused)) = (self.metrics.route(&route.name), paused) {
                metrics.ingress_paused("paused", paused.ingress);
                metrics.publishing_paused.set(i64::from(paused.publishing));
            }
            let open = paused.is_some_and(|paused| !paused.ingress)
                && !self.dead_letters_full.contains(&route.name)
                && !self.store.is_replaced();
            if let Some(control) = self.admission.get(&route.name) {
                control.set_open(open);
            }
        }
    }

    async fn count_all(&mut self) {
        let counted = match tokio::time::timeout(COUNT_TIMEOUT, self.count()).await {
            Ok(_) if self.store.is_replaced() => {
                Err(StoreError::Unavailable("it is not the store that was used before".to_owned()))
            }
            Ok(counted) => counted,
            Err(_) => Err(StoreError::Unavailable("no answer in time".to_owned())),
        };
        if let Err(why) = &counted {
            if !self.store_away {
                warn!(error = %why, "the store does not answer; ingress waits for it");
            }
        } else if self.store_away {
            info!("the store answers again; ingress goes on");
        }
        self.store_away = counted.is_err();
        self.set_gates();
        for (route, excess) in counted.unwrap_or_default() {
            self.trim(&route, excess).await;
        }
        let waits = self.takes_nothing_in() || self.store_away;
        for route in &self.routes {
            if let Some(metrics) = self.metrics.route(&route.name) {
                metrics.ingress_paused("store", waits);
            }
        }
        self.check_clock_skew();
    }

    /// Reports whether the store refuses writes. Logs the begin and the end of that, unless the store does not
    /// answer.
    fn takes_nothing_in(&mut self) -> bool {
        let why = self.store.write_failure();
        let refused = why.is_some();
        match why.filter(|_| !self.store_away) {
            Some(why) if !self.store_refuses => {
                warn!(error = why, "the store takes nothing in; ingress waits");
            }
            None if self.store_refuses && !refused => info!("the store takes messages in again"),
            _ => {}
        }
        self.store_refuses = refused && (self.store_refuses || !self.store_away);
        refused
    }

    /// Drops the oldest invalid dead letters of a route. They pause nothing, so they give way.
    async fn trim(&self, route: &Arc<Route>, excess: u64) {
        let filter =
            DeadFilter { route: Some(route.name.clone()), invalid: Some(true), ..DeadFilter::default() };
        let dropping = async {
            let mut left = excess as usize;
            while left > 0 {
                let page = self.store.dead_page(&filter, None, left.min(TRIM_BATCH)).await?;
                let ids: Vec<_> = page.marks.into_iter().map(|mark| mark.id).collect();
                if ids.is_empty() {
                    break;
                }
                let dropped = self.store.drop_dead(&ids).await?.into_iter().filter(|there| *there).count();
                if let Some(metrics) = self.metrics.route(&route.name) {
                    metrics.dropped("dead_letters_full", dropped as u64);
                }
                warn!(route = %route.name, dropped, "dead_letters is full: dropped the oldest invalid ones");
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
            info!(skew_ms = skew_us / 1000, "this replica's clock and redis's agree again");
        }
        self.skewed = skewed;
    }

    /// Counts all routes, and sets their limits. Returns the routes whose invalid dead letters must be dropped,
    /// and how many.
    async fn count(&mut self) -> Result<Vec<(Arc<Route>, u64)>, StoreError> {
        let mut excess = Vec::new();
        let returned = self.returned();
        let counts = self.store.counts().await?;
        self.share_out(&counts, &returned);
        for route in &self.routes {
            let Some(metrics) = self.metrics.route(&route.name) else { continue };
            let counts = counts.get(route.name.as_str()).copied().unwrap_or_default();
            metrics.show_counts(counts.messages, counts.dead);
            let full = counts.messages > 0 && counts.messages as u64 >= route.policy.max_pending;
            metrics.ingress_paused("max_pending", full);
            let dead_letters = self.quota.counted(&route.name, &counts);
            metrics.ingress_paused("dead_letters", dead_letters.full);
            if dead_letters.full {
                self.dead_letters_full.insert(route.name.clone());
            } else {
                self.dead_letters_full.remove(&route.name);
            }
            let pending = counts.messages;
            let dead = counts.dead;
            let closed = full || dead_letters.full;
            if closed && self.at_limit.insert(route.name.clone()) {
                let limit = if full { "max_pending" } else { "dead_letters" };
                warn!(route = %route.name, pending, dead, limit, "a limit is reached; ingress waits");
            } else if !closed && self.at_limit.remove(&route.name) {
                info!(route = %route.name, pending, dead, "below its limits; ingress goes on");
            }
            excess.extend((dead_letters.excess > 0).then(|| (route.clone(), dead_letters.excess)));
        }
        Ok(excess)
    }
}
