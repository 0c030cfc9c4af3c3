//! Probes the batch at which a partition stands: can it really not be opened, and how far does it go?
//!
//! The client library's reports name neither topic nor partition. A probe is therefore a client of its own that reads
//! this one partition and fetches one batch at a time: whatever it reports is about that batch. It joins no group and
//! commits nothing.
//!
//! The client library shows no batch header. It reports the base offset of the batch instead, so an offset belongs to
//! the batch if fetching there reports the same base offset.

use std::error::Error;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::statistics::Statistics;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::oneshot;

use super::assignment::{OffsetRange, TopicPartition};
use super::standstill::{CUT_SHORT, batch_offset};
use crate::broker::kafka::{self, Connection};
use crate::domain::Clock;

/// A probe of the batch at which a partition stands.
pub(super) struct RunningProbe {
    pub(super) key: TopicPartition,
    pub(super) offset: i64,
    pub(super) found: oneshot::Receiver<UndecodableBatch>,
}

/// Longest wait for a word about one offset.
const LOOK_LIMIT_US: i64 = 3_000_000;
/// Longest probe.
const PROBE_LIMIT_US: i64 = 20_000_000;
/// How long one poll waits.
const POLL_TIMEOUT: Duration = Duration::from_millis(20);
/// Most offsets that one probe covers. A batch may have more: the partition then stands again behind them.
pub(super) const MAX_OFFSETS: i64 = 1024;
/// A batch is cut short if so many answers were partial, and no record came for this long. Fetched alone, a whole batch
/// is never answered in part.
const CUT_SHORT_ANSWERS: u64 = 3;
const CUT_SHORT_US: i64 = 1_000_000;

/// Properties of a probe that differ from those of its group's consumer.
const PROBE_PROPERTIES: [(&str, &str); 6] = [
    // The broker sends the batch of the offset alone: it sends one whole batch at least.
    ("fetch.message.max.bytes", "1"),
    // The client library asks again at once for a batch that it cannot open.
    ("fetch.error.backoff.ms", "10"),
    ("fetch.wait.max.ms", "100"),
    ("statistics.interval.ms", "100"),
    ("enable.partition.eof", "true"),
    // An offset behind the log's end is no place to begin anew.
    ("auto.offset.reset", "error"),
];

/// The place at which a partition stands.
pub(super) struct ProbePlace {
    pub(super) connection: Connection,
    /// The configuration of the consumer that stands.
    pub(super) config: ClientConfig,
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) offset: i64,
    pub(super) clock: Clock,
}

/// Offsets of one batch that cannot be opened, from the one at which the partition stands.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UndecodableBatch {
    pub(super) offsets: OffsetRange,
    /// The client library's reason.
    pub(super) why: String,
}

/// What is found at an offset.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// The batch with this base offset cannot be opened.
    Unopened { batch: i64, why: String },
    /// The batch is cut short. Nothing tells its base offset.
    CutShort,
    /// A record, or an end of the log.
    Readable,
    /// No word came in time.
    Nothing,
}

/// Probes the batch at an offset. `None`: it can be opened, or nothing is known of it. Blocks, for [`PROBE_LIMIT_US`] at
/// most, and ends early once `is_over` says so. `Err` gives the reason why no client could be made.
pub(super) fn probe(
    place: &ProbePlace,
    is_over: &dyn Fn() -> bool,
) -> Result<Option<UndecodableBatch>, KafkaError> {
    let begin = place.offset;
    let until_us = place.clock.mono_us() + PROBE_LIMIT_US;
    let client = ProbeClient::open(place, until_us, is_over)?;
    let (batch, why) = match client.look(begin)? {
        Found::Unopened { batch, why } => (batch, why),
        Found::CutShort => {
            return Ok(Some(UndecodableBatch {
                offsets: one(begin),
                why: CUT_SHORT.to_owned(),
            }));
        }
        Found::Readable | Found::Nothing => return Ok(None),
    };
    let mut offsets = OffsetRange {
        from: begin,
        to: find_end(begin, batch, |offset| client.is_in(offset, batch))?,
    };
    // A report may be late, and then it is about the offset before. The first report of another client is not.
    if offsets.len() > 1 {
        let witness = ProbeClient::open(place, until_us, is_over)?;
        if !witness.is_in(offsets.to - 1, batch)? {
            offsets = one(begin);
        }
    }
    Ok(Some(UndecodableBatch { offsets, why }))
}

fn one(offset: i64) -> OffsetRange {
    OffsetRange {
        from: offset,
        to: offset + 1,
    }
}

/// One past the last offset of a batch, or of the offsets that one probe covers. `begin` is an offset in the batch, or
/// before it where there is none between. `is_in` tells of later ones. Doubles the distance until it is outside the
/// batch, then halves the rest.
fn find_end<E>(begin: i64, batch: i64, is_in: impl Fn(i64) -> Result<bool, E>) -> Result<i64, E> {
    let limit = begin + MAX_OFFSETS;
    let mut inside = begin.max(batch).min(limit - 1);
    let mut distance = 1;
    let mut outside = loop {
        let offset = inside + distance;
        if offset >= limit {
            break limit;
        }
        if !is_in(offset)? {
            break offset;
        }
        inside = offset;
        distance *= 2;
    };
    while outside - inside > 1 {
        let middle = inside + (outside - inside) / 2;
        if is_in(middle)? {
            inside = middle;
        } else {
            outside = middle;
        }
    }
    Ok(inside + 1)
}

