//! The lane to one topic: its queue, its window, its gate.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::connection::{Link, Pace};
use super::dispatch::{self, Rest, Run};
use super::outcome::{self, Landing};
use super::producer::Flight;
use super::quarantine::Suspects;
use crate::broker::kafka::TopicState;
use crate::domain::Verdict;
use crate::domain::verdict::Refusal;
use crate::egress::{Lane, Publication};
use crate::mutants::{self, Mutant};

/// Most messages of one lane in the producer.
const WINDOW_MESSAGES: usize = 20_000;
/// Most bytes of one lane in the producer; one message may go beyond.
const WINDOW_BYTES: usize = 64 << 20;
/// Most messages of one run: a millisecond or two of whoever hands them over.
const RUN: usize = 1024;
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
        self.0.pump(state, By::Anyone);
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
    pub(super) link: Arc<Link>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    gate: Gate,
    /// In no run yet, in order.
    queue: VecDeque<Publication>,
    suspects: Suspects,
    /// In the producer, or in the run on its way there.
    in_flight: usize,
    bytes: usize,
    is_sending: bool,
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

/// Who hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Whoever had news for the lane; the wheel, most often. It hands over a few, and leaves many to the feeder.
    Anyone,
    /// The connection's own thread.
    Feeder,
}

impl TopicLane {
    pub(super) fn new(topic: String, link: Arc<Link>) -> Self {
        Self { topic, link, state: Mutex::new(State::new()) }
    }

