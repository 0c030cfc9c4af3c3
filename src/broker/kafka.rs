//! Kafka connections: client configuration, the properties that Postdate owns, and the lookup of a topic.
//!
//! The operator's properties come last where they only tune, and are refused where a guarantee depends on them
//! ([`OWNED_PROPERTIES`]). Their values are secrets: neither logs nor errors show one.

mod client_report;
mod client_watch;
mod examine;
mod oauth;
mod properties;
mod sasl;
mod sizes;
mod tls;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::client::{Client, ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientConfig, types::RDKafkaConfRes};
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{debug, trace, warn};

pub use self::client_report::client_report;
pub use self::client_watch::{ClientWatch, KnownBrokers, Refusals};
pub use self::examine::{BatchSettings, ReadObstacle};
pub use self::oauth::{AwsEnvironment, AwsIam, ClientCredentials, TokenIssuer, TokenSource};
pub use self::properties::{OWNED_PROPERTIES, Properties, is_owned};
pub use self::sasl::sasl_problem;
pub use self::sizes::{FetchSizes, open_bytes};
pub use self::tls::{UNVERIFIED, switches_verification_off};
use crate::domain::Secret;

/// A named Kafka connection, checked.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The connection's name.
    pub name: String,
    /// Bootstrap servers.
    pub brokers: String,
    /// librdkafka properties that the operator set.
    pub properties: Properties,
    /// Properties may leave brokers unverified.
    pub unsafe_tls: bool,
    /// The tokens of `sasl.mechanism = OAUTHBEARER`.
    pub oauth: Option<TokenSource>,
}

/// Interval at which a producer reports on itself. Its messages that timed out wait for the next report.
const PRODUCER_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which the producer gives up delivering a message. Its fate is then unknown.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Poll in which a consumer's question for a token is answered.
const QUESTION_POLL: Duration = Duration::from_millis(10);

/// Defaults that an operator may change, each with the reason why it differs from librdkafka's own.
const COMMON_TUNED: &[(&str, &str)] = &[
    // Reconnect within a second to a broker that is back.
    ("reconnect.backoff.max.ms", "500"),
    ("socket.keepalive.enable", "true"),
    ("socket.timeout.ms", "10000"),
    ("log.connection.close", "false"),
    // Close a connection that was quiet for this long, and open it anew when it is needed. Firewalls and load
    // balancers forget quiet connections and tell nobody: the next request is lost, and missed only after
    // `socket.timeout.ms`. The shortest memory among the large clouds' is 240 s.
    ("connections.max.idle.ms", "180000"),
];
const CONSUMER_TUNED: &[(&str, &str)] = &[
    // Find new partitions, and topics that were missing or created anew, within two seconds.
    ("topic.metadata.refresh.interval.ms", "2000"),
    // Limit the memory of records that are read ahead, per group. A broker's answer comes on top: `sizes` bounds it.
    ("queued.min.messages", "20000"),
    ("queued.max.messages.kbytes", "8192"),
];
const PRODUCER_TUNED: &[(&str, &str)] = &[
    // Let the topic's own limit decide, not the client's.
    ("message.max.bytes", "67108864"),
    ("queue.buffering.max.kbytes", "262144"),
];

/// The configuration is wrong.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A property that Postdate owns.
    #[error("kafka connection {connection}: property {property} is set by Postdate")]
    Owned {
        /// The connection.
        connection: String,
        /// The property.
        property: String,
    },
    /// The properties cannot be read, or librdkafka refuses them.
    #[error("kafka connection {connection}: {error}")]
    Refused {
        /// The connection.
        connection: String,
        /// The reason, without any value.
        error: String,
    },
}

