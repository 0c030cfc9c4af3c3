//! The store's account of its own state: its oldest overdue messages, and the memory of Redis.

use std::collections::BTreeMap;

use crate::domain::UnixMs;

/// By route, the due time of the oldest overdue message that waits in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OldestOverdue {
    /// Among messages that were not put back.
    pub waiting: BTreeMap<String, UnixMs>,
    /// Among messages that were put back after they were due.
    pub put_back: BTreeMap<String, UnixMs>,
}

/// The memory of a Redis master, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedisMemory {
    /// Memory in use.
    pub used: u64,
    /// The master's `maxmemory`. 0: no limit.
    pub limit: u64,
}

impl RedisMemory {
    /// The used share of the limit. 0 without a limit.
    pub fn share(&self) -> f64 {
        if self.limit == 0 {
            0.0
        } else {
            self.used as f64 / self.limit as f64
        }
    }
}
