//! Routes: their sources, targets, policies and counts.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State as Extract;

use super::context::Admin;
use super::extract::{NamedRoute, RoutePath};
use super::pause::pause_views;
use super::problem::Problem;
use super::troubles;
use crate::api::{
    ConsumerRetryView, DeadLettersView, HeaderNamesView, Page, PolicyView, RetryView, RouteView,
    SourceView, TargetView,
};
use crate::domain::route::Choice;
use crate::domain::{
    Endpoint, Route, RouteName, RoutePolicy, RoutingKey, Target, Topics, duration,
};

/// Longest wait for the store's counts.
const COUNT_DEADLINE: Duration = Duration::from_secs(1);

/// All routes, by name
#[utoipa::path(
    get, path = "/api/v1/routes", operation_id = "listRoutes",
    responses((status = 200, description = "The routes, all of them: `next` is always null.", body = Page<RouteView>))
)]
pub(super) async fn list(Extract(admin): Extract<Arc<Admin>>) -> Json<Page<RouteView>> {
    refresh_counts(&admin).await;
    Json(Page {
        items: route_views(&admin),
        next: None,
    })
}

/// All routes, by name, with the counts of the last refresh.
pub(super) fn route_views(admin: &Admin) -> Vec<RouteView> {
    admin
        .routes()
        .map(|route| route_view(admin, route))
        .collect()
}

/// One route
#[utoipa::path(
    get, path = "/api/v1/routes/{route}", operation_id = "getRoute", params(RoutePath),
    responses(
        (status = 200, description = "The route.", body = RouteView),
        (status = 404, description = "No such route.")
    )
)]
pub(super) async fn one(
    Extract(admin): Extract<Arc<Admin>>,
    NamedRoute(route): NamedRoute,
) -> Result<Json<RouteView>, Problem> {
    refresh_counts(&admin).await;
    Ok(Json(route_view(&admin, &route)))
}

/// Counts the store's messages now, so that an answer agrees with a histogram of the same moment. If the store does not
/// answer, the last counts are shown: `/readyz` reports that it is away.
pub(super) async fn refresh_counts(admin: &Admin) {
    let Ok(store) = admin.store() else { return };
    let names: Vec<RouteName> = admin
        .state
        .metrics
        .routes()
        .map(|(name, _)| name.clone())
        .collect();
    let Ok(Ok(counts)) = tokio::time::timeout(COUNT_DEADLINE, store.counts(&names)).await else {
        return;
    };
    for (name, counts) in counts {
        if let Some(metrics) = admin.state.metrics.route(&name) {
            metrics.show_counts(counts.messages, counts.dead);
            admin.state.health.route(&name).counted(counts.messages);
        }
    }
}

fn route_view(admin: &Admin, route: &Route) -> RouteView {
    let metrics = admin.state.metrics.route(&route.name);
    let health = admin.state.health.route(&route.name);
    let waits_for = health.waits_for();
    let pause = health.pause();
    let now = admin
        .store()
        .map_or_else(|_| admin.state.clock.wall(), |store| store.clock().now());
    RouteView {
        name: route.name.to_string(),
        from: from(&route.from),
        to: to(&route.to),
        allow_targets: route.allow_targets.iter().map(|t| t.name()).collect(),
        dead_letter_to: route.dead_letter_to.as_ref().map(|t| t.name()),
        policy: policy_view(&route.policy),
        pending: metrics.map_or(0, |m| m.pending.get()),
        in_flight: metrics.map_or(0, |m| m.in_flight.get()),
        dead: metrics.map_or(0, |m| m.dead.get()),
        paused: waits_for.into_iter().map(str::to_owned).collect(),
        publishing_paused: pause.publishing.is_some(),
        pauses: pause_views(&pause),
        oldest_overdue_s: health.late_s(now),
        troubles: troubles::of_route(admin, route),
    }
}

fn from(endpoint: &Endpoint) -> SourceView {
    match endpoint {
        Endpoint::Kafka {
            connection,
            topics,
            group,
            start,
        } => {
            let several = match topics {
                Topics::Named(named) if named.len() != 1 => Some(named.clone()),
                _ => None,
            };
            SourceView {
                kafka: Some(connection.clone()),
                topic: topics.single().map(str::to_owned),
                topics: several,
                topic_pattern: topics.pattern().map(|pattern| pattern.as_str().to_owned()),
                group: Some(group.clone()),
                start: Some(start.to_string()),
                ..SourceView::default()
            }
        }
        Endpoint::Rabbitmq {
            connection,
            queue,
            prefetch,
        } => SourceView {
            rabbitmq: Some(connection.clone()),
            queue: Some(queue.clone()),
            prefetch: Some(*prefetch),
            ..SourceView::default()
        },
    }
}

