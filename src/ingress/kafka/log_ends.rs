//! The two ends of a log: its oldest record, and its end for a reader of committed transactions. They tell how
//! far reading is behind, and whether the topic's retention has overtaken it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdkafka::consumer::Consumer;
use rdkafka::statistics::Statistics;
use rdkafka::{Offset, TopicPartitionList};
use tracing::{debug, error};

use super::assignment::{OffsetRange, TopicPartition};
use super::placement::{LogEnds, REREAD_MARGIN_MS, TimedOffsets};
use super::rebalance::{GroupClient, GroupContext};
use crate::domain::{Route, Text, UnixMs};
use crate::ingress::Sink;

/// Longest wait for an answer of the group's coordinator while records wait to be read.
pub(super) const SHORT_ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Longest wait for a leader's answer about its logs. A broker answers the requests of a connection one by one, and a
/// fetch of an idle partition holds the next one for half a second (`fetch.wait.max.ms`).
const LOG_ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);

/// Topics up to which each is asked for by itself.
const MOST_TOPIC_QUESTIONS: usize = 16;

/// How far a route is behind, over its partitions.
#[derive(Default)]
struct RouteLag {
    /// Records between the resolved position and the last stable offset.
    lag: i64,
    /// Records that are read and not resolved.
    unresolved: usize,
    /// The oldest unresolved record of each partition, by its number in its ledger.
    oldest: BTreeMap<(Text, i32), u64>,
}

/// Asks two questions about each partition: where its log begins (`Offset::Beginning`) or ends (`Offset::End`), or
/// which is the first record of a time in Unix milliseconds (`Offset::Offset`; answered by `Offset::End` if there is
/// none). Each leader is asked by itself, so one that does not answer costs only its own partitions. A partition without
/// a leader is not asked for.
fn ask_offsets<S: Sink>(
    consumer: &GroupClient<S>,
    asked: &BTreeMap<TopicPartition, [Offset; 2]>,
) -> BTreeMap<TopicPartition, [Offset; 2]> {
    let mut found = BTreeMap::new();
    for (leader, led) in by_leader(consumer, asked) {
        let ask = |question: usize| {
            let mut list = TopicPartitionList::new();
            for key in &led {
                list.add_partition_offset(&key.0, key.1, asked[key][question])?;
            }
            consumer.offsets_for_times(list, LOG_ANSWER_TIMEOUT)
        };
        let answers = ask(0).and_then(|first| Ok([first, ask(1)?]));
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => {
                debug!(leader, %error, "a kafka broker does not tell the offsets of its partitions");
                continue;
            }
        };
        for key in led {
            let answer = |list: &TopicPartitionList| {
                let answer = list.find_partition(&key.0, key.1)?;
                answer.error().ok()?;
                Some(answer.offset())
            };
            let [first, second] = &answers;
            if let (Some(first), Some(second)) = (answer(first), answer(second)) {
                found.insert(key, [first, second]);
            }
        }
    }
    found
}

/// Asks for both ends of logs.
pub(super) fn ask_ends<'a, S: Sink>(
    consumer: &GroupClient<S>,
    keys: impl Iterator<Item = &'a TopicPartition>,
) -> BTreeMap<TopicPartition, LogEnds> {
    let asked = keys
        .map(|key| (key.clone(), [Offset::Beginning, Offset::End]))
        .collect();
    let mut ends = BTreeMap::new();
    for (key, found) in ask_offsets(consumer, &asked) {
        if let [Offset::Offset(begin), Offset::Offset(end)] = found {
            ends.insert(key, LogEnds { begin, end });
        }
    }
    ends
}

/// Asks for the records at which reading again may begin.
pub(super) fn ask_times<S: Sink>(
    consumer: &GroupClient<S>,
    resolved: &BTreeMap<TopicPartition, UnixMs>,
) -> BTreeMap<TopicPartition, TimedOffsets> {
    let of = |time: UnixMs| Offset::Offset(time.0.max(0));
    let asked = resolved
        .iter()
        .map(|(key, time)| {
            let margin = time.plus(-REREAD_MARGIN_MS);
            (key.clone(), [of(margin), of(time.plus(1))])
        })
        .collect();
    // Behind all records of the log: the caller knows its end.
    let offset = |found: Offset| match found {
        Offset::Offset(offset) => offset,
        _ => i64::MAX,
    };
    ask_offsets(consumer, &asked)
        .into_iter()
        .map(|(key, [margin, younger])| {
            let found = TimedOffsets {
                margin: offset(margin),
                younger: offset(younger),
            };
            (key, found)
        })
        .collect()
}

