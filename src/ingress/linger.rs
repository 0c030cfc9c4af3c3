//! The linger buffer of a route: under load, messages that are due far ahead wait a moment at ingress, so that
//! messages of several batches and of all sources of the route share bundles. Messages with widely spread
//! delays find no partner in a batch of their own, and a bundle of one message costs the store six times as
//! much a message as a bundle of ten.
//!
//! Only unnamed messages from Kafka linger, because order means nothing between them, and only while the
//! arrival rate is high: in a trickle no two messages would meet. RabbitMQ messages never linger, because a
//! queue lends a consumer `prefetch` messages at a time and would lend no more meanwhile. The store's answer
//! releases the sources of lingering messages, as it does for all others. Messages that are lost with the
//! process are read again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::bundling::{MAX_SPAN_MS, PlacedMessage, StoreWork};
use super::kafka::{RECORD_OVERHEAD, WINDOW_BYTES, WINDOW_RECORDS};
use crate::domain::{Entry, Header, KafkaPosition, Partition, Partitions, Route, UnixMs};

/// How long a message lingers.
pub(super) const LINGER: Duration = Duration::from_millis(250);
/// Minimum delay for a message to linger: 100 x `LINGER`.
const MIN_DELAY_MS: i64 = 25_000;
/// Messages that must arrive within one `LINGER` before any lingers.
const MIN_RATE: usize = 2048;
/// Limit of the whole buffer.
const MAX_BUFFERED: BufferSize = BufferSize {
    messages: WINDOW_RECORDS,
    bytes: WINDOW_BYTES,
};
/// Limit of one source: half of its read-ahead, so that the consumer reads on meanwhile.
const MAX_PER_SOURCE: BufferSize = BufferSize {
    messages: WINDOW_RECORDS / 2,
    bytes: WINDOW_BYTES / 2,
};
/// Partitions a flush is spread over. Fewer partitions mean fuller bundles; more than one keeps the load even.
const FLUSH_PARTITIONS: usize = 4;

/// The linger buffer of one route.
pub(super) struct LingerBuffer {
    route: Arc<Route>,
    partitions: Partitions,
    state: Mutex<LingerState>,
}

/// The contents and counters of a buffer.
#[derive(Default)]
struct LingerState {
    buffered: Option<BufferedWork>,
    rate: ArrivalRate,
    /// Number of the buffer that fills now. A flush ends it.
    generation: u64,
}

/// The messages that linger now, bundled already.
struct BufferedWork {
    work: StoreWork,
    all: BufferSize,
    /// Sizes by Kafka partition. Partitions of two topics that share a number count together.
    sources: BTreeMap<i32, BufferSize>,
    partitions: [Partition; FLUSH_PARTITIONS],
}

impl BufferedWork {
    /// The partition of a message of this due time. Messages of one span share it.
    fn partition_of(&self, due: UnixMs) -> Partition {
        let span = due.0.div_euclid(MAX_SPAN_MS);
        self.partitions[span.rem_euclid(FLUSH_PARTITIONS as i64) as usize]
    }
}

#[derive(Clone, Copy, Default)]
struct BufferSize {
    messages: usize,
    bytes: usize,
}

impl BufferSize {
    fn add(&mut self, more: Self) {
        self.messages += more.messages;
        self.bytes += more.bytes;
    }

    fn reaches(self, limit: Self) -> bool {
        self.messages >= limit.messages || self.bytes >= limit.bytes
    }
}

/// The buffer's answer to an offer of messages.
pub(super) enum Offer {
    /// Too few messages arrive: the caller stores these with their own batch.
    Bypass(Vec<PlacedMessage>),
    /// The messages linger. The caller that started the timer flushes them.
    Buffered,
    /// The messages linger as the first of this generation: the caller must [flush](LingerBuffer::flush) it
    /// after [`LINGER`].
    StartTimer(u64),
    /// The buffer is full: the caller must store all of it now.
    Flush(StoreWork),
}

impl LingerBuffer {
    pub(super) fn new(route: Arc<Route>, partitions: Partitions) -> Self {
        Self {
            route,
            partitions,
            state: Mutex::default(),
        }
    }

    /// Reports whether a message has a Kafka position and enough delay to linger.
    pub(super) fn may_linger(entry: &Entry, now: UnixMs) -> bool {
        entry.position.is_some() && entry.due.since(now) >= MIN_DELAY_MS
    }

