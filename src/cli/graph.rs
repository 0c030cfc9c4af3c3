//! `postdate graph`

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, ValueEnum};

use super::output::{self, SafeText};
use super::{ConfigArgs, refuse};
use crate::domain::unsafe_text::escaped;
use crate::domain::{Endpoint, Route, RoutingKey, Target, Topics};

/// Show the routes as a picture: sources, targets, and where dead letters go
///
/// It reads the configuration and connects to nothing.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  postdate graph\n  postdate graph --format dot | dot -Tsvg > routes.svg\n\n\
    Exit codes: 0 done, 64 the configuration is wrong."
)]
pub(super) struct GraphArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The form of the picture
    #[arg(long, value_enum, default_value_t = GraphFormat::Text)]
    format: GraphFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum GraphFormat {
    /// A tree of text
    Text,
    /// The language of Graphviz
    Dot,
}

pub(super) fn run(args: GraphArgs) -> ExitCode {
    let config = match args.config.load().and_then(|loaded| loaded.check()) {
        Ok(config) => config,
        Err(problems) => return refuse(&problems),
    };
    let picture = match args.format {
        GraphFormat::Text => text(&config.routes),
        GraphFormat::Dot => dot(&config.routes),
    };
    output::out(SafeText::lines(picture.trim_end()));
    ExitCode::SUCCESS
}

/// Role of a target for its route.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TargetRole {
    Own,
    Allowed,
    DeadLetters,
}

impl TargetRole {
    /// The role in words; the route's own target needs none.
    fn note(self) -> &'static str {
        match self {
            Self::Own => "",
            Self::Allowed => "by x-delay-target",
            Self::DeadLetters => "dead letters",
        }
    }

    fn dot_style(self) -> &'static str {
        match self {
            Self::Own => "solid",
            Self::Allowed => "dashed",
            Self::DeadLetters => "dotted",
        }
    }
}

/// The targets of a route with their roles, its own first.
fn targets(route: &Route) -> impl Iterator<Item = (TargetRole, &Target)> {
    let own = std::iter::once((TargetRole::Own, &*route.to));
    let allowed = route
        .allow_targets
        .iter()
        .map(|target| (TargetRole::Allowed, &**target));
    let dead_letters = route
        .dead_letter_to
        .iter()
        .map(|target| (TargetRole::DeadLetters, &**target));
    own.chain(allowed).chain(dead_letters)
}

/// A place at a broker, in two lines: the connection, and what is there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct BrokerPlace {
    connection: String,
    name: String,
}

impl BrokerPlace {
    fn new(technology: &str, connection: &str, name: &str) -> Self {
        Self {
            connection: format!("{technology} {connection}"),
            name: escaped(name),
        }
    }

    fn of_source(source: &Endpoint) -> Self {
        match source {
            Endpoint::Kafka {
                connection, topics, ..
            } => {
                let kind = match topics {
                    Topics::Named(named) if named.len() == 1 => "topic",
                    Topics::Named(_) => "topics",
                    Topics::Pattern(_) => "topics matching",
                };
                Self::new("kafka", connection, &format!("{kind} {topics}"))
            }
            Endpoint::Rabbitmq {
                connection, queue, ..
            } => Self::new("rabbitmq", connection, &format!("queue {queue}")),
        }
    }

    fn of_target(target: &Target) -> Self {
        let Target::Rabbitmq {
            connection,
            exchange,
            routing_key,
        } = target
        else {
            return Self::new(
                "kafka",
                target.connection(),
                &format!("topic {}", target.name()),
            );
        };
        let name = match (exchange.as_str(), routing_key) {
            ("", RoutingKey::Fixed(queue)) => format!("queue {queue}"),
            ("", RoutingKey::Preserve) => "the queue that the routing key names".to_owned(),
            ("", RoutingKey::Key) => "the queue that the key names".to_owned(),
            (exchange, RoutingKey::Fixed(key)) => {
                format!("exchange {exchange}, routing key {key:?}")
            }
            (exchange, RoutingKey::Preserve) => {
                format!("exchange {exchange}, routing key as it came")
            }
            (exchange, RoutingKey::Key) => format!("exchange {exchange}, routing key = key"),
        };
        Self::new("rabbitmq", connection, &name)
    }
}

/// The routes as trees: each source, the routes that read it, and their targets.
fn text(routes: &[Arc<Route>]) -> String {
    let mut by_source: BTreeMap<BrokerPlace, Vec<&Route>> = BTreeMap::new();
    for route in routes {
        by_source
            .entry(BrokerPlace::of_source(&route.from))
            .or_default()
            .push(route);
    }
    let trees = by_source
        .iter()
        .map(|(source, routes)| tree(source, routes));
    trees.collect::<Vec<_>>().join("\n\n")
}

