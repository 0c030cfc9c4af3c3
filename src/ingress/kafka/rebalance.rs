//! What the client library calls back for: rebalances, errors, statistics. All of it
//! happens on the consumer's thread, inside its polls.

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

use super::group_state::{Fixed, State, list, partitions};
use crate::broker::kafka;
use crate::ingress::Sink;

/// How long a revoked partition's records may take to resolve before it is let go.
const REVOKE: Duration = Duration::from_secs(2);
/// How long the brokers may take to tell a position.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

pub(super) struct Context<S> {
    pub(super) fixed: Arc<Fixed<S>>,
    pub(super) state: Mutex<State>,
}

pub(super) type GroupClient<S> = BaseConsumer<Context<S>>;

impl<S: Sink> Context<S> {
    pub(super) fn new(fixed: Arc<Fixed<S>>) -> Self {
        Self { fixed, state: Mutex::default() }
    }

    fn assign(&self, consumer: &GroupClient<S>, offered: &TopicPartitionList) {
        {
            let mut state = self.state.lock();
            if state.closing {
                // It leaves: what it is offered now is taken back soon, and nobody need ask where to begin.
                state.unplaced.extend(partitions(offered));
                drop(state);
                self.take_nothing(consumer);
                return;
            }
            state.complaints.clear();
            state.verified_us = 0;
            state.is_member = true;
        }
        if let Err(error) = self.take_up(consumer, partitions(offered), ANSWER) {
            self.state.lock().broken = Some(format!("partitions cannot be taken: {error}"));
            self.take_nothing(consumer);
        }
    }

    /// Answers an offer of partitions, as every one must be, and takes none of them.
    fn take_nothing(&self, consumer: &GroupClient<S>) {
        if let Err(error) = consumer.incremental_assign(&TopicPartitionList::new()) {
            debug!(consumer = %self.fixed.owner, %error, "an empty kafka assignment was rejected");
        }
    }

    fn revoke(&self, consumer: &GroupClient<S>, revoked: &TopicPartitionList) {
        let keys = partitions(revoked);
        if consumer.assignment_lost() {
            self.state.lock().is_member = false;
        } else if !self.state.lock().closing {
            self.settle(consumer, &keys, REVOKE);
        }
        let taken = {
            let mut state = self.state.lock();
            state.remove(&keys);
            // The client library knows only of those that were taken up.
            let taken: Vec<_> = keys.iter().filter(|key| !state.unplaced.contains(key)).cloned().collect();
            state.unplaced.retain(|key| !keys.contains(key));
            taken
        };
        let taken = list(taken.iter().map(|(topic, partition)| (topic.as_str(), *partition)));
        if let Err(error) = consumer.incremental_unassign(&taken) {
            self.state.lock().broken = Some(format!("partitions cannot be let go: {error}"));
        }
    }

    /// Takes back what was said of a topic.
    pub(super) fn is_read(&self, topic: &str) {
        let route = self.fixed.routes.get(topic);
        if let Some(metrics) = route.and_then(|route| self.fixed.around.metrics.route(&route.name)) {
            metrics.source_trouble(None);
        }
    }

    /// Says once what costs a route or the group its records.
    fn complain(&self, reason: &str) {
        // The client library names the topic in its words; what names none concerns the whole group.
        let names = |topic: &str| reason.split([' ', ':', ',']).any(|word| word == topic);
        let one = self.fixed.routes.keys().any(|topic| names(topic));
        for (topic, route) in self.fixed.routes.iter().filter(|(topic, _)| !one || names(topic)) {
            if let Some(metrics) = self.fixed.around.metrics.route(&route.name) {
                metrics.source_trouble(Some(format!("topic {topic}: {reason}")));
            }
            if one {
                self.state.lock().missing.insert(topic.to_string());
            }
        }
        self.warn_once(reason);
    }

    /// Says once that a partition's place is not known. Taken back when a partition of the topic is taken up.
    pub(super) fn complain_of(&self, topic: &str, partition: i32) {
        let reason = format!("{topic}/{partition}: nobody tells where to begin");
        let route = self.fixed.routes.get(topic);
        if let Some(metrics) = route.and_then(|route| self.fixed.around.metrics.route(&route.name)) {
            metrics.source_trouble(Some(format!("topic {reason}")));
        }
        self.warn_once(&reason);
    }

    pub(super) fn warn_once(&self, reason: &str) {
        if self.state.lock().complaints.insert(reason.to_owned()) {
            warn!(consumer = %self.fixed.owner, reason, "kafka consumer cannot read, looks again");
        }
    }
}

impl<S: Sink> ConsumerContext for Context<S> {
    fn rebalance(&self, consumer: &GroupClient<S>, kind: RDKafkaRespErr, list: &mut TopicPartitionList) {
        debug!(consumer = %self.fixed.owner, ?kind, partitions = list.count(), "kafka rebalance");
        if kind == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            self.assign(consumer, list);
        } else {
            self.revoke(consumer, list);
        }
    }
}

impl<S: Sink> ClientContext for Context<S> {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        kafka::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        match error.rdkafka_error_code() {
            Some(
                RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::UnknownTopic
                | RDKafkaErrorCode::TopicAuthorizationFailed
                | RDKafkaErrorCode::GroupAuthorizationFailed,
            ) => self.complain(reason),
            Some(RDKafkaErrorCode::Fatal) => {
                error!(consumer = %self.fixed.owner, reason, "kafka consumer failed for good, starting another");
                self.state.lock().broken = Some(reason.to_owned());
            }
            _ => self.fixed.suspicion.error(&error, reason),
        }
    }

    fn stats(&self, statistics: Statistics) {
        // A replica that is assigned nothing of a topic that has come hears of it here.
        self.state.lock().missing.retain(|topic| {
            let seen = statistics.topics.get(topic);
            let there = seen.is_some_and(|seen| seen.partitions.keys().any(|partition| *partition >= 0));
            if there {
                self.is_read(topic);
            }
            !there
        });
        self.show_lag(&statistics);
    }
}
