//! A route, and what of it is paused.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Word;

/// A route, in the words of the configuration.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Route)]
pub struct RouteView {
    /// Its name.
    pub name: String,
    /// Its source: `kafka`, `topic`, `group`, or `rabbitmq`, `queue`, `prefetch`.
    #[schema(value_type = Object)]
    pub from: Value,
    /// Its target: `kafka`, `topic`, or `rabbitmq`, `exchange`, `routing_key`.
    #[schema(value_type = Object)]
    pub to: Value,
    /// The other targets that `x-delay-target` may name.
    pub allow_targets: Vec<String>,
    /// Target that dead letters are published to as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub dead_letter_to: Option<String>,
    /// The route's keys of the configuration, defaults filled in.
    #[schema(value_type = Object)]
    pub policy: Value,
    /// Messages waiting in the store, over all replicas.
    pub pending: i64,
    /// Messages claimed by this replica and not yet settled.
    pub in_flight: i64,
    /// Dead letters kept, over all replicas.
    pub dead: i64,
    /// Reasons why its ingress is paused; empty while it is not.
    pub paused: Vec<String>,
    /// True while its publishing is paused by hand.
    pub publishing_paused: bool,
    /// Of each part that is paused by hand who paused it, when and why.
    pub pauses: Vec<PauseView>,
    /// Lateness of the oldest message that is not yet delivered, seconds; 0 if none is overdue. The same as
    /// `oldest_overdue_seconds`.
    pub oldest_overdue_s: f64,
    /// Troubles of its source, its targets, its delivery or the store's free memory: the parts of `/readyz` that are not
    /// up, and why.
    pub troubles: Vec<String>,
}

/// A part of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = RoutePart)]
pub enum RoutePart {
    /// Reading its topic or queue.
    Ingress,
    /// Publishing its messages.
    Publishing,
}

/// A pause of a part of a route.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Pause)]
pub struct PauseView {
    /// The part.
    #[schema(value_type = RoutePart)]
    pub part: Word<RoutePart>,
    /// Who paused it: the name of the token.
    pub by: String,
    /// Why, in the words of whoever paused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub because: Option<String>,
    /// Since when, Unix ms, by Redis's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub since_ms: Option<i64>,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub since: Option<String>,
}
