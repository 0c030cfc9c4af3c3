//! The handle to the store: its dependencies, its connections and numbered calls, and what every room asks of
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::call::ids::Ids;
use super::call::keys::Keys;
use super::call::numbered::{NumberedCalls, Rollbacks};
use super::claim::dedupe::DeliveredNames;
use super::claim::key_order::KeyOrder;
use super::config::Durability;
use super::connection::health::RedisHealth;
use super::connection::link::StoreLink;
use super::connection::node::LinkPurpose;
use super::connection::topology;
use super::control::identity::IdentityState;
use super::control::pauses::PauseWatcher;
use super::model::bundle::put_base36;
use super::query::counts::LastCounts;
use super::query::overdue::OverdueReports;
use super::scrub::ScrubPositions;
use super::trail::Trails;
use super::write::{StoreWriter, WriteContext};
use super::{Config, WakeUps};
use crate::domain::{Clock, Partition, Partitions, RouteName, StoreClock, Text, TrailLimits};
use crate::health::Health;
use crate::lifecycle::{Shutdown, Tasks};
use crate::telemetry::Metrics;

/// The store. Cheap to clone. Tasks of its own keep its connections up.
#[derive(Clone)]
pub struct Store(pub(super) Arc<StoreInner>);

pub(super) struct StoreInner {
    pub(super) keys: Keys,
    pub(super) partitions: Partitions,
    pub(super) clock: Arc<StoreClock>,
    pub(super) ids: Ids,
    /// Connection for peeks, sweeps, offsets and counts. Nothing waits behind these.
    pub(super) side: StoreLink,
    /// Connection for people who look. Their reads and the flow do not wait for each other.
    pub(super) browse: StoreLink,
    pub(super) claims: NumberedCalls,
    /// Connection for the contents of claimed bundles. An answer to a claim does not wait behind them: its lease runs.
    pub(super) contents: StoreLink,
    pub(super) settles: NumberedCalls,
    /// Numbered calls of redrives and drops. They never delay a settle.
    pub(super) deads: NumberedCalls,
    pub(super) writer: StoreWriter,
    pub(super) wake: WakeUps,
    pub(super) pause_watcher: PauseWatcher,
    pub(super) delivered_names: DeliveredNames,
    pub(super) trails: Trails,
    pub(super) order: KeyOrder,
    pub(super) rollbacks: Arc<Rollbacks>,
    pub(super) identity: IdentityState,
    pub(super) scrub_positions: ScrubPositions,
    /// Each partition's counts as they were last read.
    pub(super) last_counts: Mutex<LastCounts>,
    pub(super) waiting: OverdueReports,
}

/// Dependencies that the store is built from.
pub struct StoreDependencies<'a> {
    /// The store's configuration.
    pub config: &'a Config,
    /// The machine's clocks, the same as everywhere in the process.
    pub clock: Clock,
    /// Receives the duration of each round trip.
    pub metrics: Arc<Metrics>,
    /// Receives whether the store is there.
    pub health: &'a Health,
    /// Runs the tasks that keep connections up.
    pub tasks: &'a Tasks,
    /// Ends the wait for an unreachable store.
    pub shutdown: &'a Shutdown,
    /// The routes that remember delivered names, and for how many ms.
    pub remembers: BTreeMap<RouteName, i64>,
    /// The bounds of each route's trail. A route that is missing has none.
    pub trails: BTreeMap<RouteName, TrailLimits>,
    /// The ordered routes.
    pub ordered: BTreeSet<RouteName>,
    /// The routes whose named messages may join growing bundles: neither ordered nor limited in rate.
    pub growing: BTreeSet<RouteName>,
    /// The number of wake-up targets: the timer's shards.
    pub shards: usize,
}

/// A token that is cancelled when shutdown is forced.
fn force_token(dependencies: &StoreDependencies<'_>) -> CancellationToken {
    let force = CancellationToken::new();
    let shutdown = dependencies.shutdown.clone();
    let forced = force.clone();
    dependencies.tasks.spawn("store:force", async move {
        shutdown.forced().await;
        forced.cancel();
    });
    force
}

/// The connections of a store, each to all of its servers.
struct StoreLinks {
    side: StoreLink,
    browse: StoreLink,
    claim: StoreLink,
    content: StoreLink,
    settle: StoreLink,
    write: StoreLink,
}

impl StoreLinks {
    fn start(
        dependencies: &StoreDependencies<'_>,
        keys: &Keys,
        clock: &Arc<StoreClock>,
        force: &CancellationToken,
    ) -> Result<Self, super::PreflightError> {
        let config = dependencies.config;
        let tasks = dependencies.tasks;
        let roles = ["side", "browse", "claim", "content", "settle", "write"];
        let health = Arc::new(RedisHealth::new(config, dependencies.health, &roles));
        let watched = topology::watch(config, &keys.slots(config.partitions), tasks, force)?;
        let [side, browse, claim, content, settle, write] = roles.map(|role| {
            let durability = match role {
                "claim" | "write" => config.durability,
                // Lost writes on the other connections cost a repeat, not a message.
                _ => Durability::Async,
            };
            let purpose = LinkPurpose { role, durability };
            StoreLink::start(config, purpose, &watched, &health, clock, tasks, force)
        });
        Ok(Self {
            side,
            browse,
            claim,
            content,
            settle,
            write,
        })
    }
}

