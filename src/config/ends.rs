//! Reads where a route's messages come from and where they go.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::connections::DeclaredConnections;
use super::section::SectionReader;
use crate::domain::route::split_exchange;
use crate::domain::topics::{MAX_TOPICS, check_topic};
use crate::domain::{
    Endpoint, RoutingKey, StartRule, Target, TopicPattern, TopicTemplate, Topics, moment, nearest,
};

pub(super) fn from(
    table: &SectionReader<'_>,
    connections: &DeclaredConnections,
) -> Option<Endpoint> {
    match technology(
        table,
        connections,
        &["topic", "topics", "topic_pattern", "group", "start"],
        &["queue", "prefetch"],
    )? {
        BrokerTechnology::Kafka => {
            let connection = table.text("kafka");
            let topics = topics(table);
            let group = group(table);
            let start = start(table);
            Some(Endpoint::Kafka {
                connection: connection?,
                topics: topics?,
                group: group?,
                start: start?,
            })
        }
        BrokerTechnology::Rabbitmq => {
            let connection = table.text("rabbitmq");
            let queue = table.parsed("queue", |text| short("a queue", text));
            let prefetch = prefetch(table);
            Some(Endpoint::Rabbitmq {
                connection: connection?,
                queue: queue?,
                prefetch: prefetch?,
            })
        }
    }
}

/// The topics of a source, by one of three keys.
fn topics(table: &SectionReader<'_>) -> Option<Topics> {
    let given = ["topic", "topics", "topic_pattern"].map(|key| table.has(key));
    match given {
        [true, false, false] => table.parsed("topic", topic).map(Topics::one),
        [false, true, false] => several(table).map(Topics::Named),
        [false, false, true] => table
            .parsed("topic_pattern", TopicPattern::new)
            .map(Topics::Pattern),
        [false, false, false] => {
            table.report_self("`from` needs `topic`, `topics` or `topic_pattern`");
            None
        }
        _ => {
            table.report_self(
                "`from` has more than one of `topic`, `topics` and `topic_pattern`; one must stay",
            );
            None
        }
    }
}

fn several(table: &SectionReader<'_>) -> Option<Vec<String>> {
    const KEY: &str = "topics";
    let named = table.texts(KEY)?;
    let mut known = BTreeSet::new();
    let twice = named.iter().find(|name| !known.insert(name.as_str()));
    let wrong = if named.is_empty() {
        Some("is empty".to_owned())
    } else if named.len() > MAX_TOPICS {
        Some(format!(
            "has {} topics: a route reads at most {MAX_TOPICS}",
            named.len()
        ))
    } else if let Some(twice) = twice {
        Some(format!("names {twice:?} twice"))
    } else {
        named.iter().find_map(|name| check_topic(name).err())
    };
    match wrong {
        Some(wrong) => {
            table.report(KEY, wrong);
            None
        }
        None => Some(named),
    }
}

/// Where reading begins.
pub(super) fn start(table: &SectionReader<'_>) -> Option<StartRule> {
    table.parsed("start", |text| match text {
        "earliest" => Ok(StartRule::Earliest),
        "latest" => Ok(StartRule::Latest),
        _ => moment::parse(text).map(StartRule::Since).map_err(|_| {
            format!("{text:?} is not \"earliest\", \"latest\" or a moment such as \"2026-11-26T16:30:00Z\"")
        }),
    })
}

/// A target, and by what it is derived from the topics of a pattern, if it is.
pub(super) fn to(
    table: &SectionReader<'_>,
    connections: &DeclaredConnections,
    pattern: Option<&TopicPattern>,
) -> Option<(Target, Option<TopicTemplate>)> {
    match technology(table, connections, &["topic"], &["exchange", "routing_key"])? {
        BrokerTechnology::Kafka => {
            let connection = table.text("kafka");
            let mut template = None;
            let topic = table.parsed("topic", |text| {
                if text.contains('{') {
                    let pattern = pattern.ok_or_else(|| {
                        format!("{text:?} is derived from a topic, which needs `topic_pattern` in `from`")
                    })?;
                    template = Some(TopicTemplate::new(text, pattern)?);
                    Ok(text.to_owned())
                } else {
                    topic(text)
                }
            });
            let target = Target::Kafka {
                connection: connection?,
                topic: topic?,
            };
            Some((target, template))
        }
        BrokerTechnology::Rabbitmq => {
            let connection = table.text("rabbitmq");
            let exchange = table.parsed("exchange", |text| match text {
                "" => Ok(String::new()),
                _ => short("an exchange", text),
            });
            let routing_key = table.parsed("routing_key", |text| match text {
                "preserve" => Ok(RoutingKey::Preserve),
                "key" => Ok(RoutingKey::Key),
                "" => Ok(RoutingKey::Fixed(String::new())),
                _ => short("a routing key", text).map(RoutingKey::Fixed),
            });
            let connection = connection?;
            let exchange = exchange?;
            let routing_key = routing_key?;
            if exchange.is_empty() && routing_key == RoutingKey::Fixed(String::new()) {
                table.report(
                    "routing_key",
                    "on the default exchange it is the name of a queue and cannot be empty",
                );
            }
            let target = Target::Rabbitmq {
                connection,
                exchange,
                routing_key,
            };
            Some((target, None))
        }
    }
}

