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
    /// Its source.
    pub from: SourceView,
    /// Its target.
    pub to: TargetView,
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

/// The source of a route, as it is configured: `kafka`, one of `topic`, `topics` and `topic_pattern`, `group`, `start`; or
/// `rabbitmq`, `queue`, `prefetch`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Source)]
pub struct SourceView {
    /// The connection to Kafka.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub kafka: Option<String>,
    /// The topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub topic: Option<String>,
    /// The topics.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub topics: Option<Vec<String>>,
    /// The regular expression that names of topics match.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub topic_pattern: Option<String>,
    /// The consumer group.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub group: Option<String>,
    /// Where reading begins in a partition without a committed position: `earliest`, `latest`, or a moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub start: Option<String>,
    /// The connection to RabbitMQ.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub rabbitmq: Option<String>,
    /// The queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub queue: Option<String>,
    /// Most deliveries that are not yet acknowledged.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub prefetch: Option<u16>,
}

/// The target of a route, as it is configured: `kafka`, `topic`; or `rabbitmq`, `exchange`, `routing_key`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Target)]
pub struct TargetView {
    /// The connection to Kafka.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub kafka: Option<String>,
    /// The topic; with `{1}` in it each topic of the source has one of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub topic: Option<String>,
    /// The connection to RabbitMQ.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub rabbitmq: Option<String>,
    /// The exchange; empty for the default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub exchange: Option<String>,
    /// The routing key, `preserve` or `key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub routing_key: Option<String>,
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
