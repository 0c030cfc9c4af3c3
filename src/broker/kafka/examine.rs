//! Examines a connection before anything relies on it, for `check --connect`. Joins no group, commits nothing,
//! creates nothing.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, OwnedResourceSpecifier, ResourceSpecifier,
};
use rdkafka::client::{ClientContext, DefaultClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::{
    Connection, FetchSizes, TopicState, list_topics, log, look_up, plain_cause, without_counts,
};

/// Longest wait for each answer of a broker that has answered before.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for a group's coordinator. A cluster that never had a group creates the topic of positions at
/// the first question, and says meanwhile that nobody coordinates.
const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two questions for the coordinator.
const ASK_INTERVAL: Duration = Duration::from_millis(250);
/// Polls that share one [`ANSWER_TIMEOUT`] while a first fetch is awaited.
const FETCH_POLLS: u32 = 20;
/// Longest wait for an event that may have come long ago.
const EVENT_TIMEOUT: Duration = Duration::from_millis(10);

/// An obstacle that keeps a group from reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadObstacle {
    /// The group's positions cannot be asked for.
    Group {
        /// The reason, in the broker's words.
        why: String,
        /// The connection's principal may not read the group.
        denied: bool,
    },
    /// A topic's records cannot be fetched.
    Topic {
        /// The topic.
        topic: String,
        /// The reason.
        why: String,
    },
}

/// The settings of a topic that decide how large a batch may become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSettings {
    /// `compression.type`
    pub compression: String,
    /// `max.message.bytes`: the largest batch, as it is stored.
    pub max_bytes: u64,
}

impl Connection {
    /// Asks for topics, all with one client. `Err` gives the reason why no broker answers, after `at_most`.
    pub async fn find_topics(
        &self,
        topics: Vec<String>,
        at_most: Duration,
    ) -> Result<Vec<(String, TopicState)>, String> {
        let config = self.asking_config().map_err(|error| error.to_string())?;
        let client = self.probe(&config)?;
        let asked = tokio::task::spawn_blocking(move || {
            give_token(&client);
            let mut found = Vec::new();
            for topic in topics {
                let wait = if found.is_empty() {
                    at_most
                } else {
                    ANSWER_TIMEOUT
                };
                match look_up(client.client(), &topic, wait) {
                    TopicState::Unreachable(error) if found.is_empty() => {
                        return Err(trouble(&client).unwrap_or(error));
                    }
                    state => found.push((topic, state)),
                }
            }
            Ok(found)
        });
        asked.await.map_err(|error| error.to_string())?
    }

    /// The topics of the cluster that may be seen. `Err` gives the reason why no broker answers, after `at_most`.
    pub async fn list_topics(&self, at_most: Duration) -> Result<Vec<String>, String> {
        let config = self.asking_config().map_err(|error| error.to_string())?;
        let client = self.probe(&config)?;
        let asked = tokio::task::spawn_blocking(move || {
            give_token(&client);
            let listed = list_topics(client.client(), at_most);
            listed.map_err(|error| trouble(&client).unwrap_or(error))
        });
        let listed = asked.await.map_err(|error| error.to_string())??;
        Ok(listed.into_keys().collect())
    }

    /// The obstacles that keep a group from reading these topics (which are there), as far as they show without
    /// joining: asks for the group's positions, and tries a first fetch of each topic.
    pub async fn obstacles(
        &self,
        group: &str,
        topics: Vec<String>,
    ) -> Result<Vec<ReadObstacle>, String> {
        let mut config = self
            .consumer_config(group, 0, FetchSizes::Careful)
            .map_err(|error| error.to_string())?;
        config
            .set("enable.partition.eof", "true")
            .set("fetch.wait.max.ms", "10");
        let client = self.probe(&config)?;
        let tried = tokio::task::spawn_blocking(move || {
            give_token(&client);
            let mut obstacles = Vec::new();
            if let Err((why, denied)) = positions(&client, &topics) {
                obstacles.push(ReadObstacle::Group { why, denied });
            }
            for topic in topics {
                if let Err(why) = fetch(&client, &topic) {
                    obstacles.push(ReadObstacle::Topic { topic, why });
                }
            }
            obstacles
        });
        tried.await.map_err(|error| error.to_string())
    }

    /// The id of the cluster, in its own words. `None` if no broker told it within `at_most`.
    pub async fn cluster_id(&self, at_most: Duration) -> Option<String> {
        let client = self.probe(&self.asking_config().ok()?).ok()?;
        let asked = tokio::task::spawn_blocking(move || {
            give_token(&client);
            client.client().fetch_cluster_id(at_most)
        });
        asked.await.ok().flatten()
    }

    /// The settings of these topics (which are there) that decide how large a batch may become, by topic. A topic whose
    /// settings may not be seen is left out.
    pub async fn batch_settings(&self, topics: &[String]) -> BTreeMap<String, BatchSettings> {
        let settings = self.topic_settings(topics).await;
        let settings = settings.into_iter().filter_map(|(topic, resource)| {
            let value = |name: &str| resource.get(name)?.value.clone();
            let settings = BatchSettings {
                compression: value("compression.type")?,
                max_bytes: value("max.message.bytes")?.parse().ok()?,
            };
            Some((topic, settings))
        });
        settings.collect()
    }

