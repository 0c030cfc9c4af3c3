//! Positions in Kafka topics.

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
