//! The bound on the bytes of claimed bundles in this process: one for all routes and shards.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::mutants::{self, Mutant};

/// Bytes that bundles up to [`LARGE_BUNDLE_BYTES`] may take in this process.
const SMALL_POOL_BYTES: i64 = 128 << 20;
/// Bytes that larger bundles may take, unless there is only one of them.
const LARGE_POOL_BYTES: i64 = 64 << 20;
/// Bytes above which a bundle counts as large. Bundles of several messages are far smaller.
pub(super) const LARGE_BUNDLE_BYTES: i64 = 8 << 20;
/// Bytes that each route may hold regardless of the others.
pub(super) const MIN_ROUTE_BYTES: i64 = 1 << 20;

/// The byte bound of the process. Large bundles have a pool of their own; otherwise a stream of small bundles would
/// never leave room for them.
#[derive(Debug)]
pub(in crate::timer) struct ProcessBytes {
    pub(super) small: BytePool,
    large: BytePool,
}

#[derive(Debug)]
pub(super) struct BytePool {
    limit: i64,
    held: AtomicI64,
}

/// The bytes that one route holds of both pools.
#[derive(Debug, Default)]
pub(super) struct RouteBytes {
    pub(super) small: i64,
    large: i64,
}

impl Default for ProcessBytes {
    fn default() -> Self {
        let pool = |limit| BytePool {
            limit,
            held: AtomicI64::new(0),
        };
        Self {
            small: pool(SMALL_POOL_BYTES),
            large: pool(LARGE_POOL_BYTES),
        }
    }
}

impl ProcessBytes {
    fn pool(&self, bytes: i64) -> &BytePool {
        if bytes > LARGE_BUNDLE_BYTES {
            &self.large
        } else {
            &self.small
        }
    }
}

impl BytePool {
    pub(super) fn free(&self) -> i64 {
        self.limit - self.held.load(Ordering::Acquire)
    }

    /// Takes bytes for a route that already holds `own`. A route may hold as much as is free, so that no route takes
    /// all of a pool. An empty pool takes a bundle of any size.
    fn take(&self, own: i64, bytes: i64, forced: bool) -> bool {
        self.held
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| {
                let fits = own + bytes <= (self.limit - held).max(MIN_ROUTE_BYTES);
                let is_unbounded = mutants::is(Mutant::UnboundedClaims);
                (forced || held == 0 || fits || is_unbounded).then_some(held + bytes)
            })
            .is_ok()
    }
}

impl RouteBytes {
    fn of_pool(&mut self, bytes: i64) -> &mut i64 {
        if bytes > LARGE_BUNDLE_BYTES {
            &mut self.large
        } else {
            &mut self.small
        }
    }

    /// Takes the bytes of one bundle. `forced` takes them in any case. Reports whether they were taken.
    pub(super) fn take(&mut self, process: &ProcessBytes, bytes: i64, forced: bool) -> bool {
        let own = self.of_pool(bytes);
        let taken = process.pool(bytes).take(*own, bytes, forced);
        if taken {
            *own += bytes;
        }
        taken
    }

    /// Gives the bytes of one bundle back.
    pub(super) fn give_back(&mut self, process: &ProcessBytes, bytes: i64) {
        *self.of_pool(bytes) -= bytes;
        process.pool(bytes).held.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Bytes of small bundles that the route may still take. What it takes is no longer free, so that is half of the
    /// difference.
    pub(super) fn left(&self, process: &ProcessBytes) -> i64 {
        if mutants::is(Mutant::UnboundedClaims) {
            return i64::MAX;
        }
        ((process.small.free() - self.small) / 2).max(MIN_ROUTE_BYTES - self.small)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;

    /// Takes bundles of this size until one is refused. Returns the bytes.
    fn fill(route: &mut RouteBytes, process: &ProcessBytes, bytes: i64) -> i64 {
        let mut all = 0;
        while route.take(process, bytes, false) {
            all += bytes;
        }
        all
    }

    #[test]
    fn a_route_gets_half_of_what_is_free_and_each_a_little_at_least() {
        let process = ProcessBytes::default();
        let mut routes = [(); 20].map(|()| RouteBytes::default());
        let mut left = 128 * MIB;
        for (n, route) in routes.iter_mut().enumerate() {
            let bytes = fill(route, &process, 64 << 10);
            let share = (left / 2).max(MIB);
            assert!(
                bytes.abs_diff(share) <= 64 << 10,
                "route {n}: {bytes} of {left}"
            );
            assert!(route.left(&process) < 64 << 10, "it is full");
            left = (left - bytes).max(0);
        }
        for route in &mut routes {
            while route.small > 0 {
                route.give_back(&process, 64 << 10);
            }
        }
        assert_eq!(process.small.free(), 128 * MIB, "all of it was given back");
    }

    #[test]
    fn a_large_bundle_is_taken_however_large_and_beside_small_ones() {
        let process = ProcessBytes::default();
        let [mut one, mut two] = [RouteBytes::default(), RouteBytes::default()];
        assert_eq!(fill(&mut one, &process, MIB), 64 * MIB);
        assert!(two.take(&process, 500 * MIB, false), "the first is taken");
        assert!(!one.take(&process, 9 * MIB, false), "it is alone");
        assert!(two.take(&process, MIB, false), "small ones go on beside it");
        two.give_back(&process, 500 * MIB);
        assert_eq!(fill(&mut one, &process, 10 * MIB), 30 * MIB);
    }

    #[test]
    fn what_must_be_taken_is_and_counts() {
        let process = ProcessBytes::default();
        let mut one = RouteBytes::default();
        fill(&mut one, &process, MIB);
        assert!(one.take(&process, MIB, true), "it must be");
        assert_eq!(one.small, 65 * MIB);
        assert!(one.left(&process) < 0);
    }
}
