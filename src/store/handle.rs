//! The handle to the store: what it is built from, its connections and numbered calls, and what every room asks of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::call::keys::Keys;
use super::call::numbered::{CallLane, WentBack};
use super::claim::dedupe::Memory;
use super::claim::key_order::Order;
use super::config::Durability;
use super::connection::health::Health;
use super::connection::link::Link;
use super::connection::node::Purpose;
use super::connection::topology;
use super::control::identity::Identity;
use super::control::pauses::Lookout;
use super::model::bundle::{base36, put_base36};
use super::query::counts::Fields;
use super::query::overdue::Waiting;
use super::scrub::Audits;
use super::write::Writer;
use super::{Config, Wake};
use crate::domain::{Clock, Partition, Partitions, RouteName, StoreClock, Text};
use crate::lifecycle::{Readiness, Shutdown, Tasks};
use crate::telemetry::Metrics;

/// The store. Cheap to clone; its connections are kept up by tasks of their own.
#[derive(Clone)]
pub struct Store(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) keys: Keys,
    pub(super) partitions: Partitions,
    pub(super) clock: Arc<StoreClock>,
    pub(super) ids: Ids,
    /// For peeks, sweeps, marks and counts: nothing that anything waits behind.
    pub(super) side: Link,
    /// For people who look: what they read waits behind nothing of the flow, nor that behind them.
    pub(super) browse: Link,
    pub(super) claims: CallLane,
    pub(super) settles: CallLane,
    /// Redrives and drops: never before a settle.
    pub(super) deads: CallLane,
    pub(super) writer: Writer,
    pub(super) wake: Wake,
    pub(super) lookout: Lookout,
    pub(super) memory: Memory,
    pub(super) order: Order,
    pub(super) went_back: Arc<WentBack>,
    pub(super) identity: Identity,
    pub(super) audits: Audits,
    /// Each partition's counts as they were last seen.
    pub(super) last_counts: Mutex<Vec<Option<Fields>>>,
    pub(super) waiting: Waiting,
}

/// Where unique names come from: a random nonce of this process and a counter.
#[derive(Debug)]
pub(super) struct Ids {
    pub(super) nonce: String,
    next: AtomicU64,
}

impl Ids {
    pub(super) fn new() -> Self {
        Self { nonce: base36(fastrand::u64(..1 << 52)), next: AtomicU64::new(1) }
    }

    /// `nonce.counter`
    pub(super) fn unique(&self) -> String {
        format!("{}.{}", self.nonce, base36(self.next.fetch_add(1, Ordering::Relaxed)))
    }
}

/// What the store is built from.
pub struct Parts<'a> {
    /// Its configuration.
    pub config: &'a Config,
    /// The machine's clocks, the same as everywhere in the process.
    pub clock: Clock,
    /// Where its round trips are measured.
    pub metrics: Arc<Metrics>,
    /// Where it says whether it is there.
    pub readiness: &'a Readiness,
    /// Where its connection keepers run.
    pub tasks: &'a Tasks,
    /// When to give up waiting for it.
    pub shutdown: &'a Shutdown,
    /// The routes that remember which names they delivered, and for how many ms.
    pub remembers: BTreeMap<RouteName, i64>,
    /// The routes whose keys leave in order.
    pub ordered: BTreeSet<RouteName>,
    /// How many wake-up targets there are: the timer's shards.
    pub shards: usize,
}

