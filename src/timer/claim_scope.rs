//! The part of the due bundles that this replica may claim.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Shard;
use crate::cluster::OwnedPartitions;
use crate::domain::{Partition, UnixMs};
use crate::store::Head;

/// Longest time between two polls. Polling alone delivers every message, with or without wake-ups.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The bundles that one poll may claim.
pub(super) struct ClaimScope {
    pub(super) owned: Arc<OwnedPartitions>,
    /// Partitions that are served in this poll regardless of their owner.
    pub(super) near: BTreeSet<Partition>,
    /// Bundles due by then are claimed where this replica serves their partition.
    pub(super) until: UnixMs,
    /// Bundles due by then are claimed regardless of their owner.
    pub(super) overdue: UnixMs,
}

impl ClaimScope {
    /// Reports whether this poll may claim the head: due by `until` in a partition that is ours, or overdue in any.
    pub(super) fn may_claim(&self, head: &Head) -> bool {
        head.due <= self.until && (self.is_ours(head) || head.due <= self.overdue)
    }

    /// Reports whether this poll reads the partition.
    pub(super) fn polls(&self, p: Partition) -> bool {
        self.owned.serves_any(p) || self.near.contains(&p)
    }

    pub(super) fn is_ours(&self, head: &Head) -> bool {
        self.serves(head.partition, head.route())
    }

    /// Reports whether this replica serves a route in a partition.
    pub(super) fn serves(&self, p: Partition, route: &str) -> bool {
        self.owned.serves(p, route) || self.near.contains(&p)
    }

    /// The wait until the next poll. `horizon_ms` is the claim horizon of this one.
    ///
    /// The wait ends when the first bundle that was left comes within `horizon_ms` of its due time, but is never
    /// shorter than a quarter of the horizon: a crowd of bundles must not cause a poll each. After a poll that claims
    /// something it is at most three quarters of the horizon: the next bundle of a due set is hidden behind its head.
    pub(super) fn rest(&self, heads: &[Head], now: UnixMs, horizon_ms: i64) -> Duration {
        let ms = |ms: i64| Duration::from_millis(ms.max(1) as u64).min(POLL_INTERVAL);
        let part = |quarters: i64| ms(horizon_ms * quarters / 4);
        let most = if heads.iter().any(|head| self.may_claim(head)) {
            part(3)
        } else {
            POLL_INTERVAL
        };
        let left = heads
            .iter()
            .filter(|head| head.due > self.until && self.is_ours(head));
        left.map(|head| head.due).min().map_or(most, |due| {
            ms(due.since(now) - horizon_ms).clamp(part(1), most)
        })
    }
}

/// Reports whether a head can be claimed now. For all other heads of its route the earliest due set is enough.
pub(super) fn is_open(
    shard: &Shard,
    busy: &BTreeSet<Partition>,
    head: &Head,
    scope: &ClaimScope,
) -> bool {
    let Some(served) = shard.routes.get(head.route()) else {
        return false;
    };
    // The holder of an ordered route goes on polling it, even where another replica owns the partition.
    let ours =
        served.route.policy.ordered || (scope.may_claim(head) && !busy.contains(&head.partition));
    ours && shard.store.pauses().may_publish(head.route()) && served.credit.is_open(shard.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Partitions;

    fn rest(lookahead_ms: i64, dues: &[i64]) -> u128 {
        let now = UnixMs(1_000_000);
        let routes = ["one".to_owned()];
        let owned = OwnedPartitions::everything(Partitions::new(1).expect("one"), routes);
        let until = now.plus(lookahead_ms);
        let overdue = now.plus(-2000);
        let scope = ClaimScope {
            owned: Arc::new(owned),
            near: BTreeSet::new(),
            until,
            overdue,
        };
        let head = |(n, due): (usize, &i64)| {
            let shelf = format!("one/{n}");
            Head {
                partition: Partition(0),
                due_set: shelf,
                due: now.plus(*due),
            }
        };
        let heads: Vec<_> = dues.iter().enumerate().map(head).collect();
        scope.rest(&heads, now, lookahead_ms).as_millis()
    }

    #[test]
    fn where_nothing_is_due_soon_it_rests_for_long() {
        assert_eq!(rest(250, &[]), 500);
        assert_eq!(rest(250, &[3_600_000]), 500);
        assert_eq!(rest(5000, &[]), 500);
    }

    #[test]
    fn what_it_left_is_seen_a_lookahead_before_it_is_due() {
        assert_eq!(rest(250, &[251 + 150]), 151);
        assert_eq!(rest(250, &[251]), 62, "not for each of a crowd");
    }

    #[test]
    fn what_follows_in_a_due_set_that_it_takes_from_is_seen_before_it_is_due() {
        for lookahead_ms in [1, 20, 50, 250, 600, 10_000] {
            let rest = rest(lookahead_ms, &[0, 3_600_000]);
            assert!(
                rest <= lookahead_ms.min(500) as u128,
                "{rest} of {lookahead_ms}"
            );
        }
        assert_eq!(rest(250, &[0]), 187);
        assert_eq!(rest(250, &[0, 3_600_000]), 187);
        assert_eq!(rest(250, &[0, 251 + 100]), 101);
    }

    #[test]
    fn a_clock_that_is_behind_by_more_than_the_lookahead_has_it_poll_at_once() {
        assert_eq!(rest(-100, &[-200]), 1);
    }
}
