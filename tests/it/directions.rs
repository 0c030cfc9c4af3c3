//! All four directions with the accounting on: nothing lost, early, changed, misrouted or twice.

use crate::four::{COUNT, four_routes};
use crate::support::{Kafka, Rabbitmq, Redis, Relay};

#[tokio::test]
async fn every_message_of_all_four_directions_is_accounted_for() {
    let (redis, kafka, rabbitmq) = tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let four = four_routes(redis, kafka, rabbitmq).await;
    let mut relay = Relay::start(&four.config).await;
    four.send(kafka, rabbitmq).await;
    four.run.drain(&relay).await;
    let report = four.run.report();
    report.assert_accounted(0);
    assert_eq!((report.delivered, report.fail, report.info), (4 * COUNT as usize, 0, 0));
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
}

#[tokio::test]
async fn sigterm_in_mid_flow_and_a_restart_repeat_nothing() {
    let (redis, kafka, rabbitmq) = tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let four = four_routes(redis, kafka, rabbitmq).await;
    let mut relay = Relay::start(&four.config).await;
    four.send(kafka, rabbitmq).await;
    let before = four.run.ledger().missing().len();
    assert!(before > 0, "the stop must come in mid-flow");
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
    relay.restart().await;
    four.run.drain(&relay).await;
    four.run.report().assert_accounted(0);
}

#[tokio::test]
async fn kill_9_in_mid_flow_and_a_restart_lose_nothing_and_explain_each_duplicate() {
    let (redis, kafka, rabbitmq) = tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let mut four = four_routes(redis, kafka, rabbitmq).await;
    four.config = four.config.section("[timer]\nclaim = \"2s\"");
    let mut relay = Relay::start(&four.config).await;
    four.send(kafka, rabbitmq).await;
    assert!(!four.run.ledger().missing().is_empty(), "the kill must come in mid-flow");
    relay.kill9().await;
    relay.restart().await;
    four.run.drain(&relay).await;
    let explained = relay.total("postdate_redelivered_total", &[]).await;
    four.run.report().assert_accounted(explained as usize);
}
