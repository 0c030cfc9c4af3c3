//! What comes into a topic from now on, for who measures: a reading position of its own, no group is joined,
//! nothing is committed, nobody else's reading changes.

use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Headers as _;
use rdkafka::{Message as _, Offset, TopicPartitionList};

use crate::broker::kafka::{self, Connection, TopicState};
use crate::domain::Clock;

/// How long the brokers may take for an answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How long one poll waits for a record: so late an end is noticed.
const POLL: Duration = Duration::from_millis(50);
/// The client's name for a group that it never joins.
const GROUP: &str = "postdate-bench";

/// A reader that stands at the end of each partition. Its calls block.
pub struct Tail(BaseConsumer<Quiet>);

impl Tail {
    /// Looks up where each partition of a topic ends now. `Err` says why that cannot be done.
    pub fn open(connection: &Connection, topic: &str) -> Result<Self, String> {
        let mut config = connection.consumer_config(GROUP).map_err(|error| error.to_string())?;
        // A partition that loses its place (the topic was made anew) goes on at what is new.
        config.set("auto.offset.reset", "latest");
        let consumer: BaseConsumer<Quiet> =
            config.create_with_context(Quiet).map_err(|error| connection.refused(error).to_string())?;
        let partitions = match kafka::look_up(consumer.client(), topic, ANSWER) {
            TopicState::There { partitions } => partitions as i32,
            TopicState::Missing => return Err(format!("topic {topic} is missing")),
            TopicState::NotAllowed => return Err(format!("topic {topic} may not be seen")),
            TopicState::Unreachable(why) => return Err(format!("kafka does not answer: {why}")),
        };
        let assigned = || {
            let mut ends = TopicPartitionList::new();
            for partition in 0..partitions {
                let (_, end) = consumer.fetch_watermarks(topic, partition, ANSWER)?;
                ends.add_partition_offset(topic, partition, Offset::Offset(end))?;
            }
            consumer.assign(&ends)
        };
        assigned().map_err(|error: KafkaError| format!("topic {topic} cannot be read: {error}"))?;
        Ok(Self(consumer))
    }

    /// Reads until `ended`. `each` takes the value of the named header of each record that has it, and when it was
    /// received (wall clock, microseconds). `Err` says why it cannot go on; what passes is waited out.
    pub fn read(
        &self,
        clock: Clock,
        header: &str,
        ended: impl Fn() -> bool,
        mut each: impl FnMut(&[u8], i64),
    ) -> Result<(), String> {
        while !ended() {
            match self.0.poll(POLL) {
                Some(Ok(record)) => {
                    let at_us = clock.wall_us();
                    let found = record.headers().and_then(|headers| headers.iter().find(|h| h.key == header));
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

/// Keeps the client library's own log out of the way.
struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        kafka::log(level, facility, message);
    }
}

impl ConsumerContext for Quiet {}
