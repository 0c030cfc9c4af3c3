//! Reads a topic again, for a replay: the part of each partition that a group has read since a given time.
//! Joins no group and commits nothing.

use std::error::Error;
use std::time::Duration;

use rdkafka::Message as _;
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};

use super::{largest_record, record};
use crate::broker::kafka::{self, Connection, FetchSizes, OutageSuspicion};
use crate::domain::{Clock, KafkaPosition, Route, UnixMs};
use crate::ingress::replay::ReplayRecord;

/// Longest wait for an answer of the brokers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one poll waits for a record.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);
/// Polls for events after an error.
const EVENT_POLLS: usize = 20;
/// Longest wait of each of these polls.
const EVENT_TIMEOUT: Duration = Duration::from_millis(10);
/// Longest time without a record before the replay is given up.
const STALL_LIMIT_US: i64 = 60_000_000;

/// The part of one partition to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayWindow {
    /// The partition.
    pub partition: i32,
    /// The first offset to read.
    pub from: i64,
    /// One past the last offset to read.
    pub to: i64,
    /// The oldest offset that is still there, if records before it may have been of the wanted time.
    pub cut: Option<i64>,
    /// The partition has records and the group has committed no position: all records are still the relays' to
    /// read.
    pub unread: bool,
}

impl ReplayWindow {
    /// The number of offsets in the window: at least the number of records.
    pub fn len(&self) -> u64 {
        self.to.saturating_sub(self.from).max(0) as u64
    }

    /// Reports whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The reason why a topic cannot be read again.
#[derive(Debug, thiserror::Error)]
pub enum RereadError {
    /// No client could be made.
    #[error("kafka connection {0} cannot be used: {1}")]
    Connection(String, String),
    /// The topic is not there, or may not be seen.
    #[error("topic {0} is not there (any more)")]
    Gone(String),
    /// The brokers do not answer, or refuse.
    #[error("{0}")]
    Broker(String),
    /// Records were deleted while they were read.
    #[error(
        "partition {partition}: offset {offset} is no longer there: the topic's retention took it while it was \
         being read; begin again"
    )]
    Cut {
        /// The partition.
        partition: i32,
        /// The offset of the next record.
        offset: i64,
    },
}

/// A client that reads the past of one topic. Its calls block.
pub struct WindowReader {
    consumer: BaseConsumer<WindowContext>,
    topic: String,
    clock: Clock,
}

impl WindowReader {
    /// Makes a client for the topic that the route reads. The positions of the route's group count.
    pub fn new(
        connection: &Connection,
        group: &str,
        topic: &str,
        route: &Route,
        clock: Clock,
    ) -> Result<Self, RereadError> {
        let refused = |why: String| RereadError::Connection(connection.name.clone(), why);
        let config = connection.consumer_config(group, largest_record([route]), FetchSizes::Usual);
        let mut config = config.map_err(|error| refused(error.to_string()))?;
        config
            .set("enable.partition.eof", "true")
            .set("auto.offset.reset", "error");
        let context = WindowContext {
            connection: connection.clone(),
            suspicion: OutageSuspicion::default(),
        };
        let consumer = config.create_with_context(context);
        let consumer = consumer.map_err(|error| refused(connection.refused(error).to_string()))?;
        connection.give_token(&consumer);
        Ok(Self {
            consumer,
            topic: topic.to_owned(),
            clock,
        })
    }

    /// The window of each partition: from the first record of `since` or later, up to the group's committed
    /// position.
    pub fn windows(&self, since: UnixMs) -> Result<Vec<ReplayWindow>, RereadError> {
        let partitions = match kafka::look_up(self.consumer.client(), &self.topic, ANSWER_TIMEOUT) {
            kafka::TopicState::There { partitions } => partitions as i32,
            kafka::TopicState::Missing => return Err(RereadError::Gone(self.topic.clone())),
            kafka::TopicState::NotAllowed => {
                return Err(RereadError::Broker(format!(
                    "topic {} may not be seen",
                    self.topic
                )));
            }
            kafka::TopicState::Unreachable(why) => return Err(self.broker(&why)),
        };
        self.windows_of(partitions, since)
            .map_err(|error| self.broker(&error.to_string()))
    }

