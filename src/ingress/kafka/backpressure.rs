//! What a consumer does while a partition's window is full.
//!
//! Pausing a partition is dear: the client library throws away what it has read ahead of it and fetches it
//! again. So a window that is full because everything is busy is first given a moment; only one that gets no
//! room in it is paused, for then something hangs, and the other partitions must not wait.

use std::time::Duration;

use rdkafka::consumer::Consumer;
use tracing::debug;

use super::group_state::{State, list};
use super::rebalance::{Context, GroupClient};
use crate::ingress::Sink;

/// How long the whole consumer waits for one partition's room, at most.
const MOMENT_US: i64 = 20_000;

/// How far a consumer is with what it reads.
pub(super) enum Reading {
    /// A partition is paused.
    Paused,
    On,
    /// All that was read is stored and committed.
    Settled,
}

impl<S: Sink> Context<S> {
    /// Waits a moment for room in a partition whose window is full, then pauses it.
    pub(super) fn relieve(&self, consumer: &GroupClient<S>, topic: &str, partition: i32) {
        let clock = self.fixed.around.clock;
        let end_us = clock.mono_us() + MOMENT_US;
        loop {
            let left_us = end_us - clock.mono_us();
            let ledger = {
                let mut state = self.state.lock();
                let Some(assignment) = state.find(topic, partition) else { return };
                assignment.advance();
                if assignment.has_some_room() || assignment.paused {
                    return;
                }
                if left_us <= 0 {
                    match consumer.pause(&list([(topic, partition)])) {
                        Ok(()) => assignment.paused = true,
                        Err(error) => debug!(%error, "kafka partition not paused"),
                    }
                    return;
                }
                assignment.ledger.clone()
            };
            let left = Duration::from_micros(left_us as u64);
            self.fixed.runtime.block_on(async {
                tokio::select! {
                    () = ledger.advanced() => {}
                    () = tokio::time::sleep(left) => {}
                }
            });
        }
    }

    /// Takes in what was resolved, and resumes what has room.
    pub(super) fn resume(&self, consumer: &GroupClient<S>) -> Reading {
        resume(&mut self.state.lock(), consumer)
    }
}

pub(super) fn resume<S: Sink>(state: &mut State, consumer: &GroupClient<S>) -> Reading {
    let (mut paused, mut settled) = (false, !state.assignments.is_empty());
    for assignment in &mut state.assignments {
        assignment.advance();
        if assignment.paused && assignment.has_room() {
            let which = list([(&*assignment.topic, assignment.partition)]);
            match consumer.resume(&which) {
                Ok(()) => assignment.paused = false,
                Err(error) => debug!(%error, "kafka partition not resumed yet"),
            }
        }
        paused |= assignment.paused;
        settled &= assignment.is_committed();
    }
    match (paused, settled) {
        (true, _) => Reading::Paused,
        (false, true) => Reading::Settled,
        (false, false) => Reading::On,
    }
}
