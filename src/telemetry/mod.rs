//! What the service says of itself: logs and metrics.
//!
//! The registry is an argument, never a global. Per-route handles are made once, from the
//! configuration, so no label ever comes from a message.

pub mod burst;
pub mod config;
pub mod follow;
pub mod logging;
pub mod metrics;
pub mod overdue;
pub mod target_failures;

pub use burst::Bursts;
pub use config::{Config, Format};
pub use follow::{FollowNews, Follower, MAX_FOLLOWERS, Outcome, Watch};
pub use logging::{LogError, init};
pub use metrics::{Metrics, RouteMetrics};
pub use overdue::{Overdue, Place};
pub use target_failures::{Failing, Turn};
