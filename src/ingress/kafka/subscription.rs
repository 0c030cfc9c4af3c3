//! The topics that a consumer is subscribed to: those that its routes name, and those that match their patterns. Which
//! these are is asked twice a minute.

use std::time::Duration;

use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaResult;
use tracing::{debug, info};

use super::rebalance::GroupClient;
use super::start_positions::LOOKUP_REST_FACTOR;
use crate::broker::kafka;
use crate::ingress::Sink;

/// Time between two questions for the topics of the cluster.
const LIST_INTERVAL_US: i64 = 30_000_000;
/// Shortest time until the question is asked again that had no answer.
const RETRY_INTERVAL_US: i64 = 1_000_000;
/// Longest wait for an answer.
const LIST_DEADLINE: Duration = Duration::from_secs(3);

/// What one consumer is subscribed to.
#[derive(Default)]
pub(super) struct Subscription {
    topics: Vec<String>,
    /// Monotonic microseconds of the next question for the topics of the cluster.
    next_list_us: i64,
}

impl Subscription {
    /// Subscribes to what is to be read by now, if that has changed.
    pub(super) fn keep<S: Sink>(
        &mut self,
        consumer: &GroupClient<S>,
        now_us: i64,
    ) -> KafkaResult<()> {
        let context = consumer.context();
        let setup = &context.setup;
        if !setup.topics.lock().has_patterns() {
            return if self.topics.is_empty() {
                self.subscribe(consumer)
            } else {
                Ok(())
            };
        }
        if now_us < self.next_list_us {
            return Ok(());
        }
        let listed = kafka::list_topics(consumer.client(), LIST_DEADLINE);
        let took_us = setup.deps.clock.mono_us() - now_us;
        match listed {
            Ok(listed) => {
                self.next_list_us = now_us + LIST_INTERVAL_US;
                setup.topics.lock().found(listed.keys().map(String::as_str));
                self.subscribe(consumer)
            }
            Err(error) => {
                // Whoever keeps the contact says that no broker answers.
                debug!(consumer = %setup.owner, error, "kafka does not tell its topics");
                self.next_list_us = now_us + RETRY_INTERVAL_US.max(took_us * LOOKUP_REST_FACTOR);
                Ok(())
            }
        }
    }

    fn subscribe<S: Sink>(&mut self, consumer: &GroupClient<S>) -> KafkaResult<()> {
        let context = consumer.context();
        let topics: Vec<String> = {
            let topics = context.setup.topics.lock();
            topics.topics().map(ToString::to_string).collect()
        };
        if topics != self.topics {
            let names: Vec<&str> = topics.iter().map(String::as_str).collect();
            if names.is_empty() {
                consumer.unsubscribe();
            } else {
                consumer.subscribe(&names)?;
            }
            info!(consumer = %context.setup.owner, topics = names.len(), "kafka consumer is subscribed to its topics");
            context.state.lock().is_subscribed = !names.is_empty();
            self.topics = topics;
        }
        context.show_troubles();
        Ok(())
    }
}
