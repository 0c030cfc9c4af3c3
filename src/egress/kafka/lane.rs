//! The lane to one topic: its gate, and which producer sends its messages. The messages are in `partitions`.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tracing::debug;

use super::connection::{ProducerConnection, ProducerKind};
use super::dispatch::{MissingPart, RunRemainder, SendRun};
use super::in_flight::InFlightMessage;
use super::outcome::{self, DeliveryOutcome};
use super::partitions::{self, PartitionQueues};
use super::topics::TopicAnswer;
use crate::broker::kafka::TopicState;
use crate::domain::verdict::Refusal;
use crate::domain::{Target, Verdict};
use crate::egress::{Lane, Publication};
use crate::mutants::{self, Mutant};

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
/// Interval at which the brokers are asked for the partitions of a topic that has messages, microseconds: it may have
/// more of them by then.
const PARTITIONS_ASK_US: i64 = 60_000_000;
/// The same while a partition cannot be written, or does not answer.
const TROUBLE_ASK_US: i64 = 500_000;
/// The same while replicas are out of sync.
const WEAKENED_ASK_US: i64 = 10_000_000;
/// Time without a delivery report after which a partition with messages in flight does not answer, microseconds.
const SILENCE_US: i64 = 1_000_000;

/// The way to one Kafka topic.
#[derive(Debug)]
pub struct KafkaLane(pub(super) Arc<TopicLane>);

impl Lane for KafkaLane {
    fn submit_all(&self, publications: Vec<Publication>) {
        let mut state = self.0.state.lock();
        state.queues.submit(publications);
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
        if let Some(trouble) = self.0.connection.trouble() {
            return Some(trouble);
        }
        if let Some(refusal) = state.refusal {
            return Some(self.0.sentence(refusal));
        }
        if state.queues.is_blocked() {
            state.obstacles(&self.0.topic)
        } else {
            None
        }
    }

    fn partial_trouble_of(&self, _: &Target) -> Option<String> {
        self.0.state.lock().obstacles(&self.0.topic)
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
    /// Why the brokers last refused the topic. Over once they say that it is there.
    refusal: Option<Refusal>,
    queues: PartitionQueues,
    is_sending: bool,
    /// The producer of the messages in flight. It changes while there are none, so that no message overtakes another.
    producer_kind: ProducerKind,
    /// The moment of the last run, monotonic microseconds.
    pumped_us: i64,
    /// The moment of the last question about the topic, monotonic microseconds.
    asked_us: i64,
    /// A question is under way while the gate stays open.
    is_asking: bool,
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
        self.state.lock().queues.backlog()
    }

