//! The beats: this replica says that it lives, and hears who else does and whether the store is the one that it was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::skew::Skew;
use super::store_identity::Watcher;
use super::view::{News, Refusal, View, held};
use super::{Cluster, Config, Owned, Rounds};
use crate::domain::{Route, UnixMs};
use crate::lifecycle::{Readiness, Shutdown, Tasks, until_tick};
use crate::mutants;
use crate::store::{
    self, HeartbeatReply, KnownStore, PreflightError, RegisteredReplica, ReplicaStatus, Store, StoreError,
};
use crate::telemetry::{FollowRegistry, Metrics, OverduePlace};

/// Longest time between two beats, half a heartbeat if that is less: who leaves is replaced within this.
const LOOK: Duration = Duration::from_millis(400);
/// Longest wait for an answer; then the next beat tries again.
const DEADLINE: Duration = Duration::from_secs(1);
/// How long claims of a dead replica last: the default of `timer.claim`.
const CLAIM_MS: i64 = 10_000;

/// Why a replica may not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Its name is another's.
    #[error(transparent)]
    Name(#[from] Refusal),
    /// The store was wiped or replaced, and what is there now may not be used.
    #[error("the store is another one than it was, and may not be used: {0}")]
    Store(PreflightError),
}

/// What the cluster is built from.
pub struct Parts<'a> {
    /// This replica among the others.
    pub config: &'a Config,
    /// Where they meet.
    pub store: Store,
    /// How to look at it again when it is another one.
    pub store_config: &'a store::Config,
    /// What this replica serves.
    pub routes: &'a [Arc<Route>],
    /// How many timer shards it has.
    pub shards: usize,
    /// Whether it is willing to take work.
    pub readiness: &'a Readiness,
    /// Where it counts.
    pub metrics: Arc<Metrics>,
    /// News of followed messages, which replicas tell each other.
    pub watch: Arc<FollowRegistry>,
    /// Where its task runs.
    pub tasks: &'a Tasks,
    /// When to leave the others.
    pub shutdown: Shutdown,
}

/// Joins the others: ends once the store has answered a first beat.
pub async fn start(parts: &Parts<'_>) -> Result<Cluster, Error> {
    let clock = parts.store.clock().local();
    let rounds = Arc::new(Rounds::new(parts.shards, clock.mono_us()));
    let replicas = Arc::new(AtomicUsize::new(1));
    let (tell, owned) = watch::channel(Arc::default());
    let (tell_end, ended) = watch::channel(None);
    let mut beats = Beats {
        presence: ReplicaStatus {
            name: parts.config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            heartbeat_ms: parts.config.heartbeat.as_millis() as i64,
            routes: parts.routes.iter().map(|route| route.name.as_str().to_owned()).collect(),
            joining: true,
            ..ReplicaStatus::default()
        },
        heartbeat: parts.config.heartbeat,
        store: parts.store.clone(),
        readiness: parts.readiness.clone(),
        metrics: parts.metrics.clone(),
        watch: parts.watch.clone(),
        rounds: rounds.clone(),
        replicas: replicas.clone(),
        view: View::new(parts.config.max_clock_skew),
        known: KnownStore::default(),
        watcher: Watcher::new(parts.store_config, &parts.store, parts.readiness, &parts.metrics),
        skew: Skew::new(parts.config.max_clock_skew),
        joined_us: 0,
        failing: false,
        tell,
    };
    while beats.known.heartbeat == 0 {
        beats.beat().await?;
        if beats.known.heartbeat == 0 {
            tokio::time::sleep(LOOK).await;
        }
    }
    let shutdown = parts.shutdown.clone();
    parts.tasks.spawn("cluster", async move {
        if let Err(why) = beats.run(&shutdown).await {
            // Its reader is the process itself.
            tell_end.send_replace(Some(why));
        }
        beats.leave().await;
    });
    Ok(Cluster { owned, ended, rounds, replicas })
}

struct Beats {
    presence: ReplicaStatus,
    heartbeat: Duration,
    store: Store,
    readiness: Readiness,
    metrics: Arc<Metrics>,
    watch: Arc<FollowRegistry>,
    rounds: Arc<Rounds>,
    view: View,
    known: KnownStore,
    watcher: Watcher,
    skew: Skew,
    /// When it joined, monotonic microseconds.
    joined_us: i64,
    failing: bool,
    tell: watch::Sender<Arc<Owned>>,
    /// How many live.
    replicas: Arc<AtomicUsize>,
}

impl Beats {
    /// Beats until draining begins, or until this replica may not go on.
    async fn run(&mut self, shutdown: &Shutdown) -> Result<(), Error> {
        loop {
            tokio::select! {
                () = shutdown.draining() => return Ok(()),
                () = tokio::time::sleep(self.pause()) => {}
            }
            tokio::select! {
                () = shutdown.draining() => return Ok(()),
                beaten = self.beat() => beaten?,
            }
        }
    }

