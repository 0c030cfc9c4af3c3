//! Sends a run: messages that one thread takes out of a lane under the lock of the lane, and gives to the producer
//! without that lock. Submitters, the wheel above all, never wait for the client library.

use std::sync::Arc;

use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::BaseRecord;

use super::in_flight::InFlightMessage;
use super::lane::TopicLane;
use super::mapping::to_kafka;
use super::outcome;
use super::partitions::{Addressed, TakenRun, weight};
use super::producer::KafkaProducer;
use super::record;
use crate::domain::{Refusal, Verdict};
use crate::egress::Publication;

/// Messages that are sent, in some 50 us, between two readings of the clock.
const SENDS_PER_CLOCK_READ: usize = 64;

/// Messages of one lane, in order. A lane has one run at a time.
pub(super) struct SendRun {
    pub(super) producer: Arc<KafkaProducer>,
    pub(super) run: TakenRun,
}

/// Messages of a run that did not get into the producer.
#[derive(Default)]
pub(super) struct RunRemainder {
    /// Partition and bytes of each message that has its verdict.
    pub(super) answered: Vec<(usize, usize)>,
    /// Messages from the first on that the producer had no room for.
    pub(super) back: Vec<Addressed>,
    /// True if it was a run of suspects.
    pub(super) suspects: bool,
    pub(super) missing: Option<MissingPart>,
}

/// What the client library does not know, by its own answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingPart {
    Topic,
    /// The topic has fewer partitions than it had.
    Partition,
}

/// Result of giving one message to the producer.
enum SendResult {
    Sent,
    /// The message will never get into the producer: its verdict.
    Answered(Verdict),
    /// The producer has no room now.
    Full(Publication),
    /// The producer does not know the partition.
    NoPartition(Publication),
}

impl SendRun {
    /// Gives the messages to the producer, in order, until it has no room. A message that it refuses gets its verdict
    /// here. The others come back in the remainder.
    pub(super) fn send(self, lane: &Arc<TopicLane>) -> RunRemainder {
        let Self {
            producer,
            run: TakenRun { messages, suspects },
        } = self;
        let mut remainder = RunRemainder {
            suspects,
            ..RunRemainder::default()
        };
        let alone = suspects && messages.len() == 1;
        let mut messages = messages.into_iter();
        let mut nth = 0;
        let mut now_us = 0;
        while let Some(message) = messages.next() {
            if nth % SENDS_PER_CLOCK_READ == 0 {
                now_us = lane.connection.clock.mono_us();
            }
            nth += 1;
            let Addressed {
                partition,
                publication: original,
            } = message.clone();
            let publication = match send_one(lane, &producer, message, alone, now_us) {
                SendResult::Sent => continue,
                SendResult::Answered(verdict) => {
                    remainder.answered.push((partition, weight(&original)));
                    if matches!(
                        verdict,
                        Verdict::Refused {
                            reason: Refusal::UnknownTarget,
                            ..
                        }
                    ) {
                        remainder.missing = Some(MissingPart::Topic);
                    }
                    original.answer(verdict);
                    continue;
                }
                SendResult::Full(publication) => publication,
                SendResult::NoPartition(publication) => {
                    remainder.missing.get_or_insert(MissingPart::Partition);
                    publication
                }
            };
            let first = Addressed {
                partition,
                publication,
            };
            remainder.back = std::iter::once(first).chain(messages).collect();
            return remainder;
        }
        remainder
    }
}

fn send_one(
    lane: &Arc<TopicLane>,
    producer: &KafkaProducer,
    Addressed {
        partition,
        publication,
    }: Addressed,
    alone: bool,
    now_us: i64,
) -> SendResult {
    if let Some(verdict) = publication.too_late(now_us) {
        // This is true of a suspect too: its batch was refused, so it is not written.
        return SendResult::Answered(verdict);
    }
    let original = publication.clone();
    let mapped = to_kafka(&original.entry().message, original.delay_headers());
    let headers = match record::headers(&mapped) {
        Ok(headers) => headers,
        Err(error) => return SendResult::Answered(outcome::refused(Refusal::Unpublishable, error)),
    };
    let message = InFlightMessage {
        bytes: weight(&publication),
        publication,
        lane: lane.clone(),
        partition,
        handed_us: now_us,
        alone,
    };
    let in_flight = producer.in_flight();
    let mut record = BaseRecord::with_opaque_to(&lane.topic, in_flight.insert(message));
    record.partition = i32::try_from(partition).ok();
    record.key = mapped.key.as_deref();
    record.payload = mapped.value;
    record.headers = headers;
    let Err((error, opaque)) = producer.send(record) else {
        original.sent();
        return SendResult::Sent;
    };
    // The producer did not accept the message: nothing of it has left this process.
    let Some(message) = in_flight.remove(opaque) else {
        return SendResult::Sent;
    };
    let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
    if matches!(code, RDKafkaErrorCode::QueueFull | RDKafkaErrorCode::Fatal) {
        return SendResult::Full(message.publication);
    }
    if code == RDKafkaErrorCode::UnknownPartition {
        return SendResult::NoPartition(message.publication);
    }
    SendResult::Answered(match outcome::verdict_of(code, None) {
        refused @ Verdict::Refused { .. } => refused,
        // The client library itself refused the message.
        _ => outcome::refused(Refusal::NotAllowed, error.to_string()),
    })
}
