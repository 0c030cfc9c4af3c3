//! The identity of the store: finds out that it was rolled back, replaced or wiped.
//!
//! A store that *went back* (a failover that lost writes, a restored copy) no longer knows heartbeats that it had
//! answered. One whose *master is another server* may have gone back; the store itself remembers who answered last. A
//! store that was *wiped* or *replaced* has no store identity, or a different one. Nothing is stored in it or claimed from it until a preflight has found that it may be used: the new store may evict keys, may keep
//! nothing over a restart, or may belong to somebody else. See ADR 0024.

use std::sync::Arc;
use std::time::Duration;

use tracing::{error, info, warn};

use super::ClusterError;
use crate::domain::UnixMs;
use crate::health::{ActivityKind, Health, Part};
use crate::store::{self, KnownStore, PreflightFailure, Store, preflight};
use crate::telemetry::Metrics;

/// Changes found within this time of each other count as one, ms. One change is found by many callers.
const SAME_CHANGE_MS: i64 = 10_000;
/// Longest wait for a preflight. The next heartbeat tries again.
const PREFLIGHT_TIMEOUT: Duration = Duration::from_secs(10);

/// Permission to use the store.
#[derive(Debug, Default, PartialEq, Eq)]
enum StoreUsage {
    /// It is the one that was used before.
    #[default]
    Allowed,
    /// Another identity was found, or none, and no preflight has passed yet.
    Replaced,
    /// Another identity was found, and a preflight has passed. The next heartbeat joins it.
    Checked(String),
}

/// Watches the identity of the store.
pub(super) struct IdentityWatcher {
    config: store::Config,
    store: Store,
    health: Health,
    /// Down while the store may not be used.
    part: Part,
    metrics: Arc<Metrics>,
    /// Permission to use it. The log has a line on each change.
    usage: StoreUsage,
    /// The change that was logged last.
    logged: UnixMs,
}

impl IdentityWatcher {
    pub(super) fn new(
        config: &store::Config,
        store: &Store,
        health: &Health,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let part = health.part_of("store", "redis");
        part.up();
        Self {
            config: config.clone(),
            store: store.clone(),
            health: health.clone(),
            part,
            metrics: metrics.clone(),
            usage: StoreUsage::Allowed,
            logged: UnixMs(0),
        }
    }

    /// Compares the identity that this replica knew with the one in a heartbeat's answer. `kept` is the moment of the
    /// last heartbeat that the store still knows.
    pub(super) fn compare(&mut self, was: &KnownStore, is: &KnownStore, kept: Option<UnixMs>) {
        self.store.note_rollback(is.rolled_back_at);
        self.store.note_new_master(is.new_master_at);
        if was.heartbeat > 0 && is.new_master_at > was.new_master_at {
            warn!(
                "another server answers as the master of redis (a failover, a restart); what was due by now and is \
                 published from now on counts as a possible repeat (redelivered_total, store_rollback)"
            );
        }
        if was.heartbeat == 0 {
            // This replica joins, or has just logged that the store was replaced.
            self.logged = self.logged.max(is.rolled_back_at);
        }
        if is.rolled_back_at <= self.logged.plus(SAME_CHANGE_MS) {
            return;
        }
        self.logged = is.rolled_back_at;
        self.metrics.store_changes.inc();
        self.health.activity().note(ActivityKind::StoreChanged);
        let since = kept.map_or_else(|| "TIME".to_owned(), moment);
        error!(
            generation = is.identity,
            since,
            "the store went back: what was stored since then may be lost, and what was published since then may be \
             published again (redelivered_total, store_rollback); to read it again from a kafka source: \
             postdate replay --route ROUTE --since {since}"
        );
    }

    /// Handles a store that was replaced or wiped. Returns its identity once it may be used.
    pub(super) async fn replaced(
        &mut self,
        was: &KnownStore,
        found: Option<&str>,
    ) -> Result<Option<KnownStore>, ClusterError> {
        let now = self.store.clock().now();
        self.store.set_replaced(true);
        if std::mem::replace(&mut self.usage, StoreUsage::Replaced) == StoreUsage::Allowed {
            self.metrics.store_changes.inc();
            self.health.activity().note(ActivityKind::StoreChanged);
            self.logged = now;
            self.store.note_rollback(now);
            self.part
                .down("it was wiped or replaced; checking whether it may be used");
            error!(
                generation = was.identity,
                found = found.unwrap_or("none"),
                "the store was wiped or replaced: all messages in it are lost, with its pauses, dead letters and delivered \
                 names; to read it again from a kafka source: postdate replay --route ROUTE --since \
                 TIME --due-after {}",
                moment(now)
            );
        }
        match tokio::time::timeout(PREFLIGHT_TIMEOUT, preflight(&self.config, true)).await {
            Ok(Ok(())) => {}
            Ok(Err(PreflightFailure::Refused(why))) => return Err(ClusterError::Store(why)),
            Ok(Err(PreflightFailure::Away(why) | PreflightFailure::Tls(why))) => {
                warn!(
                    error = why,
                    "checking whether the store may be used failed; retrying"
                );
                return Ok(None);
            }
            Err(_) => {
                warn!("checking whether the store may be used timed out; retrying");
                return Ok(None);
            }
        }
        self.usage = StoreUsage::Checked(found.unwrap_or("none").to_owned());
        Ok(Some(KnownStore {
            rolled_back_at: self.store.rolled_back_at(),
            ..KnownStore::default()
        }))
    }

    /// Notes a heartbeat that was answered by a store that may be used: by the one that was used before, or by a new one
    /// that has passed a preflight.
    pub(super) fn usable(&mut self) {
        self.store.set_replaced(false);
        self.part.up();
        match std::mem::take(&mut self.usage) {
            StoreUsage::Allowed => {}
            StoreUsage::Replaced => {
                info!("the store may be used; continuing: it is the one that was used before");
            }
            StoreUsage::Checked(found) => {
                info!(
                    found,
                    "the store may be used; continuing with messages stored from now on"
                );
            }
        }
    }
}

/// A moment for people. Beyond the calendar's range it stays a number.
fn moment(at: UnixMs) -> String {
    jiff::Timestamp::from_millisecond(at.0).map_or_else(|_| at.to_string(), |t| t.to_string())
}
