//! Redis away.

use super::{accounted, away, health, logged};
use crate::fixture::four_routes;
use crate::support::{Kafka, Rabbitmq, Redis, Relay};

#[tokio::test]
async fn redis_not_there_at_start_and_killed_in_mid_flow() {
    let (kafka, rabbitmq) = tokio::join!(Kafka::shared(), Rabbitmq::shared());
    // What a killed Redis has answered must be in its file: the tiers are not what is tested here.
    let mut redis = Redis::start_with("redis-server", &["--appendfsync", "always"]).await;
    let fixture = four_routes(&redis, kafka, rabbitmq).await;
    redis.terminate().await;
    let mut relay = Relay::spawn(&fixture.config, &[]);
    logged(&relay, &["waiting for the store"]).await;
    health(&relay, 503).await;
    fixture.send(kafka, rabbitmq).await;
    redis.restart().await;
    relay.ready().await;
    fixture.send(kafka, rabbitmq).await;
    assert!(
        !fixture.run.ledger().missing().is_empty(),
        "the kill must come in mid-flow"
    );
    redis.kill9().await;
    health(&relay, 503).await;
    fixture.send(kafka, rabbitmq).await;
    away().await;
    redis.restart().await;
    health(&relay, 200).await;
    fixture.send(kafka, rabbitmq).await;
    logged(
        &relay,
        &["redis is away; waiting for it", "connected to redis"],
    )
    .await;
    accounted(&fixture, &relay).await;
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
}

#[tokio::test]
async fn redis_that_hangs_for_longer_than_claims_last() {
    let (kafka, rabbitmq) = tokio::join!(Kafka::shared(), Rabbitmq::shared());
    let mut redis = Redis::start().await;
    let mut fixture = four_routes(&redis, kafka, rabbitmq).await;
    fixture.config = fixture.config.section("[timer]\nclaim = \"2s\"");
    let mut relay = Relay::start(&fixture.config).await;
    fixture.send(kafka, rabbitmq).await;
    assert!(
        !fixture.run.ledger().missing().is_empty(),
        "it must hang in mid-flow"
    );
    redis.stop();
    fixture.send(kafka, rabbitmq).await;
    health(&relay, 503).await;
    away().await;
    redis.cont();
    health(&relay, 200).await;
    logged(
        &relay,
        &["redis is away; waiting for it", "connected to redis"],
    )
    .await;
    // Also one that starts meanwhile says what it waits for.
    redis.stop();
    relay.kill9().await;
    relay.spawn_again();
    health(&relay, 503).await;
    away().await;
    redis.cont();
    health(&relay, 200).await;
    logged(&relay, &["waiting for the store", "the store is reached"]).await;
    accounted(&fixture, &relay).await;
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
}
