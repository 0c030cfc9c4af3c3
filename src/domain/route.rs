//! A route: from one ingress topic or queue to a target, under a policy. All of it checked already.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use super::message::{Message, Text};

/// A route's name: `[a-z][a-z0-9_-]{0,63}` without `__`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteName(Arc<str>);

impl RouteName {
    /// A checked name; `None` if it is not of that form.
    pub fn new(name: &str) -> Option<Self> {
        let mut bytes = name.bytes();
        let first = bytes.next()?;
        let fits = first.is_ascii_lowercase()
            && name.len() <= 64
            && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-')
            && !name.contains("__");
        fits.then(|| Self(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RouteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for RouteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One route, as the configuration says it, checked.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its name.
    pub name: RouteName,
    /// Where its messages come from.
    pub from: Endpoint,
    /// Where they go.
    pub to: Arc<Target>,
    /// The other targets that `x-delay-target` may name, all on `to`'s connection.
    pub allow_targets: Vec<Arc<Target>>,
    /// Where dead letters are published too, on `to`'s connection.
    pub dead_letter_to: Option<Arc<Target>>,
    /// How they are treated.
    pub policy: Policy,
}

impl Route {
    /// The key whose messages leave in order with this one, if the route keeps an order and it has a key.
    pub fn order_key(&self, message: &Message) -> Option<Bytes> {
        message.order_key().filter(|_| self.policy.ordered).cloned()
    }

    /// The target that stands for its own ingress: where a message is published that is to go through the route.
    pub fn ingress_target(&self) -> Target {
        match &self.from {
            Endpoint::Kafka { connection, topic, .. } => {
                Target::Kafka { connection: connection.clone(), topic: topic.clone() }
            }
            Endpoint::Rabbitmq { connection, queue, .. } => Target::Rabbitmq {
                connection: connection.clone(),
                exchange: String::new(),
                routing_key: RoutingKey::Fixed(queue.clone()),
            },
        }
    }

    /// All that it may publish to.
    pub fn targets(&self) -> impl Iterator<Item = &Arc<Target>> {
        std::iter::once(&self.to).chain(&self.allow_targets).chain(&self.dead_letter_to)
    }

    /// The target that a stored bundle or a header names: the empty text is the route's own. `None`
    /// if it is not allowed (any more).
    pub fn target(&self, name: &str) -> Option<&Arc<Target>> {
        if name.is_empty() || self.to.name() == name {
            return Some(&self.to);
        }
        self.allow_targets.iter().find(|t| t.name() == name)
    }
}

/// Where a route reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A Kafka topic, read by a consumer group.
    Kafka {
        /// Name of the connection.
        connection: String,
        /// The topic.
        topic: String,
        /// The consumer group.
        group: String,
    },
    /// A RabbitMQ queue.
    Rabbitmq {
        /// Name of the connection.
        connection: String,
        /// The queue.
        queue: String,
        /// Unacknowledged deliveries at most.
        prefetch: u16,
    },
}

/// Where messages are published.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A Kafka topic.
    Kafka {
        /// Name of the connection.
        connection: String,
        /// The topic.
        topic: String,
    },
    /// A RabbitMQ exchange and a rule for the routing key.
    Rabbitmq {
        /// Name of the connection.
        connection: String,
        /// The exchange; empty is the default one, whose routing key is a queue's name.
        exchange: String,
        /// The routing key.
        routing_key: RoutingKey,
    },
}

/// Which routing key a message is published with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RoutingKey {
    /// The one it came with (from RabbitMQ only).
    Preserve,
    /// Its Kafka key (null: empty); from RabbitMQ, its routing key.
    Key,
    /// This one.
    Fixed(String),
}

impl Target {
    /// Its name, as `x-delay-target` and `allow_targets` write it: a topic, or `exchange/routing-key`
    /// (`exchange/` for the rules that take the key from the message).
    pub fn name(&self) -> String {
        match self {
            Self::Kafka { topic, .. } => topic.clone(),
            Self::Rabbitmq { exchange, routing_key: RoutingKey::Fixed(key), .. } => {
                format!("{exchange}/{key}")
            }
            Self::Rabbitmq { exchange, .. } => format!("{exchange}/"),
        }
    }

    /// Name of its connection.
    pub fn connection(&self) -> &str {
        match self {
            Self::Kafka { connection, .. } | Self::Rabbitmq { connection, .. } => connection,
        }
    }
}

