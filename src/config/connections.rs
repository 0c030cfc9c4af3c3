//! Reads `[kafka.NAME]` and `[rabbitmq.NAME]`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use figment::value::Value;

use super::clients;
use super::key_kinds::KeyKind;
use super::secrets::{is_secret_property, not_both, secret};
use super::section::SectionReader;
use super::sources;
use super::tls::{Reported, client_files};
use super::values::{integer, kind, quoted, text};
use crate::broker::kafka::{
    AwsEnvironment, AwsIam, ClientCredentials, Properties, TokenIssuer, TokenSource,
};
use crate::broker::{kafka, rabbitmq};
use crate::credential::Credential;
use crate::domain::RouteName;
use crate::tls::ClientFiles;

/// Connections by name; `None` for one that is declared but has a problem. Routes may still refer to it.
#[derive(Default)]
pub(super) struct DeclaredConnections {
    pub(super) kafka: BTreeMap<String, Option<kafka::Connection>>,
    pub(super) rabbitmq: BTreeMap<String, Option<rabbitmq::Connection>>,
}

/// Names of routes and connections, for messages.
pub(super) const NAME_RULE: &str = "[a-z][a-z0-9_-]{0,63} without a double underscore";

/// Reads all connections.
pub(super) fn read(all: &SectionReader<'_>) -> DeclaredConnections {
    let mut connections = DeclaredConnections::default();
    all.each("kafka", None, |name, section| {
        let connection = kafka(name, section).filter(|_| named(section, "connection"));
        connections.kafka.insert(name.to_owned(), connection);
    });
    all.each("rabbitmq", None, |name, section| {
        let connection = rabbitmq(name, section).filter(|_| named(section, "connection"));
        connections.rabbitmq.insert(name.to_owned(), connection);
    });
    connections
}

/// The address of a management API, if there is one.
fn management(section: &SectionReader<'_>) -> Option<String> {
    if !section.has("management") {
        return None;
    }
    section.parsed("management", |text| {
        if !text.starts_with("http://") && !text.starts_with("https://") {
            return Err("must begin with http:// or https://".to_owned());
        }
        if text.contains('@') {
            return Err(
                "must be without user and password: those of the broker's URL are taken".to_owned(),
            );
        }
        Ok(text.to_owned())
    })
}

/// Reports whether the section has a valid name; if not, adds a problem.
pub(super) fn named(section: &SectionReader<'_>, what: &str) -> bool {
    let fits = RouteName::new(section.key()).is_some();
    if !fits {
        section.report_self(format!(
            "{:?} cannot be the name of a {what}: {NAME_RULE}",
            section.key()
        ));
    }
    fits
}

impl DeclaredConnections {
    /// The connections without a problem, by technology and name.
    pub(super) fn checked(
        self,
    ) -> (
        BTreeMap<String, kafka::Connection>,
        BTreeMap<String, rabbitmq::Connection>,
    ) {
        let kafka = self
            .kafka
            .into_iter()
            .filter_map(|(name, connection)| Some((name, connection?)))
            .collect();
        let rabbitmq = self
            .rabbitmq
            .into_iter()
            .filter_map(|(name, connection)| Some((name, connection?)))
            .collect();
        (kafka, rabbitmq)
    }
}

fn rabbitmq(name: &str, section: &SectionReader<'_>) -> Option<rabbitmq::Connection> {
    let urls = rabbitmq_urls(section);
    let tls = client_files(section);
    let management = management(section);
    let (url, further_urls) = urls?;
    let mut hosts = std::iter::once(&url).chain(&further_urls);
    let all_speak_tls = hosts.all(|url| url.configured().expose().starts_with("amqps://"));
    // Over `https://` its management API is asked without a certificate of ours.
    let asks_by_tls = management
        .as_deref()
        .is_some_and(|management| management.starts_with("https:"));
    let has_files = section.has("tls");
    if let Some(files) = &tls
        && has_files
        && !all_speak_tls
        && !(asks_by_tls && files.ca.is_some() && files.identity.is_none())
    {
        let urls = if section.has("urls") {
            "each of `urls`"
        } else {
            "`url`"
        };
        section.report(
            "tls",
            format!("names files, but TLS is spoken only if {urls} begins with amqps://, or `management` with https:// (`ca` alone)"),
        );
    }
    Some(rabbitmq::Connection {
        name: name.to_owned(),
        url,
        further_urls,
        management,
        tls: tls?,
    })
}

