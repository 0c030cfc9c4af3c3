//! Churn, starvation, silence, and everything at once.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::common::{bar_recovery, late, send};
use crate::outcome::Outcome;
use crate::stage::{Scale, Setup, Stage};
use crate::support::process::Signal;
use crate::support::{When, eventually, names};

/// One replica dies and comes again, faster than anything settles.
pub(super) async fn crash_loop(scale: Scale) -> Outcome {
    let mut stage = Stage::start(scale, Setup { replicas: 1, ..Setup::default() }).await;
    stage.under_load().await;
    stage.strike(&[0]).await;
    stage.bites_claims();
    for _ in 0..25 {
        stage.relays[0].kill9().await;
        stage.relays[0].restart().await;
        stage.moment(0, 500).await;
    }
    stage.healed();
    let again = stage.total("postdate_redelivered_total", &[("cause", "source_redelivery")]).await;
    stage.moment(3000, 3000).await;
    stage.account().await;
    stage.note(format!("{again} redeliveries counted by the end of the loop"));
    stage.close().await
}

/// A replica that joins and leaves, each time moving partitions of every topic.
pub(super) async fn rebalances(scale: Scale) -> Outcome {
    let mut stage = Stage::start(scale, Setup::default()).await;
    stage.under_load().await;
    stage.strike(&stage.all()).await;
    let mut guest = stage.spawn(3);
    guest.ready().await;
    stage.relays.push(guest);
    for _ in 0..6 {
        stage.moment(2500, 3500).await;
        let ended = stage.relays[3].terminate().await;
        stage.bar(ended.code() == Some(0), format!("the guest ended with {ended}"));
        stage.relays[3].restart().await;
    }
    stage.healed();
    stage.account().await;
    let admitted = stage.relays[3].total("postdate_admitted_total", &[]).await;
    stage.bites(admitted > 0.0, "the guest was given nothing to read");
    bar_recovery(&mut stage, 30_000);
    stage.close().await
}

/// A control group that gives one process a twentieth of one core.
struct Starved(PathBuf);

impl Starved {
    fn new(process: u32) -> std::io::Result<Self> {
        let group = PathBuf::from("/sys/fs/cgroup/cpu").join(names::unique("postdate-chaos"));
        std::fs::create_dir(&group)?;
        let starved = Self(group);
        std::fs::write(starved.0.join("cpu.cfs_period_us"), "100000")?;
        std::fs::write(starved.0.join("cpu.cfs_quota_us"), "5000")?;
        std::fs::write(starved.0.join("cgroup.procs"), process.to_string())?;
        Ok(starved)
    }

    /// How many periods it was held back in.
    fn throttled(&self) -> u64 {
        let stat = std::fs::read_to_string(self.0.join("cpu.stat")).unwrap_or_default();
        let line = stat.lines().find_map(|line| line.strip_prefix("nr_throttled "));
        line.and_then(|count| count.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        for process in std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            if let Err(error) = std::fs::write("/sys/fs/cgroup/cpu/cgroup.procs", process) {
                println!("{process} stays starved: {error}");
            }
        }
        if let Err(error) = std::fs::remove_dir(&self.0) {
            println!("{} is left behind: {error}", self.0.display());
        }
    }
}

pub(super) async fn starved(scale: Scale) -> Outcome {
    let mut stage = Stage::start(scale, Setup::default()).await;
    stage.under_load().await;
    let victim = stage.rng.usize(0..3);
    stage.strike(&[victim]).await;
    match Starved::new(stage.relays[victim].id()) {
        Ok(group) => {
            sleep(Duration::from_secs(20)).await;
            let throttled = group.throttled();
            stage.bites(throttled >= 50, format!("held back in only {throttled} periods"));
            stage.note(format!("held back in {throttled} periods of 100 ms"));
        }
        Err(error) => stage.bites(false, format!("no control group of version 1 here: {error}")),
    }
    stage.healed();
    stage.account().await;
    bar_recovery(&mut stage, 20_000);
    stage.close().await
}

