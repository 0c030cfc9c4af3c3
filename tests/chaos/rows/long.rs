//! Churn, starvation, silence, and everything at once.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::common::{late, limit_recovery, send};
use crate::outcome::Outcome;
use crate::scenario::{Scale, Scenario, Setup};
use crate::support::process::Signal;
use crate::support::producers::kafka_producer;
use crate::support::{When, eventually, names};

/// One replica dies and comes again, faster than anything settles.
pub(super) async fn crash_loop(scale: Scale) -> Outcome {
    let mut scenario = Scenario::start(
        scale,
        Setup {
            replicas: 1,
            ..Setup::default()
        },
    )
    .await;
    scenario.under_load().await;
    scenario.inject(&[0]).await;
    scenario.precondition_claims();
    for _ in 0..25 {
        scenario.relays[0].kill9().await;
        scenario.relays[0].restart().await;
        scenario.moment(0, 500).await;
    }
    scenario.healed();
    let again = scenario
        .total(
            "postdate_redelivered_total",
            &[("cause", "source_redelivery")],
        )
        .await;
    scenario.moment(3000, 3000).await;
    scenario.account().await;
    scenario.note(format!(
        "{again} redeliveries counted by the end of the loop"
    ));
    scenario.close().await
}

/// A replica that joins and leaves, each time moving partitions of every topic.
pub(super) async fn rebalances(scale: Scale) -> Outcome {
    let mut scenario = Scenario::start(scale, Setup::default()).await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let mut guest = scenario.spawn(3);
    guest.ready().await;
    scenario.relays.push(guest);
    for _ in 0..6 {
        scenario.moment(2500, 3500).await;
        let ended = scenario.relays[3].terminate().await;
        scenario.limit(
            ended.code() == Some(0),
            format!("the guest ended with {ended}"),
        );
        scenario.relays[3].restart().await;
    }
    scenario.healed();
    scenario.account().await;
    let admitted = scenario.relays[3]
        .total("postdate_admitted_total", &[])
        .await;
    scenario.precondition(admitted > 0.0, "the guest was given nothing to read");
    limit_recovery(&mut scenario, 30_000);
    scenario.close().await
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
        let line = stat
            .lines()
            .find_map(|line| line.strip_prefix("nr_throttled "));
        line.and_then(|count| count.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        for process in std::fs::read_to_string(self.0.join("cgroup.procs"))
            .unwrap_or_default()
            .lines()
        {
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
    let mut scenario = Scenario::start(scale, Setup::default()).await;
    scenario.under_load().await;
    let victim = scenario.rng.usize(0..3);
    scenario.inject(&[victim]).await;
    match Starved::new(scenario.relays[victim].id()) {
        Ok(group) => {
            sleep(Duration::from_secs(20)).await;
            let throttled = group.throttled();
            scenario.precondition(
                throttled >= 50,
                format!("held back in only {throttled} periods"),
            );
            scenario.note(format!("held back in {throttled} periods of 100 ms"));
        }
        Err(error) => scenario.precondition(
            false,
            format!("no control group of version 1 here: {error}"),
        ),
    }
    scenario.healed();
    scenario.account().await;
    limit_recovery(&mut scenario, 20_000);
    scenario.close().await
}

/// Nothing happens for a while in which what is between forgets quiet connections; then a message.
pub(super) async fn idle(scale: Scale) -> Outcome {
    let mut scenario = Scenario::start(
        scale,
        Setup {
            proxied: true,
            ..Setup::default()
        },
    )
    .await;
    let proxies = [
        &scenario.redis_proxy,
        &scenario.kafka.get().proxy,
        &scenario.rabbitmq.get().proxy,
    ]
    .map(Clone::clone);
    // A producer that has to connect first would make its own messages late.
    let producer = kafka_producer(scenario.kafka.get().server.client());
    let some = async |scenario: &Scenario| {
        for way in &scenario.ways {
            let key = if way.to_kafka && !way.from_kafka {
                &way.source
            } else {
                &way.target
            };
            let messages = (0..20).map(|n| {
                scenario
                    .run
                    .message(&way.label(), When::Delay(n * 50))
                    .key(key)
            });
            if way.from_kafka {
                scenario
                    .run
                    .send_kafka_by(&producer, &way.source, messages.collect())
                    .await;
            } else {
                send(scenario, way, messages.collect()).await;
            }
        }
    };
    some(&scenario).await;
    eventually("the ways to the targets are open", async || {
        let missing = scenario.run.ledger().missing().len();
        if missing == 0 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{missing} have not arrived"))
        }
    })
    .await;
    for proxy in &proxies {
        proxy.forget_after(Duration::from_secs(30));
    }
    sleep(Duration::from_secs(60)).await;
    scenario.inject(&scenario.all()).await;
    let before = scenario.run.made();
    some(&scenario).await;
    scenario.healed();
    scenario.account().await;
    for proxy in &proxies {
        proxy.forget_after(Duration::ZERO);
    }
    let arrivals = scenario.run.ledger().arrivals();
    let after = arrivals.iter().filter(|(stamp, _)| stamp.id.seq >= before);
    let latest = after
        .map(|(stamp, came)| came - stamp.due_ms)
        .max()
        .unwrap_or(0);
    let hits: Vec<u64> = proxies.iter().map(crate::support::Proxy::hits).collect();
    scenario.note(format!(
        "connections met in their silence (Redis, Kafka, RabbitMQ): {hits:?}"
    ));
    late(&mut scenario);
    scenario.limit(
        latest <= 1000,
        format!("the first message after the silence was {latest} ms late"),
    );
    scenario.close().await
}

/// Faults of all kinds, one after another, for as long as it takes.
pub(super) async fn soak(scale: Scale) -> Outcome {
    let setup = Setup {
        proxied: true,
        patience: Duration::from_secs(120),
        ..Setup::default()
    };
    let mut scenario = Scenario::start(scale, setup).await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let ends = Instant::now() + Duration::from_secs(300);
    let mut played = Vec::new();
    while Instant::now() < ends {
        let victim = scenario.rng.usize(0..3);
        let fault = ["kill", "term", "stop", "redis", "flush", "reset"][scenario.rng.usize(..6)];
        played.push(fault);
        match fault {
            "kill" => {
                scenario.relays[victim].kill9().await;
                scenario.moment(500, 6000).await;
                scenario.relays[victim].restart().await;
            }
            "term" => {
                let ended = scenario.relays[victim].terminate().await;
                scenario.limit(
                    ended.code() == Some(0),
                    format!("a SIGTERM ended with {ended}"),
                );
                scenario.relays[victim].restart().await;
            }
            "stop" => {
                scenario.relays[victim].signal(Signal::STOP);
                scenario.moment(1000, 12_000).await;
                scenario.relays[victim].signal(Signal::CONT);
            }
            "redis" => {
                scenario.redis.kill9().await;
                scenario.moment(500, 6000).await;
                scenario.redis.restart().await;
            }
            "flush" => {
                let flush = redis::cmd("SCRIPT").arg("FLUSH").to_owned();
                flush
                    .query_async::<()>(&mut scenario.store().await)
                    .await
                    .expect("SCRIPT FLUSH");
            }
            _ => {
                scenario.redis_proxy.reset();
                scenario.kafka.get().proxy.reset();
                scenario.rabbitmq.get().proxy.reset();
            }
        }
        // A killed replica's counters must have its repeats in them before it is killed again.
        scenario.moment(6000, 9000).await;
    }
    scenario.note(format!("{} faults: {}", played.len(), played.join(" ")));
    scenario.healed();
    scenario.account().await;
    scenario.close().await
}
