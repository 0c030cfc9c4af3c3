//! The only file that reads clocks.
//!
//! `Clock` reads the monotonic and the wall clock of this machine. `StoreClock` follows Redis's time
//! from below: every reply offers `TIME` plus the monotonic time since it came, and the highest offer
//! counts, so the bound never runs ahead of Redis however asymmetric the trip. A `TIME` below the bound as it stood
//! when that request was *sent* proves that Redis's clock is behind it: the bound follows it down. That is a step only
//! if the shortfall is more than drift can explain: two oscillators are never alike, and a clock may be slewed for hours.
//! A message is due when this bound and the local wall clock both say so. A cluster's masters have a clock each: the
//! bound is the lowest of theirs, and a step is one of a clock against itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::arrival::{Arrival, Steady};
use super::due::UnixMs;

/// Redis's clock has stepped back when it is behind what drift allows by more than this (microseconds), and so has that
/// of a new master; by less, it is only another clock.
const STEP_US: i64 = 500_000;
/// Clocks drift apart by less than one microsecond in so many: twice what a clock that is being slewed does.
const DRIFT: i64 = 1000;

/// This machine's clocks. Monotonic time counts microseconds since the process's first reading, and goes on while the
/// machine is suspended: a deadline that passed meanwhile has passed, as it has for Redis.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin_us: i64,
}

impl Clock {
    /// Starts counting.
    pub fn start() -> Self {
        Self { origin_us: since_boot_us() }
    }

    /// Monotonic microseconds since the start.
    pub fn mono_us(&self) -> i64 {
        since_boot_us() - self.origin_us
    }

    /// The wall clock, Unix microseconds.
    #[allow(clippy::disallowed_methods)] // the one place that reads clocks
    pub fn wall_us(&self) -> i64 {
        let us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64);
        us + shifted::us()
    }

    /// The wall clock in milliseconds.
    pub fn wall(&self) -> UnixMs {
        UnixMs(self.wall_us() / 1000)
    }

    /// Of a time that another's clock counts, in microseconds: what this clock may count and be done before, however
    /// the two drift apart.
    pub fn within(us: i64) -> i64 {
        us - us / DRIFT
    }

    /// How long from now until a monotonic reading; nothing if it has passed.
    pub fn until(&self, mono_us: i64) -> Duration {
        Duration::from_micros((mono_us - self.mono_us()).max(0) as u64)
    }
}

/// Microseconds since the machine was started, those during which it was suspended included.
#[cfg(target_os = "linux")]
fn since_boot_us() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}

/// Microseconds since the first reading; elsewhere than on Linux, those of a suspended machine may be missing.
#[cfg(not(target_os = "linux"))]
#[allow(clippy::disallowed_methods)]
fn since_boot_us() -> i64 {
    static FIRST: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    FIRST.elapsed().as_micros() as i64
}

#[cfg(not(feature = "test-util"))]
mod shifted {
    pub(super) const fn us() -> i64 {
        0
    }
}

#[cfg(feature = "test-util")]
pub use shifted::shift_wall;

/// A machine whose wall clock is elsewhere, or steps.
#[cfg(feature = "test-util")]
mod shifted {
    use std::sync::atomic::{AtomicI64, Ordering};

    static US: AtomicI64 = AtomicI64::new(0);

    pub(super) fn us() -> i64 {
        US.load(Ordering::Relaxed)
    }

    /// From here on the wall clock shows so many milliseconds more than the machine's.
    pub fn shift_wall(ms: i64) {
        US.store(ms * 1000, Ordering::Relaxed);
    }
}

/// Redis's time, as a lower bound for what is due and as an upper one for what arrives: a delay counts from the
/// latest moment that the arrival can have been. Shared by all who judge due times.
#[derive(Debug)]
pub struct StoreClock {
    clock: Clock,
    /// Redis's microseconds minus monotonic ones, the lowest of all masters'; `i64::MIN` until first observed.
    offset: AtomicI64,
    /// The same as an upper bound, the highest of all masters'.
    latest: AtomicI64,
    /// Both of each master, by whatever number its connections give it.
    masters: Mutex<BTreeMap<u64, Bounds>>,
    steps: AtomicU64,
    steady: Mutex<Steady>,
}

/// One master's microseconds minus monotonic ones: at least, at most.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    low: i64,
    high: i64,
    proof: Proof,
}

/// A lower bound, and when it was drawn: it loses by age what clocks may drift apart.
#[derive(Clone, Copy, Debug)]
struct Proof {
    low: i64,
    mono_us: i64,
}

impl Proof {
    fn aged(self, mono_us: i64) -> i64 {
        self.low.saturating_sub(mono_us.saturating_sub(self.mono_us).max(0) / DRIFT)
    }
}

/// Taken before a request is sent, handed back with its reply.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    master: u64,
    /// What was known of this master; `None`: nothing.
    own: Option<Bounds>,
    /// The bound of all masters; `i64::MIN`: there is none.
    bound: i64,
    mono_us: i64,
}

impl Sent {
    /// Whether a `TIME` that was read after this request was sent lies below an offset by more than `far`.
    fn shows_less(&self, time_us: i64, offset: i64, far: i64) -> bool {
        offset != i64::MIN && time_us < self.mono_us.saturating_add(offset).saturating_sub(far)
    }
}

impl StoreClock {
    /// A clock that knows nothing yet.
    pub fn new(clock: Clock) -> Self {
        let unknown = || AtomicI64::new(i64::MIN);
        let (offset, latest) = (unknown(), unknown());
        Self {
            clock,
            offset,
            latest,
            masters: Mutex::default(),
            steps: AtomicU64::new(0),
            steady: Mutex::default(),
        }
    }