fn to(target: &Target) -> TargetView {
    match target {
        Target::Kafka { connection, topic } => TargetView {
            kafka: Some(connection.clone()),
            topic: Some(topic.clone()),
            ..TargetView::default()
        },
        Target::Rabbitmq {
            connection,
            exchange,
            routing_key,
        } => {
            let routing_key = match routing_key {
                RoutingKey::Preserve => "preserve",
                RoutingKey::Key => "key",
                RoutingKey::Fixed(key) => key,
            };
            TargetView {
                rabbitmq: Some(connection.clone()),
                exchange: Some(exchange.clone()),
                routing_key: Some(routing_key.to_owned()),
                ..TargetView::default()
            }
        }
    }
}

/// A policy in the words of the configuration.
fn policy_view(policy: &RoutePolicy) -> PolicyView {
    let names = &policy.headers;
    let dead_letters = policy.dead_letters;
    let consumer_retry = policy.consumer_retry.map(|retry| ConsumerRetryView {
        attempts: retry.attempts,
        initial: duration::render(retry.initial_ms),
        factor: retry.factor,
        max: duration::render(retry.max_ms),
    });
    PolicyView {
        delay_from: policy.delay_from.as_str().to_owned(),
        max_delay: duration::render(policy.max_delay_ms),
        max_size: size(policy.max_size),
        max_headers: size(policy.max_headers),
        max_pending: policy.max_pending,
        max_pending_bytes: size(policy.max_pending_bytes as usize),
        commands: policy.commands,
        copies: policy.copies,
        on_invalid: policy.on_invalid.as_str().to_owned(),
        on_undecodable: policy.on_undecodable.as_str().to_owned(),
        on_refused: policy.on_refused.as_str().to_owned(),
        on_unroutable: policy.on_unroutable.as_str().to_owned(),
        max_lateness: duration::render(policy.max_lateness_ms),
        on_expired: policy.on_expired.as_str().to_owned(),
        consumer_retry,
        on_duplicate: policy.on_duplicate.as_str().to_owned(),
        dedupe: duration::render(policy.dedupe_ms),
        rate: policy.rate.map_or(0, |rate| rate.per_second),
        burst: policy.rate.map_or(0, |rate| rate.burst),
        jitter: duration::render(policy.jitter_ms),
        order: if policy.ordered { "key" } else { "none" }.to_owned(),
        history: duration::render(policy.trail.keep_ms),
        history_max: policy.trail.max_events,
        retry: RetryView {
            attempts: policy.retry.attempts,
            initial: duration::render(policy.retry.initial_ms),
            max: duration::render(policy.retry.max_ms),
        },
        dead_letters: DeadLettersView {
            max: dead_letters.max,
            max_bytes: size(dead_letters.max_bytes as usize),
            max_message: size(dead_letters.max_message),
            keep: duration::render(dead_letters.keep_ms),
        },
        dialects: policy
            .dialects
            .names()
            .into_iter()
            .map(str::to_owned)
            .collect(),
        headers: HeaderNamesView {
            delay: names.delay.clone(),
            deliver_at: names.deliver_at.clone(),
            id: names.id.clone(),
            op: names.op.clone(),
            target: names.target.clone(),
            expires: names.expires.clone(),
        },
    }
}

/// Bytes as the configuration writes them, in the largest unit that fits exactly.
fn size(bytes: usize) -> String {
    let (count, unit) = match bytes {
        0 => (0, "B"),
        b if b.is_multiple_of(1 << 30) => (b >> 30, "GiB"),
        b if b.is_multiple_of(1 << 20) => (b >> 20, "MiB"),
        b if b.is_multiple_of(1 << 10) => (b >> 10, "KiB"),
        b => (b, "B"),
    };
    format!("{count}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_in_the_configuration() {
        let sizes = [0, 1, 1000, 1024, 65_536, 1 << 20, 3 << 30, (1 << 20) + 1].map(size);
        assert_eq!(
            sizes,
            [
                "0B", "1B", "1000B", "1KiB", "64KiB", "1MiB", "3GiB", "1048577B"
            ]
        );
    }
}