    fn windows_of(&self, partitions: i32, since: UnixMs) -> Result<Vec<ReplayWindow>, KafkaError> {
        let list = |offset: Offset| {
            let mut list = TopicPartitionList::new();
            for partition in 0..partitions {
                list.add_partition_offset(&self.topic, partition, offset)?;
            }
            Ok::<_, KafkaError>(list)
        };
        let committed = self
            .consumer
            .committed_offsets(list(Offset::Invalid)?, ANSWER_TIMEOUT)?;
        let begins = self
            .consumer
            .offsets_for_times(list(Offset::Offset(since.0))?, ANSWER_TIMEOUT)?;
        (0..partitions)
            .map(|partition| self.window(partition, &committed, &begins))
            .collect()
    }

    fn window(
        &self,
        partition: i32,
        committed: &TopicPartitionList,
        begins: &TopicPartitionList,
    ) -> Result<ReplayWindow, KafkaError> {
        let (oldest, newest) =
            self.consumer
                .fetch_watermarks(&self.topic, partition, ANSWER_TIMEOUT)?;
        let of = |list: &TopicPartitionList| match list.find_partition(&self.topic, partition) {
            Some(found) => found.error().map(|()| match found.offset() {
                Offset::Offset(offset) => Some(offset),
                _ => None,
            }),
            None => Ok(None),
        };
        let committed = of(committed)?;
        let to = committed.map_or(oldest, |at| at.min(newest));
        // There is no record of that time or later.
        let from = of(begins)?.unwrap_or(newest);
        let cut = (oldest > 0 && from <= oldest).then_some(oldest);
        let from = from.max(oldest).min(to);
        let unread = committed.is_none() && newest > oldest;
        Ok(ReplayWindow {
            partition,
            from,
            to,
            cut,
            unread,
        })
    }

    /// Reads a window from an offset on. `each` takes a record, and reports whether to go on.
    pub fn read(
        &self,
        window: &ReplayWindow,
        from: i64,
        mut each: impl FnMut(ReplayRecord) -> bool,
    ) -> Result<(), RereadError> {
        if from >= window.to {
            return Ok(());
        }
        let mut next = from;
        let mut list = TopicPartitionList::new();
        let assigned = list
            .add_partition_offset(&self.topic, window.partition, Offset::Offset(from))
            .and_then(|()| self.consumer.assign(&list));
        assigned.map_err(|error| self.broker(&error.to_string()))?;
        let mut heard_us = self.clock.mono_us();
        loop {
            match self.consumer.poll(POLL_TIMEOUT) {
                Some(Ok(message)) if message.offset() >= window.to => return Ok(()),
                Some(Ok(message)) => {
                    next = message.offset() + 1;
                    let copied = record::copy(&message);
                    let position = KafkaPosition {
                        partition: window.partition,
                        offset: message.offset(),
                    };
                    let record::CopiedRecord {
                        message,
                        malformed,
                        produced,
                        ..
                    } = copied;
                    let goes_on = each(ReplayRecord {
                        position,
                        message,
                        malformed,
                        produced,
                    });
                    if !goes_on || next >= window.to {
                        return Ok(());
                    }
                    // It may have waited for the route's gate for long.
                    heard_us = self.clock.mono_us();
                }
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok(()),
                Some(Err(error)) => match error.rdkafka_error_code() {
                    Some(
                        RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange,
                    ) => {
                        return Err(RereadError::Cut {
                            partition: window.partition,
                            offset: next,
                        });
                    }
                    Some(
                        RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic,
                    ) => {
                        return Err(RereadError::Gone(self.topic.clone()));
                    }
                    Some(RDKafkaErrorCode::TopicAuthorizationFailed) => {
                        return Err(RereadError::Broker(format!(
                            "topic {} may not be read",
                            self.topic
                        )));
                    }
                    // The client library connects again by itself.
                    _ => {}
                },
                None => {}
            }
            if self.clock.mono_us() - heard_us > STALL_LIMIT_US {
                return Err(self.broker("no record came for a minute"));
            }
        }
    }

    /// An error with the reason that the client library gives. It tells reasons only to a caller that polls.
    fn broker(&self, what: &str) -> RereadError {
        for _ in 0..EVENT_POLLS {
            drop(self.consumer.poll(EVENT_TIMEOUT));
        }
        RereadError::Broker(format!(
            "kafka cannot be used: {}",
            self.consumer.context().suspicion.explain(what)
        ))
    }
}

/// Remembers the client library's errors about the brokers.
struct WindowContext {
    connection: Connection,
    suspicion: OutageSuspicion,
}

impl ClientContext for WindowContext {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        self.connection.oauth_token()
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        kafka::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.suspicion.error(&error, reason);
    }
}

impl ConsumerContext for WindowContext {}