    /// Reports whether the topic is known to be there: messages do not wait for an answer about it.
    pub(super) fn is_open(&self) -> bool {
        self.state.lock().gate == TopicGate::Open
    }

    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.state.lock().queues.in_flight()
    }

    /// Takes the answer of the brokers about the topic.
    pub(super) fn found(self: &Arc<Self>, answer: &TopicAnswer) {
        let mut state = self.state.lock();
        state.is_asking = false;
        match (&answer.topic, state.gate) {
            (_, TopicGate::Ended) => return,
            (TopicState::There { .. }, _) => {
                self.open(&mut state);
                self.learn(&mut state, answer);
            }
            // Nothing is known that was not known before.
            (TopicState::Unreachable(_), TopicGate::Open) => {}
            // The lane asks again once a broker is reached. It asks also before it refuses what was there: a broker that
            // has just started may not know its topics yet.
            (TopicState::Unreachable(_), _) | (_, TopicGate::Open) => {
                state.gate = TopicGate::Unknown;
            }
            (TopicState::Missing, _) => self.shut(&mut state, Refusal::UnknownTarget),
            (TopicState::NotAllowed, _) => self.shut(&mut state, Refusal::NotAllowed),
        }
        self.pump(state, PumpCaller::Anyone);
    }

    /// Takes what is known of the partitions.
    fn learn(&self, state: &mut LaneState, answer: &TopicAnswer) {
        let now_us = self.connection.clock.mono_us();
        let change = state.queues.learn(
            &self.topic,
            &answer.partitions,
            answer.least_replicas,
            now_us,
        );
        let connection = &self.connection.name;
        let topic = &self.topic;
        for (partition, obstacle) in change.begun {
            let error = obstacle.sentence(topic, partition);
            debug!(
                connection,
                topic,
                partition,
                error,
                "a partition of a topic cannot be written; its messages wait"
            );
        }
        for partition in change.ended {
            debug!(
                connection,
                topic, partition, "a partition of a topic can be written again"
            );
        }
    }

    /// Opens the gate: the topic is there.
    fn open(&self, state: &mut LaneState) {
        state.gate = TopicGate::Open;
        if state.refusal.take().is_some() {
            debug!(
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
            debug!(
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
        let now_us = self.connection.clock.mono_us();
        for (message, DeliveryOutcome { verdict, shared }) in reported {
            let InFlightMessage {
                publication,
                partition,
                bytes,
                handed_us,
                alone,
                ..
            } = message;
            match verdict {
                Verdict::Refused { .. } if shared && !alone && !mutants::is(Mutant::BlameBatch) => {
                    state.queues.suspect(partition, publication);
                }
                // Its partition was away, and so the message is not to blame.
                Verdict::Unknown { error }
                    if state.queues.was_unhealthy(partition, handed_us)
                        || self.connection.was_away_since(handed_us) =>
                {
                    answers.push((publication, Verdict::Interrupted { error }));
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
                    answers.push((publication, verdict));
                }
            }
            state.queues.end_flight(partition, bytes, now_us);
        }
        self.pump(state, PumpCaller::Anyone);
        answer_all(answers);
    }

    /// Runs from time to time. Answers messages that have waited past their deadline, and sends what may go. While the
    /// process drains, no message waits for brokers or partitions that are away.
    pub(super) fn tick(self: &Arc<Self>, draining: bool) {
        let mut state = self.state.lock();
        let now = self.connection.clock.mono_us();
        if state.gate == TopicGate::Open && state.must_ask(now) && self.connection.is_reached() {
            state.is_asking = true;
            state.asked_us = now;
            self.connection.ask(self.clone());
        }
        if state.is_idle() {
            return;
        }
        if mutants::is(Mutant::OutageCounts) && !self.connection.is_reached() {
            refuse_all(&mut state, Refusal::Unavailable);
        }
        if draining {
            let in_vain = if self.connection.is_reached() {
                state.queues.drain_blocked()
            } else {
                state.queues.drain()
            };
            for publication in in_vain {
                publication.answer(Verdict::NotTried);
            }
        }
        state.queues.retain(|publication| {
            let verdict = publication.too_late(now);
            let is_kept = verdict.is_none();
            if let Some(verdict) = verdict {
                publication.answer(verdict);
            }
            is_kept
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
        if state.queues.sendable() == 0 || !state.choose_producer(now_us) || state.may_wait(now_us)
        {
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
        let run = state.queues.take(&self.topic, now_us)?;
        state.is_sending = true;
        Some(SendRun { producer, run })
    }

    /// Reports whether the gate is open. Gives a verdict to all messages that it turns away.
    fn may_send(self: &Arc<Self>, state: &mut LaneState) -> bool {
        loop {
            match state.gate {
                TopicGate::Open => return self.connection.is_reached(),
                TopicGate::Asked => return false,
                TopicGate::Unknown if !self.connection.is_reached() => return false,
                TopicGate::Unknown => {
                    if !state.is_idle() {
                        state.gate = TopicGate::Asked;
                        state.asked_us = self.connection.clock.mono_us();
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
                    for publication in state.queues.drain() {
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
        let now_us = self.connection.clock.mono_us();
        let back = remainder.back.iter().map(|message| {
            let bytes = partitions::weight(&message.publication);
            (message.partition, bytes)
        });
        let ended: Vec<_> = remainder.answered.into_iter().chain(back).collect();
        state.queues.put_back(remainder.back, remainder.suspects);
        for (partition, bytes) in ended {
            state.queues.end_flight(partition, bytes, now_us);
        }
        if state.gate == TopicGate::Open {
            match remainder.missing {
                Some(MissingPart::Topic) => self.shut(state, Refusal::UnknownTarget),
                Some(MissingPart::Partition) => state.gate = TopicGate::Unknown,
                None => {}
            }
        }
    }
}

impl LaneState {
    fn new() -> Self {
        Self {
            gate: TopicGate::Unknown,
            refusal: None,
            queues: PartitionQueues::default(),
            is_sending: false,
            producer_kind: ProducerKind::Prompt,
            pumped_us: i64::MIN / 2,
            asked_us: i64::MIN / 2,
            is_asking: false,
        }
    }

    /// Chooses the producer: prompt for few messages, bulk for many. Returns false while messages are in flight with
    /// the other producer: their reports must come first.
    fn choose_producer(&mut self, now_us: i64) -> bool {
        let waiting = self.queues.sendable();
        let in_flight = self.queues.in_flight();
        let wanted = match self.producer_kind {
            ProducerKind::Prompt if waiting >= BULK_FROM => ProducerKind::Bulk,
            ProducerKind::Bulk if waiting + in_flight < BULK_UNTIL => ProducerKind::Prompt,
            producer_kind => producer_kind,
        };
        if wanted != self.producer_kind && in_flight > 0 {
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
            && self.queues.in_flight() >= GATHER_BEHIND
            && now_us - self.pumped_us < GATHER_US
            && !self.queues.has_suspects()
    }

    /// Reports whether there is nothing to do. A topic that was refused, or whose partitions were in trouble, is asked
    /// for until it is well, so that its part of readiness is true without messages.
    fn is_idle(&self) -> bool {
        self.queues.is_empty() && self.refusal.is_none() && !self.queues.is_unhealthy()
    }

    /// Reports whether the brokers must be asked for the partitions of the topic now.
    fn must_ask(&self, now_us: i64) -> bool {
        let is_silent = self.queues.is_silent_since(now_us - SILENCE_US);
        let interval_us = if is_silent || self.queues.obstacles().next().is_some() {
            TROUBLE_ASK_US
        } else if self.queues.is_unhealthy() {
            WEAKENED_ASK_US
        } else if self.queues.backlog() > 0 {
            PARTITIONS_ASK_US
        } else {
            return false;
        };
        !self.is_asking && now_us - self.asked_us >= interval_us
    }

    /// A sentence on the partitions with an obstacle.
    fn obstacles(&self, topic: &str) -> Option<String> {
        let mut obstacles = self.queues.obstacles();
        let (partition, obstacle) = obstacles.next()?;
        let first = obstacle.sentence(topic, partition);
        Some(match obstacles.count() {
            0 => first,
            more => format!("{first}, and {more} more partitions cannot be written"),
        })
    }
}

fn refuse_all(state: &mut LaneState, why: Refusal) {
    let text = match why {
        Refusal::NotAllowed => "not allowed to see or write the topic",
        _ => "the topic is not there",
    };
    for publication in state.queues.drain() {
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
    use crate::broker::kafka::PartitionState;
    use crate::domain::{Entry, Message, Origin, Target, UnixMs};

    fn waiting(count: usize) -> Vec<Publication> {
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

    /// A lane with so many messages that wait, and so many in flight.
    fn loaded(waits: usize, in_flight: usize) -> LaneState {
        let mut state = LaneState {
            pumped_us: 0,
            ..LaneState::new()
        };
        let partition = PartitionState {
            has_leader: true,
            in_sync: 1,
            replicas: 1,
        };
        state.queues.learn("t", &[partition], None, 0);
        state.queues.submit(waiting(in_flight));
        assert_eq!(state.queues.take("t", 0).is_some(), in_flight > 0);
        state.queues.submit(waiting(waits));
        state
    }

    #[test]
    fn a_lane_changes_its_producer_with_its_load_and_only_between_flights() {
        let chosen = |producer_kind, waits, in_flight, now_us| {
            let mut state = loaded(waits, in_flight);
            state.producer_kind = producer_kind;
            state.choose_producer(now_us).then_some(state.producer_kind)
        };
        let (prompt, bulk) = (ProducerKind::Prompt, ProducerKind::Bulk);
        // The producer; messages that wait and that are in flight; time since the last run; the choice.
        for (producer_kind, waits, in_flight, now_us, choice) in [
            (prompt, BULK_FROM - 1, 0, 0, Some(prompt)),
            // What is in flight comes first, unless it hangs.
            (prompt, BULK_FROM, 1, PRODUCER_CHANGE_US - 1, None),
            (prompt, BULK_FROM, 1, PRODUCER_CHANGE_US, Some(prompt)),
            (prompt, BULK_FROM, 0, 0, Some(bulk)),
            (bulk, 0, BULK_UNTIL, 0, Some(bulk)),
            (bulk, 0, 1, PRODUCER_CHANGE_US - 1, None),
            (bulk, 0, 0, 0, Some(prompt)),
        ] {
            assert_eq!(
                chosen(producer_kind, waits, in_flight, now_us),
                choice,
                "{producer_kind:?}, {waits} wait, {in_flight} in flight, {now_us} us"
            );
        }
    }
}
