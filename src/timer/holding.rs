//! What a shard holds claimed, message by message. No I/O.
//!
//! A holding keeps the entries as they were claimed; `stored` maps the positions of the bundle that stands
//! in the store now (it changes when what hangs is split off) to them. Tickets name the holding and the
//! entry, so a verdict finds its message whatever became of its bundle.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::Served;
use crate::domain::{Entry, Flags, StoreClock, Target, Text, UnixMs, Verdict};
use crate::egress::{Lane, Verdicts};
use crate::mutants::{self, Mutant};
use crate::store::Claim;
use crate::telemetry::Outcome;

/// Bits of a ticket that name the entry.
const INDEX_BITS: u32 = 20;

/// What the wheel needs of a holding to publish it.
pub(super) struct Flight {
    pub(super) slot: u64,
    pub(super) served: Arc<Served>,
    pub(super) entries: Arc<Vec<Entry>>,
    /// The same as they are handed to the lane.
    pub(super) outgoing: Arc<Vec<Entry>>,
    /// Each entry's name as it goes out.
    pub(super) ids: Vec<Text>,
    pub(super) target: Arc<Target>,
    /// Its name as the bundle has it; empty for the route's own.
    pub(super) target_name: Text,
    /// `None`: the target is not allowed any more.
    pub(super) lane: Option<Arc<dyn Lane>>,
    pub(super) verdicts: Arc<Verdicts>,
    /// Claims on it that expired before this one.
    pub(super) expiries: u32,
    /// Monotonic microseconds until which the claim surely holds.
    pub(super) lease_until_us: AtomicI64,
    /// Monotonic microseconds of its latest hand-over.
    pub(super) published_us: AtomicI64,
    /// Entries to be published, in order of their due times.
    pub(super) order: Vec<u32>,
    /// How many of `order` are handed over; [`STOPPED`] once no more may be.
    pub(super) handed: AtomicU32,
    /// Its messages are on their way to the route's `dead_letter_to`: confirmed there, they are dead.
    pub(super) dying: bool,
}

/// When a batch of verdicts was heard: Redis's clock and the monotonic one, microseconds.
#[derive(Clone, Copy)]
pub(super) struct Heard {
    store_us: i64,
    mono_us: i64,
}

impl Heard {
    pub(super) fn now(clock: &StoreClock) -> Self {
        Self { store_us: clock.now_us().unwrap_or_default(), mono_us: clock.local().mono_us() }
    }
}

/// The bit of `handed` that stops the wheel: the claim is lost, or the process drains.
const STOPPED: u32 = 1 << 31;

impl Flight {
    /// The due time of the next message to be handed over.
    pub(super) fn next_due(&self) -> Option<UnixMs> {
        let at = self.handed.load(Ordering::Acquire);
        let due = self.order.get(at as usize).map(|&index| self.entries[index as usize].due);
        if mutants::is(Mutant::Early) { due.map(|due| due.plus(-50)) } else { due }
    }

    /// How many messages are due and not handed over.
    pub(super) fn due(&self, clock: &StoreClock) -> usize {
        let handed = self.handed.load(Ordering::Acquire) as usize;
        let rest = self.order.get(handed..).unwrap_or_default();
        rest.partition_point(|&index| clock.is_due(self.entries[index as usize].due))
    }

    /// Takes the next message to be handed over; `None` if there is none, or none may be any more. From
    /// here on it counts as handed over, whatever becomes of it.
    pub(super) fn hand(&self) -> Option<u32> {
        let at = self.handed.load(Ordering::Acquire);
        let &index = self.order.get(at as usize)?;
        self.handed.compare_exchange(at, at + 1, Ordering::AcqRel, Ordering::Acquire).ok().map(|_| index)
    }

    /// Nothing more is handed over; returns what was not.
    pub(super) fn stop(&self) -> &[u32] {
        let handed = self.handed.fetch_or(STOPPED, Ordering::AcqRel) & !STOPPED;
        self.order.get(handed as usize..).unwrap_or_default()
    }

    fn confirmed(&self, entry: usize, heard: Heard) {
        let metrics = &self.served.metrics;
        let (now_us, due_us) = (heard.store_us, self.entries[entry].asked_due().0 * 1000);
        let handed_us = self.published_us.load(Ordering::Acquire);
        metrics.published.inc();
        self.served.watch.report(&self.served.route.name, self.ids[entry].as_str(), || Outcome::Published {
            published_at: UnixMs(now_us / 1000),
            due: self.entries[entry].asked_due(),
            lateness_ms: (now_us - due_us) as f64 / 1e3,
            attempt: self.entries[entry].handouts + self.expiries + 1,
        });
        metrics.lateness.observe((now_us - due_us).max(0) as f64 / 1e6);
        metrics.confirm.observe((heard.mono_us - handed_us).max(0) as f64 / 1e6);
    }

    fn all_handed_over(&self) -> bool {
        self.handed.load(Ordering::Acquire) & !STOPPED >= self.order.len() as u32
    }

    pub(super) fn ticket(&self, index: u32) -> u64 {
        self.slot << INDEX_BITS | u64::from(index)
    }
}

