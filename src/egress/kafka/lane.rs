//! The lane to one topic: its queue, its window of messages in flight, and its gate.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tracing::{info, warn};

use super::connection::{ProducerConnection, ProducerKind};
use super::dispatch::{self, RunRemainder, SendRun};
use super::outcome::{self, DeliveryOutcome};
use super::producer::InFlightMessage;
use super::suspects::SuspectGroups;
use crate::broker::kafka::TopicState;
use crate::domain::Verdict;
use crate::domain::verdict::Refusal;
use crate::egress::{Lane, Publication};
use crate::mutants::{self, Mutant};

/// Most messages of one lane in the producer.
const WINDOW_MESSAGES: usize = 20_000;
/// Most bytes of one lane in the producer; one message may go beyond.
const WINDOW_BYTES: usize = 64 << 20;
/// Most messages of one run. The sending thread spends a millisecond or two on them.
const MAX_RUN_MESSAGES: usize = 1024;
/// Messages in flight from which on others gather behind them ...
const GATHER_BEHIND: usize = 128;
/// ... for about so long, microseconds.
const GATHER_US: i64 = 4_000;
/// Waiting messages from which on a lane changes to the bulk producer.
const BULK_FROM: usize = 1024;
/// Messages waiting and in flight below which a lane changes back to the prompt producer.
const BULK_UNTIL: usize = 256;
/// Longest wait for the messages in flight before a change of the producer, microseconds. A partition that hangs must
/// not delay the others.
const PRODUCER_CHANGE_US: i64 = 50_000;
/// Time for which a missing topic is refused before it is looked for again, microseconds.
const MISSING_TOPIC_US: i64 = 1_000_000;

/// The way to one Kafka topic.
#[derive(Debug)]
pub struct KafkaLane(pub(super) Arc<TopicLane>);

impl Lane for KafkaLane {
    fn submit_all(&self, publications: Vec<Publication>) {
        let mut state = self.0.state.lock();
        state.queue.extend(publications);
        self.0.pump(state, PumpCaller::Anyone);
    }

    fn backlog(&self) -> usize {
        self.0.backlog()
    }

    fn trouble(&self) -> Option<String> {
        let state = self.0.state.lock();
        if state.gate == TopicGate::Ended {
            return Some("closed".to_owned());
        }
        self.0
            .connection
            .trouble()
            .or_else(|| state.refusal.map(|refusal| self.0.sentence(refusal)))
    }
}

#[derive(Debug)]
pub(super) struct TopicLane {
    pub(super) topic: String,
    pub(super) connection: Arc<ProducerConnection>,
    state: Mutex<LaneState>,
}

#[derive(Debug)]
struct LaneState {
    gate: TopicGate,
    /// Why the brokers last refused the topic. Over once they say that it is there; the log has a line on each change.
    refusal: Option<Refusal>,
    /// Messages that no run has taken yet, in order.
    queue: VecDeque<Publication>,
    suspects: SuspectGroups,
    /// Messages in the producer, or in the run that sends them there.
    in_flight: usize,
    bytes: usize,
    is_sending: bool,
    /// The producer of the messages in flight. It changes while there are none, so that no message overtakes another.
    producer_kind: ProducerKind,
    /// The moment of the last run, monotonic microseconds.
    pumped_us: i64,
}

/// Knowledge of the lane about its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TopicGate {
    Unknown,
    Asked,
    Open,
    Shut { why: Refusal, until_us: i64 },
    Ended,
}

/// Caller of [`TopicLane::pump`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PumpCaller {
    /// A submitter (the wheel, most often), a delivery report or the brokers. It sends a few messages, and leaves many
    /// to the feeder.
    Anyone,
    /// The feeder, a thread of the connection.
    Feeder,
}

impl TopicLane {
    pub(super) fn new(topic: String, connection: Arc<ProducerConnection>) -> Self {
        Self {
            topic,
            connection,
            state: Mutex::new(LaneState::new()),
        }
    }

