//! Exchanges, bindings and queues of a virtual host, as RabbitMQ's management API tells them. AMQP itself has no word for
//! them.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lapin::uri::AMQPUri;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use ureq::Agent;

use super::Connection;
use crate::domain::{Secret, percent_encoded};
use crate::tls::ClientFiles;

/// Largest answer that is read, bytes.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Whether a message reaches a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// It does not.
    Never,
    /// It depends on its routing key or its headers.
    Maybe,
    /// It does, whatever it is.
    Surely,
}

/// The exchanges and bindings of one virtual host.
#[derive(Debug, Default)]
pub struct Bindings {
    exchanges: BTreeMap<String, Exchange>,
    bindings: Vec<Binding>,
}

#[derive(Debug, Deserialize)]
struct Exchange {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    arguments: ExchangeArguments,
}

#[derive(Debug, Default, Deserialize)]
#[serde(from = "serde_json::Value")]
struct ExchangeArguments {
    /// Gets the messages that this exchange cannot route.
    alternate: Option<String>,
}

impl From<serde_json::Value> for ExchangeArguments {
    // RabbitMQ writes no arguments as an empty list.
    fn from(value: serde_json::Value) -> Self {
        Self {
            alternate: value["alternate-exchange"].as_str().map(str::to_owned),
        }
    }
}

#[derive(Debug, Deserialize)]
struct Binding {
    source: String,
    destination: String,
    destination_type: DestinationType,
    routing_key: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DestinationType {
    Queue,
    Exchange,
}

impl Bindings {
    /// Reads them from the management API of a connection, as the connection's own user. The error is a sentence for
    /// a person.
    pub async fn read(
        connection: &Connection,
        management: &str,
        deadline: Duration,
    ) -> Result<Self, String> {
        let (client, vhost) = client_of(connection, management, deadline)?;
        let reading = tokio::task::spawn_blocking(move || {
            let exchanges: Vec<Exchange> = client.list("exchanges", &vhost)?;
            let bindings = client.list("bindings", &vhost)?;
            let exchanges = exchanges
                .into_iter()
                .map(|exchange| (exchange.name.clone(), exchange));
            Ok(Self {
                exchanges: exchanges.collect(),
                bindings,
            })
        });
        reading.await.map_err(|error| error.to_string())?
    }

