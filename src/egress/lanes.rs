//! All lanes of the process, by target.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::kafka::KafkaLanes;
use super::rabbitmq::RabbitLanes;
use super::{Lane, Lanes, Publication};
use crate::domain::{Refusal, Target, Verdict};

/// The lanes of both technologies.
pub struct AllLanes {
    kafka: KafkaLanes,
    rabbitmq: BTreeMap<String, RabbitLanes>,
}

impl AllLanes {
    /// Joins the lanes of Kafka and of RabbitMQ, the latter by connection.
    pub fn new(kafka: KafkaLanes, rabbitmq: BTreeMap<String, RabbitLanes>) -> Self {
        Self { kafka, rabbitmq }
    }
}

impl Lanes for AllLanes {
    fn lane(&self, target: &Target) -> Arc<dyn Lane> {
        let lane = match target {
            Target::Kafka { .. } => self.kafka.lane(target),
            Target::Rabbitmq {
                connection,
                exchange,
                ..
            } => self
                .rabbitmq
                .get(connection)
                .map(|lanes| lanes.lane(exchange)),
        };
        lane.unwrap_or_else(|| Arc::new(NoLane))
    }
}

/// Lane to a connection that was not started. The checks of the configuration prevent that.
struct NoLane;

impl Lane for NoLane {
    fn submit_all(&self, publications: Vec<Publication>) {
        for publication in publications {
            let error = "no such connection".into();
            let refused = Verdict::Refused {
                reason: Refusal::Unavailable,
                error,
            };
            publication.answer(refused);
        }
    }

    fn backlog(&self) -> usize {
        0
    }

    fn trouble(&self) -> Option<String> {
        Some("no such connection".to_owned())
    }
}
