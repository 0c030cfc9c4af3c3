//! TLS of Kafka connections: which properties switch verification off, and what is wrong with a broker's TLS.
//!
//! librdkafka has one sentence for a certificate of an unknown authority, an expired one and one of another host. It has
//! none for a broker that speaks TLS where no TLS is expected.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Connection, TokenSource};
use crate::domain::Secret;
use crate::tls::{ClientFiles, Expected, KeyHints, TlsTrouble, examine};

/// What is wrong with a property that switches the verification of brokers off.
pub const UNVERIFIED: &str = "lets anybody on the way read and change messages: name the authority in \
                              `ssl.ca.location` instead, or say `unsafe_tls = true` beside `brokers`";
/// Most bootstrap servers that are examined, one after the other.
const MAX_EXAMINED: usize = 3;
/// Properties that give a broker's client a certificate.
const CERTIFICATE_PROPERTIES: [&str; 3] = [
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.keystore.location",
];
/// Port of a bootstrap server that names none.
const DEFAULT_PORT: u16 = 9092;

/// Reports whether a property with this value leaves a broker's certificate, or its host name, unverified.
pub fn switches_verification_off(property: &str, value: &str) -> bool {
    let value = value.trim().to_ascii_lowercase();
    match property {
        "enable.ssl.certificate.verification" => matches!(value.as_str(), "false" | "f" | "0"),
        "ssl.endpoint.identification.algorithm" => value == "none",
        _ => false,
    }
}

impl Connection {
    /// Reports whether brokers must prove by their certificates that they are those meant, wherever TLS is spoken.
    pub fn verifies_brokers(&self) -> bool {
        TlsProperties(self.properties.configured()).verify_brokers()
    }

    /// The reason why no broker can be reached, with the sentence of its cause before it if that is a token that does not
    /// come, or TLS. Connects once more to find out about TLS, unless brokers were reached before and the reason says
    /// nothing of it.
    pub async fn explained(&self, why: String, was_reached: bool) -> String {
        if let Some(failure) = self.oauth.as_ref().and_then(TokenSource::failure) {
            return format!("{failure} ({why})");
        }
        if was_reached && !why.contains("SSL") {
            return why;
        }
        match self.tls_sentence().await {
            Some(sentence) => format!("{sentence} ({why})"),
            None => why,
        }
    }

    /// The sentence about the first bootstrap server whose TLS keeps this connection from it.
    pub async fn tls_sentence(&self) -> Option<String> {
        // A file that cannot be read now is told where a client is made.
        let properties = self.properties.current();
        let properties = properties
            .as_ref()
            .unwrap_or_else(|_| self.properties.configured());
        let properties = TlsProperties(properties);
        let files = properties.authority_files();
        let expected = match &files {
            _ if !properties.speak_tls() => Expected::Plain,
            Some(files) if properties.verify_brokers() => Expected::Tls(files),
            _ => Expected::AnyTls,
        };
        for broker in self.brokers.split(',').take(MAX_EXAMINED) {
            let (host, port) = host_and_port(broker.trim());
            let trouble = examine(host, port, expected).await;
            // The certificate of librdkafka's own configuration is not shown here.
            let own = trouble.filter(|trouble| {
                *trouble != TlsTrouble::CertificateWanted || !properties.have_certificate()
            });
            if let Some(trouble) = own {
                return Some(format!("{broker}: {}", trouble.sentence(&self.tls_hints())));
            }
        }
        None
    }

    fn tls_hints(&self) -> KeyHints {
        let properties = format!("kafka.{}.properties", self.name);
        let protocol =
            |meant: &str| format!("set `security.protocol` in `{properties}` to {meant}");
        KeyHints {
            ca: format!("{properties}.ssl.ca.location"),
            certificate: format!("{properties}.ssl.certificate.location"),
            with_tls: protocol("SSL or SASL_SSL"),
            without_tls: protocol("PLAINTEXT or SASL_PLAINTEXT"),
        }
    }
}

/// Properties of a connection, read for what they say of TLS.
struct TlsProperties<'a>(&'a BTreeMap<String, Secret>);

impl TlsProperties<'_> {
    fn verify_brokers(&self) -> bool {
        !self
            .0
            .iter()
            .any(|(name, value)| switches_verification_off(name, value.expose()))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.expose().trim())
    }

    fn speak_tls(&self) -> bool {
        let protocol = self.get("security.protocol").unwrap_or_default();
        ["ssl", "sasl_ssl"]
            .iter()
            .any(|tls| protocol.eq_ignore_ascii_case(tls))
    }

    fn have_certificate(&self) -> bool {
        CERTIFICATE_PROPERTIES
            .iter()
            .any(|name| self.get(name).is_some())
    }

    /// Files of the authorities that librdkafka trusts; `None` if they are not in one file.
    fn authority_files(&self) -> Option<ClientFiles> {
        if self.get("ssl.ca.pem").is_some() {
            return None;
        }
        match self.get("ssl.ca.location") {
            None | Some("" | "probe") => Some(ClientFiles::default()),
            Some(location) if Path::new(location).is_dir() => None,
            Some(location) => Some(ClientFiles {
                ca: Some(location.into()),
                identity: None,
            }),
        }
    }
}

/// Host and port of a bootstrap server. An IPv6 address has brackets around it.
fn host_and_port(broker: &str) -> (&str, u16) {
    let (host, port) = match broker.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().unwrap_or(DEFAULT_PORT)),
        _ => (broker, DEFAULT_PORT),
    };
    (host.trim_start_matches('[').trim_end_matches(']'), port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::kafka::Properties;

    #[test]
    fn bootstrap_servers_have_hosts_and_ports() {
        for (broker, expected) in [
            ("kafka:9093", ("kafka", 9093)),
            ("kafka", ("kafka", 9092)),
            ("[::1]:1", ("::1", 1)),
            ("[::1]", ("::1", 9092)),
        ] {
            assert_eq!(host_and_port(broker), expected);
        }
    }

    #[test]
    fn verification_is_off_in_every_spelling() {
        for value in ["false", "False", "f", "0", " false "] {
            assert!(
                switches_verification_off("enable.ssl.certificate.verification", value),
                "{value}"
            );
        }
        assert!(switches_verification_off(
            "ssl.endpoint.identification.algorithm",
            "NONE"
        ));
        for (property, value) in [
            ("enable.ssl.certificate.verification", "true"),
            ("ssl.endpoint.identification.algorithm", "https"),
            ("enable.idempotence", "false"),
        ] {
            assert!(
                !switches_verification_off(property, value),
                "{property} {value}"
            );
        }
        let properties = [("ssl.endpoint.identification.algorithm", "none")];
        let connection = Connection {
            properties: Properties::inline(properties),
            ..Connection::plain("main", "a:1")
        };
        assert!(!connection.verifies_brokers());
    }
}
