//! The only file that reads clocks.
//!
//! `Clock` reads the monotonic and the wall clock of this machine. `StoreClock` follows Redis's time
//! from below: every reply offers `TIME` plus the monotonic time since it came, and the highest offer
//! counts, so the bound never runs ahead of Redis however asymmetric the trip. Only a `TIME` below the
//! bound as it stood when that request was *sent* proves that Redis's clock stepped back; then the
//! bound follows it down. A message is due when this bound and the local wall clock both say so.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::due::UnixMs;

/// This machine's clocks. Monotonic time counts microseconds since the process's first reading.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// Starts counting.
    #[allow(clippy::disallowed_methods)] // the one place that reads clocks
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// Monotonic microseconds since the start.
    #[allow(clippy::disallowed_methods)]
    pub fn mono_us(&self) -> i64 {
        self.origin.elapsed().as_micros() as i64
    }

    /// The wall clock, Unix microseconds.
    #[allow(clippy::disallowed_methods)]
    pub fn wall_us(&self) -> i64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64)
    }

    /// The wall clock in milliseconds.
    pub fn wall(&self) -> UnixMs {
        UnixMs(self.wall_us() / 1000)
    }

    /// The instant of a monotonic reading.
    pub fn instant(&self, mono_us: i64) -> Instant {
        self.origin + Duration::from_micros(mono_us.max(0) as u64)
    }
}

/// Redis's time, as a lower bound. Shared by all who judge due times.
#[derive(Debug)]
pub struct StoreClock {
    clock: Clock,
    /// Redis's microseconds minus monotonic ones; `i64::MIN` until first observed.
    offset: AtomicI64,
    steps: AtomicU64,
}

/// Taken before a request is sent, handed back with its reply.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    offset: i64,
    mono_us: i64,
}

impl StoreClock {
    /// A clock that knows nothing yet.
    pub fn new(clock: Clock) -> Self {
        Self { clock, offset: AtomicI64::new(i64::MIN), steps: AtomicU64::new(0) }
    }

    /// The machine's clocks it is built on.
    pub fn local(&self) -> Clock {
        self.clock
    }

    /// To be called before a request that will return `TIME` is sent.
    pub fn sending(&self) -> Sent {
        Sent { offset: self.offset.load(Ordering::Acquire), mono_us: self.clock.mono_us() }
    }

    /// Takes a reply's `TIME` (Unix microseconds), which arrived just now.
    /// Returns whether it proves that Redis's clock stepped back.
    pub fn observe(&self, time_us: i64, sent: Sent) -> bool {
        let offer = time_us - self.clock.mono_us();
        if sent.offset != i64::MIN && time_us < sent.mono_us + sent.offset {
            self.offset.store(offer, Ordering::Release);
            self.steps.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        self.offset.fetch_max(offer, Ordering::AcqRel);
        false
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
mod tests {
    use super::*;

    #[test]
    fn the_highest_offer_counts_and_a_late_reply_does_not_lower_it() {
        let clock = StoreClock::new(Clock::start());
        assert_eq!(clock.now_us(), None);
        assert!(!clock.is_due(UnixMs(0)), "nothing is due before the store was reached");
        let sent = clock.sending();
        assert!(!clock.observe(5_000_000_000_000, sent));
        let before = clock.now_us().unwrap_or_default();
        // A reply that was slow on its way offers less: sent when nothing was known, it proves nothing.
        assert!(!clock.observe(4_999_999_000_000, sent));
        assert!(clock.now_us().unwrap_or_default() >= before);
    }

    #[test]
    fn a_time_below_the_bound_at_sending_is_a_step_back() {
        let clock = StoreClock::new(Clock::start());
        clock.observe(5_000_000_000_000, clock.sending());
        assert!(clock.observe(4_000_000_000_000, clock.sending()));
        assert!(clock.now_us().unwrap_or_default() < 4_100_000_000_000);
        assert_eq!(clock.steps(), 1);
    }
}
