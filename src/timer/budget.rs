//! The bound on the bytes of claimed bundles in this process: one for all routes and shards.
//!
//! Bytes are those of opened bundles. They are reserved before a bundle is read and released when the bundle is
//! settled. No route may reserve more than is free: a single route gets half of a pool, and a route whose target is
//! away leaves half of the pool to the others. Up to [`MIN_ROUTE_BYTES`] a route may reserve regardless of what the
//! others hold. Large bundles have a pool of their own; otherwise a stream of small bundles would never leave room
//! for them. The first large bundle is accepted however large it is, alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use tokio::sync::Notify;

use crate::domain::limits::BUNDLE_BYTES;
use crate::mutants::{self, Mutant};

/// Bytes that bundles up to [`LARGE_BUNDLE_BYTES`] may take in this process.
const SMALL_POOL_BYTES: i64 = 128 << 20;
/// Bytes that larger bundles may take, unless there is only one of them.
const LARGE_POOL_BYTES: i64 = 64 << 20;
/// Bytes above which a bundle counts as large. Bundles of several messages are far smaller.
const LARGE_BUNDLE_BYTES: i64 = 8 << 20;
/// Bytes that a bundle of several messages may have. A claim takes at least one bundle of each due set.
const SMALL_BUNDLE_BYTES: i64 = BUNDLE_BYTES as i64;
/// Divisor of the moving mean: the latest claim weighs a quarter.
const MEAN_DIVISOR: i64 = 4;
/// Bytes that each route may hold regardless of the others.
const MIN_ROUTE_BYTES: i64 = 1 << 20;
/// Pause of a route after one of its bundles was refused and returned, microseconds. A release by the same route ends
/// the pause early.
const REFUSAL_PAUSE_US: i64 = 100_000;

/// The byte bound of the process, and the shards to wake when bytes are released.
#[derive(Debug)]
pub(super) struct ByteBudget {
    small: BytePool,
    large: BytePool,
    /// One wake-up a shard.
    wake_ups: Vec<Arc<Notify>>,
}

#[derive(Debug)]
struct BytePool {
    limit: i64,
    held: AtomicI64,
}

/// The bytes that one route holds of the budget.
#[derive(Debug)]
pub(super) struct RouteBytes {
    budget: Arc<ByteBudget>,
    small: PoolShare,
    large: PoolShare,
    /// Mean bytes of a message in the latest claims. The next claims are cut by it.
    mean: AtomicI64,
    /// Set when a reservation was refused; cleared when the shards are woken.
    was_refused: AtomicBool,
}

/// The part of one pool that one route holds.
#[derive(Debug, Default)]
struct PoolShare {
    held: AtomicI64,
    /// No claims before this moment, monotonic microseconds.
    paused_until_us: AtomicI64,
}

/// Bytes reserved for one bundle. Dropping it releases them.
#[derive(Debug)]
pub(super) struct ByteReservation {
    route: Arc<RouteBytes>,
    bytes: i64,
}

impl ByteBudget {
    pub(super) fn new(wake_ups: Vec<Arc<Notify>>) -> Arc<Self> {
        let pool = |limit| BytePool {
            limit,
            held: AtomicI64::new(0),
        };
        Arc::new(Self {
            small: pool(SMALL_POOL_BYTES),
            large: pool(LARGE_POOL_BYTES),
            wake_ups,
        })
    }
}

impl BytePool {
    fn free(&self) -> i64 {
        self.limit - self.held.load(Ordering::Acquire)
    }

    /// Reserves bytes for a route that already holds `own`, if they fit or `forced` is set.
    fn take(&self, own: &AtomicI64, bytes: i64, forced: bool) -> bool {
        let taken = |held: i64| {
            let fits =
                own.load(Ordering::Acquire) + bytes <= (self.limit - held).max(MIN_ROUTE_BYTES);
            let is_unbounded = mutants::is(Mutant::UnboundedClaims);
            (forced || held == 0 || fits || is_unbounded).then_some(held + bytes)
        };
        let taken = self
            .held
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, taken)
            .is_ok();
        if taken {
            own.fetch_add(bytes, Ordering::AcqRel);
        }
        taken
    }
}

