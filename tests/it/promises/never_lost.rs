//! Promise: no confirmed message is lost. Other tests of it: `outage`, `cluster`, `topology`, `replay`, and the chaos suite.

use crate::fixture::{COUNT, four_routes};
use crate::support::{Kafka, Rabbitmq, Redis, Relay};

#[tokio::test]
async fn every_message_of_all_four_directions_is_accounted_for() {
    let (redis, kafka, rabbitmq) =
        tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let fixture = four_routes(redis, kafka, rabbitmq).await;
    let mut relay = Relay::start(&fixture.config).await;
    fixture.send(kafka, rabbitmq).await;
    fixture.run.drain(&relay).await;
    let report = fixture.run.report();
    report.assert_accounted(0);
    assert_eq!(
        (report.delivered, report.fail, report.info),
        (4 * COUNT as usize, 0, 0)
    );
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
}

#[tokio::test]
async fn kill_9_in_mid_flow_and_a_restart_lose_nothing_and_explain_each_duplicate() {
    let (redis, kafka, rabbitmq) =
        tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let mut fixture = four_routes(redis, kafka, rabbitmq).await;
    fixture.config = fixture.config.section("[timer]\nclaim = \"2s\"");
    let mut relay = Relay::start(&fixture.config).await;
    fixture.send(kafka, rabbitmq).await;
    assert!(
        !fixture.run.ledger().missing().is_empty(),
        "the kill must come in mid-flow"
    );
    relay.kill9().await;
    relay.restart().await;
    fixture.run.drain(&relay).await;
    let explained = relay.total("postdate_redelivered_total", &[]).await;
    fixture.run.report().assert_accounted(explained as usize);
}