    /// The machine's clocks it is built on.
    pub fn local(&self) -> Clock {
        self.clock
    }

    /// To be called before a request that will return `TIME` is sent to this master.
    pub fn sending(&self, master: u64) -> Sent {
        self.sending_at(master, self.clock.mono_us())
    }

    fn sending_at(&self, master: u64, mono_us: i64) -> Sent {
        let own = self.masters.lock().get(&master).copied();
        Sent { master, own, bound: self.offset.load(Ordering::Acquire), mono_us }
    }

    /// These are the masters now: what others said counts no more, once one of these has said something.
    pub fn follow(&self, masters: &[u64]) {
        let mut known = self.masters.lock();
        known.retain(|master, _| masters.contains(master));
        self.take_bounds(&known);
    }

    fn take_bounds(&self, known: &BTreeMap<u64, Bounds>) {
        if let Some(lowest) = known.values().map(|bounds| bounds.low).min() {
            self.offset.store(lowest, Ordering::Release);
        }
        if let Some(highest) = known.values().map(|bounds| bounds.high).max() {
            self.latest.store(highest, Ordering::Release);
        }
    }

    /// Takes a reply's `TIME` (Unix microseconds), which arrived just now.
    /// Returns whether it proves that Redis's clock stepped back.
    pub fn observe(&self, time_us: i64, sent: Sent) -> bool {
        self.observe_at(time_us, sent, self.clock.mono_us())
    }

    fn observe_at(&self, time_us: i64, sent: Sent, mono_us: i64) -> bool {
        // Its clock was read after the request was sent and before the reply came.
        let (low, high) = (time_us - mono_us, time_us - sent.mono_us);
        let offer = Bounds { low, high, proof: Proof { low, mono_us } };
        let mut masters = self.masters.lock();
        let stepped = if let Some(own) = masters.get_mut(&sent.master) {
            let behind = sent.own.is_some_and(|had| sent.shows_less(time_us, had.low, 0));
            // Bounds that do not meet were drawn by clocks that do not go alike. Redis's has gone faster: what was said
            // last counts. Slower: that must be proved.
            if behind || offer.low > own.high {
                *own = offer;
            } else {
                if offer.high >= own.low {
                    (own.low, own.high) = (offer.low.max(own.low), offer.high.min(own.high));
                }
                if offer.low >= own.proof.aged(mono_us) {
                    own.proof = offer.proof;
                }
            }
            sent.own.is_some_and(|had| sent.shows_less(time_us, had.proof.aged(sent.mono_us), STEP_US))
        } else {
            masters.insert(sent.master, offer);
            sent.shows_less(time_us, sent.bound, STEP_US)
        };
        self.take_bounds(&masters);
        if stepped {
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
        stepped
    }

    /// Redis's microseconds, at least; `None` until a first reply was observed.
    pub fn now_us(&self) -> Option<i64> {
        let offset = self.offset.load(Ordering::Acquire);
        (offset != i64::MIN).then(|| self.clock.mono_us() + offset)
    }

    /// Redis's time in milliseconds; the local wall clock until a first reply was observed.
    pub fn now(&self) -> UnixMs {
        self.now_us().map_or_else(|| self.clock.wall(), |us| UnixMs(us.div_euclid(1000)))
    }

    /// The time of this one master in milliseconds, at least; that of all until it has said something.
    pub fn now_of(&self, master: u64) -> UnixMs {
        let own = self.masters.lock().get(&master).map(|bounds| self.clock.mono_us() + bounds.low);
        own.map_or_else(|| self.now(), |us| UnixMs(us.div_euclid(1000)))
    }

    /// When what is here now has arrived.
    pub fn arrival(&self) -> Arrival {
        let mono = self.clock.mono_us();
        let (wall, latest) = (self.clock.wall_us() - mono, self.latest.load(Ordering::Acquire));
        let at = |us: i64| UnixMs(us.div_euclid(1000));
        if latest == i64::MIN {
            return Arrival { earliest: at(mono + wall), latest: at(mono + wall).plus(1) };
        }
        let counts = self.steady.lock().judge(latest, wall);
        Arrival { earliest: at(self.reached_us()), latest: at(mono + counts).plus(1) }
    }

    /// The moment that both clocks have reached, Unix microseconds: what is due by then is due. It stays
    /// true, however long ago it was asked for. `i64::MIN` until the store was first reached.
    pub fn reached_us(&self) -> i64 {
        self.now_us().map_or(i64::MIN, |store| store.min(self.clock.wall_us()))
    }

    /// Whether both clocks call a moment past.
    pub fn is_due(&self, due: UnixMs) -> bool {
        self.until_due_us(due) <= 0
    }

    /// Microseconds until both clocks call a moment past; at most 0 if they do already. Until the
    /// store was first reached nothing is due.
    pub fn until_due_us(&self, due: UnixMs) -> i64 {
        let due_us = due.0.saturating_mul(1000);
        match self.now_us() {
            None => i64::MAX,
            Some(store) => due_us.saturating_sub(store.min(self.clock.wall_us())),
        }
    }

    /// Local wall clock minus Redis's, microseconds; 0 until first observed.
    pub fn skew_us(&self) -> i64 {
        self.now_us().map_or(0, |store| self.clock.wall_us() - store)
    }

    /// How often Redis's clock was seen to step back.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
