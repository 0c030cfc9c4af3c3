//! An operator's word on where reading of a Kafka partition goes on, and what came of it.

use super::UnixMs;

/// Where reading of a partition is to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipGoal {
    /// Behind this offset, at which the partition stands.
    Past(i64),
    /// At this offset: the partition waits for a word on where to begin.
    To(i64),
    /// The same, at the first record of this time or later.
    Since(UnixMs),
}

/// Outcome of a skip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipOutcome {
    /// Reading goes on at this offset.
    GoesOn(i64),
    /// The partition stands at another offset. Nothing was changed.
    StandsElsewhere(i64),
    /// The partition does not stand, or does not wait for this word. The next record is expected at this offset.
    DoesNotStand(i64),
    /// The partition is not read yet, for this reason, and does not wait for this word. Nothing was changed.
    NotRead(String),
    /// The log begins and ends at these offsets, and does not have the wanted one. Nothing was changed.
    OutsideLog(i64, i64),
    /// The partition is not one that this replica reads.
    NotHere,
    /// The client library refused, for this reason. Nothing was changed.
    Failed(String),
    /// No answer came in time. It may be done yet.
    NoAnswer,
}
