//! Decides when a client is made anew: its credentials were changed, or it knows no broker any more.
//!
//! librdkafka keeps the credentials that it was made with, and a token until it is time for the next. A client whose
//! credentials a broker refuses is of no use once there are others, and one whose credentials are good is left alone,
//! whatever its files say meanwhile.
//!
//! It forgets the brokers that a cluster's answer does not name. When none is left it begins again with the bootstrap
//! servers, but not if another answer comes in that moment: then the client connects to nobody until the process ends
//! (<https://github.com/confluentinc/librdkafka/issues/5301>). A cluster names no broker if it has none that it counts as
//! alive, for instance when all were frozen for longer than their sessions with the controller.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use rdkafka::statistics::Statistics;
use tracing::warn;
use xxhash_rust::xxh3::xxh3_128;

use super::{ConfigError, Connection, TokenSource};
use crate::domain::Secret;

/// Time for which a refusal counts. librdkafka reports one that lasts at least every 30 s.
const REFUSAL_MEMORY_US: i64 = 60_000_000;
/// Interval at which the files are read while a refusal counts.
const LOOK_INTERVAL_US: i64 = 1_000_000;
/// Properties that name files which librdkafka reads when a client is made.
const FILE_PROPERTIES: [&str; 5] = [
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.crl.location",
    "ssl.key.location",
    "ssl.keystore.location",
];

/// Reports without any broker, one after the other, after which a client is made anew: more than the moment that it
/// takes to begin again with the bootstrap servers. A report comes once a second.
const REPORTS_WITHOUT: u32 = 3;

/// The reasons to make a client anew, for a log.
const CHANGED: &str =
    "a broker refused its credentials, and these have been changed since it was made";
const FORGOTTEN: &str = "the cluster said that it has no broker, and the client library has not \
                         asked the bootstrap servers since";

/// How often brokers have refused clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Logins by a password or a token that failed.
    pub logins: u64,
    /// TLS handshakes that failed, perhaps for the certificate.
    pub handshakes: u64,
}

/// Whether a client knows a broker, by its reports.
#[derive(Debug, Default)]
pub struct KnownBrokers {
    /// The last reports, one after the other, in which there was none.
    without: AtomicU32,
}

