//! The cluster's part of the configuration, checked.

use std::time::Duration;

/// This replica among the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This replica's name, never empty.
    pub name: String,
    /// A replica that was not heard of for three of these counts as dead.
    pub heartbeat: Duration,
    /// Beyond this difference of two clocks: alarm and metric.
    pub max_clock_skew: Duration,
}
