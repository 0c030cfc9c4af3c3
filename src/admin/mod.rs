//! Admin: probes, metrics and the API, on one listener of its own.
//!
//! | call | role | answer |
//! |---|---|---|
//! | `GET /livez` | open | 200 while the process turns, or 503 |
//! | `GET /readyz` | open | 200, or 503 while it is not willing to take work; names each part and says why not |
//! | `GET /metrics` | open | every metric, OpenMetrics text |
//! | `GET /api/v1/openapi.json` | open | the description of this table |
//! | `GET /api/v1/session` | read | who the caller is, and what it may do |
//! | `GET /api/v1/overview` | read | everything at one moment: parts, routes with their flow, replicas, due times |
//! | `GET /api/v1/overview/stream` | read | the same once a second, as server-sent events |
//! | `GET /api/v1/routes` | read | all routes |
//! | `GET /api/v1/routes/{route}` | read | one route: from, to, policy, counts |
//! | `GET /api/v1/routes/{route}/messages/{id}` | read | one message while the store has it, then its trail |
//! | `DELETE /api/v1/routes/{route}/messages/{id}` | write | cancels it: a definite answer |
//! | `PATCH /api/v1/routes/{route}/messages/{id}` | write | moves it to another moment: a definite answer |
//! | `PUT /api/v1/routes/{route}/messages/{id}` | write | puts another message in its place: a definite answer |
//! | `POST /api/v1/routes/{route}/messages/cancel` | write | cancels up to 1,000: a definite answer for each |
//! | `GET /api/v1/routes/{route}/messages/{id}/body` | write | the body of a message that waits; audited |
//! | `GET /api/v1/retries` | read | what failed and waits to be tried again, by page |
//! | `GET /api/v1/messages` | read | what waits, in due order, by page |
//! | `GET /api/v1/messages/{id}` | read | what each route that has or had a message of this id tells of it |
//! | `GET /api/v1/routes/{route}/trail` | read | what became of its messages lately, newest first |
//! | `GET /api/v1/activity` | read | what all replicas did in the last 24 hours |
//! | `GET /api/v1/histogram` | read | how much falls due when |
//! | `GET /api/v1/partitions` | read | how each slice of the store stands |
//! | `GET /api/v1/replicas` | read | who serves |
//! | `GET /api/v1/audit` | read | who did what, newest first |
//! | `POST /api/v1/routes/{route}/pause` | write | pauses its ingress, its publishing, or both, on all replicas |
//! | `POST /api/v1/routes/{route}/resume` | write | resumes them |
//! | `POST /api/v1/routes/{route}/skip` | write | passes over an offset at which a Kafka partition of it stands |
//! | `POST /api/v1/routes/{route}/purge` | write | cancels its messages that wait, by state and due time |
//! | `POST /api/v1/routes/{route}/messages` | write | sends a message to the route's own ingress; `wait` follows it |
//! | `GET /api/v1/dead` | read | dead letters, oldest first, by route, reason and time |
//! | `GET /api/v1/dead/{id}` | read | one dead letter, its headers too; its body on request |
//! | `POST /api/v1/dead/redrive` | write | makes dead letters due now, by id or filter |
//! | `POST /api/v1/dead/drop` | write | drops dead letters for good, by id or filter |
//!
//! Guarantees:
//!
//! - Under `/api/` a bearer token is judged before anything else (401, then 403, then 404 and the rest).
//! - Every error is RFC 9457 `application/problem+json`.
//! - No answer may be cached.
//! - Every wait of a request is bounded, and so is the time of an answer: 60 s from its first byte to its last.
//! - Probes, metrics and the API run on a thread of their own. They answer while the relay's runtime is busy; `/livez` says
//!   503 once that has not turned for a minute.
//! - With `admin.tls` the main address speaks TLS alone. A renewed certificate, and new tokens in their files, count for
//!   the next connection and the next call; open connections stay. The address of the probes speaks no TLS.
//! - One address has at most 32 connections while more than half of the 256 places are taken.
//! - On drain idle connections close, open requests get [`DRAIN_GRACE`] to end, and a waiting `send` is answered at once.
//! - Every call that may change something is audited: who, what, result.
//!
//! # Pattern of a call
//!
//! Each noun has a file: `routes.rs` is the plainest, `send.rs` is one that writes. To add a call:
//!
//! 1. **Handler**: an async fn under `#[utoipa::path(...)]`: method, path, `operation_id`, `params`,
//!    `request_body`, `responses`. Its doc comment's first line is the summary, the rest the description.
//!    Arguments are the extractors of `extract.rs`, in the order in which they shall refuse: `NamedRoute`
//!    (404 with the nearest name), `PathParams`, `QueryParams`, `JsonBody`.
//! 2. **Role**: by the method, as `auth` judges it: `GET` needs read, all else write; content of
//!    messages needs write too. A call without a role says so by
//!    `security(())`. `openapi.rs` adds `x-role`, 401 and 403.
//! 3. **Schemas**: a struct of [`crate::api`] with `Serialize`, `Deserialize` and `ToSchema`, every field documented, no
//!    `json!`; the command reads the same struct. A request denies unknown fields, an answer does not. An optional field of an answer is left out when
//!    it is `None`: `skip_serializing_if` with `schema(nullable = false)`. Moments come in pairs:
//!    `x_ms` (Unix ms) and `x` (RFC 3339, `times::rfc3339`). Never `schema(inline)` on a field with docs.
//! 4. **Problems**: `Err(Problem::bad(..))`, `not_found`, `unavailable`, or `Problem::new(status, ..)`: one
//!    sentence without its final stop that says what to do; `.nearest(..)`, `.id(..)`, `.reason(..)` add members.
//!    In `responses` a status from 400 on needs a description only.
//! 5. **Lists** answer `Page<T>`; `page::write_cursor` and `read_cursor` tie a cursor to its query.
//! 6. **Audit**: `router::guard_call` writes the entry of every call that is no `GET`. Before it does anything a handler says
//!    what the path does not show: `caller.is_about(..)`. It adds the result: `(Extension(AuditNote::new(result)), Json(answer))`.
//! 7. A line `.routes(routes!(file::handler))` in `router.rs` (handlers of one path in one `routes!`), a row
//!    in the table above, and `UPDATE_DOCS=1 cargo test --lib fresh`. The tests of the table then walk it
//!    by every role.

