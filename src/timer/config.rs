//! The timer's part of the configuration, checked.

use std::time::Duration;

/// The settings of claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How far ahead of their due time bundles are claimed.
    pub lookahead: Duration,
    /// How long a claim lasts unless it is extended.
    pub claim: Duration,
}
