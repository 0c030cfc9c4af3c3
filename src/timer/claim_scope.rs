//! What of all that is due falls to this replica.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Shard;
use crate::cluster::Owned;
use crate::domain::{Partition, UnixMs};
use crate::store::Head;

/// Longest time between two looks: this alone delivers everything, wake-ups or not.
pub(super) const LOOK: Duration = Duration::from_millis(500);

/// What one look may claim of what it sees.
pub(super) struct Sight {
    pub(super) owned: Arc<Owned>,
    /// Served for this once, whoever's it is.
    pub(super) near: BTreeSet<Partition>,
    /// Due by then, it is claimed where this replica serves it.
    pub(super) until: UnixMs,
    /// Due by then, it is claimed whoever's it is.
    pub(super) overdue: UnixMs,
}

impl Sight {
    pub(super) fn takes(&self, head: &Head) -> bool {
        head.due <= self.until && (self.is_ours(head) || head.due <= self.overdue)
    }

    pub(super) fn looks_at(&self, p: Partition) -> bool {
        self.owned.serves_any(p) || self.near.contains(&p)
    }

    pub(super) fn is_ours(&self, head: &Head) -> bool {
        self.serves(head.partition, head.route())
    }

    /// Whether what is there of a route is this replica's to serve.
    pub(super) fn serves(&self, p: Partition, route: &str) -> bool {
        self.owned.serves(p, route) || self.near.contains(&p)
    }

    /// How long the next look may wait, `lookahead_ms` being how far this one saw: until the first of what it left is
    /// within that of its due time, but not for each of a crowd. Where it takes something it waits three quarters of
    /// the look-ahead at most: what follows in a shelf of which it takes the head is not among the heads.
    pub(super) fn rest(&self, heads: &[Head], now: UnixMs, lookahead_ms: i64) -> Duration {
        let ms = |ms: i64| Duration::from_millis(ms.max(1) as u64).min(LOOK);
        let part = |quarters: i64| ms(lookahead_ms * quarters / 4);
        let most = if heads.iter().any(|head| self.takes(head)) { part(3) } else { LOOK };
        let left = heads.iter().filter(|head| head.due > self.until && self.is_ours(head));
        left.map(|head| head.due)
            .min()
            .map_or(most, |due| ms(due.since(now) - lookahead_ms).clamp(part(1), most))
    }
}

/// Whether anything of what this head stands for can be claimed now: of all else its earliest shelf is enough.
pub(super) fn is_open(shard: &Shard, busy: &BTreeSet<Partition>, head: &Head, sight: &Sight) -> bool {
    let Some(served) = shard.routes.get(head.route()) else { return false };
    // Of an ordered route whoever holds it goes on looking, whoever's the partition is.
    let ours = served.route.policy.ordered || (sight.takes(head) && !busy.contains(&head.partition));
    ours && shard.store.pauses().may_publish(head.route()) && served.room(shard.mono_us()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Partitions;

    fn rest(lookahead_ms: i64, dues: &[i64]) -> u128 {
        let now = UnixMs(1_000_000);
        let routes = ["one".to_owned()];
        let owned = Owned::everything(Partitions::new(1).expect("one"), routes);
        let (until, overdue) = (now.plus(lookahead_ms), now.plus(-2000));
        let sight = Sight { owned: Arc::new(owned), near: BTreeSet::new(), until, overdue };
        let head = |(n, due): (usize, &i64)| {
            let shelf = format!("one/{n}");
            Head { partition: Partition(0), due_set: shelf, due: now.plus(*due) }
        };
        let heads: Vec<_> = dues.iter().enumerate().map(head).collect();
        sight.rest(&heads, now, lookahead_ms).as_millis()
    }

    #[test]
    fn where_nothing_is_due_soon_it_rests_for_long() {
        assert_eq!(rest(250, &[]), 500);
        assert_eq!(rest(250, &[3_600_000]), 500);
        assert_eq!(rest(5000, &[]), 500);
    }

    #[test]
    fn what_it_left_is_seen_a_look_ahead_before_it_is_due() {
        assert_eq!(rest(250, &[251 + 150]), 151);
        assert_eq!(rest(250, &[251]), 62, "not for each of a crowd");
    }

    #[test]
    fn what_follows_in_a_shelf_that_it_takes_from_is_seen_before_it_is_due() {
        for lookahead_ms in [1, 20, 50, 250, 600, 10_000] {
            let rest = rest(lookahead_ms, &[0, 3_600_000]);
            assert!(rest <= lookahead_ms.min(500) as u128, "{rest} of {lookahead_ms}");
        }
        assert_eq!(rest(250, &[0]), 187);
        assert_eq!(rest(250, &[0, 3_600_000]), 187);
        assert_eq!(rest(250, &[0, 251 + 100]), 101);
    }

    #[test]
    fn a_clock_that_is_behind_by_more_than_the_look_ahead_has_it_look_at_once() {
        assert_eq!(rest(-100, &[-200]), 1);
    }
}
