//! Checks all routes together: loops, and two routes that read one source.

use std::sync::Arc;

use super::connections::{DeclaredConnections, SameBroker};
use super::section::CheckContext;
use crate::domain::{Endpoint, Route, RoutingKey, Target, Topics};

/// A conflict between routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteConflict {
    /// The route in whose section it stands.
    pub route: String,
    /// The key of that section.
    pub key: &'static str,
    /// The conflict, for a person.
    pub message: String,
}

/// Reports each target that is a route's ingress, and each ingress of two routes.
pub(super) fn check(
    context: &CheckContext<'_>,
    routes: &[Arc<Route>],
    connections: &DeclaredConnections,
) {
    for RouteConflict {
        route,
        key,
        message,
    } in conflicts(routes, connections)
    {
        report(context, &route, key, message);
    }
}

/// Finds each target that is a route's ingress, and each ingress of two routes.
pub fn conflicts(routes: &[Arc<Route>], connections: &impl SameBroker) -> Vec<RouteConflict> {
    let mut found = Vec::new();
    let mut report = |route: &str, key, message| {
        found.push(RouteConflict {
            route: route.to_owned(),
            key,
            message,
        });
    };
    for (index, route) in routes.iter().enumerate() {
        let name = route.name.as_str();
        if let Some(first) = routes[..index]
            .iter()
            .find(|first| same_source(&first.from, &route.from, connections))
        {
            report(
                name,
                "from",
                format!(
                    "route `{}` reads it already, {}",
                    first.name,
                    place(&route.from)
                ),
            );
        }
        for (key, target) in std::iter::once(("to", &route.to))
            .chain(route.allow_targets.iter().map(|t| ("allow_targets", t)))
            .chain(route.dead_letter_to.iter().map(|t| ("dead_letter_to", t)))
        {
            if let Some(ingress) = routes
                .iter()
                .find(|ingress| feeds(target, route, ingress, connections))
            {
                let reader = if ingress.name == route.name {
                    "its own route".into()
                } else {
                    format!("route `{}`", ingress.name)
                };
                report(
                    name,
                    key,
                    format!(
                        "a loop: {} is the ingress of {reader}",
                        place(&ingress.from)
                    ),
                );
            }
        }
    }
    found
}

fn report(context: &CheckContext<'_>, route: &str, key: &str, message: String) {
    let value = context
        .layers
        .dict
        .get("routes")
        .and_then(|routes| routes.as_dict()?.get(route)?.as_dict()?.get(key));
    let source = value.map_or_else(|| context.file.clone(), |value| context.origin(value));
    context.report(source, format!("routes.{route}.{key}"), message);
}

fn place(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Kafka { topics, group, .. } => match topics {
            Topics::Named(named) => {
                let named: Vec<String> = named.iter().map(|topic| format!("{topic:?}")).collect();
                let kind = if named.len() == 1 { "topic" } else { "topics" };
                format!("{kind} {} in group {group:?}", named.join(", "))
            }
            Topics::Pattern(pattern) => {
                format!(
                    "the topics of pattern {:?} in group {group:?}",
                    pattern.as_str()
                )
            }
        },
        Endpoint::Rabbitmq { queue, .. } => format!("queue {queue:?}"),
    }
}

/// Reports whether two routes would share one stream of messages.
fn same_source(one: &Endpoint, other: &Endpoint, connections: &impl SameBroker) -> bool {
    match (one, other) {
        (
            Endpoint::Kafka {
                connection: a,
                topics,
                group,
                ..
            },
            Endpoint::Kafka {
                connection: b,
                topics: other,
                group: other_group,
                ..
            },
        ) => group == other_group && connections.same_kafka(a, b) && share(topics, other, a == b),
        (
            Endpoint::Rabbitmq {
                connection: a,
                queue,
                ..
            },
            Endpoint::Rabbitmq {
                connection: b,
                queue: other,
                ..
            },
        ) => queue == other && connections.same_rabbitmq(a, b),
        _ => false,
    }
}

/// Reports whether two routes of one group would read one topic. Of a topic that matches a pattern as well, the consumer of
/// a connection gives the route that names it, or the first by name; two connections have a consumer each.
fn share(one: &Topics, other: &Topics, is_one_consumer: bool) -> bool {
    match (one, other) {
        (Topics::Named(one), Topics::Named(other)) => one.iter().any(|topic| other.contains(topic)),
        (Topics::Pattern(one), Topics::Pattern(other)) => one == other || !is_one_consumer,
        (Topics::Named(named), Topics::Pattern(pattern))
        | (Topics::Pattern(pattern), Topics::Named(named)) => {
            !is_one_consumer && named.iter().any(|topic| pattern.matches(topic))
        }
    }
}

/// Reports whether a message that `route` publishes to `target` is read again by `ingress`.
fn feeds(target: &Target, route: &Route, ingress: &Route, connections: &impl SameBroker) -> bool {
    match (target, &ingress.from) {
        (
            Target::Kafka {
                connection: a,
                topic,
            },
            Endpoint::Kafka {
                connection: b,
                topics: read,
                ..
            },
        ) => read.has(topic) && connections.same_kafka(a, b),
        (
            Target::Rabbitmq {
                connection: a,
                exchange,
                routing_key,
            },
            Endpoint::Rabbitmq {
                connection: b,
                queue,
                ..
            },
        ) => {
            let reaches = match routing_key {
                RoutingKey::Fixed(key) => key == queue,
                // A message that was sent through the default exchange has the name of the queue as its key.
                RoutingKey::Preserve | RoutingKey::Key => route.name == ingress.name,
            };
            exchange.is_empty() && reaches && connections.same_rabbitmq(a, b)
        }
        _ => false,
    }
}