fn tree(source: &BrokerPlace, routes: &[&Route]) -> String {
    let mut lines = vec![format!("{}: {}", source.connection, source.name)];
    for (at, route) in routes.iter().enumerate() {
        let is_last = at + 1 == routes.len();
        let group = match &route.from {
            Endpoint::Kafka { group, .. } => format!(" (group {})", escaped(group)),
            Endpoint::Rabbitmq { .. } => String::new(),
        };
        lines.push(format!(
            "{} {}{group}",
            if is_last { "└─" } else { "├─" },
            route.name
        ));
        let indent = if is_last { "  " } else { "│ " };
        let targets: Vec<_> = targets(route).collect();
        for (at, (role, target)) in targets.iter().enumerate() {
            let branch = if at + 1 == targets.len() {
                "└─>"
            } else {
                "├─>"
            };
            let place = BrokerPlace::of_target(target);
            let note = if *role == TargetRole::Own {
                String::new()
            } else {
                format!(" ({})", role.note())
            };
            lines.push(format!(
                "{indent} {branch} {}: {}{note}",
                place.connection, place.name
            ));
        }
    }
    lines.join("\n")
}

/// The routes as a graph of Graphviz, from left to right. Routes that share a source or a target share its node.
fn dot(routes: &[Arc<Route>]) -> String {
    let mut out = "digraph postdate {\n  rankdir=LR;\n  node [shape=box];\n".to_owned();
    let mut line = |text: String| {
        // Writing to a String cannot fail.
        writeln!(out, "  {text};").unwrap_or_default();
    };
    for route in routes {
        let node = dot_text(&format!("route {}", route.name));
        line(format!(
            "{node} [shape=ellipse, label={}]",
            dot_text(route.name.as_str())
        ));
        let group = match &route.from {
            Endpoint::Kafka { group, .. } => {
                format!(" [label={}]", dot_text(&format!("group {group}")))
            }
            Endpoint::Rabbitmq { .. } => String::new(),
        };
        line(format!(
            "{} -> {node}{group}",
            dot_place(&BrokerPlace::of_source(&route.from))
        ));
        for (role, target) in targets(route) {
            let place = dot_place(&BrokerPlace::of_target(target));
            let note = dot_text(role.note());
            line(format!(
                "{node} -> {place} [style={}, label={note}]",
                role.dot_style()
            ));
        }
    }
    out.push_str("}\n");
    out
}

fn dot_place(place: &BrokerPlace) -> String {
    dot_text(&format!("{}: {}", place.connection, place.name))
}

/// A quoted text of the language of Graphviz.
fn dot_text(text: &str) -> String {
    format!(
        "\"{}\"",
        escaped(text).replace('\\', "\\\\").replace('"', "\\\"")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, ConfigSources};

    const ROUTES: &str = r#"
        [kafka.main]
        brokers = "127.0.0.1:9092"
        [rabbitmq.mq]
        url = "amqp://127.0.0.1:5672/%2f"
        [routes.audit]
        from = { kafka = "main", topic = "orders.delayed", group = "audit" }
        to = { rabbitmq = "mq", exchange = "", routing_key = "say \"a\\b\"" }
        [routes.mail]
        from = { rabbitmq = "mq", queue = "mail.delayed" }
        to = { rabbitmq = "mq", exchange = "mail", routing_key = "preserve" }
        [routes.orders]
        from = { kafka = "main", topic = "orders.delayed" }
        to = { kafka = "main", topic = "orders" }
        allow_targets = ["orders.retry"]
        dead_letter_to = "orders.dead"
    "#;

    fn routes() -> Vec<Arc<Route>> {
        let file = tempfile::Builder::new()
            .suffix(".toml")
            .tempfile()
            .expect("a file");
        std::fs::write(file.path(), ROUTES).expect("written");
        let sources = ConfigSources {
            file: Some(file.path().to_owned()),
            ..ConfigSources::default()
        };
        let loaded = config::load(sources).expect("read");
        loaded
            .check()
            .unwrap_or_else(|problems| panic!("{problems}"))
            .routes
    }

    #[test]
    fn the_text_is_a_tree_for_each_source() {
        let expected = [
            "kafka main: topic orders.delayed",
            "├─ audit (group audit)",
            "│  └─> rabbitmq mq: queue say \"a\\b\"",
            "└─ orders (group postdate)",
            "   ├─> kafka main: topic orders",
            "   ├─> kafka main: topic orders.retry (by x-delay-target)",
            "   └─> kafka main: topic orders.dead (dead letters)",
            "",
            "rabbitmq mq: queue mail.delayed",
            "└─ mail",
            "   └─> rabbitmq mq: exchange mail, routing key as it came",
        ];
        assert_eq!(text(&routes()).lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_graph_shares_nodes_and_quotes_names() {
        let graph = dot(&routes());
        for expected in [
            r#""route orders" [shape=ellipse, label="orders"];"#,
            r#""kafka main: topic orders.delayed" -> "route orders" [label="group postdate"];"#,
            r#""kafka main: topic orders.delayed" -> "route audit" [label="group audit"];"#,
            r#""route orders" -> "kafka main: topic orders.dead" [style=dotted, label="dead letters"];"#,
            r#""route audit" -> "rabbitmq mq: queue say \"a\\b\"" [style=solid, label=""];"#,
        ] {
            assert!(graph.contains(expected), "{expected} in\n{graph}");
        }
        assert!(
            graph.starts_with("digraph postdate {\n") && graph.ends_with("}\n"),
            "{graph}"
        );
    }
}
