//! Questions of the lanes about their topics, and the watch over whether the brokers are there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::connection::{ProducerConnection, ProducerKind};
use super::producer::KafkaProducer;
use crate::backoff::Backoff;
use crate::broker::kafka::{self, Connection, PartitionState, TopicState};
use crate::health::Part;

/// Longest wait for the answer of brokers about a topic.
const TOPIC_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The same while the topic is known to be there, and no message waits for the answer.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which the settings of a topic are asked for while replicas of it are out of sync, microseconds.
const SETTINGS_INTERVAL_US: i64 = 10_000_000;
/// Topic that every cluster with consumer groups has. Any answer about it proves that a broker is there.
const PROBE_TOPIC: &str = "__consumer_offsets";
/// What is said while there is no producer to ask by.
const REPLACED: &str = "the producer is being replaced";

/// Answer of the brokers about a topic.
#[derive(Debug)]
pub(super) struct TopicAnswer {
    pub(super) topic: TopicState,
    pub(super) partitions: Vec<PartitionState>,
    /// Replicas of a partition that must be in sync; `None` if nobody asked, or nobody may know.
    pub(super) least_replicas: Option<usize>,
}

impl TopicAnswer {
    pub(super) fn unreachable(error: String) -> Self {
        Self {
            topic: TopicState::Unreachable(error),
            partitions: Vec::new(),
            least_replicas: None,
        }
    }
}

/// Answers questions of the lanes about their topics, and watches whether the brokers are there.
pub(super) async fn answer_questions(
    connection: Arc<ProducerConnection>,
    settings: Connection,
    part: Part,
) {
    let mut questions = TopicQuestions {
        connection: connection.clone(),
        settings: settings.clone(),
        least_replicas: BTreeMap::new(),
    };
    let mut reached = false;
    let mut was_reached = false;
    let mut told = false;
    let mut failures = 0;
    loop {
        tokio::select! {
            () = connection.ended.cancelled() => return,
            () = connection.asked.notified() => {}
            () = connection.suspicion.raised() => {}
            () = tokio::time::sleep(Backoff::BROKER.wait(failures)), if !reached => {}
        }
        let mut lanes = connection.questions();
        // Messages wait for the answers about topics that are not known to be there.
        lanes.sort_by_key(|lane| lane.is_open());
        let mut silent = None;
        let mut contact = None;
        for lane in &lanes {
            let is_refresh = connection.is_reached() && lane.is_open();
            let answer = match &silent {
                Some(error) => TopicAnswer::unreachable(String::clone(error)),
                None => questions.ask(&lane.topic, is_refresh).await,
            };
            match &answer.topic {
                TopicState::Unreachable(error) => {
                    silent = Some(error.clone());
                    // One broker of several may not answer a refresh: that is no news of the others.
                    if !is_refresh {
                        contact = Some(Err(error.clone()));
                    }
                }
                _ => contact = contact.or(Some(Ok(()))),
            }
            lane.found(&answer);
        }
        if contact.is_none() && (lanes.is_empty() || !connection.is_reached()) {
            contact = Some(questions.probe().await);
        }
        let Some(contact) = contact else { continue };
        reached = contact.is_ok();
        was_reached |= reached;
        if let Err(error) = contact {
            failures += 1;
            let why = settings
                .explained(connection.suspicion.explain(&error), was_reached)
                .await;
            if !told {
                warn!(connection = %connection.name, error = %why, "kafka cannot be reached, waiting");
                told = true;
            }
            connection.set_trouble(Some(format!("kafka cannot be reached: {why}")));
            part.down(why);
            connection.set_away();
        } else {
            failures = 0;
            connection.suspicion.answered();
            if std::mem::take(&mut told) {
                info!(connection = %connection.name, "kafka is reached again");
            }
            connection.set_trouble(None);
            part.up();
            connection.set_reached(true);
        }
    }
}

/// Asks the brokers for topics.
struct TopicQuestions {
    connection: Arc<ProducerConnection>,
    settings: Connection,
    /// By topic: how many replicas of a partition must be in sync, and when that was asked for.
    least_replicas: BTreeMap<String, (i64, Option<usize>)>,
}

impl TopicQuestions {
    async fn ask(&mut self, topic: &str, is_refresh: bool) -> TopicAnswer {
        let at_most = if is_refresh {
            REFRESH_TIMEOUT
        } else {
            TOPIC_ANSWER_TIMEOUT
        };
        let mut found: Option<Vec<PartitionState>> = None;
        // Each producer has a view of the topic of its own, which its question brings up to date.
        for producer_kind in ProducerKind::ALL {
            let Some(producer) = self.connection.producer(producer_kind) else {
                continue;
            };
            let (state, partitions) = look_up(producer, topic, at_most).await;
            if !matches!(state, TopicState::There { .. }) {
                return TopicAnswer {
                    topic: state,
                    partitions,
                    least_replicas: None,
                };
            }
            let known = found.filter(|found| found.len() <= partitions.len());
            found = known.or(Some(partitions));
        }
        let Some(partitions) = found else {
            return TopicAnswer::unreachable(REPLACED.to_owned());
        };
        let is_weak = partitions.iter().any(|one| one.in_sync < one.replicas);
        let least_replicas = if is_weak {
            self.least_replicas(topic).await
        } else {
            None
        };
        TopicAnswer {
            topic: TopicState::There {
                partitions: partitions.len(),
            },
            partitions,
            least_replicas,
        }
    }

    /// Asks whether any broker answers.
    async fn probe(&self) -> Result<(), String> {
        let producer = self.connection.producer(ProducerKind::Prompt);
        let producer = producer.ok_or(REPLACED)?;
        match look_up(producer, PROBE_TOPIC, TOPIC_ANSWER_TIMEOUT).await {
            (TopicState::Unreachable(error), _) => Err(error),
            _ => Ok(()),
        }
    }

    /// How many replicas of a partition must be in sync. `None` if the principal may not know.
    async fn least_replicas(&mut self, topic: &str) -> Option<usize> {
        let now_us = self.connection.clock.mono_us();
        let known = self.least_replicas.get(topic);
        if let Some((asked_us, least)) = known
            && now_us - asked_us < SETTINGS_INTERVAL_US
        {
            return *least;
        }
        let least = self.settings.least_replicas(topic).await;
        self.least_replicas
            .insert(topic.to_owned(), (now_us, least));
        least
    }
}

async fn look_up(
    producer: Arc<KafkaProducer>,
    topic: &str,
    at_most: Duration,
) -> (TopicState, Vec<PartitionState>) {
    let topic = topic.to_owned();
    let asked = tokio::task::spawn_blocking(move || {
        kafka::look_up_partitions(producer.client(), &topic, at_most)
    });
    asked
        .await
        .unwrap_or_else(|error| (TopicState::Unreachable(error.to_string()), Vec::new()))
}
