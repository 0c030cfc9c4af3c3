//! The two ends of a log: where its oldest record is, and where it ends for a reader of committed transactions.
//! They tell how far reading is behind, and whether the topic's retention has overtaken it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdkafka::consumer::Consumer;
use rdkafka::statistics::Statistics;
use rdkafka::{Offset, TopicPartitionList};
use tracing::{debug, error};

use super::group_state::Key;
use super::rebalance::{Context, GroupClient};
use crate::domain::Route;
use crate::ingress::Sink;

/// How long the brokers may take for an answer while others wait to be read.
pub(super) const SHORT_ANSWER: Duration = Duration::from_millis(500);

/// Records that were deleted before they were read, as an upper bound: offsets from the first up to the second.
pub(super) type Overtaken = (i64, i64);

/// How far a route is behind, over its partitions.
#[derive(Default)]
struct Shown {
    /// Records between what is resolved and the last stable offset.
    lag: i64,
    /// Records that are read and not resolved.
    unresolved: usize,
    /// The oldest of these in each partition, by its number in its ledger.
    oldest: BTreeMap<i32, u64>,
}

/// Asks where logs begin (`Offset::Beginning`) or end (`Offset::End`). Each leader is asked by itself, so one that
/// does not answer costs only its own partitions; what has no leader is not asked for.
pub(super) fn ask<S: Sink>(
    consumer: &GroupClient<S>,
    keys: &[Key],
    edge: Offset,
    at_most: Duration,
) -> BTreeMap<Key, i64> {
    let mut found = BTreeMap::new();
    for (leader, led) in by_leader(consumer, keys, at_most) {
        let mut asked = TopicPartitionList::new();
        let listed =
            led.iter().try_for_each(|(topic, partition)| asked.add_partition_offset(topic, *partition, edge));
        match listed.and_then(|()| consumer.offsets_for_times(asked, at_most)) {
            Ok(answers) => found.extend(answers.elements().iter().filter_map(|answer| {
                let Offset::Offset(offset) = answer.offset() else { return None };
                answer.error().ok()?;
                Some(((answer.topic().to_owned(), answer.partition()), offset))
            })),
            Err(error) => debug!(leader, %error, "a kafka broker does not tell the ends of its partitions"),
        }
    }
    found
}

fn by_leader<S: Sink>(consumer: &GroupClient<S>, keys: &[Key], at_most: Duration) -> BTreeMap<i32, Vec<Key>> {
    let wanted: BTreeSet<&Key> = keys.iter().collect();
    let topics: BTreeSet<&str> = keys.iter().map(|(topic, _)| topic.as_str()).collect();
    let mut led: BTreeMap<i32, Vec<Key>> = BTreeMap::new();
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

impl<S: Sink> Context<S> {
    /// Says that records are gone for good, and counts them.
    pub(super) fn tell_lost(&self, route: &Route, (topic, partition): (&str, i32), (from, to): Overtaken) {
        error!(
            consumer = %self.fixed.owner,
            route = %route.name,
            topic,
            partition,
            expected = from,
            oldest = to,
            "records were deleted from the source topic before they were read: its retention is too short"
        );
        if let Some(metrics) = self.fixed.around.metrics.route(&route.name) {
            metrics.source_lost.inc_by((to - from).max(0) as u64);
        }
    }

    /// Asks for the ends of what is paused: nothing is fetched of it, so the client library does not know them.
    pub(super) fn look_at_paused(&self, consumer: &GroupClient<S>) {
        let paused: Vec<Key> = {
            let state = self.state.lock();
            let paused = state.assignments.iter().filter(|a| a.paused);
            paused.map(|a| (a.topic.to_string(), a.partition)).collect()
        };
        if paused.is_empty() {
            return;
        }
        let starts = ask(consumer, &paused, Offset::Beginning, SHORT_ANSWER);
        let ends = ask(consumer, &paused, Offset::End, SHORT_ANSWER);
        for key in &paused {
            let mut state = self.state.lock();
            let Some(assignment) = state.find(&key.0, key.1) else { continue };
            if let Some(end) = ends.get(key) {
                assignment.end = *end;
            }
            let overtaken = starts.get(key).and_then(|start| assignment.overtaken(*start));
            let route = assignment.route.clone();
            drop(state);
            if let Some(overtaken) = overtaken {
                self.tell_lost(&route, (&key.0, key.1), overtaken);
            }
        }
    }

    /// Shows how far each route is behind: from what is resolved to the last stable offset.
    pub(super) fn show_lag(&self, statistics: &Statistics) {
        let routes = self.fixed.routes.values();
        let mut shown: BTreeMap<_, Shown> = routes.map(|r| (r.name.clone(), Shown::default())).collect();
        let mut lost = Vec::new();
        for assignment in &mut self.state.lock().assignments {
            let shown = shown.entry(assignment.route.name.clone()).or_default();
            shown.unresolved += assignment.ledger.outstanding();
            shown.oldest.extend(assignment.ledger.oldest().map(|record| (assignment.partition, record)));
            let topic = statistics.topics.get(&*assignment.topic);
            let Some(partition) = topic.and_then(|t| t.partitions.get(&assignment.partition)) else {
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
            self.tell_lost(&route, (&topic, partition), overtaken);
        }
        for (route, shown) in shown {
            if let Some(metrics) = self.fixed.around.metrics.route(&route) {
                metrics.ingress_lag.set(shown.lag);
                metrics.show_unresolved(shown.unresolved, shown.oldest);
            }
        }
    }
}
