//! Bytes that this process holds claimed: one bound for all routes and shards.
//!
//! Bytes are those of bundles when opened. Room is taken before a bundle is read, and given back when its holding ends.
//! No route may hold more than is free: alone it gets half of a pool, and one whose target is away leaves half of it to
//! the others. A little each route may hold whatever is free. Large bundles have a pool of their own, or a stream of small
//! ones would never leave room for them; the first of them is taken however large it is, alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use tokio::sync::Notify;

use crate::domain::limits::BUNDLE_BYTES;
use crate::mutants::{self, Mutant};

/// Bytes of bundles up to [`LARGE`] that the process holds at most.
const HELD_BYTES: i64 = 128 << 20;
/// Bytes of larger ones, but for one alone.
const LARGE_BYTES: i64 = 64 << 20;
/// A bundle of more bytes is a large one. Bundles of several messages are far below it.
const LARGE: i64 = 8 << 20;
/// Bytes that a bundle of several messages may have: a claim takes one of a shelf at least.
const BUNDLE: i64 = BUNDLE_BYTES as i64;
/// Weight of the latest claim in a route's mean: a quarter.
const LATEST: i64 = 4;
/// Bytes that each route may hold whatever the others do.
const EACH: i64 = 1 << 20;
/// A route of which something was given back for want of room is left alone for this long, microseconds, unless some
/// of its own leaves.
const PAUSE_US: i64 = 100_000;

/// The bound, and who waits for room.
#[derive(Debug)]
pub(super) struct Budget {
    small: Pool,
    large: Pool,
    /// One for each shard.
    bells: Vec<Arc<Notify>>,
}

#[derive(Debug)]
struct Pool {
    limit: i64,
    held: AtomicI64,
}

/// What one route holds of a budget.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    small: Own,
    large: Own,
    /// Bytes of a message, as the latest claims had them: by it the next claims are cut.
    mean: AtomicI64,
    /// It found too little room since the bells were last rung for it.
    short: AtomicBool,
}

/// One route's part of a pool.
#[derive(Debug, Default)]
struct Own {
    held: AtomicI64,
    /// It found too little room, and is left alone until then, monotonic microseconds.
    rests_until_us: AtomicI64,
}

/// Room for one bundle; dropping it gives it back.
#[derive(Debug)]
pub(super) struct Room {
    share: Arc<Share>,
    bytes: i64,
}

impl Budget {
    pub(super) fn new(bells: Vec<Arc<Notify>>) -> Arc<Self> {
        let pool = |limit| Pool { limit, held: AtomicI64::new(0) };
        Arc::new(Self { small: pool(HELD_BYTES), large: pool(LARGE_BYTES), bells })
    }
}

impl Pool {
    fn free(&self) -> i64 {
        self.limit - self.held.load(Ordering::Acquire)
    }

    /// Takes so many bytes for a route that holds `own`, if there is room for them, or if they must be taken.
    fn take(&self, own: &AtomicI64, bytes: i64, must: bool) -> bool {
        let taken = |held: i64| {
            let fits = own.load(Ordering::Acquire) + bytes <= (self.limit - held).max(EACH);
            let is_unbounded = mutants::is(Mutant::UnboundedClaims);
            (must || held == 0 || fits || is_unbounded).then_some(held + bytes)
        };
        let taken = self.held.fetch_update(Ordering::AcqRel, Ordering::Acquire, taken).is_ok();
        if taken {
            own.fetch_add(bytes, Ordering::AcqRel);
        }
        taken
    }
}

impl Share {
    pub(super) fn new(budget: Arc<Budget>) -> Arc<Self> {
        let (small, large) = (Own::default(), Own::default());
        Arc::new(Self { budget, small, large, mean: AtomicI64::new(0), short: false.into() })
    }

    fn pool(&self, bytes: i64) -> (&Pool, &Own) {
        if bytes > LARGE { (&self.budget.large, &self.large) } else { (&self.budget.small, &self.small) }
    }

    /// Room for a bundle of so many bytes; `None`: it waits, and the shards' bells ring when there may be room. With
    /// `must` it is taken whether there is room or not.
    pub(super) fn take(self: &Arc<Self>, bytes: usize, must: bool) -> Option<Room> {
        let bytes = bytes as i64;
        let (pool, own) = self.pool(bytes);
        let taken = pool.take(&own.held, bytes, must) || {
            self.short.store(true, Ordering::Release);
            // What was given back before that did not ring.
            pool.take(&own.held, bytes, must)
        };
        taken.then(|| Room { share: self.clone(), bytes })
    }

    /// So many bytes were given back for want of room: no more is claimed for a moment.
    pub(super) fn rest(&self, bytes: usize, now_us: i64) {
        let (_, own) = self.pool(bytes as i64);
        own.rests_until_us.store(now_us + PAUSE_US, Ordering::Release);
    }

