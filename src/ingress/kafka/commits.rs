//! Commits: only the resolved prefix, only forward, and only while the broker still holds the previous commit.
//!
//! The last rule protects a topic that was created anew. Its positions look like those of the old topic, the
//! client library goes on at the old number, and a commit of that number would be believed at the next start.
//! But brokers delete a topic's commits with the topic. Therefore each commit is preceded by a lookup of the
//! last one. The first commit is made at the start position before anything is read (see `start_positions`). A quiet
//! partition is looked up every two seconds. If a commit is gone or was moved back, the assignment ends, and the
//! partition gets a start position like any other. A new assignment begins, whose ledger knows nothing of the old one.
//!
//! A commit's metadata has the time of the last record before it (see `placement`).
//!
//! The lookup also tells what became of the last commit: the client library reports the result of an
//! asynchronous commit to nobody.

use std::time::Duration;

use parking_lot::MutexGuard;
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaResult, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};
use tracing::{debug, warn};

use super::assignment::{Assignment, TopicPartition};
use super::group_state::{GroupState, list};
use super::log_ends::SHORT_ANSWER_TIMEOUT;
use super::placement::{CommittedPosition, PlacementCause};
use super::rebalance::{ANSWER_TIMEOUT, GroupClient, GroupContext};
use super::start_positions::{LOOKUP_REST_FACTOR, list_commit};
use crate::ingress::Sink;

/// Time between two lookups of a partition that commits nothing.
const VERIFY_INTERVAL_US: i64 = 2_000_000;
/// Failed commits in a row that are worth a warning: some seconds' worth.
const FAILURES_BEFORE_WARNING: u32 = 50;
/// Longest wait for one answer before the last commit.
const LAST_ANSWER_TIMEOUT: Duration = Duration::from_millis(400);
/// Longest wait for all answers before the last commit, and for the end of a rebalance that refuses it: a session's
/// time and a little.
const LAST_LOOKUP_LIMIT_US: i64 = 11_000_000;
/// Time between two tries of the last commit.
const LAST_COMMIT_PAUSE: Duration = Duration::from_millis(20);
/// An answer that took longer was late.
const LATE_ANSWER_US: i64 = 200_000;

/// The commit that an assignment expects the broker to hold.
struct ExpectedCommit {
    key: TopicPartition,
    /// Position that is known to be there.
    committed: i64,
    /// Position that was sent, and is not yet seen there.
    committing: Option<i64>,
}

/// The commit that the broker holds, compared with the expected one.
enum CommitFinding {
    /// The position that was sent last.
    Confirmed,
    /// The position that was there before.
    Unchanged,
    /// A later position: another consumer is ahead, because the group took this one for dead. Nothing is read
    /// again, and nothing is moved back.
    Ahead(i64),
    /// An earlier position: somebody moved the commit back, or the log is another one.
    MovedBack,
    /// No position at all.
    Gone,
    /// The broker did not say.
    Unknown,
}

impl<S: Sink> GroupContext<S> {
    /// Runs ten times a second: takes in resolved records, resumes partitions with capacity, and commits.
    pub(super) fn commit_tick(&self, consumer: &GroupClient<S>) {
        let now = self.setup.deps.clock.mono_us();
        let (wanted, expected_commits) = {
            let mut state = self.state.lock();
            state.resume(consumer);
            if now < state.rest_until_us {
                return;
            }
            let all = now >= state.next_verify_us;
            if all {
                MutexGuard::unlocked(&mut state, || self.refresh_positions(consumer));
                // A leader of a paused partition that does not answer must not keep the others from being read.
                let ended = self.setup.deps.clock.mono_us();
                let rest_us = VERIFY_INTERVAL_US.max((ended - now) * LOOKUP_REST_FACTOR);
                state.next_verify_us = ended + rest_us;
            }
            let wanted = state.assignments.iter().any(|a| a.to_commit().is_some());
            (
                wanted,
                expected_commits(&state, |a| {
                    all || a.to_commit().is_some() || a.committing.is_some()
                }),
            )
        };
        if !wanted && expected_commits.is_empty() {
            return;
        }
        // The ends of paused partitions were asked of their leaders, which say nothing of the coordinator.
        let asked_us = self.setup.deps.clock.mono_us();
        let at_most = {
            let missed = self.state.lock().failed_commits;
            SHORT_ANSWER_TIMEOUT
                .saturating_mul(1 << missed.min(4))
                .min(ANSWER_TIMEOUT)
        };
        let sent = self
            .verify(consumer, &expected_commits, at_most)
            .and_then(|()| {
                let state = &mut self.state.lock();
                let keys = state.keys();
                commit(state, consumer, &keys, CommitMode::Async)
            });
        if let Err(error) = sent {
            self.count_failure(&mut self.state.lock(), &error.to_string());
        }
        let ended_us = self.setup.deps.clock.mono_us();
        let took_us = ended_us - asked_us;
        if took_us > LATE_ANSWER_US {
            // Only the group's coordinator may be away. Read on meanwhile: the leaders of the partitions may
            // answer.
            self.state.lock().rest_until_us = ended_us + took_us * LOOKUP_REST_FACTOR;
        }
    }

