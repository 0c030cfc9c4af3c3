//! The state of one group's consumer: its setup, and the partitions that are assigned to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::statistics::Statistics;
use tokio::runtime::Handle;
use tracing::debug;

use super::KafkaDependencies;
use super::assignment::{
    Assignment, AssignmentSpec, StartPosition, TopicPartition, WINDOW_BYTES, feed,
};
use super::batch_probe::RunningProbe;
use super::placement::PlacementCause;
use super::reading_mode::FetchCounts;
use super::skip_desk::SkipQueue;
use super::source_topics::SourceTopics;
use super::standstill::{DecodeReports, Standstill};
use crate::broker::kafka::{Connection, OutageSuspicion};
use crate::domain::{FirstStart, ReadMark, Route, RouteName, SkipOutcome};
use crate::ingress::Sink;

/// The part of a consumer that outlives its restarts.
pub(super) struct GroupSetup<S> {
    /// `<connection>/<group>`
    pub(super) owner: String,
    pub(super) connection: Connection,
    /// Name of the consumer's thread and tasks.
    pub(super) task: String,
    pub(super) routes: Vec<Arc<Route>>,
    pub(super) topics: Mutex<SourceTopics>,
    /// How the topics of a route were when it was first read, by route, as far as that had to be known.
    pub(super) first_starts: Mutex<BTreeMap<RouteName, Arc<FirstStart>>>,
    pub(super) deps: KafkaDependencies<S>,
    /// Lets the consumer's own thread wait for tasks.
    pub(super) runtime: Handle,
    pub(super) suspicion: OutageSuspicion,
    pub(super) skips: SkipQueue,
}

impl<S: Sink> GroupSetup<S> {
    /// The group's name.
    pub(super) fn group(&self) -> &str {
        self.owner.split_once('/').map_or("", |(_, group)| group)
    }

    /// The name of a partition as a source of the intake.
    pub(super) fn source(&self, topic: &str, partition: i32) -> String {
        format!("kafka/{}/{topic}/{partition}", self.owner)
    }

    /// The route that reads a topic, as it reads it.
    pub(super) fn route_of(&self, topic: &str) -> Option<Arc<Route>> {
        self.topics.lock().route_of(topic).cloned()
    }

    /// Starts an assignment at a position. `None` if no route reads the topic.
    pub(super) fn begin(
        &self,
        topic: &str,
        partition: i32,
        position: StartPosition,
    ) -> Option<Assignment> {
        let route = self.route_of(topic)?;
        let source = self.source(topic, partition);
        let deps = &self.deps;
        let spec = AssignmentSpec {
            topic: topic.into(),
            partition,
            route: route.clone(),
            position,
            share: deps.budget.share(WINDOW_BYTES),
        };
        Some(Assignment::begin(spec, &deps.tasks, &self.task, |inbox| {
            feed(
                deps.sink.clone(),
                deps.shutdown.clone(),
                route.clone(),
                source,
                inbox,
            )
        }))
    }
}

/// The progress of a consumer with the records that it read.
pub(super) enum ReadProgress {
    /// A partition is paused.
    Paused,
    Active,
    /// Every record that was read is stored and committed.
    Idle,
}

/// A partition that the group has given to this consumer, and that is not read yet.
#[derive(Clone, Debug)]
pub(super) struct Unplaced {
    pub(super) key: TopicPartition,
    pub(super) cause: PlacementCause,
    /// How far this consumer has read it.
    pub(super) read: Option<ReadMark>,
    /// Why it is not read.
    pub(super) why: String,
    /// It waits for an operator's word.
    pub(super) is_held: bool,
}

impl Unplaced {
    pub(super) fn new(key: TopicPartition, cause: PlacementCause, read: Option<ReadMark>) -> Self {
        Self {
            key,
            cause,
            read,
            why: "nobody tells where to begin".to_owned(),
            is_held: false,
        }
    }

    /// Reports whether nobody is known to have read it ever.
    pub(super) fn is_fresh(&self, is_committed: bool) -> bool {
        self.cause == PlacementCause::Given && self.read.is_none() && !is_committed
    }
}

impl std::fmt::Display for Unplaced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (topic, partition) = &self.key;
        write!(f, "{topic}/{partition}: {}", self.why)
    }
}

/// The end of a partition's log in an answer with an error, whichever it is.
const NO_LOG_END: i64 = -1;

/// Brokers refuse to let partitions be read.
#[derive(Debug, Default)]
pub(super) struct FetchRefusal {
    /// The client library's words.
    why: String,
    /// The topics of the partitions, as of the last statistics.
    topics: BTreeSet<Arc<str>>,
    /// The last statistics have none.
    is_over: bool,
}

