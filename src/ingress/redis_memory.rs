//! How much more a route may store, by the memory of Redis. Every route may use it up to a first mark. Beyond that a route may use only
//! its even share, and beyond a second mark nobody may use any, so that what is stored can still be published,
//! retried and counted. A route that floods stops at the first mark, and the others go on. Pure.

use crate::health::RedisMemory;

/// Share of `maxmemory` that every route may use.
const SHARED_PART: f64 = 0.70;
/// Share of `maxmemory` from which on all routes wait.
pub const ALL_WAIT_SHARE: f64 = 0.85;

/// The bytes that a route may still store. `held` is what it holds in Redis, pending and dead, and `routes` the number
/// of routes that share the memory.
pub(super) fn room(memory: RedisMemory, held: u64, routes: usize) -> u64 {
    if memory.limit == 0 {
        return u64::MAX;
    }
    let bytes_of = |share: f64| (memory.limit as f64 * share) as u64;
    let left_until = |mark: u64| mark.saturating_sub(memory.used);
    let even_share = bytes_of(ALL_WAIT_SHARE) / routes.max(1) as u64;
    let own = even_share
        .saturating_sub(held)
        .min(left_until(bytes_of(ALL_WAIT_SHARE)));
    own.max(left_until(bytes_of(SHARED_PART)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_that_floods_stops_at_the_first_mark_and_the_others_at_the_second() {
        let room = |used, held, routes| room(RedisMemory { used, limit: 1000 }, held, routes);
        assert_eq!(room(0, 0, 2), 700);
        assert_eq!(room(600, 590, 2), 100, "the one that floods");
        assert_eq!(room(700, 690, 2), 0);
        assert_eq!(room(700, 10, 2), 150, "the other one");
        assert_eq!(room(700, 420, 2), 5, "its even share is 425");
        assert_eq!(room(850, 10, 2), 0, "nobody has any");
        assert_eq!(room(990, 0, 5), 0);
        assert_eq!(room(800, 780, 1), 50, "the only route has all of it");
        assert_eq!(
            super::room(
                RedisMemory {
                    used: u64::MAX,
                    limit: 0
                },
                1,
                1
            ),
            u64::MAX,
            "no limit"
        );
    }
}
