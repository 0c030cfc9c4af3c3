//! Check of a Kafka connection: the cluster, the topics, and the right to read them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;

use super::{CHECK_DEADLINE, CheckFinding, list, source, target};
use crate::broker::kafka::{
    BatchSettings, Connection, FetchSizes, ReadObstacle, TopicState, open_bytes,
};
use crate::domain::{Endpoint, Route, Target};
use crate::ingress::kafka::largest_record;

/// Bytes of an answer's framing.
const ANSWER_FRAMING: u64 = 512;

/// Topics and groups that the routes use on one connection.
#[derive(Default)]
struct UsedTopics {
    /// By topic: the routes that read from it or publish to it.
    topics: BTreeMap<String, BTreeSet<String>>,
    /// By group: the topics that it reads.
    groups: BTreeMap<String, BTreeSet<String>>,
}

impl UsedTopics {
    fn of(name: &str, routes: &[Arc<Route>]) -> Self {
        let mut used = Self::default();
        for route in routes {
            if let Endpoint::Kafka {
                connection,
                topic,
                group,
            } = &route.from
                && connection == name
            {
                used.topics
                    .entry(topic.clone())
                    .or_default()
                    .insert(source(route));
                used.groups
                    .entry(group.clone())
                    .or_default()
                    .insert(topic.clone());
            }
            for to in route.targets() {
                if let Target::Kafka { connection, topic } = &**to
                    && connection == name
                {
                    used.topics
                        .entry(topic.clone())
                        .or_default()
                        .insert(target(route));
                }
            }
        }
        used
    }

    /// The routes that use a topic, for a sentence.
    fn users(&self, topic: &str) -> String {
        self.topics.get(topic).map(list).unwrap_or_default()
    }
}

/// Tries one connection. A connection that no route uses is not tried.
pub(super) async fn check(connection: &Connection, routes: &[Arc<Route>]) -> Vec<CheckFinding> {
    let used = UsedTopics::of(&connection.name, routes);
    let name = &connection.name;
    if used.topics.is_empty() {
        return vec![CheckFinding::good(format!(
            "kafka {name}: not tried, for no route uses it"
        ))];
    }
    let found = match connection
        .find_topics(used.topics.keys().cloned().collect(), CHECK_DEADLINE)
        .await
    {
        Ok(found) => found,
        Err(why) => {
            let all = list(&used.topics.values().flatten().cloned().collect());
            let told = match connection.tls_sentence().await {
                Some(sentence) => format!("{sentence} ({why})"),
                None => format!("{why}; {}", advice(name, &why)),
            };
            return vec![CheckFinding::bad(format!(
                "kafka {name}: cannot be used ({all}): {told}"
            ))];
        }
    };
    let there: BTreeSet<&String> = found
        .iter()
        .filter(|(_, s)| matches!(s, TopicState::There { .. }))
        .map(|(t, _)| t)
        .collect();
    let reading = used.groups.iter().map(|(group, topics)| {
        let topics: Vec<String> = topics
            .iter()
            .filter(|t| there.contains(t))
            .cloned()
            .collect();
        reading(connection, &used, group, topics)
    });
    let read = used
        .groups
        .values()
        .flatten()
        .filter(|topic| there.contains(topic))
        .cloned()
        .collect();
    let (reading, bombs) = tokio::join!(join_all(reading), large_batches(connection, routes, read));
    let found = found
        .iter()
        .map(|(topic, state)| judge(name, topic, &used.users(topic), state));
    found
        .chain(reading.into_iter().flatten())
        .chain(bombs)
        .collect()
}

/// Warns of topics whose batches may be larger than what the consumer opens: compressed, or as they are.
async fn large_batches(
    connection: &Connection,
    routes: &[Arc<Route>],
    topics: BTreeSet<String>,
) -> Vec<CheckFinding> {
    let name = &connection.name;
    let topics: Vec<String> = topics.into_iter().collect();
    let settings = connection.batch_settings(&topics).await;
    let mut findings = Vec::new();
    let compressed: Vec<&str> = settings
        .iter()
        .filter(|(_, settings)| settings.compression != "uncompressed")
        .map(|(topic, _)| topic.as_str())
        .collect();
    if !compressed.is_empty() {
        findings.push(CheckFinding::warning(format!(
            "kafka {name}: source topics take compressed batches ({}): if producers that you do not trust may write to \
             them, set `compression.type=uncompressed` on the topics, for a few KB can become gigabytes when they are read",
            compressed.join(", ")
        )));
    }
    for (topic, BatchSettings { max_bytes, .. }) in settings {
        let open = opened_bytes(connection, routes, &topic);
        if open.is_some_and(|open| max_bytes.saturating_add(ANSWER_FRAMING) > open) {
            findings.push(CheckFinding::warning(format!(
                "kafka {name}: topic {topic} takes batches of {max_bytes} bytes (`max.message.bytes`), more than its \
                 consumer takes: such a batch stops all of the group's partitions on one broker; lower it, or raise \
                 `receive.message.max.bytes` in `kafka.{name}.properties`"
            )));
        }
    }
    findings
}

