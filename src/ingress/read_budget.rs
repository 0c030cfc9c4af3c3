//! How much this process may hold of what it has read and not resolved: the read budget, which all of its sources share.
//!
//! A RabbitMQ queue hands over as many messages as its consumer allows, whatever their size. Therefore each queue has
//! a fixed part of the budget, and may hand over as many messages as fit into that, each as large as a body may be.
//! A body that is larger is left out: it never enters memory. See [`QueueLimits`].
//!
//! Kafka's sources can be paused at any record, and share the rest by need. Half of the rest is divided
//! equally, so that each source has its part however much the others use. The other half goes to whoever comes
//! first: a source may use as much as is left of it. Together the sources never exceed the budget by more than
//! one record each: a source that uses nothing may always read one, so none waits for another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::domain::{Endpoint, OnInvalid, Route, RoutePolicy};

/// Uncompressed bytes that the process may hold between reading and resolution.
pub const READ_BYTES: usize = 96 << 20;

/// The division of [`READ_BYTES`] between Kafka's and RabbitMQ's sources.
#[derive(Debug)]
pub struct ReadAllocation {
    /// The part that Kafka's partitions share.
    pub kafka: Arc<ReadBudget>,
    /// Bytes of each RabbitMQ queue.
    queue_bytes: usize,
}

impl ReadAllocation {
    /// The division for these routes: one technology gets all of it, two get half each.
    pub fn of(routes: &[Arc<Route>]) -> Self {
        let queues = routes
            .iter()
            .filter(|route| matches!(route.from, Endpoint::Rabbitmq { .. }))
            .count();
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

    /// The limits of a queue whose route has this `prefetch` and this policy.
    pub fn queue_limits(&self, prefetch: u16, policy: &RoutePolicy) -> QueueLimits {
        let usual = self.hand_over(prefetch, policy.max_size);
        // The largest body that is of any use: a larger one goes back to its queue, or is dropped, unread.
        let largest = match policy.on_invalid {
            OnInvalid::DeadLetter => policy.max_size.max(policy.dead_letters.max_message),
            OnInvalid::PassThrough => usize::MAX,
            OnInvalid::Drop => policy.max_size,
        };
        let careful = self.hand_over(prefetch, largest);
        if careful.prefetch == usual.prefetch {
            QueueLimits {
                usual: careful,
                careful: None,
            }
        } else {
            QueueLimits {
                usual,
                careful: Some(careful),
            }
        }
    }

    fn hand_over(&self, prefetch: u16, largest_body: usize) -> HandOver {
        let fitting = self.queue_bytes / largest_body.max(1);
        let fitting = u16::try_from(fitting).unwrap_or(u16::MAX);
        HandOver {
            prefetch: fitting.clamp(1, prefetch),
            largest_body: largest_body as u64,
        }
    }
}

/// The messages that a queue hands over at a time. So many bodies of this size fit into the queue's part of the budget,
/// but for a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// Most messages that are not acknowledged: at most the route's `prefetch`, and at least 1.
    pub prefetch: u16,
    /// Bytes of the largest body that is read.
    pub largest_body: u64,
}

/// The two ways to read a queue. Neither holds more than the queue's part of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Many messages at a time, with bodies of at most `max_size`.
    pub usual: HandOver,
    /// Few messages at a time, with bodies of any size that is of use: a body over `max_size` may become a dead letter or
    /// pass through. `None`: the usual way reads them too.
    pub careful: Option<HandOver>,
}

/// The budget of Kafka's sources.
#[derive(Debug)]
pub struct ReadBudget {
    limit_bytes: usize,
    used: AtomicUsize,
    sources: AtomicUsize,
}

/// One source's share of the budget. Dropping it gives all of its bytes back.
#[derive(Debug)]
pub struct ReadShare {
    budget: Arc<ReadBudget>,
    /// The source's own limit.
    limit_bytes: usize,
    used: AtomicUsize,
}

impl ReadBudget {
    /// A budget of `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            used: AtomicUsize::new(0),
            sources: AtomicUsize::new(0),
        }
    }

    /// The share of one source, which never exceeds `limit_bytes` by more than its last record.
    pub fn share(self: &Arc<Self>, limit_bytes: usize) -> ReadShare {
        self.sources.fetch_add(1, Ordering::AcqRel);
        ReadShare {
            budget: self.clone(),
            limit_bytes,
            used: AtomicUsize::new(0),
        }
    }

    /// The bytes that all sources hold.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }
}

impl ReadShare {
    /// Adds a record's bytes, whether they fit or not: the record is read already.
    pub fn add(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::AcqRel);
        self.budget.used.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Gives bytes back that were added.
    pub fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
        self.budget.used.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// The bytes that this source holds.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }

    /// Reports whether the source must stop reading now.
    pub fn is_full(&self) -> bool {
        let used = self.used();
        used > 0 && used >= self.limit()
    }

    /// Reports whether a source that was full has capacity for more than a few records again.
    pub fn has_headroom(&self) -> bool {
        let limit = self.limit();
        self.used() <= limit - limit / 32
    }

    /// Reports whether a source that stopped reading may go on.
    pub fn is_half_empty(&self) -> bool {
        self.used() <= self.limit() / 2
    }

