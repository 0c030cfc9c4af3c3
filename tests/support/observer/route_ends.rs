//! Both ends of the routes of a configuration file, as far as they say which message goes which way.

use toml::{Table, Value};

/// One route.
#[derive(Clone, Debug)]
pub(super) struct RouteEnds {
    pub(super) name: String,
    /// The topic or queue that it reads.
    source: String,
    /// The part of the connection by which it reads: of Kafka its group's, whose client learns by itself of a broker that
    /// hangs, sooner or later than the one that publishes.
    pub(super) source_connection: String,
    /// The words of its target: a topic; an exchange and a routing key.
    targets: Vec<String>,
    /// Parts of `/readyz` that are on its way: names, or beginnings of names that end with a colon.
    parts: Vec<String>,
    /// Its messages leave in the order of their keys.
    pub(super) is_ordered: bool,
}

impl RouteEnds {
    /// All routes of a file; none if it is no TOML.
    pub(super) fn read(config: &str) -> Vec<Self> {
        let Ok(config) = config.parse::<Table>() else {
            return Vec::new();
        };
        let routes = config
            .get("routes")
            .and_then(Value::as_table)
            .cloned()
            .unwrap_or_default();
        routes
            .iter()
            .filter_map(|(name, route)| Self::of(name, route))
            .collect()
    }

    fn of(name: &str, route: &Value) -> Option<Self> {
        let from = route.get("from")?;
        let to = route.get("to")?;
        let text = |end: &Value, key: &str| end.get(key).and_then(Value::as_str).map(str::to_owned);
        let connection = |end: &Value| {
            let kinds = ["kafka", "rabbitmq"];
            kinds
                .iter()
                .find_map(|kind| Some((*kind, text(end, kind)?)))
        };
        let ((from_kind, from_name), (to_kind, to_name)) = (connection(from)?, connection(to)?);
        let mut parts: Vec<_> = ["redis", "store", "store:"].map(str::to_owned).into();
        parts.extend([
            format!("source:{name}"),
            format!("route:{name}"),
            format!("target:{to_name}:"),
        ]);
        for connection in [
            format!("{from_kind}:{from_name}"),
            format!("{to_kind}:{to_name}"),
        ] {
            parts.extend([format!("{connection}:"), connection]);
        }
        Some(Self {
            name: name.to_owned(),
            source: text(from, "topic").or_else(|| text(from, "queue"))?,
            source_connection: match from_kind {
                "kafka" => {
                    let group = text(from, "group").unwrap_or_else(|| "postdate".to_owned());
                    format!("{from_kind}:{from_name}:{group}")
                }
                _ => format!("{from_kind}:{from_name}"),
            },
            targets: ["topic", "exchange", "routing_key"]
                .iter()
                .filter_map(|key| text(to, key))
                .collect(),
            parts,
            is_ordered: text(route, "order").is_some_and(|order| order != "none"),
        })
    }

    /// Reports whether a message goes this way: from this source, or, where its source is not known, to this target.
    pub(super) fn carries(&self, source: Option<&str>, target: &str) -> bool {
        let target = target.split_once(':').map_or(target, |(_, name)| name);
        source.map_or_else(
            || self.targets.iter().any(|name| name == target),
            |name| name == self.source,
        )
    }

    /// Reports whether another relay's route reads the same source.
    pub(super) fn shares(&self, other: &Self) -> bool {
        self.name == other.name && self.source == other.source
    }

    /// Reports whether a part of `/readyz` is on the way of these messages.
    pub(super) fn passes(&self, part: &str) -> bool {
        self.parts
            .iter()
            .any(|own| part == own || (own.ends_with(':') && part.starts_with(own.as_str())))
    }
}
