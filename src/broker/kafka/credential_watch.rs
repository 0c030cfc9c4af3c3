//! Decides when a client is made anew because its credentials were changed.
//!
//! librdkafka keeps the credentials that it was made with, and a token until it is time for the next. A client whose
//! credentials a broker refuses is of no use once there are others, and one whose credentials are good is left alone,
//! whatever its files say meanwhile.

use std::collections::BTreeMap;

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

/// The reason to make a client anew, for a log.
pub const RENEWED: &str =
    "a broker refused its credentials, and these have been changed since it was made";

/// How often brokers have refused clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Logins by a password or a token that failed.
    pub logins: u64,
    /// TLS handshakes that failed, perhaps for the certificate.
    pub handshakes: u64,
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

/// Watches over the credentials of one client. Make it before the client.
pub struct CredentialWatch {
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

impl CredentialWatch {
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

    /// Reports whether a broker has refused the client lately (`refusals` counts), and its credentials have changed to
    /// others that can be used. Reads files, at most once a second.
    pub fn must_renew(&mut self, refusals: Refusals, now_us: i64) -> bool {
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
        let mut watch = CredentialWatch::new(&connection, refused(3));
        write("second");
        assert!(
            !watch.must_renew(refused(3), 0),
            "nobody refuses the old credentials"
        );
        write("first");
        assert!(!watch.must_renew(refused(4), SECOND), "there are no others");
        write("second\nacks=0");
        assert!(
            !watch.must_renew(refused(4), 2 * SECOND),
            "they cannot be used"
        );
        write("second");
        assert!(
            !watch.must_renew(refused(4), 2 * SECOND),
            "it has just looked"
        );
        assert!(watch.must_renew(refused(4), 3 * SECOND));
        assert!(
            !watch.must_renew(refused(4), 100 * SECOND),
            "the refusal is long past"
        );

        let mut watch = CredentialWatch::new(&connection, refused(4));
        std::fs::write(&key, "second").expect("written");
        let handshake = Refusals {
            handshakes: 1,
            ..refused(4)
        };
        assert!(watch.must_renew(handshake, 0), "the key is another one");
    }
}
