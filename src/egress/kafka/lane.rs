//! The lane to one topic: its queue, its window, its gate.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::BaseRecord;

use super::link::{Link, Pace};
use super::mapping::to_kafka;
use super::outcome;
use super::producer::{Flight, Producer};
use super::record;
use crate::broker::kafka::TopicState;
use crate::domain::Verdict;
use crate::domain::verdict::Refusal;
use crate::egress::{Lane, Publication};

/// Most messages of one lane in the producer.
const WINDOW_MESSAGES: usize = 20_000;
/// Most bytes of one lane in the producer; one message may go beyond.
const WINDOW_BYTES: usize = 64 << 20;
/// The clock is asked before the first of so many hand-overs in a row: some 50 us.
const CLOCK_LOOKS: usize = 64;
/// While so many are in flight, others gather behind them, about so long.
const GATHER_BEHIND: usize = 128;
const GATHER_US: i64 = 4_000;
/// With so many waiting a lane goes over to the bulk producer ...
const BULK_FROM: usize = 1024;
/// ... and back to the prompt one with fewer waiting and in flight ...
const BULK_UNTIL: usize = 256;
/// ... once nothing is in flight, for which it waits so long: a partition may hang, others need not.
const CHANGE_US: i64 = 50_000;
/// How long a missing topic is taken for missing before it is looked for again.
const SHUT_US: i64 = 1_000_000;

/// The way to one Kafka topic.
#[derive(Debug)]
pub struct KafkaLane(pub(super) Arc<TopicLane>);

impl Lane for KafkaLane {
    fn submit_all(&self, publications: Vec<Publication>) {
        let mut state = self.0.state.lock();
        state.queue.extend(publications);
        self.0.pump(&mut state);
    }

    fn backlog(&self) -> usize {
        self.0.backlog()
    }

    fn trouble(&self) -> Option<String> {
        match &self.0.state.lock().gate {
            Gate::Shut { why, .. } => Some(match why {
                Refusal::NotAllowed => format!("not allowed to write to topic {}", self.0.topic),
                _ => format!("topic {} is missing", self.0.topic),
            }),
            Gate::Ended => Some("closed".to_owned()),
            Gate::Unknown | Gate::Asked | Gate::Open => self.0.link.trouble(),
        }
    }
}

#[derive(Debug)]
pub(super) struct TopicLane {
    pub(super) topic: String,
    link: Arc<Link>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    gate: Gate,
    /// Not yet handed to the producer, in order.
    queue: VecDeque<Publication>,
    /// Refused as too large together with others: each is tried once more on its own.
    alone: VecDeque<Publication>,
    in_flight: usize,
    bytes: usize,
    /// Whose the messages in flight are. It changes while there are none, so nothing overtakes.
    pace: Pace,
    /// When messages were last handed to the producer, monotonic microseconds.
    pumped_us: i64,
}

/// Whether the topic is there, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Unknown,
    Asked,
    Open,
    Shut { why: Refusal, until_us: i64 },
    Ended,
}

/// What became of an attempt to hand a message to the producer.
enum Handed {
    /// It is there, or has its verdict.
    Done,
    /// The producer takes nothing now.
    Full(Publication),
}

impl TopicLane {
    pub(super) fn new(topic: String, link: Arc<Link>) -> Self {
        Self { topic, link, state: Mutex::new(State::new()) }
    }