/// Reads the URL of a connection, or those of the hosts of its cluster.
fn rabbitmq_urls(section: &SectionReader<'_>) -> Option<(Credential, Vec<Credential>)> {
    const KEY: &str = "urls";
    if !section.has(KEY) {
        let url = secret(section, "url", "url_file", clients::amqp_url);
        return url.map(|url| (url, Vec::new()));
    }
    let texts = section.texts(KEY);
    for key in ["url", "url_file"] {
        if section.has(key) {
            section.report(key, "`urls` is set too; one of the two must go");
        }
    }
    let texts = texts?;
    let faults = faults_of_urls(&texts);
    for fault in &faults {
        section.report(KEY, fault);
    }
    if !faults.is_empty() {
        return None;
    }
    let mut urls = texts.into_iter().map(Credential::inline);
    Some((urls.next()?, urls.collect()))
}

/// What is wrong with the URLs of the hosts of one cluster, a sentence for each that is.
fn faults_of_urls(urls: &[String]) -> Vec<String> {
    if urls.is_empty() {
        return vec!["names no host".to_owned()];
    }
    let vhost = |url: &str| clients::amqp_place(url).map(|(_, _, vhost)| vhost);
    let mut faults = Vec::new();
    // The first that is a URL: the others are compared with it.
    let mut first = None;
    for (at, url) in (1..).zip(urls) {
        if let Err(why) = clients::amqp_url(url) {
            faults.push(format!("the URL number {at} {why}"));
            continue;
        }
        let (first_at, first) = *first.get_or_insert((at, url));
        if vhost(url) != vhost(first) {
            faults.push(format!(
                "the URL number {at} has another vhost than number {first_at}: they are hosts of one cluster"
            ));
        }
    }
    faults
}

fn kafka(name: &str, section: &SectionReader<'_>) -> Option<kafka::Connection> {
    let may_be_unverified = if section.has("unsafe_tls") {
        section.truth("unsafe_tls")
    } else {
        Some(false)
    };
    let oauth = oauth(name, section);
    let brokers = section.parsed("brokers", |text| brokers(text).map(|()| text.to_owned()));
    let properties = if section.has("properties_file") {
        section.value("properties");
        not_both(section, "properties", "properties_file")
            .and_then(|()| {
                section.parsed("properties_file", |path| {
                    Properties::from_file(Path::new(path))
                })
            })
            .map(|properties| (properties, "properties_file"))
    } else {
        from_table(section).map(|properties| (Properties::inline(properties), "properties"))
    };
    let (properties, given_by) = properties?;
    let is_sound = Cell::new(true);
    let report = |name: &str, message: &str| {
        is_sound.set(false);
        match given_by {
            "properties" => section.report_entry(given_by, name, message),
            _ => section.report(given_by, format!("{}: {message}", quoted(name))),
        }
    };
    for (name, value) in properties.configured() {
        let value = value.expose();
        let is_unverified =
            may_be_unverified == Some(false) && kafka::switches_verification_off(name, value);
        if let Err(message) = property(name, value) {
            report(name, &message);
        } else if is_unverified {
            report(name, kafka::UNVERIFIED);
        }
    }
    let has_oauth = section.has("oauth");
    if let Some((name, message)) = kafka::sasl_problem(properties.configured(), has_oauth) {
        report(name, message);
    }
    let connection = kafka::Connection {
        oauth: oauth.ok()?,
        name: name.to_owned(),
        brokers: brokers?,
        properties,
        unsafe_tls: may_be_unverified?,
    };
    let is_tuned = !connection.properties.configured().is_empty();
    if is_tuned
        && is_sound.get()
        && let Err(message) = clients::kafka_clients(&connection)
    {
        section.report(given_by, message);
    }
    Some(connection)
}

/// Reads where tokens come from: an OAuth 2 server, or AWS.
fn oauth(name: &str, section: &SectionReader<'_>) -> Result<Option<TokenSource>, Reported> {
    if !section.has("oauth") {
        return Ok(None);
    }
    let issuer = section.table("oauth", |table| {
        if table.has("aws_region") {
            aws_iam(table).map(TokenIssuer::AwsIam)
        } else {
            client_credentials(table).map(TokenIssuer::ClientCredentials)
        }
    });
    let source = issuer.map(|issuer| TokenSource::new(name, issuer));
    source.map(Some).ok_or(Reported)
}

