//! Loops through bindings: an exchange that a route publishes to, and that leads back to a queue which a route reads.

use futures_util::future::join_all;

use super::{CHECK_DEADLINE, CheckFinding};
use crate::broker::rabbitmq::{Bindings, Reach};
use crate::config::Config;
use crate::domain::{Endpoint, RoutingKey, Target};

/// Loops of all RabbitMQ connections whose management API is configured.
pub(super) async fn loops(config: &Config) -> Vec<CheckFinding> {
    let used = crate::app::used_connections(&config.routes);
    let used = config
        .rabbitmq
        .values()
        .filter(|connection| used.contains(connection.name.as_str()));
    let asked = used.filter_map(|connection| Some((connection, connection.management.as_deref()?)));
    let found = asked.map(async |(connection, management)| {
        let name = &connection.name;
        match Bindings::read(connection, management, CHECK_DEADLINE).await {
            Ok(bindings) => {
                let mut found =
                    vec![CheckFinding::good(format!("rabbitmq {name}: its bindings were looked at"))];
                found.extend(of_connection(config, name, &bindings));
                found
            }
            Err(why) => vec![CheckFinding::bad(format!(
                "rabbitmq {name}: its bindings cannot be looked at: {why} (`rabbitmq.{name}.management`)"
            ))],
        }
    });
    join_all(found).await.into_iter().flatten().collect()
}

fn of_connection(config: &Config, name: &str, bindings: &Bindings) -> Vec<CheckFinding> {
    let mut found = Vec::new();
    for route in &config.routes {
        for to in route.targets() {
            let Target::Rabbitmq {
                connection,
                exchange,
                routing_key,
            } = &**to
            else {
                continue;
            };
            // The configuration itself tells what the default exchange leads to.
            if connection != name || exchange.is_empty() {
                continue;
            }
            let key = match routing_key {
                RoutingKey::Fixed(key) => Some(key.as_str()),
                RoutingKey::Preserve | RoutingKey::Key => None,
            };
            for reader in &config.routes {
                let Endpoint::Rabbitmq {
                    connection, queue, ..
                } = &reader.from
                else {
                    continue;
                };
                let reach = bindings.reach(exchange, key, queue);
                if connection != name || reach == Reach::Never {
                    continue;
                }
                let leads = if reach == Reach::Surely {
                    "leads"
                } else {
                    "may lead, for some messages,"
                };
                let text = format!(
                    "routes.{}: a loop: its target, exchange {exchange:?}, {leads} by bindings to queue {queue:?}, \
                     which route `{}` reads",
                    route.name, reader.name
                );
                found.push(if reach == Reach::Surely {
                    CheckFinding::bad(text)
                } else {
                    CheckFinding::warning(text)
                });
            }
        }
    }
    found
}
