//! Taking up the partitions that the group gives: each is read once its place is known, and judged by itself.
//!
//! The place is the committed position, else the log's oldest record. One that cannot be told (no leader, no
//! answer) is not taken up yet; it is looked for again from time to time, and the others are read meanwhile.

use std::time::Duration;

use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaResult;
use rdkafka::{Offset, TopicPartitionList};
use tracing::debug;

use super::assignment::Position;
use super::commits::commit_starts;
use super::group_state::{Key, list};
use super::log_ends::{SHORT_ANSWER, ask};
use super::rebalance::{Context, GroupClient};
use crate::ingress::Sink;
use crate::mutants::{self, Mutant};

/// Shortest time between two looks for a place.
const LOOK_AGAIN_US: i64 = 1_000_000;
/// How many times as long as a look has taken nothing else may wait for the brokers: reading comes first.
pub(super) const REST: i64 = 4;

impl<S: Sink> Context<S> {
    /// Takes up what was offered, as far as its place is known. The brokers may take so long for each answer.
    pub(super) fn take_up(
        &self,
        consumer: &GroupClient<S>,
        offered: Vec<Key>,
        at_most: Duration,
    ) -> KafkaResult<()> {
        let (placed, unplaced) = self.places(consumer, offered, at_most);
        let mut taken = TopicPartitionList::new();
        let mut state = self.state.lock();
        for ((topic, partition), position) in placed {
            let Some(assignment) = self.fixed.begin(&topic, partition, position) else { continue };
            self.is_read(&topic);
            taken.add_partition_offset(&topic, partition, Offset::Offset(position.start))?;
            state.insert(assignment);
        }
        state.unplaced.extend(unplaced.iter().cloned());
        drop(state);
        for (topic, partition) in &unplaced {
            self.complain_of(topic, *partition);
        }
        consumer.incremental_assign(&taken)?;
        if taken.count() > 0 && !mutants::is(Mutant::StayPaused) {
            // The client library keeps a partition paused beyond its assignment: one that was paused when it was
            // taken away would never be read again.
            consumer.resume(&taken)?;
        }
        Ok(())
    }

    /// From time to time: looks again for what has no place yet.
    pub(super) fn take_up_late(&self, consumer: &GroupClient<S>) {
        let clock = self.fixed.around.clock;
        let now = clock.mono_us();
        let unplaced = {
            let mut state = self.state.lock();
            if state.unplaced.is_empty() || now < state.place_us {
                return;
            }
            std::mem::take(&mut state.unplaced)
        };
        let outcome = self.take_up(consumer, unplaced, SHORT_ANSWER);
        let ended = clock.mono_us();
        let mut state = self.state.lock();
        state.place_us = ended + LOOK_AGAIN_US.max((ended - now) * REST);
        if let Err(error) = outcome {
            state.broken = Some(format!("partitions cannot be taken: {error}"));
        }
    }

    /// Where each partition begins, and what the broker holds: the committed position, else the oldest record,
    /// which is committed then. And those of which that cannot be told.
    fn places(
        &self,
        consumer: &GroupClient<S>,
        offered: Vec<Key>,
        at_most: Duration,
    ) -> (Vec<(Key, Position)>, Vec<Key>) {
        if offered.is_empty() || self.state.lock().closing {
            return (Vec::new(), Vec::new());
        }
        let asked = list(offered.iter().map(|(topic, partition)| (topic.as_str(), *partition)));
        let committed = match consumer.committed_offsets(asked, at_most) {
            Ok(committed) => committed,
            Err(error) => {
                debug!(consumer = %self.fixed.owner, %error, "kafka does not tell the committed positions");
                return (Vec::new(), offered);
            }
        };
        let oldest = ask(consumer, &offered, Offset::Beginning, SHORT_ANSWER);
        let (mut placed, mut unplaced) = (Vec::new(), Vec::new());
        for key in offered {
            let answer = committed.find_partition(&key.0, key.1);
            let answer = answer.and_then(|answer| answer.error().map(|()| answer.offset()).ok());
            let place = match (answer, oldest.get(&key).copied()) {
                (Some(Offset::Offset(committed)), Some(oldest)) if oldest > committed => {
                    self.tell_overtaken(&key, (committed, oldest));
                    Some(Position { start: oldest, committed: Some(committed) })
                }
                (Some(Offset::Offset(committed)), _) => {
                    Some(Position { start: committed, committed: Some(committed) })
                }
                (Some(_), Some(oldest)) => Some(Position { start: oldest, committed: None }),
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

    fn tell_overtaken(&self, (topic, partition): &Key, overtaken: (i64, i64)) {
        if let Some(route) = self.fixed.routes.get(topic.as_str()) {
            self.tell_lost(route, (topic, *partition), overtaken);
        }
    }
}
