//! What a shard holds claimed, message by message. No I/O.
//!
//! A holding keeps the entries as they were claimed; `stored` maps the positions of the bundle that stands
//! in the store now (it changes when what hangs is split off) to them. Tickets name the holding and the
//! entry, so a verdict finds its message whatever became of its bundle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};

use bytes::Bytes;

use super::Served;
use super::budget::Room;
use crate::domain::{Entry, Flags, Partition, RouteName, StoreClock, Text, UnixMs, Verdict};
use crate::egress::{Lane, PublishBatch};
use crate::mutants::{self, Mutant};
use crate::store::{Claim, OrderPosition};
use crate::telemetry::MessageEnd;

/// Bits of a ticket that name the entry.
pub(super) const INDEX_BITS: u32 = 20;

/// What the wheel needs of a holding to publish it.
pub(super) struct Flight {
    pub(super) served: Arc<Served>,
    pub(super) entries: Arc<Vec<Entry>>,
    /// The same as they are handed to the lane, until the claim surely holds no more.
    pub(super) batch: Arc<PublishBatch>,
    /// Its name as the bundle has it; empty for the route's own.
    pub(super) target_name: Text,
    /// `None`: the target is not allowed any more.
    pub(super) lane: Option<Arc<dyn Lane>>,
    /// Monotonic microseconds of its latest hand-over.
    pub(super) published_us: AtomicI64,
    /// Entries to be published, in order of their due times.
    pub(super) order: Vec<u32>,
    /// How many of `order` are handed over; [`STOPPED`] once no more may be.
    pub(super) handed: AtomicU32,
    /// Of an ordered route: the stamp of its first entry.
    pub(super) first_stamp: u64,
    /// Of an ordered route: the entries that go when it is their key's turn; they are not in `order`.
    pub(super) keyed: Vec<Option<Keyed>>,
    /// Its messages are on their way to the route's `dead_letter_to`: confirmed there, they are dead.
    pub(super) dying: bool,
}

/// An entry that has a key, on a route whose keys leave in order.
pub(super) struct Keyed {
    pub(super) key: Bytes,
    /// Handed over, or never to be.
    pub(super) taken: AtomicBool,
}

/// An ordered route in one partition.
pub(super) type LineId = (RouteName, Partition);

/// When a batch of verdicts was heard: Redis's clock and the monotonic one, microseconds.
#[derive(Clone, Copy)]
pub(super) struct Heard {
    store_us: i64,
    pub(super) mono_us: i64,
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
        if mutants::is(Mutant::Early) { due.map(|due| due.plus(-1000)) } else { due }
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

    /// An entry that goes when it is its key's turn.
    pub(super) fn keyed(&self, index: u32) -> Option<&Keyed> {
        self.keyed.get(index as usize)?.as_ref()
    }

    /// Takes such an entry, to be handed over or put elsewhere; `false` if that was done already.
    pub(super) fn take(&self, index: u32) -> bool {
        self.keyed(index).is_some_and(|keyed| !keyed.taken.swap(true, Ordering::AcqRel))
    }

    /// Whether the claim still surely holds and more may be handed over.
    pub(super) fn goes_on(&self, now_us: i64) -> bool {
        let stopped = self.handed.load(Ordering::Acquire) & STOPPED != 0;
        !stopped && now_us < self.lease_until_us()
    }

    /// Nothing more is handed over; returns what was not.
    pub(super) fn stop(&self) -> &[u32] {
        let handed = self.handed.fetch_or(STOPPED, Ordering::AcqRel) & !STOPPED;
        self.order.get(handed as usize..).unwrap_or_default()
    }

    pub(super) fn confirmed(&self, entry: usize, heard: Heard) {
        let metrics = &self.served.metrics;
        let (now_us, due_us) = (heard.store_us, self.entries[entry].asked_due().0 * 1000);
        let handed_us = self.published_us.load(Ordering::Acquire);
        metrics.published.inc();
        metrics.target_failures.confirmed(&self.batch.target, heard.mono_us);
        self.served.watch.report(&self.served.route.name, self.batch.ids[entry].as_str(), || {
            MessageEnd::Published {
                published_at: UnixMs(now_us / 1000),
                due: self.entries[entry].asked_due(),
                lateness_ms: (now_us - due_us) as f64 / 1e3,
                attempt: self.entries[entry].handouts + self.batch.expiries + 1,
            }
        });
        metrics.lateness.observe((now_us - due_us).max(0) as f64 / 1e6);
        metrics.confirm.observe((heard.mono_us - handed_us).max(0) as f64 / 1e6);
    }

    /// From its first due time to its last, microseconds.
    pub(super) fn span_us(&self) -> i64 {
        let due = |index: Option<&u32>| index.map_or(0, |&index| self.entries[index as usize].due.0);
        (due(self.order.last()) - due(self.order.first())) * 1000
    }

    /// Whether nothing of it is handed over, and something may be.
    pub(super) fn handed_none(&self) -> bool {
        self.handed.load(Ordering::Acquire) == 0
    }

