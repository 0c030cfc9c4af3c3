//! `max_pending` is a bound, whatever comes at once: over all replicas, and without a stall when messages leave.

use std::time::Duration;

use anyhow::anyhow;

use super::fixture::{FlowFixture, Path, Side, config};
use crate::support::run::now_ms;
use crate::support::{Relay, eventually};

/// The bound, and what is sent at once.
const LIMIT: i64 = 200;
const SENT: usize = 1000;

/// Messages that stand in the store, as Redis has them right now.
async fn stored(relay: &Relay) -> anyhow::Result<i64> {
    let (status, body) = relay.request("GET", "/api/v1/partitions", None, "").await?;
    let page: serde_json::Value = serde_json::from_str(&body)?;
    let items = page["items"]
        .as_array()
        .ok_or_else(|| anyhow!("{status}: {body}"))?;
    items
        .iter()
        .map(|item| {
            item["messages"]
                .as_i64()
                .ok_or_else(|| anyhow!("no number: {item}"))
        })
        .sum()
}

/// Sends all at once, and watches what stands in the store until all have arrived; the most that was seen.
async fn most_stored(from: Side, replicas: usize) -> i64 {
    let fixture = FlowFixture::new().await;
    let path = Path::new("bounded", from, Side::Kafka);
    fixture.open(std::slice::from_ref(&path)).await;
    let config = path.configure(config(&fixture), &format!("max_pending = {LIMIT}"));
    let mut relays = Vec::new();
    for _ in 0..replicas {
        relays.push(Relay::start(&config).await);
    }
    let message = |n: usize| {
        let case = format!("{from:?} {n}");
        // A record from the future counts from its arrival: what waits at ingress is not due when it comes in.
        (
            path.from
                .plain(&case, "k", case.as_bytes())
                .header("x-delay", "1500"),
            now_ms() + 3_600_000,
        )
    };
    let messages: Vec<_> = (0..SENT).map(message).collect();
    let cases: Vec<String> = (0..SENT).map(|n| format!("{from:?} {n}")).collect();
    fixture.send(&path, &messages).await;
    let mut most = 0;
    eventually("the bound is reached", async || {
        most = most.max(stored(&relays[0]).await?);
        if most >= LIMIT / 2 {
            Ok(())
        } else {
            Err(anyhow!("{most} at most"))
        }
    })
    .await;
    let watching = async {
        loop {
            if let Ok(now) = stored(&relays[0]).await {
                most = most.max(now);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = watching => {}
        () = fixture.await_cases(&cases) => {}
    }
    let arrived = fixture.arrived();
    assert!(
        cases.iter().all(|case| arrived[case].len() == 1),
        "each comes once"
    );
    most
}

#[tokio::test]
async fn a_thousand_at_once_from_kafka_never_stand_above_the_bound() {
    let most = most_stored(Side::Kafka, 1).await;
    println!("{most} of {LIMIT}");
    assert!(most <= LIMIT, "{most}");
}

#[tokio::test]
async fn a_thousand_at_once_from_rabbitmq_never_stand_above_the_bound() {
    let most = most_stored(Side::Quorum, 1).await;
    println!("{most} of {LIMIT}");
    assert!(most <= LIMIT, "{most}");
}

/// Two replicas may go over the bound by one replica's share: each may count as free what the other is just using.
#[tokio::test]
async fn two_replicas_share_the_bound() {
    let most = most_stored(Side::Quorum, 2).await;
    println!("{most} of {LIMIT}");
    assert!(most <= LIMIT + LIMIT / 2, "{most}");
}
