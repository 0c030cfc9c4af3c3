//! Reports partitions that stand (see `standstill`), and takes what the client library passed over.

use rdkafka::statistics::Statistics;
use tracing::{debug, error, info, warn};

use super::assignment::{Assignment, OffsetRange};
use super::batch_probe::MAX_OFFSETS;
use super::rebalance::GroupContext;
use super::standstill::{FetchView, Standstill, StandstillChange};
use crate::domain::{OnUndecodable, Text};
use crate::ingress::Sink;

impl<S: Sink> GroupContext<S> {
    /// Notes the client library's report about records that it cannot open.
    pub(super) fn note_undecodable(&self, reason: &str) {
        debug!(consumer = %self.setup.owner, reason, "kafka client library cannot open records");
        self.state
            .lock()
            .decode_reports
            .note(reason, self.setup.deps.clock.mono_us());
    }

    /// Finds the partitions that stand, and reports each change. Runs with each statistics of the client library.
    pub(super) fn find_standing(&self, statistics: &Statistics) {
        let now_us = self.setup.deps.clock.mono_us();
        let partial_answers = statistics
            .brokers
            .values()
            .map(|broker| broker.rxpartial)
            .sum();
        let mut changes = Vec::new();
        let why = {
            let state = &mut *self.state.lock();
            let evidence = state.decode_reports.evidence(partial_answers, now_us);
            for assignment in state
                .assignments
                .iter_mut()
                .filter(|assignment| !assignment.paused)
            {
                let topic = statistics.topics.get(&*assignment.topic);
                let partition = topic.and_then(|topic| topic.partitions.get(&assignment.partition));
                let Some(partition) = partition.filter(|partition| partition.next_offset >= 0)
                else {
                    continue;
                };
                let view = FetchView {
                    fetch: partition.next_offset,
                    next: assignment.next,
                    stable: partition.ls_offset,
                    high: partition.hi_offset,
                };
                if let Some(change) = assignment.standstill.update(view, evidence, now_us) {
                    let policy = assignment.route.policy.on_undecodable;
                    changes.push((
                        assignment.topic.clone(),
                        assignment.partition,
                        policy,
                        change,
                    ));
                }
            }
            state.decode_reports.why(evidence).to_owned()
        };
        for (topic, partition, policy, change) in changes {
            let consumer = &self.setup.owner;
            match change {
                StandstillChange::Begins(Standstill::Undecodable { offset }) => match policy {
                    OnUndecodable::Wait => warn!(
                        %consumer, %topic, partition, offset, why,
                        "kafka partition stands at records that cannot be opened; `postdate skip` passes over one"
                    ),
                    OnUndecodable::Skip => warn!(
                        %consumer, %topic, partition, offset, why,
                        "kafka partition stands at records that cannot be opened; they are skipped once a probe confirms it"
                    ),
                },
                StandstillChange::Begins(Standstill::OpenTransaction { offset, behind }) => warn!(
                    %consumer, %topic, partition, offset, behind,
                    "kafka partition stands until a producer ends its transaction"
                ),
                StandstillChange::Ends(
                    Standstill::Undecodable { offset } | Standstill::OpenTransaction { offset, .. },
                ) => {
                    info!(%consumer, %topic, partition, offset, "kafka partition is read on");
                }
            }
        }
    }

    /// Takes records that the client library passed over: as undecodable ones where the route skips those, else they are
    /// reported and counted as lost.
    pub(super) fn take_passed_over(&self, assignment: &mut Assignment, passed: OffsetRange) {
        let route = assignment.route.clone();
        if route.policy.on_undecodable == OnUndecodable::Skip && passed.len() <= MAX_OFFSETS {
            // The window is looked at with the record behind them.
            assignment.read_undecodable(
                passed,
                &Text::from("its batch is damaged, or of an unknown format"),
            );
            return;
        }
        error!(
            consumer = %self.setup.owner,
            route = %route.name,
            topic = %assignment.topic,
            partition = assignment.partition,
            from = passed.from,
            to = passed.to - 1,
            "records of the source topic cannot be opened, and were passed over"
        );
        if let Some(metrics) = self.setup.deps.metrics.route(&route.name) {
            metrics.source_lost.inc_by(passed.len().max(0) as u64);
        }
    }
}