/// Nothing happens for a while in which what is between forgets quiet connections; then a message.
pub(super) async fn idle(scale: Scale) -> Outcome {
    let mut stage = Stage::start(scale, Setup { proxied: true, ..Setup::default() }).await;
    let proxies =
        [&stage.redis_proxy, &stage.kafka.get().proxy, &stage.rabbitmq.get().proxy].map(Clone::clone);
    let some = async |stage: &Stage| {
        for way in &stage.ways {
            let key = if way.to_kafka && !way.from_kafka { &way.source } else { &way.target };
            let messages = (0..20).map(|n| stage.run.message(&way.label(), When::Delay(n * 50)).key(key));
            send(stage, way, messages.collect()).await;
        }
    };
    some(&stage).await;
    eventually("the ways to the targets are open", async || {
        let missing = stage.run.ledger().missing().len();
        if missing == 0 { Ok(()) } else { Err(anyhow::anyhow!("{missing} have not arrived")) }
    })
    .await;
    for proxy in &proxies {
        proxy.forget_after(Duration::from_secs(30));
    }
    sleep(Duration::from_secs(60)).await;
    stage.strike(&stage.all()).await;
    let before = stage.run.made();
    some(&stage).await;
    stage.healed();
    stage.account().await;
    for proxy in &proxies {
        proxy.forget_after(Duration::ZERO);
    }
    let arrivals = stage.run.ledger().arrivals();
    let after = arrivals.iter().filter(|(stamp, _)| stamp.id.seq >= before);
    let latest = after.map(|(stamp, came)| came - stamp.due_ms).max().unwrap_or(0);
    let hits: Vec<u64> = proxies.iter().map(crate::support::Proxy::hits).collect();
    stage.note(format!("connections met in their silence (Redis, Kafka, RabbitMQ): {hits:?}"));
    late(&mut stage);
    stage.bar(latest <= 1000, format!("the first message after the silence was {latest} ms late"));
    stage.close().await
}

/// Faults of all kinds, one after another, for as long as it takes.
pub(super) async fn soak(scale: Scale) -> Outcome {
    let setup = Setup { proxied: true, patience: Duration::from_secs(120), ..Setup::default() };
    let mut stage = Stage::start(scale, setup).await;
    stage.under_load().await;
    stage.strike(&stage.all()).await;
    let ends = Instant::now() + Duration::from_secs(300);
    let mut played = Vec::new();
    while Instant::now() < ends {
        let victim = stage.rng.usize(0..3);
        let fault = ["kill", "term", "stop", "redis", "flush", "reset"][stage.rng.usize(..6)];
        played.push(fault);
        match fault {
            "kill" => {
                stage.relays[victim].kill9().await;
                stage.moment(500, 6000).await;
                stage.relays[victim].restart().await;
            }
            "term" => {
                let ended = stage.relays[victim].terminate().await;
                stage.bar(ended.code() == Some(0), format!("a SIGTERM ended with {ended}"));
                stage.relays[victim].restart().await;
            }
            "stop" => {
                stage.relays[victim].signal(Signal::STOP);
                stage.moment(1000, 12_000).await;
                stage.relays[victim].signal(Signal::CONT);
            }
            "redis" => {
                stage.redis.kill9().await;
                stage.moment(500, 6000).await;
                stage.redis.restart().await;
            }
            "flush" => {
                let flush = redis::cmd("SCRIPT").arg("FLUSH").to_owned();
                flush.query_async::<()>(&mut stage.store().await).await.expect("SCRIPT FLUSH");
            }
            _ => {
                stage.redis_proxy.reset();
                stage.kafka.get().proxy.reset();
                stage.rabbitmq.get().proxy.reset();
            }
        }
        // A killed replica's counters must have its repeats in them before it is killed again.
        stage.moment(6000, 9000).await;
    }
    stage.note(format!("{} faults: {}", played.len(), played.join(" ")));
    stage.healed();
    stage.account().await;
    stage.close().await
}
