//! The rows of the fault matrix. Where a row sleeps, that is how long its fault lasts, or how far apart they are:
//! there is no event to wait for, and what comes of it is judged by the accounts.

mod brokers;
mod bytes;
mod clocks;
mod common;
mod damage;
mod hostile;
mod inputs;
mod links;
mod long;
mod redis;
mod replicas;
mod table;
mod targets;
mod topologies;
mod waiting;

use std::future::Future;
use std::pin::Pin;

use crate::outcome::Outcome;
use crate::scenario::Scale;

pub(crate) use table::{NOT_PLAYED, all};

/// A cycle on its way.
type Play = Pin<Box<dyn Future<Output = Outcome>>>;

/// A row: its fault, the precondition under which a cycle counts, and its limit beyond the accounts.
pub(crate) struct Row {
    pub(crate) id: &'static str,
    /// Counts up when the row is no longer what it was: its fault, its conditions or its limits. What was found of an
    /// earlier version counts no more.
    pub(crate) version: u32,
    pub(crate) fault: &'static str,
    /// Condition under which a cycle counts.
    pub(crate) precondition: &'static str,
    /// Requirement beyond the accounts, such as a longest recovery.
    pub(crate) limit: &'static str,
    /// Difference from the intended fault; empty where there is none.
    pub(crate) differs: &'static str,
    /// Cycles of a full run.
    pub(crate) cycles: u64,
    /// Cycles that one scenario plays at most.
    pub(crate) at_once: u64,
    /// Marks the most telling rows, which the short run plays.
    pub(crate) short: bool,
    pub(crate) play: fn(Scale) -> Play,
}
