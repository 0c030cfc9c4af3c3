//! `check --connect`: tries Redis, the brokers, and every topic, queue and exchange that a route names. It creates and
//! changes nothing. Everything is tried at once, so that all servers that are away cost one deadline together.

mod bindings;
mod clusters;
mod kafka;
mod rabbitmq;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::runtime;
use crate::config::Config;
use crate::domain::{Endpoint, Route, RoutingKey, Target};
use crate::ingress::ReadAllocation;
use crate::store::{self, PreflightFailure};

/// Consumer groups of one Kafka connection from which on the cost of groups is told.
const MANY_GROUPS: usize = 20;
/// Longest wait for a server that does not answer.
const CHECK_DEADLINE: Duration = Duration::from_secs(4);

/// CheckFinding about one thing that was tried: a sentence for a person, without any secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckFinding {
    /// True if the thing is as it should be.
    pub good: bool,
    /// True if the thing works, and is a danger. It is good, too.
    pub warns: bool,
    /// The finding, and for a bad one also what to do.
    pub text: String,
}

impl CheckFinding {
    fn good(text: String) -> Self {
        Self {
            good: true,
            warns: false,
            text,
        }
    }

    fn warning(text: String) -> Self {
        Self {
            good: true,
            warns: true,
            text,
        }
    }

    fn bad(text: String) -> Self {
        Self {
            good: false,
            warns: false,
            text,
        }
    }
}

/// A sentence for each queue that is read with fewer messages at a time than its `prefetch` says.
pub fn lowered_prefetches(routes: &[Arc<Route>]) -> Vec<String> {
    let parts = ReadAllocation::of(routes);
    let mut sentences = Vec::new();
    for route in routes {
        let Endpoint::Rabbitmq { prefetch, .. } = route.from else {
            continue;
        };
        let fitting = parts.queue_limits(prefetch, &route.policy).usual.prefetch;
        if fitting < prefetch {
            sentences.push(format!(
                "note: routes.{}: its queue hands over {fitting} messages at a time, not prefetch = {prefetch}: so many \
                 fit into memory, each as large as max_size. Nothing is to be done, unless it reads too slowly: a \
                 smaller max_size allows more",
                route.name
            ));
        }
    }
    sentences
}

/// A sentence for each Kafka connection whose routes read by many consumer groups: each group is a client of its own.
pub fn many_groups(routes: &[Arc<Route>]) -> Vec<String> {
    let mut groups: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for route in routes {
        if let Endpoint::Kafka {
            connection, group, ..
        } = &route.from
        {
            groups.entry(connection).or_default().insert(group);
        }
    }
    // Measured with 200 routes and one broker: 200 groups took 1,016 threads, 415 sockets, 297 MB and a quarter of a
    // core while nothing came; one group took 21 threads, 17 sockets, 45 MB and 1.4 % of a core.
    let mut sentences = Vec::new();
    for (connection, groups) in groups {
        if groups.len() >= MANY_GROUPS {
            sentences.push(format!(
                "note: kafka.{connection}: its routes read by {} consumer groups. Each group is a client of its own: 5 threads, \
                 2 connections a broker, 1.3 MB, and 0.12 % of a core while nothing comes. Routes of one `group` share a \
                 client",
                groups.len()
            ));
        }
    }
    sentences
}

/// A sentence for each route whose messages may name any queue of a virtual host.
pub fn keys_that_name_queues(routes: &[Arc<Route>]) -> Vec<String> {
    let mut sentences = Vec::new();
    for route in routes {
        if route.targets().any(|to| is_any_queue(to)) {
            sentences.push(format!(
                "warning: routes.{}: its target is the default exchange, so the key of a message names any queue there; \
                 give it an exchange of its own if you do not trust its producers",
                route.name
            ));
        }
    }
    sentences
}

/// Reports whether the key of a message names any queue as this target.
fn is_any_queue(to: &Target) -> bool {
    let Target::Rabbitmq {
        exchange,
        routing_key,
        ..
    } = to
    else {
        return false;
    };
    exchange.is_empty() && matches!(routing_key, RoutingKey::Key | RoutingKey::Preserve)
}

/// Tries everything that the configuration names. Warnings of the rooms themselves go to the log, as text.
pub fn check_connections(config: &Config) -> anyhow::Result<Vec<CheckFinding>> {
    let findings = async { Ok(all(config).await) };
    runtime::run_to_end(&runtime::log_as_text(config, None), findings)
}