mod activity;
mod audit;
mod audit_note;
mod auth;
mod body;
mod caches;
mod cancel_many;
mod conditions;
pub mod config;
mod connection;
mod console;
mod content;
mod context;
mod dead;
mod dead_actions;
mod dead_letter;
mod extract;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod health;
mod inject;
mod live;
mod message;
mod messages;
mod openapi;
mod overview;
mod page;
mod pause;
mod problem;
mod pulse;
mod purge;
mod redrive;
mod refusals;
mod reload;
mod rendered;
mod replace;
mod retries;
mod router;
mod routes;
mod send;
mod server;
mod session;
mod skip;
mod store_turns;
mod times;
mod tls;
mod trail;
mod troubles;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use prometheus_client::registry::Registry;

use crate::domain::{Clock, Route};
use crate::health::Health;
use crate::store::Store;
use crate::telemetry::{BurstLog, FollowRegistry, Metrics};

pub use config::Config;
pub use inject::{AdmittedMessage, Inject, InjectError, InvalidMessage};
pub use redrive::{Redrive, RedriveOrder, RedriveOutcome};
pub use server::{DRAIN_GRACE, ListenAddresses, start};
pub use skip::Skip;

/// Everything that the API shows and uses.
#[allow(missing_debug_implementations)] // `Inject`, `Redrive` and `Skip` belong to `app`
pub struct AdminState {
    /// All configured routes.
    pub routes: Vec<Arc<Route>>,
    /// Metrics of the routes.
    pub metrics: Arc<Metrics>,
    /// All metrics, for `/metrics`.
    pub registry: Arc<Registry>,
    /// Readiness, for `/readyz`. While it drains, `send` is refused.
    pub health: Health,
    /// Follows the messages of `send` with `wait`.
    pub watch: Arc<FollowRegistry>,
    /// Log of refusals, one line a burst.
    pub bursts: Arc<BurstLog>,
    /// Publishes into a route's own ingress.
    pub inject: Arc<dyn Inject>,
    /// Makes dead letters due again.
    pub redrive: Arc<dyn Redrive>,
    /// Passes over offsets at which Kafka partitions stand.
    pub skip: Arc<dyn Skip>,
    /// This machine's clocks.
    pub clock: Clock,
    /// The store, once it may be used. Until then the calls that need it answer 503.
    pub store: Arc<OnceLock<Store>>,
    /// This replica's name.
    pub replica: String,
}

/// Failure to start the listener.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address} ({key}): {why}")]
    Bind {
        /// The key that has the address.
        key: &'static str,
        /// The address, as configured.
        address: SocketAddr,
        /// Error of the system.
        why: std::io::Error,
    },
    /// The address is not loopback and no token is configured: anybody on the network could send messages.
    #[error(
        "admin.listen is {0}, not loopback, and no token is configured: set admin.write_tokens_file"
    )]
    Unprotected(SocketAddr),
    /// The certificate and its key cannot be used.
    #[error("admin.tls: {0}")]
    Certificate(String),
    /// The system gave no thread, or no runtime for it.
    #[error("no thread for the admin listener: {0}")]
    Thread(std::io::Error),
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