fn client_credentials(table: &SectionReader<'_>) -> Option<ClientCredentials> {
    let token_url = table.parsed("token_url", |text| {
        clients::token_url(text).map(|()| text.to_owned())
    });
    let client_id = table.parsed("client_id", filled);
    let client_secret = table.parsed("client_secret_file", |path| {
        Credential::from_file(Path::new(path))
    });
    let scope = if table.has("scope") {
        table.parsed("scope", filled).map(Some)
    } else {
        Some(None)
    };
    let ca = if table.has("ca_file") {
        table.parsed("ca_file", |path| {
            let files = ClientFiles {
                ca: Some(PathBuf::from(path)),
                identity: None,
            };
            files.check().map(|()| files)
        })
    } else {
        Some(ClientFiles::default())
    };
    Some(ClientCredentials {
        token_url: token_url?,
        client_id: client_id?,
        client_secret: client_secret?,
        scope: scope?,
        tls: ca?,
    })
}

fn aws_iam(table: &SectionReader<'_>) -> Option<AwsIam> {
    let region = table.parsed("aws_region", |text| {
        if !is_region(text) {
            return Err(format!(
                "{text:?} is no region of AWS, such as \"eu-west-1\""
            ));
        }
        Ok(text.to_owned())
    });
    for key in [
        "token_url",
        "client_id",
        "client_secret_file",
        "scope",
        "ca_file",
    ] {
        if table.has(key) {
            table.report(key, "does not go with `aws_region`; one of the two must go");
        }
    }
    Some(AwsIam {
        region: region?,
        environment: AwsEnvironment::read(sources::variable),
    })
}