impl FetchRefusal {
    /// Takes in the topics that the statistics show as refused. Reports whether none is any more: statistics that were made
    /// while the refusal was told may not have it yet, and the next ones do.
    fn update(&mut self, topics: BTreeSet<Arc<str>>) -> bool {
        self.topics = topics;
        let was_over = std::mem::replace(&mut self.is_over, self.topics.is_empty());
        was_over && self.is_over
    }
}

/// The phases of a consumer's life, in their order.
#[derive(Debug, Default)]
pub(super) enum ConsumerPhase {
    /// The consumer takes the partitions that the group gives it, and reads them.
    #[default]
    Consuming,
    /// The consumer must be restarted, for this reason. It still answers rebalances as before, until its thread
    /// notices.
    Broken(String),
    /// The consumer leaves the group, or its place to a successor. It takes no more partitions, and drains none that are
    /// revoked.
    Leaving,
}

/// The part of a consumer that changes, and dies with it.
#[derive(Default)]
pub(super) struct GroupState {
    pub(super) assignments: Vec<Assignment>,
    /// Index of the assignment that was found last.
    last_found: usize,
    /// The consumer is subscribed to topics.
    pub(super) is_subscribed: bool,
    /// The group has given this consumer its partitions, perhaps none, and has not taken all of them back.
    pub(super) is_member: bool,
    pub(super) phase: ConsumerPhase,
    /// Partitions of this consumer that have no start position yet.
    pub(super) unplaced: Vec<Unplaced>,
    /// Monotonic microseconds of the next lookup of these.
    pub(super) next_lookup_us: i64,
    /// Monotonic microseconds of the next lookup of all commits, and of the ends of paused partitions.
    pub(super) next_verify_us: i64,
    /// Monotonic microseconds until which commits rest, because the last answer was late.
    pub(super) rest_until_us: i64,
    /// Failed commits since the last one that was seen to succeed.
    pub(super) failed_commits: u32,
    /// The group has given this consumer partitions, or has said that there are none for it. From then on a topic without
    /// a trouble is read; before, it may still be in the trouble that the predecessor of this consumer had.
    pub(super) has_joined: bool,
    /// Why the brokers refuse this consumer its whole group. Over once the group has given it partitions.
    pub(super) group_refusal: Option<String>,
    /// Why the brokers refuse to let partitions be read, without saying which. The client library says it once.
    pub(super) fetch_refusal: Option<FetchRefusal>,
    /// Topics that are missing or forbidden, with the reason. Over once a partition of the topic is seen.
    pub(super) refused_topics: BTreeMap<String, String>,
    /// What the client has fetched, as of statistics that nobody has judged yet.
    pub(super) fetch_counts: Option<FetchCounts>,
    /// The client library's reports about records that it cannot open.
    pub(super) decode_reports: DecodeReports,
    /// The probe of the batch at which one partition stands.
    pub(super) probe: Option<RunningProbe>,
    /// Routes that are shown with a standing partition, with the reason.
    pub(super) standing_routes: BTreeSet<(RouteName, &'static str)>,
    /// Reasons that were logged already.
    pub(super) warned: BTreeSet<String>,
}

impl GroupState {
    /// Asks for a restart, unless the consumer leaves anyway.
    pub(super) fn mark_broken(&mut self, why: String) {
        if !self.is_leaving() {
            self.phase = ConsumerPhase::Broken(why);
        }
    }

    /// Reports whether the group could give this consumer partitions, and has not. While a topic is missing, or
    /// the group is forbidden, there is nothing that it could give.
    pub(super) fn is_owed_partitions(&self) -> bool {
        self.is_subscribed
            && !self.is_member
            && self.group_refusal.is_none()
            && self.refused_topics.is_empty()
    }

    /// Why this consumer does not read some of these topics, or not all that it has of them. `named` stands for all.
    pub(super) fn trouble(&self, named: &str, is_one: impl Fn(&str) -> bool) -> Option<String> {
        if let Some((topic, partition, why)) = self.standing(&is_one).next() {
            return Some(format!("topic {topic}: partition {partition} {why}"));
        }
        let mut refused = self.refused_topics.iter();
        if let Some((topic, why)) = refused.find(|(topic, _)| is_one(topic)) {
            return Some(format!("topic {topic}: {why}"));
        }
        if let Some(why) = &self.group_refusal {
            return Some(format!("topic {named}: {why}"));
        }
        if let Some(refusal) = &self.fetch_refusal
            && let Some(topic) = refusal.topics.iter().find(|topic| is_one(topic))
        {
            return Some(format!("topic {topic}: {}", refusal.why));
        }
        let mut unplaced = self.unplaced.iter();
        let unplaced = unplaced.find(|unplaced| is_one(&unplaced.key.0))?;
        Some(format!("topic {unplaced}"))
    }

