//! A route, and what of it is paused.

use serde::{Deserialize, Serialize};
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
    pub policy: PolicyView,
    /// Messages waiting in the store, over all replicas; those in flight at other replicas included.
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

/// The keys of a route in the configuration, defaults filled in, durations and sizes as they are written there
/// (`1h30m`, `64KiB`). What each means is in `postdate config`. Versions may differ in the keys that they know.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = Policy)]
pub struct PolicyView {
    /// `produced` or `arrival`: what a delay counts from.
    pub delay_from: String,
    /// The longest delay.
    pub max_delay: String,
    /// The longest body.
    pub max_size: String,
    /// Most bytes of headers.
    pub max_headers: String,
    /// Most messages pending, over all replicas.
    pub max_pending: u64,
    /// Most bytes pending, over all replicas.
    pub max_pending_bytes: String,
    /// Messages may cancel and change others.
    pub commands: bool,
    /// `CC` and `BCC` count.
    pub copies: bool,
    /// What becomes of an invalid message.
    pub on_invalid: String,
    /// What becomes of a record that cannot be opened.
    pub on_undecodable: String,
    /// What becomes of a passing message that its target refuses.
    pub on_refused: String,
    /// What becomes of a delayed message that no binding wants.
    pub on_unroutable: String,
    /// How late a message is still wanted; `0s`: always.
    pub max_lateness: String,
    /// What becomes of a message that is not wanted any more.
    pub on_expired: String,
    /// How consumers give messages back; `null`: they do not.
    pub consumer_retry: Option<ConsumerRetryView>,
    /// What becomes of a second message of a name.
    pub on_duplicate: String,
    /// How long a delivered name is remembered; `0s`: not at all.
    pub dedupe: String,
    /// Most messages a second; 0: no limit.
    pub rate: u32,
    /// Messages that may leave at once after a quiet time.
    pub burst: u32,
    /// By how much a due time is put off at most.
    pub jitter: String,
    /// `none`, or `key`: messages of one key leave in order.
    pub order: String,
    /// How long the trail of what is gone is kept; `0s`: not at all.
    pub history: String,
    /// Most events that the trail keeps.
    pub history_max: u64,
    /// How a publish that failed is tried again.
    pub retry: RetryView,
    /// How many dead letters are kept.
    pub dead_letters: DeadLettersView,
    /// Whose headers count beside Postdate's.
    pub dialects: Vec<String>,
    /// The names of the delay headers.
    pub headers: HeaderNamesView,
}

/// How a publish that failed is tried again.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = Retry)]
pub struct RetryView {
    /// Publishes at most.
    pub attempts: u32,
    /// The first wait.
    pub initial: String,
    /// The longest wait.
    pub max: String,
}

/// How consumers give messages back.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = ConsumerRetry)]
pub struct ConsumerRetryView {
    /// Times at most.
    pub attempts: u32,
    /// The first wait.
    pub initial: String,
    /// By how much each wait is longer than the one before.
    pub factor: u32,
    /// The longest wait.
    pub max: String,
}

/// How many dead letters a route keeps.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = DeadLetterLimits)]
pub struct DeadLettersView {
    /// Dead letters at most.
    pub max: u64,
    /// Bytes of them at most.
    pub max_bytes: String,
    /// Bytes of one at most.
    pub max_message: String,
    /// How long each is kept.
    pub keep: String,
}

/// The names of a route's delay headers.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = HeaderNames)]
pub struct HeaderNamesView {
    /// The delay.
    pub delay: String,
    /// The due time.
    pub deliver_at: String,
    /// The message's name.
    pub id: String,
    /// The command.
    pub op: String,
    /// The target.
    pub target: String,
    /// How long the message is wanted.
    pub expires: String,
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
