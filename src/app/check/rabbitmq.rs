//! Check of a RabbitMQ connection: the broker, the login, the queues and the exchanges. Rights to read and write show only
//! in use, so they are not tried.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{CHECK_DEADLINE, CheckFinding, list, source, target};
use crate::broker::rabbitmq::{
    AmqpFault, Broker, Connection, FaultKind, QueueOrExchange, QueueTraits, UnusableHosts,
};
use crate::domain::{Endpoint, Route, RoutingKey, Target};
use crate::health::Health;

/// By queue or exchange that the routes name: the routes that read from it or publish to it. The default exchange is always
/// there; a fixed routing key on it is a queue.
fn used_things(name: &str, routes: &[Arc<Route>]) -> BTreeMap<QueueOrExchange, BTreeSet<String>> {
    let mut used: BTreeMap<QueueOrExchange, BTreeSet<String>> = BTreeMap::new();
    for route in routes {
        if let Endpoint::Rabbitmq {
            connection, queue, ..
        } = &route.from
            && connection == name
        {
            used.entry(QueueOrExchange::Source(queue.clone()))
                .or_default()
                .insert(source(route));
        }
        for to in route.targets() {
            let Target::Rabbitmq {
                connection,
                exchange,
                routing_key,
            } = &**to
            else {
                continue;
            };
            let thing = match (exchange.as_str(), routing_key) {
                ("", RoutingKey::Fixed(queue)) => QueueOrExchange::Queue(queue.clone()),
                ("", RoutingKey::Preserve | RoutingKey::Key) => continue,
                (exchange, _) => QueueOrExchange::Exchange(exchange.to_owned()),
            };
            if connection == name {
                used.entry(thing).or_default().insert(target(route));
            }
        }
    }
    used
}

/// Reports whether a route reads from the connection or publishes to it. A target that only messages name counts too.
fn is_used(name: &str, routes: &[Arc<Route>]) -> bool {
    routes.iter().any(|route| {
        let from =
            matches!(&route.from, Endpoint::Rabbitmq { connection, .. } if connection == name);
        from || route.to.connection() == name
    })
}

/// Tries one connection.
pub(super) async fn check(connection: &Connection, routes: &[Arc<Route>]) -> Vec<CheckFinding> {
    let name = &connection.name;
    if !is_used(name, routes) {
        return vec![CheckFinding::good(format!(
            "rabbitmq {name}: not tried, for no route uses it"
        ))];
    }
    let used = used_things(name, routes);
    let broker = Broker::new(connection.clone(), &Health::default());
    match broker
        .look_for(used.keys().cloned().collect(), CHECK_DEADLINE)
        .await
    {
        Ok(found) if found.is_empty() && connection.further_urls.is_empty() => {
            vec![CheckFinding::good(format!("rabbitmq {name}: is there"))]
        }
        Ok(found) => {
            let mut findings = match connection.further_urls.len() {
                0 => Vec::new(),
                others => hosts(name, 1 + others, &broker).await,
            };
            for (thing, there) in &found {
                let users = used.get(thing).map(list).unwrap_or_default();
                findings.push(judge(name, thing, &users, there));
                if let Ok(Some(traits)) = there
                    && traits.refusal().is_none()
                {
                    let dangers = traits.dangers().into_iter();
                    findings.extend(dangers.map(|danger| {
                        CheckFinding::warning(format!("rabbitmq {name}: {danger} ({users})"))
                    }));
                }
            }
            findings
        }
        Err(UnusableHosts(hosts)) => {
            let all = list(&used.values().flatten().cloned().collect());
            let told = hosts.into_iter().map(|(url, fault)| {
                let advice = advice(&fault, &connection.place_key());
                CheckFinding::bad(format!(
                    "rabbitmq {name}: {url} cannot be used ({all}): {fault}{advice}"
                ))
            });
            told.collect()
        }
    }
}

/// What to do about a host that cannot be used.
fn advice(fault: &AmqpFault, key: &str) -> String {
    match fault.kind {
        // The fault says what to do.
        FaultKind::Tls => String::new(),
        FaultKind::NotAllowed => format!("; look at user, password and virtual host in `{key}`"),
        _ => format!("; is it running there, and is that the address meant by `{key}`"),
    }
}

/// Which of several hosts cannot be used: the others stand in for them.
async fn hosts(name: &str, count: usize, broker: &Broker) -> Vec<CheckFinding> {
    let UnusableHosts(unusable) = broker.unusable_hosts(CHECK_DEADLINE).await;
    let usable = count - unusable.len();
    let mut findings = vec![CheckFinding::good(format!(
        "rabbitmq {name}: {usable} of {count} hosts are there"
    ))];
    findings.extend(unusable.into_iter().map(|(url, fault)| {
        CheckFinding::warning(format!(
            "rabbitmq {name}: {url} cannot be used: {fault}; the others of `urls` are, until it can"
        ))
    }));
    findings
}

fn judge(
    name: &str,
    thing: &QueueOrExchange,
    users: &str,
    there: &Result<Option<QueueTraits>, AmqpFault>,
) -> CheckFinding {
    match there {
        Ok(traits) => match traits.as_ref().and_then(QueueTraits::refusal) {
            Some(refusal) => CheckFinding::bad(format!("rabbitmq {name}: {refusal} ({users})")),
            None => CheckFinding::good(format!("rabbitmq {name}: {thing} is there ({users})")),
        },
        Err(fault) if fault.kind == FaultKind::NotFound => CheckFinding::bad(format!(
            "rabbitmq {name}: {thing} is missing ({users}); declare it, Postdate does not"
        )),
        Err(fault) => CheckFinding::bad(format!(
            "rabbitmq {name}: {thing} cannot be looked at ({users}): {fault}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::credential::Credential;
    use crate::domain::testing;
    use crate::tls::ClientFiles;

    #[tokio::test]
    async fn each_host_that_cannot_be_used_is_told_with_its_own_fault() {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        // Nobody listens once they are dropped.
        let [one, other] = listeners.map(|one| one.local_addr().expect("bound").port());
        let url = |port: u16| format!("amqp://guest:hunter2@127.0.0.1:{port}/%2f");
        let connection = Connection {
            name: "main".to_owned(),
            url: Credential::inline(url(one)),
            further_urls: vec![Credential::inline(url(other))],
            management: None,
            tls: ClientFiles::default(),
        };
        let from = Endpoint::Rabbitmq {
            connection: "main".to_owned(),
            queue: "mail.delayed".to_owned(),
            prefetch: 1,
        };
        let route = testing::route_between("mail", from, testing::kafka_target("mail"));
        let told = check(&connection, &[Arc::new(route)]).await;
        let told: Vec<_> = told.into_iter().map(|finding| finding.text).collect();
        let expected = [one, other].map(|port| {
            format!(
                "rabbitmq main: amqp://***@127.0.0.1:{port}/%2f cannot be used (source of route mail): \
                 127.0.0.1:{port} refuses connections; is it running there, and is that the address meant by \
                 `rabbitmq.main.urls`"
            )
        });
        assert_eq!(told, expected);
    }
}
