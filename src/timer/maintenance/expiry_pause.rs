//! The pause of claim expiry, and its longest duration.

/// Longest pause, in leases of answered sweeps (one sweep a second). After that claims expire in spite of its cause.
const MAX_PAUSED_LEASES: i64 = 6;

/// Suspends claim expiry for one lease after the last cause. Deadlines mean nothing if another clock wrote them, or
/// if nobody could extend them. Causes that never end cannot suspend expiry for ever.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpiryPause {
    until_us: i64,
    /// Answered sweeps that let nothing expire, since the last calm.
    withheld: i64,
}

impl ExpiryPause {
    /// Pauses expiry until one lease from now, because there is a cause now.
    pub(super) fn prolong(&mut self, now_us: i64, lease_us: i64) {
        self.until_us = self.until_us.max(now_us + lease_us);
    }

    /// Reports whether a sweep that begins now lets nothing expire.
    pub(super) fn is_active(&self, now_us: i64, lease_us: i64) -> bool {
        now_us < self.until_us && !self.is_exhausted(lease_us)
    }

    /// Reports whether the pause has reached its longest duration.
    pub(super) fn is_exhausted(&self, lease_us: i64) -> bool {
        self.withheld >= (MAX_PAUSED_LEASES * lease_us / 1_000_000).max(MAX_PAUSED_LEASES)
    }

    /// Reports whether the last cause is over.
    pub(super) fn is_over(&self, now_us: i64) -> bool {
        now_us >= self.until_us
    }

    /// Counts an answered sweep. Unanswered sweeps, while Redis is away, do not shorten the pause.
    pub(super) fn answered(&mut self, now_us: i64) {
        self.withheld = if self.is_over(now_us) {
            0
        } else {
            self.withheld.saturating_add(1)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;
    const LEASE: i64 = 10 * SECOND;

    /// Plays one sweep a second. Returns the seconds in which claims could expire.
    fn played(
        seconds: i64,
        cause: impl Fn(i64) -> bool,
        answers: impl Fn(i64) -> bool,
    ) -> Vec<i64> {
        let mut pause = ExpiryPause::default();
        let mut expiring = Vec::new();
        for second in 0..seconds {
            let now_us = second * SECOND;
            if cause(second) || !answers(second) {
                pause.prolong(now_us, LEASE);
            }
            let is_active = pause.is_active(now_us, LEASE);
            if answers(second) {
                pause.answered(now_us);
                expiring.extend((!is_active).then_some(second));
            }
        }
        expiring
    }

    #[test]
    fn interleaving_16_one_cause_holds_for_one_lease() {
        assert_eq!(
            played(30, |s| s == 5, |_| true),
            (0..5).chain(15..30).collect::<Vec<_>>()
        );
    }

    #[test]
    fn interleaving_16_an_outage_however_long_is_followed_by_one_lease_without_expiry() {
        let expiring = played(4000, |_| false, |s| !(100..3700).contains(&s));
        assert_eq!(expiring, (0..100).chain(3709..4000).collect::<Vec<_>>());
    }

    #[test]
    fn interleaving_13_causes_that_never_end_hold_for_six_leases() {
        for every in [1, 3, 9] {
            let expiring = played(600, |s| s % every == 0, |_| true);
            assert_eq!(expiring, (60..600).collect::<Vec<_>>(), "every {every} s");
        }
        // Every other sweep over a flapping link goes unanswered.
        let expiring = played(600, |_| false, |s| s % 2 == 0);
        assert_eq!(
            expiring[..2],
            [0, 122],
            "before the first that goes unanswered, and after six leases"
        );
        assert!(expiring.len() > 200, "from then on");
    }

    #[test]
    fn once_it_was_calm_it_holds_again_in_full() {
        let expiring = played(200, |s| s < 80 || s == 150, |_| true);
        let expected = (60..150).chain(160..200);
        assert_eq!(expiring, expected.collect::<Vec<_>>());
    }
}
