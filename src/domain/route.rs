//! A route: from its ingress to a target, under a policy. Everything here is checked already.

mod policy;

use std::{fmt, sync::Arc};

use bytes::Bytes;

use super::message::Message;
use super::text::Text;
use super::topics::{DerivedTargets, StartRule, Topics};

pub use policy::{
    Choice, ConsumerRetry, DeadLetterLimits, DelayFrom, Dialects, HeaderNames, OnDuplicate,
    OnExpired, OnInvalid, OnRefused, OnUndecodable, OnUnroutable, RateLimit, RetryPolicy,
    RoutePolicy, TrailLimits, routes_where,
};

/// The name of a route: `[a-z][a-z0-9_-]{0,63}` without `__`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteName(Arc<str>);

impl RouteName {
    /// A checked name; `None` if it does not have that form.
    pub fn new(name: &str) -> Option<Self> {
        let mut bytes = name.bytes();
        let first = bytes.next()?;
        let fits = first.is_ascii_lowercase()
            && name.len() <= 64
            && bytes
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-')
            && !name.contains("__");
        fits.then(|| Self(name.into()))
    }

    /// The name as text.
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

/// One route of the configuration, checked.
#[derive(Clone, Debug)]
pub struct Route {
    /// The name.
    pub name: RouteName,
    /// The source of its messages.
    pub from: Endpoint,
    /// The topic that this view of the route reads (see [`Route::of_topic`]), if the route reads several.
    pub source_topic: Option<Text>,
    /// The target of its messages, as far as `own_target` says.
    pub to: Arc<Target>,
    /// Whether `to` is the target of all its messages.
    pub own_target: OwnTarget,
    /// The other targets that `x-delay-target` may name, all on `to`'s connection.
    pub allow_targets: Vec<Arc<Target>>,
    /// The target to which dead letters are published too, on `to`'s connection.
    pub dead_letter_to: Option<Arc<Target>>,
    /// The treatment of its messages.
    pub policy: RoutePolicy,
}

impl Route {
    /// The key by which this message is ordered, if the route keeps an order and the message has a key.
    pub fn order_key(&self, message: &Message) -> Option<Bytes> {
        message.order_key().filter(|_| self.policy.ordered).cloned()
    }

    /// Reports whether one of its targets is at this connection to Kafka.
    pub fn publishes_to_kafka(&self, name: &str) -> bool {
        let mut targets = self.targets();
        targets.any(|to| matches!(&**to, Target::Kafka { connection, .. } if connection == name))
    }

    /// The route as one of its topics is read: with that topic as its source, and the topic's own target. A route
    /// that reads one topic is its own view.
    pub fn of_topic(self: &Arc<Self>, topic: &str) -> Arc<Self> {
        let Endpoint::Kafka {
            connection,
            topics,
            group,
            start,
        } = &self.from
        else {
            return self.clone();
        };
        if topics.single().is_some() {
            return self.clone();
        }
        let mut view = Self::clone(self);
        view.source_topic = Some(topic.into());
        view.from = Endpoint::Kafka {
            connection: connection.clone(),
            topics: Topics::one(topic),
            group: group.clone(),
            start: *start,
        };
        if let OwnTarget::PerTopic(derived) = &self.own_target {
            view.own_target = match derived.of_topic(topic) {
                Ok(target) => {
                    view.to = target;
                    OwnTarget::OfTopic
                }
                Err(why) => OwnTarget::Forbidden(why.into()),
            };
        }
        Arc::new(view)
    }

    /// The view of one topic, which need not be named if the route reads no other. `Err` says what is wrong, for a person.
    pub fn at_topic(self: &Arc<Self>, topic: Option<&str>) -> Result<Arc<Self>, String> {
        let name = &self.name;
        match (&self.from, topic) {
            (Endpoint::Kafka { topics, .. }, Some(topic)) if topics.has(topic) => {
                Ok(self.of_topic(topic))
            }
            (_, Some(topic)) => Err(format!(
                "route {name} reads no topic `{}`",
                topic.escape_debug()
            )),
            (Endpoint::Kafka { topics, .. }, None) if topics.single().is_none() => Err(format!(
                "route {name} reads several topics ({topics}): say which"
            )),
            (_, None) => Ok(self.clone()),
        }
    }

