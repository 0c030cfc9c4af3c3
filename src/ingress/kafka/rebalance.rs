//! Callbacks of the client library: rebalances, errors, statistics. All of them run on the consumer's thread,
//! inside its polls.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::TopicPartitionList;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaRespErr;
use tracing::{debug, error, warn};

use super::group_state::{GroupSetup, GroupState, list, partitions};
use super::undecodable::is_decode_error;
use crate::broker::kafka;
use crate::ingress::Sink;

/// Longest wait for the records of a revoked partition to resolve.
const REVOKE_DRAIN_LIMIT: Duration = Duration::from_secs(2);
/// Longest wait for a position from the brokers.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The context of the client library's callbacks: the setup and the state of one consumer.
pub(super) struct GroupContext<S> {
    pub(super) setup: Arc<GroupSetup<S>>,
    pub(super) state: Mutex<GroupState>,
}

/// The client library's consumer.
pub(super) type GroupClient<S> = BaseConsumer<GroupContext<S>>;

impl<S: Sink> GroupContext<S> {
    pub(super) fn new(setup: Arc<GroupSetup<S>>) -> Self {
        Self { setup, state: Mutex::default() }
    }

    fn assign(&self, consumer: &GroupClient<S>, offered: &TopicPartitionList) {
        {
            let mut state = self.state.lock();
            if state.is_leaving() {
                // Take nothing: the offer is taken back soon, and nobody need ask for start positions.
                state.unplaced.extend(partitions(offered));
                drop(state);
                self.assign_nothing(consumer);
                return;
            }
            state.warned.clear();
            state.verified_us = 0;
            state.is_member = true;
            state.is_refused = false;
        }
        if let Err(error) = self.start_partitions(consumer, partitions(offered), ANSWER_TIMEOUT) {
            self.state.lock().mark_broken(format!("partitions cannot be taken: {error}"));
            self.assign_nothing(consumer);
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
            let taken: Vec<_> = keys.iter().filter(|key| !state.unplaced.contains(key)).cloned().collect();
            state.unplaced.retain(|key| !keys.contains(key));
            taken
        };
        self.show_standing();
        let taken = list(taken.iter().map(|(topic, partition)| (topic.as_str(), *partition)));
        if let Err(error) = consumer.incremental_unassign(&taken) {
            self.state.lock().mark_broken(format!("partitions cannot be let go: {error}"));
        }
    }

    /// Takes back the trouble of a topic.
    pub(super) fn clear_trouble(&self, topic: &str) {
        let route = self.setup.routes.get(topic);
        if let Some(metrics) = route.and_then(|route| self.setup.deps.metrics.route(&route.name)) {
            metrics.source_trouble(None);
        }
    }

    /// Reports a reason that keeps a route or the whole group from its records, and logs it once.
    fn report_trouble(&self, reason: &str) {
        // The client library names the topic in its own words. A reason without a topic concerns the whole
        // group.
        let names = |topic: &str| reason.split([' ', ':', ',']).any(|word| word == topic);
        let one = self.setup.routes.keys().any(|topic| names(topic));
        for (topic, route) in self.setup.routes.iter().filter(|(topic, _)| !one || names(topic)) {
            if let Some(metrics) = self.setup.deps.metrics.route(&route.name) {
                metrics.source_trouble(Some(format!("topic {topic}: {reason}")));
            }
            if one {
                self.state.lock().missing_topics.insert(topic.to_string());
            }
        }
        self.warn_once(reason);
    }

    /// Reports a partition without a known start position. Taken back when a partition of the topic is started.
    pub(super) fn report_unplaced(&self, topic: &str, partition: i32) {
        let reason = format!("{topic}/{partition}: nobody tells where to begin");
        let route = self.setup.routes.get(topic);
        if let Some(metrics) = route.and_then(|route| self.setup.deps.metrics.route(&route.name)) {
            metrics.source_trouble(Some(format!("topic {reason}")));
        }
        self.warn_once(&reason);
    }

    pub(super) fn warn_once(&self, reason: &str) {
        if self.state.lock().warned.insert(reason.to_owned()) {
            warn!(consumer = %self.setup.owner, reason, "kafka consumer cannot read; retrying");
        }
    }
}

impl<S: Sink> ConsumerContext for GroupContext<S> {
    fn rebalance(&self, consumer: &GroupClient<S>, kind: RDKafkaRespErr, list: &mut TopicPartitionList) {
        debug!(consumer = %self.setup.owner, ?kind, partitions = list.count(), "kafka rebalance");
        if kind == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            self.assign(consumer, list);
        } else {
            self.revoke(consumer, list);
        }
    }
}

impl<S: Sink> ClientContext for GroupContext<S> {
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
            ) => self.report_trouble(reason),
            Some(RDKafkaErrorCode::GroupAuthorizationFailed) => {
                self.state.lock().is_refused = true;
                self.report_trouble(reason);
            }
            Some(RDKafkaErrorCode::Fatal) => {
                error!(consumer = %self.setup.owner, reason, "kafka consumer failed for good, starting another");
                self.state.lock().mark_broken(reason.to_owned());
            }
            _ => self.setup.suspicion.error(&error, reason),
        }
    }

    fn stats(&self, statistics: Statistics) {
        // Here a replica without partitions of a topic hears that the topic was created.
        self.state.lock().missing_topics.retain(|topic| {
            let seen = statistics.topics.get(topic);
            let there = seen.is_some_and(|seen| seen.partitions.keys().any(|partition| *partition >= 0));
            if there {
                self.clear_trouble(topic);
            }
            !there
        });
        self.show_lag(&statistics);
        self.find_standing(&statistics);
        let setup = &self.setup;
        let client = format!("group:{}", setup.group());
        setup.deps.metrics.kafka_clients.show(
            &setup.connection.name,
            &client,
            kafka::client_report(&statistics),
        );
    }
}
