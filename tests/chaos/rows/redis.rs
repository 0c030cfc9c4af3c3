//! A store that dies, forgets, is full or slow.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, sleep};

use super::common::{bar_no_duplicate, bar_recovery};
use crate::outcome::Outcome;
use crate::preload::Synced;
use crate::stage::{Scale, Setup, Stage};
use crate::support::Proxy;
use crate::support::proxy::Mode;

pub(super) async fn kill(scale: Scale) -> Outcome {
    let mut stage = Stage::start(scale, Setup::default()).await;
    stage.under_load().await;
    stage.strike(&stage.all()).await;
    stage.bites_claims();
    stage.redis.kill9().await;
    stage.moment(1000, 20_000).await;
    stage.redis.restart().await;
    stage.healed();
    stage.moment(3000, 3000).await;
    stage.account().await;
    bar_recovery(&mut stage, 15_000);
    stage.close().await
}

/// A power failure, as far as it goes without a file system that forgets.
pub(super) async fn power(scale: Scale, always: bool) -> Outcome {
    let synced = Synced::new();
    let mut setup =
        Setup { redis_program: synced.redis().to_string_lossy().into_owned(), ..Setup::default() };
    if always {
        setup.redis = ["--appendfsync", "always"].map(String::from).to_vec();
    }
    let mut stage = Stage::start(scale, setup).await;
    stage.under_load().await;
    let before = stage.run.made();
    sleep(Duration::from_secs(3)).await;
    stage.strike(&stage.all()).await;
    stage.redis.kill9().await;
    let cut = synced.cut(&stage.redis.folder().join("appendonlydir"));
    stage.note(format!("{cut} bytes had not been synced"));
    stage.moment(1000, 5000).await;
    stage.redis.restart().await;
    stage.healed();
    stage.moment(3000, 3000).await;
    let report = stage.account().await;
    if always {
        stage.bites_claims();
        bar_recovery(&mut stage, 15_000);
    } else {
        stage.bites(cut > 0, "all of it had been synced");
        let recent = report.lost.iter().all(|id| id.seq >= before);
        stage.expect_lost(recent, "produced within 3 s before the fault: what this tier may lose");
        let said = stage.logged("went back or was wiped");
        stage.bar(
            said || report.lost.is_empty(),
            "something was lost, and no log says that the store went back",
        );
    }
    stage.close().await
}

async fn number(connection: &mut MultiplexedConnection, field: &str) -> u64 {
    let info: String = redis::cmd("INFO").arg("memory").query_async(connection).await.expect("INFO");
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
    line.expect("a field of INFO").trim().parse().expect("a number")
}

async fn max_memory(connection: &mut MultiplexedConnection, bytes: u64) {
    let set = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).to_owned();
    set.query_async::<()>(connection).await.expect("CONFIG SET");
}

pub(super) async fn full(scale: Scale) -> Outcome {
    let mut stage = Stage::start(scale, Setup { longest_ms: 8000, ..Setup::default() }).await;
    stage.under_load().await;
    let mut store = stage.store().await;
    let used = number(&mut store, "used_memory").await;
    stage.strike(&stage.all()).await;
    let (published, began) = (stage.total("postdate_published_total", &[]).await, Instant::now());
    // Below what is used: whatever would store is refused until some of it has left.
    max_memory(&mut store, used * 9 / 10).await;
    stage.moment(5000, 8000).await;
    let refused = stage.store_errors("OOM").await;
    let left = stage.total("postdate_published_total", &[]).await - published;
    stage.note(format!("{left} messages left in {:?} while it was full", began.elapsed()));
    max_memory(&mut store, 0).await;
    stage.healed();
    stage.moment(3000, 3000).await;
    stage.bites(refused > 0, "Redis refused nothing");
    stage.account().await;
    let waited = stage.outcome.takeover_ms.unwrap_or(0);
    stage.bar(
        left >= 1.0 && waited <= 2000,
        format!("{left} messages left while it was full, one waited {waited} ms"),
    );
    bar_recovery(&mut stage, 15_000);
    bar_no_duplicate(&mut stage);
    stage.close().await
}

/// A script of someone else's that holds Redis for so many ms.
const BUSY: &str = "local t = redis.call('TIME') local ends = t[1] * 1000 + t[2] / 1000 + ARGV[1]
while t[1] * 1000 + t[2] / 1000 < ends do t = redis.call('TIME') end return 1";

pub(super) async fn slow(scale: Scale) -> Outcome {
    let redis = ["--enable-debug-command", "yes"].map(String::from).to_vec();
    let setup = Setup { claim_s: 10, proxied: true, redis, ..Setup::default() };
    let mut stage = Stage::start(scale, setup).await;
    stage.under_load().await;
    stage.strike(&stage.all()).await;
    let client = redis::Client::open(stage.redis.url()).expect("a URL");
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(20)));
    let mut store = client.get_multiplexed_async_connection_with_config(&patient).await.expect("connected");
    for stall in ["sleep", "busy"] {
        let began = Instant::now();
        let command = match stall {
            "sleep" => redis::cmd("DEBUG").arg("SLEEP").arg(3).to_owned(),
            _ => redis::cmd("EVAL").arg(BUSY).arg(0).arg(3000).to_owned(),
        };
        command.query_async::<()>(&mut store).await.expect("it is slow and answers");
        let took = began.elapsed();
        stage.bites(took >= Duration::from_millis(2900), format!("{stall} took only {took:?}"));
        stage.moment(1000, 2000).await;
    }
    let (proxy, before): (Proxy, u64) = (stage.redis_proxy.clone(), stage.redis_proxy.hits());
    proxy.set(Mode::Delay(Duration::from_millis(200)));
    sleep(Duration::from_secs(5)).await;
    proxy.set(Mode::Pass);
    stage.bites(proxy.hits() > before, "nothing was delayed");
    stage.healed();
    stage.moment(2000, 2000).await;
    stage.account().await;
    bar_no_duplicate(&mut stage);
    stage.close().await
}

pub(super) async fn script_flush(scale: Scale) -> Outcome {
    let mut stage = Stage::start(scale, Setup::default()).await;
    stage.under_load().await;
    stage.strike(&stage.all()).await;
    let mut store = stage.store().await;
    let before = stage.store_errors("NOSCRIPT").await;
    for _ in 0..10 {
        redis::cmd("SCRIPT").arg("FLUSH").query_async::<()>(&mut store).await.expect("SCRIPT FLUSH");
        stage.moment(900, 1100).await;
    }
    let missed = stage.store_errors("NOSCRIPT").await - before;
    stage.bites(missed > 0, "no script was missed");
    stage.note(format!("{missed} calls found their script gone"));
    stage.healed();
    stage.account().await;
    bar_no_duplicate(&mut stage);
    let said = stage.logged("NOSCRIPT") || stage.logged("NoScript");
    stage.bar(!said, "a log line speaks of NOSCRIPT");
    stage.close().await
}