/// Asks for the first record of a time or later: the log's end if there is none.
pub(super) fn ask_since<S: Sink>(
    consumer: &GroupClient<S>,
    key: &TopicPartition,
    time: UnixMs,
) -> Option<i64> {
    let asked = BTreeMap::from([(key.clone(), time)]);
    ask_all_since(consumer, &asked).remove(key)
}

/// The same for many partitions, each with its time. Those whose leaders do not answer are left out.
pub(super) fn ask_all_since<S: Sink>(
    consumer: &GroupClient<S>,
    since: &BTreeMap<TopicPartition, UnixMs>,
) -> BTreeMap<TopicPartition, i64> {
    let asked = since
        .iter()
        .map(|(key, time)| (key.clone(), [Offset::Offset(time.0.max(0)), Offset::End]))
        .collect();
    let mut first = BTreeMap::new();
    for (key, found) in ask_offsets(consumer, &asked) {
        if let [Offset::Offset(at), _] | [_, Offset::Offset(at)] = found {
            first.insert(key, at);
        }
    }
    first
}

fn by_leader<S: Sink>(
    consumer: &GroupClient<S>,
    wanted: &BTreeMap<TopicPartition, [Offset; 2]>,
) -> BTreeMap<i32, Vec<TopicPartition>> {
    let topics: BTreeSet<&str> = wanted.keys().map(|(topic, _)| topic.as_str()).collect();
    // One question a topic, or one about all topics of the brokers.
    let questions: Vec<Option<&str>> = if topics.len() > MOST_TOPIC_QUESTIONS {
        vec![None]
    } else {
        topics.into_iter().map(Some).collect()
    };
    let mut led: BTreeMap<i32, Vec<TopicPartition>> = BTreeMap::new();
    for topic in questions {
        let metadata = match consumer.fetch_metadata(topic, LOG_ANSWER_TIMEOUT) {
            Ok(metadata) => metadata,
            Err(error) => {
                debug!(topic, %error, "kafka does not tell who leads a topic");
                break;
            }
        };
        for found in metadata.topics() {
            for partition in found.partitions() {
                let key = (found.name().to_owned(), partition.id());
                if partition.leader() >= 0 && wanted.contains_key(&key) {
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
        for (key, ends) in ask_ends(consumer, paused.iter()) {
            let mut state = self.state.lock();
            let Some(assignment) = state.find(&key.0, key.1) else {
                continue;
            };
            assignment.end = ends.end;
            let overtaken = assignment.overtaken(ends.begin);
            let route = assignment.route.clone();
            drop(state);
            if let Some(overtaken) = overtaken {
                self.report_lost(&route, &key.0, key.1, overtaken);
            }
        }
    }

    /// Shows how far each route is behind: from the resolved position to the last stable offset.
    pub(super) fn show_lag(&self, statistics: &Statistics) {
        let routes = self.setup.routes.iter();
        let mut shown: BTreeMap<_, RouteLag> = routes
            .map(|r| (r.name.clone(), RouteLag::default()))
            .collect();
        let mut lost = Vec::new();
        for assignment in &mut self.state.lock().assignments {
            let shown = shown.entry(assignment.route.name.clone()).or_default();
            shown.unresolved += assignment.ledger.outstanding();
            shown
                .oldest
                .extend(assignment.ledger.oldest().map(|record| {
                    (
                        (Text::from(&*assignment.topic), assignment.partition),
                        record,
                    )
                }));
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
                metrics.ingress_unresolved.set(shown.unresolved as i64);
            }
            let health = self.setup.deps.health.route(&route);
            health.unresolved(shown.oldest);
        }
    }
}
