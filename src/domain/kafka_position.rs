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
    /// The ends of the logs whose leaders told them, by topic and partition.
    #[serde(default)]
    pub ends: BTreeMap<String, BTreeMap<i32, i64>>,
}

impl FirstStart {
    /// Where a partition begins whose log ends at `end` now, so that nothing is read of it that was there. `None` if the
    /// partition was not there itself.
    pub fn latest(&self, topic: &str, partition: i32, end: i64) -> Option<Latest> {
        let count = *self.partitions.get(topic)?;
        if !(0..count).contains(&partition) {
            return None;
        }
        let noted = self.ends.get(topic).and_then(|ends| ends.get(&partition));
        // A log that ends before its noted end was cut off, or its topic was made anew.
        let noted = noted.filter(|noted| **noted <= end);
        Some(noted.map_or(Latest::Since(UnixMs(self.at_ms)), |end| Latest::At(*end)))
    }
}

/// The first of the records that came after a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latest {
    /// The one of this offset.
    At(i64),
    /// The first one whose timestamp is not earlier. Producers may set it to whatever they like.
    Since(UnixMs),
}