    /// Runs every two seconds, or less often while it takes long: moves positions past markers where nothing is
    /// outstanding, and asks for log ends that the client library does not know.
    fn refresh_positions(&self, consumer: &GroupClient<S>) {
        match consumer.position() {
            Ok(positions) => {
                let mut state = self.state.lock();
                for place in positions.elements() {
                    if let Offset::Offset(position) = place.offset()
                        && let Some(assignment) = state.find(place.topic(), place.partition())
                    {
                        assignment.skip_markers(position);
                    }
                }
            }
            Err(error) => debug!(%error, "kafka consumer does not tell its positions"),
        }
        self.refresh_paused(consumer);
    }

    /// Waits until the records that the sink has taken of these partitions are resolved, at most `at_most` and
    /// no longer than until shutdown is forced, and commits them. Records that the sink has not taken are
    /// thrown away.
    pub(super) fn drain_partitions(
        &self,
        consumer: &GroupClient<S>,
        keys: &[TopicPartition],
        at_most: Duration,
    ) {
        let clock = self.setup.deps.clock;
        let end = clock
            .mono_us()
            .saturating_add(i64::try_from(at_most.as_micros()).unwrap_or(i64::MAX));
        loop {
            let mut unfinished = None;
            for (topic, partition) in keys {
                if let Some(assignment) = self.state.lock().find(topic, *partition) {
                    assignment.stop_feeding();
                    assignment.advance();
                    if !assignment.is_finished() {
                        unfinished = Some(assignment.ledger.clone());
                    }
                }
            }
            let left = Duration::from_micros((end - clock.mono_us()).max(0) as u64);
            let shutdown = &self.setup.deps.shutdown;
            let Some(ledger) = unfinished else { break };
            if left.is_zero() || shutdown.is_forced() {
                break;
            }
            self.setup.runtime.block_on(async {
                tokio::select! {
                    () = ledger.advanced() => {}
                    () = shutdown.forced() => {}
                    () = tokio::time::sleep(left) => {}
                }
            });
        }
        self.commit_now(consumer, keys);
        self.tell_repeats(keys);
    }

    /// Tells which records are stored or published, and will be read again: a position says nothing of what is behind it.
    fn tell_repeats(&self, keys: &[TopicPartition]) {
        let mut state = self.state.lock();
        for (topic, partition) in keys {
            let Some(assignment) = state.find(topic, *partition) else {
                continue;
            };
            let records = assignment.ledger.unreleased();
            if records > 0 {
                warn!(
                    consumer = %self.setup.owner, topic, partition, records,
                    "records that are stored or published will be read again, because one before them is not"
                );
            }
        }
    }

    fn commit_now(&self, consumer: &GroupClient<S>, keys: &[TopicPartition]) {
        let expected_commits = {
            let mut expected_commits =
                expected_commits(&self.state.lock(), Assignment::owes_commit);
            expected_commits.retain(|expected| keys.contains(&expected.key));
            expected_commits
        };
        let outcome = self
            .find_last_commits(consumer, &expected_commits)
            .and_then(|findings| {
                let mut foreign = Vec::new();
                for ((topic, partition), finding) in findings {
                    match finding {
                        CommitFinding::Confirmed
                        | CommitFinding::Unchanged
                        | CommitFinding::Ahead(_) => {
                            self.accept(&topic, partition, &finding);
                        }
                        CommitFinding::MovedBack | CommitFinding::Gone | CommitFinding::Unknown => {
                            foreign.push((topic, partition));
                        }
                    }
                }
                let keys: Vec<TopicPartition> = keys
                    .iter()
                    .filter(|key| !foreign.contains(key))
                    .cloned()
                    .collect();
                self.commit_between_rebalances(consumer, &keys)
            });
        if let Err(error) = outcome {
            warn!(consumer = %self.setup.owner, %error, "kafka positions not committed; some records will be read again");
        }
    }

