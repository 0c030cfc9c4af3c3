//! Start positions: a partition that the group gives is read once its start position is known. Each is judged
//! by itself.
//!
//! The start position is the committed position, else the oldest record of the log. A partition without a known
//! start position (no leader, no answer) is not started yet. It is looked up again from time to time, and the
//! others are read meanwhile.

use std::time::Duration;

use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaResult;
use rdkafka::{Offset, TopicPartitionList};
use tracing::debug;

use super::assignment::{OffsetRange, StartPosition};
use super::commits::commit_starts;
use super::group_state::{TopicPartition, list};
use super::log_ends::{SHORT_ANSWER_TIMEOUT, ask_offsets};
use super::rebalance::{GroupClient, GroupContext};
use crate::ingress::Sink;
use crate::mutants::{self, Mutant};

/// Shortest time between two lookups of start positions.
const LOOKUP_INTERVAL_US: i64 = 1_000_000;
/// Rest after a lookup, as a multiple of the time it took: reading comes first.
pub(super) const LOOKUP_REST_FACTOR: i64 = 4;

impl<S: Sink> GroupContext<S> {
    /// Starts the offered partitions whose start position is known. `at_most` is the longest wait for each
    /// answer of the brokers.
    pub(super) fn start_partitions(
        &self,
        consumer: &GroupClient<S>,
        offered: Vec<TopicPartition>,
        at_most: Duration,
    ) -> KafkaResult<()> {
        let (placed, unplaced) = self.find_positions(consumer, offered, at_most);
        let mut taken = TopicPartitionList::new();
        let mut state = self.state.lock();
        for ((topic, partition), position) in placed {
            let Some(assignment) = self.setup.begin(&topic, partition, position) else {
                continue;
            };
            state.refused_topics.remove(&topic);
            taken.add_partition_offset(&topic, partition, Offset::Offset(position.start))?;
            state.insert(assignment);
        }
        state.unplaced.extend(unplaced.iter().cloned());
        drop(state);
        for (topic, partition) in &unplaced {
            self.warn_once(&format!("{topic}/{partition}: nobody tells where to begin"));
        }
        self.show_troubles();
        consumer.incremental_assign(&taken)?;
        if taken.count() > 0 && !mutants::is(Mutant::StayPaused) {
            // The client library keeps a partition paused beyond its assignment. A partition that was paused
            // when it was revoked would never be read again.
            consumer.resume(&taken)?;
        }
        Ok(())
    }

    /// Looks up the start positions that are not known yet, from time to time.
    pub(super) fn retry_unplaced(&self, consumer: &GroupClient<S>) {
        let clock = self.setup.deps.clock;
        let now = clock.mono_us();
        let unplaced = {
            let mut state = self.state.lock();
            if state.unplaced.is_empty() || now < state.next_lookup_us {
                return;
            }
            std::mem::take(&mut state.unplaced)
        };
        let outcome = self.start_partitions(consumer, unplaced, SHORT_ANSWER_TIMEOUT);
        let ended = clock.mono_us();
        let mut state = self.state.lock();
        state.next_lookup_us = ended + LOOKUP_INTERVAL_US.max((ended - now) * LOOKUP_REST_FACTOR);
        if let Err(error) = outcome {
            state.mark_broken(format!("partitions cannot be taken: {error}"));
        }
    }

    /// The start position of each partition, and the commit that the broker holds: the committed position, else
    /// the oldest record, which is then committed. The second list has the partitions whose start position is
    /// not known.
    fn find_positions(
        &self,
        consumer: &GroupClient<S>,
        offered: Vec<TopicPartition>,
        at_most: Duration,
    ) -> (Vec<(TopicPartition, StartPosition)>, Vec<TopicPartition>) {
        if offered.is_empty() || self.state.lock().is_leaving() {
            return (Vec::new(), Vec::new());
        }
        let asked = list(
            offered
                .iter()
                .map(|(topic, partition)| (topic.as_str(), *partition)),
        );
        let committed = match consumer.committed_offsets(asked, at_most) {
            Ok(committed) => committed,
            Err(error) => {
                debug!(consumer = %self.setup.owner, %error, "kafka does not tell the committed positions");
                return (Vec::new(), offered);
            }
        };
        let oldest = ask_offsets(consumer, &offered, Offset::Beginning, SHORT_ANSWER_TIMEOUT);
        let mut placed = Vec::new();
        let mut unplaced = Vec::new();
        for key in offered {
            let answer = committed.find_partition(&key.0, key.1);
            let answer = answer.and_then(|answer| answer.error().map(|()| answer.offset()).ok());
            let place = match (answer, oldest.get(&key).copied()) {
                (Some(Offset::Offset(committed)), Some(oldest)) if oldest > committed => {
                    self.report_overtaken(
                        &key,
                        OffsetRange {
                            from: committed,
                            to: oldest,
                        },
                    );
                    Some(StartPosition {
                        start: oldest,
                        committed: Some(committed),
                    })
                }
                (Some(Offset::Offset(committed)), _) => Some(StartPosition {
                    start: committed,
                    committed: Some(committed),
                }),
                (Some(_), Some(oldest)) => Some(StartPosition {
                    start: oldest,
                    committed: None,
                }),
                (Some(_), None) | (None, _) => None,
            };
            match place {
                Some(place) => placed.push((key, place)),
                None => unplaced.push(key),
            }
        }
        commit_starts(consumer, &mut placed);
        (placed, unplaced)
    }

    fn report_overtaken(&self, key: &TopicPartition, overtaken: OffsetRange) {
        let (topic, partition) = key;
        if let Some(route) = self.setup.routes.get(topic.as_str()) {
            self.report_lost(route, topic, *partition, overtaken);
        }
    }
}
