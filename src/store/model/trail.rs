//! The trail: what became of messages that are gone, event by event.

use crate::domain::{KafkaPosition, Text, TrailWord, UnixMs};

/// The target that a message was delivered to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrailTarget {
    /// True for Kafka, false for RabbitMQ.
    pub is_kafka: bool,
    /// The name of the connection.
    pub connection: Text,
    /// The target's name, as `x-delay-target` would write it.
    pub name: Text,
}

/// One event of a message, as it was kept. Each word has those of the fields that say something about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrailEvent {
    /// When it happened, by Redis's clock.
    pub at: UnixMs,
    /// Kind of the event.
    pub word: TrailWord,
    /// Delivered: confirm minus the due time that was asked for, ms.
    pub late_ms: Option<i64>,
    /// Delivered: the number of the attempt, from 1.
    pub attempt: Option<u32>,
    /// Delivered: where.
    pub target: Option<TrailTarget>,
    /// Cancelled, moved, replaced, deduplicated by a Kafka record: its position. Delivered to Kafka: where it lies.
    pub position: Option<KafkaPosition>,
    /// Cancelled, moved, redriven, dropped: who asked for it.
    pub by: Option<Text>,
    /// Why: of a dead or dropped message the reason's word, of what somebody asked for his own words.
    pub reason: Option<Text>,
    /// Dead, redriven, dropped: the id of the dead letter.
    pub dead_id: Option<Text>,
    /// Moved: the new due time. Dead, dropped: the due time that was asked for.
    pub due: Option<UnixMs>,
}

/// The events of one message, and how far back the trail was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrailReading {
    /// The newest events of the message, oldest first.
    pub events: Vec<TrailEvent>,
    /// The time of the oldest event, of any message, that was read. `None`: the trail is empty.
    pub since: Option<UnixMs>,
}
