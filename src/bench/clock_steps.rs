//! Detection of steps of this machine's wall clock during a measurement.

use parking_lot::Mutex;

use crate::domain::Clock;

/// Least difference that counts as a step, microseconds. A clock that is only slewed differs less between two checks.
const MIN_STEP_US: i64 = 5_000;
/// Most attempts to read both clocks at one moment.
const MAX_READINGS: usize = 10;
/// Longest time between two readings that count as one moment, microseconds.
const CLOSE_READING_US: i64 = 200;

/// Compares the wall clock with the monotonic one.
pub(super) struct StepDetector {
    clock: Clock,
    last: Mutex<ClockOffset>,
}

/// Difference between the wall clock and the monotonic one: its lower and upper bound.
#[derive(Clone, Copy)]
struct ClockOffset {
    low_us: i64,
    high_us: i64,
}

impl StepDetector {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            last: Mutex::new(read(clock)),
        }
    }

    /// The microseconds by which the clock was surely stepped since the last call; 0 if it was not.
    pub(super) fn step_us(&self) -> i64 {
        let now = read(self.clock);
        let last = std::mem::replace(&mut *self.last.lock(), now);
        step(last, now)
    }
}

fn read(clock: Clock) -> ClockOffset {
    let mut best = ClockOffset {
        low_us: i64::MIN / 2,
        high_us: i64::MAX / 2,
    };
    for _ in 0..MAX_READINGS {
        let before = clock.mono_us();
        let wall = clock.wall_us();
        let after = clock.mono_us();
        if after - before < best.high_us - best.low_us {
            best = ClockOffset {
                low_us: wall - after,
                high_us: wall - before,
            };
        }
        if after - before <= CLOSE_READING_US {
            break;
        }
    }
    best
}

fn step(last: ClockOffset, now: ClockOffset) -> i64 {
    let forward = now.low_us - last.high_us;
    let back = now.high_us - last.low_us;
    if forward > MIN_STEP_US {
        forward
    } else if back < -MIN_STEP_US {
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
        let at = |low_us, high_us| ClockOffset { low_us, high_us };
        let cases = [
            (at(0, 10), at(100, 110), 0),
            (at(0, 10), at(6_000, 6_010), 5_990),
            (at(0, 10), at(-6_000, -5_990), -5_990),
            // A reading that took long says little.
            (at(0, 10), at(-9_000, 9_000), 0),
            (
                at(0, 10),
                at(-3_600_000_000, -3_599_990_000),
                -3_599_990_000,
            ),
        ];
        for (last, now, expected) in cases {
            assert_eq!(step(last, now), expected);
        }
    }
}