    /// Takes messages of one source that arrived together. Each has the partition that stores it if it does not linger. `now` is the time by the store's clock, `mono_us`
    /// the monotonic one in microseconds.
    pub(super) fn offer(&self, messages: Vec<PlacedMessage>, now: UnixMs, mono_us: i64) -> Offer {
        let Some(KafkaPosition {
            partition: source,
            offset,
        }) = messages.first().and_then(|first| first.entry.position)
        else {
            return Offer::Buffered;
        };
        let state = &mut *self.state.lock();
        if !state.rate.is_high(messages.len(), mono_us) && state.buffered.is_none() {
            return Offer::Bypass(messages);
        }
        let first = state.buffered.is_none();
        let buffered = state
            .buffered
            .get_or_insert_with(|| self.begin(now, offset));
        let mut came = BufferSize {
            messages: messages.len(),
            bytes: 0,
        };
        for mut placed in messages {
            let message = &placed.entry.message;
            came.bytes +=
                message.size() + message.headers.len() * Header::OVERHEAD + RECORD_OVERHEAD;
            placed.partition = buffered.partition_of(placed.entry.due);
            buffered.work.store(placed);
        }
        let of_one = buffered.sources.entry(source).or_default();
        of_one.add(came);
        buffered.all.add(came);
        if (of_one.reaches(MAX_PER_SOURCE) || buffered.all.reaches(MAX_BUFFERED))
            && let Some(buffered) = state.buffered.take()
        {
            state.generation += 1;
            return Offer::Flush(buffered.work);
        }
        if first {
            Offer::StartTimer(state.generation)
        } else {
            Offer::Buffered
        }
    }

    /// Takes the messages that linger, if they are still of this generation.
    pub(super) fn flush(&self, generation: u64) -> Option<StoreWork> {
        let state = &mut *self.state.lock();
        let buffered = if state.generation == generation {
            state.buffered.take()
        } else {
            None
        };
        state.generation += u64::from(buffered.is_some());
        buffered.map(|buffered| buffered.work)
    }

    /// Begins a generation. `offset` is the first message's: it picks the partitions.
    fn begin(&self, now: UnixMs, offset: i64) -> BufferedWork {
        let name = self.route.name.as_str();
        let partitions = std::array::from_fn(|n| {
            self.partitions
                .of_block(name, offset as u64 * FLUSH_PARTITIONS as u64 + n as u64)
        });
        let work = StoreWork::new(self.route.clone(), now);
        BufferedWork {
            work,
            all: BufferSize::default(),
            sources: BTreeMap::new(),
            partitions,
        }
    }
}

/// Arrivals in the running `LINGER` period and in the one before.
#[derive(Default)]
struct ArrivalRate {
    began_us: i64,
    now: usize,
    before: usize,
}

