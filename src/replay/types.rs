//! What a replay takes, tells and answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::{Route, UnixMs};
use crate::ingress::kafka::window::ReplayWindow;
use crate::ingress::replay::ReplayTally;

/// What to replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// From the first record of this time or later.
    pub since: UnixMs,
    /// Up to records of this time; `None`: all that the route has read.
    pub until: Option<UnixMs>,
    /// What was due before this is left out.
    pub due_after: UnixMs,
}

/// Which replay.
#[derive(Clone, Debug)]
pub struct Request {
    /// A route that reads from Kafka.
    pub route: Arc<Route>,
    /// Which of its records.
    pub times: Times,
    /// Whether it ends with the overview, and nothing is written.
    pub dry_run: bool,
}

/// How far a replay has come: kept in the store until it is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) since_ms: i64,
    pub(super) until_ms: Option<i64>,
    pub(super) due_after_ms: i64,
    /// Of each partition: the offset to go on at, and the end.
    pub(super) partitions: BTreeMap<i32, (i64, i64)>,
}

impl Note {
    pub(super) fn times(&self) -> Times {
        let (since, due_after) = (UnixMs(self.since_ms), UnixMs(self.due_after_ms));
        Times { since, until: self.until_ms.map(UnixMs), due_after }
    }
}

/// What a replay comes to, before it is done.
#[derive(Clone, Debug)]
pub struct Overview {
    /// How many records come to what.
    pub tally: ReplayTally,
    /// What is read of each partition.
    pub windows: Vec<ReplayWindow>,
    /// Messages that the store holds of the route.
    pub known: usize,
    /// An earlier run with these times was not finished: offsets that it has done already.
    pub done: Option<u64>,
    /// An earlier run with other times was not finished, and is forgotten by this one.
    pub forgets: Option<Times>,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was not wanted.
    Left,
    /// It is done: messages stored, and named ones that were there by then.
    Done {
        /// Messages stored.
        stored: u64,
        /// Named ones whose name was taken meanwhile.
        duplicates: u64,
        /// Offsets that the relays have read since it was begun: commands among them may have come before their
        /// messages were here.
        later: u64,
    },
}

/// Hears how far it is, and decides.
pub trait Watcher: Send + Sync {
    /// So many of so many partitions of the store were looked through.
    fn scanned(&self, done: u64, of: u64);
    /// So many of so many offsets were looked at.
    fn read(&self, done: u64, of: u64);
    /// So many of so many offsets are done; `waits`: the route's ingress is paused.
    fn stored(&self, done: u64, of: u64, waits: bool);
    /// Whether to go on with this.
    fn goes_on(&self, overview: &Overview) -> bool;
}
