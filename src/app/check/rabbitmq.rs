//! RabbitMQ: is it there, does it let us in, are the queues and exchanges there. What a user may read and write
//! shows only when it is done, so it is not tried.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Finding, PATIENCE, list, source, target};
use crate::broker::rabbitmq::{AmqpFault, Broker, Connection, FaultKind, QueueOrExchange};
use crate::domain::{Endpoint, Route, RoutingKey, Target};
use crate::lifecycle::Readiness;

/// Each thing that the routes name, and what it is to whom. The default exchange is always there; a fixed
/// routing key on it is a queue.
fn wanted(name: &str, routes: &[Arc<Route>]) -> BTreeMap<QueueOrExchange, BTreeSet<String>> {
    let mut wanted: BTreeMap<QueueOrExchange, BTreeSet<String>> = BTreeMap::new();
    for route in routes {
        if let Endpoint::Rabbitmq { connection, queue, .. } = &route.from
            && connection == name
        {
            wanted.entry(QueueOrExchange::Queue(queue.clone())).or_default().insert(source(route));
        }
        for to in route.targets() {
            let Target::Rabbitmq { connection, exchange, routing_key } = &**to else { continue };
            let thing = match (exchange.as_str(), routing_key) {
                ("", RoutingKey::Fixed(queue)) => QueueOrExchange::Queue(queue.clone()),
                ("", RoutingKey::Preserve | RoutingKey::Key) => continue,
                (exchange, _) => QueueOrExchange::Exchange(exchange.to_owned()),
            };
            if connection == name {
                wanted.entry(thing).or_default().insert(target(route));
            }
        }
    }
    wanted
}

/// Whether a route reads from it or publishes to it, maybe to what only its messages name.
fn is_used(name: &str, routes: &[Arc<Route>]) -> bool {
    routes.iter().any(|route| {
        let from = matches!(&route.from, Endpoint::Rabbitmq { connection, .. } if connection == name);
        from || route.to.connection() == name
    })
}

/// Tries one connection.
pub(super) async fn check(connection: &Connection, routes: &[Arc<Route>]) -> Vec<Finding> {
    let name = &connection.name;
    if !is_used(name, routes) {
        return vec![Finding::good(format!("rabbitmq {name}: not tried, for no route uses it"))];
    }
    let wanted = wanted(name, routes);
    let broker = Broker::new(connection.clone(), &Readiness::default());
    match broker.look_for(wanted.keys().cloned().collect(), PATIENCE).await {
        Ok(found) if found.is_empty() => vec![Finding::good(format!("rabbitmq {name}: is there"))],
        Ok(found) => found
            .iter()
            .map(|(thing, there)| judge(name, thing, &wanted.get(thing).map(list).unwrap_or_default(), there))
            .collect(),
        Err(fault) => {
            let (url, all) =
                (connection.url.redacted_url(), list(&wanted.values().flatten().cloned().collect()));
            let advice = match fault.kind {
                FaultKind::NotAllowed => "look at user, password and virtual host in",
                _ => "is it running there, and is that what is meant by",
            };
            vec![Finding::bad(format!(
                "rabbitmq {name}: {url} cannot be used ({all}): {fault}; {advice} `rabbitmq.{name}.url`"
            ))]
        }
    }
}

fn judge(name: &str, thing: &QueueOrExchange, who: &str, there: &Result<(), AmqpFault>) -> Finding {
    match there {
        Ok(()) => Finding::good(format!("rabbitmq {name}: {thing} is there ({who})")),
        Err(fault) if fault.kind == FaultKind::NotFound => Finding::bad(format!(
            "rabbitmq {name}: {thing} is missing ({who}); declare it, Postdate does not"
        )),
        Err(fault) => Finding::bad(format!("rabbitmq {name}: {thing} cannot be looked at ({who}): {fault}")),
    }
}
