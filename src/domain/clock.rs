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
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::arrival::{Arrival, Steady};
use super::due::UnixMs;

/// Redis's clock has stepped back when it is behind what drift allows by more than this (microseconds), and so has that
/// of a new master; by less, it is only another clock.
const STEP_US: i64 = 500_000;
/// Clocks drift apart by less than one microsecond in so many: twice what a clock that is being slewed does.
const DRIFT: i64 = 1000;

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
        let us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64);
        us + shifted::us()
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
mod tests {
    use super::*;

    #[test]
    fn the_highest_offer_counts_and_a_late_reply_does_not_lower_it() {
        let clock = StoreClock::new(Clock::start());
        assert_eq!(clock.now_us(), None);
        assert!(!clock.is_due(UnixMs(0)), "nothing is due before the store was reached");
        let sent = clock.sending(0);
        assert!(!clock.observe(5_000_000_000_000, sent));
        let before = clock.now_us().unwrap_or_default();
        // A reply that was slow on its way offers less: sent when nothing was known, it proves nothing.
        assert!(!clock.observe(4_999_999_000_000, sent));
        assert!(clock.now_us().unwrap_or_default() >= before);
    }

    #[test]
    fn an_arrival_is_never_placed_before_the_moment_it_may_have_been() {
        let clock = StoreClock::new(Clock::start());
        let ahead = clock.local().wall_us() + 3_600_000_000;
        let sent = Sent { mono_us: clock.local().mono_us() - 20_000, ..clock.sending(0) };
        // Read at any moment of the 20 ms that the trip took: as late as its end, and then this is what it is now.
        clock.observe(ahead, sent);
        let (low, high) = (clock.now(), clock.arrival().latest);
        assert!(high.since(low) >= 20, "{low} {high}");
        // A quick trip says more.
        clock.observe(ahead + 20_000, clock.sending(0));
        assert!(clock.arrival().latest.since(clock.now()) < 20);
        // A Redis that is behind may be the one that is wrong, and be set right before the delay is over.
        clock.observe(4_000_000_000_000, clock.sending(0));
        assert!(clock.now() < UnixMs(4_100_000_000), "a step back takes the bound");
        let (arrival, wall) = (clock.arrival().latest, clock.local().wall());
        assert!(clock.is_due(clock.arrival().earliest), "due by any clock");
        assert!(arrival > UnixMs(ahead / 1000 - 3_600_000) && arrival <= wall.plus(1), "{arrival} {wall}");
    }

    #[test]
    fn the_slowest_of_several_clocks_counts_and_is_no_step() {
        let clock = StoreClock::new(Clock::start());
        let at = 5_000_000_000_000;
        clock.observe(at, clock.sending(1));
        // Each goes on by itself, and 1 is an hour ahead of 2 from here on.
        let hour = 3_600_000_000;
        for on in [0, hour, 2 * hour] {
            assert!(!clock.observe(at + on - 5000, clock.sending(2)), "another clock, 5 ms behind");
            assert!(!clock.observe(at + on + hour, clock.sending(1)));
        }
        let bound = clock.now_us().unwrap_or_default();
        assert!(bound >= at + 2 * hour - 5000 && bound < at + 3 * hour, "{bound}");
        clock.follow(&[1]);
        assert!(clock.now_us().unwrap_or_default() >= at + 3 * hour, "the slow one has left");
        // A master that takes over with a clock far behind: claims made by the old one's mean nothing to it.
        clock.follow(&[3]);
        assert!(clock.now_us().is_some(), "until it says something, what was known stays");
        assert!(clock.observe(at - hour, clock.sending(3)));
        assert!(clock.now_us().unwrap_or_default() < at);
        assert_eq!(clock.steps(), 1);
    }

    #[test]
    fn a_time_far_below_the_bound_at_sending_is_a_step_back() {
        let clock = StoreClock::new(Clock::start());
        clock.observe(5_000_000_000_000, clock.sending(0));
        assert!(clock.observe(4_000_000_000_000, clock.sending(0)));
        assert!(clock.now_us().unwrap_or_default() < 4_100_000_000_000);
        assert_eq!(clock.steps(), 1);
    }

