//! The heartbeat: this replica reports to the registry, and hears which replicas live and whether the store is still
//! the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::membership::ClaimRounds;
use super::skew::SkewAlarm;
use super::store_identity::IdentityWatcher;
use super::view::{NameRefusal, RegistryNews, ReplicaView, partitions_of};
use super::{Cluster, Config, OwnedPartitions};
use crate::domain::{Route, UnixMs};
use crate::health::{Health, Overdue, OverduePlace};
use crate::lifecycle::{Shutdown, Tasks, until_tick};
use crate::mutants;
use crate::store::{
    self, HeartbeatReply, KnownStore, PreflightError, RegisteredReplica, ReplicaStatus, Store,
    StoreError, until_available,
};
use crate::telemetry::{FlowSampler, FollowRegistry, Metrics};

/// Longest time between two heartbeats; half of `cluster.heartbeat` if that is less. A replica that leaves is
/// replaced within this time.
const BEAT_INTERVAL: Duration = Duration::from_millis(400);
/// Longest wait for an answer. The next heartbeat tries again.
const BEAT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait for the store when this replica leaves. After that its entry ends by itself, about as late.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(4);
/// What a replica told of its claims may be that old, ms: it looks at them once a second and tells them with its next
/// heartbeat. What fell due since then may be delivered.
const TOLD_AGE_MS: i64 = 2_000;

/// Why a replica may not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// Another replica has its name.
    #[error(transparent)]
    Name(#[from] NameRefusal),
    /// The store was wiped or replaced, and the new one may not be used.
    #[error("the store was replaced, and the new one may not be used: {0}")]
    Store(PreflightError),
}

/// The dependencies of the cluster.
pub struct ClusterDependencies<'a> {
    /// The settings of this replica.
    pub config: &'a Config,
    /// The store with the registry.
    pub store: Store,
    /// The settings for checking the store again when it was replaced.
    pub store_config: &'a store::Config,
    /// The routes that this replica serves.
    pub routes: &'a [Arc<Route>],
    /// Number of timer shards of this replica.
    pub shards: usize,
    /// Tells whether this replica takes work.
    pub health: &'a Health,
    /// The metrics of the process.
    pub metrics: Arc<Metrics>,
    /// This replica's `timer.claim`.
    pub claim: Duration,
    /// News of followed messages, which replicas exchange.
    pub watch: Arc<FollowRegistry>,
    /// The task set to spawn on.
    pub tasks: &'a Tasks,
    /// The signal to leave the registry.
    pub shutdown: Shutdown,
}

/// Joins the registry. Returns once the store has answered a first heartbeat.
pub async fn start(dependencies: &ClusterDependencies<'_>) -> Result<Cluster, ClusterError> {
    let clock = dependencies.store.clock().local();
    let rounds = Arc::new(ClaimRounds::new(dependencies.shards, clock.mono_us()));
    let replicas = Arc::new(AtomicUsize::new(1));
    let longest_claim_ms = Arc::<AtomicI64>::default();
    let (tell, owned) = watch::channel(Arc::default());
    let (tell_end, ended) = watch::channel(None);
    let mut heartbeat = Heartbeat {
        presence: ReplicaStatus {
            name: dependencies.config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            heartbeat_ms: dependencies.config.heartbeat.as_millis() as i64,
            claim_ms: dependencies.claim.as_millis() as i64,
            routes: dependencies
                .routes
                .iter()
                .map(|route| route.name.as_str().to_owned())
                .collect(),
            joining: true,
            ..ReplicaStatus::default()
        },
        interval: dependencies.config.heartbeat,
        store: dependencies.store.clone(),
        health: dependencies.health.clone(),
        metrics: dependencies.metrics.clone(),
        watch: dependencies.watch.clone(),
        rounds: rounds.clone(),
        replicas: replicas.clone(),
        longest_claim_ms: longest_claim_ms.clone(),
        view: ReplicaView::new(dependencies.config.max_clock_skew),
        identity: KnownStore::default(),
        watcher: IdentityWatcher::new(
            dependencies.store_config,
            &dependencies.store,
            dependencies.health,
            &dependencies.metrics,
        ),
        skew: SkewAlarm::new(dependencies.config.max_clock_skew),
        sampler: FlowSampler::default(),
        measured: false,
        joined_us: 0,
        failing: false,
        tell,
    };
    while heartbeat.identity.heartbeat == 0 {
        heartbeat.beat().await?;
        if heartbeat.identity.heartbeat == 0 {
            tokio::time::sleep(BEAT_INTERVAL).await;
        }
    }
    let shutdown = dependencies.shutdown.clone();
    dependencies.tasks.spawn("cluster", async move {
        if let Err(why) = heartbeat.run(&shutdown).await {
            // The app waits for this value in [`Cluster::refused`].
            tell_end.send_replace(Some(why));
        }
        heartbeat.leave().await;
    });
    Ok(Cluster {
        owned,
        ended,
        rounds,
        replicas,
        longest_claim_ms,
    })
}

