//! The inbox of verdicts. Any thread fills it without blocking; its owner empties it in batches.

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Ticket;
use crate::domain::Verdict;

/// Verdicts for one submitter, in the order they came. There are never more than its outstanding publications, as each
/// of those gets exactly one.
#[derive(Debug, Default)]
pub struct VerdictInbox {
    inbox: Mutex<Vec<(Ticket, Verdict)>>,
    arrived: Notify,
}

impl VerdictInbox {
    /// Adds a verdict and wakes the owner.
    pub fn push(&self, ticket: Ticket, verdict: Verdict) {
        self.push_all([(ticket, verdict)]);
    }

    /// Adds several verdicts, in order.
    pub fn push_all(&self, verdicts: impl IntoIterator<Item = (Ticket, Verdict)>) {
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

    /// Waits for at least one verdict and takes all that have come. Cancel-safe: nothing is taken until it returns.
    pub async fn take(&self) -> Vec<(Ticket, Verdict)> {
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
        let inbox = Arc::new(VerdictInbox::default());
        let pusher = inbox.clone();
        let thread = std::thread::spawn(move || {
            for index in 0..100 {
                pusher.push(Ticket { batch: 7, index }, Verdict::Confirmed(None));
            }
        });
        let mut seen = Vec::new();
        while seen.len() < 100 {
            let verdicts = inbox.take().await;
            seen.extend(verdicts.into_iter().map(|(ticket, _)| ticket.index));
        }
        thread.join().expect("the pusher ends");
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
    }
}
