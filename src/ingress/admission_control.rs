//! Gates: whether each route's ingress is open, and for how many messages. A route that was paused by hand waits until
//! it is resumed, one with `max_pending` messages until they have become fewer, one whose dead letters are full until
//! some are gone; so does every route while the store does not answer, and until it has said once what is
//! paused. What is counted for that is
//! shown: pending, dead, and how far the clocks differ.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tracing::{debug, info, warn};

use super::permits::{AdmissionControl, AdmissionGate, share_of};
use crate::domain::{Route, RouteName};
use crate::lifecycle::{Shutdown, Tasks, tick};
use crate::store::{Counts, DeadFilter, DeadLetterQuota, RoutePauses, Store, StoreError};
use crate::telemetry::Metrics;

/// Counts are a second old at most.
const LOOK: Duration = Duration::from_secs(1);
/// Shortest time between two counts, while a route has used up its room; it grows up to [`LOOK`] while there is none.
const RECOUNT: Duration = Duration::from_millis(50);
/// A count is fresh for so long.
const FRESH: Duration = Duration::from_millis(150);
/// A count that takes longer than this counts as no answer.
const DEADLINE: Duration = Duration::from_secs(3);
/// Invalid dead letters that one step drops.
const TRIM: usize = 1000;

struct Gates {
    routes: Vec<Arc<Route>>,
    store: Store,
    room: Arc<DeadLetterQuota>,
    metrics: Arc<Metrics>,
    admission: BTreeMap<RouteName, AdmissionControl>,
    /// Told when a route wants to be counted anew.
    count_now: Arc<Notify>,
    /// How many replicas share the room.
    replicas: Box<dyn Fn() -> usize + Send + Sync>,
    pauses: RoutePauses,
    /// Routes that have reached `max_pending`, or whose dead letters are full.
    full: BTreeSet<RouteName>,
    /// Those of the second kind.
    dead_full: BTreeSet<RouteName>,
    max_skew: Duration,
    away: bool,
    /// The store answers, and takes nothing in.
    refused: bool,
    skewed: bool,
}

/// What the gates are built from.
pub struct Parts<'a> {
    /// The routes that are taken in.
    pub routes: &'a [Arc<Route>],
    /// Where their messages are counted.
    pub store: &'a Store,
    /// How much room the dead letters have left.
    pub room: &'a Arc<DeadLetterQuota>,
    /// Where the counts are shown.
    pub metrics: &'a Arc<Metrics>,
    /// How many replicas take in, this one included.
    pub replicas: Box<dyn Fn() -> usize + Send + Sync>,
    /// How far clocks may differ before it is said.
    pub max_skew: Duration,
    /// Where its task runs.
    pub tasks: &'a Tasks,
    /// When it ends.
    pub shutdown: &'a Shutdown,
}

/// Starts to watch the counts; returns each route's gate.
pub fn start(parts: Parts<'_>) -> BTreeMap<RouteName, AdmissionGate> {
    let Parts { routes, store, room, metrics, replicas, max_skew, tasks, shutdown } = parts;
    let count_now = Arc::new(Notify::new());
    let (admission, gates_of_routes) = routes
        .iter()
        .map(|route| {
            let (control, gate) = AdmissionControl::new(&count_now);
            ((route.name.clone(), control), (route.name.clone(), gate))
        })
        .unzip();
    let mut gates = Gates {
        routes: routes.to_vec(),
        store: store.clone(),
        room: room.clone(),
        metrics: metrics.clone(),
        admission,
        count_now,
        replicas,
        pauses: store.pauses(),
        full: BTreeSet::new(),
        dead_full: BTreeSet::new(),
        max_skew,
        away: false,
        refused: false,
        skewed: false,
    };
    let shutdown = shutdown.clone();
    tasks.spawn("gates", async move {
        loop {
            tokio::select! {
                () = shutdown.forced() => return,
                () = gates.look() => {}
            }
            tokio::select! {
                () = shutdown.forced() => return,
                () = gates.rest() => {}
            }
        }
    });
    gates_of_routes
}

impl Gates {
    /// Until the next look; what is paused or resumed meanwhile takes effect at once, and routes that have used up
    /// their room are counted again.
    async fn rest(&mut self) {
        let (count_now, mut pause) = (self.count_now.clone(), RECOUNT);
        let (mut wanted, mut stale) = (false, false);
        let mut next = std::pin::pin!(tick(LOOK));
        let mut ready = std::pin::pin!(tokio::time::sleep(pause));
        let mut fresh = std::pin::pin!(tokio::time::sleep(FRESH));
        loop {
            let wants = wanted || self.admission.values().any(AdmissionControl::has_waiting);
            tokio::select! {
                () = &mut next => return,
                () = self.pauses.changed() => self.turn(),
                () = count_now.notified(), if !wanted => wanted = true,
                () = &mut ready, if wants => {
                    pause = if self.recount().await { RECOUNT } else { LOOK.min(2 * pause) };
                    wanted = false;
                    stale = false;
                    ready.set(tokio::time::sleep(pause));
                    fresh.set(tokio::time::sleep(FRESH));
                }
                () = &mut fresh, if !stale => {
                    self.admission.values().for_each(AdmissionControl::set_stale);
                    stale = true;
                }
            }
        }
    }

