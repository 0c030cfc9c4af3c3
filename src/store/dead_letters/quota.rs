//! Free quota of each route's dead letters. It is counted once a second over all partitions, and reduced by what this
//! process has taken since, and shortly before: what was taken a moment before a count may not have been written when the
//! count was made. The limits may therefore be exceeded by what other replicas keep in a second, and by no more, unless a
//! write takes longer than [`WRITE_TIME`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::domain::{DeadLetterLimits, Route, RouteName};
use crate::store::Counts;

/// Time after which a dead letter for which quota was taken is written, and counts see it. A dead letter that a count has
/// seen earlier is subtracted twice until then, so a full quota is reached a little early, and never late.
const WRITE_TIME: Duration = Duration::from_secs(2);

/// The dead-letter quota of all routes.
#[derive(Debug)]
pub struct DeadLetterQuota(BTreeMap<RouteName, RouteQuota>);

#[derive(Debug)]
struct RouteQuota {
    limits: DeadLetterLimits,
    state: Mutex<QuotaLedger>,
}

/// An amount of dead letters.
#[derive(Clone, Copy, Debug, Default)]
struct DeadVolume {
    messages: i64,
    bytes: i64,
}

/// Dead letters that are kept of one route, and for which quota was taken.
#[derive(Debug, Default)]
struct QuotaLedger {
    /// Found by the last count.
    kept: DeadVolume,
    /// Total that was taken.
    taken: DeadVolume,
    /// Total that the last count has certainly seen.
    seen: DeadVolume,
    /// Totals taken at the moments of counts, the oldest first. The first one is the last that is older than
    /// [`WRITE_TIME`].
    marks: VecDeque<(Instant, DeadVolume)>,
}

impl QuotaLedger {
    /// Returns the rest of the limits.
    fn left(&self, limits: DeadLetterLimits) -> DeadVolume {
        let Self {
            kept, taken, seen, ..
        } = self;
        DeadVolume {
            messages: whole(limits.max) - kept.messages - (taken.messages - seen.messages),
            bytes: whole(limits.max_bytes) - kept.bytes - (taken.bytes - seen.bytes),
        }
    }

    /// Takes note of a count that was asked for at this moment.
    fn counted(&mut self, kept: DeadVolume, asked_at: Instant) {
        while let Some((at, _)) = self.marks.get(1)
            && *at + WRITE_TIME <= asked_at
        {
            self.marks.pop_front();
        }
        if let Some((at, taken)) = self.marks.front()
            && *at + WRITE_TIME <= asked_at
        {
            self.seen = *taken;
        }
        self.kept = kept;
        self.marks.push_back((Instant::now(), self.taken));
    }
}

/// How far a route's dead-letter quota is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaState {
    /// Failed messages alone have reached a limit: no other may become a dead letter.
    pub full: bool,
    /// Number of invalid dead letters that must go, the oldest first, to be within the limits.
    pub excess: u64,
}

impl DeadLetterQuota {
    /// The full quota, until the first count.
    pub fn new(routes: &[Arc<Route>]) -> Arc<Self> {
        let mut quotas = BTreeMap::new();
        for route in routes {
            let quota = RouteQuota {
                limits: route.policy.dead_letters,
                state: Mutex::default(),
            };
            quotas.insert(route.name.clone(), quota);
        }
        Arc::new(Self(quotas))
    }

    /// Takes note of a count that was asked for at this moment.
    pub fn counted(&self, route: &RouteName, counts: &Counts, asked_at: Instant) -> QuotaState {
        let Some(quota) = self.0.get(route) else {
            return QuotaState {
                full: false,
                excess: 0,
            };
        };
        let max = whole(quota.limits.max);
        let max_bytes = whole(quota.limits.max_bytes);
        let kept = DeadVolume {
            messages: counts.dead - counts.invalid,
            bytes: counts.dead_bytes - counts.invalid_bytes,
        };
        quota.state.lock().counted(kept, asked_at);
        let over = (counts.dead - max).clamp(0, counts.invalid.max(0)) as u64;
        QuotaState {
            full: kept.messages >= max || kept.bytes >= max_bytes,
            excess: over.max(excess_by_bytes(counts, max_bytes)),
        }
    }

    /// Takes quota for one failed message of this size. `false` if there is none left.
    pub fn take(&self, route: &RouteName, bytes: usize) -> bool {
        let Some(quota) = self.0.get(route) else {
            return true;
        };
        let mut state = quota.state.lock();
        let left = state.left(quota.limits);
        if left.messages <= 0 || left.bytes <= 0 {
            return false;
        }
        state.taken.messages += 1;
        state.taken.bytes += bytes as i64;
        true
    }
}

/// How many invalid dead letters of average size make up for the bytes above the limit.
fn excess_by_bytes(counts: &Counts, max_bytes: i64) -> u64 {
    let over = counts.dead_bytes - max_bytes;
    if over <= 0 || counts.invalid <= 0 {
        return 0;
    }
    let average = (counts.invalid_bytes / counts.invalid).max(1);
    over.div_euclid(average)
        .saturating_add(1)
        .min(counts.invalid) as u64
}

fn whole(limit: u64) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::testing;

    fn quota() -> (Arc<DeadLetterQuota>, RouteName) {
        let mut route = Route::clone(&testing::route());
        route.policy.dead_letters = DeadLetterLimits {
            max: 10,
            max_bytes: 1000,
            ..DeadLetterLimits::default()
        };
        let name = route.name.clone();
        (DeadLetterQuota::new(&[Arc::new(route)]), name)
    }

    fn counts(dead: i64, dead_bytes: i64, invalid: i64, invalid_bytes: i64) -> Counts {
        Counts {
            dead,
            dead_bytes,
            invalid,
            invalid_bytes,
            ..Counts::default()
        }
    }

    #[test]
    fn failed_ones_alone_make_it_full_and_invalid_ones_give_way() {
        let (quota, name) = quota();
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
            let state = quota.counted(&name, &counts, Instant::now());
            assert_eq!(state, QuotaState { full, excess }, "{counts:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_taken_counts_until_a_count_has_certainly_seen_it() {
        let (quota, name) = quota();
        let take = |bytes: usize| quota.take(&name, bytes);
        let count =
            |dead: i64| quota.counted(&name, &counts(dead, 10 * dead, 0, 0), Instant::now());
        count(8);
        assert_eq!([take(10), take(10), take(10)], [true, true, false]);
        // A count that was made before the two were written, as often as it is repeated.
        for _ in 0..3 {
            count(8);
            assert!(!take(10), "the two are on their way");
            tokio::time::advance(WRITE_TIME / 4).await;
        }
        count(10);
        assert!(!take(10));
        tokio::time::advance(WRITE_TIME).await;
        // They were redriven.
        count(8);
        assert_eq!(
            [take(5000), take(1)],
            [true, false],
            "the last one may be large"
        );
        tokio::time::advance(WRITE_TIME * 2).await;
        count(9);
        assert_eq!(
            [take(10), take(10)],
            [false, false],
            "the large one was taken after the count before"
        );
        tokio::time::advance(WRITE_TIME).await;
        count(9);
        assert_eq!([take(10), take(10)], [true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn moments_of_counts_are_few() {
        let (quota, name) = quota();
        for _ in 0..1000 {
            quota.counted(&name, &counts(0, 0, 0, 0), Instant::now());
            tokio::time::advance(WRITE_TIME / 4).await;
        }
        assert!(quota.0[&name].state.lock().marks.len() <= 6);
    }
}