    /// Whether a message with this routing key reaches a queue by an exchange. Without a key it may have any.
    pub fn reach(&self, exchange: &str, key: Option<&str>, queue: &str) -> Reach {
        let mut reaches: BTreeMap<&str, Reach> = BTreeMap::new();
        let of = |reaches: &BTreeMap<&str, Reach>, exchange: &str| {
            reaches.get(exchange).copied().unwrap_or(Reach::Never)
        };
        // Exchanges may be bound in circles: each round goes one step further back from the queue.
        loop {
            let mut farther = Vec::new();
            for binding in &self.bindings {
                let bound = match binding.destination_type {
                    DestinationType::Queue if binding.destination == queue => Reach::Surely,
                    DestinationType::Queue => Reach::Never,
                    DestinationType::Exchange => of(&reaches, &binding.destination),
                };
                let known = self.exchanges.get(&binding.source);
                let kind = known.map_or("", |exchange| exchange.kind.as_str());
                let by_binding = bound.min(routed(kind, &binding.routing_key, key));
                farther.push((binding.source.as_str(), by_binding));
            }
            for (name, known) in &self.exchanges {
                if let Some(alternate) = &known.arguments.alternate {
                    farther.push((name, of(&reaches, alternate).min(Reach::Maybe)));
                }
            }
            farther.retain(|(exchange, reach)| *reach > of(&reaches, exchange));
            if farther.is_empty() {
                return of(&reaches, exchange);
            }
            for (exchange, reach) in farther {
                let known = reaches.entry(exchange).or_insert(reach);
                *known = reach.max(*known);
            }
        }
    }
}

/// What the management API of a connection says of a queue, as the connection's own user. The error is a sentence for a
/// person.
pub(super) async fn queue_description(
    connection: &Connection,
    management: &str,
    queue: &str,
    deadline: Duration,
) -> Result<serde_json::Value, String> {
    let (client, vhost) = client_of(connection, management, deadline)?;
    let place = format!(
        "queues/{}/{}",
        percent_encoded(&vhost),
        percent_encoded(queue)
    );
    let reading = tokio::task::spawn_blocking(move || client.get(&place));
    reading.await.map_err(|error| error.to_string())?
}

/// The management API of a connection as the connection's own user, and the connection's virtual host.
fn client_of(
    connection: &Connection,
    management: &str,
    deadline: Duration,
) -> Result<(ManagementClient, String), String> {
    let broker: AMQPUri = connection.url.current()?.expose().parse()?;
    let user = broker.authority.userinfo;
    let password = Secret::new(user.password);
    let login = (user.username.as_str(), &password);
    let client = ManagementClient::new(management, login, &connection.tls, deadline)?;
    Ok((client, broker.vhost))
}

/// Whether an exchange of this kind routes a message with this key along a binding.
fn routed(kind: &str, binding: &str, key: Option<&str>) -> Reach {
    let judge = |matches: bool| if matches { Reach::Surely } else { Reach::Never };
    match (kind, key) {
        ("fanout", _) => Reach::Surely,
        ("direct", Some(key)) => judge(binding == key),
        ("topic", Some(key)) => {
            let pattern: Vec<&str> = binding.split('.').collect();
            judge(topic_matches(&pattern, &key.split('.').collect::<Vec<_>>()))
        }
        ("topic", None) if binding == "#" => Reach::Surely,
        _ => Reach::Maybe,
    }
}

/// Reports whether a topic pattern matches the words of a key: `*` is one word, `#` any number of them.
fn topic_matches(pattern: &[&str], key: &[&str]) -> bool {
    match (pattern, key) {
        ([], []) => true,
        (["#", rest @ ..], _) => {
            topic_matches(rest, key)
                || key
                    .split_first()
                    .is_some_and(|(_, behind)| topic_matches(pattern, behind))
        }
        ([word, rest @ ..], [first, behind @ ..]) => {
            (*word == "*" || word == first) && topic_matches(rest, behind)
        }
        _ => false,
    }
}

/// The management API of one broker, as one user. Its calls block.
pub(super) struct ManagementClient {
    agent: Agent,
    base: String,
    authorization: String,
}

impl ManagementClient {
    /// `files` say whom to trust; without any, the system's authorities.
    pub(super) fn new(
        management: &str,
        (user, password): (&str, &Secret),
        files: &ClientFiles,
        deadline: Duration,
    ) -> Result<Self, String> {
        let mut config = Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_global(Some(deadline));
        if management.starts_with("https:") {
            config = config.tls_config(files.http_config()?);
        }
        let login = STANDARD.encode(format!("{user}:{}", password.expose()));
        Ok(Self {
            agent: config.build().new_agent(),
            base: management.trim_end_matches('/').to_owned(),
            authorization: format!("Basic {login}"),
        })
    }

    /// A list of a virtual host: `exchanges`, `queues` or `bindings`.
    pub(super) fn list<T: DeserializeOwned>(
        &self,
        what: &str,
        vhost: &str,
    ) -> Result<Vec<T>, String> {
        self.get(&format!("{what}/{}", percent_encoded(vhost)))
    }

