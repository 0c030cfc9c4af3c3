//! Pulse of the relay's runtime. The probes are answered by a thread of their own: without a pulse they would call a
//! process alive whose relay has come to a standstill.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::domain::Clock;
use crate::lifecycle::{Shutdown, tick};

/// Time between two beats.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a beat after which the process no longer counts as alive.
const STANDSTILL_LIMIT: Duration = Duration::from_secs(60);

/// The moment of the relay's last beat. Cheap to clone.
#[derive(Clone)]
pub(super) struct Pulse {
    clock: Clock,
    beat_us: Arc<AtomicI64>,
}

impl Pulse {
    /// A pulse that has just beaten.
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            beat_us: Arc::new(clock.mono_us().into()),
        }
    }

    /// Reports whether the relay's runtime has turned lately.
    pub(super) fn is_alive(&self) -> bool {
        let silent_us = self.clock.mono_us() - self.beat_us.load(Ordering::Relaxed);
        u128::try_from(silent_us).is_ok_and(|us| us < STANDSTILL_LIMIT.as_micros()) || silent_us < 0
    }
}

/// Beats as long as the runtime that it is spawned on turns, until `shutdown` is forced or drains.
pub(super) async fn beat(pulse: Pulse, shutdown: Shutdown) {
    loop {
        pulse
            .beat_us
            .store(pulse.clock.mono_us(), Ordering::Relaxed);
        tokio::select! {
            () = shutdown.draining() => return,
            () = tick(BEAT_INTERVAL) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_that_has_not_turned_for_a_minute_is_not_alive() {
        let clock = Clock::start();
        let pulse = Pulse::new(clock);
        assert!(pulse.is_alive());
        let after = |silent: Duration| {
            pulse.beat_us.store(
                clock.mono_us() - silent.as_micros() as i64,
                Ordering::Relaxed,
            );
            pulse.is_alive()
        };
        assert!(after(
            STANDSTILL_LIMIT.saturating_sub(Duration::from_secs(1))
        ));
        assert!(!after(STANDSTILL_LIMIT));
    }
}
