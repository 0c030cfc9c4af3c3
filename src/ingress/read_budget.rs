//! Memory of what ingress has read and not resolved: one budget of the process, shared by all its sources.
//!
//! Half of it is parted equally, so a source that flows has its part whatever the others hold. The other half is
//! for who comes first: a source may have as much of it as is left then. Together they never exceed the budget, but
//! by one record of each source: a source that holds nothing may always read one, so none waits for another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Bytes of the process, uncompressed, that ingress holds between reading and resolution.
pub const READ_BYTES: usize = 96 << 20;

/// The budget of all sources.
#[derive(Debug)]
pub struct ReadBudget {
    most: usize,
    held: AtomicUsize,
    sources: AtomicUsize,
    given_back: Notify,
}

/// What one source holds of it. Dropped, it gives all of that back.
#[derive(Debug)]
pub struct ReadShare {
    budget: Arc<ReadBudget>,
    /// The source's own limit.
    most: usize,
    held: AtomicUsize,
}

impl Default for ReadBudget {
    fn default() -> Self {
        Self::new(READ_BYTES)
    }
}

impl ReadBudget {
    /// A budget of so many bytes.
    pub fn new(most: usize) -> Self {
        Self { most, held: AtomicUsize::new(0), sources: AtomicUsize::new(0), given_back: Notify::new() }
    }

    /// The share of a source that never holds more than `most`, but for its last record.
    pub fn share(self: &Arc<Self>, most: usize) -> ReadShare {
        self.sources.fetch_add(1, Ordering::AcqRel);
        ReadShare { budget: self.clone(), most, held: AtomicUsize::new(0) }
    }

    /// Bytes that all sources hold.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Acquire)
    }
}

impl ReadShare {
    /// Takes a record's bytes, whether they fit or not: it is read already.
    pub fn add(&self, bytes: usize) {
        self.held.fetch_add(bytes, Ordering::AcqRel);
        self.budget.held.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Gives bytes back that were added.
    pub fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::AcqRel);
        self.budget.held.fetch_sub(bytes, Ordering::AcqRel);
        self.budget.given_back.notify_waiters();
    }

    /// Bytes that this source holds.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Acquire)
    }

    /// Whether the source must not read on now.
    pub fn is_full(&self) -> bool {
        let held = self.held();
        held > 0 && held >= self.limit()
    }

    /// Whether a full one has room for more than a few records again.
    pub fn has_some_room(&self) -> bool {
        let limit = self.limit();
        self.held() <= limit - limit / 32
    }

    /// Whether a source that stopped reading may go on.
    pub fn is_half_empty(&self) -> bool {
        self.held() <= self.limit() / 2
    }

    /// Waits until a source that stopped reading may go on. Cancel-safe.
    pub async fn room(&self) {
        loop {
            let mut given_back = std::pin::pin!(self.budget.given_back.notified());
            given_back.as_mut().enable();
            if self.is_half_empty() {
                return;
            }
            given_back.await;
        }
    }

    fn limit(&self) -> usize {
        let (half, sources) = (self.budget.most / 2, self.budget.sources.load(Ordering::Acquire));
        let part = half / sources.max(1);
        self.most.min(part.max(half.saturating_sub(self.budget.held())))
    }
}

impl Drop for ReadShare {
    fn drop(&mut self) {
        self.budget.sources.fetch_sub(1, Ordering::AcqRel);
        self.give_back(self.held());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: usize = 10;

    fn fill(share: &ReadShare) -> usize {
        while !share.is_full() {
            share.add(RECORD);
        }
        share.held()
    }

    #[test]
    fn sources_that_wait_leave_the_others_their_part_and_never_exceed_the_budget() {
        let budget = Arc::new(ReadBudget::new(100_000));
        let shares: Vec<_> = (0..100).map(|_| budget.share(20_000)).collect();
        let held: Vec<usize> = shares.iter().map(fill).collect();
        assert!(held.iter().all(|held| *held >= 500), "each has its part: {held:?}");
        assert!(budget.held() <= 100_000 + shares.len() * RECORD, "{}", budget.held());
        assert_eq!(held[0], 20_000, "its own limit");
        drop(shares);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn a_source_that_holds_nothing_may_always_read_one_record() {
        let budget = Arc::new(ReadBudget::new(100));
        let (greedy, other) = (budget.share(1000), budget.share(1000));
        greedy.add(500);
        assert!(greedy.is_full() && !other.is_full() && other.is_half_empty());
        other.add(30);
        assert!(other.is_full(), "beyond its part");
        other.give_back(30);
        assert!(other.is_half_empty());
    }

    #[tokio::test]
    async fn who_waits_for_room_is_woken_by_what_another_source_gives_back() {
        let budget = Arc::new(ReadBudget::new(100));
        let (one, other) = (budget.share(100), budget.share(100));
        one.add(20);
        other.add(70);
        let waiting = one.room();
        tokio::pin!(waiting);
        assert!(futures_poll(&mut waiting).await.is_none());
        drop(other);
        waiting.await;
    }

    /// One poll of a future.
    async fn futures_poll<F: Future<Output = ()> + Unpin>(future: &mut F) -> Option<()> {
        tokio::select! {
            biased;
            () = future => Some(()),
            () = std::future::ready(()) => None,
        }
    }
}