    /// Counts only, for those that wait for room; whether any of them has some now.
    async fn recount(&self) -> bool {
        let returned = self.returned();
        match tokio::time::timeout(DEADLINE, self.store.counts()).await {
            Ok(Ok(counts)) => {
                self.share_out(&counts, &returned);
                !self.admission.values().any(AdmissionControl::has_waiting)
            }
            Ok(Err(why)) => {
                debug!(error = %why, "cannot count what is pending; trying on");
                false
            }
            Err(_) => {
                debug!("no answer in time; cannot count what is pending; trying on");
                false
            }
        }
    }

    /// Permits that were returned before a count.
    fn returned(&self) -> BTreeMap<RouteName, u64> {
        self.admission.iter().map(|(name, control)| (name.clone(), control.returned())).collect()
    }

    /// Gives each route this replica's share of the room that it has by a count.
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
    fn turn(&self) {
        for route in &self.routes {
            let paused = self.pauses.of(route.name.as_str());
            if let (Some(metrics), Some(paused)) = (self.metrics.route(&route.name), paused) {
                metrics.ingress_paused("paused", paused.ingress);
                metrics.publishing_paused.set(i64::from(paused.publishing));
            }
            let open = paused.is_some_and(|paused| !paused.ingress)
                && !self.dead_full.contains(&route.name)
                && !self.store.is_replaced();
            if let Some(control) = self.admission.get(&route.name) {
                control.set_open(open);
            }
        }
    }

    async fn look(&mut self) {
        let seen = match tokio::time::timeout(DEADLINE, self.count()).await {
            Ok(_) if self.store.is_replaced() => {
                Err(StoreError::Unavailable("it is another one than it was".to_owned()))
            }
            Ok(seen) => seen,
            Err(_) => Err(StoreError::Unavailable("no answer in time".to_owned())),
        };
        if let Err(why) = &seen {
            if !self.away {
                warn!(error = %why, "the store does not answer; ingress waits for it");
            }
        } else if self.away {
            info!("the store answers again; ingress goes on");
        }
        self.away = seen.is_err();
        self.turn();
        for (route, excess) in seen.unwrap_or_default() {
            self.trim(&route, excess).await;
        }
        let waits = self.takes_nothing_in() || self.away;
        for route in &self.routes {
            if let Some(metrics) = self.metrics.route(&route.name) {
                metrics.ingress_paused("store", waits);
            }
        }
        self.look_at_clocks();
    }

    /// Whether the store refuses what is to be stored. Says so when that begins and ends, unless it is away.
    fn takes_nothing_in(&mut self) -> bool {
        let why = self.store.write_failure();
        let refused = why.is_some();
        match why.filter(|_| !self.away) {
            Some(why) if !self.refused => warn!(error = why, "the store takes nothing in; ingress waits"),
            None if self.refused && !refused => info!("the store takes messages in again"),
            _ => {}
        }
        self.refused = refused && (self.refused || !self.away);
        refused
    }

    /// Drops the oldest invalid dead letters of a route: they pause nothing, so they give way.
    async fn trim(&self, route: &Arc<Route>, excess: u64) {
        let filter =
            DeadFilter { route: Some(route.name.clone()), invalid: Some(true), ..DeadFilter::default() };
        let dropping = async {
            let mut left = excess as usize;
            while left > 0 {
                let page = self.store.dead_page(&filter, None, left.min(TRIM)).await?;
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
        match tokio::time::timeout(DEADLINE, dropping).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => debug!(route = %route.name, error = %why, "cannot drop dead letters; trying on"),
            Err(_) => debug!(route = %route.name, "no time left to drop dead letters; trying on"),
        }
    }

    /// Clocks that differ make messages late, never early: both must call them due.
    fn look_at_clocks(&mut self) {
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

    /// Answers the routes of which invalid dead letters must go, and how many.
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
            let graves = self.room.counted(&route.name, &counts);
            metrics.ingress_paused("dead_letters", graves.full);
            if graves.full {
                self.dead_full.insert(route.name.clone());
            } else {
                self.dead_full.remove(&route.name);
            }
            let (pending, dead, closed) = (counts.messages, counts.dead, full || graves.full);
            if closed && self.full.insert(route.name.clone()) {
                let limit = if full { "max_pending" } else { "dead_letters" };
                warn!(route = %route.name, pending, dead, limit, "a limit is reached; ingress waits");
            } else if !closed && self.full.remove(&route.name) {
                info!(route = %route.name, pending, dead, "below its limits; ingress goes on");
            }
            excess.extend((graves.excess > 0).then(|| (route.clone(), graves.excess)));
        }
        Ok(excess)
    }
}
