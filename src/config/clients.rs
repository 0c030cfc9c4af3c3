//! Asks the client libraries of the brokers and of Redis whether they take a URL or a property. A configuration that
//! passes is then not refused at start. Nothing touches the network; no message quotes a secret.

use std::net::IpAddr;
use std::time::Duration;

use lapin::uri::AMQPUri;
use rdkafka::ClientConfig;
use rdkafka::client::{Client, DefaultClientContext};
use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaConfRes, RDKafkaType};
use redis::IntoConnectionInfo;
use ureq::http::Uri;

use super::url_options;
use super::values::quoted;
use crate::broker::kafka::{Connection, FetchSizes, OWNED_PROPERTIES};
use crate::domain::nearest;

/// The names of librdkafka's properties, one a line, of the version that is built in.
const LIBRDKAFKA_PROPERTIES: &str = include_str!("librdkafka_properties.txt");

/// Checks a URL of Redis: `redis://`, `rediss://` or `unix://`.
pub(super) fn redis_url(url: &str) -> Result<(), String> {
    if !["redis://", "rediss://", "unix://"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
    {
        return Err("must begin with redis://, rediss:// or unix://".to_owned());
    }
    url.into_connection_info().map(drop).map_err(|error| {
        format!(
            "is not a Redis URL: {}",
            error.detail().unwrap_or("it cannot be parsed")
        )
    })?;
    url_options::redis(url)
}

/// Checks a URL of RabbitMQ: `amqp://` or `amqps://`.
pub(super) fn amqp_url(url: &str) -> Result<(), String> {
    let Some(rest) = url
        .strip_prefix("amqp://")
        .or_else(|| url.strip_prefix("amqps://"))
    else {
        return Err("must begin with amqp:// or amqps://".to_owned());
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    if host.starts_with('[') {
        // lapin would silently connect to localhost.
        return Err(
            "has an IPv6 address, which the client library cannot read: take a host name"
                .to_owned(),
        );
    }
    if host.is_empty() || host.starts_with(':') {
        return Err("has no host".to_owned());
    }
    let parsed: AMQPUri = url.parse().map_err(|error: String| {
        let why = if error.contains(url) {
            "it cannot be parsed"
        } else {
            &error
        };
        format!("is not an AMQP URL: {why}")
    })?;
    if parsed.vhost.is_empty() {
        return Err(
            "has an empty vhost: write /%2f for the vhost \"/\", or leave out the last slash"
                .to_owned(),
        );
    }
    url_options::amqp(url)
}

/// Checks the address of a token endpoint: a secret goes there, and only over TLS unless it stays on this machine.
pub(super) fn token_url(text: &str) -> Result<(), String> {
    let parsed: Option<Uri> = text.parse().ok();
    let host = parsed.as_ref().and_then(Uri::host).unwrap_or_default();
    if host.is_empty() || text.contains(['@', '#', '?']) {
        let example = "https://login.example.com/oauth2/token";
        return Err(format!(
            "must be a URL without a user, a password or a query, such as {example:?}"
        ));
    }
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is_local = address.eq_ignore_ascii_case("localhost")
        || address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    match parsed.as_ref().and_then(Uri::scheme_str) {
        Some("https") => Ok(()),
        Some("http") if is_local => Ok(()),
        Some("http") => Err(
            "must begin with https://: anybody on the way could read the secret (http:// is for this machine alone)"
                .to_owned(),
        ),
        _ => Err("must begin with https://".to_owned()),
    }
}

/// Host, port and vhost of a URL. Two connections with the same three reach the same queues.
pub(super) fn amqp_place(url: &str) -> Option<(String, u16, String)> {
    let parsed: AMQPUri = url.parse().ok()?;
    Some((
        parsed.authority.host.to_ascii_lowercase(),
        parsed.authority.port,
        parsed.vhost,
    ))
}

/// Checks that librdkafka knows a property and takes its value. The message quotes the value of no secret.
pub(super) fn kafka_property(name: &str, value: &str, secret: bool) -> Result<(), String> {
    let mut config = ClientConfig::new();
    config.set(name, value);
    match config.create_native_config() {
        Ok(_) => Ok(()),
        Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)) => {
            let free = LIBRDKAFKA_PROPERTIES
                .lines()
                .filter(|name| !OWNED_PROPERTIES.contains(name));
            let hint = nearest(name, free)
                .map(|near| format!("; did you mean {}?", quoted(near)))
                .unwrap_or_default();
            Err(format!("librdkafka has no such property{hint}"))
        }
        Err(KafkaError::ClientConfig(_, why, ..)) if !secret => {
            Err(format!("librdkafka says: {why}"))
        }
        Err(_) => Err("librdkafka does not take this value".to_owned()),
    }
}

