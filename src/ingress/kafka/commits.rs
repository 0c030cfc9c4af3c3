//! Committing: only the resolved prefix, only forward, and only where the broker still holds what was
//! committed before.
//!
//! The last rule is what keeps a re-created topic whole. Its positions look like the old one's; the
//! client library goes on at the old number, and a commit of it would be believed at the next start.
//! But brokers delete a topic's commits with the topic. So every commit is preceded by a look at the
//! last one, the first one is made where reading begins, before anything is read (one that nobody has seen
//! there might as well never have arrived), and a quiet partition is looked at every two seconds. A commit
//! that is gone: this is another log, read from its first record. One that was moved back: read from there.
//! Either way a new assignment, whose ledger knows nothing of the old.
//!
//! The look also tells what became of the last commit: the client library reports on commits that
//! nobody waits for to nobody.

use std::time::Duration;

use parking_lot::MutexGuard;
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::{Offset, TopicPartitionList};
use tracing::{debug, warn};

use super::assignment::{Assignment, Position};
use super::backpressure::resume;
use super::group_state::{Key, State, list};
use super::log_ends::SHORT_ANSWER;
use super::rebalance::{ANSWER, Context, GroupClient};
use super::start_positions::REST;
use crate::ingress::Sink;

/// How often a partition that commits nothing is looked at.
const VERIFY_US: i64 = 2_000_000;
/// Failed commits in a row that are worth a word: some seconds' worth.
const MISSED: u32 = 50;
/// Longest wait for one answer before the last commit, and for all of them: a session's time and a little.
const LAST_ANSWER: Duration = Duration::from_millis(400);
const LAST_LOOK_US: i64 = 11_000_000;
/// An answer that took longer was late.
const LATE_US: i64 = 200_000;

/// What a partition's assignment believes that the broker holds.
struct Belief {
    key: Key,
    /// Known to be there.
    committed: Option<i64>,
    /// Sent, and not yet seen there.
    committing: Option<i64>,
    /// Perhaps still there, of a log that is gone.
    void: Option<i64>,
}

