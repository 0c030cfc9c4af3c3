//! Free quota of each route's dead letters. It is counted once a second over all partitions, and between two
//! counts reduced by what this process keeps itself. The limits may therefore be exceeded by what other
//! replicas keep in a second, and by no more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::domain::{DeadLetterLimits, Route, RouteName};
use crate::store::Counts;

/// The dead-letter quota of all routes.
#[derive(Debug)]
pub struct DeadLetterQuota(BTreeMap<RouteName, RouteQuota>);

#[derive(Debug)]
struct RouteQuota {
    limits: DeadLetterLimits,
    messages: AtomicI64,
    bytes: AtomicI64,
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
        let quota = |route: &Arc<Route>| {
            let limits = route.policy.dead_letters;
            let messages = AtomicI64::new(whole(limits.max));
            let bytes = AtomicI64::new(whole(limits.max_bytes));
            (route.name.clone(), RouteQuota { limits, messages, bytes })
        };
        Arc::new(Self(routes.iter().map(quota).collect()))
    }

    /// Takes note of a count.
    pub fn counted(&self, route: &RouteName, counts: &Counts) -> QuotaState {
        let Some(quota) = self.0.get(route) else { return QuotaState { full: false, excess: 0 } };
        let max = whole(quota.limits.max);
        let max_bytes = whole(quota.limits.max_bytes);
        let messages = max - (counts.dead - counts.invalid);
        let bytes = max_bytes - (counts.dead_bytes - counts.invalid_bytes);
        quota.messages.store(messages, Ordering::Relaxed);
        quota.bytes.store(bytes, Ordering::Relaxed);
        let over = (counts.dead - max).clamp(0, counts.invalid.max(0)) as u64;
        QuotaState { full: messages <= 0 || bytes <= 0, excess: over.max(excess_by_bytes(counts, max_bytes)) }
    }

    /// Takes quota for one failed message of this size. `false` if there is none left.
    pub fn take(&self, route: &RouteName, bytes: usize) -> bool {
        let Some(quota) = self.0.get(route) else { return true };
        if quota.messages.load(Ordering::Relaxed) <= 0 || quota.bytes.load(Ordering::Relaxed) <= 0 {
            return false;
        }
        quota.messages.fetch_sub(1, Ordering::Relaxed);
        quota.bytes.fetch_sub(bytes as i64, Ordering::Relaxed);
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
    over.div_euclid(average).saturating_add(1).min(counts.invalid) as u64
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
        route.policy.dead_letters =
            DeadLetterLimits { max: 10, max_bytes: 1000, ..DeadLetterLimits::default() };
        let name = route.name.clone();
        (DeadLetterQuota::new(&[Arc::new(route)]), name)
    }

    fn counts(dead: i64, dead_bytes: i64, invalid: i64, invalid_bytes: i64) -> Counts {
        Counts { dead, dead_bytes, invalid, invalid_bytes, ..Counts::default() }
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
            assert_eq!(quota.counted(&name, &counts), QuotaState { full, excess }, "{counts:?}");
        }
    }

    #[test]
    fn between_two_counts_what_is_taken_counts() {
        let (quota, name) = quota();
        quota.counted(&name, &counts(8, 80, 0, 0));
        assert_eq!(
            [quota.take(&name, 10), quota.take(&name, 10), quota.take(&name, 10)],
            [true, true, false]
        );
        quota.counted(&name, &counts(8, 80, 0, 0));
        assert_eq!(
            [quota.take(&name, 5000), quota.take(&name, 1)],
            [true, false],
            "the last one may be large"
        );
    }
}
