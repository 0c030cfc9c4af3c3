//! Redis's disk full: it refuses every write (`MISCONF`) until there is room.

use super::{accounted, away, health, logged};
use crate::fixture::four_routes;
use crate::support::{Kafka, Rabbitmq, Redis, Relay, eventually};

/// Waits until ingress is paused for the store's sake on every route, or on none.
async fn paused(relay: &Relay, expected: bool) {
    eventually(&format!("ingress is paused: {expected}"), async || {
        let paused = relay
            .metrics()
            .await?
            .sum("postdate_ingress_paused", &[("reason", "store")]);
        if (paused > 3.5) == expected && (paused < 0.5) != expected {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{paused}"))
        }
    })
    .await;
}

async fn fills_up_in_mid_flow(options: &[&str], refusal: &str) {
    let (kafka, rabbitmq) = tokio::join!(Kafka::shared(), Rabbitmq::shared());
    let redis = Redis::start_fillable(options).await;
    let mut fixture = four_routes(&redis, kafka, rabbitmq).await;
    fixture.config = fixture.config.section("[timer]\nclaim = \"2s\"");
    let mut relay = Relay::start(&fixture.config).await;
    fixture.send(kafka, rabbitmq).await;
    assert!(
        !fixture.run.ledger().missing().is_empty(),
        "it must fill up in mid-flow"
    );
    redis.fill_disk(true);
    eventually("redis refuses to write", async || {
        match redis.command::<()>(&["SET", "probe", "1"]).await {
            Err(refused) if refused.to_string().contains(refusal) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    fixture.send(kafka, rabbitmq).await;
    paused(&relay, true).await;
    logged(
        &relay,
        &["trouble begins", "the store takes nothing in", "MISCONF"],
    )
    .await;
    health(&relay, 200).await;
    away().await;
    assert!(
        !fixture.run.ledger().missing().is_empty(),
        "what is to be stored waits in its source"
    );
    redis.fill_disk(false);
    paused(&relay, false).await;
    logged(&relay, &["trouble is over"]).await;
    fixture.send(kafka, rabbitmq).await;
    accounted(&fixture, &relay).await;
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
}

#[tokio::test]
async fn no_room_for_the_append_only_file() {
    fills_up_in_mid_flow(&[], "writing to the AOF file").await;
}

#[tokio::test]
async fn no_room_for_a_snapshot() {
    fills_up_in_mid_flow(&["--appendonly", "no", "--save", "1", "1"], "RDB snapshots").await;
}