/// What the broker holds instead.
enum Held {
    /// What was sent last.
    Landed,
    /// What was there before.
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
        let (wanted, beliefs) = {
            let mut state = self.state.lock();
            resume(&mut state, consumer);
            if now < state.rest_us {
                return;
            }
            let all = now - state.verified_us >= VERIFY_US;
            if all {
                state.verified_us = now;
                MutexGuard::unlocked(&mut state, || self.look_around(consumer));
            }
            let wanted = state.assignments.iter().any(|a| a.to_commit().is_some());
            (wanted, beliefs(&state, |a| all || a.to_commit().is_some() || a.committing.is_some()))
        };
        if !wanted && beliefs.is_empty() {
            return;
        }
        let at_most = {
            let missed = self.state.lock().missed;
            SHORT_ANSWER.saturating_mul(1 << missed.min(4)).min(ANSWER)
        };
        let sent = self.verify(consumer, &beliefs, at_most).and_then(|changed| {
            let state = &mut self.state.lock();
            let keys = state.keys().into_iter().filter(|key| !changed.contains(key));
            commit(state, consumer, &keys.collect::<Vec<_>>(), CommitMode::Async)
        });
        if let Err(error) = sent {
            self.missed(&mut self.state.lock(), &error.to_string());
        }
        let ended = self.fixed.around.clock.mono_us();
        if ended - now > LATE_US {
            // Only the group's coordinator may be away: what its partitions' leaders have is read meanwhile.
            self.state.lock().rest_us = ended + (ended - now) * REST;
        }
    }

    /// From time to time: takes in what lies beyond the last record where nothing is outstanding, and asks for what
    /// the client library does not know.
    fn look_around(&self, consumer: &GroupClient<S>) {
        match consumer.position() {
            Ok(positions) => {
                let mut state = self.state.lock();
                for place in positions.elements() {
                    if let Offset::Offset(position) = place.offset()
                        && let Some(assignment) = state.find(place.topic(), place.partition())
                    {
                        assignment.pass_markers(position);
                    }
                }
            }
            Err(error) => debug!(%error, "kafka consumer does not tell its positions"),
        }
        self.look_at_paused(consumer);
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
        let beliefs = {
            let mut beliefs = beliefs(&self.state.lock(), |_| true);
            beliefs.retain(|belief| keys.contains(&belief.key));
            beliefs
        };
        let outcome = self.held_at_last(consumer, &beliefs).and_then(|held| {
            let foreign = |key: &Key| {
                held.iter()
                    .any(|(k, held)| k == key && matches!(held, Held::Back(_) | Held::Gone | Held::Unsure))
            };
            let keys: Vec<Key> = keys.iter().filter(|key| !foreign(key)).cloned().collect();
            commit(&mut self.state.lock(), consumer, &keys, CommitMode::Sync)
        });
        if let Err(error) = outcome {
            warn!(consumer = %self.fixed.owner, %error, "kafka positions not committed; some records will be read again");
        }
    }

    /// What the broker holds, for the last commit. While the group rebalances the coordinator answers only when that is
    /// over, up to a session's time if a member has died: it is asked again until then, while other stages end.
    fn held_at_last(&self, consumer: &GroupClient<S>, beliefs: &[Belief]) -> KafkaResult<Vec<(Key, Held)>> {
        let clock = self.fixed.around.clock;
        let end_us = clock.mono_us() + LAST_LOOK_US;
        loop {
            let found = held(consumer, beliefs, LAST_ANSWER);
            if found.is_ok() || clock.mono_us() >= end_us {
                return found;
            }
        }
    }

    /// Looks at the commits that are expected to be there. What is not is begun anew, and returned.
    fn verify(
        &self,
        consumer: &GroupClient<S>,
        beliefs: &[Belief],
        at_most: Duration,
    ) -> KafkaResult<Vec<Key>> {
        let mut changed = Vec::new();
        for ((topic, partition), held) in held(consumer, beliefs, at_most)? {
            let position = match held {
                Held::Landed | Held::Same | Held::Ahead(_) => {
                    self.believe(&topic, partition, &held);
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
            if !begun && let Some(assignment) = self.state.lock().find(&topic, partition) {
                assignment.in_doubt = true;
                assignment.committing = None;
            }
            changed.push((topic, partition));
        }
        Ok(changed)
    }

    /// Takes in what the broker holds where it is no surprise.
    fn believe(&self, topic: &str, partition: i32, held: &Held) {
        let state = &mut self.state.lock();
        let Some(assignment) = state.find(topic, partition) else { return };
        assignment.in_doubt = false;
        let sent = assignment.committing.take();
        match held {
            Held::Landed => {
                assignment.committed = sent;
                assignment.void = None;
                state.missed = 0;
            }
            Held::Ahead(ahead) => assignment.committed = Some(*ahead),
            _ if sent.is_some() => self.missed(state, "a commit did not take effect"),
            _ => {}
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
        let mut begun = [((topic.to_owned(), partition), position)];
        commit_starts(consumer, &mut begun);
        if let Some(assignment) = self.fixed.begin(topic, partition, begun[0].1) {
            state.insert(assignment);
        }
        true
    }

    /// Counts a failed commit; says so once they have failed for a while.
    fn missed(&self, state: &mut State, error: &str) {
        debug!(consumer = %self.fixed.owner, error, "kafka commit failed");
        state.missed += 1;
        if state.missed == MISSED {
            warn!(consumer = %self.fixed.owner, error, "kafka commits fail, trying again");
        }
    }
}

/// What the broker holds of what is believed.
fn held<S: Sink>(
    consumer: &GroupClient<S>,
    beliefs: &[Belief],
    at_most: Duration,
) -> KafkaResult<Vec<(Key, Held)>> {
    if beliefs.is_empty() {
        return Ok(Vec::new());
    }
    let asked = list(beliefs.iter().map(|belief| (belief.key.0.as_str(), belief.key.1)));
    let answers = consumer.committed_offsets(asked, at_most)?;
    let judge = |belief: &Belief| {
        let Some(answer) = answers.find_partition(&belief.key.0, belief.key.1) else { return Held::Unsure };
        if answer.error().is_err() {
            return Held::Unsure;
        }
        let found = match answer.offset() {
            Offset::Offset(offset) => Some(offset),
            _ => None,
        };
        belief.judge(found)
    };
    Ok(beliefs.iter().map(|belief| (belief.key.clone(), judge(belief))).collect())
}

impl Belief {
    fn judge(&self, found: Option<i64>) -> Held {
        match found {
            _ if found == self.committed && self.committing != found => Held::Same,
            Some(_) if found == self.committing => Held::Landed,
            Some(_) if found == self.void => Held::Same,
            None => Held::Gone,
            Some(offset) if Some(offset) > self.committed.max(self.committing) => Held::Ahead(offset),
            Some(offset) => Held::Back(offset),
        }
    }
}

/// What is believed of the assignments that `which` picks, where anything is.
fn beliefs(state: &State, which: impl Fn(&Assignment) -> bool) -> Vec<Belief> {
    let picked = state.assignments.iter().filter(|a| which(a));
    picked
        .filter(|a| a.committed.is_some() || a.committing.is_some())
        .map(|a| Belief {
            key: (a.topic.to_string(), a.partition),
            committed: a.committed,
            committing: a.committing,
            void: a.void,
        })
        .collect()
}

/// Commits where reading is about to begin, of what the broker holds no position of. Where that fails it is made later,
/// as any other is. It waits for the answer as the last commit does: ten seconds for the group's coordinator
/// (`session.timeout.ms`), and as long for what that says (`socket.timeout.ms`), at most.
pub(super) fn commit_starts<S: Sink>(consumer: &GroupClient<S>, positions: &mut [(Key, Position)]) {
    let firsts: Vec<_> = positions.iter_mut().filter(|(_, position)| position.committed.is_none()).collect();
    if firsts.is_empty() {
        return;
    }
    let mut starts = TopicPartitionList::new();
    let listed = firsts.iter().try_for_each(|((topic, partition), position)| {
        starts.add_partition_offset(topic, *partition, Offset::Offset(position.start))
    });
    match listed.and_then(|()| consumer.commit(&starts, CommitMode::Sync)) {
        Ok(()) => firsts.into_iter().for_each(|(_, position)| position.committed = Some(position.start)),
        Err(error) => debug!(%error, "kafka positions not committed before reading"),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_that_is_gone_or_moved_is_never_taken_for_ours() {
        let judge = |committed, committing, found| {
            let void = Some(40);
            let held = Belief { key: ("t".into(), 0), committed, committing, void }.judge(found);
            match held {
                Held::Landed => "landed",
                Held::Same => "same",
                Held::Ahead(_) => "ahead",
                Held::Back(_) => "back",
                Held::Gone => "gone",
                Held::Unsure => "unsure",
            }
        };
        for (committed, committing, found, expected) in [
            (Some(5), None, Some(5), "same"),
            (Some(5), None, None, "gone"),
            (Some(5), None, Some(4), "back"),
            (Some(5), None, Some(6), "ahead"),
            (Some(5), Some(9), Some(5), "same"),
            (Some(5), Some(9), Some(9), "landed"),
            (Some(5), Some(9), Some(7), "back"),
            (Some(5), Some(9), None, "gone"),
            (None, Some(0), None, "same"),
            (None, Some(0), Some(0), "landed"),
            (Some(5), Some(5), Some(5), "landed"),
            // A position of a log that is gone is nobody's.
            (None, Some(0), Some(40), "same"),
            (None, Some(40), Some(40), "landed"),
        ] {
            assert_eq!(
                judge(committed, committing, found),
                expected,
                "{committed:?} {committing:?} {found:?}"
            );
        }
    }
}
