//! A store whose keys are taken away or overwritten, one that comes back empty.

use std::time::Duration;

use tokio::time::Instant;

use crate::outcome::Outcome;
use crate::scenario::{Scale, Scenario, Setup};
use crate::store;
use crate::support::producers::kafka_producer;
use crate::support::{Relay, When, eventually};

/// Messages that lie in the store while it is damaged.
const WAITING: u64 = 800;

/// Sends so many to the first way, due between 30 and 36 s from now, and waits until they are stored.
async fn waiting(scenario: &Scenario) {
    let way = &scenario.ways[0];
    let message = |n| {
        scenario
            .run
            .message(&way.label(), When::At(30_000 + n % 60 * 100))
            .key(&format!("key-{n}"))
    };
    let producer = kafka_producer(scenario.kafka.get().server.client());
    scenario
        .run
        .send_kafka_by(&producer, &way.source, (0..WAITING).map(message).collect())
        .await;
    eventually("all are stored", async || {
        let stored = scenario.total("postdate_stored_total", &[]).await;
        if stored >= WAITING as f64 {
            Ok(())
        } else {
            Err(stored)
        }
    })
    .await;
}

/// How many messages a bundle has, by its blob's key.
fn messages_of(blob: &str) -> usize {
    let count = blob
        .rsplit('.')
        .next()
        .expect("a bundle's id ends with its count");
    usize::from_str_radix(count, 36).expect("in base 36")
}

pub(super) async fn keys(scale: Scale) -> Outcome {
    let setup = Setup {
        patience: Duration::from_secs(150),
        ..Setup::default()
    };
    let mut scenario = Scenario::start(scale, setup).await;
    waiting(&scenario).await;
    scenario.inject(&scenario.all()).await;
    let mut connection = scenario.store().await;
    let mut blobs = store::keys(&mut connection, &format!("{}:{{*}}:b:*", scenario.prefix))
        .await
        .expect("SCAN");
    scenario.rng.shuffle(&mut blobs);
    let deleted = blobs.split_off(blobs.len() - 3);
    let overwritten = blobs.split_off(blobs.len() - 3);
    for blob in &deleted {
        redis::cmd("DEL")
            .arg(blob)
            .query_async::<()>(&mut connection)
            .await
            .expect("DEL");
    }
    for blob in &overwritten {
        redis::cmd("SET")
            .arg(blob)
            .arg("no bundle")
            .query_async::<()>(&mut connection)
            .await
            .expect("SET");
    }
    // What is listed nowhere any more is found by its blob.
    let due = store::keys(&mut connection, &format!("{}:{{*}}:due:*", scenario.prefix))
        .await
        .expect("SCAN");
    let unlisted = &due[scenario.rng.usize(..due.len())];
    redis::cmd("DEL")
        .arg(unlisted)
        .query_async::<()>(&mut connection)
        .await
        .expect("DEL");
    let index = format!(
        "{}}}:idx",
        due[scenario.rng.usize(..due.len())]
            .split_once('}')
            .expect("a tag")
            .0
    );
    redis::cmd("DEL")
        .arg(&index)
        .query_async::<()>(&mut connection)
        .await
        .expect("DEL");
    let gone: usize = deleted
        .iter()
        .chain(&overwritten)
        .map(|blob| messages_of(blob))
        .sum();
    scenario.precondition(gone > 0, "nothing was in what was taken");
    scenario.healed();
    let report = scenario.account().await;
    scenario.expect_lost(
        report.lost.len() == gone,
        &format!("{gone} were in the blobs that were taken"),
    );
    let said = scenario.logged("the store was damaged") || scenario.logged("corrupt");
    scenario.limit(said, "no log says that the store was damaged");
    let corrupt = scenario
        .total("postdate_dead_letters_total", &[("reason", "corrupt")])
        .await;
    scenario.note(format!(
        "{corrupt} messages dead as corrupt; deleted {unlisted} and {index} as well"
    ));
    scenario.close().await
}

pub(super) async fn flush_all(scale: Scale) -> Outcome {
    let mut scenario = Scenario::start(scale, Setup::default()).await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let mut connection = scenario.store().await;
    redis::cmd("FLUSHALL")
        .query_async::<()>(&mut connection)
        .await
        .expect("FLUSHALL");
    let flushed = Instant::now();
    let made = scenario.run.made();
    let looked = eventually::within(Duration::from_secs(20), async || {
        if scenario.logged("the store was wiped or replaced") {
            Ok(())
        } else {
            Err("no log says so")
        }
    });
    let noticed = looked.await.map_or(Duration::MAX, |()| flushed.elapsed());
    scenario.note(format!("noticed after {noticed:?}"));
    scenario.limit(
        noticed <= Duration::from_secs(5),
        format!("noticed after {noticed:?}, the limit is 5 s"),
    );
    scenario.healed();
    scenario.moment(3000, 3000).await;
    let report = scenario.account().await;
    scenario.precondition(!report.lost.is_empty(), "nothing was in the store");
    let before = report.lost.iter().all(|id| id.seq < made);
    scenario.expect_lost(before, "all of them sent before the FLUSHALL");
    scenario.close().await
}

/// A Redis that keeps nothing, restarted.
pub(super) async fn no_persistence(scale: Scale) -> Outcome {
    let redis = ["--appendonly", "no"].map(String::from).to_vec();
    let redis_lines = "unsafe = [\"no_persistence\"]".to_owned();
    let mut scenario = Scenario::start(
        scale,
        Setup {
            redis,
            redis_lines,
            ..Setup::default()
        },
    )
    .await;
    let overridden = std::mem::take(&mut scenario.setup.redis_lines);
    let mut plain: Relay = scenario.spawn(9);
    let ended = plain.wait(Duration::from_secs(20)).await;
    scenario.limit(
        ended.is_some_and(|status| !status.success()),
        "it starts on a Redis without persistence",
    );
    scenario.setup.redis_lines = overridden;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let made = scenario.run.made();
    scenario.redis.kill9().await;
    scenario.redis.restart().await;
    let restarted = Instant::now();
    let said = eventually::within(Duration::from_secs(20), async || {
        if scenario.logged("the store was wiped or replaced") {
            Ok(())
        } else {
            Err("not yet")
        }
    });
    let said = said.await.is_ok();
    let took = restarted.elapsed();
    scenario.limit(
        said && took <= Duration::from_secs(5),
        format!("said: {said}, after {took:?}; the limit is 5 s"),
    );
    scenario.healed();
    scenario.moment(3000, 3000).await;
    let report = scenario.account().await;
    scenario.precondition(!report.lost.is_empty(), "nothing was in the store");
    let before = report.lost.iter().all(|id| id.seq < made + scale.rate);
    scenario.expect_lost(before, "all of them sent before the restart");
    scenario.close().await
}
