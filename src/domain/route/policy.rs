//! How a route treats its messages.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Route, RouteName};

/// The treatment of a route's messages.
#[derive(Clone, Debug)]
pub struct RoutePolicy {
    /// The names of the headers, lower case.
    pub headers: HeaderNames,
    /// Whose headers count beside these.
    pub dialects: Dialects,
    /// The moment a delay counts from.
    pub delay_from: DelayFrom,
    /// Longest delay, ms, measured from arrival, inclusive.
    pub max_delay_ms: i64,
    /// Longest body, bytes, inclusive.
    pub max_size: usize,
    /// Most bytes of all headers together.
    pub max_headers: usize,
    /// Most messages pending and in flight, for the route over all replicas. Above it the route's ingress pauses.
    pub max_pending: u64,
    /// Most bytes in Redis of messages pending and in flight, for the route over all replicas. Above it the route's
    /// ingress pauses.
    pub max_pending_bytes: u64,
    /// Messages may cancel and reschedule others by name (`x-delay-op`).
    pub commands: bool,
    /// RabbitMQ also sends messages to the routing keys in their headers `CC` and `BCC`.
    pub copies: bool,
    /// The treatment of invalid messages.
    pub on_invalid: OnInvalid,
    /// The treatment of Kafka records that cannot be opened.
    pub on_undecodable: OnUndecodable,
    /// The treatment of a message that passes through and that its target refuses for its own sake.
    pub on_refused: OnRefused,
    /// The treatment of a delayed message that no binding wants.
    pub on_unroutable: OnUnroutable,
    /// How long after its due time a delayed message that says nothing itself is wanted, ms; 0: for ever.
    pub max_lateness_ms: i64,
    /// The treatment of a delayed message that is not wanted any more.
    pub on_expired: OnExpired,
    /// The treatment of a second message with the name of a pending one.
    pub on_duplicate: OnDuplicate,
    /// How long a name stays taken after its message was delivered, ms. With 0 it is free while its message is in
    /// flight too.
    pub dedupe_ms: i64,
    /// The rate limit over all replicas; `None`: no limit.
    pub rate: Option<RateLimit>,
    /// Longest random delay added to spread messages due at one moment, ms.
    pub jitter_ms: i64,
    /// Messages of one key leave in the order of their due times; ties keep the order of arrival.
    pub ordered: bool,
    /// The retries of refused publishes.
    pub retry: RetryPolicy,
    /// The retries of consumers, who give back by this route what they could not do. `None`: it is another route.
    pub consumer_retry: Option<ConsumerRetry>,
    /// The quota of dead letters.
    pub dead_letters: DeadLetterLimits,
    /// The bounds of the trail: what is kept of messages that are gone.
    pub trail: TrailLimits,
}

impl RoutePolicy {
    /// True if named messages can share bundles long before they are due: their order does not matter, and no more of them
    /// leave together than may leave at once.
    pub fn may_grow(&self) -> bool {
        !self.ordered && self.rate.is_none()
    }
}

/// The routes whose policies are such.
pub fn routes_where(
    routes: &[Arc<Route>],
    is_such: impl Fn(&RoutePolicy) -> bool,
) -> BTreeSet<RouteName> {
    let such = routes.iter().filter(|route| is_such(&route.policy));
    such.map(|route| route.name.clone()).collect()
}

/// The names of the delay headers on a route, lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct HeaderNames {
    pub delay: String,
    pub deliver_at: String,
    pub id: String,
    pub op: String,
    pub target: String,
    pub expires: String,
}

impl Default for HeaderNames {
    fn default() -> Self {
        Self {
            delay: "x-delay".into(),
            deliver_at: "x-deliver-at".into(),
            id: "x-delay-id".into(),
            op: "x-delay-op".into(),
            target: "x-delay-target".into(),
            expires: "x-delay-expires".into(),
        }
    }
}

/// Whose headers count beside a route's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialects {
    /// The annotations `x-opt-delivery-time` and `x-opt-delivery-delay` of AMQP 1.0 brokers.
    pub amqp10: bool,
    /// The headers `eta`, `expires` and `id` of Celery's tasks.
    pub celery: bool,
}

impl Dialects {
    /// Their names in the configuration.
    pub fn names(self) -> Vec<&'static str> {
        let named = [(self.amqp10, "amqp10"), (self.celery, "celery")];
        named
            .into_iter()
            .filter_map(|(is_read, name)| is_read.then_some(name))
            .collect()
    }
}

/// A setting that takes one of a few words.
pub trait Choice: Copy + 'static {
    /// All that it may be, in the order in which a refusal names them.
    const ALL: &'static [Self];

    /// The word in the configuration, the API and metrics.
    fn as_str(self) -> &'static str;
}

/// The moment a delay counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayFrom {
    /// The moment it was produced (Kafka's record timestamp; RabbitMQ: at most a second after its `timestamp`).
    Produced,
    /// The moment Postdate read it.
    Arrival,
}

impl Choice for DelayFrom {
    const ALL: &'static [Self] = &[Self::Produced, Self::Arrival];

    fn as_str(self) -> &'static str {
        match self {
            Self::Produced => "produced",
            Self::Arrival => "arrival",
        }
    }
}

/// A route's policy for invalid messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnInvalid {
    /// Keep the whole message, with reason and origin.
    DeadLetter,
    /// Publish it at once to the route's own target, with all its headers as they came.
    PassThrough,
    /// Count it, and log it in bursts.
    Drop,
}

