//! What the service says of itself: logs and metrics.
//!
//! The registry is an argument, never a global. Per-route handles are made once, from the
//! configuration, so no label ever comes from a message.

pub mod config;
pub mod metrics;

pub use config::{Config, Format};
pub use metrics::{Metrics, RouteMetrics};
