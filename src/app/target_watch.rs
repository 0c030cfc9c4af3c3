//! Looks at the targets of the routes at the start and once a minute, so that one that is not there is told before its
//! first message is due. Creates nothing. Whether the brokers are there is told by who keeps the connections up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use super::App;
use crate::broker::kafka::{Connection, TopicState};
use crate::broker::rabbitmq::{Broker, FaultKind, QueueOrExchange};
use crate::domain::{Route, RoutingKey, Target};
use crate::health::Health;
use crate::lifecycle::{Stage, tick};

/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// Longest look at the targets of one connection.
const LOOK_DEADLINE: Duration = Duration::from_secs(10);

/// Targets, by what must be there for them.
type Wanted<T> = BTreeMap<T, Vec<Arc<Target>>>;

/// Starts a task for each connection that has targets which can be looked at.
pub(super) fn start(app: &App, brokers: &BTreeMap<String, Arc<Broker>>) {
    let tasks = app.tasks.of(Stage::Egress);
    let routes = &app.config.routes;
    for connection in app.config.kafka.values() {
        let routes: Vec<Arc<Route>> = routes
            .iter()
            .filter(|route| route.publishes_to_kafka(&connection.name))
            .cloned()
            .collect();
        if routes.is_empty() {
            continue;
        }
        let name = format!("targets:kafka:{}", connection.name);
        let (connection, health) = (connection.clone(), app.health.clone());
        let looks = async move {
            loop {
                // Targets that are derived from topics turn up with their first messages.
                let topics = wanted(&routes, &connection.name, topic_of);
                look_for_topics(&connection, &topics, &health).await;
                tick(LOOK_INTERVAL).await;
            }
        };
        let shutdown = app.stages.egress.clone();
        tasks.spawn(&name, async move { shutdown.until_draining(looks).await });
    }
    for (name, broker) in brokers {
        let things = wanted(routes, name, queue_or_exchange_of);
        if things.is_empty() {
            continue;
        }
        let name = format!("targets:rabbitmq:{name}");
        let (broker, health) = (broker.clone(), app.health.clone());
        let looks = async move {
            loop {
                look_for_things(&broker, &things, &health).await;
                tick(LOOK_INTERVAL).await;
            }
        };
        let shutdown = app.stages.egress.clone();
        tasks.spawn(&name, async move { shutdown.until_draining(looks).await });
    }
}

/// What must be there on a connection for the targets of the routes, with these.
fn wanted<T: Ord>(
    routes: &[Arc<Route>],
    connection: &str,
    needs: impl Fn(&Target) -> Option<T>,
) -> Wanted<T> {
    let mut wanted = Wanted::new();
    let targets = routes.iter().flat_map(|route| route.known_targets());
    for target in targets.filter(|target| target.connection() == connection) {
        if let Some(thing) = needs(&target) {
            wanted.entry(thing).or_default().push(target.clone());
        }
    }
    wanted
}

fn topic_of(target: &Target) -> Option<String> {
    match target {
        Target::Kafka { topic, .. } => Some(topic.clone()),
        Target::Rabbitmq { .. } => None,
    }
}

/// The default exchange is always there; a fixed routing key on it is a queue.
fn queue_or_exchange_of(target: &Target) -> Option<QueueOrExchange> {
    let Target::Rabbitmq {
        exchange,
        routing_key,
        ..
    } = target
    else {
        return None;
    };
    match (exchange.as_str(), routing_key) {
        ("", RoutingKey::Fixed(queue)) => Some(QueueOrExchange::Queue(queue.clone())),
        ("", RoutingKey::Preserve | RoutingKey::Key) => None,
        (exchange, _) => Some(QueueOrExchange::Exchange(exchange.to_owned())),
    }
}

async fn look_for_topics(connection: &Connection, topics: &Wanted<String>, health: &Health) {
    if topics.is_empty() {
        return;
    }
    let names = topics.keys().cloned().collect();
    let found = match connection.find_topics(names, LOOK_DEADLINE).await {
        Ok(found) => found,
        Err(why) => {
            return debug!(
                connection = connection.name,
                why, "targets cannot be looked at"
            );
        }
    };
    for (topic, state) in found {
        let why = match state {
            TopicState::There { .. } => None,
            TopicState::Missing => Some(format!("topic {topic} is missing")),
            TopicState::NotAllowed => Some(format!("topic {topic} may not be seen")),
            TopicState::Unreachable(_) => continue,
        };
        tell(topics.get(&topic), why.as_deref(), health);
    }
}

async fn look_for_things(broker: &Broker, things: &Wanted<QueueOrExchange>, health: &Health) {
    let wanted = things.keys().cloned().collect();
    let found = match broker.look_for(wanted, LOOK_DEADLINE).await {
        Ok(found) => found,
        Err(fault) => {
            return debug!(connection = broker.name(), %fault, "targets cannot be looked at");
        }
    };
    for (thing, there) in found {
        let why = match there {
            Ok(_) => None,
            Err(fault) if fault.kind == FaultKind::NotFound => Some(format!("{thing} is missing")),
            // Who may publish need not have the right to look.
            Err(_) => continue,
        };
        tell(things.get(&thing), why.as_deref(), health);
    }
}

/// Tells what was found of these targets.
fn tell(targets: Option<&Vec<Arc<Target>>>, why: Option<&str>, health: &Health) {
    for target in targets.into_iter().flatten() {
        health.targets().looked_at(target, why);
    }
}