    /// The target of messages that name none. `Err` says why nothing may be published there.
    pub fn own_target(&self) -> Result<&Arc<Target>, &Text> {
        match &self.own_target {
            OwnTarget::Forbidden(why) => Err(why),
            OwnTarget::Fixed | OwnTarget::PerTopic(_) | OwnTarget::OfTopic => Ok(&self.to),
        }
    }

    /// The route's own ingress as a target: publishing there sends a message through the route. `None` if it reads several
    /// topics.
    pub fn ingress_target(&self) -> Option<Target> {
        Some(match &self.from {
            Endpoint::Kafka {
                connection, topics, ..
            } => Target::Kafka {
                connection: connection.clone(),
                topic: topics.single()?.to_owned(),
            },
            Endpoint::Rabbitmq {
                connection, queue, ..
            } => Target::Rabbitmq {
                connection: connection.clone(),
                exchange: String::new(),
                routing_key: RoutingKey::Fixed(queue.clone()),
            },
        })
    }

    /// All targets that the route may publish to, as they are configured: one that is derived from topics stands for all
    /// that are.
    pub fn targets(&self) -> impl Iterator<Item = &Arc<Target>> {
        std::iter::once(&self.to)
            .chain(&self.allow_targets)
            .chain(&self.dead_letter_to)
    }

    /// Reports whether its messages may have different targets, apart from its dead letters.
    pub fn has_several_targets(&self) -> bool {
        !self.allow_targets.is_empty() || self.has_derived_targets()
    }

    /// Reports whether its targets are derived from topics: each is known with its first message.
    pub fn has_derived_targets(&self) -> bool {
        matches!(self.own_target, OwnTarget::PerTopic(_))
    }

    /// The targets that one of [`Route::targets`] stands for, if they are derived from topics.
    pub fn derived_targets(&self, target: &Arc<Target>) -> Option<&Arc<DerivedTargets>> {
        match &self.own_target {
            OwnTarget::PerTopic(derived) if Arc::ptr_eq(target, &self.to) => Some(derived),
            _ => None,
        }
    }

    /// All targets that a message of the route had or may have by now.
    pub fn known_targets(&self) -> Vec<Arc<Target>> {
        let known = |target: &Arc<Target>| match self.derived_targets(target) {
            Some(derived) => derived.known(),
            None => vec![target.clone()],
        };
        self.targets().flat_map(known).collect()
    }

    /// The target of a stored bundle. `None` if it is not (or no longer) allowed.
    pub fn target(&self, target: &TargetRef) -> Option<Arc<Target>> {
        match (target, &self.own_target) {
            (TargetRef::Own, OwnTarget::Fixed) => Some(self.to.clone()),
            // The topic that it was read from is not known here.
            (TargetRef::Own, _) => None,
            (TargetRef::Named(name), OwnTarget::PerTopic(derived)) => self
                .named_target(name.as_str())
                .cloned()
                .or_else(|| derived.named(name.as_str())),
            (TargetRef::Named(name), _) => self.named_target(name.as_str()).cloned(),
        }
    }

    /// The configured target that stands for that of a stored bundle: one that is derived from a topic has none of its own.
    pub fn configured_target(&self, target: &TargetRef) -> Option<&Arc<Target>> {
        match (target, &self.own_target) {
            (TargetRef::Own, _) => Some(&self.to),
            (TargetRef::Named(name), OwnTarget::PerTopic(_)) => {
                Some(self.named_target(name.as_str()).unwrap_or(&self.to))
            }
            (TargetRef::Named(name), _) => self.named_target(name.as_str()),
        }
    }

    /// The target that a producer may call by this name. `None` if the route may not publish to it.
    pub fn named_target(&self, name: &str) -> Option<&Arc<Target>> {
        let own = match self.own_target {
            OwnTarget::Fixed | OwnTarget::OfTopic => Some(&self.to),
            OwnTarget::PerTopic(_) | OwnTarget::Forbidden(_) => None,
        };
        own.into_iter()
            .chain(&self.allow_targets)
            .find(|target| target.name() == name)
    }

