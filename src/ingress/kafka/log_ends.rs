//! The two ends of a log: its oldest record, and its end for a reader of committed transactions. They tell how
//! far reading is behind, and whether the topic's retention has overtaken it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdkafka::consumer::Consumer;
use rdkafka::statistics::Statistics;
use rdkafka::{Offset, TopicPartitionList};
use tracing::{debug, error};

use super::assignment::OffsetRange;
use super::group_state::TopicPartition;
use super::rebalance::{GroupClient, GroupContext};
use crate::domain::Route;
use crate::ingress::Sink;

/// Longest wait for an answer of the brokers while records wait to be read.
pub(super) const SHORT_ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// How far a route is behind, over its partitions.
#[derive(Default)]
struct RouteLag {
    /// Records between the resolved position and the last stable offset.
    lag: i64,
    /// Records that are read and not resolved.
    unresolved: usize,
    /// The oldest unresolved record of each partition, by its number in its ledger.
    oldest: BTreeMap<i32, u64>,
}

/// Asks where logs begin (`Offset::Beginning`) or end (`Offset::End`). Each leader is asked by itself, so one
/// that does not answer costs only its own partitions. A partition without a leader is not asked for.
pub(super) fn ask_offsets<S: Sink>(
    consumer: &GroupClient<S>,
    keys: &[TopicPartition],
    edge: Offset,
    at_most: Duration,
) -> BTreeMap<TopicPartition, i64> {
    let mut found = BTreeMap::new();
    for (leader, led) in by_leader(consumer, keys, at_most) {
        let mut asked = TopicPartitionList::new();
        let listed = led
            .iter()
            .try_for_each(|(topic, partition)| asked.add_partition_offset(topic, *partition, edge));
        match listed.and_then(|()| consumer.offsets_for_times(asked, at_most)) {
            Ok(answers) => found.extend(answers.elements().iter().filter_map(|answer| {
                let Offset::Offset(offset) = answer.offset() else {
                    return None;
                };
                answer.error().ok()?;
                Some(((answer.topic().to_owned(), answer.partition()), offset))
            })),
            Err(error) => {
                debug!(leader, %error, "a kafka broker does not tell the ends of its partitions");
            }
        }
    }
    found
}

fn by_leader<S: Sink>(
    consumer: &GroupClient<S>,
    keys: &[TopicPartition],
    at_most: Duration,
) -> BTreeMap<i32, Vec<TopicPartition>> {
    let wanted: BTreeSet<&TopicPartition> = keys.iter().collect();
    let topics: BTreeSet<&str> = keys.iter().map(|(topic, _)| topic.as_str()).collect();
    let mut led: BTreeMap<i32, Vec<TopicPartition>> = BTreeMap::new();
    for topic in topics {
        let metadata = match consumer.fetch_metadata(Some(topic), at_most) {
            Ok(metadata) => metadata,
            Err(error) => {
                debug!(topic, %error, "kafka does not tell who leads a topic");
                break;
            }
        };
        for found in metadata.topics() {
            for partition in found.partitions() {
                let key = (found.name().to_owned(), partition.id());
                if partition.leader() >= 0 && wanted.contains(&key) {
                    led.entry(partition.leader()).or_default().push(key);
                }
            }
        }
    }
    led
}

impl<S: Sink> GroupContext<S> {
    /// Reports records that are gone for good, and counts them.
    pub(super) fn report_lost(
        &self,
        route: &Route,
        topic: &str,
        partition: i32,
        lost: OffsetRange,
    ) {
        error!(
            consumer = %self.setup.owner,
            route = %route.name,
            topic,
            partition,
            expected = lost.from,
            oldest = lost.to,
            "records were deleted from the source topic before they were read: its retention is too short"
        );
        if let Some(metrics) = self.setup.deps.metrics.route(&route.name) {
            metrics
                .source_lost
                .inc_by((lost.to - lost.from).max(0) as u64);
        }
    }

    /// Asks for the ends of paused partitions. Nothing is fetched of them, so the client library does not know
    /// their ends.
    pub(super) fn refresh_paused(&self, consumer: &GroupClient<S>) {
        let paused: Vec<TopicPartition> = {
            let state = self.state.lock();
            let paused = state.assignments.iter().filter(|a| a.paused);
            paused.map(|a| (a.topic.to_string(), a.partition)).collect()
        };
        if paused.is_empty() {
            return;
        }
        let starts = ask_offsets(consumer, &paused, Offset::Beginning, SHORT_ANSWER_TIMEOUT);
        let ends = ask_offsets(consumer, &paused, Offset::End, SHORT_ANSWER_TIMEOUT);
        for key in &paused {
            let mut state = self.state.lock();
            let Some(assignment) = state.find(&key.0, key.1) else {
                continue;
            };
            if let Some(end) = ends.get(key) {
                assignment.end = *end;
            }
            let overtaken = starts
                .get(key)
                .and_then(|start| assignment.overtaken(*start));
            let route = assignment.route.clone();
            drop(state);
            if let Some(overtaken) = overtaken {
                self.report_lost(&route, &key.0, key.1, overtaken);
            }
        }
    }

    /// Shows how far each route is behind: from the resolved position to the last stable offset.
    pub(super) fn show_lag(&self, statistics: &Statistics) {
        let routes = self.setup.routes.values();
        let mut shown: BTreeMap<_, RouteLag> = routes
            .map(|r| (r.name.clone(), RouteLag::default()))
            .collect();
        let mut lost = Vec::new();
        for assignment in &mut self.state.lock().assignments {
            let shown = shown.entry(assignment.route.name.clone()).or_default();
            shown.unresolved += assignment.ledger.outstanding();
            shown.oldest.extend(
                assignment
                    .ledger
                    .oldest()
                    .map(|record| (assignment.partition, record)),
            );
            let topic = statistics.topics.get(&*assignment.topic);
            let Some(partition) = topic.and_then(|t| t.partitions.get(&assignment.partition))
            else {
                continue;
            };
            shown.lag += (partition.ls_offset.max(assignment.end) - assignment.resolved).max(0);
            if let Some(overtaken) = assignment.overtaken(partition.lo_offset) {
                lost.push((
                    assignment.route.clone(),
                    assignment.topic.clone(),
                    assignment.partition,
                    overtaken,
                ));
            }
        }
        for (route, topic, partition, overtaken) in lost {
            self.report_lost(&route, &topic, partition, overtaken);
        }
        for (route, shown) in shown {
            if let Some(metrics) = self.setup.deps.metrics.route(&route) {
                metrics.ingress_lag.set(shown.lag);
                metrics.show_unresolved(shown.unresolved, shown.oldest);
            }
        }
    }
}