impl Connection {
    /// A connection without any property.
    pub fn plain(name: &str, brokers: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            brokers: brokers.into(),
            properties: Properties::default(),
            unsafe_tls: false,
            oauth: None,
        }
    }

    /// A token for a client, as each context must give one: librdkafka asks when the client is made, and again before the
    /// token ends.
    pub fn oauth_token(&self) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        let oauth = self.oauth.as_ref().ok_or("no `oauth` is configured")?;
        Ok(oauth.token()?)
    }

    /// Lets a new consumer that nobody polls have its token. Without one it connects to no broker. Blocks for two seconds
    /// at most.
    pub fn give_token<C: ConsumerContext>(&self, consumer: &BaseConsumer<C>) {
        if self.oauth.is_some() {
            // It asked when it was made. The question is answered in a poll. There is no record yet.
            drop(consumer.poll(QUESTION_POLL));
        }
    }

    /// The configuration of a consumer of this group, whose routes take records of at most `largest_record` bytes,
    /// headers included. It fetches these sizes, unless the operator sets them.
    pub fn consumer_config(
        &self,
        group: &str,
        largest_record: u64,
        sizes: FetchSizes,
    ) -> Result<ClientConfig, ConfigError> {
        let properties = self.current_properties()?;
        let mut config = self.config(CONSUMER_TUNED, &properties);
        sizes::set(&mut config, &properties, largest_record, sizes);
        config
            .set("group.id", group)
            .set("group.protocol", "classic")
            // The move of one partition, or the end of one topic, must not stop the group's other routes.
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", "10000")
            // Other members hear this soon that partitions move.
            .set("heartbeat.interval.ms", "1000")
            .set("max.poll.interval.ms", "300000")
            .set("auto.offset.reset", "earliest")
            .set("isolation.level", "read_committed")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "false")
            .set("allow.auto.create.topics", "false")
            .set("fetch.queue.backoff.ms", "10")
            .set("statistics.interval.ms", "1000");
        Ok(config)
    }

    /// Reports whether the operator sets how much a consumer fetches at a time. There is one size then.
    pub fn has_own_fetch_sizes(&self) -> bool {
        sizes::are_set(self.properties.configured())
    }

    /// The configuration of a producer that gives a batch this long to fill.
    pub fn producer_config(&self, linger: Duration) -> Result<ClientConfig, ConfigError> {
        let mut config = self.config(PRODUCER_TUNED, &self.current_properties()?);
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("linger.ms", linger.as_millis().to_string())
            .set("partitioner", "murmur2_random")
            .set(
                "message.timeout.ms",
                MESSAGE_TIMEOUT.as_millis().to_string(),
            )
            .set("allow.auto.create.topics", "false")
            // Report a missing topic at once, not after 30 s.
            .set("topic.metadata.propagation.max.ms", "0")
            .set(
                "statistics.interval.ms",
                PRODUCER_REPORT_INTERVAL.as_millis().to_string(),
            );
        Ok(config)
    }

    /// Hides every value in librdkafka's error about a configuration.
    pub fn refused(&self, error: KafkaError) -> ConfigError {
        let error = match error {
            KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, _, key, _) => {
                format!("there is no property {key}")
            }
            KafkaError::ClientConfig(_, _, key, _) => {
                format!("property {key} does not take this value")
            }
            other => other.to_string(),
        };
        ConfigError::Refused {
            connection: self.name.clone(),
            error,
        }
    }

    /// The configuration of a client that only asks. It fetches nothing, but the client library judges its sizes as well.
    fn asking_config(&self) -> Result<ClientConfig, ConfigError> {
        let properties = self.current_properties()?;
        let mut config = self.config(&[], &properties);
        sizes::set(&mut config, &properties, 0, FetchSizes::Usual);
        Ok(config)
    }

    fn config(
        &self,
        tuned: &[(&str, &str)],
        properties: &BTreeMap<String, Secret>,
    ) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.brokers)
            .set("client.id", "postdate");
        for (property, value) in COMMON_TUNED.iter().chain(tuned) {
            config.set(*property, *value);
        }
        for (property, value) in properties {
            config.set(property, value.expose());
        }
        raise_longest_backoff(&mut config, properties);
        config
    }

    /// The properties as they are now, if a client may be made with them.
    fn current_properties(&self) -> Result<BTreeMap<String, Secret>, ConfigError> {
        let refused = |error: String| ConfigError::Refused {
            connection: self.name.clone(),
            error,
        };
        let properties = self.properties.current().map_err(refused)?;
        for (property, value) in &properties {
            if is_owned(property) {
                return Err(ConfigError::Owned {
                    connection: self.name.clone(),
                    property: property.clone(),
                });
            }
            if !self.unsafe_tls && switches_verification_off(property, value.expose()) {
                return Err(refused(format!("property {property} {UNVERIFIED}")));
            }
        }
        if let Some((property, problem)) = sasl_problem(&properties, self.oauth.is_some()) {
            return Err(refused(format!("property {property} {problem}")));
        }
        Ok(properties)
    }
}