    /// The partitions of these topics that stand, and why.
    pub(super) fn standing(
        &self,
        is_one: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = (&str, i32, Standstill)> {
        self.assignments
            .iter()
            .filter(move |assignment| is_one(&assignment.topic))
            .filter_map(|assignment| {
                let why = assignment.standstill.standing()?;
                Some((&*assignment.topic, assignment.partition, why))
            })
    }

    /// The outcome of a skip at a partition that is not read.
    pub(super) fn not_read(&self, key: &TopicPartition) -> SkipOutcome {
        let unplaced = self.unplaced.iter().find(|unplaced| unplaced.key == *key);
        unplaced.map_or(SkipOutcome::NotHere, |unplaced| {
            SkipOutcome::NotRead(unplaced.why.clone())
        })
    }

    /// Reports whether the consumer leaves the group.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.phase, ConsumerPhase::Leaving)
    }

    /// The assignment of a partition.
    pub(super) fn find(&mut self, topic: &str, partition: i32) -> Option<&mut Assignment> {
        let is_it = |a: &Assignment| a.partition == partition && *a.topic == *topic;
        if !self.assignments.get(self.last_found).is_some_and(is_it) {
            self.last_found = self.assignments.iter().position(is_it)?;
        }
        self.assignments.get_mut(self.last_found)
    }

    /// Adds an assignment. Replaces the one of the same partition.
    pub(super) fn insert(&mut self, assignment: Assignment) {
        match self.find(&assignment.topic, assignment.partition) {
            Some(old) => *old = assignment,
            None => self.assignments.push(assignment),
        }
    }

    /// Removes the assignments of these partitions.
    pub(super) fn remove(&mut self, list: &[TopicPartition]) {
        self.assignments.retain(|a| {
            !list
                .iter()
                .any(|(topic, partition)| *a.topic == **topic && a.partition == *partition)
        });
    }

    /// Takes in resolved records, and resumes each paused partition that has capacity again.
    pub(super) fn resume<C: ConsumerContext>(
        &mut self,
        consumer: &BaseConsumer<C>,
    ) -> ReadProgress {
        let mut is_paused = false;
        let mut is_idle = !self.assignments.is_empty();
        for assignment in &mut self.assignments {
            assignment.advance();
            if assignment.paused && assignment.has_room() {
                let partition = list([(&*assignment.topic, assignment.partition)]);
                match consumer.resume(&partition) {
                    Ok(()) => assignment.paused = false,
                    Err(error) => debug!(%error, "kafka partition not resumed yet"),
                }
            }
            is_paused |= assignment.paused;
            is_idle &= assignment.is_committed();
        }
        match (is_paused, is_idle) {
            (true, _) => ReadProgress::Paused,
            (false, true) => ReadProgress::Idle,
            (false, false) => ReadProgress::Active,
        }
    }

    /// Takes in that brokers refuse to let a partition be read.
    pub(super) fn note_refusal(&mut self, why: &str) {
        let refusal = self.fetch_refusal.get_or_insert_default();
        refusal.is_over = false;
        why.clone_into(&mut refusal.why);
    }

    /// Takes in which partitions the brokers refuse to let be read: the last answer about such a partition was an error,
    /// and most likely that one. A topic to which nobody sends has no record that would tell of the end of the refusal.
    /// Nothing is fetched of a paused partition; once it goes on, a refusal is told anew.
    pub(super) fn find_refused(&mut self, statistics: &Statistics) {
        let Some(refusal) = &mut self.fetch_refusal else {
            return;
        };
        let is_refused = |assignment: &&Assignment| {
            let topic = statistics.topics.get(&*assignment.topic);
            let partition = topic.and_then(|topic| topic.partitions.get(&assignment.partition));
            !assignment.paused && partition.is_some_and(|seen| seen.hi_offset == NO_LOG_END)
        };
        let refused = self.assignments.iter().filter(is_refused);
        if refusal.update(refused.map(|assignment| assignment.topic.clone()).collect()) {
            self.fetch_refusal = None;
        }
    }

    /// Takes in what the client has fetched so far.
    pub(super) fn count_fetched(&mut self, statistics: &Statistics) {
        let mut unread = 0;
        for assignment in &self.assignments {
            // Nothing is fetched of it, whatever the sizes are.
            if assignment.paused || assignment.standstill.standing().is_some() {
                continue;
            }
            let topic = statistics.topics.get(&*assignment.topic);
            let partition = topic.and_then(|topic| topic.partitions.get(&assignment.partition));
            if let Some(partition) = partition.filter(|partition| partition.next_offset >= 0) {
                unread += (partition.ls_offset - partition.next_offset).max(0) as u64;
            }
        }
        let mut largest_part = self.fetch_counts.map_or(0, |counts| counts.largest_part);
        for topic in statistics.topics.values() {
            largest_part = largest_part.max(topic.batchsize.max.max(0) as u64);
        }
        self.fetch_counts = Some(FetchCounts {
            wire: statistics.rx_bytes.max(0) as u64,
            opened: statistics.rxmsg_bytes.max(0) as u64,
            records: statistics.rxmsgs.max(0) as u64,
            largest_part,
            unread,
        });
    }