impl KnownBrokers {
    /// Takes a report of the client.
    pub fn report(&self, statistics: &Statistics) {
        let is_known = statistics
            .brokers
            .values()
            .any(|broker| matches!(&*broker.source, "configured" | "learned"));
        if is_known {
            self.without.store(0, Ordering::Release);
        } else {
            self.without.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn are_forgotten(&self) -> bool {
        self.without.load(Ordering::Acquire) >= REPORTS_WITHOUT
    }
}

/// Credentials of a client, as they were at some moment.
#[derive(PartialEq, Eq)]
struct ClientCredentials {
    properties: BTreeMap<String, Secret>,
    /// Digests of the files that the properties name, of those that can be read.
    files: Vec<Option<u128>>,
}

impl ClientCredentials {
    fn now(connection: &Connection) -> Result<Self, ConfigError> {
        let properties = connection.current_properties()?;
        let files = FILE_PROPERTIES.iter().map(|name| {
            let path = properties.get(*name)?.expose();
            Some(xxh3_128(&std::fs::read(path).ok()?))
        });
        Ok(Self {
            files: files.collect(),
            properties,
        })
    }
}

/// Watches over one client. Make it before the client.
pub struct ClientWatch {
    connection: Connection,
    /// What the client was made with; `None`: that could not be read.
    made_with: Option<ClientCredentials>,
    seen_refusals: Refusals,
    refused_us: Option<i64>,
    /// Number of the token that was there when a login failed.
    refused_token: Option<u64>,
    next_look_us: i64,
    told: Option<String>,
}

impl ClientWatch {
    /// Remembers the credentials as they are now. `refusals` is the count so far, of former clients.
    pub fn new(connection: &Connection, refusals: Refusals) -> Self {
        Self {
            connection: connection.clone(),
            made_with: ClientCredentials::now(connection).ok(),
            seen_refusals: refusals,
            refused_us: None,
            refused_token: None,
            next_look_us: i64::MIN,
            told: None,
        }
    }

    /// The reason to make the client anew, if there is one. `refusals` counts. Reads files, at most once a second.
    pub fn renewal(
        &mut self,
        refusals: Refusals,
        brokers: &KnownBrokers,
        now_us: i64,
    ) -> Option<&'static str> {
        if brokers.are_forgotten() {
            return Some(FORGOTTEN);
        }
        self.has_other_credentials(refusals, now_us)
            .then_some(CHANGED)
    }

    /// Reports whether a broker has refused the client lately, and its credentials have changed to others that can be used.
    fn has_other_credentials(&mut self, refusals: Refusals, now_us: i64) -> bool {
        if self.seen_refusals != refusals {
            self.refused_us = Some(now_us);
            if self.seen_refusals.logins != refusals.logins {
                let oauth = self.connection.oauth.as_ref();
                self.refused_token = oauth.and_then(TokenSource::number);
            }
            self.seen_refusals = refusals;
        }
        let is_refused = self
            .refused_us
            .is_some_and(|since_us| now_us - since_us < REFUSAL_MEMORY_US);
        if !is_refused {
            self.refused_token = None;
            return false;
        }
        if now_us < self.next_look_us {
            return false;
        }
        self.next_look_us = now_us + LOOK_INTERVAL_US;
        if let (Some(oauth), Some(refused)) = (&self.connection.oauth, self.refused_token)
            && oauth.has_replaced(refused)
        {
            return true;
        }
        match ClientCredentials::now(&self.connection) {
            Ok(now) => {
                self.told = None;
                self.made_with.as_ref() != Some(&now)
            }
            Err(error) => {
                let why = error.to_string();
                if self.told.as_ref() != Some(&why) {
                    warn!(error = %why, "credentials that are refused by kafka cannot be replaced");
                    self.told = Some(why);
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::statistics::Broker;

    use super::*;
    use crate::broker::kafka::Properties;

    const SECOND: i64 = 1_000_000;

    #[test]
    fn a_client_is_made_anew_if_it_was_refused_and_there_are_other_credentials_that_can_be_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let [properties, key] = ["properties", "key"].map(|name| folder.path().join(name));
        let write = |password: &str| {
            let text = format!(
                "ssl.key.location={}\nsasl.password={password}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n",
                key.display()
            );
            std::fs::write(&properties, text).expect("written");
        };
        write("first");
        std::fs::write(&key, "first").expect("written");
        let connection = Connection {
            properties: Properties::from_file(&properties).expect("read"),
            ..Connection::plain("main", "127.0.0.1:1")
        };
        let refused = |logins| Refusals {
            logins,
            handshakes: 0,
        };
        let mut watch = ClientWatch::new(&connection, refused(3));
        write("second");
        assert!(
            !watch.has_other_credentials(refused(3), 0),
            "nobody refuses the old credentials"
        );
        write("first");
        assert!(
            !watch.has_other_credentials(refused(4), SECOND),
            "there are no others"
        );
        write("second\nacks=0");
        assert!(
            !watch.has_other_credentials(refused(4), 2 * SECOND),
            "they cannot be used"
        );
        write("second");
        assert!(
            !watch.has_other_credentials(refused(4), 2 * SECOND),
            "it has just looked"
        );
        assert!(watch.has_other_credentials(refused(4), 3 * SECOND));
        assert!(
            !watch.has_other_credentials(refused(4), 100 * SECOND),
            "the refusal is long past"
        );

        let mut watch = ClientWatch::new(&connection, refused(4));
        std::fs::write(&key, "second").expect("written");
        let handshake = Refusals {
            handshakes: 1,
            ..refused(4)
        };
        assert!(
            watch.has_other_credentials(handshake, 0),
            "the key is another one"
        );
    }

    #[test]
    fn a_client_is_made_anew_if_it_has_known_no_broker_for_some_time() {
        let mut watch = ClientWatch::new(&Connection::plain("main", "b:9092"), Refusals::default());
        let brokers = KnownBrokers::default();
        let statistics = |sources: &[&str]| Statistics {
            brokers: sources
                .iter()
                .map(|source| {
                    let broker = Broker {
                        source: (*source).to_owned(),
                        ..Broker::default()
                    };
                    ((*source).to_owned(), broker)
                })
                .collect(),
            ..Statistics::default()
        };
        // The address of a group's coordinator is no broker to ask.
        let none = [statistics(&[]), statistics(&["logical", "internal"])];
        let mut renewal = |report: &Statistics| {
            brokers.report(report);
            watch.renewal(Refusals::default(), &brokers, 0)
        };
        for known in ["configured", "learned"] {
            assert_eq!(renewal(&none[0]), None);
            assert_eq!(renewal(&none[1]), None);
            assert_eq!(renewal(&statistics(&["logical", known])), None);
        }
        assert_eq!(renewal(&none[1]), None);
        assert_eq!(renewal(&none[0]), None);
        assert_eq!(renewal(&none[1]), Some(FORGOTTEN));
    }
}