/// Checks that librdkafka makes clients with the properties of a connection together: some it compares only then. These
/// clients know no broker.
pub(super) fn kafka_clients(connection: &Connection) -> Result<(), String> {
    use RDKafkaType::{RD_KAFKA_CONSUMER, RD_KAFKA_PRODUCER};
    let consumer = |sizes| connection.consumer_config("check", 0, sizes);
    for (kind, config) in [
        (RD_KAFKA_CONSUMER, consumer(FetchSizes::Usual)),
        (RD_KAFKA_CONSUMER, consumer(FetchSizes::Careful)),
        (
            RD_KAFKA_PRODUCER,
            connection.producer_config(Duration::ZERO),
        ),
    ] {
        let mut config = config.map_err(|error| error.to_string())?;
        config
            .remove("bootstrap.servers")
            .remove("group.id")
            // Certificates are read when the clients are made that are to use them.
            .set("security.protocol", "plaintext")
            // Those would be servers of this process.
            .set("test.mock.num.brokers", "0");
        let native = config.create_native_config();
        native
            .and_then(|native| Client::new(&config, native, kind, DefaultClientContext))
            .map(drop)
            .map_err(|error| match error {
                KafkaError::ClientCreation(why) => format!("librdkafka says: {why}"),
                _ => "librdkafka does not take these values together".to_owned(),
            })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::kafka::Properties;

    #[test]
    fn urls_are_judged_as_the_clients_do() {
        for url in [
            "redis://127.0.0.1:6379",
            "redis://user:p%40ss@redis:6379/3",
            "rediss://redis",
            "unix:///run/redis.sock?db=1",
        ] {
            assert_eq!(redis_url(url), Ok(()), "{url}");
        }
        for url in [
            "",
            "127.0.0.1:6379",
            "http://x",
            "redis://",
            "redis://h:99999",
            "redis://h/x",
            "unix://",
        ] {
            assert!(redis_url(url).is_err(), "{url}");
        }
        for url in [
            "amqp://127.0.0.1",
            "amqps://u:p%2f@rabbit:5671/%2f?heartbeat=10",
            "amqp://rabbit/orders",
        ] {
            assert_eq!(amqp_url(url), Ok(()), "{url}");
        }
        for url in [
            "",
            "rabbit:5672",
            "http://x",
            "amqp://",
            "amqp://:5672",
            "amqp://u:p@[::1]:5672",
            "amqp://h:99999/%2f",
            "amqp://h/",
            "amqp://h/%2f?heartbeat=often",
        ] {
            assert!(amqp_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_secret_goes_to_another_machine_only_over_tls() {
        for url in [
            "https://login.example.com/oauth2/token",
            "https://10.0.0.1:8443/token",
            "http://127.0.0.1:8080/token",
            "http://[::1]:8080/token",
            "http://localhost/token",
        ] {
            assert_eq!(token_url(url), Ok(()), "{url}");
        }
        for url in [
            "",
            "login.example.com",
            "http://login.example.com/token",
            "http://127.0.0.1.example.com/token",
            "http://localhost.example.com/token",
            "http://u@localhost/token",
            "https://u:hunter2@login.example.com/token",
            "https://login.example.com/token?secret=hunter2",
            "ftp://localhost/token",
            "https://",
        ] {
            let why = token_url(url).expect_err(url);
            assert!(!why.contains("hunter2"), "{why}");
        }
    }

    #[test]
    fn no_refusal_quotes_a_password() {
        for url in [
            "redis://u:hunter2@h:99999",
            "redis://u:hunter2@h/x",
            "redis://u:hunter2@",
            "hunter2",
        ] {
            assert!(
                !format!("{:?}", redis_url(url)).contains("hunter2"),
                "{url}"
            );
        }
        for url in [
            "amqp://u:hunter2@h:99999",
            "amqp://u:hunter2@h/",
            "amqp://u:hunter2@",
            "hunter2",
        ] {
            assert!(!format!("{:?}", amqp_url(url)).contains("hunter2"), "{url}");
        }
        assert!(
            !format!("{:?}", kafka_property("ssl.key.pem", "hunter2\0", true)).contains("hunter2")
        );
    }

    #[test]
    fn librdkafka_judges_names_and_values() {
        assert_eq!(
            kafka_property("security.protocol", "SASL_SSL", false),
            Ok(())
        );
        assert!(kafka_property("security.protocol", "hope", false).is_err());
        let unknown = kafka_property("hope", "hunter2", true);
        assert_eq!(
            unknown,
            Err("librdkafka has no such property".to_owned()),
            "nothing is near"
        );
    }

    #[test]
    fn librdkafka_judges_what_is_set_together() {
        let judged = |properties: &[(&str, &str)]| {
            kafka_clients(&Connection {
                properties: Properties::inline(properties.iter().copied()),
                ..Connection::plain("main", "127.0.0.1:1")
            })
        };
        for right in [
            &[("receive.message.max.bytes", "4000000")][..],
            &[("fetch.max.bytes", "24576")],
            &[("reconnect.backoff.ms", "1000")],
            // The file is not there, and is not read.
            &[
                ("security.protocol", "SSL"),
                ("ssl.ca.location", "/nowhere/ca.pem"),
            ],
        ] {
            assert_eq!(judged(right), Ok(()), "{right:?}");
        }
        for (wrong, why) in [
            (
                [
                    ("fetch.max.bytes", "5000000"),
                    ("receive.message.max.bytes", "4000000"),
                ],
                "`fetch.max.bytes` + 512",
            ),
            (
                [
                    ("reconnect.backoff.ms", "1000"),
                    ("reconnect.backoff.max.ms", "500"),
                ],
                "must be >= `reconnect.backoff.ms`",
            ),
            (
                [("queuing.strategy", "lifo"), ("client.rack", "a")],
                "`queuing.strategy` must be set to `fifo`",
            ),
        ] {
            let told = judged(&wrong).expect_err(why);
            assert!(
                told.starts_with("librdkafka says: ") && told.contains(why),
                "{told}"
            );
        }
    }

    /// Each property is known, and is hinted at where a letter of it is missing.
    #[test]
    fn an_unknown_property_is_told_with_the_one_that_was_meant() {
        const UNKNOWN: &str = "librdkafka has no such property";
        let names: Vec<&str> = LIBRDKAFKA_PROPERTIES.lines().collect();
        for name in &names {
            assert_ne!(kafka_property(name, "", true), Err(UNKNOWN.to_owned()));
            let mut slip = (*name).to_owned();
            slip.remove(name.len() / 2);
            let told = kafka_property(&slip, "hunter2", true).expect_err(&slip);
            assert!(
                told.starts_with(UNKNOWN) && !told.contains("hunter2"),
                "{told}"
            );
            let hint = told.split_once("did you mean ");
            let hint = hint.map(|(_, hint)| hint.trim_matches(['"', '?']));
            let is_right = hint == Some(name) || OWNED_PROPERTIES.contains(name);
            assert!(is_right, "{slip}: {told}");
            assert!(
                !hint.is_some_and(|hint| OWNED_PROPERTIES.contains(&hint)),
                "{told}"
            );
        }
        let told = kafka_property("sasl.passwrd", "hunter2", true).unwrap_err();
        assert!(
            told.ends_with("; did you mean \"sasl.password\"?"),
            "{told}"
        );
    }
}