/// How one message of a holding stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Standing {
    /// In the wheel, in a lane or in a socket.
    Open,
    /// Its broker has it.
    Confirmed,
    /// Its dead-letter target has it: it is dead, and not yet kept.
    Died,
    /// Not to be published: it was gone or done when claimed.
    Skipped,
    /// Its publish failed.
    Failed(Verdict),
}

/// One claimed bundle.
pub(super) struct Holding {
    pub(super) claim: Claim,
    pub(super) flight: Arc<Flight>,
    /// Position in the stored bundle -> entry.
    pub(super) stored: Vec<u32>,
    pub(super) standing: Vec<Standing>,
    /// Entries of `stored` that are still open.
    pub(super) open: usize,
    pub(super) bytes: i64,
    /// Something was confirmed since the store was last told.
    pub(super) news: bool,
    /// An answer to the store about it is on its way.
    pub(super) busy: bool,
    /// The claim is somebody else's: note what is confirmed, then forget it.
    pub(super) lost: bool,
}

impl Holding {
    /// Whether every message of it has been handed over.
    pub(super) fn all_handed_over(&self) -> bool {
        self.flight.all_handed_over()
    }

    /// Nothing more of it is handed over: what was not yet counts as not tried.
    pub(super) fn drop_unpublished(&mut self) {
        for &index in self.flight.stop() {
            let standing = &mut self.standing[index as usize];
            if *standing == Standing::Open {
                *standing = Standing::Failed(Verdict::NotTried);
                self.open -= 1;
            }
        }
    }

    /// Whether what is not confirmed was never tried: such a bundle can be given back as it is.
    pub(super) fn only_untried(&self) -> bool {
        let untried = Standing::Failed(Verdict::NotTried);
        self.stored
            .iter()
            .map(|&e| &self.standing[e as usize])
            .all(|s| matches!(s, Standing::Confirmed | Standing::Skipped) || *s == untried)
    }

    /// One bit per stored position: is it confirmed.
    pub(super) fn confirmed(&self) -> Vec<bool> {
        self.stored
            .iter()
            .map(|&entry| matches!(self.standing[entry as usize], Standing::Confirmed))
            .collect()
    }

    /// The producers' names among what is confirmed, where the route remembers them.
    pub(super) fn delivered(&self) -> Vec<Text> {
        if self.flight.served.route.policy.dedupe_ms == 0 {
            return Vec::new();
        }
        let confirmed = |entry: &&u32| matches!(self.standing[**entry as usize], Standing::Confirmed);
        let entries = self.stored.iter().filter(confirmed).map(|&entry| &self.flight.entries[entry as usize]);
        entries.filter(|entry| entry.flags.has(Flags::NAMED)).filter_map(|entry| entry.id.clone()).collect()
    }

    /// Whether nothing but confirmed and skipped messages is in it.
    pub(super) fn is_clean(&self) -> bool {
        self.stored
            .iter()
            .all(|&e| matches!(self.standing[e as usize], Standing::Confirmed | Standing::Skipped))
    }

    /// Names in the stored bundle and their positions, of the entries that `wanted` takes.
    pub(super) fn names(&self, wanted: impl Fn(&Standing) -> bool) -> Vec<(Text, u32)> {
        let named = |(position, &entry): (usize, &u32)| {
            let id = self.flight.entries[entry as usize].id.clone()?;
            wanted(&self.standing[entry as usize]).then_some((id, position as u32))
        };
        self.stored.iter().enumerate().filter_map(named).collect()
    }
}

/// All holdings of a shard.
#[derive(Default)]
pub(super) struct Table(Mutex<Slots>);

#[derive(Default)]
pub(super) struct Slots {
    pub(super) holdings: HashMap<u64, Holding>,
    next: u64,
}

impl Table {
    pub(super) fn lock(&self) -> MutexGuard<'_, Slots> {
        self.0.lock()
    }

    /// A number that no holding had before.
    pub(super) fn slot(&self) -> u64 {
        let mut slots = self.0.lock();
        slots.next += 1;
        slots.next
    }
}

impl Slots {
    /// Enters a verdict. Returns the holding's slot if it has nothing open any more.
    pub(super) fn judge(&mut self, ticket: u64, verdict: Verdict, heard: Heard) -> Option<u64> {
        let (slot, entry) = (ticket >> INDEX_BITS, (ticket & ((1 << INDEX_BITS) - 1)) as usize);
        let holding = self.holdings.get_mut(&slot)?;
        let standing = holding.standing.get_mut(entry)?;
        if *standing == Standing::Open {
            *standing = match verdict {
                Verdict::Unknown { .. } if mutants::is(Mutant::UnknownIsConfirmed) => Standing::Confirmed,
                Verdict::Confirmed if holding.flight.dying => Standing::Died,
                Verdict::Confirmed => {
                    holding.news = true;
                    holding.flight.confirmed(entry, heard);
                    Standing::Confirmed
                }
                other => Standing::Failed(other),
            };
            holding.open -= 1;
        }
        (holding.open == 0).then_some(slot)
    }
}
