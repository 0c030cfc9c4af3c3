//! Jittered exponential back-off, for every client and every retry.

use std::time::Duration;

/// Growth of waits: from `initial`, doubling, to `max`. Each wait is jittered between its half and its whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
}

impl Backoff {
    /// Makes a back-off; `None` if `initial` is zero or above `max`.
    pub fn new(initial: Duration, max: Duration) -> Option<Self> {
        (!initial.is_zero() && initial <= max).then_some(Self { initial, max })
    }

    /// Back-off of reconnecting clients: 50 ms to 2 s.
    pub const CLIENT: Self = Self {
        initial: Duration::from_millis(50),
        max: Duration::from_secs(2),
    };

    /// Back-off of connections and channels to a broker: 50 to 500 ms. Once a broker is back, its messages flow again
    /// within two seconds.
    pub const BROKER: Self = Self {
        initial: Duration::from_millis(50),
        max: Duration::from_millis(500),
    };

    /// The wait before try number `failures + 1`. `failures` counts from 1.
    pub fn wait(&self, failures: u32) -> Duration {
        let whole = self.ceiling(failures);
        whole.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// The longest wait that [`Self::wait`] returns after so many failures.
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
        let backoff =
            Backoff::new(Duration::from_secs(1), Duration::from_secs(300)).expect("checked");
        for failures in 1..60 {
            let wait = backoff.wait(failures);
            let ceiling = backoff.ceiling(failures);
            assert!(
                wait <= ceiling && wait >= ceiling / 2,
                "{failures}: {wait:?}"
            );
        }
        assert_eq!(backoff.ceiling(1), Duration::from_secs(1));
        assert_eq!(backoff.ceiling(40), Duration::from_secs(300));
        assert_eq!(
            Backoff::new(Duration::from_secs(2), Duration::from_secs(1)),
            None
        );
    }
}
