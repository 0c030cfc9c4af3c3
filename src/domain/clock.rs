//! The only file that reads clocks.
//!
//! [`Clock`] reads the monotonic and the wall clock of this machine. [`StoreClock`] follows Redis's time from below:
//! each reply offers `TIME` plus the monotonic time since it arrived, and the highest offer counts. So the bound
//! never runs ahead of Redis, however asymmetric the round trip is. A `TIME` below the bound at the moment its
//! request was *sent* proves that Redis's clock is behind the bound, and the bound follows it down. That counts as a
//! step only if drift cannot explain it: no two oscillators are alike, and a clock may be slewed for hours. A message
//! is due when this bound and the local wall clock both say so. The masters of a cluster have a clock each: the bound
//! is the lowest of theirs, and a step is a step of one clock against itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::arrival::{Arrival, SteadyClocks};
use super::due::{MonoUs, UnixMs};

/// Redis's clock has stepped back if it is further behind than drift explains by more than this, microseconds. The
/// same holds for the clock of a new master; a smaller difference is only another clock.
const REDIS_STEP_US: i64 = 500_000;
/// Clocks drift apart by less than one microsecond in this many: twice the rate at which a clock is slewed.
const DRIFT_DIVISOR: i64 = 1000;

/// This machine's clocks. Monotonic time counts microseconds from the first reading of the process, and goes on while
/// the machine is suspended: a deadline that passes meanwhile has passed, as it has for Redis.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin_us: i64,
}

impl Clock {
    /// Starts the monotonic count.
    pub fn start() -> Self {
        Self {
            origin_us: since_boot_us(),
        }
    }

    /// The monotonic clock.
    pub fn mono(&self) -> MonoUs {
        MonoUs(self.mono_us())
    }

    /// Monotonic microseconds since the start.
    pub fn mono_us(&self) -> i64 {
        since_boot_us() - self.origin_us
    }

    /// The wall clock, Unix microseconds.
    #[allow(clippy::disallowed_methods)] // the one place that reads clocks
    pub fn wall_us(&self) -> i64 {
        let us = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_micros() as i64);
        us + shifted::us()
    }

    /// The wall clock, Unix milliseconds.
    pub fn wall(&self) -> UnixMs {
        UnixMs(self.wall_us() / 1000)
    }

    /// The part of a time that is certain to end first by this clock, if another clock counts the whole and the two
    /// drift apart; microseconds.
    pub fn within(us: i64) -> i64 {
        us - us / DRIFT_DIVISOR
    }

    /// The time from now until a monotonic reading; zero if it has passed.
    pub fn until(&self, mono_us: i64) -> Duration {
        Duration::from_micros((mono_us - self.mono_us()).max(0) as u64)
    }
}

/// Microseconds since the machine was started, suspended time included.
#[cfg(target_os = "linux")]
fn since_boot_us() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}

