//! Check of a Kafka connection: the cluster, the topics, and the right to read them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;

use super::{CHECK_DEADLINE, CheckFinding, list, source, target};
use crate::broker::kafka::{
    BatchSettings, Connection, FetchSizes, ReadObstacle, TopicState, open_bytes,
};
use crate::domain::{Endpoint, Route, Target, Text};
use crate::ingress::kafka::largest_record;
use crate::ingress::kafka::source_topics::SourceTopics;

/// Most topics of one route that are looked at.
const EXAMINED_TOPICS: usize = 20;
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
    /// What the routes name, and of what they find by patterns the first topics. Says what each pattern finds.
    fn of(
        name: &str,
        routes: &[Arc<Route>],
        listed: &ListedTopics<'_>,
    ) -> (Self, Vec<CheckFinding>) {
        let mut used = Self::default();
        let mut findings = Vec::new();
        for route in routes {
            for to in route.targets() {
                if route.derived_targets(to).is_none() {
                    used.publishes(name, route, to);
                }
            }
        }
        for ((at, group), routes) in group_routes(routes) {
            let listed = listed.get(at);
            let mut topics = SourceTopics::new(&routes);
            topics.found(listed.into_iter().flatten().flatten().map(String::as_str));
            for route in &routes {
                let read = topics.read_by(&route.name);
                if at == name {
                    findings.extend(matching(name, route, &topics, &read, listed));
                }
                let most = if has_pattern(route) {
                    EXAMINED_TOPICS
                } else {
                    usize::MAX
                };
                for view in read.iter().take(most) {
                    match view.own_target() {
                        Ok(to) => used.publishes(name, route, to),
                        Err(why) if at == name => findings.push(CheckFinding::bad(format!(
                            "kafka {name}: {why} ({})",
                            target(route)
                        ))),
                        Err(_) => {}
                    }
                    if at == name
                        && let Some(topic) = topic_of(view)
                    {
                        let users = used.topics.entry(topic.clone()).or_default();
                        users.insert(source(route));
                        used.groups
                            .entry(group.to_owned())
                            .or_default()
                            .insert(topic);
                    }
                }
            }
        }
        (used, findings)
    }

    /// Notes a target of a route, if it is on this connection.
    fn publishes(&mut self, name: &str, route: &Route, to: &Target) {
        if let Target::Kafka { connection, topic } = to
            && connection == name
        {
            self.topics
                .entry(topic.clone())
                .or_default()
                .insert(target(route));
        }
    }

    /// The routes that use a topic, for a sentence.
    fn users(&self, topic: &str) -> String {
        self.topics.get(topic).map(list).unwrap_or_default()
    }
}

/// The routes of each consumer group, by connection and group.
fn group_routes(routes: &[Arc<Route>]) -> BTreeMap<(&str, &str), Vec<Arc<Route>>> {
    let mut groups: BTreeMap<_, Vec<Arc<Route>>> = BTreeMap::new();
    for route in routes {
        if let Endpoint::Kafka {
            connection, group, ..
        } = &route.from
        {
            let key = (connection.as_str(), group.as_str());
            groups.entry(key).or_default().push(route.clone());
        }
    }
    groups
}

/// What the pattern of a route finds. `None`: the route names its topics.
fn matching(
    name: &str,
    route: &Route,
    topics: &SourceTopics,
    read: &[Arc<Route>],
    listed: Option<&Result<Vec<String>, String>>,
) -> Option<CheckFinding> {
    let Endpoint::Kafka { topics: from, .. } = &route.from else {
        return None;
    };
    from.pattern()?;
    let place = source(route);
    if let Some(Err(why)) = listed {
        return Some(CheckFinding::bad(format!(
            "kafka {name}: the topics of the cluster cannot be listed ({place}): {why}; {}",
            advice(name, why)
        )));
    }
    if let Some(why) = topics.trouble(&route.name) {
        return Some(CheckFinding::warning(format!(
            "kafka {name}: {why} ({place})"
        )));
    }
    let named: Vec<&str> = read
        .iter()
        .filter_map(|view| view.source_topic.as_ref())
        .map(Text::as_str)
        .collect();
    let first = named[..named.len().min(EXAMINED_TOPICS)].join(", ");
    let rest = match named.len().saturating_sub(EXAMINED_TOPICS) {
        0 => String::new(),
        rest => format!(" and {rest} more, which are not looked at here"),
    };
    Some(CheckFinding::good(format!(
        "kafka {name}: {} topic(s) match {:?}: {first}{rest} ({place})",
        named.len(),
        from.to_string()
    )))
}

/// Reports whether a route finds its topics by a pattern.
fn has_pattern(route: &Route) -> bool {
    matches!(&route.from, Endpoint::Kafka { topics, .. } if topics.pattern().is_some())
}

/// The one topic that a route reads.
fn topic_of(route: &Route) -> Option<String> {
    match &route.from {
        Endpoint::Kafka { topics, .. } => topics.single().map(str::to_owned),
        Endpoint::Rabbitmq { .. } => None,
    }
}

/// The topics of each cluster in which a route finds its topics, by connection, or why they cannot be listed.
type ListedTopics<'a> = BTreeMap<&'a str, Result<Vec<String>, String>>;

/// Tries connections, all at once.
pub(super) async fn check_all<'a>(
    connections: impl IntoIterator<Item = &'a Connection>,
    routes: &[Arc<Route>],
) -> Vec<CheckFinding> {
    let connections: Vec<&Connection> = connections.into_iter().collect();
    let mut lists = Vec::new();
    for &connection in &connections {
        let name = connection.name.as_str();
        if routes
            .iter()
            .any(|route| has_pattern(route) && reads(route, name))
        {
            lists.push(async move { (name, connection.list_topics(CHECK_DEADLINE).await) });
        }
    }
    let listed: ListedTopics<'_> = join_all(lists).await.into_iter().collect();
    let checks = connections
        .iter()
        .map(|connection| check(connection, routes, &listed));
    join_all(checks).await.into_iter().flatten().collect()
}

/// Reports whether a route reads from a connection.
fn reads(route: &Route, name: &str) -> bool {
    matches!(&route.from, Endpoint::Kafka { connection, .. } if connection == name)
}

/// Tries one connection. A connection that no route uses is not tried.
async fn check(
    connection: &Connection,
    routes: &[Arc<Route>],
    listed: &ListedTopics<'_>,
) -> Vec<CheckFinding> {
    let name = &connection.name;
    if !routes
        .iter()
        .any(|route| reads(route, name) || route.publishes_to_kafka(name))
    {
        return vec![CheckFinding::good(format!(
            "kafka {name}: not tried, for no route uses it"
        ))];
    }
    let (used, matching) = UsedTopics::of(name, routes, listed);
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
    matching
        .into_iter()
        .chain(found)
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
    let group = routes.iter().find_map(|route| match &route.from {
        Endpoint::Kafka {
            connection: at,
            topics: read,
            group,
            ..
        } if *at == connection.name && read.has(topic) => Some(group),
        _ => None,
    })?;
    let of_group = routes.iter().filter(|route| {
        reads(route, &connection.name)
            && matches!(&route.from, Endpoint::Kafka { group: g, .. } if g == group)
    });
    let largest = largest_record(of_group.map(|route| &**route));
    connection
        .consumer_config(group, largest, FetchSizes::Usual)
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
