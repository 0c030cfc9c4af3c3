//! Positions in Kafka topics.

/// The place of one record in its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KafkaPosition {
    /// Partition of the topic.
    pub partition: i32,
    /// Offset in that partition.
    pub offset: i64,
}
