//! Shares of routing keys in what a channel has outstanding: published messages without an answer of the broker.
//!
//! A queue that does not confirm must not take all of it, and the lane knows queues by routing keys only. A key may hold
//! twice as much as is free: a single key gets two thirds of [`SHARED_OUTSTANDING`], and what one key leaves is shared
//! by the others in the same way. [`MIN_OUTSTANDING`] messages a key may hold whatever the others hold, up to
//! [`MAX_OUTSTANDING`] in all.
//!
//! The numbers keep clear of RabbitMQ's own flow control, which stops reading from a *connection* with all its channels:
//! once one classic queue owes 400 confirms to a channel (`credit_flow_default_credit`), or soon after one quorum queue
//! owes it 32 (`quorum_commands_soft_limit`). A queue that works pays such debts at once. So a key that gets no answer
//! for [`STALL_US`] may hold [`STALLED_OUTSTANDING`].

use std::collections::HashMap;

use bytes::Bytes;

/// Messages that routing keys share.
const SHARED_OUTSTANDING: usize = 384;
/// Messages that each routing key may hold whatever the others hold.
const MIN_OUTSTANDING: usize = 2;
/// Messages that a routing key may hold while it gets no answer.
const STALLED_OUTSTANDING: usize = 24;
/// Time without an answer after which a routing key counts as stalled, microseconds.
const STALL_US: i64 = 500_000;
/// Most messages outstanding.
pub(super) const MAX_OUTSTANDING: usize = 2048;

/// What each routing key has outstanding.
#[derive(Debug, Default)]
pub(super) struct KeyShares {
    keys: HashMap<Bytes, KeyShare>,
    total: usize,
}

#[derive(Debug)]
struct KeyShare {
    /// Number of messages, at least one.
    held: usize,
    /// Moment of the last answer, or of the first message, monotonic microseconds.
    progress_us: i64,
}

impl KeyShares {
    /// The number of messages outstanding.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Reports whether one more message of this routing key may be published.
    pub(super) fn fits(&self, key: &[u8], now_us: i64) -> bool {
        let free = SHARED_OUTSTANDING.saturating_sub(self.total);
        let Some(share) = self.keys.get(key) else {
            return self.total < MAX_OUTSTANDING;
        };
        let is_stalled = now_us - share.progress_us > STALL_US;
        let most = if is_stalled {
            STALLED_OUTSTANDING
        } else {
            usize::MAX
        };
        share.held < (2 * free).min(most)
            || (share.held < MIN_OUTSTANDING && self.total < MAX_OUTSTANDING)
    }

    /// Counts a message that is published now.
    pub(super) fn take(&mut self, key: &[u8], now_us: i64) {
        self.total += 1;
        if let Some(share) = self.keys.get_mut(key) {
            share.held += 1;
        } else {
            let share = KeyShare {
                held: 1,
                progress_us: now_us,
            };
            // A copy: the key may be a part of a large buffer.
            self.keys.insert(Bytes::copy_from_slice(key), share);
        }
    }

    /// Notes that a message of this routing key is answered now.
    pub(super) fn note_answer(&mut self, key: &[u8], now_us: i64) {
        if let Some(share) = self.keys.get_mut(key) {
            share.progress_us = now_us;
        }
    }

    /// Takes a message out of the count.
    pub(super) fn release(&mut self, key: &[u8]) {
        let Some(share) = self.keys.get_mut(key) else {
            return;
        };
        self.total -= 1;
        share.held -= 1;
        if share.held == 0 {
            self.keys.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(shares: &mut KeyShares, key: &str) -> usize {
        let before = shares.total();
        while shares.fits(key.as_bytes(), 0) {
            shares.take(key.as_bytes(), 0);
        }
        shares.total() - before
    }

    #[test]
    fn a_key_gets_twice_what_is_free_and_each_a_little_at_least() {
        let mut shares = KeyShares::default();
        let held = ["a", "b", "c", "d", "e", "f", "g"].map(|key| fill(&mut shares, key));
        assert_eq!(held, [256, 86, 28, 10, 3, 2, 2]);
        for key in ["a", "b", "c"] {
            shares.release(key.as_bytes());
        }
        assert_eq!(fill(&mut shares, "h"), 2);
        for _ in 0..253 {
            shares.release(b"a");
        }
        assert!(fill(&mut shares, "h") > 100, "it was given back");
    }

    #[test]
    fn a_key_without_answers_holds_few_until_the_next_one() {
        let mut shares = KeyShares::default();
        for _ in 0..STALLED_OUTSTANDING {
            shares.take(b"a", 0);
        }
        assert!(shares.fits(b"a", STALL_US) && !shares.fits(b"a", STALL_US + 1));
        assert!(shares.fits(b"b", STALL_US + 1));
        shares.note_answer(b"b", STALL_US + 1);
        assert!(!shares.fits(b"a", STALL_US + 1));
        shares.note_answer(b"a", STALL_US + 1);
        assert!(shares.fits(b"a", STALL_US + 1));
    }

    #[test]
    fn what_is_outstanding_has_a_bound_however_many_keys_there_are() {
        let mut shares = KeyShares::default();
        let keys: Vec<_> = (0..3000).map(|key| key.to_string()).collect();
        let held: Vec<_> = keys.iter().map(|key| fill(&mut shares, key)).collect();
        assert!(shares.total() == MAX_OUTSTANDING && held[700] == 2 && held[2999] == 0);
        for (key, held) in keys.iter().zip(held) {
            (0..held).for_each(|_| shares.release(key.as_bytes()));
        }
        assert!(shares.total() == 0 && shares.keys.is_empty());
        shares.release(b"a");
        assert_eq!(shares.total(), 0);
    }
}