    pub(super) fn backlog(&self) -> usize {
        let state = self.state.lock();
        state.queue.len() + state.suspects.len() + state.in_flight
    }

    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.state.lock().in_flight
    }

    /// Takes the answer of the brokers about the topic.
    pub(super) fn found(self: &Arc<Self>, found: &TopicState) {
        let mut state = self.state.lock();
        if state.gate == TopicGate::Ended {
            return;
        }
        match found {
            TopicState::There { .. } => self.open(&mut state),
            // The lane asks again once a broker is reached.
            TopicState::Unreachable(_) => state.gate = TopicGate::Unknown,
            TopicState::Missing => self.shut(&mut state, Refusal::UnknownTarget),
            TopicState::NotAllowed => self.shut(&mut state, Refusal::NotAllowed),
        }
        self.pump(state, PumpCaller::Anyone);
    }

    /// Opens the gate: the topic is there.
    fn open(&self, state: &mut LaneState) {
        state.gate = TopicGate::Open;
        if state.refusal.take().is_some() {
            info!(
                connection = self.connection.name,
                topic = self.topic,
                "publishing to a topic again"
            );
        }
    }

    /// Shuts the gate for a while: the brokers refuse the topic.
    fn shut(&self, state: &mut LaneState, why: Refusal) {
        let until_us = self.connection.clock.mono_us() + MISSING_TOPIC_US;
        state.gate = TopicGate::Shut { why, until_us };
        if state.refusal.replace(why) != Some(why) {
            let error = self.sentence(why);
            warn!(
                connection = self.connection.name,
                topic = self.topic,
                error,
                "publishing to a topic fails"
            );
        }
    }

    /// A sentence on a topic that the brokers refuse.
    fn sentence(&self, refusal: Refusal) -> String {
        match refusal {
            Refusal::NotAllowed => format!("not allowed to write to topic {}", self.topic),
            _ => format!("topic {} is missing", self.topic),
        }
    }

    /// Takes delivery reports, in the order they came.
    pub(super) fn take_reports(
        self: &Arc<Self>,
        reported: Vec<(InFlightMessage, DeliveryOutcome)>,
    ) {
        let mut answers = Vec::with_capacity(reported.len());
        let mut state = self.state.lock();
        for (message, DeliveryOutcome { verdict, shared }) in reported {
            state.in_flight -= 1;
            state.bytes -= message.bytes;
            match verdict {
                Verdict::Refused { .. }
                    if shared && !message.alone && !mutants::is(Mutant::BlameBatch) =>
                {
                    state.suspects.refused(message.publication);
                }
                verdict => {
                    if matches!(
                        verdict,
                        Verdict::Refused {
                            reason: Refusal::UnknownTarget,
                            ..
                        }
                    ) && state.gate == TopicGate::Open
                    {
                        state.gate = TopicGate::Unknown;
                    }
                    answers.push((message.publication, verdict));
                }
            }
        }
        state.regroup();
        self.pump(state, PumpCaller::Anyone);
        answer_all(answers);
    }

    /// Runs from time to time. Answers messages that have waited past their deadline, and sends what may go. While the
    /// process drains, no message waits for brokers that are away.
    pub(super) fn tick(self: &Arc<Self>, draining: bool) {
        let mut state = self.state.lock();
        // A topic that was refused is asked for until it is there, so that its part of readiness is true without messages.
        if state.is_empty() && state.refusal.is_none() {
            return;
        }
        let now = self.connection.clock.mono_us();
        if mutants::is(Mutant::OutageCounts) && !self.connection.is_reached() {
            refuse_all(&mut state, Refusal::Unavailable);
        }
        let in_vain = draining && !self.connection.is_reached();
        state.retain(|publication| {
            let alive = !in_vain && !publication.is_late(now);
            if !alive {
                publication.answer(Verdict::NotTried);
            }
            alive
        });
        self.pump(state, PumpCaller::Anyone);
    }

    /// Sends on the thread of the feeder, because the producer may take messages again, or there are many to send.
    pub(super) fn pump_as_feeder(self: &Arc<Self>) {
        self.pump(self.state.lock(), PumpCaller::Feeder);
    }

    /// Sends what waited, because the brokers answer again.
    pub(super) fn pump_when_reached(self: &Arc<Self>) {
        self.pump(self.state.lock(), PumpCaller::Anyone);
    }

    /// Closes the lane. It sends nothing from now on.
    pub(super) fn end(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.gate = TopicGate::Ended;
        self.pump(state, PumpCaller::Anyone);
    }

    /// Sends what may go, in order, one run at a time. One thread at a time does so, and finds what others add
    /// meanwhile.
    fn pump(self: &Arc<Self>, mut state: MutexGuard<'_, LaneState>, by: PumpCaller) {
        while let Some(run) = self.next_run(&mut state, by) {
            let remainder = MutexGuard::unlocked(&mut state, || run.send(self));
            let is_full = !remainder.back.is_empty();
            self.take_back(&mut state, remainder);
            if is_full && state.gate != TopicGate::Ended {
                return self.connection.wait_for_feeder(self.clone());
            }
            if by == PumpCaller::Feeder {
                // Let the feeder serve the other lanes of the connection first.
                return self.connection.feed(self.clone());
            }
        }
    }

    /// Takes out the next run; `None` if nothing may go now.
    fn next_run(self: &Arc<Self>, state: &mut LaneState, by: PumpCaller) -> Option<SendRun> {
        if state.is_sending || !self.may_send(state) {
            return None;
        }
        let now_us = self.connection.clock.mono_us();
        if state.is_empty() || !state.choose_producer(now_us) || state.may_wait(now_us) {
            return None;
        }
        if state.producer_kind == ProducerKind::Bulk && by == PumpCaller::Anyone {
            self.connection.feed(self.clone());
            return None;
        }
        state.pumped_us = now_us;
        let Some(producer) = self.connection.producer(state.producer_kind) else {
            self.connection.wait_for_feeder(self.clone());
            return None;
        };
        let (publications, suspects) = state.take()?;
        state.is_sending = true;
        Some(SendRun {
            producer,
            publications,
            suspects,
        })
    }

    /// Reports whether the gate is open. Gives a verdict to all messages that it turns away.
    fn may_send(self: &Arc<Self>, state: &mut LaneState) -> bool {
        loop {
            match state.gate {
                TopicGate::Open => return self.connection.is_reached(),
                TopicGate::Asked => return false,
                TopicGate::Unknown if !self.connection.is_reached() => return false,
                TopicGate::Unknown => {
                    if !state.is_empty() || state.refusal.is_some() {
                        state.gate = TopicGate::Asked;
                        self.connection.ask(self.clone());
                    }
                    return false;
                }
                TopicGate::Shut { until_us, .. } if self.connection.clock.mono_us() >= until_us => {
                    state.gate = TopicGate::Unknown;
                }
                TopicGate::Shut { why, .. } => {
                    refuse_all(state, why);
                    return false;
                }
                TopicGate::Ended => {
                    for publication in state.drain() {
                        publication.answer(Verdict::NotTried);
                    }
                    return false;
                }
            }
        }
    }

    /// Takes back what a run could not send.
    fn take_back(&self, state: &mut LaneState, remainder: RunRemainder) {
        state.is_sending = false;
        state.in_flight -= remainder.answered + remainder.back.len();
        state.bytes -= remainder.bytes + remainder.back.iter().map(dispatch::weight).sum::<usize>();
        if remainder.suspects {
            state.suspects.put_back(remainder.back);
        } else {
            for publication in remainder.back.into_iter().rev() {
                state.queue.push_front(publication);
            }
        }
        state.regroup();
        if remainder.is_missing && state.gate == TopicGate::Open {
            self.shut(state, Refusal::UnknownTarget);
        }
    }
}