    pub(super) fn backlog(&self) -> usize {
        let state = self.state.lock();
        state.queue.len() + state.alone.len() + state.in_flight
    }

    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.state.lock().in_flight
    }

    /// Takes what the brokers said about the topic.
    pub(super) fn found(self: &Arc<Self>, found: &TopicState) {
        let until_us = self.link.clock.mono_us() + SHUT_US;
        let mut state = self.state.lock();
        if state.gate == Gate::Ended {
            return;
        }
        state.gate = match found {
            // Unreachable: the producer keeps what it gets and sends it when a broker is back.
            TopicState::There { .. } | TopicState::Unreachable(_) => Gate::Open,
            TopicState::Missing => Gate::Shut { why: Refusal::UnknownTarget, until_us },
            TopicState::NotAllowed => Gate::Shut { why: Refusal::NotAllowed, until_us },
        };
        self.pump(&mut state);
    }

    /// Takes the ends of flights, in the order they were reported.
    pub(super) fn landed(self: &Arc<Self>, flights: Vec<(Flight, Verdict)>) {
        let mut answers = Vec::with_capacity(flights.len());
        let mut state = self.state.lock();
        for (flight, verdict) in flights {
            state.in_flight -= 1;
            state.bytes -= flight.bytes;
            match verdict {
                Verdict::Refused { reason: Refusal::TooBig, .. } if !flight.alone => {
                    // The broker refuses a whole batch: this message may have been in the company of others.
                    state.alone.push_back(flight.publication);
                }
                verdict => {
                    if matches!(verdict, Verdict::Refused { reason: Refusal::UnknownTarget, .. })
                        && state.gate == Gate::Open
                    {
                        state.gate = Gate::Unknown;
                    }
                    answers.push((flight.publication, verdict));
                }
            }
        }
        self.pump(&mut state);
        drop(state);
        answer_all(answers);
    }

    /// From time to time: answers what has waited past its deadline, and goes on.
    pub(super) fn tick(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.queue.is_empty() && state.alone.is_empty() {
            return;
        }
        let now = self.link.clock.mono_us();
        state.queue.retain(|publication| {
            let alive = !publication.is_late(now);
            if !alive {
                publication.answer(Verdict::NotTried);
            }
            alive
        });
        self.pump(&mut state);
    }

    /// There may be room in the producer again.
    pub(super) fn go_on(self: &Arc<Self>) {
        let mut state = self.state.lock();
        self.pump(&mut state);
    }

    /// Nothing is handed over from here on.
    pub(super) fn end(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.gate = Gate::Ended;
        self.pump(&mut state);
    }

    /// Hands over what may go, in order.
    fn pump(self: &Arc<Self>, state: &mut State) {
        loop {
            match state.gate {
                Gate::Open => break,
                Gate::Asked => return,
                Gate::Unknown => {
                    if !state.queue.is_empty() || !state.alone.is_empty() {
                        state.gate = Gate::Asked;
                        self.link.ask(self.clone());
                    }
                    return;
                }
                Gate::Shut { until_us, .. } if self.link.clock.mono_us() >= until_us => {
                    state.gate = Gate::Unknown;
                }
                Gate::Shut { why, .. } => return refuse_all(state, why),
                Gate::Ended => {
                    for publication in state.queue.drain(..) {
                        publication.answer(Verdict::NotTried);
                    }
                    for publication in state.alone.drain(..) {
                        publication.answer(outcome::refused(Refusal::Unavailable, "closed"));
                    }
                    return;
                }
            }
        }
        let mut now_us = self.link.clock.mono_us();
        let nothing = state.queue.is_empty() && state.alone.is_empty();
        if nothing || !state.keep_pace(now_us) || state.may_wait(now_us) {
            return;
        }
        state.pumped_us = now_us;
        let Some(producer) = self.link.producer(state.pace) else {
            return self.link.starved(self.clone());
        };
        for handed in 1.. {
            let Some((publication, alone)) = state.next() else { return };
            if handed % CLOCK_LOOKS == 0 {
                now_us = self.link.clock.mono_us();
            }
            let handed = self.hand_over(&producer, state, publication, alone, now_us);
            if let Handed::Full(publication) = handed {
                let waiting = if alone { &mut state.alone } else { &mut state.queue };
                waiting.push_front(publication);
                self.link.starved(self.clone());
                return;
            }
        }
    }

    fn hand_over(
        self: &Arc<Self>,
        producer: &Producer,
        state: &mut State,
        publication: Publication,
        alone: bool,
        now_us: i64,
    ) -> Handed {
        if publication.is_late(now_us) {
            let late = if alone {
                outcome::refused(Refusal::Unavailable, "its batch was too large, its claim has ended")
            } else {
                Verdict::NotTried
            };
            publication.answer(late);
            return Handed::Done;
        }
        let standing = publication.clone();
        let message = &standing.entry().message;
        let mapped = to_kafka(message, standing.stamp());
        let headers = match record::headers(&mapped) {
            Ok(headers) => headers,
            Err(error) => {
                publication.answer(outcome::refused(Refusal::Unavailable, error));
                return Handed::Done;
            }
        };
        let bytes = message.body_len() + message.headers_len() + message.key.as_ref().map_or(0, Bytes::len);
        let flight = Flight { publication, lane: self.clone(), bytes, alone };
        let flights = producer.flights();
        let mut record = BaseRecord::with_opaque_to(&self.topic, flights.take_off(flight));
        record.key = mapped.key.as_deref();
        record.payload = mapped.value;
        record.headers = headers;
        match producer.send(record) {
            Ok(()) => {
                state.in_flight += 1;
                state.bytes += bytes;
                Handed::Done
            }
            Err((error, opaque)) => match flights.land(opaque) {
                Some(flight) => self.not_taken(state, flight, &error),
                None => Handed::Done,
            },
        }
    }

    /// The producer did not take it; nothing of it has left this process.
    fn not_taken(&self, state: &mut State, flight: Flight, error: &KafkaError) -> Handed {
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
        if matches!(code, RDKafkaErrorCode::QueueFull | RDKafkaErrorCode::Fatal) {
            return Handed::Full(flight.publication);
        }
        let verdict = match outcome::of(code, None) {
            refused @ Verdict::Refused { .. } => refused,
            _ => outcome::refused(Refusal::Unavailable, error.to_string()),
        };
        if matches!(verdict, Verdict::Refused { reason: Refusal::UnknownTarget, .. }) {
            let until_us = self.link.clock.mono_us() + SHUT_US;
            state.gate = Gate::Shut { why: Refusal::UnknownTarget, until_us };
            refuse_all(state, Refusal::UnknownTarget);
        }
        flight.publication.answer(verdict);
        Handed::Done
    }
}

