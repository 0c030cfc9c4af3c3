//! The rows of the fault matrix. Where a row sleeps, that is how long its fault lasts, or how far apart its blows are:
//! there is no event to wait for, and what comes of it is judged by the accounts.

mod brokers;
mod bytes;
mod clocks;
mod common;
mod damage;
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
use crate::stage::Scale;

pub(crate) use table::{NOT_PLAYED, all};

/// A cycle on its way.
type Play = Pin<Box<dyn Future<Output = Outcome>>>;

/// A row: what happens, when that counts, and what must hold beyond the accounts.
pub(crate) struct Row {
    pub(crate) id: &'static str,
    /// Counts up when the row is no longer what it was: its fault, its conditions or its limits. What was found of an
    /// earlier version counts no more.
    pub(crate) version: u32,
    pub(crate) fault: &'static str,
    /// When a cycle counts.
    pub(crate) bites: &'static str,
    pub(crate) bar: &'static str,
    /// How it differs from the fault that is meant; empty where it does not.
    pub(crate) differs: &'static str,
    /// Cycles of a full run.
    pub(crate) cycles: u64,
    /// How many of them it plays on one stage at most.
    pub(crate) at_once: u64,
    /// Whether it is among the most telling, which the short run plays.
    pub(crate) short: bool,
    pub(crate) play: fn(Scale) -> Play,
}