/// The size up to which the consumer of a topic takes answers. `None` if no route reads it.
fn opened_bytes(connection: &Connection, routes: &[Arc<Route>], topic: &str) -> Option<u64> {
    let of_group = |group: &str| {
        let reads = |route: &&Arc<Route>| matches!(&route.from, Endpoint::Kafka { connection: at, group: g, .. } if *at == connection.name && g == group);
        largest_record(routes.iter().filter(reads).map(|route| &**route))
    };
    let group = routes.iter().find_map(|route| match &route.from {
        Endpoint::Kafka {
            connection: at,
            topic: read,
            group,
        } if *at == connection.name && read == topic => Some(group),
        _ => None,
    })?;
    connection
        .consumer_config(group, of_group(group), FetchSizes::Usual)
        .ok()
        .map(|config| open_bytes(&config))
}

fn advice(name: &str, why: &str) -> String {
    let lower = why.to_ascii_lowercase();
    if lower.contains("authentication") || lower.contains("sasl") {
        format!("look at the user, the password and `sasl.mechanism` in `kafka.{name}.properties`")
    } else if lower.contains("ssl") || lower.contains("certificate") {
        format!(
            "look at `security.protocol` and the `ssl.` properties in `kafka.{name}.properties`"
        )
    } else {
        format!("is it running, and are `kafka.{name}.brokers` and `security.protocol` right?")
    }
}

fn judge(name: &str, topic: &str, users: &str, state: &TopicState) -> CheckFinding {
    match state {
        TopicState::There { partitions } => CheckFinding::good(format!(
            "kafka {name}: topic {topic} is there, {partitions} partition(s) ({users})"
        )),
        TopicState::Missing => CheckFinding::bad(format!(
            "kafka {name}: topic {topic} is missing ({users}); create it, Postdate does not"
        )),
        TopicState::NotAllowed => CheckFinding::bad(format!(
            "kafka {name}: topic {topic} may not be seen ({users}); allow the connection's principal DESCRIBE and READ \
             on a source, DESCRIBE and WRITE on a target"
        )),
        TopicState::Unreachable(why) => CheckFinding::bad(format!(
            "kafka {name}: topic {topic} cannot be looked at ({users}): {why}"
        )),
    }
}

/// Tries whether a group can read its topics.
async fn reading(
    connection: &Connection,
    used: &UsedTopics,
    group: &str,
    topics: Vec<String>,
) -> Vec<CheckFinding> {
    let name = &connection.name;
    if topics.is_empty() {
        return Vec::new();
    }
    let users = list(&topics.iter().map(|topic| used.users(topic)).collect());
    let obstacles = match connection.obstacles(group, topics).await {
        Ok(obstacles) => obstacles,
        Err(why) => {
            return vec![CheckFinding::bad(format!(
                "kafka {name}: group {group} cannot be tried ({users}): {why}"
            ))];
        }
    };
    if obstacles.is_empty() {
        return vec![CheckFinding::good(format!(
            "kafka {name}: group {group} can read ({users})"
        ))];
    }
    let told = obstacles.into_iter().map(|obstacle| match obstacle {
        ReadObstacle::Group { why, denied } => {
            let advice = if denied {
                "allow the connection's principal READ on it"
            } else {
                "is the group's coordinator up, and the topic __consumer_offsets with it?"
            };
            CheckFinding::bad(format!("kafka {name}: group {group} cannot be used ({users}): {why}; {advice}"))
        }
        ReadObstacle::Topic { topic, why } => CheckFinding::bad(format!(
            "kafka {name}: topic {topic} cannot be read ({}): {why}; allow the connection's principal READ on it",
            used.users(&topic)
        )),
    });
    told.collect()
}