impl RouteBytes {
    pub(super) fn new(budget: Arc<ByteBudget>) -> Arc<Self> {
        let small = PoolShare::default();
        let large = PoolShare::default();
        Arc::new(Self {
            budget,
            small,
            large,
            mean: AtomicI64::new(0),
            was_refused: false.into(),
        })
    }

    /// The pool for a bundle of this size, and this route's share of it.
    fn pool_for(&self, bytes: i64) -> (&BytePool, &PoolShare) {
        if bytes > LARGE_BUNDLE_BYTES {
            (&self.budget.large, &self.large)
        } else {
            (&self.budget.small, &self.small)
        }
    }

    /// Reserves bytes for one bundle. `None`: they do not fit, and the shards are woken when they may. `forced`
    /// reserves them in any case.
    pub(super) fn reserve(self: &Arc<Self>, bytes: usize, forced: bool) -> Option<ByteReservation> {
        let bytes = bytes as i64;
        let (pool, own) = self.pool_for(bytes);
        let taken = pool.take(&own.held, bytes, forced) || {
            self.was_refused.store(true, Ordering::Release);
            // A release before the flag was set has not woken anybody.
            pool.take(&own.held, bytes, forced)
        };
        taken.then(|| ByteReservation {
            route: self.clone(),
            bytes,
        })
    }

    /// Pauses the route after a bundle of this size was returned for want of bytes.
    pub(super) fn pause(&self, bytes: usize, now_us: i64) {
        let (_, own) = self.pool_for(bytes as i64);
        own.paused_until_us
            .store(now_us + REFUSAL_PAUSE_US, Ordering::Release);
    }

    /// Messages and due sets that the next poll may claim without exceeding the free bytes, estimated from the mean
    /// of earlier claims. `None` until a quarter of the free bytes is unused.
    pub(super) fn allowance(&self, now_us: i64) -> Option<(i64, usize)> {
        if mutants::is(Mutant::UnboundedClaims) {
            return Some((SMALL_POOL_BYTES, SMALL_POOL_BYTES as usize));
        }
        let paused = |own: &PoolShare| now_us < own.paused_until_us.load(Ordering::Acquire);
        let left = self
            .left()
            .filter(|_| !paused(&self.small) && !paused(&self.large));
        let Some(left) = left else {
            self.was_refused.store(true, Ordering::Release);
            return None;
        };
        let mean = self.mean.load(Ordering::Relaxed).max(1);
        Some((
            (left / mean).max(1),
            (left / mean.max(SMALL_BUNDLE_BYTES)).max(1) as usize,
        ))
    }

    /// Bytes that the route may still reserve, if they are worth a claim. Halved, because reserving them reduces what
    /// is free by as much.
    fn left(&self) -> Option<i64> {
        let free = self.budget.small.free().max(MIN_ROUTE_BYTES);
        let left = free - self.small.held.load(Ordering::Acquire);
        (left >= free / 4).then_some(left / 2)
    }

    /// Updates the mean message size of the route from one claim.
    pub(super) fn learn(&self, messages: usize, bytes: usize) {
        let Some(latest) = (bytes as i64).checked_div(messages as i64) else {
            return;
        };
        let mean = self.mean.load(Ordering::Relaxed);
        // A lost update is harmless: the mean is an estimate, and bundles that do not fit are returned.
        self.mean.store(
            mean + (latest.min(LARGE_BUNDLE_BYTES) - mean) / MEAN_DIVISOR,
            Ordering::Relaxed,
        );
    }
}