    /// One answer of the API. `place` is the path behind `/api/`.
    fn get<T: DeserializeOwned>(&self, place: &str) -> Result<T, String> {
        let url = format!("{}/api/{place}", self.base);
        let answered = self
            .agent
            .get(&url)
            .header("authorization", &self.authorization)
            .call();
        let mut answer = answered.map_err(|error| format!("{url} cannot be read: {error}"))?;
        match answer.status().as_u16() {
            200 => {}
            status @ (401 | 403) => {
                return Err(format!(
                    "{url} refuses the connection's user ({status}); the tag `monitoring` lets him read it"
                ));
            }
            status => return Err(format!("{url} answers {status}")),
        }
        let text = answer
            .body_mut()
            .with_config()
            .limit(MAX_ANSWER_BYTES)
            .read_to_string();
        let text = text.map_err(|error| format!("{url} cannot be read: {error}"))?;
        serde_json::from_str(&text)
            .map_err(|error| format!("{url} does not answer as RabbitMQ does: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bindings(exchanges: &str, bindings: &[(&str, &str, &str, &str)]) -> Bindings {
        let exchanges: Vec<Exchange> = serde_json::from_str(exchanges).expect("exchanges");
        let binding =
            |&(source, kind, destination, routing_key): &(&str, &str, &str, &str)| Binding {
                source: source.to_owned(),
                destination: destination.to_owned(),
                destination_type: if kind == "queue" {
                    DestinationType::Queue
                } else {
                    DestinationType::Exchange
                },
                routing_key: routing_key.to_owned(),
            };
        Bindings {
            exchanges: exchanges
                .into_iter()
                .map(|exchange| (exchange.name.clone(), exchange))
                .collect(),
            bindings: bindings.iter().map(binding).collect(),
        }
    }

    #[test]
    fn a_message_follows_bindings_by_its_key_and_through_exchanges() {
        let all = bindings(
            r#"[{"name":"d","type":"direct","arguments":{}}, {"name":"t","type":"topic","arguments":[]},
                {"name":"f","type":"fanout"}, {"name":"h","type":"headers"},
                {"name":"twice","type":"topic"}, {"name":"once","type":"topic"},
                {"name":"a","type":"direct","arguments":{"alternate-exchange":"f"}}]"#,
            &[
                ("d", "queue", "in", "key"),
                ("d", "queue", "other", "else"),
                ("t", "exchange", "d", "mail.#"),
                ("f", "exchange", "t", ""),
                ("f", "exchange", "f", ""),
                ("f", "queue", "in", ""),
                ("h", "queue", "in", ""),
                ("twice", "exchange", "d", "news.#"),
                ("twice", "exchange", "d", "#.key"),
                ("twice", "exchange", "once", "key"),
                ("once", "exchange", "d", "#"),
                ("once", "exchange", "twice", "#"),
            ],
        );
        for (exchange, key, expected) in [
            ("d", Some("key"), Reach::Surely),
            ("d", Some("else"), Reach::Never),
            ("d", None, Reach::Maybe),
            ("t", Some("key"), Reach::Never),
            ("t", Some("mail.key"), Reach::Never),
            ("t", None, Reach::Maybe),
            ("f", Some("anything"), Reach::Surely),
            ("f", None, Reach::Surely),
            ("h", Some("key"), Reach::Maybe),
            ("a", Some("key"), Reach::Maybe),
            // By the second of two bindings, and in a circle.
            ("twice", Some("key"), Reach::Surely),
            ("twice", Some("news"), Reach::Never),
            ("twice", None, Reach::Maybe),
            ("once", Some("key"), Reach::Surely),
            ("missing", Some("key"), Reach::Never),
        ] {
            assert_eq!(
                all.reach(exchange, key, "in"),
                expected,
                "{exchange} {key:?}"
            );
        }
    }

    #[test]
    fn topics_match_word_by_word() {
        let matches = |pattern: &str, key: &str| {
            topic_matches(
                &pattern.split('.').collect::<Vec<_>>(),
                &key.split('.').collect::<Vec<_>>(),
            )
        };
        for (pattern, key, expected) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.*", "a.b.c", false),
            ("a.#", "a", true),
            ("a.#", "a.b.c", true),
            ("#.c", "a.b.c", true),
            ("#", "", true),
            ("*", "a.b", false),
        ] {
            assert_eq!(matches(pattern, key), expected, "{pattern} {key}");
        }
    }
}
