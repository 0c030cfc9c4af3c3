//! Tests of the bound on Redis's time, and of steps.

use super::*;

#[test]
fn the_highest_offer_counts_and_a_late_reply_does_not_lower_it() {
    let clock = StoreClock::new(Clock::start());
    assert_eq!(clock.now_us(), None);
    assert!(
        !clock.is_due(UnixMs(0)),
        "nothing is due before the store was reached"
    );
    let sent = clock.sending(0);
    assert!(!clock.observe(5_000_000_000_000, sent));
    let before = clock.now_us().unwrap_or_default();
    // A slow reply offers less. Its request was sent when nothing was known, so it proves nothing.
    assert!(!clock.observe(4_999_999_000_000, sent));
    assert!(clock.now_us().unwrap_or_default() >= before);
}

#[test]
fn an_arrival_is_never_placed_before_the_moment_it_may_have_been() {
    let clock = StoreClock::new(Clock::start());
    let ahead = clock.local().wall_us() + 3_600_000_000;
    let sent = TimeRequest {
        mono_us: clock.local().mono_us() - 20_000,
        ..clock.sending(0)
    };
    // Redis read its clock at any moment of the 20 ms round trip, possibly at its end; then that is the time now.
    clock.observe(ahead, sent);
    let low = clock.now();
    let high = clock.arrival().latest;
    assert!(high.since(low) >= 20, "{low} {high}");
    // A quick round trip narrows the bound.
    clock.observe(ahead + 20_000, clock.sending(0));
    assert!(clock.arrival().latest.since(clock.now()) < 20);
    // A Redis that is behind may be the wrong clock, and be set right before the delay is over.
    clock.observe(4_000_000_000_000, clock.sending(0));
    assert!(
        clock.now() < UnixMs(4_100_000_000),
        "a step back takes the bound"
    );
    let arrival = clock.arrival().latest;
    let wall = clock.local().wall();
    assert!(clock.is_due(clock.arrival().earliest), "due by any clock");
    assert!(
        arrival > UnixMs(ahead / 1000 - 3_600_000) && arrival <= wall.plus(1),
        "{arrival} {wall}"
    );
}

#[test]
fn the_slowest_of_several_clocks_counts_and_is_no_step() {
    let clock = StoreClock::new(Clock::start());
    let at = 5_000_000_000_000;
    clock.observe(at, clock.sending(1));
    // Each clock goes on by itself, and 1 is an hour ahead of 2 from here on.
    let hour = 3_600_000_000;
    for on in [0, hour, 2 * hour] {
        assert!(
            !clock.observe(at + on - 5000, clock.sending(2)),
            "another clock, 5 ms behind"
        );
        assert!(!clock.observe(at + on + hour, clock.sending(1)));
    }
    let bound = clock.now_us().unwrap_or_default();
    assert!(
        bound >= at + 2 * hour - 5000 && bound < at + 3 * hour,
        "{bound}"
    );
    clock.follow(&[1]);
    assert!(
        clock.now_us().unwrap_or_default() >= at + 3 * hour,
        "the slow one has left"
    );
    // A master with a clock far behind takes over: claims by the old clock mean nothing to it.
    clock.follow(&[3]);
    assert!(
        clock.now_us().is_some(),
        "until it says something, what was known stays"
    );
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
    let at = 5_000_000_000_000;
    let hour = 3_600_000_000;
    clock.observe(at, clock.sending(1));
    clock.observe(at - hour, clock.sending(2));
    assert!(clock.now() < UnixMs(at / 1000 - 3_500_000));
    assert_eq!(clock.now_of(2), clock.now());
    assert!(clock.now_of(1) >= UnixMs(at / 1000), "not by the slowest");
    assert_eq!(
        clock.now_of(3),
        clock.now(),
        "one that has said nothing yet"
    );
}

/// A Redis and a replica whose clocks drift apart, in simulated time, microseconds.
struct Drifting {
    clock: StoreClock,
    rng: fastrand::Rng,
    ppm: i64,
    /// Longest one-way trip.
    leg_us: i64,
    mono_us: i64,
    stepped_us: i64,
}

impl Drifting {
    fn redis_us(&self, mono_us: i64) -> i64 {
        5_000_000_000_000_000 + self.stepped_us + mono_us + mono_us * self.ppm / 1_000_000
    }

    /// Makes one request. Returns whether it shows a step, and the time of its way there.
    fn ask(&mut self) -> (bool, i64) {
        let mut leg = || self.rng.i64(self.leg_us / 20..=self.leg_us);
        let out = leg();
        let back = leg();
        let sent = self.clock.sending_at(0, self.mono_us);
        let time = self.redis_us(self.mono_us + out);
        self.mono_us += out + back;
        (self.clock.observe_at(time, sent, self.mono_us), out)
    }

    fn bound_us(&self) -> i64 {
        self.mono_us + self.clock.offset.load(Ordering::Relaxed)
    }
}

/// Every drift between two clocks, on every kind of link.
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
            assert!(
                ahead <= out + world.leg_us / 100 + 2,
                "{what}: ahead by {ahead}, the way there {out}"
            );
            // Mostly a second, now and then a minute; once Redis is away for an hour.
            let pause = if world.rng.u8(..) == 0 {
                60_000_000
            } else {
                1_000_000
            };
            let away = (HOUR..HOUR + 1_000_000).contains(&world.mono_us);
            world.mono_us += if away { HOUR } else { pause };
            let lost = world.ppm.abs() * pause.max(if away { HOUR } else { 0 }) / 1_000_000;
            let ahead = world.bound_us() - world.redis_us(world.mono_us);
            assert!(
                ahead <= out + lost + world.leg_us / 100 + 2,
                "{what}: ahead by {ahead} before the next"
            );
        }
        assert_eq!(world.clock.steps(), 0, "{what}");
    }
}

#[test]
fn interleaving_13_a_step_of_a_second_or_an_hour_is_seen_beside_any_drift() {
    for mut world in all_drifts() {
        let what = format!("{} ppm, {} us", world.ppm, world.leg_us);
        for (back_us, forward_us) in [
            (1_000_000, 0),
            (HOUR, 0),
            (HOUR, HOUR),
            (1_500_000, 60_000_000),
        ] {
            for _ in 0..600 {
                assert!(!world.ask().0, "{what}");
                world.mono_us += 1_000_000;
            }
            world.stepped_us -= back_us;
            assert!(world.ask().0, "{what}: back by {back_us}");
            assert!(
                world.bound_us() <= world.redis_us(world.mono_us),
                "{what}: at once"
            );
            world.stepped_us += forward_us;
            assert!(!world.ask().0, "{what}: forward again");
        }
        assert_eq!(world.clock.steps(), 4, "{what}");
    }
}

#[test]
fn a_holder_stops_before_the_lease_is_over_by_a_clock_that_is_faster() {
    for lease_us in [1_000_000, 10_000_000, 600_000_000] {
        let relied_on_us = Clock::within(lease_us);
        // By the faster clock, a microsecond in a thousand.
        let over_us = relied_on_us + relied_on_us / DRIFT_DIVISOR;
        assert!(over_us <= lease_us, "{over_us} of {lease_us}");
        assert!(
            lease_us - over_us <= lease_us / 100_000,
            "and gives away no more than that: {over_us} of {lease_us}"
        );
    }
}
