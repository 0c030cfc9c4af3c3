//! Positions in Kafka topics.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::UnixMs;

/// The place of one record in its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KafkaPosition {
    /// Partition of the topic.
    pub partition: i32,
    /// Offset in that partition.
    pub offset: i64,
}

/// How far one partition of a topic was read, as far as it is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadMark {
    /// One past the highest offset that was read.
    pub until: i64,
    /// A time of records, no later than that of the last record before which all were resolved.
    pub resolved: Option<UnixMs>,
}

/// The topics of a source as they were when it was first read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstStart {
    /// That moment, Unix milliseconds.
    pub at_ms: i64,
    /// The number of partitions of each topic.
    pub partitions: BTreeMap<String, i32>,
}

impl FirstStart {
    /// Reports whether a partition was there.
    pub fn knew(&self, topic: &str, partition: i32) -> bool {
        let count = self.partitions.get(topic);
        count.is_some_and(|&count| partition < count)
    }
}
