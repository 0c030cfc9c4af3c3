//! Committing: only the resolved prefix, only forward, and only where the broker still holds what was
//! committed before.
//!
//! The last rule is what keeps a re-created topic whole. Its positions look like the old one's; the
//! client library goes on at the old number, and a commit of it would be believed at the next start.
//! But brokers delete a topic's commits with the topic. So every commit is preceded by a look at the
//! last one, the first one is made where reading begins, and a quiet partition is looked at every two
//! seconds. A commit that is gone: this is another log, read from its first record. One that was moved
//! back: read from there. Either way a new assignment, whose ledger knows nothing of the old.

use std::time::Duration;

use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};
use tracing::{debug, warn};

use super::Sink;
use super::assignment::Position;
use super::context::{ANSWER, Context, GroupClient};
use super::state::{Key, State, list};

/// How often a partition that commits nothing is looked at.
const VERIFY_US: i64 = 2_000_000;
/// How long the brokers may take to tell of a topic that may be gone, while others wait to be read.
const SHORT_ANSWER: Duration = Duration::from_millis(500);

/// What the broker holds where `expected` was committed.
enum Held {
    Same,
    /// Somebody else is ahead: this consumer was thought dead. Nothing is read anew, nothing moved back.
    Ahead(i64),
    Back(i64),
    Gone,
    /// The broker did not say.
    Unsure,
}

impl<S: Sink> Context<S> {
    /// Ten times a second: takes in what was resolved, resumes what has room, commits.
    pub(super) fn tick(&self, consumer: &GroupClient<S>) {
        let now = self.fixed.around.clock.mono_us();
        let (wanted, expected) = {
            let mut state = self.state.lock();
            resume(&mut state, consumer);
            if state.assignments.iter().any(|a| a.committing.is_some()) {
                return;
            }
            let all = now - state.verified_us >= VERIFY_US;
            if all {
                state.verified_us = now;
            }
            let wanted = state.assignments.iter().any(|a| a.to_commit().is_some());
            (wanted, expected(&state, |a_wants| all || a_wants))
        };
        if !wanted && expected.is_empty() {
            return;
        }
        match self.verify(consumer, &expected) {
            Ok(changed) => {
                let state = &mut self.state.lock();
                let keys = state.keys().into_iter().filter(|key| !changed.contains(key));
                let sent = commit(state, consumer, &keys.collect::<Vec<_>>(), CommitMode::Async);
                self.note(state, &sent);
            }
            Err(error) => self.note(&mut self.state.lock(), &Err(error)),
        }
    }

    /// Lets what the sink has taken of these partitions resolve, at most so long and no longer than
    /// until shutdown is forced, and commits it. What the sink has not taken is forgotten.
    pub(super) fn settle(&self, consumer: &GroupClient<S>, keys: &[Key], at_most: Duration) {
        let clock = self.fixed.around.clock;
        let end = clock.mono_us().saturating_add(i64::try_from(at_most.as_micros()).unwrap_or(i64::MAX));
        loop {
            let mut unsettled = None;
            for (topic, partition) in keys {
                if let Some(assignment) = self.state.lock().find(topic, *partition) {
                    assignment.stop_feeding();
                    assignment.advance();
                    if !assignment.is_settled() {
                        unsettled = Some(assignment.ledger.clone());
                    }
                }
            }
            let left = Duration::from_micros((end - clock.mono_us()).max(0) as u64);
            let shutdown = &self.fixed.around.shutdown;
            let Some(ledger) = unsettled else { break };
            if left.is_zero() || shutdown.is_forced() {
                break;
            }
            self.fixed.runtime.block_on(async {
                tokio::select! {
                    () = ledger.advanced() => {}
                    () = shutdown.forced() => {}
                    () = tokio::time::sleep(left) => {}
                }
            });
        }
        self.commit_now(consumer, keys);
    }

    fn commit_now(&self, consumer: &GroupClient<S>, keys: &[Key]) {
        let expected = {
            let state = self.state.lock();
            let mut expected = expected(&state, |_| true);
            expected.retain(|(key, _)| keys.contains(key));
            expected
        };
        let outcome = held(consumer, &expected).and_then(|held| {
            let kept = |key: &&Key| {
                !held.iter().any(|(k, held)| k == *key && !matches!(held, Held::Same | Held::Ahead(_)))
            };
            let keys: Vec<Key> = keys.iter().filter(kept).cloned().collect();
            commit(&mut self.state.lock(), consumer, &keys, CommitMode::Sync)
        });
        if let Err(error) = outcome {
            warn!(consumer = %self.fixed.owner, %error, "kafka positions not committed; some records will be read again");
        }
    }

    /// Takes the answer to a commit.
    pub(super) fn committed(&self, result: &KafkaResult<()>, offsets: &TopicPartitionList) {
        let state = &mut self.state.lock();
        let mut outcome = result.clone();
        for answer in offsets.elements() {
            let Some(assignment) = state.find(answer.topic(), answer.partition()) else { continue };
            // An answer to a commit of an assignment that is gone says nothing about this one.
            if answer.offset() != assignment.committing.map_or(Offset::Invalid, Offset::Offset) {
                continue;
            }
            let position = assignment.committing.take();
            match (result, answer.error()) {
                (Ok(()), Ok(())) => assignment.committed = position,
                (Ok(()), Err(error)) => outcome = Err(error),
                (Err(_), _) => {}
            }
        }
        self.note(state, &outcome);
    }