/// Raises Postdate's longest wait before a client connects again to the operator's first one: the client library takes no
/// shorter one.
fn raise_longest_backoff(config: &mut ClientConfig, properties: &BTreeMap<String, Secret>) {
    const FIRST: &str = "reconnect.backoff.ms";
    const LONGEST: &str = "reconnect.backoff.max.ms";
    let millis = |name| config.get(name)?.trim().parse::<u64>().ok();
    if let (Some(first), Some(longest)) = (millis(FIRST), millis(LONGEST))
        && first > longest
        && !properties.contains_key(LONGEST)
    {
        config.set(LONGEST, first.to_string());
    }
}

/// The state of a topic, as the brokers answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicState {
    /// The topic is there.
    There {
        /// The number of its partitions.
        partitions: usize,
    },
    /// The topic is not there.
    Missing,
    /// The principal may not see the topic.
    NotAllowed,
    /// Nobody answered, with the reason that was seen instead.
    Unreachable(String),
}

impl TopicState {
    /// The number of partitions. 0 if the topic is not there.
    pub fn partitions(&self) -> usize {
        if let Self::There { partitions } = self {
            *partitions
        } else {
            0
        }
    }
}

/// The state of a partition, as the brokers answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionState {
    /// Some broker leads it.
    pub has_leader: bool,
    /// Replicas that are in sync.
    pub in_sync: usize,
    /// All its replicas.
    pub replicas: usize,
}

/// Asks a client's brokers for a topic. Blocks for at most `at_most`.
pub fn look_up<C: ClientContext>(client: &Client<C>, topic: &str, at_most: Duration) -> TopicState {
    look_up_partitions(client, topic, at_most).0
}

/// Asks a client's brokers for a topic and its partitions, in order. Blocks for at most `at_most`.
pub fn look_up_partitions<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    at_most: Duration,
) -> (TopicState, Vec<PartitionState>) {
    let metadata = match client.fetch_metadata(Some(topic), at_most) {
        Ok(metadata) => metadata,
        Err(error) => {
            let state = topic_error(error.rdkafka_error_code(), error.to_string());
            return (state, Vec::new());
        }
    };
    let Some(found) = metadata.topics().first() else {
        return (TopicState::Missing, Vec::new());
    };
    if let Some(code) = found.error() {
        let text = RDKafkaErrorCode::from(code).to_string();
        return (topic_error(Some(code.into()), text), Vec::new());
    }
    let partitions: BTreeMap<i32, PartitionState> = found
        .partitions()
        .iter()
        .map(|partition| {
            let state = PartitionState {
                has_leader: partition.leader() >= 0,
                in_sync: partition.isr().len(),
                replicas: partition.replicas().len(),
            };
            (partition.id(), state)
        })
        .collect();
    let state = TopicState::There {
        partitions: partitions.len(),
    };
    (state, partitions.into_values().collect())
}

fn topic_error(code: Option<RDKafkaErrorCode>, text: String) -> TopicState {
    match code {
        Some(
            RDKafkaErrorCode::UnknownTopicOrPartition
            | RDKafkaErrorCode::UnknownTopic
            | RDKafkaErrorCode::InvalidTopic,
        ) => TopicState::Missing,
        Some(RDKafkaErrorCode::TopicAuthorizationFailed) => TopicState::NotAllowed,
        _ => TopicState::Unreachable(text),
    }
}

/// Forwards a line of librdkafka's log at a low level: Postdate reports what matters in its own words.
pub fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
            warn!(facility, text = message, "librdkafka");
        }
        RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning => {
            debug!(facility, text = message, "librdkafka");
        }
        _ => trace!(facility, text = message, "librdkafka"),
    }
}

/// Collects hints of a client's callbacks that its brokers may be away, a reason to ask them, and counts refusals of its
/// credentials.
#[derive(Debug, Default)]
pub struct OutageSuspicion {
    raised: AtomicBool,
    refusals: Mutex<Refusals>,
    /// The last cause that librdkafka gave, and when.
    reason: Mutex<Option<(String, Instant)>>,
    news: Notify,
}

