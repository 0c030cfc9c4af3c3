//! Rate tokens of a limited route on this replica. They are fetched from the store when due messages need them, and
//! the wheel spends one for each hand-over. The queue behind the limit is the store: the claimer takes no more than
//! about two seconds' worth.
//!
//! Tokens are never given back. A token that is not spent within [`TOKEN_LIFETIME_US`] is void, so that no replica
//! saves up. A replica that dies loses at most the tokens of one fetch; the bucket goes on filling at its rate for
//! the others.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::debug;

use crate::domain::{Clock, RateLimit, RouteName};
use crate::lifecycle::Shutdown;
use crate::store::{RateGrant, Store, StoreError};

/// Lifetime of an unspent token, microseconds.
const TOKEN_LIFETIME_US: i64 = 100_000;
/// Fetches a second by one replica for a busy route, about.
const FETCHES_PER_SECOND: u32 = 50;
/// Wait after a failed fetch.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The tokens of one limited route.
pub(super) struct RateLimiter {
    rate: RateLimit,
    clock: Clock,
    state: Mutex<TokenState>,
    wanted: Notify,
}

#[derive(Default)]
struct TokenState {
    tokens: u32,
    /// Monotonic microseconds after which the tokens are void.
    until_us: i64,
    /// Tokens asked for; 0: no fetch is wanted.
    asked: u32,
}

impl RateLimiter {
    pub(super) fn new(rate: RateLimit, clock: Clock) -> Self {
        Self {
            rate,
            clock,
            state: Mutex::default(),
            wanted: Notify::new(),
        }
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

    /// Returns a token, because its hand-over did not happen.
    pub(super) fn put_back(&self) {
        self.state.lock().tokens += 1;
    }

    /// Reports whether an answer to an earlier [`RateLimiter::ask`] is still to come.
    pub(super) fn has_asked(&self) -> bool {
        self.state.lock().asked > 0
    }

    /// Asks for tokens for this many due messages. The wheel is woken when some have come.
    pub(super) fn ask(&self, messages: u32) {
        self.state.lock().asked = messages.min(self.capacity());
        self.wanted.notify_one();
    }

    /// The most tokens that one fetch grants.
    pub(super) fn capacity(&self) -> u32 {
        self.rate.capacity()
    }

    fn granted(&self, tokens: u32) {
        let mut state = self.state.lock();
        let now_us = self.clock.mono_us();
        let left = if now_us > state.until_us {
            0
        } else {
            state.tokens
        };
        *state = TokenState {
            tokens: left + tokens,
            until_us: now_us + TOKEN_LIFETIME_US,
            asked: 0,
        };
    }
}

/// Fetches tokens whenever some are wanted, until draining begins. `tokens_came` is called after each grant.
pub(super) async fn run(
    limit: Arc<RateLimiter>,
    route: RouteName,
    store: Store,
    tokens_came: impl Fn() + Send,
    shutdown: Shutdown,
) {
    let fetch = async {
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
                        tokens_came();
                        break;
                    }
                    Err(why) => {
                        debug!(%route, error = %why, "fetching rate tokens failed; retrying");
                    }
                }
            }
        }
    };
    tokio::select! {
        () = shutdown.draining() => {}
        () = fetch => {}
    }
}

/// The wait until the next fetch: until about a fiftieth of a second's worth of tokens is there. The wait varies, so
/// that no replica is always the first.
fn pause_after(lease: &Result<RateGrant, StoreError>, rate: RateLimit, chance: f64) -> Duration {
    match lease {
        Ok(lease) => lease
            .until((rate.per_second / FETCHES_PER_SECOND).max(1), rate)
            .mul_f64(0.75 + chance / 2.0),
        Err(_) => RETRY_INTERVAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: RateLimit = RateLimit {
        per_second: 100,
        burst: 30,
    };

    #[test]
    fn tokens_are_spent_one_by_one_and_none_is_made_up() {
        let limit = RateLimiter::new(RATE, Clock::start());
        assert!(!limit.take(), "nothing was granted");
        limit.ask(1000);
        assert_eq!(
            limit.state.lock().asked,
            30,
            "never more than the bucket holds"
        );
        limit.granted(2);
        assert!(!limit.has_asked());
        assert!(limit.take());
        limit.put_back();
        assert_eq!(
            [limit.take(), limit.take(), limit.take()],
            [true, true, false]
        );
    }

    #[test]
    fn tokens_that_were_not_spent_in_time_are_void() {
        let limit = RateLimiter::new(RATE, Clock::start());
        limit.granted(5);
        limit.state.lock().until_us = -1;
        assert!(!limit.take());
        limit.granted(1);
        assert_eq!(
            [limit.take(), limit.take()],
            [true, false],
            "the void ones do not come back"
        );
    }

    #[test]
    fn the_next_lease_waits_for_a_fiftieth_of_a_seconds_worth() {
        let wait = |wait_us, rate, chance| {
            pause_after(
                &Ok(RateGrant {
                    granted: 1,
                    wait_us,
                }),
                rate,
                chance,
            )
        };
        assert_eq!(
            wait(10_000, RATE, 0.5),
            Duration::from_millis(20),
            "two tokens"
        );
        assert_eq!(
            wait(-5_000_000, RATE, 0.5),
            Duration::ZERO,
            "they are there"
        );
        let slow = RateLimit {
            per_second: 1,
            burst: 0,
        };
        assert_eq!(
            wait(800_000, slow, 0.0),
            Duration::from_millis(600),
            "at most a quarter too early"
        );
    }
}
