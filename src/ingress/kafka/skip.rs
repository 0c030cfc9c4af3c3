//! Skips: an operator has a standing partition pass over one offset, or says where one begins that waits for a word. A
//! route's policy has its partitions pass over what cannot be opened.
//!
//! The consumer of the partition does it on its own thread. It passes over an offset only if the partition stands at
//! exactly that one. The offset is entered into the ledger as a record that is resolved at once. A commit passes it only
//! after every record before it. A word on where to begin is obeyed only if the partition waits for one
//! (see `start_positions`), and only within the log.
//!
//! With `on_undecodable = "skip"` a probe confirms that the batch cannot be opened (see `batch_probe`). Each offset of it
//! is then read as a delivery without content, and goes the way of each invalid record: it is resolved, and can be
//! committed, once it is a dead letter in the store, or dropped by policy.

use rdkafka::Offset;
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaResult;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tracing::{info, warn};

use super::assignment::TopicPartition;
use super::batch_probe::{ProbePlace, RunningProbe, UndecodableBatch, probe};
use super::group_state::GroupState;
use super::largest_record;
use super::rebalance::{ANSWER_TIMEOUT, GroupClient, GroupContext};
use super::skip_desk::SkipRequest;
use super::standstill::Standstill;
use crate::broker::kafka::FetchSizes;
use crate::domain::{OnUndecodable, RouteName, SkipGoal, SkipOutcome, Text};
use crate::ingress::Sink;
use crate::lifecycle::Shutdown;

/// Rest of a partition after a probe that found nothing.
const PROBE_REST_US: i64 = 10_000_000;

impl<S: Sink> GroupContext<S> {
    /// Carries out the skips that wait.
    pub(super) fn carry_out_skips(&self, consumer: &GroupClient<S>) {
        loop {
            let request = self.setup.skips.next();
            let Some(SkipRequest {
                route,
                topic,
                partition,
                goal,
                answer,
            }) = request
            else {
                return;
            };
            // Nobody waits for the answer any more: whoever asked was told that it is not known.
            if answer.is_closed() {
                continue;
            }
            let outcome = self.skip(consumer, &route, &(topic, partition), goal);
            if answer.send(outcome).is_err() {
                warn!(%route, partition, ?goal, "the answer to a skip came too late");
            }
        }
    }

    fn skip(
        &self,
        consumer: &GroupClient<S>,
        route: &RouteName,
        key: &TopicPartition,
        goal: SkipGoal,
    ) -> SkipOutcome {
        let (topic, partition) = (&key.0, key.1);
        let reader = self.setup.route_of(topic);
        if reader.is_none_or(|reader| reader.name != *route) {
            return SkipOutcome::NotHere;
        }
        let outcome = match goal {
            SkipGoal::Past(offset) => self.pass_over(consumer, key, offset),
            SkipGoal::To(offset) => self.begin_at(consumer, key, offset),
            SkipGoal::Since(time) => self.begin_since(consumer, key, time),
        };
        if let SkipOutcome::GoesOn(next) = outcome {
            warn!(consumer = %self.setup.owner, %route, %topic, partition, ?goal, next, "an operator says where reading goes on");
        }
        self.show_troubles();
        outcome
    }

    /// Passes over an offset at which a partition stands.
    fn pass_over(
        &self,
        consumer: &GroupClient<S>,
        key: &TopicPartition,
        offset: i64,
    ) -> SkipOutcome {
        let mut state = self.state.lock();
        let Some(assignment) = state.find(&key.0, key.1) else {
            return state.not_read(key);
        };
        match assignment.standstill.standing() {
            // It went on since, and the watch has not looked again.
            Some(Standstill::Undecodable { offset: at }) if at < assignment.next => {
                return SkipOutcome::DoesNotStand(assignment.next);
            }
            Some(Standstill::Undecodable { offset: at }) if at == offset => {}
            Some(Standstill::Undecodable { offset: at }) => {
                return SkipOutcome::StandsElsewhere(at);
            }
            Some(Standstill::OpenTransaction { .. }) | None => {
                return SkipOutcome::DoesNotStand(assignment.next);
            }
        }
        if let Err(error) = seek(consumer, key, offset + 1) {
            return SkipOutcome::Failed(error.to_string());
        }
        assignment.pass_over(offset);
        if let Some(metrics) = self.setup.deps.metrics.route(&assignment.route.name) {
            metrics.dropped("skipped", 1);
        }
        SkipOutcome::GoesOn(offset + 1)
    }

    /// Skips what cannot be opened, where the route's policy says so. One partition is probed at a time.
    pub(super) fn skip_undecodable(&self, consumer: &GroupClient<S>) {
        let running = self.state.lock().probe.take();
        let Some(mut running) = running else {
            self.begin_probe();
            return;
        };
        match running.found.try_recv() {
            Ok(batch) => self.read_undecodable(consumer, &running.key, running.offset, batch),
            Err(TryRecvError::Empty) => self.state.lock().probe = Some(running),
            Err(TryRecvError::Closed) => {
                let (topic, partition) = &running.key;
                let offset = running.offset;
                info!(consumer = %self.setup.owner, topic, partition, offset, "a probe does not confirm that records cannot be opened; they are not skipped");
                self.rest(&mut self.state.lock(), &running.key);
            }
        }
    }

