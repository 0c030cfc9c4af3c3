//! Callbacks of the client library: rebalances, errors, statistics. All of them run on the consumer's thread,
//! inside its polls.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::TopicPartitionList;
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaRespErr;
use tracing::{debug, error, warn};

use super::group_state::{GroupSetup, GroupState, Unplaced, list, partitions};
use super::placement::PlacementCause;
use super::standstill::{Standstill, is_decode_error};
use crate::broker::kafka::{self, KnownBrokers};
use crate::domain::Endpoint;
use crate::ingress::Sink;

/// Longest wait for the records of a revoked partition to resolve.
const REVOKE_DRAIN_LIMIT: Duration = Duration::from_secs(2);
/// Longest wait for a position from the brokers.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The reason for which a group of another kind of consumers refuses this one.
const OTHER_PROTOCOL: &str = "the members of the group share its partitions by another protocol \
                              (partition.assignment.strategy): another application uses this group, so give the route one of its own";

/// The context of the client library's callbacks: the setup and the state of one consumer.
pub(super) struct GroupContext<S> {
    pub(super) setup: Arc<GroupSetup<S>>,
    pub(super) state: Mutex<GroupState>,
    pub(super) brokers: KnownBrokers,
}

/// The client library's consumer.
pub(super) type GroupClient<S> = BaseConsumer<GroupContext<S>>;

impl<S: Sink> GroupContext<S> {
    pub(super) fn new(setup: Arc<GroupSetup<S>>) -> Self {
        Self {
            setup,
            state: Mutex::default(),
            brokers: KnownBrokers::default(),
        }
    }

    fn assign(&self, consumer: &GroupClient<S>, offered: &TopicPartitionList) {
        {
            let mut state = self.state.lock();
            if state.is_leaving() {
                // Take nothing: the offer is taken back soon, and nobody need ask for start positions.
                state.unplaced.extend(given(offered));
                drop(state);
                self.assign_nothing(consumer);
                return;
            }
            state.warned.clear();
            state.next_verify_us = 0;
            state.is_member = true;
            state.has_joined = true;
            state.group_refusal = None;
        }
        if let Err(error) = self.start_partitions(consumer, given(offered), ANSWER_TIMEOUT) {
            self.state
                .lock()
                .mark_broken(format!("partitions cannot be taken: {error}"));
            self.assign_nothing(consumer);
            self.show_troubles();
        }
    }

    /// Answers an offer of partitions, as every offer must be answered, and takes none of them.
    fn assign_nothing(&self, consumer: &GroupClient<S>) {
        if let Err(error) = consumer.incremental_assign(&TopicPartitionList::new()) {
            debug!(consumer = %self.setup.owner, %error, "an empty kafka assignment was rejected");
        }
    }

    fn revoke(&self, consumer: &GroupClient<S>, revoked: &TopicPartitionList) {
        let keys = partitions(revoked);
        if consumer.assignment_lost() {
            self.state.lock().is_member = false;
        } else if !self.state.lock().is_leaving() {
            self.drain_partitions(consumer, &keys, REVOKE_DRAIN_LIMIT);
        }
        let taken = {
            let mut state = self.state.lock();
            state.remove(&keys);
            // The client library knows only the partitions that were started.
            let taken: Vec<_> = keys
                .iter()
                .filter(|key| !state.unplaced.iter().any(|unplaced| unplaced.key == **key))
                .cloned()
                .collect();
            state
                .unplaced
                .retain(|unplaced| !keys.contains(&unplaced.key));
            taken
        };
        self.show_troubles();
        let taken = list(
            taken
                .iter()
                .map(|(topic, partition)| (topic.as_str(), *partition)),
        );
        if let Err(error) = consumer.incremental_unassign(&taken) {
            self.state
                .lock()
                .mark_broken(format!("partitions cannot be let go: {error}"));
        }
    }

    /// Shows each route why some of its topics are not read, and whether a partition stands.
    pub(super) fn show_troubles(&self) {
        let state = &mut *self.state.lock();
        let topics = self.setup.topics.lock();
        for route in &self.setup.routes {
            let is_one = |topic: &str| {
                topics
                    .route_of(topic)
                    .is_some_and(|reader| reader.name == route.name)
            };
            let health = self.setup.deps.health.route(&route.name);
            for reason in Standstill::REASONS {
                let stands = state
                    .standing(is_one)
                    .any(|(_, _, why)| why.reason() == reason);
                let shown = (route.name.clone(), reason);
                if stands {
                    health.ingress_waits(reason, true);
                    state.standing_routes.insert(shown);
                } else if state.standing_routes.remove(&shown) {
                    health.ingress_waits(reason, false);
                }
            }
            let named = match &route.from {
                Endpoint::Kafka { topics, .. } => topics.to_string(),
                Endpoint::Rabbitmq { .. } => String::new(),
            };
            let trouble = state.trouble(&named, is_one);
            let trouble = trouble.or_else(|| topics.trouble(&route.name));
            // A consumer that leaves has not looked at what it is offered. Its successor shows what it finds.
            if !state.is_leaving() && (trouble.is_some() || state.has_joined) {
                health.source_trouble(trouble);
            }
        }
    }