enum BrokerTechnology {
    Kafka,
    Rabbitmq,
}

/// The technology of a table with `kafka` or `rabbitmq` in it. Reports keys of the other technology as problems.
fn technology(
    table: &SectionReader<'_>,
    connections: &DeclaredConnections,
    kafka: &[&'static str],
    rabbitmq: &[&'static str],
) -> Option<BrokerTechnology> {
    let what = table.key();
    let (technology, foreign, name) = match (table.has("kafka"), table.has("rabbitmq")) {
        (true, false) => (BrokerTechnology::Kafka, rabbitmq, "Kafka"),
        (false, true) => (BrokerTechnology::Rabbitmq, kafka, "RabbitMQ"),
        (both, _) => {
            for key in kafka.iter().chain(rabbitmq) {
                table.has(key);
            }
            table.report_self(if both {
                format!("`{what}` has both `kafka` and `rabbitmq`; one of the two must go")
            } else {
                format!("`{what}` needs a connection: `kafka = \"NAME\"` or `rabbitmq = \"NAME\"`")
            });
            return None;
        }
    };
    for key in foreign {
        if table.has(key) {
            table.report(
                key,
                format!("is not a key of {name}, which this `{what}` is"),
            );
        }
    }
    let (key, names): (_, Vec<&str>) = match technology {
        BrokerTechnology::Kafka => (
            "kafka",
            connections.kafka.keys().map(String::as_str).collect(),
        ),
        BrokerTechnology::Rabbitmq => (
            "rabbitmq",
            connections.rabbitmq.keys().map(String::as_str).collect(),
        ),
    };
    let connection = table.value(key).and_then(|value| value.as_str());
    if let Some(connection) = connection.filter(|connection| !names.contains(connection)) {
        let hint = match nearest(connection, names.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None if names.is_empty() => format!("there is no `[{key}.NAME]` at all"),
            None => format!("known: {}", names.join(", ")),
        };
        table.report(key, format!("unknown connection {connection:?}; {hint}"));
    }
    Some(technology)
}

/// Reads `allow_targets`: targets on the connection of `to`.
pub(super) fn allowed(section: &SectionReader<'_>, to: &Target) -> Vec<Arc<Target>> {
    let mut targets = Vec::new();
    for text in section.texts("allow_targets").unwrap_or_default() {
        match allowed_target(&text, to) {
            Ok(target) => targets.push(Arc::new(target)),
            Err(message) => section.report("allow_targets", message),
        }
    }
    targets
}

/// Reads `dead_letter_to`: a target on the connection of `to`.
pub(super) fn dead_letter_to(section: &SectionReader<'_>, to: &Target) -> Option<Arc<Target>> {
    section.value("dead_letter_to")?;
    section
        .parsed("dead_letter_to", |text| allowed_target(text, to))
        .map(Arc::new)
}

fn allowed_target(text: &str, to: &Target) -> Result<Target, String> {
    match to {
        Target::Kafka { connection, .. } => Ok(Target::Kafka {
            connection: connection.clone(),
            topic: topic(text)?,
        }),
        Target::Rabbitmq { connection, .. } => {
            let Some((exchange, key)) = split_exchange(text) else {
                return Err(format!(
                    "{text:?} is not `exchange/routing-key` (`/queue` = the default exchange)"
                ));
            };
            if exchange.is_empty() && key.is_empty() {
                return Err(format!("{text:?} names neither an exchange nor a queue"));
            }
            if exchange.len() > 255 || key.len() > 255 {
                return Err(format!("{text:?} has a part of more than 255 bytes"));
            }
            let routing_key = RoutingKey::Fixed(key.to_owned());
            Ok(Target::Rabbitmq {
                connection: connection.clone(),
                exchange: exchange.to_owned(),
                routing_key,
            })
        }
    }
}

pub(super) fn group(table: &SectionReader<'_>) -> Option<String> {
    table.parsed("group", |text| short("a consumer group", text))
}

pub(super) fn prefetch(table: &SectionReader<'_>) -> Option<u16> {
    table
        .integer("prefetch", 1..=u64::from(u16::MAX))
        .map(|prefetch| prefetch as u16)
}

fn topic(text: &str) -> Result<String, String> {
    check_topic(text).map(|()| text.to_owned())
}

fn short(what: &str, text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err(format!("{what} needs a name")),
        1..=255 => Ok(text.to_owned()),
        _ => Err(format!("{what} has at most 255 bytes")),
    }
}