/// Microseconds since the first reading. Outside of Linux, suspended time may be missing.
#[cfg(not(target_os = "linux"))]
#[allow(clippy::disallowed_methods)]
fn since_boot_us() -> i64 {
    static FIRST: std::sync::LazyLock<std::time::Instant> =
        std::sync::LazyLock::new(std::time::Instant::now);
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

/// Shifts the wall clock, to simulate a wrong clock or a step.
#[cfg(feature = "test-util")]
mod shifted {
    use std::sync::atomic::{AtomicI64, Ordering};

    static US: AtomicI64 = AtomicI64::new(0);

    pub(super) fn us() -> i64 {
        US.load(Ordering::Relaxed)
    }

    /// Shifts the wall clock by this much from the machine's, ms.
    pub fn shift_wall(ms: i64) {
        US.store(ms * 1000, Ordering::Relaxed);
    }
}

/// Redis's time: a lower bound to judge due times, and an upper bound to place arrivals, because a delay counts from
/// the latest moment that the arrival can have been. Shared by all who judge due times.
#[derive(Debug)]
pub struct StoreClock {
    clock: Clock,
    /// Redis's microseconds minus monotonic ones, the lowest of all masters; `i64::MIN` until first observed.
    offset: AtomicI64,
    /// The same as an upper bound, the highest of all masters.
    latest_offset: AtomicI64,
    /// The bounds of each master, by the number that its connections give it.
    masters: Mutex<BTreeMap<u64, MasterBounds>>,
    steps: AtomicU64,
    steady: Mutex<SteadyClocks>,
}

/// Lowest and highest value of one master's microseconds minus monotonic ones.
#[derive(Clone, Copy, Debug)]
struct MasterBounds {
    low: i64,
    high: i64,
    proof: StepProof,
}

/// A lower bound, and the moment it was drawn. It loses with age what clocks may drift apart.
#[derive(Clone, Copy, Debug)]
struct StepProof {
    low: i64,
    mono_us: i64,
}

impl StepProof {
    fn at_age(self, mono_us: i64) -> i64 {
        self.low
            .saturating_sub(mono_us.saturating_sub(self.mono_us).max(0) / DRIFT_DIVISOR)
    }
}

/// The state before a request is sent. It is handed back with the reply.
#[derive(Clone, Copy, Debug)]
pub struct TimeRequest {
    master: u64,
    /// The bounds of this master before the request; `None`: it was unknown.
    own: Option<MasterBounds>,
    /// The bound of all masters; `i64::MIN`: there is none.
    bound: i64,
    mono_us: i64,
}

impl TimeRequest {
    /// Reports whether a `TIME` read after this request was sent lies below an offset by more than `far`.
    fn is_below(&self, time_us: i64, offset: i64, far: i64) -> bool {
        offset != i64::MIN && time_us < self.mono_us.saturating_add(offset).saturating_sub(far)
    }
}

impl StoreClock {
    /// A clock that knows nothing yet.
    pub fn new(clock: Clock) -> Self {
        let unknown = || AtomicI64::new(i64::MIN);
        let offset = unknown();
        let latest_offset = unknown();
        Self {
            clock,
            offset,
            latest_offset,
            masters: Mutex::default(),
            steps: AtomicU64::new(0),
            steady: Mutex::default(),
        }
    }

    /// The machine's clocks underneath.
    pub fn local(&self) -> Clock {
        self.clock
    }

    /// Call this before sending a request that will return `TIME` to this master.
    pub fn sending(&self, master: u64) -> TimeRequest {
        self.sending_at(master, self.clock.mono_us())
    }

    fn sending_at(&self, master: u64, mono_us: i64) -> TimeRequest {
        let own = self.masters.lock().get(&master).copied();
        TimeRequest {
            master,
            own,
            bound: self.offset.load(Ordering::Acquire),
            mono_us,
        }
    }

    /// Sets the current masters. The bounds of all others are dropped, once one of these has answered.
    pub fn follow(&self, masters: &[u64]) {
        let mut bounds = self.masters.lock();
        bounds.retain(|master, _| masters.contains(master));
        self.publish_bounds(&bounds);
    }

    /// Publishes the bounds of all masters together.
    fn publish_bounds(&self, masters: &BTreeMap<u64, MasterBounds>) {
        if let Some(lowest) = masters.values().map(|bounds| bounds.low).min() {
            self.offset.store(lowest, Ordering::Release);
        }
        if let Some(highest) = masters.values().map(|bounds| bounds.high).max() {
            self.latest_offset.store(highest, Ordering::Release);
        }
    }

    /// Takes a reply's `TIME` (Unix microseconds), which arrived just now. Returns whether it proves that Redis's
    /// clock stepped back.
    pub fn observe(&self, time_us: i64, request: TimeRequest) -> bool {
        self.observe_at(time_us, request, self.clock.mono_us())
    }

    fn observe_at(&self, time_us: i64, request: TimeRequest, mono_us: i64) -> bool {
        // Redis read its clock after the request was sent and before the reply came.
        let low = time_us - mono_us;
        let high = time_us - request.mono_us;
        let offer = MasterBounds {
            low,
            high,
            proof: StepProof { low, mono_us },
        };
        let mut masters = self.masters.lock();
        let stepped = if let Some(own) = masters.get_mut(&request.master) {
            let behind = request
                .own
                .is_some_and(|had| request.is_below(time_us, had.low, 0));
            // Bounds that do not overlap were drawn by clocks of different speed. If Redis's went faster, the latest
            // answer counts. If it went slower, that has to be proved.
            if behind || offer.low > own.high {
                *own = offer;
            } else {
                if offer.high >= own.low {
                    (own.low, own.high) = (offer.low.max(own.low), offer.high.min(own.high));
                }
                if offer.low >= own.proof.at_age(mono_us) {
                    own.proof = offer.proof;
                }
            }
            request.own.is_some_and(|had| {
                request.is_below(time_us, had.proof.at_age(request.mono_us), REDIS_STEP_US)
            })
        } else {
            masters.insert(request.master, offer);
            request.is_below(time_us, request.bound, REDIS_STEP_US)
        };
        self.publish_bounds(&masters);
        if stepped {
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
        stepped
    }

    /// Redis's time as a lower bound, microseconds; `None` until a first reply was observed.
    pub fn now_us(&self) -> Option<i64> {
        let offset = self.offset.load(Ordering::Acquire);
        (offset != i64::MIN).then(|| self.clock.mono_us() + offset)
    }

    /// Redis's time as a lower bound, milliseconds. Until a first reply was observed it is the local wall clock.
    pub fn now(&self) -> UnixMs {
        self.now_us()
            .map_or_else(|| self.clock.wall(), |us| UnixMs(us.div_euclid(1000)))
    }

    /// The time of one master as a lower bound, milliseconds. Until it has answered it is the time of all.
    pub fn now_of(&self, master: u64) -> UnixMs {
        let own = self
            .masters
            .lock()
            .get(&master)
            .map(|bounds| self.clock.mono_us() + bounds.low);
        own.map_or_else(|| self.now(), |us| UnixMs(us.div_euclid(1000)))
    }

    /// The arrival of a message that is read now.
    pub fn arrival(&self) -> Arrival {
        let mono = self.clock.mono_us();
        let wall = self.clock.wall_us() - mono;
        let latest = self.latest_offset.load(Ordering::Acquire);
        let at = |us: i64| UnixMs(us.div_euclid(1000));
        if latest == i64::MIN {
            return Arrival {
                earliest: at(mono + wall),
                latest: at(mono + wall).plus(1),
            };
        }
        let counts = self.steady.lock().judge(latest, wall);
        Arrival {
            earliest: at(self.reached_us()),
            latest: at(mono + counts).plus(1),
        }
    }

    /// The moment that both clocks have reached, Unix microseconds; `i64::MIN` until the store was first reached. A
    /// message due by this moment stays due, however old the reading is.
    pub fn reached_us(&self) -> i64 {
        self.now_us()
            .map_or(i64::MIN, |store| store.min(self.clock.wall_us()))
    }

    /// Reports whether both clocks call a moment past.
    pub fn is_due(&self, due: UnixMs) -> bool {
        self.until_due_us(due) <= 0
    }

    /// Reports whether a moment is past by either clock: what is not wanted after it is not published then.
    pub fn is_past(&self, moment: UnixMs) -> bool {
        let store = self.now_us().unwrap_or(i64::MIN);
        store.max(self.clock.wall_us()).div_euclid(1000) > moment.0
    }

    /// Microseconds until both clocks call a moment past; at most 0 if they do already. Until the store was first
    /// reached nothing is due.
    pub fn until_due_us(&self, due: UnixMs) -> i64 {
        let due_us = due.0.saturating_mul(1000);
        match self.now_us() {
            None => i64::MAX,
            Some(store) => due_us.saturating_sub(store.min(self.clock.wall_us())),
        }
    }

    /// The local wall clock minus Redis's, microseconds; 0 until first observed.
    pub fn skew_us(&self) -> i64 {
        self.now_us()
            .map_or(0, |store| self.clock.wall_us() - store)
    }

    /// The number of times that Redis's clock stepped back.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
