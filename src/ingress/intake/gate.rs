//! A source's waits for its route's gate: when it may read, and when unread deliveries go back to their queue.

use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use crate::ingress::permits::PermitBatch;
use crate::ingress::{AdmissionGate, Source};
use crate::lifecycle::tick;
use crate::mutants::{self, Mutant};

/// How often a waiting source checks the gate again.
const GATE_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Longest wait for the answer to the write that probes the store.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the gate of a route that is paused by hand must have been closed before its deliveries go back. A shorter pause
/// costs no delivery anything.
const PAUSED_RETURN_DELAY: Duration = Duration::from_secs(2);
/// How long a limit must have closed the gate before deliveries go back. Each return counts towards the
/// delivery limit of a quorum queue, and the gate of a route at its limit opens and closes again and again. The
/// time is below RabbitMQ's `consumer_timeout` (30 minutes), which would close the channel.
const LIMITED_RETURN_DELAY: Duration = Duration::from_secs(10 * 60);

impl Source {
    /// Reports whether the route's ingress is open and has capacity for a message right now.
    pub fn is_open(&self) -> bool {
        self.gate.is_open()
    }

    /// The gate, for somebody who watches the source while it is busy.
    pub fn gate(&self) -> AdmissionGate {
        self.gate.clone()
    }

    /// Waits until the route's gate is open. Cancel-safe.
    pub async fn until_open(&self) {
        self.gate.opened().await;
    }

    /// Permits for the first of so many messages, once the route's gate is open. `None` if shutting down begins first.
    pub(super) async fn permits(&self, messages: usize) -> Option<PermitBatch> {
        loop {
            tokio::select! {
                biased;
                () = self.until_open() => {}
                () = self.intake.shutdown.draining() => return None,
            }
            if let Some(permits) = self.gate.try_admit(messages) {
                return Some(permits);
            }
        }
    }

    /// Waits until the route's gate is open and the store accepts writes, so that no delivery from now on is in
    /// vain. A store that is full or read-only says so only to a write, so this makes one: to the mark of this
    /// source, which a queue does not use otherwise. Cancel-safe.
    pub async fn until_ready(&self) {
        if mutants::is(Mutant::SubscribeWhileWaiting) {
            return;
        }
        let store = &self.intake.store;
        loop {
            self.gate.opened().await;
            if store.accepts_writes() {
                match tokio::time::timeout(PROBE_TIMEOUT, store.raise_offset(&self.name, 0, None))
                    .await
                {
                    Ok(Ok(_)) if self.gate.is_open() => return,
                    Ok(Ok(_)) => {}
                    Ok(Err(why)) => {
                        debug!(source = self.name, error = %why, "the store takes nothing in");
                    }
                    Err(_) => debug!(source = self.name, "the store does not answer"),
                }
            }
            tick(GATE_CHECK_INTERVAL).await;
        }
    }

    /// Waits until the route's gate has been closed long enough for unread deliveries to go back to their
    /// queue: two seconds if the route was paused by hand, ten minutes if it is at a limit. Cancel-safe; each
    /// call counts anew.
    pub async fn until_closed(&self) {
        if mutants::is(Mutant::SubscribeWhileWaiting) {
            return std::future::pending().await;
        }
        loop {
            self.gate.closed().await;
            let since = Instant::now();
            while !self.is_open() {
                if since.elapsed() >= self.return_delay() {
                    return;
                }
                tick(GATE_CHECK_INTERVAL).await;
            }
        }
    }

    /// How long the gate must have been closed before deliveries go back.
    fn return_delay(&self) -> Duration {
        let pause = self.intake.store.pauses().of(self.route.name.as_str());
        let is_paused_by_hand = pause.is_some_and(|paused| paused.ingress.is_some());
        if is_paused_by_hand {
            PAUSED_RETURN_DELAY
        } else {
            LIMITED_RETURN_DELAY
        }
    }
}
