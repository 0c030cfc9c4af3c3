//! Whether this machine's wall clock was stepped while something was measured.

use parking_lot::Mutex;

use crate::domain::Clock;

/// No clock that is only slewed goes this much wrong between two looks, microseconds.
const STEP_US: i64 = 5_000;
/// Readings until both clocks were surely read at one moment, and how far apart they may be then.
const READINGS: usize = 10;
const CLOSE_US: i64 = 200;

/// Looks at the wall clock beside the monotonic one.
pub(super) struct Steps {
    clock: Clock,
    last: Mutex<Offset>,
}

/// The wall clock minus the monotonic one, at least and at most.
#[derive(Clone, Copy)]
struct Offset {
    low_us: i64,
    high_us: i64,
}

impl Steps {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, last: Mutex::new(read(clock)) }
    }

    /// By how many microseconds the clock was surely stepped since the last look; 0 if it was not.
    pub(super) fn look(&self) -> i64 {
        let now = read(self.clock);
        let last = std::mem::replace(&mut *self.last.lock(), now);
        step(last, now)
    }
}

fn read(clock: Clock) -> Offset {
    let mut best = Offset { low_us: i64::MIN / 2, high_us: i64::MAX / 2 };
    for _ in 0..READINGS {
        let before = clock.mono_us();
        let wall = clock.wall_us();
        let after = clock.mono_us();
        if after - before < best.high_us - best.low_us {
            best = Offset { low_us: wall - after, high_us: wall - before };
        }
        if after - before <= CLOSE_US {
            break;
        }
    }
    best
}

fn step(last: Offset, now: Offset) -> i64 {
    let (forward, back) = (now.low_us - last.high_us, now.high_us - last.low_us);
    if forward > STEP_US {
        forward
    } else if back < -STEP_US {
        back
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_one_only_beyond_what_the_readings_leave_open() {
        let at = |low_us, high_us| Offset { low_us, high_us };
        let cases = [
            (at(0, 10), at(100, 110), 0),
            (at(0, 10), at(6_000, 6_010), 5_990),
            (at(0, 10), at(-6_000, -5_990), -5_990),
            // A reading that took long says little.
            (at(0, 10), at(-9_000, 9_000), 0),
            (at(0, 10), at(-3_600_000_000, -3_599_990_000), -3_599_990_000),
        ];
        for (last, now, expected) in cases {
            assert_eq!(step(last, now), expected);
        }
    }
}