    /// Notes a reason that keeps topics from being read, and logs it once. The client library names the topic in its own
    /// words, or names none.
    fn report_refused_topic(&self, reason: &str) {
        let words = reason.split([' ', ':', ',']);
        let topics: Vec<&str> = words
            .filter(|word| self.setup.route_of(word).is_some())
            .collect();
        let mut state = self.state.lock();
        if topics.is_empty() {
            state.note_refusal(reason);
        }
        state.refused_topics.extend(
            topics
                .into_iter()
                .map(|topic| (topic.to_string(), reason.to_owned())),
        );
        drop(state);
        self.show_troubles();
        self.warn_once(reason);
    }

    /// Notes a reason that keeps the whole group from being read, and logs it once.
    fn report_refused_group(&self, reason: &str) {
        self.state.lock().group_refusal = Some(reason.to_owned());
        self.show_troubles();
        self.warn_once(reason);
    }

    pub(super) fn warn_once(&self, reason: &str) {
        if self.state.lock().warned.insert(reason.to_owned()) {
            warn!(consumer = %self.setup.owner, reason, "kafka consumer cannot read; retrying");
        }
    }
}

/// Partitions that the group gives.
fn given(offered: &TopicPartitionList) -> Vec<Unplaced> {
    partitions(offered)
        .into_iter()
        .map(|key| Unplaced::new(key, PlacementCause::Given, None))
        .collect()
}

impl<S: Sink> ConsumerContext for GroupContext<S> {
    fn rebalance(
        &self,
        consumer: &GroupClient<S>,
        kind: RDKafkaRespErr,
        list: &mut TopicPartitionList,
    ) {
        debug!(consumer = %self.setup.owner, ?kind, partitions = list.count(), "kafka rebalance");
        if kind == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            self.assign(consumer, list);
        } else {
            self.revoke(consumer, list);
        }
    }
}

impl<S: Sink> ClientContext for GroupContext<S> {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        self.setup.connection.oauth_token()
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        kafka::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        match error.rdkafka_error_code() {
            Some(code) if is_decode_error(code, reason) => self.note_undecodable(reason),
            Some(
                RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::UnknownTopic
                | RDKafkaErrorCode::TopicAuthorizationFailed,
            ) => self.report_refused_topic(reason),
            Some(RDKafkaErrorCode::InconsistentGroupProtocol) => {
                self.report_refused_group(&format!("{reason}; {OTHER_PROTOCOL}"));
            }
            Some(RDKafkaErrorCode::GroupAuthorizationFailed | RDKafkaErrorCode::InvalidGroupId) => {
                self.report_refused_group(reason);
            }
            Some(RDKafkaErrorCode::UnsupportedVersion) if !self.state.lock().is_member => {
                self.report_refused_group(reason);
            }
            Some(RDKafkaErrorCode::Fatal) => {
                error!(consumer = %self.setup.owner, reason, "kafka consumer failed for good, starting another");
                self.state.lock().mark_broken(reason.to_owned());
            }
            _ => self.setup.suspicion.error(&error, reason),
        }
    }

    fn stats(&self, statistics: Statistics) {
        self.brokers.report(&statistics);
        {
            let mut state = self.state.lock();
            // Here a replica without partitions of a topic hears that the topic was created.
            state.refused_topics.retain(|topic, _| {
                let seen = statistics.topics.get(topic);
                !seen.is_some_and(|seen| seen.partitions.keys().any(|partition| *partition >= 0))
            });
            state.find_refused(&statistics);
            state.count_fetched(&statistics);
        }
        self.show_lag(&statistics);
        self.find_standing(&statistics);
        self.show_troubles();
        let setup = &self.setup;
        let client = format!("group:{}", setup.group());
        setup.deps.metrics.kafka_clients.show(
            &setup.connection.name,
            &client,
            kafka::client_report(&statistics),
        );
    }
}
