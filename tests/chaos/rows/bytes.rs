//! A backlog in bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, sleep};

use super::common::{limit_no_duplicate, send};
use crate::outcome::Outcome;
use crate::scenario::{Scale, Scenario, Setup};
use crate::support::When;
use crate::support::proxy::Mode;

/// Messages of each route, sent so many at a time.
const EACH: usize = 2500;
const BATCH: usize = 25;
/// Bytes of each: with its headers and its frame less than the 1,000,000 that a producer to Kafka takes by default.
const SIZE: usize = 995_000;
/// When they are due: all are stored by then.
const AHEAD: Duration = Duration::from_secs(420);
/// The link to Redis, bytes a second, once they are stored.
const LINK: u64 = 20 << 20;
const RESIDENT_KIB: u64 = 400_000_000 / 1024;
const OUTPUT: u64 = 64 << 20;

/// Bytes in Redis's output buffers now.
async fn output(store: &mut MultiplexedConnection) -> u64 {
    let list: redis::RedisResult<String> =
        redis::cmd("CLIENT").arg("LIST").query_async(store).await;
    let list = list.unwrap_or_default();
    list.split_whitespace()
        .filter_map(|field| field.strip_prefix("omem=")?.parse::<u64>().ok())
        .sum()
}

/// More due at once than a process may hold, in bytes.
pub(super) async fn backlog(scale: Scale) -> Outcome {
    let patience = Duration::from_secs(300);
    let setup = Setup {
        replicas: 1,
        proxied: true,
        patience,
        ..Setup::default()
    };
    let mut scenario = Scenario::start(scale, setup).await;
    scenario.watch_no_more();
    let due = Instant::now() + AHEAD;
    for way in &scenario.ways.clone() {
        for _ in 0..EACH / BATCH {
            let left = due.saturating_duration_since(Instant::now()).as_millis() as u64;
            let key = if way.to_kafka && !way.from_kafka {
                &way.source
            } else {
                &way.target
            };
            let message = |n: usize| {
                let when = When::At(left + (n * 1000 / BATCH) as u64);
                scenario
                    .run
                    .message(&way.label(), when)
                    .key(key)
                    .size(SIZE)
                    .random()
            };
            send(&scenario, way, (0..BATCH).map(message).collect()).await;
        }
    }
    scenario.precondition(Instant::now() < due, "they were due before all were sent");
    scenario.redis_proxy.set(Mode::Rate(LINK));
    let most = Arc::new(AtomicU64::new(0));
    let seen = scenario.store().await;
    let peak = most.clone();
    let mut store = seen;
    let watching = tokio::spawn(async move {
        loop {
            peak.fetch_max(output(&mut store).await, Ordering::Relaxed);
            sleep(Duration::from_millis(50)).await;
        }
    });
    tokio::time::sleep_until(
        due.checked_sub(Duration::from_millis(1500))
            .expect("later than that"),
    )
    .await;
    scenario.inject(&scenario.all()).await;
    scenario.healed();
    scenario.account().await;
    watching.abort();
    let status = std::fs::read_to_string(format!("/proc/{}/status", scenario.relays[0].id()))
        .unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let resident =
        resident.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
    scenario.limit(
        resident.is_some_and(|kib| kib <= RESIDENT_KIB),
        format!("the replica had {resident:?} KiB"),
    );
    let most = most.load(Ordering::Relaxed);
    scenario.limit(
        most <= OUTPUT,
        format!("Redis had {most} bytes in its output buffers"),
    );
    let expired = scenario
        .total("postdate_redelivered_total", &[("cause", "claim_expired")])
        .await;
    scenario.limit(
        expired < 1.0,
        format!("{expired} messages of claims that expired"),
    );
    limit_no_duplicate(&mut scenario);
    scenario.close().await
}
