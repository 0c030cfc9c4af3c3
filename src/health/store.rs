//! What is known of the store: whether it answers, how full it is, and whose messages it has beside ours.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

/// The memory of a Redis master, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedisMemory {
    /// Memory in use.
    pub used: u64,
    /// The master's `maxmemory`. 0: no limit.
    pub limit: u64,
}

/// The store, as it was found last.
#[derive(Debug, Default)]
pub struct StoreHealth {
    count_failure: Mutex<Option<String>>,
    memory: Mutex<RedisMemory>,
    /// By timer shard.
    unconfigured: Mutex<BTreeMap<usize, BTreeSet<String>>>,
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

impl StoreHealth {
    /// Notes why the store's messages could not be counted; `None` if they were.
    pub fn counted(&self, failure: Option<String>) {
        *self.count_failure.lock() = failure;
    }

    /// Why the last count of the store's messages failed, if it did.
    pub fn count_failure(&self) -> Option<String> {
        self.count_failure.lock().clone()
    }

    /// Notes the routes that are not configured here and of which a timer shard has found messages. Replaces the last report
    /// of the shard.
    pub fn found_unconfigured(&self, shard: usize, routes: BTreeSet<String>) {
        self.unconfigured.lock().insert(shard, routes);
    }

    /// The routes that are not configured here and that the store has messages of, as far as this process has seen.
    pub fn unconfigured(&self) -> BTreeSet<String> {
        self.unconfigured
            .lock()
            .values()
            .flatten()
            .cloned()
            .collect()
    }

    /// Notes the memory of the fullest master.
    pub fn measured(&self, memory: RedisMemory) {
        *self.memory.lock() = memory;
    }

    /// The memory of the fullest master, as far as is known.
    pub fn memory(&self) -> RedisMemory {
        *self.memory.lock()
    }
}
