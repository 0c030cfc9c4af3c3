//! Kafka: is it there, are the topics, and may they be read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;

use super::{Finding, PATIENCE, list, source, target};
use crate::broker::kafka::{Connection, ReadObstacle, TopicState};
use crate::domain::{Endpoint, Route, Target};

/// What the routes want of one connection.
#[derive(Default)]
struct Wanted {
    /// Each topic, and what it is to whom.
    topics: BTreeMap<String, BTreeSet<String>>,
    /// Each group, and the topics it reads.
    groups: BTreeMap<String, BTreeSet<String>>,
}

impl Wanted {
    fn of(name: &str, routes: &[Arc<Route>]) -> Self {
        let mut wanted = Self::default();
        for route in routes {
            if let Endpoint::Kafka { connection, topic, group } = &route.from
                && connection == name
            {
                wanted.topics.entry(topic.clone()).or_default().insert(source(route));
                wanted.groups.entry(group.clone()).or_default().insert(topic.clone());
            }
            for to in route.targets() {
                if let Target::Kafka { connection, topic } = &**to
                    && connection == name
                {
                    wanted.topics.entry(topic.clone()).or_default().insert(target(route));
                }
            }
        }
        wanted
    }

    fn who(&self, topic: &str) -> String {
        self.topics.get(topic).map(list).unwrap_or_default()
    }
}

/// Tries one connection; nothing is found on one that no route uses.
pub(super) async fn check(connection: &Connection, routes: &[Arc<Route>]) -> Vec<Finding> {
    let wanted = Wanted::of(&connection.name, routes);
    let name = &connection.name;
    if wanted.topics.is_empty() {
        return vec![Finding::good(format!("kafka {name}: not tried, for no route uses it"))];
    }
    let found = match connection.find_topics(wanted.topics.keys().cloned().collect(), PATIENCE).await {
        Ok(found) => found,
        Err(why) => {
            let all = list(&wanted.topics.values().flatten().cloned().collect());
            let advice = advice(name, &why);
            return vec![Finding::bad(format!("kafka {name}: cannot be used ({all}): {why}; {advice}"))];
        }
    };
    let there: BTreeSet<&String> =
        found.iter().filter(|(_, s)| matches!(s, TopicState::There { .. })).map(|(t, _)| t).collect();
    let reading = wanted.groups.iter().map(|(group, topics)| {
        let topics: Vec<String> = topics.iter().filter(|t| there.contains(t)).cloned().collect();
        reading(connection, &wanted, group, topics)
    });
    let reading = join_all(reading).await.into_iter().flatten();
    found.iter().map(|(topic, state)| judge(name, topic, &wanted.who(topic), state)).chain(reading).collect()
}

fn advice(name: &str, why: &str) -> String {
    let lower = why.to_ascii_lowercase();
    if lower.contains("authentication") || lower.contains("sasl") {
        format!("look at the user, the password and `sasl.mechanism` in `kafka.{name}.properties`")
    } else if lower.contains("ssl") || lower.contains("certificate") {
        format!("look at `security.protocol` and the `ssl.` properties in `kafka.{name}.properties`")
    } else {
        format!("is it running, and are `kafka.{name}.brokers` and `security.protocol` right?")
    }
}

fn judge(name: &str, topic: &str, who: &str, state: &TopicState) -> Finding {
    match state {
        TopicState::There { partitions } => {
            Finding::good(format!("kafka {name}: topic {topic} is there, {partitions} partition(s) ({who})"))
        }
        TopicState::Missing => Finding::bad(format!(
            "kafka {name}: topic {topic} is missing ({who}); create it, Postdate does not"
        )),
        TopicState::NotAllowed => Finding::bad(format!(
            "kafka {name}: topic {topic} may not be seen ({who}); allow the connection's principal DESCRIBE and READ \
             on a source, DESCRIBE and WRITE on a target"
        )),
        TopicState::Unreachable(why) => {
            Finding::bad(format!("kafka {name}: topic {topic} cannot be looked at ({who}): {why}"))
        }
    }
}

async fn reading(connection: &Connection, wanted: &Wanted, group: &str, topics: Vec<String>) -> Vec<Finding> {
    let name = &connection.name;
    if topics.is_empty() {
        return Vec::new();
    }
    let who = list(&topics.iter().map(|topic| wanted.who(topic)).collect());
    let obstacles = match connection.obstacles(group, topics).await {
        Ok(obstacles) => obstacles,
        Err(why) => {
            return vec![Finding::bad(format!("kafka {name}: group {group} cannot be tried ({who}): {why}"))];
        }
    };
    if obstacles.is_empty() {
        return vec![Finding::good(format!("kafka {name}: group {group} can read ({who})"))];
    }
    let told = obstacles.into_iter().map(|obstacle| match obstacle {
        ReadObstacle::Group { why, denied } => {
            let advice = if denied {
                "allow the connection's principal READ on it"
            } else {
                "is the group's coordinator up, and the topic __consumer_offsets with it?"
            };
            Finding::bad(format!("kafka {name}: group {group} cannot be used ({who}): {why}; {advice}"))
        }
        ReadObstacle::Topic { topic, why } => Finding::bad(format!(
            "kafka {name}: topic {topic} cannot be read ({}): {why}; allow the connection's principal READ on it",
            wanted.who(&topic)
        )),
    });
    told.collect()
}