    pub(super) fn backlog(&self) -> usize {
        let state = self.state.lock();
        state.queue.len() + state.suspects.len() + state.in_flight
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
            TopicState::There { .. } => Gate::Open,
            // To be asked again once a broker is reached.
            TopicState::Unreachable(_) => Gate::Unknown,
            TopicState::Missing => Gate::Shut { why: Refusal::UnknownTarget, until_us },
            TopicState::NotAllowed => Gate::Shut { why: Refusal::NotAllowed, until_us },
        };
        self.pump(state, By::Anyone);
    }

    /// Takes the ends of flights, in the order they were reported.
    pub(super) fn landed(self: &Arc<Self>, flights: Vec<(Flight, Landing)>) {
        let mut answers = Vec::with_capacity(flights.len());
        let mut state = self.state.lock();
        for (flight, Landing { verdict, shared }) in flights {
            state.in_flight -= 1;
            state.bytes -= flight.bytes;
            match verdict {
                Verdict::Refused { .. } if shared && !flight.alone && !mutants::is(Mutant::BlameBatch) => {
                    state.suspects.refused(flight.publication);
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
        state.regroup();
        self.pump(state, By::Anyone);
        answer_all(answers);
    }

    /// From time to time: answers what has waited past its deadline, and goes on. While the process drains, nothing
    /// waits for brokers that are away.
    pub(super) fn tick(self: &Arc<Self>, draining: bool) {
        let mut state = self.state.lock();
        if state.is_empty() {
            return;
        }
        let now = self.link.clock.mono_us();
        if mutants::is(Mutant::OutageCounts) && !self.link.is_reached() {
            refuse_all(&mut state, Refusal::Unavailable);
        }
        let in_vain = draining && !self.link.is_reached();
        state.retain(|publication| {
            let alive = !in_vain && !publication.is_late(now);
            if !alive {
                publication.answer(Verdict::NotTried);
            }
            alive
        });
        self.pump(state, By::Anyone);
    }

    /// The feeder looks after it: there may be room in the producer again, or there is much to send.
    pub(super) fn go_on(self: &Arc<Self>) {
        self.pump(self.state.lock(), By::Feeder);
    }

    /// The brokers answer again.
    pub(super) fn go_on_reached(self: &Arc<Self>) {
        self.pump(self.state.lock(), By::Anyone);
    }

    /// Nothing is handed over from here on.
    pub(super) fn end(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.gate = Gate::Ended;
        self.pump(state, By::Anyone);
    }

    /// Hands over what may go, in order, a run at a time. One thread does: what others add meanwhile it finds.
    fn pump(self: &Arc<Self>, mut state: MutexGuard<'_, State>, by: By) {
        while let Some(run) = self.next_run(&mut state, by) {
            let rest = MutexGuard::unlocked(&mut state, || run.send(self));
            let is_full = !rest.back.is_empty();
            self.has_sent(&mut state, rest);
            if is_full && state.gate != Gate::Ended {
                return self.link.starved(self.clone());
            }
            if by == By::Feeder {
                // The other lanes of the connection have their turn.
                return self.link.feed(self.clone());
            }
        }
    }

    /// Takes out what goes next, if anything may.
    fn next_run(self: &Arc<Self>, state: &mut State, by: By) -> Option<Run> {
        if state.is_sending || !self.may_send(state) {
            return None;
        }
        let now_us = self.link.clock.mono_us();
        if state.is_empty() || !state.keep_pace(now_us) || state.may_wait(now_us) {
            return None;
        }
        if state.pace == Pace::Bulk && by == By::Anyone {
            self.link.feed(self.clone());
            return None;
        }
        state.pumped_us = now_us;
        let Some(producer) = self.link.producer(state.pace) else {
            self.link.starved(self.clone());
            return None;
        };
        let (publications, suspects) = state.take()?;
        state.is_sending = true;
        Some(Run { producer, publications, suspects })
    }

    /// What the gate says. What it turns away has its verdict.
    fn may_send(self: &Arc<Self>, state: &mut State) -> bool {
        loop {
            match state.gate {
                Gate::Open => return self.link.is_reached(),
                Gate::Asked => return false,
                Gate::Unknown if !self.link.is_reached() => return false,
                Gate::Unknown => {
                    if !state.is_empty() {
                        state.gate = Gate::Asked;
                        self.link.ask(self.clone());
                    }
                    return false;
                }
                Gate::Shut { until_us, .. } if self.link.clock.mono_us() >= until_us => {
                    state.gate = Gate::Unknown;
                }
                Gate::Shut { why, .. } => {
                    refuse_all(state, why);
                    return false;
                }
                Gate::Ended => {
                    for publication in state.drain() {
                        publication.answer(Verdict::NotTried);
                    }
                    return false;
                }
            }
        }
    }

    /// A run is over; this is left of it.
    fn has_sent(&self, state: &mut State, rest: Rest) {
        state.is_sending = false;
        state.in_flight -= rest.answered + rest.back.len();
        state.bytes -= rest.bytes + rest.back.iter().map(dispatch::weight).sum::<usize>();
        if rest.suspects {
            state.suspects.put_back(rest.back);
        } else {
            for publication in rest.back.into_iter().rev() {
                state.queue.push_front(publication);
            }
        }
        state.regroup();
        if rest.is_missing && state.gate == Gate::Open {
            let until_us = self.link.clock.mono_us() + SHUT_US;
            state.gate = Gate::Shut { why: Refusal::UnknownTarget, until_us };
        }
    }
}

impl State {
    fn new() -> Self {
        Self {
            gate: Gate::Unknown,
            queue: VecDeque::new(),
            suspects: Suspects::default(),
            in_flight: 0,
            bytes: 0,
            is_sending: false,
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
            && self.suspects.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.suspects.is_empty()
    }

    /// All that waits; what is in flight is not among it.
    fn drain(&mut self) -> impl Iterator<Item = Publication> {
        self.suspects.drain().chain(self.queue.drain(..))
    }

    /// Keeps what waits only where `keeps` says so.
    fn retain(&mut self, mut keeps: impl FnMut(&Publication) -> bool) {
        self.suspects.retain(&mut keeps);
        self.queue.retain(keeps);
    }

    /// Once nothing is in flight: what the broker refused in batches waits for smaller ones.
    fn regroup(&mut self) {
        if self.in_flight == 0 {
            self.suspects.regroup();
        }
    }

    /// Takes out what goes next, and whether it is a group of suspects; `None`: nothing has room.
    fn take(&mut self) -> Option<(Vec<Publication>, bool)> {
        let suspects = !self.suspects.is_empty();
        let taken = if suspects {
            if self.in_flight > 0 {
                return None;
            }
            self.suspects.next_group()
        } else {
            let most = RUN.min(WINDOW_MESSAGES.saturating_sub(self.in_flight));
            let mut taken = Vec::new();
            let mut bytes = self.bytes;
            while taken.len() < most && bytes < WINDOW_BYTES {
                let Some(next) = self.queue.pop_front() else { break };
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

fn refuse_all(state: &mut State, why: Refusal) {
    let text = match why {
        Refusal::NotAllowed => "not allowed to see or write the topic",
        _ => "the topic is not there",
    };
    for publication in state.drain() {
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