impl Store {
    /// Starts to keep connections to the store up. Does not wait for it: see [`preflight()`].
    pub fn start(parts: &Parts<'_>) -> Result<Self, super::PreflightError> {
        let clock = Arc::new(StoreClock::new(parts.clock));
        let (config, ids) = (parts.config, Ids::new());
        let force = CancellationToken::new();
        let on_force = (parts.shutdown.clone(), force.clone());
        parts.tasks.spawn("store:force", async move {
            on_force.0.forced().await;
            on_force.1.cancel();
        });
        let health =
            Arc::new(Health::new(config, parts.readiness, &["side", "browse", "claim", "settle", "write"]));
        let keys = Keys::new(&config.prefix);
        let watched = topology::watch(config, &keys.slots(config.partitions), parts.tasks, &force)?;
        let link = |role, durability| {
            Link::start(config, Purpose { role, durability }, &watched, &health, &clock, parts.tasks, &force)
        };
        // What is lost of the others costs a repeat, not a message.
        let (tier, plain) = (config.durability, Durability::Async);
        let went_back = Arc::new(WentBack::new());
        let lane = |role, link| {
            let name = format!("{}.{role}", ids.nonce);
            CallLane::new(name, link, config.partitions, &clock, &parts.metrics, &went_back)
        };
        let (side, browse) = (link("side", plain), link("browse", plain));
        let (claims, settles) = (lane("c", link("claim", tier)), lane("s", link("settle", plain)));
        let deads = lane("d", side.clone());
        let writes = link("write", tier);
        let (commands, writes) = (Arc::new(lane("a", writes.clone())), Arc::new(lane("w", writes)));
        let wake = Wake::new(parts.shards, config.partitions);
        let memory = Memory::new(&parts.remembers);
        let order = Order::new(&parts.ordered, &clock);
        let writer = Writer::start((&writes, &commands), &keys, (&memory, &order), parts, &wake, &force);

        let lookout = Lookout::start(&side, &keys, &clock, parts.tasks, &force);

        Ok(Self(Arc::new(Inner {
            lookout,
            memory,
            order,
            keys,
            partitions: config.partitions,
            clock,
            ids,
            side,
            browse,
            claims,
            settles,
            deads,
            writer,
            wake,
            went_back,
            identity: Identity::default(),
            audits: Audits::new(config.partitions),
            last_counts: Mutex::new(config.partitions.all().map(|_| None).collect()),
            waiting: Waiting::default(),
        })))
    }

    /// Redis's time, as a lower bound; the clock that due times are judged by.
    pub fn clock(&self) -> &Arc<StoreClock> {
        &self.0.clock
    }

    /// How many partitions it has.
    pub fn partitions(&self) -> Partitions {
        self.0.partitions
    }

    /// Where a timer shard hears of new heads.
    pub fn wake(&self) -> &Wake {
        &self.0.wake
    }

    /// How often a partition was seen to have forgotten calls that it had answered: the store went back (a
    /// failover, a restored backup) or was wiped, and what it held since may be lost.
    pub fn went_back(&self) -> u64 {
        self.0.went_back.times()
    }

    /// Why something that was to be stored was not, if it is being tried again: the store is full, read-only, or
    /// too few replicas confirm.
    pub fn writes_wait(&self) -> Option<String> {
        self.0.writer.waits_for()
    }

    /// Why what was written or claimed last does not count yet, if too few replicas or disks have confirmed it.
    pub fn unconfirmed(&self) -> Option<String> {
        let writes = self.0.writer.link().unconfirmed();
        writes.or_else(|| self.0.claims.link().unconfirmed())
    }

    /// Whether what is to be stored now would be, as far as is known: the connection is up, and nothing is being
    /// tried again.
    pub fn takes_in(&self) -> bool {
        self.0.writer.is_up() && self.writes_wait().is_none()
    }

    /// A name nobody else has: `nonce.counter`.
    pub fn unique(&self) -> String {
        self.0.ids.unique()
    }

    /// A `~` id that nobody else has for a message of each of these partitions, which it tells again: see
    /// [`Self::dead_of_message`]. All of them share one allocation.
    pub fn unique_ids(&self, homes: impl ExactSizeIterator<Item = Partition>) -> Vec<Text> {
        let first = format!("~{}.", self.unique().replace('.', "-"));
        let mut made = Vec::with_capacity((first.len() + 8) * homes.len());
        let put = |(index, home): (usize, Partition)| {
            let start = made.len();
            made.extend_from_slice(first.as_bytes());
            put_base36(&mut made, u64::from(home.0));
            made.push(b'.');
            put_base36(&mut made, index as u64);
            start..made.len()
        };
        let places: Vec<_> = homes.enumerate().map(put).collect();
        let made = Bytes::from(made);
        places.into_iter().map(|place| Text::from_utf8(made.slice(place)).unwrap_or_default()).collect()
    }
}
