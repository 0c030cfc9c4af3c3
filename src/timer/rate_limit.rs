//! A limited route's tokens on this replica: leased from the store when messages are due and want them, spent by
//! the wheel one a hand-over. The queue behind the limit is the store: the claimer takes no more than about two
//! seconds' worth.
//!
//! Tokens are never given back: what is not spent within [`HOLD_US`] is void, so that nobody saves up. What a
//! replica that dies held is lost, at most one lease; the bucket goes on filling at its rate for the others.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::debug;

use super::wheel::Wheel;
use crate::domain::{Clock, Rate, RouteName};
use crate::lifecycle::Shutdown;
use crate::store::{RateGrant, Store, StoreError};

/// Tokens that were not spent this long after they came are void, microseconds.
const HOLD_US: i64 = 100_000;
/// Leases a second of one busy route and replica, about.
const LEASES: u32 = 50;
/// Wait after a lease that failed.
const AGAIN: Duration = Duration::from_millis(100);

/// One limited route.
pub(super) struct Limit {
    rate: Rate,
    clock: Clock,
    state: Mutex<State>,
    wanted: Notify,
}

#[derive(Default)]
struct State {
    tokens: u32,
    /// Monotonic microseconds after which they are void.
    until_us: i64,
    /// Tokens asked for; 0: nobody waits for an answer.
    asked: u32,
}

impl Limit {
    pub(super) fn new(rate: Rate, clock: Clock) -> Self {
        Self { rate, clock, state: Mutex::default(), wanted: Notify::new() }
    }

    /// Takes a token for one hand-over.
    pub(super) fn take(&self) -> bool {
        let mut state = self.state.lock();
        if state.tokens == 0 || self.clock.mono_us() > state.until_us {
            state.tokens = 0;
            return false;
        }
        state.tokens -= 1;
        true
    }

    /// The hand-over did not come about.
    pub(super) fn put_back(&self) {
        self.state.lock().tokens += 1;
    }

    /// Whether an answer to an earlier [`Limit::ask`] is still to come.
    pub(super) fn has_asked(&self) -> bool {
        self.state.lock().asked > 0
    }

    /// Says that so many messages are due and have no token; the wheel is woken when some have come.
    pub(super) fn ask(&self, messages: u32) {
        self.state.lock().asked = messages.min(self.capacity());
        self.wanted.notify_one();
    }

    /// No more than this is ever granted at once.
    pub(super) fn capacity(&self) -> u32 {
        self.rate.capacity()
    }

    fn granted(&self, tokens: u32) {
        let mut state = self.state.lock();
        let now_us = self.clock.mono_us();
        let left = if now_us > state.until_us { 0 } else { state.tokens };
        *state = State { tokens: left + tokens, until_us: now_us + HOLD_US, asked: 0 };
    }
}

/// Leases tokens whenever some are wanted, until draining begins.
pub(super) async fn run(limit: Arc<Limit>, route: RouteName, store: Store, wheel: Wheel, shutdown: Shutdown) {
    let lease = async {
        let mut next = Instant::now();
        loop {
            limit.wanted.notified().await;
            loop {
                tokio::time::sleep_until(next).await;
                let asked = limit.state.lock().asked;
                let lease = store.take_tokens(&route, limit.rate, asked).await;
                next = Instant::now() + pause_after(&lease, limit.rate, fastrand::f64());
                match lease {
                    Ok(RateGrant { granted: 0, .. }) => {}
                    Ok(lease) => {
                        limit.granted(lease.granted);
                        wheel.tokens_came();
                        break;
                    }
                    Err(why) => debug!(%route, error = %why, "cannot lease tokens; trying on"),
                }
            }
        }
    };
    tokio::select! {
        () = shutdown.draining() => {}
        () = lease => {}
    }
}

/// When to ask again: once there is about a fiftieth of a second's worth, a little earlier or later, so that
/// no replica is always the first.
fn pause_after(lease: &Result<RateGrant, StoreError>, rate: Rate, chance: f64) -> Duration {
    match lease {
        Ok(lease) => lease.until((rate.per_second / LEASES).max(1), rate).mul_f64(0.75 + chance / 2.0),
        Err(_) => AGAIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { per_second: 100, burst: 30 };

    #[test]
    fn tokens_are_spent_one_by_one_and_none_is_made_up() {
        let limit = Limit::new(RATE, Clock::start());
        assert!(!limit.take(), "nothing was granted");
        limit.ask(1000);
        assert_eq!(limit.state.lock().asked, 30, "never more than the bucket holds");
        limit.granted(2);
        assert!(!limit.has_asked());
        assert!(limit.take());
        limit.put_back();
        assert_eq!([limit.take(), limit.take(), limit.take()], [true, true, false]);
    }

    #[test]
    fn tokens_that_were_not_spent_in_time_are_void() {
        let limit = Limit::new(RATE, Clock::start());
        limit.granted(5);
        limit.state.lock().until_us = -1;
        assert!(!limit.take());
        limit.granted(1);
        assert_eq!([limit.take(), limit.take()], [true, false], "the void ones do not come back");
    }

    #[test]
    fn the_next_lease_waits_for_a_fiftieth_of_a_seconds_worth() {
        let wait = |wait_us, rate, chance| pause_after(&Ok(RateGrant { granted: 1, wait_us }), rate, chance);
        assert_eq!(wait(10_000, RATE, 0.5), Duration::from_millis(20), "two tokens");
        assert_eq!(wait(-5_000_000, RATE, 0.5), Duration::ZERO, "they are there");
        let slow = Rate { per_second: 1, burst: 0 };
        assert_eq!(wait(800_000, slow, 0.0), Duration::from_millis(600), "at most a quarter too early");
    }
}
