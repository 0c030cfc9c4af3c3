//! Memory of what ingress has read and not resolved: one budget of the process, shared by all its sources.
//!
//! A RabbitMQ queue hands over as many messages as its consumer allows, whatever their size, and takes none of them
//! back without counting a delivery. So each queue has a fixed part, and is allowed as many messages of the route's
//! `max_size` as fit into it.
//!
//! Kafka's sources can be paused at any record, and share the rest as they need it. Half of it is parted equally, so a source that flows has its part whatever the others hold. The other half is
//! for who comes first: a source may have as much of it as is left then. Together they never exceed the budget, but
//! by one record of each source: a source that holds nothing may always read one, so none waits for another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::domain::{Endpoint, Route};

/// Bytes of the process, uncompressed, that ingress holds between reading and resolution.
pub const READ_BYTES: usize = 96 << 20;

/// How [`READ_BYTES`] are parted between Kafka's sources and RabbitMQ's.
#[derive(Debug)]
pub struct ReadParts {
    /// What Kafka's partitions share.
    pub kafka: Arc<ReadBudget>,
    /// Bytes of each RabbitMQ queue.
    queue_bytes: usize,
}

impl ReadParts {
    /// The parts of a process with these routes: all is for the one technology that it reads from, or half for each.
    pub fn of(routes: &[Arc<Route>]) -> Self {
        let queues = routes.iter().filter(|route| matches!(route.from, Endpoint::Rabbitmq { .. })).count();
        let rabbitmq_bytes = match queues {
            0 => 0,
            _ if queues == routes.len() => READ_BYTES,
            _ => READ_BYTES / 2,
        };
        Self {
            kafka: Arc::new(ReadBudget::new(READ_BYTES - rabbitmq_bytes)),
            queue_bytes: rabbitmq_bytes / queues.max(1),
        }
    }

    /// Unacknowledged messages that a queue may hand over: the route's `prefetch`, no more than fit into the queue's
    /// part if each is as large as `max_size`, and one at least.
    pub fn prefetch(&self, prefetch: u16, max_size: usize) -> u16 {
        let fitting = self.queue_bytes / max_size.max(1);
        u16::try_from(fitting).unwrap_or(u16::MAX).clamp(1, prefetch)
    }
}

/// The budget of Kafka's sources.
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
    use crate::domain::testing;

    const RECORD: usize = 10;

    fn route(from: Endpoint) -> Arc<Route> {
        let mut route = Route::clone(&testing::route());
        route.from = from;
        Arc::new(route)
    }

    #[test]
    fn queues_and_partitions_together_stay_within_the_budget_and_each_queue_hands_over_one_at_least() {
        let topic =
            || route(Endpoint::Kafka { connection: "k".into(), topic: "t".into(), group: "g".into() });
        let queue = || route(Endpoint::Rabbitmq { connection: "r".into(), queue: "q".into(), prefetch: 500 });
        let parts = |topics: usize, queues: usize| {
            let routes = std::iter::repeat_with(topic).take(topics);
            ReadParts::of(&routes.chain(std::iter::repeat_with(queue).take(queues)).collect::<Vec<_>>())
        };
        for (topics, queues) in [(0, 1), (0, 7), (3, 0), (3, 1), (3, 7), (1, 200)] {
            let parts = parts(topics, queues);
            let each = usize::from(parts.prefetch(500, 1 << 20));
            assert!(
                parts.kafka.most + queues * each * (1 << 20) <= READ_BYTES || each == 1,
                "{topics} {queues}"
            );
            assert_eq!(parts.kafka.most > 0, topics > 0 || queues == 0);
        }
        assert_eq!(parts(0, 1).prefetch(500, 1 << 20), 96);
        assert_eq!(parts(1, 1).prefetch(500, 64 << 10), 500);
        assert_eq!(parts(1, 1).prefetch(500, 256 << 20), 1, "larger than the part");
    }

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