/// How a route treats its messages.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Names of the five headers, lower case.
    pub headers: HeaderNames,
    /// What a delay counts from.
    pub delay_from: DelayFrom,
    /// Longest delay, ms, measured from arrival, inclusive.
    pub max_delay_ms: i64,
    /// Longest body, bytes, inclusive.
    pub max_size: usize,
    /// Most bytes of all headers together.
    pub max_headers: usize,
    /// Pending and in flight, for the route over all replicas; its ingress pauses above.
    pub max_pending: u64,
    /// What becomes of an invalid message.
    pub on_invalid: OnInvalid,
    /// What becomes of a message that passes through and that its target refuses for its own sake.
    pub on_refused: OnRefused,
    /// What becomes of the second of one name while the first is pending.
    pub on_duplicate: OnDuplicate,
    /// How long a name stays taken after its message was delivered, ms; 0: not at all, and it is free while
    /// its message is in flight too.
    pub dedupe_ms: i64,
    /// How many messages a second leave, over all replicas; `None`: as many as can.
    pub rate: Option<Rate>,
    /// Most that a due time is put off to spread what falls on one moment, ms.
    pub jitter_ms: i64,
    /// Whether messages of one key leave in the order of their due times, ties as they came.
    pub ordered: bool,
    /// When a refused publish is tried again.
    pub retry: Retry,
    /// How much is kept of dead letters.
    pub dead_letters: DeadLetters,
}

/// Names of the delay headers on a route, lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct HeaderNames {
    pub delay: String,
    pub deliver_at: String,
    pub id: String,
    pub op: String,
    pub target: String,
}

impl Default for HeaderNames {
    fn default() -> Self {
        Self {
            delay: "x-delay".into(),
            deliver_at: "x-deliver-at".into(),
            id: "x-delay-id".into(),
            op: "x-delay-op".into(),
            target: "x-delay-target".into(),
        }
    }
}

/// The moment a delay counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayFrom {
    /// When it was produced (Kafka's record timestamp; RabbitMQ: at most a second after its `timestamp`).
    Produced,
    /// When Postdate read it.
    Arrival,
}

/// A route's policy for invalid messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnInvalid {
    /// Kept whole, with reason and origin.
    DeadLetter,
    /// Published at once to the route's own target, all its headers as they came.
    PassThrough,
    /// Counted and logged in bursts.
    Drop,
}

impl OnInvalid {
    /// Its name in the configuration and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DeadLetter => "dead_letter",
            Self::PassThrough => "pass_through",
            Self::Drop => "drop",
        }
    }
}

/// A route's policy for a message that passes through and that its target refuses for its own sake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRefused {
    /// It leaves the line: stored, and tried again like a delayed one.
    Retry,
    /// It is tried again in place, so that the order stands; its source waits.
    Wait,
    /// It becomes a dead letter at once.
    DeadLetter,
    /// Counted and logged in bursts.
    Drop,
}

impl OnRefused {
    /// Its name in the configuration and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Wait => "wait",
            Self::DeadLetter => "dead_letter",
            Self::Drop => "drop",
        }
    }
}

/// A route's policy for the second message of a pending name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDuplicate {
    /// The first stays; the second is acknowledged and counted.
    Keep,
    /// The second takes its place: body, headers, due time.
    Replace,
}

/// A token bucket: how fast a route's delayed messages leave the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Messages a second; at least 1.
    pub per_second: u32,
    /// As configured: how many may leave at once after a quiet time.
    pub burst: u32,
}

impl Rate {
    /// What the bucket holds: the burst, but at least a tenth of a second's worth, for tokens are fetched
    /// some fifty times a second and what does not fit is lost.
    pub fn capacity(self) -> u32 {
        self.burst.max(self.per_second.div_ceil(10))
    }
}

/// What of a route was paused by hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paused {
    /// Nothing more is read from its topic or queue.
    pub ingress: bool,
    /// Nothing more of it is claimed or published.
    pub publishing: bool,
}

/// When a refused publish is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Publishes at most, the first included; at least 1.
    pub attempts: u32,
    /// Wait after the first failure, ms.
    pub initial_ms: i64,
    /// Longest wait, ms.
    pub max_ms: i64,
}

/// How much is kept of a route's dead letters, over all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLetters {
    /// How many.
    pub max: u64,
    /// How many bytes of them, as they lie in the store.
    pub max_bytes: u64,
    /// Most bytes of one, body and headers; of a larger one only what it was, and where.
    pub max_message: usize,
    /// For how long, ms.
    pub keep_ms: i64,
}

impl Default for DeadLetters {
    fn default() -> Self {
        Self { max: 100_000, max_bytes: 256 << 20, max_message: 16 << 20, keep_ms: 30 * 86_400_000 }
    }
}

/// `x-delay-target` of a RabbitMQ route: exchange and routing key, split at the first slash.
pub fn split_exchange(name: &str) -> Option<(&str, &str)> {
    name.split_once('/')
}

/// A target's key for logs: connection and name, cut to a sane length.
pub fn describe(target: &Target) -> Text {
    Text::from(format!("{}:{}", target.connection(), target.name()))
}
