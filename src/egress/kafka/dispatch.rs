//! A run: messages that one thread takes out of a lane under the lane's lock, and hands to the producer without it.
//! Whoever only adds to the lane, the wheel above all, never waits for the client library.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::BaseRecord;

use super::lane::TopicLane;
use super::mapping::to_kafka;
use super::outcome;
use super::producer::{Flight, Producer};
use super::record;
use crate::domain::{DeadReason, InvalidReason, Refusal, Verdict};
use crate::egress::Publication;

/// The clock is asked before the first of so many hand-overs in a row: some 50 us.
const CLOCK_LOOKS: usize = 64;

/// Messages of one lane, in order. A lane has one run at a time.
pub(super) struct Run {
    pub(super) producer: Arc<Producer>,
    pub(super) publications: Vec<Publication>,
    /// They were refused together with others, and nothing else of their lane is in flight.
    pub(super) suspects: bool,
}

/// What of a run did not become a flight.
#[derive(Default)]
pub(super) struct Rest {
    /// Messages that have their verdict, and their bytes.
    pub(super) answered: usize,
    pub(super) bytes: usize,
    /// The producer takes nothing now: these and all after them.
    pub(super) back: VecDeque<Publication>,
    /// It was a run of suspects.
    pub(super) suspects: bool,
    /// The client library says that the topic is not there.
    pub(super) is_missing: bool,
}

/// What became of an attempt to hand a message to the producer.
enum Handed {
    Done,
    /// It is not there, and will not be: its verdict.
    Answer(Verdict),
    /// The producer takes nothing now.
    Full(Publication),
}

/// What a message counts for in its lane's window.
pub(super) fn weight(publication: &Publication) -> usize {
    let message = &publication.entry().message;
    message.body_len() + message.headers_len() + message.key.as_ref().map_or(0, Bytes::len)
}

impl Run {
    /// Hands it over, until the producer takes no more.
    pub(super) fn send(self, lane: &Arc<TopicLane>) -> Rest {
        let Self { producer, publications, suspects } = self;
        let mut rest = Rest { suspects, ..Rest::default() };
        let alone = suspects && publications.len() == 1;
        let mut publications = publications.into_iter();
        let (mut nth, mut now_us) = (0, 0);
        while let Some(publication) = publications.next() {
            if nth % CLOCK_LOOKS == 0 {
                now_us = lane.link.clock.mono_us();
            }
            nth += 1;
            let standing = publication.clone();
            match hand_over(lane, &producer, publication, alone, now_us) {
                Handed::Done => {}
                Handed::Answer(verdict) => {
                    rest.answered += 1;
                    rest.bytes += weight(&standing);
                    rest.is_missing |=
                        matches!(verdict, Verdict::Refused { reason: Refusal::UnknownTarget, .. });
                    standing.answer(verdict);
                }
                Handed::Full(publication) => {
                    rest.back = std::iter::once(publication).chain(publications).collect();
                    return rest;
                }
            }
        }
        rest
    }
}

fn hand_over(
    lane: &Arc<TopicLane>,
    producer: &Producer,
    publication: Publication,
    alone: bool,
    now_us: i64,
) -> Handed {
    if publication.is_late(now_us) {
        // A suspect was refused together with others, so it is not written either.
        return Handed::Answer(Verdict::NotTried);
    }
    let standing = publication.clone();
    let mapped = to_kafka(&standing.entry().message, standing.stamp());
    let bad_headers = DeadReason::Invalid(InvalidReason::BadHeaders);
    let headers = match record::headers(&mapped) {
        Ok(headers) => headers,
        Err(error) => return Handed::Answer(outcome::refused(Refusal::Hopeless(bad_headers), error)),
    };
    let flight = Flight { bytes: weight(&publication), publication, lane: lane.clone(), alone };
    let flights = producer.flights();
    let mut record = BaseRecord::with_opaque_to(&lane.topic, flights.take_off(flight));
    record.key = mapped.key.as_deref();
    record.payload = mapped.value;
    record.headers = headers;
    let Err((error, opaque)) = producer.send(record) else { return Handed::Done };
    // The producer did not take it; nothing of it has left this process.
    let Some(flight) = flights.land(opaque) else { return Handed::Done };
    let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
    if matches!(code, RDKafkaErrorCode::QueueFull | RDKafkaErrorCode::Fatal) {
        return Handed::Full(flight.publication);
    }
    Handed::Answer(match outcome::of(code, None) {
        refused @ Verdict::Refused { .. } => refused,
        // The client library itself will not have it.
        _ => outcome::refused(Refusal::NotAllowed, error.to_string()),
    })
}