    /// Commits for the last time. Between the two halves of a rebalance the coordinator refuses each commit, so it is
    /// made again until that is over, which takes no answer of this consumer.
    fn commit_between_rebalances(
        &self,
        consumer: &GroupClient<S>,
        keys: &[TopicPartition],
    ) -> KafkaResult<()> {
        let clock = self.setup.deps.clock;
        let end_us = clock.mono_us() + LAST_LOOKUP_LIMIT_US;
        let shutdown = &self.setup.deps.shutdown;
        loop {
            let sent = commit(&mut self.state.lock(), consumer, keys, CommitMode::Sync);
            let refused = sent.as_ref().is_err_and(|error| {
                error.rdkafka_error_code() == Some(RDKafkaErrorCode::RebalanceInProgress)
            });
            if !refused || shutdown.is_forced() || clock.mono_us() >= end_us {
                return sent;
            }
            self.pause_before_last_commit();
        }
    }

    fn pause_before_last_commit(&self) {
        let shutdown = &self.setup.deps.shutdown;
        self.setup.runtime.block_on(async {
            tokio::select! {
                () = shutdown.forced() => {}
                () = tokio::time::sleep(LAST_COMMIT_PAUSE) => {}
            }
        });
    }

    /// Looks up the commits before the last commit. While the group rebalances, the coordinator answers only at
    /// the end of that, after up to a session's time if a member has died. Asks again until then, while other
    /// stages end.
    fn find_last_commits(
        &self,
        consumer: &GroupClient<S>,
        expected_commits: &[ExpectedCommit],
    ) -> KafkaResult<Vec<(TopicPartition, CommitFinding)>> {
        let clock = self.setup.deps.clock;
        let end_us = clock.mono_us() + LAST_LOOKUP_LIMIT_US;
        let shutdown = &self.setup.deps.shutdown;
        loop {
            let found = find_commits(consumer, expected_commits, LAST_ANSWER_TIMEOUT);
            if found.is_ok() || shutdown.is_forced() || clock.mono_us() >= end_us {
                return found;
            }
            // Some refusals come at once.
            self.pause_before_last_commit();
        }
    }

    /// Looks up the expected commits. The partitions whose commit is another one are placed anew.
    fn verify(
        &self,
        consumer: &GroupClient<S>,
        expected_commits: &[ExpectedCommit],
        at_most: Duration,
    ) -> KafkaResult<()> {
        for (key, finding) in find_commits(consumer, expected_commits, at_most)? {
            match finding {
                CommitFinding::Confirmed | CommitFinding::Unchanged | CommitFinding::Ahead(_) => {
                    self.accept(&key.0, key.1, &finding);
                }
                CommitFinding::Unknown => {
                    if let Some(assignment) = self.state.lock().find(&key.0, key.1) {
                        assignment.in_doubt = true;
                        assignment.committing = None;
                    }
                }
                CommitFinding::MovedBack | CommitFinding::Gone => {
                    self.place_anew(consumer, key, PlacementCause::CommitChanged);
                }
            }
        }
        Ok(())
    }

    /// Takes in a finding that is no surprise.
    fn accept(&self, topic: &str, partition: i32, finding: &CommitFinding) {
        let state = &mut self.state.lock();
        let Some(assignment) = state.find(topic, partition) else {
            return;
        };
        assignment.in_doubt = false;
        let sent = assignment.committing.take();
        match finding {
            CommitFinding::Confirmed => {
                assignment.committed = sent.unwrap_or(assignment.committed);
                state.failed_commits = 0;
            }
            CommitFinding::Ahead(ahead) => assignment.committed = *ahead,
            _ if sent.is_some() => self.count_failure(state, "a commit did not take effect"),
            _ => {}
        }
    }

    /// Counts a failed commit. Logs one warning once commits have failed for a while.
    fn count_failure(&self, state: &mut GroupState, error: &str) {
        debug!(consumer = %self.setup.owner, error, "kafka commit failed");
        state.failed_commits += 1;
        if state.failed_commits == FAILURES_BEFORE_WARNING {
            warn!(consumer = %self.setup.owner, error, "kafka commits fail; retrying");
        }
    }
}

