//! The timer's part of the configuration, checked.

use std::time::Duration;

/// How the timer claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How far ahead of their due time bundles are claimed.
    pub lookahead: Duration,
    /// How long a claim holds without being extended.
    pub claim: Duration,
}
