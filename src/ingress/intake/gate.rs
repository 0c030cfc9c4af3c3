//! One source's view of its route's gate: when it may read, and when what it has read goes back.

use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use crate::domain::RouteName;
use crate::ingress::Source;
use crate::ingress::permits::{AdmissionGate, Granted};
use crate::lifecycle::tick;
use crate::mutants::{self, Mutant};
use crate::store::{RoutePauses, Store};

/// How often a source that waits looks again.
const LOOK: Duration = Duration::from_millis(250);
/// Longest wait for the answer to a write that only asks.
const ANSWER: Duration = Duration::from_secs(3);
/// How long a route must have been paused by hand before its deliveries go back. A pause of a moment costs none of
/// them.
const PAUSED: Duration = Duration::from_secs(2);
/// The same where a limit closed the gate. Each return counts towards the delivery limit of a quorum queue, and a route
/// at its limit opens and closes for as long as it is full. Below RabbitMQ's `consumer_timeout` (30 minutes), which
/// would close the channel.
const FULL: Duration = Duration::from_secs(10 * 60);

/// A route's gate.
pub(super) struct Gate {
    admission: AdmissionGate,
    pauses: RoutePauses,
    route: RouteName,
}

impl Gate {
    pub(super) fn new(route: &RouteName, admission: Option<&AdmissionGate>, store: &Store) -> Self {
        let admission = admission.cloned().unwrap_or_else(AdmissionGate::unbounded);
        Self { admission, pauses: store.pauses(), route: route.clone() }
    }

    /// Whether the route's ingress is open and has room for a message right now.
    pub(super) fn is_open(&self) -> bool {
        self.admission.is_open()
    }

    /// Takes permits for at most so many messages; `None` while the gate is closed.
    pub(super) fn try_admit(&self, most: usize) -> Option<Granted> {
        self.admission.try_admit(most)
    }

    /// How long a closed gate must have been closed before deliveries go back.
    fn patience(&self) -> Duration {
        let by_hand = self.pauses.of(self.route.as_str()).is_some_and(|paused| paused.ingress);
        if by_hand { PAUSED } else { FULL }
    }

    async fn until_closed(&self) {
        if mutants::is(Mutant::SubscribeWhileWaiting) {
            return std::future::pending().await;
        }
        loop {
            self.admission.closed().await;
            let since = Instant::now();
            while !self.is_open() {
                if since.elapsed() >= self.patience() {
                    return;
                }
                tick(LOOK).await;
            }
        }
    }
}

impl Source {
    /// Waits until the route's gate is open. Cancel-safe.
    pub async fn until_open(&self) {
        self.gate.admission.opened().await;
    }

    /// Waits until the route's gate is open and the store takes messages in: what is delivered from now on is not
    /// delivered in vain. A store that is full or read-only says so to a write only, so one is made: of the mark of
    /// this source, which a queue has no other use for. Cancel-safe.
    pub async fn until_ready(&self) {
        if mutants::is(Mutant::SubscribeWhileWaiting) {
            return;
        }
        let store = &self.intake.store;
        loop {
            self.gate.admission.opened().await;
            if store.accepts_writes() {
                match tokio::time::timeout(ANSWER, store.raise_offset(&self.name, 0)).await {
                    Ok(Ok(_)) if self.gate.is_open() => return,
                    Ok(Ok(_)) => {}
                    Ok(Err(why)) => debug!(source = self.name, error = %why, "the store takes nothing in"),
                    Err(_) => debug!(source = self.name, "the store does not answer"),
                }
            }
            tick(LOOK).await;
        }
    }

    /// Waits until the route's gate has been closed for so long that what was read and not taken had better go back to
    /// its queue: two seconds if it was paused by hand, ten minutes if it is at a limit. Cancel-safe, and counts from
    /// anew then.
    pub async fn until_closed(&self) {
        self.gate.until_closed().await;
    }
}