/// A cause is of this outage if it was given so lately. librdkafka repeats an identical one every 30 s at most.
const REASON_LASTS: Duration = Duration::from_secs(60);

impl OutageSuspicion {
    /// Takes an error that librdkafka reports on a client as a whole.
    pub fn error(&self, error: &KafkaError, reason: &str) {
        debug!(%error, reason, "kafka client error");
        let code = error.rdkafka_error_code();
        match code {
            Some(RDKafkaErrorCode::Authentication) => self.refusals.lock().logins += 1,
            Some(RDKafkaErrorCode::SSL) => self.refusals.lock().handshakes += 1,
            _ => {}
        }
        if code == Some(RDKafkaErrorCode::AllBrokersDown) {
            self.raised.store(true, Ordering::Release);
            self.news.notify_one();
        } else {
            // librdkafka reports the cause before it reports that no broker is left.
            *self.reason.lock() = Some((reason.to_owned(), Instant::now()));
        }
    }

    /// Reports whether there was a hint since the last call.
    pub fn take(&self) -> bool {
        self.raised.swap(false, Ordering::AcqRel)
    }

    /// How often a broker has refused the credentials.
    pub fn refusals(&self) -> Refusals {
        *self.refusals.lock()
    }

    /// Notes that a broker has answered: whatever was the cause before is none of the next outage.
    pub fn answered(&self) {
        *self.reason.lock() = None;
    }

    /// The error, with the cause that librdkafka gave for this outage, if it gave one.
    pub fn explain(&self, error: &str) -> String {
        match &*self.reason.lock() {
            Some((reason, at)) if at.elapsed() < REASON_LASTS => plain_cause(reason)
                .unwrap_or_else(|| format!("{error}; {}", without_counts(reason))),
            _ => error.to_owned(),
        }
    }

    /// Waits for a hint. Cancel-safe.
    pub async fn raised(&self) {
        self.news.notified().await;
    }
}

/// A cause that librdkafka gave: in plain words, if it is one of those that everybody meets.
fn plain_cause(reason: &str) -> Option<String> {
    let (_, connecting) = without_counts(reason).split_once("Connect to ")?;
    let (address, why) = connecting.split_once(" failed: ")?;
    let address = address
        .split_once('#')
        .map_or(address, |(_, address)| address);
    Some(match why {
        "Connection refused" => format!("{address} refuses connections"),
        _ => format!("{address} cannot be connected to: {why}"),
    })
}

/// A cause without what librdkafka counts beside it: for how long, and how often it was the same.
fn without_counts(reason: &str) -> &str {
    reason
        .split_once(" (after ")
        .map_or(reason, |(cause, _)| cause)
}

/// Asks whether any broker answers, by a question for a topic, or for all. `Err` gives the reason that was seen instead. Blocks for at most `at_most`.
pub fn ask<C: ClientContext>(
    client: &Client<C>,
    topic: Option<&str>,
    at_most: Duration,
) -> Result<(), String> {
    let Some(topic) = topic else {
        return list_topics(client, at_most).map(drop);
    };
    match look_up(client, topic, at_most) {
        TopicState::Unreachable(error) => Err(error),
        _ => Ok(()),
    }
}

/// The topics of the cluster that may be seen, each with the number of its partitions. Blocks for at most `at_most`.
pub fn list_topics<C: ClientContext>(
    client: &Client<C>,
    at_most: Duration,
) -> Result<BTreeMap<String, i32>, String> {
    let metadata = client
        .fetch_metadata(None, at_most)
        .map_err(|error| error.to_string())?;
    let topics = metadata.topics().iter();
    let counted = topics.map(|topic| (topic.name().to_owned(), topic.partitions().len() as i32));
    Ok(counted.collect())
}

#[cfg(test)]
mod tests {
    use rdkafka::producer::BaseProducer;

    use super::*;

    fn connection(properties: &[(&str, &str)]) -> Connection {
        Connection {
            properties: Properties::inline(properties.iter().copied()),
            ..Connection::plain("main", "127.0.0.1:1")
        }
    }