    /// Looks at the commits that are expected to be there. What is not is begun anew, and returned.
    fn verify(&self, consumer: &GroupClient<S>, expected: &[(Key, i64)]) -> KafkaResult<Vec<Key>> {
        let mut changed = Vec::new();
        for ((topic, partition), held) in held(consumer, expected)? {
            let position = match held {
                Held::Same => {
                    self.doubt(&topic, partition, false);
                    continue;
                }
                Held::Ahead(ahead) => {
                    if let Some(assignment) = self.state.lock().find(&topic, partition) {
                        assignment.committed = Some(ahead);
                    }
                    continue;
                }
                Held::Unsure => None,
                Held::Back(back) => Some(Position { start: back, committed: Some(back) }),
                // An error: deleted and not yet made again.
                Held::Gone => {
                    let marks = consumer.fetch_watermarks(&topic, partition, SHORT_ANSWER);
                    marks.ok().map(|(oldest, _)| Position { start: oldest, committed: None })
                }
            };
            let begun = position.is_some_and(|at| self.begin_anew(consumer, &topic, partition, at));
            if !begun {
                self.doubt(&topic, partition, true);
            }
            changed.push((topic, partition));
        }
        Ok(changed)
    }

    /// While its last commit is in doubt, a partition stays as it is and commits nothing; it is looked at
    /// with all others.
    fn doubt(&self, topic: &str, partition: i32, in_doubt: bool) {
        if let Some(assignment) = self.state.lock().find(topic, partition) {
            assignment.in_doubt = in_doubt;
        }
    }

    /// Reads on from `start` under a new assignment. Returns whether it could.
    fn begin_anew(&self, consumer: &GroupClient<S>, topic: &str, partition: i32, position: Position) -> bool {
        let start = position.start;
        let mut state = self.state.lock();
        if let Some(assignment) = state.find(topic, partition)
            && assignment.paused
            && consumer.resume(&list([(topic, partition)])).is_ok()
        {
            assignment.paused = false;
        }
        if let Err(error) = consumer.seek(topic, partition, Offset::Offset(start), ANSWER) {
            debug!(topic, partition, %error, "kafka consumer cannot go back yet");
            return false;
        }
        warn!(consumer = %self.fixed.owner, topic, partition, start, "the committed position is gone or was moved back, reading again");
        if let Some(assignment) = self.fixed.begin(topic, partition, position) {
            state.insert(assignment);
        }
        true
    }

    /// Says once that commits fail, unless a rebalance is the reason: then they will be another's.
    fn note(&self, state: &mut State, outcome: &KafkaResult<()>) {
        match outcome {
            Ok(()) => state.commits_fail = false,
            Err(error) if is_passing(error) => debug!(%error, "kafka commit not taken"),
            Err(error) => {
                if !std::mem::replace(&mut state.commits_fail, true) {
                    warn!(consumer = %self.fixed.owner, %error, "kafka commits fail, trying again");
                }
            }
        }
    }
}

/// What the broker holds of what is expected.
fn held<S: Sink>(consumer: &GroupClient<S>, expected: &[(Key, i64)]) -> KafkaResult<Vec<(Key, Held)>> {
    if expected.is_empty() {
        return Ok(Vec::new());
    }
    let asked = list(expected.iter().map(|((topic, partition), _)| (topic.as_str(), *partition)));
    let answers = consumer.committed_offsets(asked, ANSWER)?;
    let mut held = Vec::new();
    for ((topic, partition), expected) in expected {
        let Some(answer) = answers.find_partition(topic, *partition) else { continue };
        let kind = match answer.offset() {
            _ if answer.error().is_err() => Held::Unsure,
            Offset::Offset(offset) if offset == *expected => Held::Same,
            Offset::Offset(offset) if offset > *expected => Held::Ahead(offset),
            Offset::Offset(offset) => Held::Back(offset),
            _ => Held::Gone,
        };
        held.push(((topic.clone(), *partition), kind));
    }
    Ok(held)
}

fn is_passing(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::RebalanceInProgress
                | RDKafkaErrorCode::IllegalGeneration
                | RDKafkaErrorCode::UnknownMemberId
                | RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::NoOffset
                | RDKafkaErrorCode::AssignmentLost
        )
    )
}

/// Takes in what was resolved; partitions with room go on.
fn resume<S: Sink>(state: &mut State, consumer: &GroupClient<S>) {
    for assignment in &mut state.assignments {
        assignment.advance();
        if assignment.paused && assignment.has_room() {
            let which = list([(&*assignment.topic, assignment.partition)]);
            match consumer.resume(&which) {
                Ok(()) => assignment.paused = false,
                Err(error) => debug!(%error, "kafka partition not resumed yet"),
            }
        }
    }
}

/// The commits that the broker should hold, of the assignments that `which` picks by whether they have
/// something to commit.
fn expected(state: &State, which: impl Fn(bool) -> bool) -> Vec<(Key, i64)> {
    let chosen = state.assignments.iter().filter(|a| which(a.to_commit().is_some()));
    chosen.filter_map(|a| Some(((a.topic.to_string(), a.partition), a.committed?))).collect()
}

/// Commits what is news of these partitions.
fn commit<S: Sink>(
    state: &mut State,
    consumer: &GroupClient<S>,
    keys: &[Key],
    mode: CommitMode,
) -> KafkaResult<()> {
    let mut positions = TopicPartitionList::new();
    for (topic, partition) in keys {
        let Some(assignment) = state.find(topic, *partition) else { continue };
        if let Some(position) = assignment.to_commit() {
            positions.add_partition_offset(topic, *partition, Offset::Offset(position))?;
            assignment.committing = Some(position);
        }
    }
    if positions.count() == 0 {
        return Ok(());
    }
    let sent = consumer.commit(&positions, mode);
    if sent.is_err() || matches!(mode, CommitMode::Sync) {
        for (topic, partition) in keys {
            let Some(assignment) = state.find(topic, *partition) else { continue };
            let position = assignment.committing.take();
            if sent.is_ok() && position.is_some() {
                assignment.committed = position;
            }
        }
    }
    sent
}