    /// Begins to probe the batch at which a partition stands, if there is one that may be skipped.
    fn begin_probe(&self) {
        let setup = &self.setup;
        let now_us = setup.deps.clock.mono_us();
        let state = &mut *self.state.lock();
        let mut standing = state.assignments.iter().filter_map(|assignment| {
            let may_skip = assignment.route.policy.on_undecodable == OnUndecodable::Skip
                && assignment.probe_after_us <= now_us;
            match assignment.standstill.standing() {
                Some(Standstill::Undecodable { offset }) if may_skip => Some((assignment, offset)),
                _ => None,
            }
        });
        let Some((assignment, offset)) = standing.next() else {
            return;
        };
        let key = (assignment.topic.to_string(), assignment.partition);
        let largest = largest_record(setup.routes.iter().map(|route| &**route));
        let sizes = FetchSizes::Careful;
        let config = match setup
            .connection
            .consumer_config(setup.group(), largest, sizes)
        {
            Ok(config) => config,
            Err(error) => {
                warn!(consumer = %setup.owner, %error, "no client looks at records that cannot be opened");
                return self.rest(state, &key);
            }
        };
        let place = ProbePlace {
            connection: setup.connection.clone(),
            config,
            topic: key.0.clone(),
            partition: key.1,
            offset,
            clock: setup.deps.clock,
        };
        let (answer, found) = oneshot::channel();
        let shutdown = setup.deps.shutdown.clone();
        let owner = setup.owner.clone();
        let started = setup.deps.tasks.thread(&setup.task, move || {
            run_probe(&place, &owner, &shutdown, answer);
        });
        match started {
            Ok(()) => state.probe = Some(RunningProbe { key, offset, found }),
            Err(error) => {
                warn!(consumer = %setup.owner, %error, "no thread looks at records that cannot be opened");
                self.rest(state, &key);
            }
        }
    }

    /// Reads the offsets of a batch that cannot be opened as deliveries without content, if the partition still stands
    /// there.
    fn read_undecodable(
        &self,
        consumer: &GroupClient<S>,
        key: &TopicPartition,
        offset: i64,
        batch: UndecodableBatch,
    ) {
        let UndecodableBatch { offsets, why } = batch;
        let mut state = self.state.lock();
        let Some(assignment) = state.find(&key.0, key.1) else {
            return;
        };
        let stands = assignment.standstill.standing() == Some(Standstill::Undecodable { offset });
        // A record may have come since the last statistics: a seek would go back to before it.
        if !stands || assignment.next > offset {
            return;
        }
        if let Err(error) = seek(consumer, key, offsets.to) {
            warn!(consumer = %self.setup.owner, topic = key.0, partition = key.1, offset, %error, "records that cannot be opened are not skipped yet");
            return self.rest(&mut state, key);
        }
        let is_full = assignment.read_undecodable(offsets, &Text::from(why.as_str()));
        warn!(
            consumer = %self.setup.owner,
            route = %assignment.route.name,
            topic = key.0,
            partition = key.1,
            from = offsets.from,
            to = offsets.to - 1,
            why,
            "records that cannot be opened are skipped"
        );
        drop(state);
        self.show_troubles();
        if is_full {
            self.wait_or_pause(consumer, &key.0, key.1);
        }
    }

    /// Leaves a partition alone for a while.
    fn rest(&self, state: &mut GroupState, key: &TopicPartition) {
        let until_us = self.setup.deps.clock.mono_us() + PROBE_REST_US;
        if let Some(assignment) = state.find(&key.0, key.1) {
            assignment.probe_after_us = until_us;
        }
    }
}

/// Probes until the process drains or nobody waits for the answer. Answers only with a batch that
/// cannot be opened.
fn run_probe(
    place: &ProbePlace,
    owner: &str,
    shutdown: &Shutdown,
    answer: oneshot::Sender<UndecodableBatch>,
) {
    let found = probe(place, &|| shutdown.is_draining() || answer.is_closed());
    match found {
        Ok(Some(batch)) => drop(answer.send(batch)),
        Ok(None) => {}
        Err(error) => {
            warn!(consumer = %owner, %error, "no client looks at records that cannot be opened");
        }
    }
}

/// Has the client library read a partition on from an offset.
fn seek<S: Sink>(
    consumer: &GroupClient<S>,
    (topic, partition): &TopicPartition,
    offset: i64,
) -> KafkaResult<()> {
    consumer.seek(topic, *partition, Offset::Offset(offset), ANSWER_TIMEOUT)
}