/// Looks up the expected commits.
fn find_commits<S: Sink>(
    consumer: &GroupClient<S>,
    expected_commits: &[ExpectedCommit],
    at_most: Duration,
) -> KafkaResult<Vec<(TopicPartition, CommitFinding)>> {
    if expected_commits.is_empty() {
        return Ok(Vec::new());
    }
    let asked = list(
        expected_commits
            .iter()
            .map(|expected| (expected.key.0.as_str(), expected.key.1)),
    );
    let answers = consumer.committed_offsets(asked, at_most)?;
    let judge = |expected: &ExpectedCommit| {
        let Some(answer) = answers.find_partition(&expected.key.0, expected.key.1) else {
            return CommitFinding::Unknown;
        };
        if answer.error().is_err() {
            return CommitFinding::Unknown;
        }
        let found = match answer.offset() {
            Offset::Offset(offset) => Some(offset),
            _ => None,
        };
        expected.judge(found)
    };
    Ok(expected_commits
        .iter()
        .map(|expected| (expected.key.clone(), judge(expected)))
        .collect())
}

impl ExpectedCommit {
    fn judge(&self, found: Option<i64>) -> CommitFinding {
        let Some(found) = found else {
            return CommitFinding::Gone;
        };
        let sent = self.committing.unwrap_or(self.committed);
        if Some(found) == self.committing {
            CommitFinding::Confirmed
        } else if found == self.committed {
            CommitFinding::Unchanged
        } else if found > self.committed.max(sent) {
            CommitFinding::Ahead(found)
        } else {
            CommitFinding::MovedBack
        }
    }
}

/// The expected commits of the assignments that `which` picks, if they have any.
fn expected_commits(
    state: &GroupState,
    which: impl Fn(&Assignment) -> bool,
) -> Vec<ExpectedCommit> {
    let picked = state.assignments.iter().filter(|a| which(a));
    picked
        .map(|a| ExpectedCommit {
            key: (a.topic.to_string(), a.partition),
            committed: a.committed,
            committing: a.committing,
        })
        .collect()
}

/// Commits the positions of these partitions that the broker does not have yet.
fn commit<S: Sink>(
    state: &mut GroupState,
    consumer: &GroupClient<S>,
    keys: &[TopicPartition],
    mode: CommitMode,
) -> KafkaResult<()> {
    let mut positions = TopicPartitionList::new();
    for (topic, partition) in keys {
        let Some(assignment) = state.find(topic, *partition) else {
            continue;
        };
        if let Some(position) = assignment.to_commit() {
            let committed = CommittedPosition {
                offset: position,
                resolved: assignment.resolved_time,
                is_held: false,
            };
            list_commit(&mut positions, &(topic.clone(), *partition), &committed)?;
            assignment.committing = Some(position);
        }
    }
    if positions.count() == 0 {
        return Ok(());
    }
    let sent = consumer.commit(&positions, mode);
    if sent.is_err() || matches!(mode, CommitMode::Sync) {
        for (topic, partition) in keys {
            let Some(assignment) = state.find(topic, *partition) else {
                continue;
            };
            if let Some(position) = assignment.committing.take()
                && sent.is_ok()
            {
                assignment.committed = position;
            }
        }
    }
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_that_is_gone_or_moved_is_never_taken_for_ours() {
        let judge = |committed, committing, found| {
            let finding = ExpectedCommit {
                key: ("t".into(), 0),
                committed,
                committing,
            }
            .judge(found);
            match finding {
                CommitFinding::Confirmed => "landed",
                CommitFinding::Unchanged => "same",
                CommitFinding::Ahead(_) => "ahead",
                CommitFinding::MovedBack => "back",
                CommitFinding::Gone => "gone",
                CommitFinding::Unknown => "unsure",
            }
        };
        for (committed, committing, found, expected) in [
            (5, None, Some(5), "same"),
            (5, None, None, "gone"),
            (5, None, Some(4), "back"),
            (5, None, Some(6), "ahead"),
            (5, Some(9), Some(5), "same"),
            (5, Some(9), Some(9), "landed"),
            (5, Some(9), Some(7), "back"),
            (5, Some(9), Some(10), "ahead"),
            (5, Some(9), None, "gone"),
            (5, Some(5), Some(5), "landed"),
        ] {
            assert_eq!(
                judge(committed, committing, found),
                expected,
                "{committed:?} {committing:?} {found:?}"
            );
        }
    }
}