impl Choice for OnInvalid {
    const ALL: &'static [Self] = &[Self::DeadLetter, Self::PassThrough, Self::Drop];

    fn as_str(self) -> &'static str {
        match self {
            Self::DeadLetter => "dead_letter",
            Self::PassThrough => "pass_through",
            Self::Drop => "drop",
        }
    }
}

/// A route's policy for Kafka records that the client library cannot open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUndecodable {
    /// Their partition stands until an operator skips them.
    Wait,
    /// Each becomes an invalid message without content, and their partition is read on.
    Skip,
}

impl Choice for OnUndecodable {
    const ALL: &'static [Self] = &[Self::Wait, Self::Skip];

    fn as_str(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Skip => "skip",
        }
    }
}

/// A route's policy for a message that passes through and that its target refuses for its own sake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRefused {
    /// Store the message and retry it like a delayed one. Later messages pass it.
    Retry,
    /// Retry it in place, which keeps the order. Its source waits.
    Wait,
    /// Make it a dead letter at once.
    DeadLetter,
    /// Count it, and log it in bursts.
    Drop,
}

impl Choice for OnRefused {
    const ALL: &'static [Self] = &[Self::Retry, Self::Wait, Self::DeadLetter, Self::Drop];

    fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Wait => "wait",
            Self::DeadLetter => "dead_letter",
            Self::Drop => "drop",
        }
    }
}

/// A route's policy for a delayed message that no binding of its exchange wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnroutable {
    /// Retry it like one that is refused for another reason.
    Retry,
    /// Make it a dead letter at once.
    DeadLetter,
    /// Count it, and log it in bursts.
    Drop,
}

impl Choice for OnUnroutable {
    const ALL: &'static [Self] = &[Self::Retry, Self::DeadLetter, Self::Drop];

    fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::DeadLetter => "dead_letter",
            Self::Drop => "drop",
        }
    }
}

/// A route's policy for a delayed message that is not wanted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExpired {
    /// Make it a dead letter.
    DeadLetter,
    /// Count it, and log it in bursts.
    Drop,
}

impl Choice for OnExpired {
    const ALL: &'static [Self] = &[Self::DeadLetter, Self::Drop];

    fn as_str(self) -> &'static str {
        match self {
            Self::DeadLetter => "dead_letter",
            Self::Drop => "drop",
        }
    }
}

/// A route's policy for a second message with the name of a pending one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDuplicate {
    /// The first message stays; the second is acknowledged and counted.
    Keep,
    /// The second message replaces the first: body, headers, due time.
    Replace,
}

impl Choice for OnDuplicate {
    const ALL: &'static [Self] = &[Self::Keep, Self::Replace];

    fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Replace => "replace",
        }
    }
}

/// A token bucket that limits how fast a route's delayed messages leave the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Messages a second; at least 1.
    pub per_second: u32,
    /// Messages that may leave at once after a quiet time, as configured.
    pub burst: u32,
}

impl RateLimit {
    /// The size of the bucket: the burst, but at least a tenth of a second's worth. Tokens are fetched some fifty
    /// times a second, and a token that does not fit is lost.
    pub fn capacity(self) -> u32 {
        self.burst.max(self.per_second.div_ceil(10))
    }
}

/// The retries of refused publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Most publishes, the first included; at least 1.
    pub attempts: u32,
    /// Wait after the first failure, ms.
    pub initial_ms: i64,
    /// Longest wait, ms.
    pub max_ms: i64,
}

/// The retries of consumers: how long a message waits that they give back, and how often they may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerRetry {
    /// Most times that a message may be given back; at least 1.
    pub attempts: u32,
    /// Wait after the first time, ms.
    pub initial_ms: i64,
    /// By what the wait grows each time; at least 1.
    pub factor: u32,
    /// Longest wait, ms.
    pub max_ms: i64,
}

impl ConsumerRetry {
    /// The wait of a message that was given back so often, ms.
    pub fn wait_ms(self, count: u32) -> i64 {
        let growth = i64::from(self.factor).checked_pow(count.saturating_sub(1));
        let wait = growth.and_then(|growth| growth.checked_mul(self.initial_ms));
        wait.map_or(self.max_ms, |wait| wait.min(self.max_ms))
    }
}

/// The quota of a route's dead letters, over all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLetterLimits {
    /// Most dead letters.
    pub max: u64,
    /// Most bytes of dead letters, as stored.
    pub max_bytes: u64,
    /// Most bytes of one dead letter, body and headers. Of a larger one only its metadata is kept.
    pub max_message: usize,
    /// How long dead letters are kept, ms.
    pub keep_ms: i64,
}

impl Default for DeadLetterLimits {
    fn default() -> Self {
        Self {
            max: 100_000,
            max_bytes: 256 << 20,
            max_message: 16 << 20,
            keep_ms: 30 * 86_400_000,
        }
    }
}

/// The bounds of a route's trail, over all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrailLimits {
    /// How long events are kept, ms; 0: no event is made.
    pub keep_ms: i64,
    /// Most events kept.
    pub max_events: u64,
}

impl TrailLimits {
    /// No trail.
    pub const OFF: Self = Self {
        keep_ms: 0,
        max_events: 1,
    };

    /// Reports whether events are kept.
    pub fn is_on(self) -> bool {
        self.keep_ms > 0
    }
}

impl Default for TrailLimits {
    fn default() -> Self {
        Self {
            keep_ms: 3_600_000,
            max_events: 100_000,
        }
    }
}