/// The task that sends heartbeats.
struct Heartbeat {
    presence: ReplicaStatus,
    /// `cluster.heartbeat`.
    interval: Duration,
    store: Store,
    health: Health,
    metrics: Arc<Metrics>,
    watch: Arc<FollowRegistry>,
    rounds: Arc<ClaimRounds>,
    view: ReplicaView,
    identity: KnownStore,
    watcher: IdentityWatcher,
    skew: SkewAlarm,
    sampler: FlowSampler,
    /// Set if this heartbeat tells a new measurement of the flow.
    measured: bool,
    /// The moment this replica joined, monotonic microseconds.
    joined_us: i64,
    failing: bool,
    tell: watch::Sender<Arc<OwnedPartitions>>,
    /// Number of living replicas.
    replicas: Arc<AtomicUsize>,
    longest_claim_ms: Arc<AtomicI64>,
}

impl Heartbeat {
    /// Sends heartbeats until draining begins, or until this replica may not go on.
    async fn run(&mut self, shutdown: &Shutdown) -> Result<(), ClusterError> {
        loop {
            tokio::select! {
                () = shutdown.draining() => return Ok(()),
                () = tokio::time::sleep(self.pause()) => {}
            }
            tokio::select! {
                () = shutdown.draining() => return Ok(()),
                result = self.beat() => result?,
            }
        }
    }

    /// The wait until the next heartbeat. It ends early if another replica counts as dead before.
    fn pause(&self) -> Duration {
        let pause = until_tick(BEAT_INTERVAL.min(self.interval / 2));
        let death = self.view.next_death_ms(self.store.nonce());
        death.map_or(pause, |ms| pause.min(Duration::from_millis(ms as u64 + 1)))
    }

    async fn beat(&mut self) -> Result<(), ClusterError> {
        let clock = self.store.clock().clone();
        let now_us = clock.local().mono_us();
        self.presence.ready = self.health.is_ready();
        self.presence.rounds = self.rounds.ages_ms(now_us);
        self.presence.follow = self.watch.news();
        self.presence.skew_ms = clock.skew_us() / 1000;
        self.presence.overdue = self.earliest_claimed();
        let flows = self.sampler.sample(&self.metrics, now_us);
        self.measured = flows.is_some();
        self.presence.flows = flows.unwrap_or_else(|| std::mem::take(&mut self.presence.flows));
        self.presence.joining = self.identity.heartbeat == 0
            || now_us < self.joined_us + 3 * self.interval.as_micros() as i64;
        // The numbered calls may have found a rollback first. All replicas have to know it.
        self.identity.rolled_back_at = self
            .identity
            .rolled_back_at
            .max(self.store.rolled_back_at());
        let answer = tokio::time::timeout(
            BEAT_TIMEOUT,
            self.store.heartbeat(&self.presence, &self.identity),
        );
        let answer = answer
            .await
            .unwrap_or_else(|_| Err(StoreError::Unavailable("no answer in time".into())));
        match answer {
            Ok(HeartbeatReply::Same {
                known: identity,
                now,
                silence_ms,
                replicas: members,
            }) => {
                self.failing = false;
                let kept = silence_ms.map(|ms| now.plus(-ms));
                self.watcher.compare(&self.identity, &identity, kept);
                self.watcher.usable();
                if self.measured {
                    self.hear_flows(now, &members);
                }
                self.hear_overdue(now, &members);
                self.heard(identity, silence_ms, members)
            }
            Ok(HeartbeatReply::Replaced(found)) => {
                if let Some(identity) = self
                    .watcher
                    .replaced(&self.identity, found.as_deref())
                    .await?
                {
                    self.identity = identity;
                    self.presence.joined = 0;
                }
                Ok(())
            }
            Err(why) => {
                if !self.failing {
                    debug!(error = %why, "heartbeat failed; retrying");
                }
                self.failing = true;
                Ok(())
            }
        }
    }

    /// Takes in the answer to a heartbeat.
    fn heard(
        &mut self,
        identity: KnownStore,
        silence_ms: Option<i64>,
        members: Vec<RegisteredReplica>,
    ) -> Result<(), ClusterError> {
        let now_us = self.store.clock().local().mono_us();
        if self.identity.heartbeat == 0 {
            self.joined_us = now_us;
            self.presence.joined = identity.heartbeat;
        }
        self.identity = identity;
        let longest = members.iter().map(|member| member.status.claim_ms).max();
        self.longest_claim_ms
            .store(longest.unwrap_or_default(), Ordering::Relaxed);
        let was: Vec<String> = self.view.alive().map(|m| m.status.name.clone()).collect();
        self.view.hear(
            self.store.nonce(),
            RegistryNews {
                members,
                silence_ms,
                now_us,
            },
        )?;
        let is: Vec<String> = self.view.alive().map(|m| m.status.name.clone()).collect();
        if was != is {
            info!(replicas = is.join(", "), "the replicas have changed");
        }
        let nonce = self.store.nonce();
        let others = self.view.alive().filter(|member| member.nonce != nonce);
        self.watch.hear(others.map(|member| &member.status.follow));
        self.replicas.store(is.len(), Ordering::Relaxed);
        self.skew.compare(self.view.alive());
        let mut owned = self.view.owned(self.store.nonce(), self.store.partitions());
        if mutants::ownership_is_off() {
            owned = OwnedPartitions::everything(
                self.store.partitions(),
                self.presence.routes.iter().cloned(),
            );
        }
        self.presence.partitions = partitions_of(owned.maintained_flags());
        self.metrics.partitions_owned.set(owned.count() as i64);
        self.tell.send_if_modified(|told| {
            let has_changed = **told != owned;
            if has_changed {
                *told = Arc::new(owned);
            }
            has_changed
        });
        Ok(())
    }