    /// The reference by which bundles store one of the route's targets.
    pub fn target_ref(&self, target: &Arc<Target>) -> TargetRef {
        if matches!(self.own_target, OwnTarget::Fixed) && Arc::ptr_eq(target, &self.to) {
            TargetRef::Own
        } else {
            TargetRef::Named(target.name().into())
        }
    }

    /// The reference by which an invalid message stores the target that it would have had.
    pub fn own_target_ref(&self) -> TargetRef {
        match self.own_target {
            OwnTarget::OfTopic => TargetRef::Named(self.to.name().into()),
            OwnTarget::Fixed | OwnTarget::PerTopic(_) | OwnTarget::Forbidden(_) => TargetRef::Own,
        }
    }
}

/// Whether a route has one target for the messages that name none.
#[derive(Clone, Debug)]
pub enum OwnTarget {
    /// One for all: `to`.
    Fixed,
    /// One for each topic of the source. `to` shows how it is derived, and is no topic.
    PerTopic(Arc<DerivedTargets>),
    /// The one of this view's topic: `to`.
    OfTopic,
    /// This view's topic has none, for this reason.
    Forbidden(Text),
}

/// A route's target as bundles store it. The route's own target has no name there, so that it can be renamed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum TargetRef {
    /// The route's own target.
    #[default]
    Own,
    /// The target with this name, as `x-delay-target` wrote it.
    Named(Text),
}

impl TargetRef {
    /// Reads the stored form: the empty text is the route's own target.
    pub fn from_text(text: Text) -> Self {
        if text.is_empty() {
            Self::Own
        } else {
            Self::Named(text)
        }
    }

    /// The stored form: empty for the route's own target.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Own => "",
            Self::Named(name) => name.as_str(),
        }
    }
}

/// The source that a route reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// Kafka topics, read by a consumer group.
    Kafka {
        /// The name of the connection.
        connection: String,
        /// The topics.
        topics: Topics,
        /// The consumer group.
        group: String,
        /// Where reading begins in a partition of which no position is committed.
        start: StartRule,
    },
    /// A RabbitMQ queue.
    Rabbitmq {
        /// The name of the connection.
        connection: String,
        /// The queue.
        queue: String,
        /// Most unacknowledged deliveries.
        prefetch: u16,
    },
}

/// The place that a route publishes to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A Kafka topic.
    Kafka {
        /// The name of the connection.
        connection: String,
        /// The topic.
        topic: String,
    },
    /// A RabbitMQ exchange and a rule for the routing key.
    Rabbitmq {
        /// The name of the connection.
        connection: String,
        /// The exchange. Empty is the default exchange, whose routing key is a queue's name.
        exchange: String,
        /// The rule for the routing key.
        routing_key: RoutingKey,
    },
}

/// The rule for the routing key of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RoutingKey {
    /// The key that the message came with (from RabbitMQ only).
    Preserve,
    /// The message's Kafka key (null: empty), or its RabbitMQ routing key.
    Key,
    /// This key.
    Fixed(String),
}

impl Target {
    /// The name of the target in `x-delay-target` and `allow_targets`: a topic, or `exchange/routing-key`
    /// (`exchange/` for the rules that take the key from the message).
    pub fn name(&self) -> String {
        match self {
            Self::Kafka { topic, .. } => topic.clone(),
            Self::Rabbitmq {
                exchange,
                routing_key: RoutingKey::Fixed(key),
                ..
            } => {
                format!("{exchange}/{key}")
            }
            Self::Rabbitmq { exchange, .. } => format!("{exchange}/"),
        }
    }

    /// The name of its connection.
    pub fn connection(&self) -> &str {
        match self {
            Self::Kafka { connection, .. } | Self::Rabbitmq { connection, .. } => connection,
        }
    }
}

/// Splits the `x-delay-target` of a RabbitMQ route at the first slash into exchange and routing key.
pub fn split_exchange(name: &str) -> Option<(&str, &str)> {
    name.split_once('/')
}

/// The text of a target in logs: connection and name.
pub fn describe(target: &Target) -> Text {
    Text::from(format!("{}:{}", target.connection(), target.name()))
}