impl ArrivalRate {
    /// Counts more arrivals, and reports whether the rate is high.
    fn is_high(&mut self, more: usize, mono_us: i64) -> bool {
        let linger_us = LINGER.as_micros() as i64;
        let elapsed_us = mono_us - self.began_us;
        if elapsed_us >= linger_us {
            self.before = if elapsed_us < 2 * linger_us {
                self.now
            } else {
                0
            };
            self.began_us = mono_us;
            self.now = 0;
        }
        self.now += more;
        self.now.max(self.before) >= MIN_RATE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{TargetRef, testing};
    use crate::ingress::Ledger;

    /// Messages that are due an hour ahead, each one span after the one before.
    fn messages(count: i64) -> Vec<PlacedMessage> {
        messages_of(0, count)
    }

    fn messages_of(source: i32, count: i64) -> Vec<PlacedMessage> {
        let ledger = Ledger::new();
        let message = |n: i64| {
            let mut entry = testing::entry(UnixMs(3_600_000 + n % 10 * MAX_SPAN_MS), b"body");
            entry.position = Some(KafkaPosition {
                partition: source,
                offset: n,
            });
            PlacedMessage {
                target: TargetRef::Own,
                entry,
                receipt: ledger.enter(n),
                partition: Partition(63),
            }
        };
        (0..count).map(message).collect()
    }

    fn buffer() -> LingerBuffer {
        LingerBuffer::new(testing::route(), Partitions::new(64).expect("some"))
    }

    fn bundles(work: StoreWork) -> Vec<(Partition, usize)> {
        work.finish()
            .into_iter()
            .map(|(p, work)| (p, work.ops.len()))
            .collect()
    }

    #[test]
    fn a_trickle_waits_for_nobody() {
        let buffer = buffer();
        for round in 0..100 {
            let met = buffer.offer(messages(100), UnixMs(0), round * 20_000);
            assert!(
                matches!(met, Offer::Bypass(alone) if alone.len() == 100),
                "{round}"
            );
        }
    }

    #[test]
    fn many_wait_and_share_their_bundles() {
        let buffer = buffer();
        let Offer::StartTimer(generation) = buffer.offer(messages(2100), UnixMs(0), 0) else {
            panic!("the first to wait")
        };
        assert!(matches!(
            buffer.offer(messages(50), UnixMs(0), 40_000),
            Offer::Buffered
        ));
        assert!(buffer.flush(generation + 1).is_none(), "another buffer");
        let stored = bundles(buffer.flush(generation).expect("those that wait"));
        assert_eq!(
            stored.iter().map(|(_, bundles)| bundles).sum::<usize>(),
            10,
            "one a span: {stored:?}"
        );
        assert!(
            stored.len() > 1 && stored.len() <= FLUSH_PARTITIONS,
            "{stored:?}"
        );
        assert!(buffer.flush(generation).is_none(), "they have left");
        // The rate was high just now, so the next messages linger as well. Later, at a low rate, none does.
        let Offer::StartTimer(next) = buffer.offer(messages(50), UnixMs(0), 100_000) else {
            panic!("the first of the next generation")
        };
        assert_ne!(next, generation);
        assert!(buffer.flush(generation + 1).is_some());
        assert!(matches!(
            buffer.offer(messages(50), UnixMs(0), 900_000),
            Offer::Bypass(_)
        ));
    }

    #[test]
    fn a_full_buffer_is_flushed_at_once() {
        let buffer = buffer();
        let Offer::StartTimer(generation) = buffer.offer(messages(32_000), UnixMs(0), 0) else {
            panic!("the first to wait")
        };
        let Offer::Flush(work) = buffer.offer(messages(1000), UnixMs(0), 1000) else {
            panic!("no room for more")
        };
        assert_eq!(
            bundles(work)
                .iter()
                .map(|(_, bundles)| bundles)
                .sum::<usize>(),
            70,
            "of 500 at most"
        );
        assert!(buffer.flush(generation).is_none());
        assert!(matches!(
            buffer.offer(messages(1), UnixMs(0), 2000),
            Offer::StartTimer(_)
        ));
    }

    #[test]
    fn of_several_sources_more_may_wait() {
        let buffer = buffer();
        assert!(matches!(
            buffer.offer(messages(32_000), UnixMs(0), 0),
            Offer::StartTimer(_)
        ));
        assert!(matches!(
            buffer.offer(messages_of(1, 32_000), UnixMs(0), 1000),
            Offer::Buffered
        ));
        let Offer::Flush(work) = buffer.offer(messages_of(2, 2000), UnixMs(0), 2000) else {
            panic!("all are too many")
        };
        assert_eq!(
            bundles(work)
                .iter()
                .map(|(_, bundles)| bundles)
                .sum::<usize>(),
            140,
            "of 500 at most"
        );
    }

    #[test]
    fn a_buffer_is_full_by_its_bytes_too() {
        let buffer = buffer();
        assert!(matches!(
            buffer.offer(messages(2100), UnixMs(0), 0),
            Offer::StartTimer(_)
        ));
        let mut large = messages(100);
        for messages in &mut large {
            messages.entry.message.body = Some(vec![0; MAX_PER_SOURCE.bytes / 100].into());
        }
        assert!(matches!(
            buffer.offer(large, UnixMs(0), 1000),
            Offer::Flush(_)
        ));
    }

    #[test]
    fn what_is_near_or_has_no_offset_does_not_wait() {
        let mut entry = messages(1).remove(0).entry;
        assert!(LingerBuffer::may_linger(&entry, UnixMs(0)));
        assert!(!LingerBuffer::may_linger(
            &entry,
            UnixMs(3_600_000 - MIN_DELAY_MS + 1)
        ));
        entry.position = None;
        assert!(!LingerBuffer::may_linger(&entry, UnixMs(0)));
    }
}