    /// Notes the overdue messages that other replicas have claimed. Those of a dead replica count until its claims have
    /// ended.
    fn hear_overdue(&self, now: UnixMs, members: &[RegisteredReplica]) {
        let others = members
            .iter()
            .filter(|member| member.nonce != self.store.nonce());
        let (alive, dead): (Vec<_>, Vec<_>) = others.partition(|m| m.is_alive());
        for (name, _) in self.metrics.routes() {
            let overdue = &self.health.route(name).overdue;
            overdue.report(
                OverduePlace::Elsewhere,
                oldest_told(&alive, name.as_str(), now),
            );
            overdue.report(
                OverduePlace::DeadReplica,
                oldest_told(&dead, name.as_str(), now),
            );
        }
    }

    /// The earliest due time of each route's messages that this replica has claimed, due or not: once it is dead, it cannot
    /// tell what has become late.
    fn earliest_claimed(&self) -> BTreeMap<String, i64> {
        let names = self.metrics.routes().map(|(name, _)| name);
        let claimed = names.filter_map(|name| {
            let earliest = self.health.route(name).overdue.claimed()?;
            Some((name.as_str().to_owned(), earliest.0))
        });
        claimed.collect()
    }

    /// Adds up what the living replicas moved in their last steps: once for each step of this replica.
    fn hear_flows(&self, now: UnixMs, members: &[RegisteredReplica]) {
        let alive = members.iter().filter(|member| member.is_alive());
        self.metrics
            .flow
            .add(now, alive.map(|member| &member.status.flows));
    }

    /// Leaves the registry, so that the others need not wait for this replica's death.
    async fn leave(&self) {
        match until_available(LEAVE_TIMEOUT, || self.store.unregister()).await {
            Ok(()) => info!("left the other replicas"),
            Err(why) => warn!(error = %why, "leaving the other replicas failed; they will notice"),
        }
    }
}

/// The oldest message of a route that is overdue in the hands of these replicas, as they told. Claims that have ended are in
/// nobody's hands.
fn oldest_told(members: &[&RegisteredReplica], route: &str, now: UnixMs) -> Option<Overdue> {
    let claiming = members
        .iter()
        .filter(|member| member.silent_ms <= member.claims_end_ms());
    let told = claiming.filter_map(|member| {
        let asked = UnixMs(*member.status.overdue.get(route)?);
        // A living one may have delivered it since it told.
        let silent_ms = if member.is_alive() {
            member.silent_ms
        } else {
            0
        };
        (now.since(asked) >= TOLD_AGE_MS + silent_ms).then_some(asked)
    });
    let asked = told.min()?;
    Some(Overdue { asked, seen: now })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT_MS: i64 = 1_000;
    const CLAIM_MS: i64 = 30_000;

    /// A replica that claimed a message due at this moment, and has been silent for so long since it told that.
    fn claimed(due_ms: i64, silent_ms: i64) -> RegisteredReplica {
        RegisteredReplica {
            nonce: "b".to_owned(),
            heartbeat: 1,
            silent_ms,
            status: ReplicaStatus {
                heartbeat_ms: BEAT_MS,
                claim_ms: CLAIM_MS,
                overdue: BTreeMap::from([("orders".to_owned(), due_ms)]),
                ..ReplicaStatus::default()
            },
        }
    }

    fn told(members: &[&RegisteredReplica], now_ms: i64) -> Option<i64> {
        oldest_told(members, "orders", UnixMs(now_ms)).map(|oldest| oldest.asked.0)
    }

    #[test]
    fn what_others_claimed_is_overdue_once_it_is_certain_that_they_know() {
        let early = claimed(10_000, 400);
        let late = claimed(15_000, 400);
        for (now_ms, expected) in [(9_000, None), (12_399, None), (12_400, Some(10_000))] {
            assert_eq!(told(&[&late, &early], now_ms), expected, "at {now_ms}");
        }
        assert_eq!(told(&[&late], 12_000), None);
        assert_eq!(oldest_told(&[&early], "mail", UnixMs(12_000)), None);
    }

    #[test]
    fn what_the_dead_claimed_counts_until_its_claim_has_ended() {
        let end_ms = 3 * BEAT_MS + CLAIM_MS;
        for (silent_ms, expected) in [
            (3 * BEAT_MS + 1, Some(10_000)),
            (end_ms, Some(10_000)),
            (end_ms + 1, None),
        ] {
            let dead = claimed(10_000, silent_ms);
            assert_eq!(told(&[&dead], 20_000), expected, "after {silent_ms}");
        }
    }
}
