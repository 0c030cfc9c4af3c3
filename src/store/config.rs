//! The store's part of the configuration, checked.

use crate::domain::{Partitions, Secret};

/// Where the store is and what it may be.
#[derive(Clone, Debug)]
pub struct Config {
    /// `redis://`, `rediss://` or `unix://`.
    pub url: Secret,
    /// First part of every key.
    pub prefix: String,
    /// Fixed for a store's life.
    pub partitions: Partitions,
    /// Refusals of the preflight that the operator has overridden, by name.
    pub overrides: Overrides,
}

/// `redis.unsafe`: refusals overridden by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `eviction`: an evicting `maxmemory-policy`.
    pub eviction: bool,
    /// `no_persistence`: neither AOF nor RDB.
    pub no_persistence: bool,
    /// `unchecked`: `CONFIG` is denied, so neither can be checked.
    pub unchecked: bool,
}
