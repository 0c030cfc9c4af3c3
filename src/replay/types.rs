//! Request, overview and outcome of a replay.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::{Because, Route, UnixMs};
use crate::ingress::kafka::replay_window::ReplayWindow;
use crate::ingress::replay::ReplayTally;

/// Times that select the records of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayTimes {
    /// Time of the earliest records.
    pub since: UnixMs,
    /// Time of the latest records; `None`: all that the route has read.
    pub until: Option<UnixMs>,
    /// Messages that were due before this are left out.
    pub due_after: UnixMs,
}

/// Request to replay a route.
#[derive(Clone, Debug)]
pub struct ReplayRequest {
    /// A route that reads from Kafka.
    pub route: Arc<Route>,
    /// Times of the records.
    pub times: ReplayTimes,
    /// True if the replay ends with the overview, and writes nothing.
    pub dry_run: bool,
    /// Why it is done, for the audit log.
    pub because: Option<Because>,
}

/// Position of a replay, kept in the store until it is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ReplayNote {
    pub(super) since_ms: i64,
    pub(super) until_ms: Option<i64>,
    pub(super) due_after_ms: i64,
    /// By partition: the offset to go on at, and the end.
    pub(super) partitions: BTreeMap<i32, (i64, i64)>,
}

impl ReplayNote {
    pub(super) fn times(&self) -> ReplayTimes {
        ReplayTimes {
            since: UnixMs(self.since_ms),
            until: self.until_ms.map(UnixMs),
            due_after: UnixMs(self.due_after_ms),
        }
    }
}

/// Overview of a replay before it is carried out.
#[derive(Clone, Debug)]
pub struct ReplayOverview {
    /// Number of records by their planned step.
    pub tally: ReplayTally,
    /// Records that are read of each partition.
    pub windows: Vec<ReplayWindow>,
    /// Messages of the route that the store has.
    pub known: usize,
    /// Offsets that an earlier run with the same times has done already, if one was not finished.
    pub done: Option<u64>,
    /// Times of an earlier run that was not finished and had other times. This run forgets it.
    pub forgets: Option<ReplayTimes>,
}

/// Outcome of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayOutcome {
    /// The watcher did not want it.
    Left,
    /// It is done.
    Done {
        /// Messages stored.
        stored: u64,
        /// Messages that were not stored because their name was taken meanwhile.
        duplicates: u64,
        /// Offsets that the relays have read since the replay began. Commands among them may have come before their
        /// messages were in the store.
        later: u64,
    },
}

/// Is told about the progress of a replay, and decides whether to carry it out.
pub trait ReplayWatcher: Send + Sync {
    /// `done` of `of` partitions of the store were scanned.
    fn scanned(&self, done: u64, of: u64);
    /// `done` of `of` offsets were read for the plan.
    fn read(&self, done: u64, of: u64);
    /// `done` of `of` offsets are stored. `waits` is true while the route's ingress is paused.
    fn stored(&self, done: u64, of: u64, waits: bool);
    /// Decides whether to go on with this.
    fn goes_on(&self, overview: &ReplayOverview) -> bool;
}