    #[test]
    fn each_master_of_a_cluster_is_asked_by_its_own_time() {
        let clock = StoreClock::new(Clock::start());
        let (at, hour) = (5_000_000_000_000, 3_600_000_000);
        clock.observe(at, clock.sending(1));
        clock.observe(at - hour, clock.sending(2));
        assert!(clock.now() < UnixMs(at / 1000 - 3_500_000));
        assert_eq!(clock.now_of(2), clock.now());
        assert!(clock.now_of(1) >= UnixMs(at / 1000), "not by the slowest");
        assert_eq!(clock.now_of(3), clock.now(), "one that has said nothing yet");
    }

    /// A Redis and a replica whose clocks drift apart, in simulated time, microseconds.
    struct Drifting {
        clock: StoreClock,
        rng: fastrand::Rng,
        ppm: i64,
        /// Longest part of a round trip, there or back.
        leg_us: i64,
        mono_us: i64,
        stepped_us: i64,
    }

    impl Drifting {
        fn redis_us(&self, mono_us: i64) -> i64 {
            5_000_000_000_000_000 + self.stepped_us + mono_us + mono_us * self.ppm / 1_000_000
        }

        /// One request: whether it shows a step, and how long it was on its way there.
        fn ask(&mut self) -> (bool, i64) {
            let mut leg = || self.rng.i64(self.leg_us / 20..=self.leg_us);
            let (out, back) = (leg(), leg());
            let sent = self.clock.sending_at(0, self.mono_us);
            let time = self.redis_us(self.mono_us + out);
            self.mono_us += out + back;
            (self.clock.observe_at(time, sent, self.mono_us), out)
        }

        fn bound_us(&self) -> i64 {
            self.mono_us + self.clock.offset.load(Ordering::Relaxed)
        }
    }

    /// Every drift between two clocks that are not alike, on every kind of way.
    fn all_drifts() -> impl Iterator<Item = Drifting> {
        let ways = [40, 500, 5_000, 200_000];
        let drifts = [-500, -200, -50, -20, -10, -1, 0, 1, 10, 50, 500];
        ways.into_iter().flat_map(move |leg_us| {
            drifts.into_iter().map(move |ppm| Drifting {
                clock: StoreClock::new(Clock::start()),
                rng: fastrand::Rng::with_seed(leg_us as u64),
                ppm,
                leg_us,
                mono_us: 0,
                stepped_us: 0,
            })
        })
    }

    const HOUR: i64 = 3_600_000_000;

    #[test]
    fn interleaving_13_clocks_that_drift_apart_never_step_and_the_bound_is_never_ahead() {
        for mut world in all_drifts() {
            let what = format!("{} ppm, {} us", world.ppm, world.leg_us);
            while world.mono_us < 3 * HOUR {
                let (stepped, out) = world.ask();
                assert!(!stepped, "{what}");
                let ahead = world.bound_us() - world.redis_us(world.mono_us);
                assert!(ahead <= out + world.leg_us / 100 + 2, "{what}: ahead by {ahead}, the way there {out}");
                // Mostly a second, now and then a minute; once Redis is away for an hour.
                let pause = if world.rng.u8(..) == 0 { 60_000_000 } else { 1_000_000 };
                let away = (HOUR..HOUR + 1_000_000).contains(&world.mono_us);
                world.mono_us += if away { HOUR } else { pause };
                let lost = world.ppm.abs() * pause.max(if away { HOUR } else { 0 }) / 1_000_000;
                let ahead = world.bound_us() - world.redis_us(world.mono_us);
                assert!(ahead <= out + lost + world.leg_us / 100 + 2, "{what}: ahead by {ahead} before the next");
            }
            assert_eq!(world.clock.steps(), 0, "{what}");
        }
    }

    #[test]
    fn interleaving_13_a_step_of_a_second_or_an_hour_is_seen_beside_any_drift() {
        for mut world in all_drifts() {
            let what = format!("{} ppm, {} us", world.ppm, world.leg_us);
            for (back_us, forward_us) in [(1_000_000, 0), (HOUR, 0), (HOUR, HOUR), (1_500_000, 60_000_000)] {
                for _ in 0..600 {
                    assert!(!world.ask().0, "{what}");
                    world.mono_us += 1_000_000;
                }
                world.stepped_us -= back_us;
                assert!(world.ask().0, "{what}: back by {back_us}");
                assert!(world.bound_us() <= world.redis_us(world.mono_us), "{what}: at once");
                world.stepped_us += forward_us;
                assert!(!world.ask().0, "{what}: forward again");
            }
            assert_eq!(world.clock.steps(), 4, "{what}");
        }
    }
}
