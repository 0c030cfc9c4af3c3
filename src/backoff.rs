//! Jittered exponential back-off, for every client and every retry.

use std::time::Duration;

/// How waits grow: from `initial`, doubling, to `max`, each jittered between half and the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
}

impl Backoff {
    /// `None` if `initial` is zero or above `max`.
    pub fn new(initial: Duration, max: Duration) -> Option<Self> {
        (!initial.is_zero() && initial <= max).then_some(Self { initial, max })
    }

    /// Reconnecting clients: 50 ms to 2 s.
    pub const CLIENT: Self = Self { initial: Duration::from_millis(50), max: Duration::from_secs(2) };

    /// Connections to a broker and what is opened on them, 50 to 500 ms: what waits for a broker that is back flows
    /// again within two seconds.
    pub const BROKER: Self = Self { initial: Duration::from_millis(50), max: Duration::from_millis(500) };

    /// The wait before try number `failures + 1`; `failures` counts from 1.
    pub fn wait(&self, failures: u32) -> Duration {
        let whole = self.ceiling(failures);
        whole.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// The longest that [`Self::wait`] answers.
    pub fn ceiling(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(30);
        self.initial.saturating_mul(1 << doublings).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_maximum_and_stays_within_half_and_whole() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300)).expect("checked");
        for failures in 1..60 {
            let (wait, ceiling) = (backoff.wait(failures), backoff.ceiling(failures));
            assert!(wait <= ceiling && wait >= ceiling / 2, "{failures}: {wait:?}");
        }
        assert_eq!(backoff.ceiling(1), Duration::from_secs(1));
        assert_eq!(backoff.ceiling(40), Duration::from_secs(300));
        assert_eq!(Backoff::new(Duration::from_secs(2), Duration::from_secs(1)), None);
    }
}
