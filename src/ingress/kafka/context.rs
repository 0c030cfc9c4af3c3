//! What the client library calls back for: rebalances, errors, statistics. All of it
//! happens on the consumer's thread, inside its polls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Offset, TopicPartitionList};
use tracing::{debug, error, warn};

use super::assignment::Position;
use super::commits::commit_starts;
use super::state::{Fixed, Key, State, list, partitions};
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

    fn assign(&self, consumer: &GroupClient<S>, offered: &mut TopicPartitionList) {
        let outcome = self.positions(consumer, offered).and_then(|positions| {
            let mut state = self.state.lock();
            for ((topic, partition), position) in positions {
                let Some(assignment) = self.fixed.begin(&topic, partition, position) else { continue };
                offered.set_partition_offset(&topic, partition, Offset::Offset(position.start))?;
                state.insert(assignment);
            }
            state.complaints.clear();
            state.verified_us = 0;
            consumer.incremental_assign(offered)
        });
        if let Err(error) = outcome {
            self.state.lock().broken = Some(format!("partitions cannot be taken: {error}"));
            // The offer must be answered all the same.
            if let Err(error) = consumer.incremental_assign(&TopicPartitionList::new()) {
                debug!(%error, "kafka consumer takes not even nothing");
            }
        }
    }

    /// Where each partition begins, and what the broker holds: the committed position, else the oldest
    /// record, which is committed then.
    fn positions(
        &self,
        consumer: &GroupClient<S>,
        offered: &TopicPartitionList,
    ) -> KafkaResult<Vec<(Key, Position)>> {
        let keys = partitions(offered);
        if keys.is_empty() || self.state.lock().closing {
            return Ok(Vec::new());
        }
        let asked = list(keys.iter().map(|(topic, partition)| (topic.as_str(), *partition)));
        let committed = consumer.committed_offsets(asked, ANSWER)?;
        let mut positions = Vec::new();
        for held in committed.elements() {
            held.error()?;
            let (topic, partition) = (held.topic().to_owned(), held.partition());
            let position = if let Offset::Offset(offset) = held.offset() {
                Position { start: offset, committed: Some(offset) }
            } else {
                let (oldest, _) = consumer.fetch_watermarks(&topic, partition, ANSWER)?;
                Position { start: oldest, committed: None }
            };
            positions.push(((topic, partition), position));
        }
        commit_starts(consumer, &mut positions);
        Ok(positions)
    }

    fn revoke(&self, consumer: &GroupClient<S>, revoked: &TopicPartitionList) {
        let keys = partitions(revoked);
        if !consumer.assignment_lost() && !self.state.lock().closing {
            self.settle(consumer, &keys, REVOKE);
        }
        self.state.lock().remove(&keys);
        if let Err(error) = consumer.incremental_unassign(revoked) {
            self.state.lock().broken = Some(format!("partitions cannot be let go: {error}"));
        }
    }

    /// Says once what costs a route or the group its records.
    fn complain(&self, reason: &str) {
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
        let mut lags: BTreeMap<_, i64> = self.fixed.routes.values().map(|r| (r.name.clone(), 0)).collect();
        for assignment in &self.state.lock().assignments {
            let topic = statistics.topics.get(&*assignment.topic);
            let Some(partition) = topic.and_then(|t| t.partitions.get(&assignment.partition)) else {
                continue;
            };
            let lag = (partition.hi_offset - assignment.next).max(0);
            *lags.entry(assignment.route.name.clone()).or_default() += lag;
        }
        for (route, lag) in lags {
            if let Some(metrics) = self.fixed.around.metrics.route(&route) {
                metrics.ingress_lag.set(lag);
            }
        }
    }
}
