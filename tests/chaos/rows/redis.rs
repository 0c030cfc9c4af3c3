//! A store that dies, forgets, is full or slow.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, sleep};

use super::common::{limit_no_duplicate, limit_recovery};
use crate::outcome::Outcome;
use crate::preload::Synced;
use crate::scenario::{Scale, Scenario, Setup};
use crate::support::Proxy;
use crate::support::proxy::Mode;
use crate::support::redis::patient;

pub(super) async fn kill(scale: Scale) -> Outcome {
    let mut scenario = Scenario::start(scale, Setup::default()).await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    scenario.precondition_claims();
    scenario.redis.kill9().await;
    scenario.moment(1000, 20_000).await;
    scenario.redis.restart().await;
    scenario.healed();
    scenario.moment(3000, 3000).await;
    scenario.account().await;
    limit_recovery(&mut scenario, 15_000);
    scenario.close().await
}

/// A power failure, as far as it goes without a file system that forgets.
pub(super) async fn power(scale: Scale, always: bool) -> Outcome {
    let synced = Synced::new();
    let redis = ["--appendfsync", if always { "always" } else { "everysec" }]
        .map(String::from)
        .to_vec();
    let setup = Setup {
        redis,
        redis_program: synced.redis().to_string_lossy().into_owned(),
        ..Setup::default()
    };
    let mut scenario = Scenario::start(scale, setup).await;
    scenario.under_load().await;
    let before = scenario.run.made();
    sleep(Duration::from_secs(3)).await;
    scenario.inject(&scenario.all()).await;
    scenario.redis.kill9().await;
    let cut = synced.cut(&scenario.redis.folder().join("appendonlydir"));
    scenario.note(format!("{cut} bytes had not been synced"));
    scenario.moment(1000, 5000).await;
    scenario.redis.restart().await;
    scenario.healed();
    scenario.moment(3000, 3000).await;
    let report = scenario.account().await;
    if always {
        scenario.precondition_claims();
        limit_recovery(&mut scenario, 15_000);
    } else {
        scenario.precondition(cut > 0, "all of it had been synced");
        let recent = report.lost.iter().all(|id| id.seq >= before);
        scenario.expect_lost(
            recent,
            "produced within 3 s before the fault: what this tier may lose",
        );
        let said = scenario.logged("the store went back");
        scenario.limit(
            said || report.lost.is_empty(),
            "something was lost, and no log says that the store went back",
        );
    }
    scenario.close().await
}

async fn number(connection: &mut MultiplexedConnection, field: &str) -> u64 {
    let info: String = redis::cmd("INFO")
        .arg("memory")
        .query_async(connection)
        .await
        .expect("INFO");
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{field}:")));
    line.expect("a field of INFO")
        .trim()
        .parse()
        .expect("a number")
}

async fn max_memory(connection: &mut MultiplexedConnection, bytes: u64) {
    let set = redis::cmd("CONFIG")
        .arg("SET")
        .arg("maxmemory")
        .arg(bytes)
        .to_owned();
    set.query_async::<()>(connection).await.expect("CONFIG SET");
}

pub(super) async fn full(scale: Scale) -> Outcome {
    let mut scenario = Scenario::start(
        scale,
        Setup {
            longest_ms: 8000,
            ..Setup::default()
        },
    )
    .await;
    scenario.under_load().await;
    let mut store = scenario.store().await;
    let used = number(&mut store, "used_memory").await;
    scenario.inject(&scenario.all()).await;
    let published = scenario.total("postdate_published_total", &[]).await;
    let began = Instant::now();
    // Below what is used: whatever would store is refused until some of it has left.
    max_memory(&mut store, used * 9 / 10).await;
    scenario.moment(5000, 8000).await;
    let refused = scenario.store_errors("OOM").await;
    let left = scenario.total("postdate_published_total", &[]).await - published;
    scenario.note(format!(
        "{left} messages left in {:?} while it was full",
        began.elapsed()
    ));
    max_memory(&mut store, 0).await;
    scenario.healed();
    scenario.moment(3000, 3000).await;
    scenario.precondition(refused > 0, "Redis refused nothing");
    scenario.account().await;
    let waited = scenario.outcome.takeover_ms.unwrap_or(0);
    scenario.limit(
        left >= 1.0 && waited <= 2000,
        format!("{left} messages left while it was full, one waited {waited} ms"),
    );
    limit_recovery(&mut scenario, 15_000);
    limit_no_duplicate(&mut scenario);
    scenario.close().await
}

/// A script of someone else's that holds Redis for so many ms.
const BUSY: &str = "local t = redis.call('TIME') local ends = t[1] * 1000 + t[2] / 1000 + ARGV[1]
while t[1] * 1000 + t[2] / 1000 < ends do t = redis.call('TIME') end return 1";

pub(super) async fn slow(scale: Scale) -> Outcome {
    let redis = ["--enable-debug-command", "yes"].map(String::from).to_vec();
    let setup = Setup {
        claim_s: 10,
        proxied: true,
        redis,
        ..Setup::default()
    };
    let mut scenario = Scenario::start(scale, setup).await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let client = redis::Client::open(scenario.redis.url()).expect("a URL");
    let mut store = client
        .get_multiplexed_async_connection_with_config(&patient())
        .await
        .expect("connected");
    for stall in ["sleep", "busy"] {
        let began = Instant::now();
        let command = match stall {
            "sleep" => redis::cmd("DEBUG").arg("SLEEP").arg(3).to_owned(),
            _ => redis::cmd("EVAL").arg(BUSY).arg(0).arg(3000).to_owned(),
        };
        command
            .query_async::<()>(&mut store)
            .await
            .expect("it is slow and answers");
        let took = began.elapsed();
        scenario.precondition(
            took >= Duration::from_millis(2900),
            format!("{stall} took only {took:?}"),
        );
        scenario.moment(1000, 2000).await;
    }
    let (proxy, before): (Proxy, u64) = (scenario.redis_proxy.clone(), scenario.redis_proxy.hits());
    proxy.set(Mode::Delay(Duration::from_millis(200)));
    sleep(Duration::from_secs(5)).await;
    proxy.set(Mode::Pass);
    scenario.precondition(proxy.hits() > before, "nothing was delayed");
    scenario.healed();
    scenario.moment(2000, 2000).await;
    scenario.account().await;
    limit_no_duplicate(&mut scenario);
    scenario.close().await
}

pub(super) async fn script_flush(scale: Scale) -> Outcome {
    let mut scenario = Scenario::start(scale, Setup::default()).await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let mut store = scenario.store().await;
    let before = scenario.store_errors("NOSCRIPT").await;
    for _ in 0..10 {
        redis::cmd("SCRIPT")
            .arg("FLUSH")
            .query_async::<()>(&mut store)
            .await
            .expect("SCRIPT FLUSH");
        scenario.moment(900, 1100).await;
    }
    let missed = scenario.store_errors("NOSCRIPT").await - before;
    scenario.precondition(missed > 0, "no script was missed");
    scenario.note(format!("{missed} calls found their script gone"));
    scenario.healed();
    scenario.account().await;
    limit_no_duplicate(&mut scenario);
    let said = scenario.logged("NOSCRIPT") || scenario.logged("NoScript");
    scenario.limit(!said, "a log line speaks of NOSCRIPT");
    scenario.close().await
}
