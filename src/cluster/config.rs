//! The cluster's part of the configuration, checked.

use std::time::Duration;

/// The settings of this replica among the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This replica's name, never empty.
    pub name: String,
    /// A replica that was silent for three of these counts as dead.
    pub heartbeat: Duration,
    /// A difference of two clocks beyond this raises the alarm and the metric.
    pub max_clock_skew: Duration,
}
