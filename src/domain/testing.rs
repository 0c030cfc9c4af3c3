//! Plain samples of the domain's types, for tests.

use std::sync::Arc;

use super::route::OnUnroutable;
use super::topics::DerivedTargets;
use super::{
    Actor, DeadLetterLimits, DelayFrom, Dialects, Endpoint, Entry, HeaderNames, Message,
    OnDuplicate, OnExpired, OnInvalid, OnRefused, OnUndecodable, Origin, OwnTarget, Pause,
    RetryPolicy, Route, RouteName, RoutePause, RoutePolicy, StartRule, Target, TopicPattern,
    TopicTemplate, Topics, TrailLimits, UnixMs,
};

/// A pause of publishing by `ann`, who gave `#4711` as its reason.
pub fn paused() -> RoutePause {
    let pause = Pause {
        since: Some(UnixMs(1000)),
        by: Actor {
            because: "#4711".parse().ok(),
            ..Actor::new("ann")
        },
    };
    RoutePause {
        ingress: None,
        publishing: Some(Arc::new(pause)),
    }
}

/// A Kafka to Kafka route called `orders`, all defaults.
pub fn route() -> Arc<Route> {
    let from = kafka_source(Topics::one("orders.delayed"), "postdate");
    Arc::new(route_between("orders", from, kafka_target("orders")))
}

/// A route with all defaults.
///
/// # Panics
/// If the name is no name of a route.
#[expect(
    clippy::expect_used,
    reason = "only tests use it, with names that are valid"
)]
pub fn route_between(name: &str, from: Endpoint, to: Target) -> Route {
    Route {
        name: RouteName::new(name).expect("a valid name"),
        from,
        source_topic: None,
        to: Arc::new(to),
        own_target: OwnTarget::Fixed,
        allow_targets: Vec::new(),
        dead_letter_to: None,
        policy: policy(),
    }
}

/// A route that finds its topics by a pattern and derives the target of each, none of which is read.
///
/// # Panics
/// If the pattern or the target is none.
#[expect(clippy::expect_used, reason = "only tests use it, with what is valid")]
pub fn route_per_topic(pattern: &str, to: &str) -> Route {
    let pattern = TopicPattern::new(pattern).expect("a pattern");
    let template = TopicTemplate::new(to, &pattern).expect("a template");
    let from = kafka_source(Topics::Pattern(pattern), "postdate");
    let derived = DerivedTargets::new("main".to_owned(), template, Vec::new());
    Route {
        own_target: OwnTarget::PerTopic(Arc::new(derived)),
        ..route_between("per-topic", from, kafka_target(to))
    }
}

/// Topics of the connection `main` that a group reads.
pub fn kafka_source(topics: Topics, group: &str) -> Endpoint {
    Endpoint::Kafka {
        connection: "main".to_owned(),
        topics,
        group: group.to_owned(),
        start: StartRule::Earliest,
    }
}

/// A topic of the connection `main`.
pub fn kafka_target(topic: &str) -> Target {
    Target::Kafka {
        connection: "main".to_owned(),
        topic: topic.to_owned(),
    }
}

/// The policy of a route from Kafka, all defaults.
pub fn policy() -> RoutePolicy {
    RoutePolicy {
        headers: HeaderNames::default(),
        dialects: Dialects::default(),
        delay_from: DelayFrom::Produced,
        max_delay_ms: 30 * 86_400_000,
        max_size: 1 << 20,
        max_headers: 64 << 10,
        max_pending: 10_000_000,
        max_pending_bytes: 4 << 30,
        commands: true,
        copies: false,
        on_invalid: OnInvalid::DeadLetter,
        on_undecodable: OnUndecodable::Wait,
        on_refused: OnRefused::Retry,
        on_unroutable: OnUnroutable::Retry,
        max_lateness_ms: 0,
        on_expired: OnExpired::DeadLetter,
        consumer_retry: None,
        on_duplicate: OnDuplicate::Keep,
        dedupe_ms: 0,
        rate: None,
        jitter_ms: 0,
        ordered: false,
        retry: RetryPolicy {
            attempts: 16,
            initial_ms: 1000,
            max_ms: 300_000,
        },
        dead_letters: DeadLetterLimits::default(),
        trail: TrailLimits::default(),
    }
}

/// A Kafka message with this body and nothing else.
pub fn entry(due: UnixMs, body: &'static [u8]) -> Entry {
    let message = Message {
        origin: Origin::Kafka,
        key: None,
        body: Some(bytes::Bytes::from_static(body)),
        headers: Vec::new(),
        properties: None,
    };
    Entry::new(due, message)
}
