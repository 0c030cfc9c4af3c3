//! The bound of one page of a search, in messages and in time. A page that ends early has a `next`.

use crate::domain::Clock;

/// Messages that a round of a search looks at.
pub(in crate::store) const STEP: usize = 500;
/// Messages that a page looks at.
const MESSAGES: usize = 10_000;
/// Time that a page takes, microseconds.
const TIME_US: i64 = 50_000;

/// What is left to one page.
pub(in crate::store) struct SearchBound {
    clock: Clock,
    began_us: i64,
    /// When the last round ended.
    seen_us: i64,
    longest_us: i64,
}

impl SearchBound {
    pub(in crate::store) fn begin(clock: Clock) -> Self {
        let began_us = clock.mono_us();
        Self {
            clock,
            began_us,
            seen_us: began_us,
            longest_us: 0,
        }
    }

    /// Reports, behind each round, whether the page ends: it has looked at enough, or another round as long as the longest
    /// one would end too late.
    pub(in crate::store) fn is_reached(&mut self, looked: usize) -> bool {
        let now_us = self.clock.mono_us();
        let round_us = now_us - std::mem::replace(&mut self.seen_us, now_us);
        self.longest_us = self.longest_us.max(round_us);
        looked >= MESSAGES || now_us - self.began_us + self.longest_us > TIME_US
    }
}
