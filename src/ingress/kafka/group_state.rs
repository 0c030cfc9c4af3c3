//! What one consumer knows of itself: its surroundings and the partitions it is assigned.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rdkafka::TopicPartitionList;
use tokio::runtime::Handle;

use super::Surroundings;
use super::assignment::{Assignment, Position, WINDOW_BYTES, feed};
use crate::broker::kafka::Suspicion;
use crate::domain::Route;
use crate::ingress::Sink;

/// A partition of a topic.
pub(super) type Key = (String, i32);

/// What stays the same through all of a group consumer's lives.
pub(super) struct Fixed<S> {
    /// `<connection>/<group>`
    pub(super) owner: String,
    /// The name of its thread and tasks.
    pub(super) task: String,
    pub(super) routes: BTreeMap<Arc<str>, Arc<Route>>,
    pub(super) around: Surroundings<S>,
    /// To wait on the consumer's own thread for what tasks do.
    pub(super) runtime: Handle,
    pub(super) suspicion: Suspicion,
}

impl<S: Sink> Fixed<S> {
    /// A partition, from `start`; `None` if no route reads its topic.
    pub(super) fn begin(&self, topic: &str, partition: i32, position: Position) -> Option<Assignment> {
        let (topic, route) = self.routes.get_key_value(topic)?;
        let source = format!("kafka/{}/{topic}/{partition}", self.owner);
        let into = (self.around.sink.clone(), self.around.shutdown.clone());
        Some(Assignment::begin(
            (topic.clone(), partition),
            route.clone(),
            position,
            self.around.budget.share(WINDOW_BYTES),
            (&self.around.tasks, &self.task),
            |inbox| feed(into, route.clone(), source, inbox),
        ))
    }
}

/// What changes.
#[derive(Default)]
pub(super) struct State {
    pub(super) assignments: Vec<Assignment>,
    /// Where the last record's assignment was.
    last: usize,
    /// The group has given this consumer its partitions, perhaps none, and has not taken all of them back.
    pub(super) is_member: bool,
    /// The consumer leaves: what it is still told about partitions no longer matters.
    pub(super) closing: bool,
    /// Partitions of this consumer whose place nobody has told yet.
    pub(super) unplaced: Vec<Key>,
    /// Monotonic microseconds of the next look for them.
    pub(super) place_us: i64,
    /// Why the consumer must be made anew.
    pub(super) broken: Option<String>,
    /// Monotonic microseconds of the last look at all commits.
    pub(super) verified_us: i64,
    /// Monotonic microseconds until which commits are not looked at: the last answer was late.
    pub(super) rest_us: i64,
    /// Commits that failed since one was seen to succeed.
    pub(super) missed: u32,
    /// Topics that were said to be missing.
    pub(super) missing: BTreeSet<String>,
    /// What was complained about already.
    pub(super) complaints: BTreeSet<String>,
}

impl State {
    /// The assignment of a partition.
    pub(super) fn find(&mut self, topic: &str, partition: i32) -> Option<&mut Assignment> {
        let is_it = |a: &Assignment| a.partition == partition && *a.topic == *topic;
        if !self.assignments.get(self.last).is_some_and(is_it) {
            self.last = self.assignments.iter().position(is_it)?;
        }
        self.assignments.get_mut(self.last)
    }

    /// Puts an assignment in; one of the same partition dies.
    pub(super) fn insert(&mut self, assignment: Assignment) {
        match self.find(&assignment.topic, assignment.partition) {
            Some(old) => *old = assignment,
            None => self.assignments.push(assignment),
        }
    }

    /// Removes those that are listed.
    pub(super) fn remove(&mut self, list: &[Key]) {
        self.assignments.retain(|a| {
            !list.iter().any(|(topic, partition)| *a.topic == **topic && a.partition == *partition)
        });
    }

    /// Each assignment's topic and partition.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.assignments.iter().map(|a| (a.topic.to_string(), a.partition)).collect()
    }
}

/// The partitions of a list of the client library.
pub(super) fn partitions(list: &TopicPartitionList) -> Vec<Key> {
    list.elements().iter().map(|e| (e.topic().to_owned(), e.partition())).collect()
}

/// The other way round.
pub(super) fn list<'a>(partitions: impl IntoIterator<Item = (&'a str, i32)>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for (topic, partition) in partitions {
        list.add_partition(topic, partition);
    }
    list
}
