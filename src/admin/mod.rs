//! Admin: probes, metrics and the API, on one listener of its own.
//!
//! | call | role | answer |
//! |---|---|---|
//! | `GET /livez` | open | 200 while the process turns |
//! | `GET /readyz` | open | 200, or 503 while it is not willing to take work; names each part and says why not |
//! | `GET /metrics` | open | every metric, OpenMetrics text |
//! | `GET /api/v1/openapi.json` | open | the description of this table |
//! | `GET /api/v1/routes` | read | all routes |
//! | `GET /api/v1/routes/{route}` | read | one route: from, to, policy, counts |
//! | `POST /api/v1/routes/{route}/messages` | write | sends a message to the route's own ingress; `wait` follows it |
//!
//! Guarantees: under `/api/` a bearer token is judged before anything else is looked at (401, then 403,
//! then 404 and the rest); every error is RFC 9457 `application/problem+json`; nothing may be cached;
//! every wait of a request is bounded; on drain idle connections close, open requests get
//! [`GRACE`] to end, and a waiting `send` is answered at once.

mod auth;
pub mod config;
mod health;
mod inject;
mod problem;
mod router;
mod routes;
mod send;
mod server;

use std::net::SocketAddr;
use std::sync::Arc;

use prometheus_client::registry::Registry;

use crate::domain::{Clock, Route};
use crate::lifecycle::Readiness;
use crate::telemetry::{Metrics, Watch};

pub use config::Config;
pub use inject::{Inject, InjectError, Unfit};
pub use server::{GRACE, start};

/// What the API shows and uses.
#[allow(missing_debug_implementations)] // `Inject` is somebody else's
pub struct State {
    /// All configured routes.
    pub routes: Vec<Arc<Route>>,
    /// Their counts.
    pub metrics: Arc<Metrics>,
    /// All metrics, for `/metrics`.
    pub registry: Arc<Registry>,
    /// For `/readyz`; while it drains, nothing is sent.
    pub readiness: Readiness,
    /// Follows what `send` with `wait` has sent.
    pub watch: Arc<Watch>,
    /// The way to a route's own ingress.
    pub inject: Arc<dyn Inject>,
    /// This machine's clocks.
    pub clock: Clock,
}

/// Why the listener did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on {address} (admin.listen): {why}")]
    Bind {
        /// As configured.
        address: SocketAddr,
        /// What the system said.
        why: std::io::Error,
    },
    /// Anybody on the network could send messages.
    #[error("admin.listen is {0}, not loopback, and no token is configured: set admin.write_tokens_file")]
    Unprotected(SocketAddr),
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