    /// The entries that were handed over.
    fn handed_over(&self) -> impl Iterator<Item = usize> {
        let handed = self.handed.load(Ordering::Acquire) & !STOPPED;
        let in_order = self.order.iter().take(handed as usize).map(|&index| index as usize);
        let taken = |keyed: &Option<Keyed>| keyed.as_ref().is_some_and(|k| k.taken.load(Ordering::Acquire));
        in_order.chain(self.keyed.iter().enumerate().filter(move |(_, k)| taken(k)).map(|(index, _)| index))
    }

    fn all_handed_over(&self) -> bool {
        let in_order = self.handed.load(Ordering::Acquire) & !STOPPED >= self.order.len() as u32;
        in_order && self.keyed.iter().flatten().all(|keyed| keyed.taken.load(Ordering::Acquire))
    }

    /// Monotonic microseconds until which the claim surely holds.
    pub(super) fn lease_until_us(&self) -> i64 {
        self.batch.not_after_us.load(Ordering::Acquire)
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
    /// Its key is held back: it goes there.
    Moved(OrderPosition),
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
    /// Of what the process may hold, until its messages are settled.
    pub(super) room: Room,
    /// Something was confirmed since the store was last told.
    pub(super) news: bool,
    /// An answer to the store about it is on its way.
    pub(super) busy: bool,
    /// Keys of an ordered route of which a message is being put elsewhere, by the call that is on its way or comes.
    pub(super) moving: Vec<Bytes>,
    /// The claim is somebody else's: note what is confirmed, then forget it.
    pub(super) lost: bool,
    /// It was split off: what had no name of its producer's is known by its `~` id.
    pub(super) split: bool,
}

impl Holding {
    /// An entry's place in the order of its key.
    pub(super) fn position(&self, entry: u32) -> OrderPosition {
        OrderPosition {
            due: self.flight.entries[entry as usize].due,
            sequence: self.flight.first_stamp + u64::from(entry),
        }
    }

    /// Whether every message of it has been handed over.
    pub(super) fn all_handed_over(&self) -> bool {
        self.flight.all_handed_over()
    }

    /// The earliest moment asked for among its messages that are due and not delivered.
    pub(super) fn oldest_overdue(&self, now: UnixMs) -> Option<UnixMs> {
        let delivered = |standing: &Standing| {
            matches!(standing, Standing::Confirmed | Standing::Skipped | Standing::Died)
        };
        let left = self.stored.iter().filter(|&&entry| !delivered(&self.standing[entry as usize]));
        let asked = left.map(|&entry| self.flight.entries[entry as usize].asked_due());
        asked.min().filter(|asked| *asked <= now)
    }

    /// When it was last handed over to its lane, if something of that is not answered; monotonic microseconds.
    pub(super) fn unanswered_us(&self) -> Option<i64> {
        let handed_us = self.flight.published_us.load(Ordering::Acquire);
        let waits = handed_us < i64::MAX
            && self.flight.handed_over().any(|entry| self.standing[entry] == Standing::Open);
        waits.then_some(handed_us)
    }

    /// Nothing more of it is handed over: what was not yet counts as not tried.
    pub(super) fn drop_unpublished(&mut self) {
        let keyed = (0..self.flight.keyed.len() as u32).filter(|&index| self.flight.take(index));
        for index in self.flight.stop().iter().copied().chain(keyed) {
            let standing = &mut self.standing[index as usize];
            if *standing == Standing::Open {
                *standing = Standing::Failed(Verdict::NotTried);
                self.open -= 1;
            }
        }
    }

    /// The line that its messages wait in, if its route is an ordered one.
    pub(super) fn line(&self) -> Option<LineId> {
        let route = &self.flight.served.route;
        route.policy.ordered.then(|| (route.name.clone(), self.claim.partition))
    }

    /// Entries of the stored bundle that are open.
    pub(super) fn open_entries(&self) -> Vec<u32> {
        let open = |entry: &u32| self.standing[*entry as usize] == Standing::Open;
        self.stored.iter().copied().filter(open).collect()
    }

    /// Whether a message of this key in the stored bundle has to be put elsewhere.
    pub(super) fn is_leaving(&self, key: &Bytes) -> bool {
        self.stored.iter().any(|&entry| {
            let leaves = matches!(self.standing[entry as usize], Standing::Failed(_) | Standing::Moved(_));
            leaves && self.flight.keyed(entry).is_some_and(|keyed| keyed.key == *key)
        })
    }

    /// Whether something of it has to be put elsewhere while the rest is still open.
    pub(super) fn must_part(&self) -> bool {
        !self.moving.is_empty()
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

    /// Names in the stored bundle and their positions, of the entries that `wanted` takes: what the store knows
    /// them by.
    pub(super) fn names(&self, wanted: impl Fn(&Standing) -> bool) -> Vec<(Text, u32)> {
        let named = |(position, &entry): (usize, &u32)| {
            let own = self.flight.entries[entry as usize].id.clone();
            let id = own.or_else(|| self.split.then(|| self.flight.batch.ids[entry as usize].clone()))?;
            wanted(&self.standing[entry as usize]).then_some((id, position as u32))
        };
        self.stored.iter().enumerate().filter_map(named).collect()
    }
}
