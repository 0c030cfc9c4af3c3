//! A relay that is killed within moments of its claims, life after life, beside a Redis that is far away.

use std::collections::BTreeSet;
use std::time::Duration;

use lapin::options::BasicGetOptions;
use postdate::domain::Partition;

use super::fixture::*;
use crate::support::process::Signal;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, eventually, names};

/// A round trip of four milliseconds.
const FAR: Mode = Mode::Delay(Duration::from_millis(2));
const MESSAGES: u32 = 600;
/// Messages of a bundle.
const TOGETHER: u32 = 3;
const PARTITIONS: u16 = 2;
/// Time from a life's first claim to its end, ms: before it is measured, before it is read, before it is opened, while
/// it is divided or published.
const KILLED_AFTER_MS: [u64; 8] = [0, 2, 4, 0, 6, 9, 4, 14];

/// How many claims have not expired.
async fn claims(fixtures: &[StoreFixture]) -> i64 {
    let mut valid = 0;
    for fixture in fixtures {
        let time: Vec<i64> = fixture.command(&["TIME"]).await;
        let now = (time[0] * 1000 + time[1] / 1000).to_string();
        valid += fixture
            .command::<i64>(&["ZCOUNT", &fixture.key("claims"), &now, "+inf"])
            .await;
    }
    valid
}

#[tokio::test]
async fn quick_kills_bury_nobody() {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let proxy = Proxy::before(redis.port()).await;
    let prefix = names::unique("store");
    let queue = names::unique("queue");
    for end in ["in", "out"] {
        rabbitmq
            .declare_queue(&format!("{queue}-{end}"), QueueKind::Classic)
            .await;
    }
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let config_file = Config::under(&format!("url = \"{url}\""), &prefix)
        .redis(&format!("partitions = {PARTITIONS}"))
        .rabbitmq("main", rabbitmq)
        .route(
            "orders",
            &format!(r#"{{ rabbitmq = "main", queue = "{queue}-in" }}"#),
            &format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{queue}-out" }}"#),
            "",
        )
        .section("[timer]\nclaim = \"1s\"");
    let mut relay = Relay::start(&config_file).await;
    relay.unobserved("each of its lives ends by a kill");
    let first = StoreFixture::of(config(&redis.url(), &prefix, PARTITIONS), &redis, 0).await;
    let fixtures: Vec<StoreFixture> = (0..PARTITIONS).map(|p| first.at(Partition(p))).collect();
    relay.signal(Signal::KILL);
    relay.wait(Duration::from_secs(10)).await.expect("killed");
    for n in (0..MESSAGES).step_by(TOGETHER as usize) {
        let some = (n..n + TOGETHER).map(|n| unnamed(past(), &n.to_string()));
        fixtures[(n % u32::from(PARTITIONS)) as usize]
            .keep(some.collect())
            .await;
    }
    proxy.set(FAR);
    for after in KILLED_AFTER_MS {
        relay.spawn_again();
        let claiming = async {
            while claims(&fixtures).await == 0 && first.counts().await.messages > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), claiming)
            .await
            .expect("it claims");
        tokio::time::sleep(Duration::from_millis(after)).await;
        relay.signal(Signal::KILL);
        relay.wait(Duration::from_secs(10)).await.expect("killed");
        eventually("its claims have expired", async || {
            match claims(&fixtures).await {
                0 => Ok(()),
                some => Err(some),
            }
        })
        .await;
    }
    relay.restart().await;
    let channel = rabbitmq
        .connect()
        .await
        .expect("connected")
        .create_channel()
        .await
        .expect("a channel");
    let mut arrived = BTreeSet::new();
    let target = format!("{queue}-out");
    eventually("all have arrived", async || {
        let options = BasicGetOptions { no_ack: true };
        while let Some(got) = channel
            .basic_get(target.as_str().into(), options)
            .await
            .expect("an answer")
        {
            arrived.insert(got.delivery.data);
        }
        let dead = first.counts().await.dead;
        assert_eq!(dead, 0, "nobody is a dead letter");
        if arrived.len() == MESSAGES as usize {
            Ok(())
        } else {
            Err(format!("{} of {MESSAGES}", arrived.len()))
        }
    })
    .await;
}