    fn limit(&self) -> usize {
        let half = self.budget.limit_bytes / 2;
        let sources = self.budget.sources.load(Ordering::Acquire);
        let part = half / sources.max(1);
        self.limit_bytes
            .min(part.max(half.saturating_sub(self.budget.used())))
    }
}

impl Drop for ReadShare {
    fn drop(&mut self) {
        self.budget.sources.fetch_sub(1, Ordering::AcqRel);
        self.give_back(self.used());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Topics, testing};

    const RECORD: usize = 10;

    fn route(from: Endpoint) -> Arc<Route> {
        let mut route = Route::clone(&testing::route());
        route.from = from;
        Arc::new(route)
    }

    #[test]
    fn queues_and_partitions_together_stay_within_the_budget_and_each_queue_hands_over_one_at_least()
     {
        let topic = || route(testing::kafka_source(Topics::one("t"), "g"));
        let queue = || {
            route(Endpoint::Rabbitmq {
                connection: "r".into(),
                queue: "q".into(),
                prefetch: 500,
            })
        };
        let parts = |topics: usize, queues: usize| {
            let routes = std::iter::repeat_with(topic).take(topics);
            ReadAllocation::of(
                &routes
                    .chain(std::iter::repeat_with(queue).take(queues))
                    .collect::<Vec<_>>(),
            )
        };
        for (topics, queues) in [(0, 1), (0, 7), (3, 0), (3, 1), (3, 7), (1, 200)] {
            let parts = parts(topics, queues);
            let each = usize::from(parts.queue_limits(500, &policy(1 << 20)).usual.prefetch);
            assert!(
                parts.kafka.limit_bytes + queues * each * (1 << 20) <= READ_BYTES || each == 1,
                "{topics} {queues}"
            );
            assert_eq!(parts.kafka.limit_bytes > 0, topics > 0 || queues == 0);
        }
        let usual = |parts: &ReadAllocation, max_size| {
            parts.queue_limits(500, &policy(max_size)).usual.prefetch
        };
        assert_eq!(usual(&parts(0, 1), 1 << 20), 96);
        assert_eq!(usual(&parts(1, 1), 64 << 10), 500);
        assert_eq!(usual(&parts(1, 1), 256 << 20), 1, "larger than the part");
    }

    fn policy(max_size: usize) -> RoutePolicy {
        RoutePolicy {
            max_size,
            ..testing::route().policy.clone()
        }
    }

    #[test]
    fn each_way_to_read_a_queue_fits_into_its_part_and_the_careful_one_takes_what_is_of_use() {
        const MIB: u64 = 1 << 20;
        let parts = ReadAllocation {
            kafka: Arc::new(ReadBudget::new(0)),
            queue_bytes: 96 << 20,
        };
        let hand_over = |prefetch, largest_body| HandOver {
            prefetch,
            largest_body,
        };
        for (on_invalid, max_size, max_message, usual, careful) in [
            (
                OnInvalid::DeadLetter,
                MIB,
                16 * MIB,
                (96, MIB),
                Some((6, 16 * MIB)),
            ),
            (OnInvalid::DeadLetter, MIB, MIB, (96, MIB), None),
            // As many of the largest fit as the route wants.
            (
                OnInvalid::DeadLetter,
                MIB / 16,
                MIB / 8,
                (500, MIB / 8),
                None,
            ),
            (
                OnInvalid::PassThrough,
                MIB,
                16 * MIB,
                (96, MIB),
                Some((1, u64::MAX)),
            ),
            (OnInvalid::Drop, MIB, 16 * MIB, (96, MIB), None),
        ] {
            let mut policy = policy(max_size as usize);
            policy.on_invalid = on_invalid;
            policy.dead_letters.max_message = max_message as usize;
            let expected = QueueLimits {
                usual: hand_over(usual.0, usual.1),
                careful: careful.map(|(prefetch, largest)| hand_over(prefetch, largest)),
            };
            assert_eq!(parts.queue_limits(500, &policy), expected, "{on_invalid:?}");
        }
    }

    fn fill(share: &ReadShare) -> usize {
        while !share.is_full() {
            share.add(RECORD);
        }
        share.used()
    }

    #[test]
    fn sources_that_wait_leave_the_others_their_part_and_never_exceed_the_budget() {
        let budget = Arc::new(ReadBudget::new(100_000));
        let shares: Vec<_> = (0..100).map(|_| budget.share(20_000)).collect();
        let used: Vec<usize> = shares.iter().map(fill).collect();
        assert!(
            used.iter().all(|used| *used >= 500),
            "each has its part: {used:?}"
        );
        assert!(
            budget.used() <= 100_000 + shares.len() * RECORD,
            "{}",
            budget.used()
        );
        assert_eq!(used[0], 20_000, "its own limit");
        drop(shares);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_source_that_holds_nothing_may_always_read_one_record() {
        let budget = Arc::new(ReadBudget::new(100));
        let greedy = budget.share(1000);
        let other = budget.share(1000);
        greedy.add(500);
        assert!(greedy.is_full() && !other.is_full() && other.is_half_empty());
        other.add(30);
        assert!(other.is_full(), "beyond its part");
        other.give_back(30);
        assert!(other.is_half_empty());
    }
}
