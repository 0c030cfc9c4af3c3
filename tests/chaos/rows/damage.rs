//! A store whose keys are taken away or overwritten, one that comes back empty.

use std::time::Duration;

use tokio::time::Instant;

use crate::outcome::Outcome;
use crate::stage::{Scale, Setup, Stage};
use crate::store;
use crate::support::producers::kafka_producer;
use crate::support::{Relay, When, eventually};

/// Messages that lie in the store while it is damaged.
const WAITING: u64 = 800;

/// Sends so many to the first way, due between 30 and 36 s from now, and waits until they are stored.
async fn waiting(stage: &Stage) {
    let way = &stage.ways[0];
    let message =
        |n| stage.run.message(&way.label(), When::At(30_000 + n % 60 * 100)).key(&format!("key-{n}"));
    let producer = kafka_producer(stage.kafka.get().server.client());
    stage.run.send_kafka_by(&producer, &way.source, (0..WAITING).map(message).collect()).await;
    eventually("all are stored", async || {
        let stored = stage.total("postdate_stored_total", &[]).await;
        if stored >= WAITING as f64 { Ok(()) } else { Err(stored) }
    })
    .await;
}

/// How many messages a bundle has, by its blob's key.
fn messages_of(blob: &str) -> usize {
    let count = blob.rsplit('.').next().expect("a bundle's id ends with its count");
    usize::from_str_radix(count, 36).expect("in base 36")
}

pub(super) async fn keys(scale: Scale) -> Outcome {
    let setup = Setup { patience: Duration::from_secs(150), ..Setup::default() };
    let mut stage = Stage::start(scale, setup).await;
    waiting(&stage).await;
    stage.strike(&stage.all()).await;
    let mut connection = stage.store().await;
    let mut blobs = store::keys(&mut connection, &format!("{}:{{*}}:b:*", stage.prefix)).await.expect("SCAN");
    stage.rng.shuffle(&mut blobs);
    let (deleted, overwritten) = (blobs.split_off(blobs.len() - 3), blobs.split_off(blobs.len() - 3));
    for blob in &deleted {
        redis::cmd("DEL").arg(blob).query_async::<()>(&mut connection).await.expect("DEL");
    }
    for blob in &overwritten {
        redis::cmd("SET").arg(blob).arg("no bundle").query_async::<()>(&mut connection).await.expect("SET");
    }
    // What is listed nowhere any more is found by its blob.
    let due = store::keys(&mut connection, &format!("{}:{{*}}:due:*", stage.prefix)).await.expect("SCAN");
    let unlisted = &due[stage.rng.usize(..due.len())];
    redis::cmd("DEL").arg(unlisted).query_async::<()>(&mut connection).await.expect("DEL");
    let index = format!("{}}}:idx", due[stage.rng.usize(..due.len())].split_once('}').expect("a tag").0);
    redis::cmd("DEL").arg(&index).query_async::<()>(&mut connection).await.expect("DEL");
    let gone: usize = deleted.iter().chain(&overwritten).map(|blob| messages_of(blob)).sum();
    stage.bites(gone > 0, "nothing was in what was taken");
    stage.healed();
    let report = stage.account().await;
    stage.expect_lost(report.lost.len() == gone, &format!("{gone} were in the blobs that were taken"));
    let said = stage.logged("the store was damaged") || stage.logged("corrupt");
    stage.bar(said, "no log says that the store was damaged");
    let corrupt = stage.total("postdate_dead_letters_total", &[("reason", "corrupt")]).await;
    stage.note(format!("{corrupt} messages dead as corrupt; deleted {unlisted} and {index} as well"));
    stage.close().await
}

pub(super) async fn flush_all(scale: Scale) -> Outcome {
    let mut stage = Stage::start(scale, Setup::default()).await;
    stage.under_load().await;
    stage.strike(&stage.all()).await;
    let mut connection = stage.store().await;
    redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await.expect("FLUSHALL");
    let (flushed, made) = (Instant::now(), stage.run.made());
    let looked = eventually::within(Duration::from_secs(20), async || {
        if stage.logged("went back or was wiped") { Ok(()) } else { Err("no log says so") }
    });
    let noticed = looked.await.map_or(Duration::MAX, |()| flushed.elapsed());
    stage.note(format!("noticed after {noticed:?}"));
    stage.bar(noticed <= Duration::from_secs(5), format!("noticed after {noticed:?}, the bar is 5 s"));
    stage.healed();
    stage.moment(3000, 3000).await;
    let report = stage.account().await;
    stage.bites(!report.lost.is_empty(), "nothing was in the store");
    let before = report.lost.iter().all(|id| id.seq < made);
    stage.expect_lost(before, "all of them sent before the FLUSHALL");
    stage.close().await
}

/// A Redis that keeps nothing, restarted.
pub(super) async fn no_persistence(scale: Scale) -> Outcome {
    let redis = ["--appendonly", "no"].map(String::from).to_vec();
    let redis_lines = "unsafe = [\"no_persistence\"]".to_owned();
    let mut stage = Stage::start(scale, Setup { redis, redis_lines, ..Setup::default() }).await;
    let overridden = std::mem::take(&mut stage.setup.redis_lines);
    let mut plain: Relay = stage.spawn(9);
    let ended = plain.wait(Duration::from_secs(20)).await;
    stage.bar(ended.is_some_and(|status| !status.success()), "it starts on a Redis without persistence");
    stage.setup.redis_lines = overridden;
    stage.under_load().await;
    stage.strike(&stage.all()).await;
    let made = stage.run.made();
    stage.redis.kill9().await;
    stage.redis.restart().await;
    let restarted = Instant::now();
    let said = eventually::within(Duration::from_secs(20), async || {
        if stage.logged("went back or was wiped") { Ok(()) } else { Err("not yet") }
    });
    let (said, took) = (said.await.is_ok(), restarted.elapsed());
    stage
        .bar(said && took <= Duration::from_secs(5), format!("said: {said}, after {took:?}; the bar is 5 s"));
    stage.healed();
    stage.moment(3000, 3000).await;
    let report = stage.account().await;
    stage.bites(!report.lost.is_empty(), "nothing was in the store");
    let before = report.lost.iter().all(|id| id.seq < made + scale.rate);
    stage.expect_lost(before, "all of them sent before the restart");
    stage.close().await
}