    /// Messages and shelves that the next look may claim without exceeding what is free, by what those before them had;
    /// `None` until a quarter of that is free.
    pub(super) fn fits(&self, now_us: i64) -> Option<(i64, usize)> {
        if mutants::is(Mutant::UnboundedClaims) {
            return Some((HELD_BYTES, HELD_BYTES as usize));
        }
        let rests = |own: &Own| now_us < own.rests_until_us.load(Ordering::Acquire);
        let left = self.left().filter(|_| !rests(&self.small) && !rests(&self.large));
        let Some(left) = left else {
            self.short.store(true, Ordering::Release);
            return None;
        };
        let mean = self.mean.load(Ordering::Relaxed).max(1);
        Some(((left / mean).max(1), (left / mean.max(BUNDLE)).max(1) as usize))
    }

    /// Bytes that may be taken besides what is held, if they are not few: taking them leaves as much less to take.
    fn left(&self) -> Option<i64> {
        let free = self.budget.small.free().max(EACH);
        let left = free - self.small.held.load(Ordering::Acquire);
        (left >= free / 4).then_some(left / 2)
    }

    /// Learns from a claim what messages of this route have.
    pub(super) fn learn(&self, messages: usize, bytes: usize) {
        let Some(latest) = (bytes as i64).checked_div(messages as i64) else { return };
        let mean = self.mean.load(Ordering::Relaxed);
        // A lost update costs nothing: it is a guess, and what is too much is given back.
        self.mean.store(mean + (latest.min(LARGE) - mean) / LATEST, Ordering::Relaxed);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let (pool, own) = self.share.pool(self.bytes);
        own.held.fetch_sub(self.bytes, Ordering::AcqRel);
        own.rests_until_us.store(0, Ordering::Release);
        pool.held.fetch_sub(self.bytes, Ordering::AcqRel);
        let (share, large) = (&self.share, self.bytes > LARGE);
        let waits = share.short.load(Ordering::Acquire) && (large || share.left().is_some());
        if waits && share.short.swap(false, Ordering::AcqRel) {
            share.budget.bells.iter().for_each(|bell| bell.notify_one());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MIB: usize = 1 << 20;

    fn shares<const N: usize>() -> [Arc<Share>; N] {
        let budget = Budget::new(vec![Arc::default()]);
        [(); N].map(|()| Share::new(budget.clone()))
    }

    /// As much as there is room for, in bundles of so many bytes.
    fn fill(share: &Arc<Share>, bytes: usize) -> Vec<Room> {
        std::iter::from_fn(|| share.take(bytes, false)).take(1_000_000).collect()
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
            assert!(bytes.abs_diff(share) <= 64 << 10, "route {n}: {bytes} of {left}");
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
        let large = two.take(500 * MIB, false).expect("the first is always taken");
        assert!(one.take(9 * MIB, false).is_none(), "it is alone");
        assert!(two.take(MIB, false).is_some(), "the small ones are not held up by it");
        drop(large);
        let several = fill(&one, 10 * MIB);
        assert_eq!(several.len(), 3);
        drop((small, several));
        assert!(one.take(100 * MIB, false).is_some());
    }

    #[test]
    fn what_must_be_taken_is_and_counts() {
        let [one] = shares();
        let held = fill(&one, MIB);
        let beyond = one.take(MIB, true).expect("it must be");
        drop(held);
        assert_eq!(one.small.held.load(Ordering::Acquire), MIB as i64);
        drop(beyond);
        assert_eq!(one.budget.small.free(), 128 * MIB as i64);
    }

    #[test]
    fn claims_are_cut_by_what_those_before_them_had() {
        let [one] = shares();
        let (messages, shelves) = one.fits(0).expect("room");
        assert!(messages >= 50_000 && shelves >= 1000, "nothing is known: {messages}, {shelves}");
        for _ in 0..20 {
            one.learn(10, 10 * MIB);
        }
        let (messages, shelves) = one.fits(0).expect("room");
        assert!((64..=80).contains(&messages) && (64..=80).contains(&shelves), "{messages}, {shelves}");
        let held = fill(&one, MIB);
        assert_eq!(one.fits(0), None, "until a quarter is free");
        drop(held);
        assert!(one.fits(0).is_some());
        one.learn(0, 0);
    }

    #[test]
    fn what_was_given_back_is_left_alone_for_a_moment_or_until_some_of_its_own_leaves() {
        let [one] = shares();
        let large = one.take(100 * MIB, false);
        assert!(one.take(10 * MIB, false).is_none());
        one.rest(10 * MIB, 1000);
        let small = one.take(MIB, false);
        assert_eq!(one.fits(1000), None);
        drop(small);
        assert_eq!(one.fits(1000), None, "of the other pool");
        assert!(one.fits(1000 + PAUSE_US).is_some());
        drop(large);
        assert!(one.fits(1000).is_some());
    }

    #[test]
    fn the_bells_ring_once_there_is_room_again() {
        let bell = Arc::new(Notify::new());
        let share = Share::new(Budget::new(vec![bell.clone()]));
        let mut held = fill(&share, MIB);
        held.pop();
        assert!(bell.notified().now_or_never().is_none(), "few are free");
        held.truncate(held.len() / 2);
        assert!(bell.notified().now_or_never().is_some());
        held.pop();
        assert!(bell.notified().now_or_never().is_none(), "nobody has found too little room since");
    }
}
