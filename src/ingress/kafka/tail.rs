//! Reads a topic from its end on, for measurements. Joins no group, commits nothing, and changes nobody else's
//! position.

use std::error::Error;
use std::time::Duration;

use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Headers as _;
use rdkafka::{Message as _, Offset, TopicPartitionList};

use crate::broker::kafka::{self, Connection, FetchSizes, TopicState};
use crate::domain::Clock;

/// Longest wait for an answer of the brokers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one poll waits for a record. The end is noticed this late.
const POLL_TIMEOUT: Duration = Duration::from_millis(50);
/// The client's name for a group that it never joins.
const TAIL_GROUP: &str = "postdate-bench";

/// A reader that starts at the end of each partition. Its calls block.
pub struct TopicTail(BaseConsumer<TailContext>);

impl TopicTail {
    /// Looks up the end of each partition of a topic. `Err` gives the reason if that fails.
    pub fn open(connection: &Connection, topic: &str) -> Result<Self, String> {
        let mut config = connection
            .consumer_config(TAIL_GROUP, 0, FetchSizes::Usual)
            .map_err(|error| error.to_string())?;
        // A partition that loses its position (the topic was created anew) goes on at new records.
        config.set("auto.offset.reset", "latest");
        let consumer: BaseConsumer<TailContext> = config
            .create_with_context(TailContext(connection.clone()))
            .map_err(|error| connection.refused(error).to_string())?;
        connection.give_token(&consumer);
        let partitions = match kafka::look_up(consumer.client(), topic, ANSWER_TIMEOUT) {
            TopicState::There { partitions } => partitions as i32,
            TopicState::Missing => return Err(format!("topic {topic} is missing")),
            TopicState::NotAllowed => return Err(format!("topic {topic} may not be seen")),
            TopicState::Unreachable(why) => return Err(format!("kafka does not answer: {why}")),
        };
        let tail = Self(consumer);
        tail.assign_ends(topic, partitions)
            .map_err(|error| format!("topic {topic} cannot be read: {error}"))?;
        Ok(tail)
    }

    /// Places the reader at the end of each partition.
    fn assign_ends(&self, topic: &str, partitions: i32) -> Result<(), KafkaError> {
        let mut ends = TopicPartitionList::new();
        for partition in 0..partitions {
            let (_, end) = self.0.fetch_watermarks(topic, partition, ANSWER_TIMEOUT)?;
            ends.add_partition_offset(topic, partition, Offset::Offset(end))?;
        }
        self.0.assign(&ends)
    }

    /// Reads until `ended`. `each` takes the named header's value of each record that has it, and the time of
    /// receipt (wall clock, microseconds). `Err` gives the reason why reading cannot go on. Passing errors are
    /// waited out.
    pub fn read(
        &self,
        clock: Clock,
        header: &str,
        ended: impl Fn() -> bool,
        mut each: impl FnMut(&[u8], i64),
    ) -> Result<(), String> {
        while !ended() {
            match self.0.poll(POLL_TIMEOUT) {
                Some(Ok(record)) => {
                    let at_us = clock.wall_us();
                    let found = record
                        .headers()
                        .and_then(|headers| headers.iter().find(|h| h.key == header));
                    if let Some(value) = found.and_then(|found| found.value) {
                        each(value, at_us);
                    }
                }
                Some(Err(error)) if is_gone(&error) => {
                    return Err(format!("the target topic cannot be read any more: {error}"));
                }
                // The client library connects again by itself.
                Some(Err(_)) | None => {}
            }
        }
        Ok(())
    }
}

fn is_gone(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::UnknownTopic
                | RDKafkaErrorCode::TopicAuthorizationFailed
        )
    )
}

/// Forwards the client library's own log, and its questions for tokens.
struct TailContext(Connection);

impl ClientContext for TailContext {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        self.0.oauth_token()
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        kafka::log(level, facility, message);
    }
}

impl ConsumerContext for TailContext {}