impl State {
    fn new() -> Self {
        Self {
            gate: Gate::Unknown,
            queue: VecDeque::new(),
            alone: VecDeque::new(),
            in_flight: 0,
            bytes: 0,
            pace: Pace::Prompt,
            pumped_us: i64::MIN / 2,
        }
    }

    /// Chooses the producer: prompt while there is little to send, bulk while there is much. `false`: what is
    /// in flight with the other one comes first.
    fn keep_pace(&mut self, now_us: i64) -> bool {
        let wanted = match self.pace {
            Pace::Prompt if self.queue.len() >= BULK_FROM => Pace::Bulk,
            Pace::Bulk if self.queue.len() + self.in_flight < BULK_UNTIL => Pace::Prompt,
            pace => pace,
        };
        if wanted != self.pace && self.in_flight > 0 {
            return now_us - self.pumped_us >= CHANGE_US;
        }
        self.pace = wanted;
        true
    }

    /// Under load messages gather while others are in flight, and go when one of those lands: the client
    /// library's prompt producer sends what it gets at once, and a request for each few messages costs it and
    /// the broker as much as the messages do. Where little is in flight nothing waits.
    fn may_wait(&self, now_us: i64) -> bool {
        self.pace == Pace::Prompt
            && self.in_flight >= GATHER_BEHIND
            && now_us - self.pumped_us < GATHER_US
            && self.alone.is_empty()
    }

    /// What may go next, and whether on its own.
    fn next(&mut self) -> Option<(Publication, bool)> {
        if !self.alone.is_empty() {
            return if self.in_flight == 0 { self.alone.pop_front().map(|p| (p, true)) } else { None };
        }
        let room = self.in_flight < WINDOW_MESSAGES && self.bytes < WINDOW_BYTES;
        if room { self.queue.pop_front().map(|p| (p, false)) } else { None }
    }
}

fn refuse_all(state: &mut State, why: Refusal) {
    let text = match why {
        Refusal::NotAllowed => "not allowed to see or write the topic",
        _ => "the topic is not there",
    };
    for publication in state.queue.drain(..).chain(state.alone.drain(..)) {
        publication.answer(outcome::refused(why, text));
    }
}

/// Gives verdicts, each submitter's together.
fn answer_all(answers: Vec<(Publication, Verdict)>) {
    let mut answers = answers.into_iter().peekable();
    while let Some((publication, verdict)) = answers.next() {
        let verdicts = publication.batch.verdicts.clone();
        let mut together = vec![(publication.ticket(), verdict)];
        while let Some((publication, verdict)) =
            answers.next_if(|(next, _)| Arc::ptr_eq(&next.batch.verdicts, &verdicts))
        {
            together.push((publication.ticket(), verdict));
        }
        verdicts.push_all(together);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Entry, Message, Origin, Target, UnixMs};

    fn waiting(count: usize) -> VecDeque<Publication> {
        let message =
            Message { origin: Origin::Kafka, key: None, body: None, headers: Vec::new(), properties: None };
        let target = Arc::new(Target::Kafka { connection: "main".into(), topic: "t".into() });
        let entry = Entry::new(UnixMs(0), message);
        let one = Publication::alone(entry, target, 0, &Arc::default(), i64::MAX);
        std::iter::repeat_n(one, count).collect()
    }

    #[test]
    fn a_lane_changes_its_producer_with_its_load_and_only_between_flights() {
        let mut state = State { queue: waiting(BULK_FROM - 1), pumped_us: 0, ..State::new() };
        assert!(state.keep_pace(0) && state.pace == Pace::Prompt);
        state.queue = waiting(BULK_FROM);
        state.in_flight = 1;
        assert!(!state.keep_pace(CHANGE_US - 1), "what is in flight comes first");
        assert!(state.keep_pace(CHANGE_US) && state.pace == Pace::Prompt, "unless it hangs");
        state.in_flight = 0;
        assert!(state.keep_pace(0) && state.pace == Pace::Bulk);
        (state.queue, state.in_flight) = (waiting(0), BULK_UNTIL);
        assert!(state.keep_pace(0) && state.pace == Pace::Bulk, "still much to send");
        state.in_flight = 1;
        assert!(!state.keep_pace(CHANGE_US - 1));
        state.in_flight = 0;
        assert!(state.keep_pace(0) && state.pace == Pace::Prompt);
    }
}