/// A client that reads one partition.
struct ProbeClient<'a> {
    consumer: BaseConsumer<ProbeContext>,
    place: &'a ProbePlace,
    until_us: i64,
    is_over: &'a dyn Fn() -> bool,
}

impl<'a> ProbeClient<'a> {
    fn open(
        place: &'a ProbePlace,
        until_us: i64,
        is_over: &'a dyn Fn() -> bool,
    ) -> Result<Self, KafkaError> {
        let mut config = place.config.clone();
        // Two names of one property.
        config.remove("max.partition.fetch.bytes");
        for (name, value) in PROBE_PROPERTIES {
            config.set(name, value);
        }
        let consumer: BaseConsumer<ProbeContext> = config.create_with_context(ProbeContext {
            connection: place.connection.clone(),
            words: Mutex::default(),
        })?;
        place.connection.give_token(&consumer);
        Ok(Self {
            consumer,
            place,
            until_us,
            is_over,
        })
    }

    /// Reports whether an offset belongs to the batch with this base offset, which cannot be opened.
    fn is_in(&self, offset: i64, batch: i64) -> Result<bool, KafkaError> {
        let found = self.look(offset)?;
        Ok(matches!(found, Found::Unopened { batch: at, .. } if at == batch))
    }

    /// Fetches at an offset until something is known of it.
    fn look(&self, offset: i64) -> Result<Found, KafkaError> {
        let ProbePlace {
            topic,
            partition,
            clock,
            ..
        } = self.place;
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, *partition, Offset::Offset(offset))?;
        self.consumer.assign(&list)?;
        let words = &self.consumer.context().words;
        *words.lock() = ProbeWords::default();
        let began_us = clock.mono_us();
        let until_us = self.until_us.min(began_us + LOOK_LIMIT_US);
        while clock.mono_us() < until_us && !(self.is_over)() {
            match self.consumer.poll(POLL_TIMEOUT) {
                Some(Ok(_) | Err(KafkaError::PartitionEOF(_))) => return Ok(Found::Readable),
                Some(Err(error)) if is_outside(&error) => return Ok(Found::Readable),
                // The client library connects again by itself. What it cannot open is in the words.
                Some(Err(_)) | None => {}
            }
            let mut words = words.lock();
            if let Some((batch, why)) = words.report.take() {
                return Ok(Found::Unopened { batch, why });
            }
            let is_silent = clock.mono_us() - began_us >= CUT_SHORT_US;
            if is_silent && words.partial_answers >= CUT_SHORT_ANSWERS {
                return Ok(Found::CutShort);
            }
        }
        Ok(Found::Nothing)
    }
}

/// Reports whether an error says that the log does not have the offset.
fn is_outside(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange)
    )
}

/// Reports whether the records themselves are why they cannot be opened. Memory that is short for the moment, and an
/// answer that is too large for the connection, are not.
fn is_about_records(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::BadMessage | Code::BadCompression | Code::InvalidMessage | Code::NotImplemented
    )
}

/// What the client library has said since the last look began.
#[derive(Debug, Default)]
struct ProbeWords {
    /// The base offset of a batch that cannot be opened, and why.
    report: Option<(i64, String)>,
    /// Answers that were partial, as of the last statistics.
    partial_answers: u64,
}

struct ProbeContext {
    connection: Connection,
    words: Mutex<ProbeWords>,
}

impl ClientContext for ProbeContext {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        self.connection.oauth_token()
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        kafka::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if let (Some(code), Some(batch)) = (error.rdkafka_error_code(), batch_offset(reason))
            && is_about_records(code)
        {
            let why = reason.trim_end_matches('.').to_owned();
            self.words.lock().report = Some((batch, why));
        }
    }

    fn stats(&self, statistics: Statistics) {
        let brokers = statistics.brokers.values();
        self.words.lock().partial_answers = brokers.map(|broker| broker.rxpartial).sum();
    }
}

impl ConsumerContext for ProbeContext {}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn only_the_records_themselves_are_a_reason() {
        use RDKafkaErrorCode as Code;
        for (code, expected) in [
            (Code::BadCompression, true),
            (Code::BadMessage, true),
            (Code::NotImplemented, true),
            (Code::CriticalSystemResource, false),
            (Code::MessageSizeTooLarge, false),
            (Code::BrokerTransportFailure, false),
            (Code::OperationTimedOut, false),
            (Code::TopicAuthorizationFailed, false),
            (Code::NotLeaderForPartition, false),
        ] {
            assert_eq!(is_about_records(code), expected, "{code:?}");
        }
    }

    #[test]
    fn the_end_of_a_batch_is_found_wherever_it_is_and_only_so_far_as_a_probe_goes() {
        for begin in [0, 3, 1000] {
            for length in [1, 2, 3, 4, 5, 31, 32, 33, 500, 1023, 1024, 1025, 100_000] {
                let end = begin + length;
                let is_in = |offset| Ok::<_, Infallible>((begin..end).contains(&offset));
                let found = find_end(begin, begin, is_in).unwrap_or_else(|never| match never {});
                assert_eq!(found, end.min(begin + MAX_OFFSETS), "{begin} + {length}");
            }
        }
        // The log has nothing between the offset and the batch.
        let is_in = |offset| Ok::<_, Infallible>((7..9).contains(&offset));
        assert_eq!(find_end(4, 7, is_in), Ok(9));
        // A good batch, and another bad one behind it, are outside.
        let is_in = |offset| Ok::<_, Infallible>((0..3).contains(&offset));
        assert_eq!(find_end(1, 0, is_in), Ok(3));
    }
}