impl LaneState {
    fn new() -> Self {
        Self {
            gate: TopicGate::Unknown,
            refusal: None,
            queue: VecDeque::new(),
            suspects: SuspectGroups::default(),
            in_flight: 0,
            bytes: 0,
            is_sending: false,
            producer_kind: ProducerKind::Prompt,
            pumped_us: i64::MIN / 2,
        }
    }

    /// Chooses the producer: prompt for few messages, bulk for many. Returns false while messages are in flight with
    /// the other producer: their reports must come first.
    fn choose_producer(&mut self, now_us: i64) -> bool {
        let wanted = match self.producer_kind {
            ProducerKind::Prompt if self.queue.len() >= BULK_FROM => ProducerKind::Bulk,
            ProducerKind::Bulk if self.queue.len() + self.in_flight < BULK_UNTIL => {
                ProducerKind::Prompt
            }
            producer_kind => producer_kind,
        };
        if wanted != self.producer_kind && self.in_flight > 0 {
            return now_us - self.pumped_us >= PRODUCER_CHANGE_US;
        }
        self.producer_kind = wanted;
        true
    }

    /// Reports whether messages may gather while others are in flight, to go when one of those is confirmed. The prompt
    /// producer sends at once what it gets, and under load a request for each few messages would cost the client
    /// library and the broker as much as the messages do. With few in flight no message waits.
    fn may_wait(&self, now_us: i64) -> bool {
        self.producer_kind == ProducerKind::Prompt
            && self.in_flight >= GATHER_BEHIND
            && now_us - self.pumped_us < GATHER_US
            && self.suspects.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.suspects.is_empty()
    }

