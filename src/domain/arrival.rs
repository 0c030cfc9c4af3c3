//! When something arrived, by two clocks of which one may be wrong. Pure.
//!
//! A delay counts from its message's arrival. Counted from a clock that is behind it would end too early once that clock
//! is set right; from one that is an hour ahead, an hour too late. The monotonic clock tells them apart: whichever of the
//! two moved against it has stepped, and the other one counts until they agree again or it is back. Where that says
//! nothing (they have differed from the start, or both moved) the later one counts: late by their difference, never early.

use super::due::UnixMs;

/// A clock that moves by more than this against the monotonic one between two looks has stepped, microseconds. Drift and
/// the bounds of what is known of Redis's clock are far below.
const STEP_US: i64 = 100_000;

/// A moment that is not known to the millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// By any clock it was not before this: what has nothing to wait for is due then.
    pub earliest: UnixMs,
    /// It was not after this: a delay counts from here.
    pub latest: UnixMs,
}

impl From<UnixMs> for Arrival {
    /// One that is known.
    fn from(at: UnixMs) -> Self {
        Self { earliest: at, latest: at }
    }
}

/// Where both clocks stood, against the monotonic one, when neither had stepped.
#[derive(Debug, Default)]
pub(super) struct Steady(Option<Offsets>);

#[derive(Clone, Copy, Debug)]
struct Offsets {
    store: i64,
    wall: i64,
}

impl Steady {
    /// Of what the store's clock and the wall clock show, both minus the monotonic clock, what an arrival counts by.
    pub(super) fn judge(&mut self, store: i64, wall: i64) -> i64 {
        let near = |a: i64, b: i64| a.abs_diff(b) <= STEP_US as u64;
        let now = Offsets { store, wall };
        let Some(was) = &mut self.0 else {
            self.0 = Some(now);
            return store.max(wall);
        };
        let (by_store, by_wall) = (store.saturating_sub(was.store), wall.saturating_sub(was.wall));
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
            let mut steady = Steady::default();
            assert_eq!(steady.judge(1000, 3000), 3000, "both go right, and one is a little ahead");
            assert_eq!(steady.judge(by, 3000), 3000, "the store's stepped by {by}");
            assert_eq!(steady.judge(by, 2000), 2000);
            assert_eq!(steady.judge(1000, 2000), 2000, "and is back");
            assert_eq!(steady.judge(1000, by), 1000, "the wall clock stepped by {by}");
            assert_eq!(steady.judge(900, 2 * by), 900);
            assert_eq!(steady.judge(900, 1000), 1000);
        }
    }

    #[test]
    fn clocks_that_agree_are_believed_wherever_they_are() {
        let mut steady = Steady::default();
        steady.judge(HOUR, 0);
        assert_eq!(steady.judge(10, 0), 10, "the store's was an hour ahead, and was set right");
        assert_eq!(steady.judge(10 + HOUR, HOUR), 10 + HOUR, "the machine slept");
        assert_eq!(steady.judge(10 + HOUR, 0), 10 + HOUR, "and then its clock stepped");
    }

    #[test]
    fn the_later_counts_where_nothing_tells_them_apart() {
        let mut steady = Steady::default();
        assert_eq!(steady.judge(0, HOUR), HOUR, "from the start");
        assert_eq!(steady.judge(0, HOUR + 10), HOUR + 10);
        assert_eq!(steady.judge(-HOUR, 3 * HOUR), 3 * HOUR, "both moved");
    }

    #[test]
    fn drift_is_no_step_however_long_it_goes_on() {
        let mut steady = Steady::default();
        for n in 0..100 {
            assert_eq!(steady.judge(n * 20_000, 0), n * 20_000);
        }
        // The other one, while this one cannot be believed.
        for n in 0..100 {
            assert_eq!(steady.judge(HOUR, -n * 20_000), -n * 20_000);
        }
    }
}
