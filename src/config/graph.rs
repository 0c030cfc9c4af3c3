//! What only all routes together can show: loops, and two routes on one source.

use std::sync::Arc;

use super::connections::Connections;
use super::section::Context;
use crate::domain::{Endpoint, Route, RoutingKey, Target};

/// Reports each target that is a route's ingress, and each ingress of two routes.
pub(super) fn check(context: &Context<'_>, routes: &[Arc<Route>], connections: &Connections) {
    for (index, route) in routes.iter().enumerate() {
        let name = route.name.as_str();
        if let Some(first) =
            routes[..index].iter().find(|first| same_source(&first.from, &route.from, connections))
        {
            report(
                context,
                name,
                "from",
                format!("route `{}` reads it already, {}", first.name, place(&route.from)),
            );
        }
        for (key, target) in std::iter::once(("to", &route.to))
            .chain(route.allow_targets.iter().map(|t| ("allow_targets", t)))
            .chain(route.dead_letter_to.iter().map(|t| ("dead_letter_to", t)))
        {
            if let Some(ingress) = routes.iter().find(|ingress| feeds(target, route, ingress, connections)) {
                let whose = if ingress.name == route.name {
                    "its own route".into()
                } else {
                    format!("route `{}`", ingress.name)
                };
                report(
                    context,
                    name,
                    key,
                    format!("a loop: {} is the ingress of {whose}", place(&ingress.from)),
                );
            }
        }
    }
}

fn report(context: &Context<'_>, route: &str, key: &str, message: String) {
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
        Endpoint::Kafka { topic, group, .. } => format!("topic {topic:?} in group {group:?}"),
        Endpoint::Rabbitmq { queue, .. } => format!("queue {queue:?}"),
    }
}

/// Two routes that would share one stream of messages.
fn same_source(one: &Endpoint, other: &Endpoint, connections: &Connections) -> bool {
    match (one, other) {
        (
            Endpoint::Kafka { connection: a, topic, group },
            Endpoint::Kafka { connection: b, topic: other_topic, group: other_group },
        ) => topic == other_topic && group == other_group && connections.same_kafka(a, b),
        (
            Endpoint::Rabbitmq { connection: a, queue, .. },
            Endpoint::Rabbitmq { connection: b, queue: other, .. },
        ) => queue == other && connections.same_rabbitmq(a, b),
        _ => false,
    }
}

/// Whether what `route` publishes to `target` comes in again at `ingress`.
fn feeds(target: &Target, route: &Route, ingress: &Route, connections: &Connections) -> bool {
    match (target, &ingress.from) {
        (Target::Kafka { connection: a, topic }, Endpoint::Kafka { connection: b, topic: read, .. }) => {
            topic == read && connections.same_kafka(a, b)
        }
        (
            Target::Rabbitmq { connection: a, exchange, routing_key },
            Endpoint::Rabbitmq { connection: b, queue, .. },
        ) => {
            let reaches = match routing_key {
                RoutingKey::Fixed(key) => key == queue,
                // What a producer sent by the default exchange has the queue's own name as its key.
                RoutingKey::Preserve | RoutingKey::Key => route.name == ingress.name,
            };
            exchange.is_empty() && reaches && connections.same_rabbitmq(a, b)
        }
        _ => false,
    }
}