    /// Topic and partition of each assignment.
    pub(super) fn keys(&self) -> Vec<TopicPartition> {
        self.assignments
            .iter()
            .map(|a| (a.topic.to_string(), a.partition))
            .collect()
    }
}

/// The partitions of a list of the client library.
pub(super) fn partitions(list: &TopicPartitionList) -> Vec<TopicPartition> {
    list.elements()
        .iter()
        .map(|e| (e.topic().to_owned(), e.partition()))
        .collect()
}

/// A list of the client library for these partitions.
pub(super) fn list<'a>(partitions: impl IntoIterator<Item = (&'a str, i32)>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for (topic, partition) in partitions {
        list.add_partition(topic, partition);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unplaced(partitions: &[(&str, i32)]) -> GroupState {
        let unplaced = partitions
            .iter()
            .map(|(topic, partition)| {
                Unplaced::new(
                    ((*topic).to_owned(), *partition),
                    PlacementCause::Given,
                    None,
                )
            })
            .collect();
        GroupState {
            unplaced,
            ..GroupState::default()
        }
    }

    fn trouble(state: &GroupState, topic: &str) -> Option<String> {
        state.trouble(topic, |other| other == topic)
    }

    #[test]
    fn a_topic_is_in_trouble_as_long_as_one_of_its_partitions_is() {
        let mut state = unplaced(&[("a", 0), ("a", 2), ("b", 1)]);
        assert_eq!(
            trouble(&state, "a").as_deref(),
            Some("topic a/0: nobody tells where to begin")
        );
        state
            .unplaced
            .retain(|unplaced| unplaced.key != ("a".to_owned(), 0));
        assert_eq!(
            trouble(&state, "a").as_deref(),
            Some("topic a/2: nobody tells where to begin")
        );
        state.unplaced.retain(|unplaced| unplaced.key.0 != "a");
        assert_eq!(
            trouble(&state, "a"),
            None,
            "what is read elsewhere now is no trouble here"
        );
        assert_eq!(
            trouble(&state, "b").as_deref(),
            Some("topic b/1: nobody tells where to begin")
        );
    }

    /// It is told once, and statistics may be older than what they follow.
    #[test]
    fn a_refusal_of_fetches_is_over_once_two_statistics_in_turn_have_none() {
        let mut state = GroupState::default();
        state.note_refusal("no right to read");
        let refusal = state.fetch_refusal.as_mut().expect("it was told");
        let mut is_over =
            |topics: &[&str]| refusal.update(topics.iter().map(|topic| (*topic).into()).collect());
        assert!(!is_over(&[]) && !is_over(&["a", "b"]) && !is_over(&["b"]));
        assert!(!is_over(&[]) && !is_over(&["b"]));
        assert!(!is_over(&[]) && is_over(&[]));
        assert!(!is_over(&["a"]) && !is_over(&[]));
        state.note_refusal("no right to read");
        let refusal = state.fetch_refusal.as_mut().expect("it was told");
        assert!(!refusal.update(BTreeSet::new()), "told anew");
    }

    #[test]
    fn a_refusal_of_the_group_concerns_all_topics_and_one_of_a_topic_that_topic() {
        let mut state = unplaced(&[("a", 0)]);
        state
            .refused_topics
            .insert("a".to_owned(), "it is missing".to_owned());
        assert_eq!(
            trouble(&state, "a").as_deref(),
            Some("topic a: it is missing")
        );
        assert_eq!(trouble(&state, "b"), None);
        state.group_refusal = Some("not allowed".to_owned());
        assert_eq!(
            trouble(&state, "a").as_deref(),
            Some("topic a: it is missing")
        );
        assert_eq!(
            trouble(&state, "b").as_deref(),
            Some("topic b: not allowed")
        );
        state.group_refusal = None;
        state.note_refusal("no right to read");
        assert_eq!(trouble(&state, "b"), None, "it is not known which");
        if let Some(refusal) = &mut state.fetch_refusal {
            assert!(!refusal.update(["b".into()].into()));
        }
        assert_eq!(
            trouble(&state, "b").as_deref(),
            Some("topic b: no right to read")
        );
        assert_eq!(trouble(&state, "c"), None);
        assert!(!state.is_owed_partitions(), "topic a is missing");
        state.refused_topics.clear();
        assert!(!state.is_owed_partitions(), "it has asked for no topic");
        state.is_subscribed = true;
        assert!(
            state.is_owed_partitions(),
            "a group gives partitions that may not be read"
        );
        state.fetch_refusal = None;
        assert_eq!(
            trouble(&state, "a").as_deref(),
            Some("topic a/0: nobody tells where to begin")
        );
    }
}
