//! What the store says of its own state: what is late in it, and how full it is.

use std::collections::BTreeMap;

use crate::domain::UnixMs;

/// By route, when the oldest message was to be delivered that waits in the store and is overdue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Late {
    /// Of those that were not put back.
    pub waiting: BTreeMap<String, UnixMs>,
    /// Of those that were put back after they were due.
    pub put_back: BTreeMap<String, UnixMs>,
}

/// A master's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// What it uses.
    pub used: u64,
    /// Its `maxmemory`; 0: it has none.
    pub limit: u64,
}

impl Memory {
    /// How much of its limit it uses; 0 without one.
    pub fn share(&self) -> f64 {
        if self.limit == 0 { 0.0 } else { self.used as f64 / self.limit as f64 }
    }
}
