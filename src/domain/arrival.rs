//! The moment of an arrival, by two clocks of which one may be wrong. Pure.
//!
//! A delay counts from its message's arrival. If the arrival were taken from a clock that is behind, the delay would
//! end too early once that clock is set right; taken from one that is an hour ahead, an hour too late. The monotonic
//! clock tells the two apart. A clock that moved against it has stepped, and the other clock counts until they agree
//! again or the stepped one is back. If that decides nothing, because the clocks have differed from the start or both
//! moved, the later one counts: late by their difference, never early.

use super::due::UnixMs;

/// A clock that moves by more than this against the monotonic one between two readings has stepped, microseconds.
/// Drift and the uncertainty about Redis's clock are far smaller.
const ARRIVAL_STEP_US: i64 = 100_000;

/// A moment that is not known to the millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// No clock places the arrival before this. A message without a delay is due then.
    pub earliest: UnixMs,
    /// No clock places the arrival after this. A delay counts from here.
    pub latest: UnixMs,
}

impl From<UnixMs> for Arrival {
    /// An arrival that is known exactly.
    fn from(at: UnixMs) -> Self {
        Self {
            earliest: at,
            latest: at,
        }
    }
}

/// The offsets of both clocks from the monotonic one when neither had stepped.
#[derive(Debug, Default)]
pub(super) struct SteadyClocks(Option<ClockOffsets>);

#[derive(Clone, Copy, Debug)]
struct ClockOffsets {
    store: i64,
    wall: i64,
}

impl SteadyClocks {
    /// The clock offset by which an arrival counts, given the offsets of the store's clock and the wall clock from
    /// the monotonic clock.
    pub(super) fn judge(&mut self, store: i64, wall: i64) -> i64 {
        let near = |a: i64, b: i64| a.abs_diff(b) <= ARRIVAL_STEP_US as u64;
        let now = ClockOffsets { store, wall };
        let Some(was) = &mut self.0 else {
            self.0 = Some(now);
            return store.max(wall);
        };
        let by_store = store.saturating_sub(was.store);
        let by_wall = wall.saturating_sub(was.wall);
        if near(by_store, by_wall) || near(store, wall) {
            *was = now;
            store.max(wall)
        } else if near(by_store, 0) {
            was.store = store;
            store
        } else if near(by_wall, 0) {
            was.wall = wall;
            wall
        } else {
            store.max(wall)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000_000;

    #[test]
    fn whichever_clock_has_stepped_does_not_count() {
        for by in [HOUR, -HOUR, 500_000, -500_000] {
            let mut steady = SteadyClocks::default();
            assert_eq!(
                steady.judge(1000, 3000),
                3000,
                "both go right, and one is a little ahead"
            );
            assert_eq!(steady.judge(by, 3000), 3000, "the store's stepped by {by}");
            assert_eq!(steady.judge(by, 2000), 2000);
            assert_eq!(steady.judge(1000, 2000), 2000, "and is back");
            assert_eq!(
                steady.judge(1000, by),
                1000,
                "the wall clock stepped by {by}"
            );
            assert_eq!(steady.judge(900, 2 * by), 900);
            assert_eq!(steady.judge(900, 1000), 1000);
        }
    }

    #[test]
    fn clocks_that_agree_are_believed_wherever_they_are() {
        let mut steady = SteadyClocks::default();
        steady.judge(HOUR, 0);
        assert_eq!(
            steady.judge(10, 0),
            10,
            "the store's was an hour ahead, and was set right"
        );
        assert_eq!(
            steady.judge(10 + HOUR, HOUR),
            10 + HOUR,
            "the machine slept"
        );
        assert_eq!(
            steady.judge(10 + HOUR, 0),
            10 + HOUR,
            "and then its clock stepped"
        );
    }

    #[test]
    fn the_later_counts_where_nothing_tells_them_apart() {
        let mut steady = SteadyClocks::default();
        assert_eq!(steady.judge(0, HOUR), HOUR, "from the start");
        assert_eq!(steady.judge(0, HOUR + 10), HOUR + 10);
        assert_eq!(steady.judge(-HOUR, 3 * HOUR), 3 * HOUR, "both moved");
    }

    #[test]
    fn drift_is_no_step_however_long_it_goes_on() {
        let mut steady = SteadyClocks::default();
        for n in 0..100 {
            assert_eq!(steady.judge(n * 20_000, 0), n * 20_000);
        }
        // The other clock drifts while the first one is not believed.
        for n in 0..100 {
            assert_eq!(steady.judge(HOUR, -n * 20_000), -n * 20_000);
        }
    }
}