    /// Until the next beat; a death is looked at as soon as it is one.
    fn pause(&self) -> Duration {
        let pause = until_tick(LOOK.min(self.heartbeat / 2));
        let death = self.view.next_death_ms(self.store.nonce());
        death.map_or(pause, |ms| pause.min(Duration::from_millis(ms as u64 + 1)))
    }

    async fn beat(&mut self) -> Result<(), Error> {
        let clock = self.store.clock().clone();
        let now_us = clock.local().mono_us();
        self.presence.ready = self.readiness.is_ready();
        self.presence.rounds = self.rounds.ages_ms(now_us);
        self.presence.follow = self.watch.news();
        self.presence.skew_ms = clock.skew_us() / 1000;
        self.presence.overdue = overdue(&self.metrics);
        self.presence.joining =
            self.known.heartbeat == 0 || now_us < self.joined_us + 3 * self.heartbeat.as_micros() as i64;
        // The numbered calls may have found it before: all replicas are to know.
        self.known.rolled_back_at = self.known.rolled_back_at.max(self.store.rolled_back_at());
        let answer = tokio::time::timeout(DEADLINE, self.store.heartbeat(&self.presence, &self.known));
        let answer =
            answer.await.unwrap_or_else(|_| Err(StoreError::Unavailable("no answer in time".into())));
        match answer {
            Ok(HeartbeatReply::Same { known, now, silence_ms, replicas: members }) => {
                self.failing = false;
                let kept = silence_ms.map(|ms| now.plus(-ms));
                self.watcher.compare(&self.known, &known, kept);
                self.watcher.sound();
                self.heard(known, silence_ms, members)
            }
            Ok(HeartbeatReply::Replaced(found)) => {
                if let Some(known) = self.watcher.strange(&self.known, found.as_deref()).await? {
                    self.known = known;
                    self.presence.joined = 0;
                }
                Ok(())
            }
            Err(why) => {
                if !self.failing {
                    debug!(error = %why, "cannot beat; trying on");
                }
                self.failing = true;
                Ok(())
            }
        }
    }

    fn heard(
        &mut self,
        known: KnownStore,
        silence_ms: Option<i64>,
        members: Vec<RegisteredReplica>,
    ) -> Result<(), Error> {
        let now_us = self.store.clock().local().mono_us();
        if self.known.heartbeat == 0 {
            self.joined_us = now_us;
            self.presence.joined = known.heartbeat;
        }
        self.known = known;
        self.hear_overdue(&members);
        let was: Vec<String> = self.view.alive().map(|m| m.status.name.clone()).collect();
        self.view.hear(self.store.nonce(), News { members, silence_ms, now_us })?;
        let is: Vec<String> = self.view.alive().map(|m| m.status.name.clone()).collect();
        if was != is {
            info!(replicas = is.join(", "), "the replicas have changed");
        }
        let nonce = self.store.nonce();
        let others = self.view.alive().filter(|member| member.nonce != nonce);
        self.watch.hear(others.map(|member| &member.status.follow));
        self.replicas.store(is.len(), Ordering::Relaxed);
        self.skew.look(self.view.alive());
        let mut owned = self.view.owned(self.store.nonce(), self.store.partitions());
        if mutants::ownership_is_off() {
            owned = Owned::everything(self.store.partitions(), self.presence.routes.iter().cloned());
        }
        self.presence.partitions = held(owned.kept());
        self.metrics.partitions_owned.set(owned.count() as i64);
        self.tell.send_if_modified(|told| {
            let news = **told != owned;
            if news {
                *told = Arc::new(owned);
            }
            news
        });
        Ok(())
    }

    /// Takes what the others say that they hold past its time; of a dead one for as long as its claims may last.
    fn hear_overdue(&self, members: &[RegisteredReplica]) {
        let others = members.iter().filter(|member| member.nonce != self.store.nonce());
        let others: Vec<_> = others.filter(|m| m.silent_ms <= m.lifetime_ms() + CLAIM_MS).collect();
        for (name, metrics) in self.metrics.routes() {
            let oldest = others.iter().filter_map(|m| m.status.overdue.get(name.as_str())).min();
            metrics.overdue.report(OverduePlace::Elsewhere, oldest.copied().map(UnixMs));
        }
    }

    /// Says goodbye, so that the others need not wait for this replica's death.
    async fn leave(&self) {
        match tokio::time::timeout(DEADLINE, self.store.unregister()).await {
            Ok(Ok(())) => info!("left the other replicas"),
            Ok(Err(why)) => warn!(error = %why, "cannot leave the other replicas; they will notice"),
            Err(_) => warn!("no answer to leaving the other replicas; they will notice"),
        }
    }
}

/// By route, the oldest overdue message that this replica has claimed.
fn overdue(metrics: &Metrics) -> BTreeMap<String, i64> {
    let claimed =
        metrics.routes().filter_map(|(name, m)| Some((name.as_str().to_owned(), m.overdue.claimed()?.0)));
    claimed.collect()
}
