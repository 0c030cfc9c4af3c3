//! Whether the store is the one that it was: what is said when it is not, and what happens then.
//!
//! A store that *went back* (a failover that lost writes, a restored copy) no longer knows beats that it had
//! answered. One that was *wiped* or *replaced* has no generation, or another: nothing is stored in it or claimed
//! from it until a preflight has found that it may be used, for what stands there now may evict, may keep nothing
//! over a restart, or may be somebody else's. See ADR 0024.

use std::sync::Arc;
use std::time::Duration;

use tracing::{error, info, warn};

use super::Error;
use crate::domain::UnixMs;
use crate::lifecycle::{Readiness, ReadinessPart};
use crate::store::{self, KnownStore, PreflightFailure, Store, preflight};
use crate::telemetry::Metrics;

/// One change is found by many, one after another: within this (ms) they count as one.
const SAID_AGAIN_MS: i64 = 10_000;
/// Longest wait for a preflight; the next beat tries again.
const DEADLINE: Duration = Duration::from_secs(10);

/// What watches over the store's identity.
pub(super) struct Watcher {
    config: store::Config,
    store: Store,
    /// Down while the store may not be used.
    part: ReadinessPart,
    metrics: Arc<Metrics>,
    /// It was said that the store may not be used.
    said: bool,
    /// The change that was told last.
    told: UnixMs,
}

impl Watcher {
    pub(super) fn new(
        config: &store::Config,
        store: &Store,
        readiness: &Readiness,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let part = readiness.part("store", true);
        part.up();
        Self {
            config: config.clone(),
            store: store.clone(),
            part,
            metrics: metrics.clone(),
            said: false,
            told: UnixMs(0),
        }
    }

    /// Compares what this replica knew with what a beat has answered. `kept`: the moment of the last beat that
    /// the store still knows.
    pub(super) fn compare(&mut self, was: &KnownStore, is: &KnownStore, kept: Option<UnixMs>) {
        self.store.note_rollback(is.rolled_back_at);
        if was.heartbeat == 0 {
            // It joins, or has just said that this is another store.
            self.told = self.told.max(is.rolled_back_at);
        }
        if is.rolled_back_at <= self.told.plus(SAID_AGAIN_MS) {
            return;
        }
        self.told = is.rolled_back_at;
        self.metrics.store_changes.inc();
        let since = kept.map_or_else(|| "TIME".to_owned(), moment);
        error!(
            generation = is.identity,
            since,
            "the store went back: what was stored since then may be lost, and what was published since then may be \
             published again (redelivered_total, store_rollback); to read it again from a kafka source: \
             postdate replay --route ROUTE --since {since}"
        );
    }

    /// The store is another one than it was, or an empty one. Returns what is known of it once it may be used.
    pub(super) async fn strange(
        &mut self,
        was: &KnownStore,
        found: Option<&str>,
    ) -> Result<Option<KnownStore>, Error> {
        let now = self.store.clock().now();
        self.store.set_replaced(true);
        if !self.said {
            self.said = true;
            self.metrics.store_changes.inc();
            self.store.note_rollback(now);
            self.part.down("it was wiped or replaced; looking whether it may be used");
            error!(
                generation = was.identity,
                found = found.unwrap_or("none"),
                "the store was wiped or replaced: all that waited in it is lost, with its pauses, its dead letters and the names \
                 that it remembered; to read it again from a kafka source: postdate replay --route ROUTE --since \
                 TIME --due-after {}",
                moment(now)
            );
        }
        match tokio::time::timeout(DEADLINE, preflight(&self.config, true)).await {
            Ok(Ok(())) => {}
            Ok(Err(PreflightFailure::Refused(why))) => return Err(Error::Store(why)),
            Ok(Err(PreflightFailure::Away(why))) => {
                warn!(error = why, "cannot look whether the store may be used; trying on");
                return Ok(None);
            }
            Err(_) => {
                warn!("no answer in time whether the store may be used; trying on");
                return Ok(None);
            }
        }
        info!(
            found = found.unwrap_or("none"),
            "the store may be used; going on with what is stored from now on"
        );
        self.said = false;
        Ok(Some(KnownStore { rolled_back_at: self.store.rolled_back_at(), ..KnownStore::default() }))
    }

    /// A beat was answered by a store that may be used.
    pub(super) fn sound(&self) {
        self.store.set_replaced(false);
        self.part.up();
    }
}

/// For people; a moment beyond what a calendar has stays a number.
fn moment(at: UnixMs) -> String {
    jiff::Timestamp::from_millisecond(at.0).map_or_else(|_| at.to_string(), |t| t.to_string())
}