    #[test]
    fn every_owned_property_is_one_of_librdkafkas_and_refused() {
        for property in OWNED_PROPERTIES {
            for name in [(*property).to_owned(), format!("topic.{property}")] {
                let owned = connection(&[(name.as_str(), "1")]);
                let consumer = owned.consumer_config("g", 0, FetchSizes::Usual);
                assert!(matches!(consumer, Err(ConfigError::Owned { .. })), "{name}");
                let producer = owned.producer_config(Duration::ZERO);
                assert!(matches!(producer, Err(ConfigError::Owned { .. })), "{name}");
            }
            let unknown = ClientConfig::new()
                .set(*property, "no such value")
                .create_native_config();
            if let Err(KafkaError::ClientConfig(kind, ..)) = unknown {
                assert_ne!(kind, RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, "{property}");
            }
        }
    }

    #[test]
    fn librdkafka_takes_what_postdate_sets_and_operators_tune() {
        let tuned = connection(&[("compression.type", "zstd"), ("socket.timeout.ms", "5000")]);
        for sizes in [FetchSizes::Careful, FetchSizes::Usual] {
            let consumer = tuned.consumer_config("g", 0, sizes).expect("checked");
            consumer
                .create_native_config()
                .expect("librdkafka takes it");
            assert_eq!(consumer.get("socket.timeout.ms"), Some("5000"));
        }
        tuned
            .producer_config(Duration::ZERO)
            .expect("checked")
            .create_native_config()
            .expect("librdkafka takes it");
    }

    /// Each of these is right alone: the client library compares them with others when it makes a client.
    #[test]
    fn clients_are_made_with_what_operators_tune() {
        for own in [
            ("receive.message.max.bytes", "4000000"),
            ("receive.message.max.bytes", "30000000"),
            ("fetch.max.bytes", "24576"),
            ("fetch.max.bytes", "100000000"),
            ("message.max.bytes", "30000000"),
            ("reconnect.backoff.ms", "1000"),
            ("reconnect.backoff.max.ms", "100"),
        ] {
            let tuned = connection(&[own]);
            for config in [
                tuned.consumer_config("g", 1 << 20, FetchSizes::Usual),
                tuned.consumer_config("g", 1 << 20, FetchSizes::Careful),
                tuned.asking_config(),
            ] {
                let made = config.expect("checked").create::<BaseConsumer>();
                assert!(made.is_ok(), "{own:?}: {:?}", made.err());
            }
            let config = tuned.producer_config(Duration::ZERO).expect("checked");
            let made = config.create::<BaseProducer>();
            assert!(made.is_ok(), "{own:?}: {:?}", made.err());
        }
        let tuned = connection(&[("reconnect.backoff.ms", "1000")]);
        let asking = tuned.asking_config().expect("checked");
        assert_eq!(asking.get("reconnect.backoff.max.ms"), Some("1000"));
    }

    #[test]
    fn the_causes_that_everybody_meets_are_told_in_plain_words_and_the_others_as_they_are() {
        let told = |reason: &str| {
            let suspicion = OutageSuspicion::default();
            let code = RDKafkaErrorCode::BrokerTransportFailure;
            suspicion.error(&KafkaError::Global(code), reason);
            suspicion.explain("no answer")
        };
        let refused = "127.0.0.1:9092/1: Connect to ipv4#127.0.0.1:9092 failed: Connection refused \
                       (after 0ms in state CONNECT, 3 identical error(s) suppressed)";
        assert_eq!(told(refused), "127.0.0.1:9092 refuses connections");
        let routed = "b:9092/2: Connect to ipv6#[::1]:9092 failed: No route to host (after 7ms in state CONNECT)";
        assert_eq!(
            told(routed),
            "[::1]:9092 cannot be connected to: No route to host"
        );
        let closed = "b:9092/2: Disconnected (after 30ms in state UP)";
        assert_eq!(told(closed), "no answer; b:9092/2: Disconnected");
    }

    #[test]
    fn no_error_shows_a_value() {
        let wrong = connection(&[("security.protocol", "hunter2")]);
        let error = wrong
            .producer_config(Duration::ZERO)
            .expect("not owned")
            .create_native_config()
            .err()
            .expect("wrong");
        let shown = wrong.refused(error).to_string();
        assert_eq!(
            shown,
            "kafka connection main: property security.protocol does not take this value"
        );
    }
}