    /// How many replicas of a partition of this topic must be in sync for a write. `None` if nobody says, or the
    /// principal may not know.
    pub async fn least_replicas(&self, topic: &str) -> Option<usize> {
        let settings = self.topic_settings(&[topic.to_owned()]).await;
        let (_, resource) = settings.first()?;
        resource
            .get("min.insync.replicas")?
            .value
            .as_ref()?
            .parse()
            .ok()
    }

    /// The settings of these topics, without those that may not be seen. None with tokens: rdkafka's admin client does
    /// not answer the question for one.
    async fn topic_settings(&self, topics: &[String]) -> Vec<(String, ConfigResource)> {
        if self.oauth.is_some() {
            return Vec::new();
        }
        let client = self
            .asking_config()
            .ok()
            .and_then(|config| config.create::<AdminClient<DefaultClientContext>>().ok());
        let Some(client) = client else {
            return Vec::new();
        };
        let asked: Vec<_> = topics
            .iter()
            .map(|topic| ResourceSpecifier::Topic(topic))
            .collect();
        let options = AdminOptions::new().request_timeout(Some(ANSWER_TIMEOUT));
        let answers = client
            .describe_configs(&asked, &options)
            .await
            .unwrap_or_default();
        let settings = answers.into_iter().flatten().filter_map(|resource| {
            let OwnedResourceSpecifier::Topic(topic) = &resource.specifier else {
                return None;
            };
            Some((topic.clone(), resource))
        });
        settings.collect()
    }

    fn probe(&self, config: &ClientConfig) -> Result<BaseConsumer<ProbeContext>, String> {
        let context = ProbeContext {
            connection: self.clone(),
            trouble: Mutex::default(),
        };
        config
            .create_with_context(context)
            .map_err(|error| self.refused(error).to_string())
    }
}

/// Lets a client have its token. Blocks.
fn give_token(client: &BaseConsumer<ProbeContext>) {
    client.context().connection.give_token(client);
}

/// Asks for a group's positions. `Err` gives the reason, and whether rights are missing.
fn positions(client: &BaseConsumer<ProbeContext>, topics: &[String]) -> Result<(), (String, bool)> {
    let mut asked = TopicPartitionList::new();
    for topic in topics {
        asked.add_partition(topic, 0);
    }
    let mut waited = Duration::ZERO;
    loop {
        // A forbidden group is asked for until time is over. The reason comes as an event.
        let Err(error) = client.committed_offsets(asked.clone(), ANSWER_TIMEOUT) else {
            return Ok(());
        };
        let passing = matches!(
            error.rdkafka_error_code(),
            Some(
                RDKafkaErrorCode::NotCoordinator
                    | RDKafkaErrorCode::CoordinatorNotAvailable
                    | RDKafkaErrorCode::CoordinatorLoadInProgress
            )
        );
        if !passing || waited >= COORDINATOR_TIMEOUT {
            let why = trouble(client).unwrap_or_else(|| describe(&error));
            let denied = error.rdkafka_error_code()
                == Some(RDKafkaErrorCode::GroupAuthorizationFailed)
                || why.to_ascii_lowercase().contains("authorization failed");
            return Err((why, denied));
        }
        std::thread::sleep(ASK_INTERVAL);
        waited += ASK_INTERVAL;
    }
}

/// Waits for a record of the topic's first partition, or for the news that there is none.
fn fetch(client: &BaseConsumer<ProbeContext>, topic: &str) -> Result<(), String> {
    let mut first = TopicPartitionList::new();
    first
        .add_partition_offset(topic, 0, Offset::End)
        .map_err(|error| describe(&error))?;
    client.assign(&first).map_err(|error| describe(&error))?;
    for _ in 0..FETCH_POLLS {
        match client.poll(ANSWER_TIMEOUT / FETCH_POLLS) {
            Some(Ok(_) | Err(KafkaError::PartitionEOF(_))) => return Ok(()),
            Some(Err(error))
                if error.rdkafka_error_code()
                    == Some(RDKafkaErrorCode::TopicAuthorizationFailed) =>
            {
                return Err(describe(&error));
            }
            // Other errors pass, or are the last word when time is over.
            Some(Err(_)) | None => {}
        }
    }
    Err(trouble(client).unwrap_or_else(|| "no answer in time".to_owned()))
}

/// The broker's own words, without the client's name for them.
fn describe(error: &KafkaError) -> String {
    let Some(code) = error.rdkafka_error_code() else {
        return error.to_string();
    };
    let text = code.to_string();
    text.split_once(" (")
        .map_or(text.as_str(), |(_, words)| words.trim_end_matches(')'))
        .to_owned()
}

/// The last error about a client as a whole.
fn trouble(client: &BaseConsumer<ProbeContext>) -> Option<String> {
    // The client tells events only to a caller that polls. There are a handful at most.
    for _ in 0..FETCH_POLLS {
        drop(client.poll(EVENT_TIMEOUT));
    }
    client.context().trouble.lock().take()
}

struct ProbeContext {
    connection: Connection,
    /// librdkafka's last error about the client as a whole.
    trouble: Mutex<Option<String>>,
}

impl ClientContext for ProbeContext {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        self.connection.oauth_token()
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // The loss of all brokers follows from the errors before it.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            // Leave out the client's own timing and counting.
            let plain = plain_cause(reason);
            let reason = plain.as_deref().unwrap_or_else(|| without_counts(reason));
            *self.trouble.lock() = Some(reason.trim_end_matches('.').to_owned());
        }
    }
}

impl ConsumerContext for ProbeContext {}