    /// Takes out all messages that wait. Those in flight stay.
    fn drain(&mut self) -> impl Iterator<Item = Publication> {
        self.suspects.drain().chain(self.queue.drain(..))
    }

    /// Keeps those waiting messages for which `keeps` returns true.
    fn retain(&mut self, mut keeps: impl FnMut(&Publication) -> bool) {
        self.suspects.retain(&mut keeps);
        self.queue.retain(keeps);
    }

    /// Forms smaller groups of the messages that a broker refused in batches, once nothing is in flight.
    fn regroup(&mut self) {
        if self.in_flight == 0 {
            self.suspects.regroup();
        }
    }

    /// Takes out the messages of the next run. The flag says that they are a group of suspects. `None` if the window is
    /// full.
    fn take(&mut self) -> Option<(Vec<Publication>, bool)> {
        let suspects = !self.suspects.is_empty();
        let taken = if suspects {
            if self.in_flight > 0 {
                return None;
            }
            self.suspects.next_group()
        } else {
            let most = MAX_RUN_MESSAGES.min(WINDOW_MESSAGES.saturating_sub(self.in_flight));
            let mut taken = Vec::new();
            let mut bytes = self.bytes;
            while taken.len() < most && bytes < WINDOW_BYTES {
                let Some(next) = self.queue.pop_front() else {
                    break;
                };
                bytes += dispatch::weight(&next);
                taken.push(next);
            }
            taken
        };
        self.bytes += taken.iter().map(dispatch::weight).sum::<usize>();
        self.in_flight += taken.len();
        (!taken.is_empty()).then_some((taken, suspects))
    }
}

fn refuse_all(state: &mut LaneState, why: Refusal) {
    let text = match why {
        Refusal::NotAllowed => "not allowed to see or write the topic",
        _ => "the topic is not there",
    };
    for publication in state.drain() {
        publication.answer(outcome::refused(why, text));
    }
}

/// Gives verdicts, those of one submitter together.
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
        let message = Message {
            origin: Origin::Kafka,
            key: None,
            body: None,
            headers: Vec::new(),
            properties: None,
        };
        let target = Arc::new(Target::Kafka {
            connection: "main".into(),
            topic: "t".into(),
        });
        let entry = Entry::new(UnixMs(0), message);
        let one = Publication::alone(entry, target, 0, &Arc::default(), i64::MAX);
        std::iter::repeat_n(one, count).collect()
    }

    #[test]
    fn a_lane_changes_its_producer_with_its_load_and_only_between_flights() {
        let mut state = LaneState {
            queue: waiting(BULK_FROM - 1),
            pumped_us: 0,
            ..LaneState::new()
        };
        assert!(state.choose_producer(0) && state.producer_kind == ProducerKind::Prompt);
        state.queue = waiting(BULK_FROM);
        state.in_flight = 1;
        assert!(
            !state.choose_producer(PRODUCER_CHANGE_US - 1),
            "what is in flight comes first"
        );
        assert!(
            state.choose_producer(PRODUCER_CHANGE_US)
                && state.producer_kind == ProducerKind::Prompt,
            "unless it hangs"
        );
        state.in_flight = 0;
        assert!(state.choose_producer(0) && state.producer_kind == ProducerKind::Bulk);
        state.queue = waiting(0);
        state.in_flight = BULK_UNTIL;
        assert!(
            state.choose_producer(0) && state.producer_kind == ProducerKind::Bulk,
            "still much to send"
        );
        state.in_flight = 1;
        assert!(!state.choose_producer(PRODUCER_CHANGE_US - 1));
        state.in_flight = 0;
        assert!(state.choose_producer(0) && state.producer_kind == ProducerKind::Prompt);
    }
}
