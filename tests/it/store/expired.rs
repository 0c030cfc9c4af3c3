//! The claims of a dead holder come back by their deadline and four seconds, however many they are.

use std::time::Duration;

use futures_util::future::join_all;
use postdate::domain::{Partition, UnixMs};
use postdate::store::ClaimRequest;

use super::fixture::*;
use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, names};

/// `timer.claim` of the relay, and the lease of the dead holder's claims.
const CLAIM_MS: i64 = 10_000;
/// Time after a claim's deadline in which its bundle is due again.
const BACK_MS: i64 = 4_000;

/// A relay that does not publish, on a store with a route of this order.
async fn relay(redis: &Redis, prefix: &str, partitions: u16, order: &str) -> Relay {
    let rabbitmq = Rabbitmq::shared().await;
    let queue = names::unique("queue");
    rabbitmq.declare_queue(&queue, QueueKind::Classic).await;
    let config = Config::under(&format!("url = \"{}\"", redis.url()), prefix)
        .redis(&format!("partitions = {partitions}"))
        .rabbitmq("main", rabbitmq)
        .route(
            "orders",
            &format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#),
            r#"{ rabbitmq = "main", exchange = "", routing_key = "nowhere" }"#,
            order,
        )
        .section(&format!("[timer]\nclaim = \"{CLAIM_MS}ms\""));
    let mut raw = redis.connection().await.expect("connected");
    redis::cmd("HSET")
        .arg(format!("{prefix}:paused"))
        .arg("orders/publishing")
        .arg("1")
        .query_async::<()>(&mut raw)
        .await
        .expect("paused");
    Relay::start(&config).await
}

/// Stores lone bundles and claims all of them. Answers the last deadline.
async fn claimed_by_the_dead(fixture: &StoreFixture, bundles: usize) -> UnixMs {
    for first in (0..bundles).step_by(200) {
        let ops = (first..bundles.min(first + 200)).map(|_| keep(vec![unnamed(past(), "x")]));
        fixture.write(ops.collect()).await;
    }
    // On a slow machine some have expired, and come back, before the last is claimed.
    let claims = fixture.key("claims");
    while fixture.command::<i64>(&["ZCARD", &claims]).await < bundles as i64 {
        let request = ClaimRequest {
            max_bundles: 1000,
            ..fixture.request(CLAIM_MS as u64).await
        };
        let claimed = fixture.store.claim_unread(&request).await;
        drop(claimed.expect("claimed"));
    }
    let last: Vec<(String, f64)> = fixture
        .command(&["ZRANGE", &claims, "-1", "-1", "WITHSCORES"])
        .await;
    UnixMs(last[0].1 as i64)
}

/// How long a process could have run while others had the processors, ms.
fn waited_ms(process: u32) -> i64 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let of_thread = |thread: std::io::Result<std::fs::DirEntry>| {
        let figures = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        figures.split(' ').nth(1)?.parse::<i64>().ok()
    };
    threads.filter_map(of_thread).max().unwrap_or(0) / 1_000_000
}

/// Has a holder of so many lone bundles die, over so many partitions.
async fn all_come_back(bundles: usize, partitions: u16, order: &str) {
    let redis = Redis::start().await;
    let prefix = names::unique("store");
    let relay = relay(&redis, &prefix, partitions, order).await;
    relay.unobserved("messages that nobody published are in its store");
    let first = if order.is_empty() {
        StoreFixture::of(config(&redis.url(), &prefix, partitions), &redis, 0).await
    } else {
        StoreFixture::ordered_of(config(&redis.url(), &prefix, partitions), &redis).await
    };
    let fixtures: Vec<StoreFixture> = (0..partitions).map(|p| first.at(Partition(p))).collect();
    let each = bundles / usize::from(partitions);
    let deadlines = join_all(
        fixtures
            .iter()
            .map(|fixture| claimed_by_the_dead(fixture, each)),
    )
    .await;
    let deadline = deadlines.into_iter().max().expect("some");
    let processes = [redis.id(), relay.id()];
    let mut waited = None;
    loop {
        // Asked in this order: what is still claimed was claimed at that moment.
        let time: Vec<i64> = first.command(&["TIME"]).await;
        let now = time[0] * 1000 + time[1] / 1000;
        let mut left = 0;
        for fixture in &fixtures {
            let until = deadline.0.to_string();
            left += fixture
                .command::<i64>(&["ZCOUNT", &fixture.key("claims"), "-inf", &until])
                .await;
        }
        if left == 0 {
            return;
        }
        if now > deadline.0 {
            let is: i64 = processes.into_iter().map(waited_ms).sum();
            let kept_waiting = is - *waited.get_or_insert(is);
            assert!(
                now <= deadline.0 + BACK_MS + kept_waiting,
                "{left} of {bundles} in {partitions} partitions are still claimed"
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn fifty_thousand_lone_claims_of_the_dead_in_eight_partitions_come_back_in_time() {
    all_come_back(50_000, 8, "").await;
}

#[tokio::test]
async fn fifty_thousand_lone_claims_of_the_dead_in_sixty_four_partitions_come_back_in_time() {
    all_come_back(50_000, 64, "").await;
}

#[tokio::test]
async fn lone_claims_of_the_dead_on_an_ordered_route_come_back_in_time() {
    all_come_back(10_000, 8, "order = \"key\"").await;
}
