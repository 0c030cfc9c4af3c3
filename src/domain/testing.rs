//! Plain samples of the domain's types, for tests.

use std::sync::Arc;

use super::route::OnUnroutable;
use super::{
    Actor, DelayFrom, Dialects, Endpoint, Entry, HeaderNames, Message, OnDuplicate, OnExpired,
    OnInvalid, OnRefused, OnUndecodable, Origin, Pause, RetryPolicy, Route, RouteName, RoutePause,
    RoutePolicy, Target, UnixMs,
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
///
/// # Panics
/// Never: its name is valid.
#[expect(clippy::expect_used, reason = "the name is valid")]
pub fn route() -> Arc<Route> {
    let name = RouteName::new("orders").expect("a valid name");
    Arc::new(Route {
        name,
        from: Endpoint::Kafka {
            connection: "main".into(),
            topic: "orders.delayed".into(),
            group: "postdate".into(),
        },
        to: Arc::new(Target::Kafka {
            connection: "main".into(),
            topic: "orders".into(),
        }),
        allow_targets: Vec::new(),
        dead_letter_to: None,
        policy: RoutePolicy {
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
            dead_letters: crate::domain::DeadLetterLimits::default(),
            trail: crate::domain::TrailLimits::default(),
        },
    })
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
