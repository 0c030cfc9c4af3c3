//! Exchanges, queues and bindings of a virtual host in the form of RabbitMQ's definitions: as its management API tells
//! them, or as an exported file holds them.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::management::ManagementClient;
use crate::domain::Secret;
use crate::tls::ClientFiles;

/// Declarations of one virtual host.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Definitions {
    /// Its exchanges.
    #[serde(default)]
    pub exchanges: Vec<ExchangeDefinition>,
    /// Its queues.
    #[serde(default)]
    pub queues: Vec<QueueDefinition>,
    /// Its bindings.
    #[serde(default)]
    pub bindings: Vec<BindingDefinition>,
}

/// An exchange.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ExchangeDefinition {
    /// Its name.
    pub name: String,
    vhost: Option<String>,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its arguments.
    #[serde(default, deserialize_with = "arguments")]
    pub arguments: Map<String, Value>,
    /// Messages that wait in the delayed-message plugin, if the API tells.
    pub messages_delayed: Option<u64>,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct QueueDefinition {
    /// Its name.
    pub name: String,
    vhost: Option<String>,
}

/// A binding.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct BindingDefinition {
    /// The exchange that routes by it; empty for the default exchange.
    pub source: String,
    vhost: Option<String>,
    /// The queue or exchange that gets the messages.
    pub destination: String,
    /// `queue` or `exchange`.
    pub destination_type: String,
    /// The routing key.
    pub routing_key: String,
    /// Its arguments.
    #[serde(default, deserialize_with = "arguments")]
    pub arguments: Map<String, Value>,
    /// The management API's name for it. An export does not hold it.
    pub properties_key: Option<String>,
}

/// Reads arguments. RabbitMQ writes none as an empty list.
fn arguments<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Map<String, Value>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Object(arguments) => Ok(arguments),
        Value::Array(empty) if empty.is_empty() => Ok(Map::new()),
        other => Err(serde::de::Error::custom(format!(
            "arguments are an object, not {other}"
        ))),
    }
}

impl Definitions {
    /// Reads a definitions file: an export of a virtual host or of a whole broker.
    pub fn parse(text: &str, vhost: &str) -> Result<Self, String> {
        let all: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Ok(all.of(vhost))
    }

    /// Reads them from a management API, as this user. Blocks. The error is a sentence for a person.
    pub fn read(
        management: &str,
        user: &str,
        password: &Secret,
        vhost: &str,
        deadline: Duration,
    ) -> Result<Self, String> {
        let files = ClientFiles::default();
        let client = ManagementClient::new(management, (user, password), &files, deadline)?;
        Ok(Self {
            exchanges: client.list("exchanges", vhost)?,
            queues: client.list("queues", vhost)?,
            bindings: client.list("bindings", vhost)?,
        })
    }

    /// The declarations of one virtual host. An export of one virtual host does not name it.
    fn of(mut self, vhost: &str) -> Self {
        let is_in = |own: &Option<String>| own.as_deref().is_none_or(|own| own == vhost);
        self.exchanges.retain(|exchange| is_in(&exchange.vhost));
        self.queues.retain(|queue| is_in(&queue.vhost));
        self.bindings.retain(|binding| is_in(&binding.vhost));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_virtual_host_is_read_from_either_kind_of_export() {
        let text = r#"{ "rabbit_version": "3.10.8", "users": [], "exchanges": [
            { "name": "a", "vhost": "/", "type": "topic", "durable": true, "arguments": [] },
            { "name": "b", "vhost": "other", "type": "fanout", "arguments": {} },
            { "name": "c", "type": "x-delayed-message", "arguments": { "x-delayed-type": "topic" } } ] }"#;
        let read = Definitions::parse(text, "/").expect("definitions");
        let names: Vec<&str> = read
            .exchanges
            .iter()
            .map(|exchange| exchange.name.as_str())
            .collect();
        assert_eq!(names, ["a", "c"]);
        assert_eq!(read.exchanges[1].arguments["x-delayed-type"], "topic");
        let wrong = r#"{"exchanges":[{"name":"a","type":"topic","arguments":"x"}]}"#;
        for (text, said) in [
            (wrong, "arguments are an object"),
            ("[", "EOF"),
            ("7", "invalid type"),
        ] {
            let error = Definitions::parse(text, "/").expect_err(text);
            assert!(error.contains(said), "{error}");
        }
    }
}
