//! Backpressure: pauses a partition whose window stays full. (What a route at its `max_pending` waits for is its gate, in
//! `ingress::permits`.)
//!
//! Pausing a partition is dear: the client library throws away the records that it has read ahead, and fetches
//! them again. A window that is full because everything is busy is therefore first given a moment. Only a
//! window that gets no capacity within it is paused: something hangs then, and the other partitions must not
//! wait.

use std::time::Duration;

use rdkafka::consumer::Consumer;
use tracing::debug;

use super::group_state::list;
use super::rebalance::{GroupClient, GroupContext};
use crate::ingress::Sink;

/// Longest wait of the whole consumer for one partition's window.
const RELIEF_WAIT_US: i64 = 20_000;

impl<S: Sink> GroupContext<S> {
    /// Waits a moment for capacity in a partition whose window is full, then pauses the partition.
    pub(super) fn wait_or_pause(&self, consumer: &GroupClient<S>, topic: &str, partition: i32) {
        let clock = self.setup.deps.clock;
        let end_us = clock.mono_us() + RELIEF_WAIT_US;
        loop {
            let left_us = end_us - clock.mono_us();
            let ledger = {
                let mut state = self.state.lock();
                let Some(assignment) = state.find(topic, partition) else {
                    return;
                };
                assignment.advance();
                if assignment.has_headroom() || assignment.paused {
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
            self.setup.runtime.block_on(async {
                tokio::select! {
                    () = ledger.advanced() => {}
                    () = tokio::time::sleep(left) => {}
                }
            });
        }
    }
}
