//! How much room each route's dead letters have left: counted once a second over all partitions, and between
//! two counts by what this process keeps itself. So the limits may be overshot by what other replicas keep in
//! a second, and by no more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::domain::{DeadLetterLimits, Route, RouteName};
use crate::store::Counts;

/// The room of all routes.
#[derive(Debug)]
pub struct DeadRoom(BTreeMap<RouteName, Room>);

#[derive(Debug)]
struct Room {
    limits: DeadLetterLimits,
    letters: AtomicI64,
    bytes: AtomicI64,
}

/// How full a route's dead letters are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fullness {
    /// Failed messages alone have reached a limit: no other may become one.
    pub full: bool,
    /// So many invalid ones must go, the oldest first, to be within the limits.
    pub excess: u64,
}

impl DeadRoom {
    /// Empty graves, until the first count.
    pub fn new(routes: &[Arc<Route>]) -> Arc<Self> {
        let room = |route: &Arc<Route>| {
            let limits = route.policy.dead_letters;
            let (letters, bytes) =
                (AtomicI64::new(whole(limits.max)), AtomicI64::new(whole(limits.max_bytes)));
            (route.name.clone(), Room { limits, letters, bytes })
        };
        Arc::new(Self(routes.iter().map(room).collect()))
    }

    /// Takes note of a count.
    pub fn counted(&self, route: &RouteName, counts: &Counts) -> Fullness {
        let Some(room) = self.0.get(route) else { return Fullness { full: false, excess: 0 } };
        let (max, max_bytes) = (whole(room.limits.max), whole(room.limits.max_bytes));
        let letters = max - (counts.dead - counts.invalid);
        let bytes = max_bytes - (counts.dead_bytes - counts.invalid_bytes);
        room.letters.store(letters, Ordering::Relaxed);
        room.bytes.store(bytes, Ordering::Relaxed);
        let over = (counts.dead - max).clamp(0, counts.invalid.max(0)) as u64;
        Fullness { full: letters <= 0 || bytes <= 0, excess: over.max(excess_by_bytes(counts, max_bytes)) }
    }

    /// Takes room for one failed message of this size; `false` if there is none.
    pub fn take(&self, route: &RouteName, bytes: usize) -> bool {
        let Some(room) = self.0.get(route) else { return true };
        if room.letters.load(Ordering::Relaxed) <= 0 || room.bytes.load(Ordering::Relaxed) <= 0 {
            return false;
        }
        room.letters.fetch_sub(1, Ordering::Relaxed);
        room.bytes.fetch_sub(bytes as i64, Ordering::Relaxed);
        true
    }
}

/// How many invalid ones of average size make up for the bytes that are too many.
fn excess_by_bytes(counts: &Counts, max_bytes: i64) -> u64 {
    let over = counts.dead_bytes - max_bytes;
    if over <= 0 || counts.invalid <= 0 {
        return 0;
    }
    let average = (counts.invalid_bytes / counts.invalid).max(1);
    over.div_euclid(average).saturating_add(1).min(counts.invalid) as u64
}

fn whole(limit: u64) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::testing;

    fn room() -> (Arc<DeadRoom>, RouteName) {
        let mut route = Route::clone(&testing::route());
        route.policy.dead_letters =
            DeadLetterLimits { max: 10, max_bytes: 1000, ..DeadLetterLimits::default() };
        let name = route.name.clone();
        (DeadRoom::new(&[Arc::new(route)]), name)
    }

    fn counts(dead: i64, dead_bytes: i64, invalid: i64, invalid_bytes: i64) -> Counts {
        Counts { dead, dead_bytes, invalid, invalid_bytes, ..Counts::default() }
    }

    #[test]
    fn failed_ones_alone_make_it_full_and_invalid_ones_give_way() {
        let (room, name) = room();
        for (counts, full, excess) in [
            (counts(9, 100, 0, 0), false, 0),
            (counts(10, 100, 0, 0), true, 0),
            (counts(10, 100, 10, 100), false, 0),
            (counts(14, 140, 10, 100), false, 4),
            (counts(14, 140, 2, 20), true, 2),
            (counts(3, 1000, 0, 0), true, 0),
            (counts(5, 1100, 4, 400), false, 2),
            (counts(5, 9000, 4, 400), true, 4),
        ] {
            assert_eq!(room.counted(&name, &counts), Fullness { full, excess }, "{counts:?}");
        }
    }

    #[test]
    fn between_two_counts_what_is_taken_counts() {
        let (room, name) = room();
        room.counted(&name, &counts(8, 80, 0, 0));
        assert_eq!([room.take(&name, 10), room.take(&name, 10), room.take(&name, 10)], [true, true, false]);
        room.counted(&name, &counts(8, 80, 0, 0));
        assert_eq!([room.take(&name, 5000), room.take(&name, 1)], [true, false], "the last one may be large");
    }
}