impl Store {
    /// Starts to keep connections to the store up. Does not wait for it: see [`preflight`](super::preflight()).
    pub fn start(dependencies: &StoreDependencies<'_>) -> Result<Self, super::PreflightError> {
        let clock = Arc::new(StoreClock::new(dependencies.clock));
        let config = dependencies.config;
        let ids = Ids::new();
        let force = force_token(dependencies);
        let keys = Keys::new(&config.prefix);
        let rollbacks = Arc::new(Rollbacks::new());
        let StoreLinks {
            side,
            browse,
            claim,
            content,
            settle,
            write,
        } = StoreLinks::start(dependencies, &keys, &clock, &force)?;
        let calls = |role, link| {
            NumberedCalls::new(
                format!("{}.{role}", ids.nonce),
                link,
                config.partitions,
                &clock,
                &dependencies.metrics,
                &rollbacks,
            )
        };
        let claims = calls("c", claim);
        let settles = calls("s", settle);
        let deads = calls("d", side.clone());
        let commands = Arc::new(calls("a", write.clone()));
        let writes = Arc::new(calls("w", write));
        let wake = WakeUps::new(dependencies.shards, config.partitions);
        let delivered_names = DeliveredNames::new(&dependencies.remembers);
        let trails = Trails::new(&dependencies.trails, &dependencies.metrics);
        let order = KeyOrder::new(&dependencies.ordered, &clock);
        let growing_routes: Arc<BTreeSet<RouteName>> = if config.growing_bundles {
            Arc::new(dependencies.growing.clone())
        } else {
            Arc::default()
        };
        let context = WriteContext {
            calls: &writes,
            command_calls: &commands,
            keys: &keys,
            delivered_names: &delivered_names,
            order: &order,
            wake: &wake,
            trails: &trails,
            clock: &clock,
            growing_routes: &growing_routes,
        };
        let writer = StoreWriter::start(&context, dependencies, &force);
        let pause_watcher = PauseWatcher::start(&side, &keys, &clock, dependencies.tasks, &force);

        Ok(Self(Arc::new(StoreInner {
            pause_watcher,
            delivered_names,
            trails,
            order,
            keys,
            partitions: config.partitions,
            clock,
            ids,
            side,
            browse,
            claims,
            contents: content,
            settles,
            deads,
            writer,
            wake,
            rollbacks,
            identity: IdentityState::default(),
            scrub_positions: ScrubPositions::new(config.partitions),
            last_counts: Mutex::default(),
            waiting: OverdueReports::default(),
        })))
    }

    /// Redis's time, as a lower bound: the clock that judges due times.
    pub fn clock(&self) -> &Arc<StoreClock> {
        &self.0.clock
    }

    /// The number of partitions of the store.
    pub fn partitions(&self) -> Partitions {
        self.0.partitions
    }

    /// The wake-ups that tell a timer shard of new heads.
    pub fn wake(&self) -> &WakeUps {
        &self.0.wake
    }

    /// How often a partition was seen to have forgotten calls that it had answered. The store then rolled back
    /// (a failover, a restored backup) or was wiped, and what it held since may be lost.
    pub fn rollbacks(&self) -> u64 {
        self.0.rollbacks.times()
    }

    /// Why writes fail: Redis refuses one, whichever call met that, or one of ingress is being retried.
    pub fn write_failure(&self) -> Option<String> {
        let refusal = self.0.writer.link().refusal();
        refusal.or_else(|| self.0.writer.failure())
    }

    /// Why what was written or claimed last does not count yet, if too few replicas or disks have it.
    pub fn not_durable(&self) -> Option<String> {
        let writes = self.0.writer.link().not_durable();
        writes.or_else(|| self.0.claims.link().not_durable())
    }

    /// Reports whether a write would succeed now, as far as is known: the connection is up, and nothing is
    /// being retried.
    pub fn accepts_writes(&self) -> bool {
        self.0.writer.is_up() && self.write_failure().is_none()
    }

    /// A name nobody else has: `nonce.counter`.
    pub fn unique(&self) -> String {
        self.0.ids.unique()
    }

    /// A unique `~` id for one message of each of these partitions. The id names the partition, see
    /// [`Self::dead_of_message`]. All ids share one allocation.
    pub fn unique_ids(&self, homes: impl ExactSizeIterator<Item = Partition>) -> Vec<Text> {
        let first = format!("~{}.", self.unique().replace('.', "-"));
        let mut made = Vec::with_capacity((first.len() + 8) * homes.len());
        let mut places = Vec::with_capacity(homes.len());
        for (index, home) in homes.enumerate() {
            let start = made.len();
            made.extend_from_slice(first.as_bytes());
            put_base36(&mut made, u64::from(home.0));
            made.push(b'.');
            put_base36(&mut made, index as u64);
            places.push(start..made.len());
        }
        let made = Bytes::from(made);
        places
            .into_iter()
            .map(|place| Text::from_utf8(made.slice(place)).unwrap_or_default())
            .collect()
    }
}