async fn all(config: &Config) -> Vec<CheckFinding> {
    let kafka = kafka::check_all(config.kafka.values(), &config.routes);
    let rabbitmq = config
        .rabbitmq
        .values()
        .map(|connection| rabbitmq::check(connection, &config.routes));
    let loops = clusters::loops(config);
    let bindings = bindings::loops(config);
    let (redis, kafka, rabbitmq, loops, bindings) = tokio::join!(
        redis(&config.redis),
        kafka,
        join_all(rabbitmq),
        loops,
        bindings
    );
    let brokers = kafka.into_iter().chain(rabbitmq.into_iter().flatten());
    std::iter::once(redis)
        .chain(brokers)
        .chain(loops)
        .chain(bindings)
        .collect()
}

/// The bad findings about the brokers that one route uses, and about its topics, queues and exchanges there.
pub(crate) async fn of_route(config: &Config, route: &Arc<Route>) -> Vec<CheckFinding> {
    let routes = std::slice::from_ref(route);
    let used = super::used_connections(routes);
    let kafka = config
        .kafka
        .values()
        .filter(|c| used.contains(c.name.as_str()));
    let rabbitmq = config
        .rabbitmq
        .values()
        .filter(|c| used.contains(c.name.as_str()));
    let kafka = kafka::check_all(kafka, routes);
    let rabbitmq = rabbitmq.map(|connection| rabbitmq::check(connection, routes));
    let (kafka, rabbitmq) = tokio::join!(kafka, join_all(rabbitmq));
    kafka
        .into_iter()
        .chain(rabbitmq.into_iter().flatten())
        .filter(|finding| !finding.good)
        .collect()
}

async fn redis(config: &store::Config) -> CheckFinding {
    let place = config.place();
    let key = config.place_key();
    match tokio::time::timeout(CHECK_DEADLINE, store::preflight(config, false)).await {
        Ok(Ok(())) => CheckFinding::good(format!("redis: {place} is there and may be used")),
        Ok(Err(PreflightFailure::Refused(why))) => {
            CheckFinding::bad(format!("redis: {place} may not be used: {why}"))
        }
        Ok(Err(PreflightFailure::Tls(why))) => {
            CheckFinding::bad(format!("redis: cannot be used: {why}"))
        }
        Ok(Err(PreflightFailure::Away(why))) => CheckFinding::bad(format!(
            "redis: cannot be used: {why}; is it running, and is `{key}` right, user and password included?"
        )),
        Err(_) => CheckFinding::bad(format!(
            "redis: {place} did not answer within {} s; is it running, and is `{key}` right?",
            CHECK_DEADLINE.as_secs()
        )),
    }
}

/// Names a route as the reader of a topic or queue.
fn source(route: &Route) -> String {
    format!("source of route {}", route.name)
}

/// Names a route as a publisher to a topic, queue or exchange.
fn target(route: &Route) -> String {
    format!("target of route {}", route.name)
}

fn list(names: &BTreeSet<String>) -> String {
    names
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{StartRule, Topics, testing};

    #[test]
    fn groups_are_counted_by_connection_from_twenty_on() {
        let route = |connection: &str, group: String| {
            let from = Endpoint::Kafka {
                connection: connection.to_owned(),
                topics: Topics::one("orders"),
                group,
                start: StartRule::Earliest,
            };
            Arc::new(Route {
                from,
                ..Route::clone(&testing::route())
            })
        };
        let mut routes: Vec<_> = (0..19).map(|n| route("main", format!("g{n}"))).collect();
        routes.push(route("main", "g0".to_owned()));
        routes.push(route("other", "g19".to_owned()));
        assert_eq!(many_groups(&routes), Vec::<String>::new());
        routes.push(route("main", "g19".to_owned()));
        let told = many_groups(&routes);
        assert_eq!(told.len(), 1);
        assert!(
            told[0].contains("kafka.main: its routes read by 20 "),
            "{told:?}"
        );
    }

    #[test]
    fn a_key_on_the_default_exchange_is_warned_of() {
        let route = |exchange: &str, routing_key| {
            let (connection, exchange) = ("main".to_owned(), exchange.to_owned());
            let to = Target::Rabbitmq {
                connection,
                exchange,
                routing_key,
            };
            vec![Arc::new(Route {
                to: Arc::new(to),
                ..Route::clone(&testing::route())
            })]
        };
        for (exchange, key, warns) in [
            ("", RoutingKey::Key, true),
            ("", RoutingKey::Preserve, true),
            ("", RoutingKey::Fixed("mail".to_owned()), false),
            ("mail", RoutingKey::Key, false),
        ] {
            let told = keys_that_name_queues(&route(exchange, key.clone()));
            assert_eq!(
                told.len(),
                usize::from(warns),
                "{exchange:?} {key:?}: {told:?}"
            );
        }
    }
}
