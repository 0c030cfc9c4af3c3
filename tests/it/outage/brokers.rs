//! Brokers away: what the other one can do goes on meanwhile.

use super::{accounted, away, logged, readiness};
use crate::four::four_routes;
use crate::support::{Kafka, Rabbitmq, Redis, Relay};

/// The n-th message is due after n times this: three seconds of load.
const STEP_MS: u64 = 30;

#[tokio::test]
async fn kafka_not_there_at_start_and_killed_in_mid_flow() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let mut kafka = Kafka::start().await;
    let four = four_routes(redis, &kafka, rabbitmq).await;
    kafka.terminate().await;
    let mut relay = Relay::spawn(&four.config, &[]);
    logged(&relay, &["kafka cannot be reached, waiting"]).await;
    readiness(&relay, 503).await;
    four.send_rabbitmq(rabbitmq, STEP_MS).await;
    kafka.restart().await;
    relay.ready().await;
    tokio::join!(four.send_kafka(&kafka, STEP_MS), four.send_rabbitmq(rabbitmq, STEP_MS));
    assert!(!four.run.ledger().missing().is_empty(), "the kill must come in mid-flow");
    kafka.kill9().await;
    four.send_rabbitmq(rabbitmq, STEP_MS).await;
    let reached = "kafka is reached again";
    logged(&relay, &["kafka cannot be reached, waiting", reached, "kafka cannot be reached, waiting"]).await;
    readiness(&relay, 200).await;
    away().await;
    kafka.restart().await;
    four.send_kafka(&kafka, STEP_MS).await;
    accounted(&four, &relay).await;
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
}

#[tokio::test]
async fn rabbitmq_not_there_at_start_and_killed_in_mid_flow() {
    let (redis, kafka) = tokio::join!(Redis::shared(), Kafka::shared());
    let mut rabbitmq = Rabbitmq::start().await;
    let four = four_routes(redis, kafka, &rabbitmq).await;
    rabbitmq.terminate().await;
    let mut relay = Relay::spawn(&four.config, &[]);
    logged(&relay, &["rabbitmq is away"]).await;
    readiness(&relay, 503).await;
    four.send_kafka(kafka, STEP_MS).await;
    rabbitmq.restart().await;
    relay.ready().await;
    tokio::join!(four.send_kafka(kafka, STEP_MS), four.send_rabbitmq(&rabbitmq, STEP_MS));
    assert!(!four.run.ledger().missing().is_empty(), "the kill must come in mid-flow");
    rabbitmq.kill9().await;
    four.send_kafka(kafka, STEP_MS).await;
    logged(&relay, &["rabbitmq is away", "rabbitmq is up", "rabbitmq is away"]).await;
    readiness(&relay, 200).await;
    away().await;
    rabbitmq.restart().await;
    four.send_rabbitmq(&rabbitmq, STEP_MS).await;
    accounted(&four, &relay).await;
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
}
