//! The inbox of verdicts: filled from any thread without blocking, emptied in batches by its owner.

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::domain::Verdict;

/// Verdicts of one submitter, in the order they came. It holds no more than its owner has
/// outstanding, for every publication gets exactly one.
#[derive(Debug, Default)]
pub struct Verdicts {
    inbox: Mutex<Vec<(u64, Verdict)>>,
    arrived: Notify,
}

impl Verdicts {
    /// Puts one in; wakes the owner.
    pub fn push(&self, ticket: u64, verdict: Verdict) {
        self.push_all([(ticket, verdict)]);
    }

    /// Puts several in, in order.
    pub fn push_all(&self, verdicts: impl IntoIterator<Item = (u64, Verdict)>) {
        let first = {
            let mut inbox = self.inbox.lock();
            let was_empty = inbox.is_empty();
            inbox.extend(verdicts);
            was_empty && !inbox.is_empty()
        };
        if first {
            self.arrived.notify_one();
        }
    }

    /// All that have come, at least one: waits for it. Cancel-safe: nothing is taken until it returns.
    pub async fn take(&self) -> Vec<(u64, Verdict)> {
        loop {
            let batch = std::mem::take(&mut *self.inbox.lock());
            if !batch.is_empty() {
                return batch;
            }
            self.arrived.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn a_waiting_owner_gets_what_another_thread_pushes() {
        let inbox = Arc::new(Verdicts::default());
        let pusher = inbox.clone();
        let thread = std::thread::spawn(move || {
            for ticket in 0..100 {
                pusher.push(ticket, Verdict::Confirmed);
            }
        });
        let mut seen = Vec::new();
        while seen.len() < 100 {
            seen.extend(inbox.take().await.into_iter().map(|(ticket, _)| ticket));
        }
        thread.join().expect("the pusher ends");
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
    }
}