impl Drop for ByteReservation {
    fn drop(&mut self) {
        let (pool, own) = self.route.pool_for(self.bytes);
        own.held.fetch_sub(self.bytes, Ordering::AcqRel);
        own.paused_until_us.store(0, Ordering::Release);
        pool.held.fetch_sub(self.bytes, Ordering::AcqRel);
        let route = &self.route;
        let is_large = self.bytes > LARGE_BUNDLE_BYTES;
        let should_wake =
            route.was_refused.load(Ordering::Acquire) && (is_large || route.left().is_some());
        if should_wake && route.was_refused.swap(false, Ordering::AcqRel) {
            route
                .budget
                .wake_ups
                .iter()
                .for_each(|wake_up| wake_up.notify_one());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MIB: usize = 1 << 20;

    fn shares<const N: usize>() -> [Arc<RouteBytes>; N] {
        let budget = ByteBudget::new(vec![Arc::default()]);
        [(); N].map(|()| RouteBytes::new(budget.clone()))
    }

    /// Reserves bundles of this size until one is refused.
    fn fill(share: &Arc<RouteBytes>, bytes: usize) -> Vec<ByteReservation> {
        std::iter::from_fn(|| share.reserve(bytes, false))
            .take(1_000_000)
            .collect()
    }

    #[test]
    fn a_route_gets_half_of_what_is_free_and_each_a_little_at_least() {
        let routes = shares::<20>();
        let mut held = Vec::new();
        let mut left = 128 * MIB;
        for (n, route) in routes.iter().enumerate() {
            let rooms = fill(route, 64 << 10);
            let bytes = rooms.len() * (64 << 10);
            let share = (left / 2).max(MIB);
            assert!(
                bytes.abs_diff(share) <= 64 << 10,
                "route {n}: {bytes} of {left}"
            );
            left = left.saturating_sub(bytes);
            held.push(rooms);
        }
        drop(held);
        assert_eq!(fill(&routes[0], MIB).len(), 64, "all of it was given back");
    }

    #[test]
    fn a_large_bundle_is_taken_however_large_and_beside_small_ones() {
        let [one, two] = shares();
        let small = fill(&one, MIB);
        let large = two
            .reserve(500 * MIB, false)
            .expect("the first is always taken");
        assert!(one.reserve(9 * MIB, false).is_none(), "it is alone");
        assert!(
            two.reserve(MIB, false).is_some(),
            "the small ones are not held up by it"
        );
        drop(large);
        let several = fill(&one, 10 * MIB);
        assert_eq!(several.len(), 3);
        drop((small, several));
        assert!(one.reserve(100 * MIB, false).is_some());
    }

    #[test]
    fn what_must_be_taken_is_and_counts() {
        let [one] = shares();
        let held = fill(&one, MIB);
        let beyond = one.reserve(MIB, true).expect("it must be");
        drop(held);
        assert_eq!(one.small.held.load(Ordering::Acquire), MIB as i64);
        drop(beyond);
        assert_eq!(one.budget.small.free(), 128 * MIB as i64);
    }

    #[test]
    fn claims_are_cut_by_what_those_before_them_had() {
        let [one] = shares();
        let (messages, due_sets) = one.allowance(0).expect("room");
        assert!(
            messages >= 50_000 && due_sets >= 1000,
            "nothing is known: {messages}, {due_sets}"
        );
        for _ in 0..20 {
            one.learn(10, 10 * MIB);
        }
        let (messages, due_sets) = one.allowance(0).expect("room");
        assert!(
            (64..=80).contains(&messages) && (64..=80).contains(&due_sets),
            "{messages}, {due_sets}"
        );
        let held = fill(&one, MIB);
        assert_eq!(one.allowance(0), None, "until a quarter is free");
        drop(held);
        assert!(one.allowance(0).is_some());
        one.learn(0, 0);
    }

    #[test]
    fn what_was_given_back_is_left_alone_for_a_moment_or_until_some_of_its_own_leaves() {
        let [one] = shares();
        let large = one.reserve(100 * MIB, false);
        assert!(one.reserve(10 * MIB, false).is_none());
        one.pause(10 * MIB, 1000);
        let small = one.reserve(MIB, false);
        assert_eq!(one.allowance(1000), None);
        drop(small);
        assert_eq!(one.allowance(1000), None, "of the other pool");
        assert!(one.allowance(1000 + REFUSAL_PAUSE_US).is_some());
        drop(large);
        assert!(one.allowance(1000).is_some());
    }

    #[test]
    fn the_shards_are_woken_once_there_is_room_again() {
        let wake_up = Arc::new(Notify::new());
        let share = RouteBytes::new(ByteBudget::new(vec![wake_up.clone()]));
        let mut held = fill(&share, MIB);
        held.pop();
        assert!(wake_up.notified().now_or_never().is_none(), "few are free");
        held.truncate(held.len() / 2);
        assert!(wake_up.notified().now_or_never().is_some());
        held.pop();
        assert!(
            wake_up.notified().now_or_never().is_none(),
            "nobody has found too little room since"
        );
    }
}