fn is_region(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn filled(text: &str) -> Result<String, String> {
    match text {
        "" => Err("is empty".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

fn property(name: &str, value: &str) -> Result<(), String> {
    if kafka::is_owned(name) {
        return Err("Postdate owns this property; leave it out".to_owned());
    }
    clients::kafka_property(name, value, is_secret_property(name))
}

fn from_table(section: &SectionReader<'_>) -> Option<BTreeMap<String, String>> {
    section.note("properties", KeyKind::Properties);
    let Some(value) = section.value("properties") else {
        return Some(BTreeMap::new());
    };
    let Value::Dict(_, dict) = value else {
        section.report(
            "properties",
            format!("is {}, not a section of librdkafka properties", kind(value)),
        );
        return None;
    };
    let mut properties = BTreeMap::new();
    for (name, value) in dict {
        let read = if is_secret_property(name) {
            // A number may become another text: `1e10` is 10000000000.
            text(value).map(str::to_owned)
        } else {
            scalar(value)
        };
        match read {
            Ok(text) => drop(properties.insert(name.clone(), text)),
            Err(message) => section.report_entry("properties", name, message),
        }
    }
    Some(properties)
}

/// The text of a property: librdkafka takes only texts, so a number or a truth value is written as one.
fn scalar(value: &Value) -> Result<String, String> {
    let text = match value {
        Value::String(_, text) => Some(text.clone()),
        Value::Bool(_, truth) => Some(truth.to_string()),
        Value::Num(_, number) => match integer(*number) {
            Some(whole) => Some(whole.to_string()),
            None => number.to_f64().map(|float| float.to_string()),
        },
        _ => None,
    };
    text.ok_or_else(|| format!("is {}, not a text", kind(value)))
}

fn brokers(text: &str) -> Result<(), String> {
    for broker in text.split(',').map(str::trim) {
        let (host, port) = split_port(broker);
        let fits =
            !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/@".contains(c));
        if !fits || port.is_some_and(|port| port.parse::<u16>().is_err()) {
            return Err(format!(
                "{broker:?} is not `host:port` (several are separated by commas)"
            ));
        }
    }
    Ok(())
}

/// Host and port of `host:port`. An IPv6 address has brackets around it.
fn split_port(broker: &str) -> (&str, Option<&str>) {
    match broker.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (broker, None),
    }
}

/// Tells which connections lead to one broker.
pub trait SameBroker {
    /// Reports whether two Kafka connections lead to one cluster.
    fn same_kafka(&self, one: &str, other: &str) -> bool;
    /// Reports whether two RabbitMQ connections lead to one virtual host.
    fn same_rabbitmq(&self, one: &str, other: &str) -> bool;
}

impl SameBroker for DeclaredConnections {
    // One broker in common is enough.
    fn same_kafka(&self, one: &str, other: &str) -> bool {
        let brokers = |name: &str| {
            let connection = self.kafka.get(name)?.as_ref()?;
            let brokers = connection.brokers.split(',').map(|broker| {
                let (host, port) = split_port(broker.trim());
                (host.to_ascii_lowercase(), port.unwrap_or("9092").to_owned())
            });
            Some(brokers.collect::<Vec<_>>())
        };
        one == other
            || brokers(one)
                .zip(brokers(other))
                .is_some_and(|(one, other)| one.iter().any(|b| other.contains(b)))
    }

    fn same_rabbitmq(&self, one: &str, other: &str) -> bool {
        // One host in common is enough.
        let places = |name: &str| {
            let connection = self.rabbitmq.get(name)?.as_ref()?;
            let urls = std::iter::once(&connection.url).chain(&connection.further_urls);
            let places = urls.map(|url| clients::amqp_place(url.configured().expose()));
            Some(places.flatten().collect::<Vec<_>>())
        };
        one == other
            || places(one)
                .zip(places(other))
                .is_some_and(|(one, other)| one.iter().any(|place| other.contains(place)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_are_hosts_with_ports() {
        for text in [
            "127.0.0.1:9092",
            "a:1,b:2",
            "a, b:9092",
            "[::1]:9092",
            "kafka",
        ] {
            assert_eq!(brokers(text), Ok(()), "{text}");
        }
        for text in [
            "",
            "a:1,",
            ":9092",
            "a:port",
            "a:99999",
            "a b:1",
            "http://a:1",
        ] {
            assert!(brokers(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_owned_property_is_refused_by_its_name_for_topics_too() {
        for owned in kafka::OWNED_PROPERTIES {
            for name in [(*owned).to_owned(), format!("topic.{owned}")] {
                let told = property(&name, "1").expect_err(&name);
                assert!(told.starts_with("Postdate owns this property"), "{told}");
            }
        }
        assert_eq!(property("topic.compression.codec", "zstd"), Ok(()));
    }

    #[test]
    fn of_several_urls_only_those_that_are_wrong_are_told() {
        let [a, b, other] = ["amqp://a/%2f", "amqp://b/%2f", "amqp://c/mail"].map(str::to_owned);
        let [no_scheme, no_vhost] = ["rabbit-0:5672", "amqp://d/"].map(str::to_owned);
        for (urls, expected) in [
            (vec![], &["names no host"][..]),
            (vec![a.clone(), b.clone()], &[]),
            (vec![no_scheme.clone(), b.clone()], &["number 1 must begin"]),
            (vec![no_vhost, a.clone(), b], &["number 1 has"]),
            (
                vec![a.clone(), other.clone(), a.clone()],
                &["number 2 has another vhost than number 1: "],
            ),
            (
                vec![no_scheme, a, other],
                &[
                    "number 1 must begin",
                    "number 3 has another vhost than number 2: ",
                ],
            ),
        ] {
            let faults = faults_of_urls(&urls);
            assert_eq!(faults.len(), expected.len(), "{urls:?}: {faults:?}");
            for (fault, expected) in faults.iter().zip(expected) {
                assert!(fault.contains(*expected), "{fault}");
            }
        }
    }

    #[test]
    fn clusters_are_recognised_under_two_names() {
        let mut connections = DeclaredConnections::default();
        for (name, brokers) in [("one", "a:9092,b:9092"), ("two", "B"), ("three", "c:9092")] {
            let connection = kafka::Connection::plain(name, brokers);
            connections.kafka.insert(name.into(), Some(connection));
        }
        assert!(connections.same_kafka("one", "two"));
        assert!(!connections.same_kafka("one", "three"));
        for (name, url) in [
            ("one", "amqp://u:p@h/%2f"),
            ("two", "amqp://other:x@H:5672"),
            ("three", "amqp://h/v"),
        ] {
            let url = Credential::inline(url);
            let connection = rabbitmq::Connection {
                name: name.into(),
                url,
                further_urls: vec![Credential::inline(format!("amqp://{name}-b/w"))],
                management: None,
                tls: crate::tls::ClientFiles::default(),
            };
            connections.rabbitmq.insert(name.into(), Some(connection));
        }
        assert!(connections.same_rabbitmq("one", "two"));
        assert!(!connections.same_rabbitmq("one", "three"));
    }
}
