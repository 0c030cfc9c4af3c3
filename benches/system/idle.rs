//! Measures an idle relay: 64 partitions, 20 routes, nothing due for an hour. Bar 14.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::load::{Load, fill_topic};
use crate::measure::{MessageCount, Processes, redis_cpu, watch};
use crate::report::{BarLimit, Report};
use crate::servers::{Servers, TOPIC_PARTITIONS, config};
use crate::support::Relay;
use crate::{Scale, machine};

/// Routes, each between topics of its own, all read by one group as in the example of the configuration.
const ROUTE_COUNT: usize = 20;
/// Messages that wait in the store meanwhile.
const WAITING_MESSAGES: u64 = 1000;
/// Time after which the work of the start is over.
const SETTLING_TIME: Duration = Duration::from_secs(5);

pub async fn bench(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let kafka = servers.kafka().await?;
    let redis = servers.redis(false).await?;
    let mut config = config(&redis).kafka("main", kafka);
    let mut sources = Vec::new();
    for n in 0..ROUTE_COUNT {
        let source = kafka.unique_topic("source", TOPIC_PARTITIONS).await;
        let target = kafka.unique_topic("target", TOPIC_PARTITIONS).await;
        sources.push(source);
        let from = format!(
            r#"{{ kafka = "main", topic = "{}", group = "{}" }}"#,
            sources[n], sources[0]
        );
        let to = format!(r#"{{ kafka = "main", topic = "{target}" }}"#);
        config = config.route(
            &format!("route-{n}"),
            &from,
            &to,
            "delay_from = \"arrival\"",
        );
    }
    let mut relay = Relay::start(&config).await;
    tokio::task::block_in_place(|| {
        fill_topic(
            kafka,
            &sources[0],
            WAITING_MESSAGES,
            Load::Equal(2 * 3_600_000),
        )
    })?;
    let of = Processes::new(relay.id(), kafka.id(), None).await?;
    watch(&MessageCount::stored(&relay), WAITING_MESSAGES, &of).await?;
    if !scale.quick {
        tokio::time::sleep(SETTLING_TIME).await;
    }
    let connection = redis.connection().await?;
    let cpu = || {
        machine::cpu(relay.id())
            .map(|time| time.as_secs_f64())
            .context("the relay has ended")
    };
    for _ in 0..scale.rounds {
        let begin = Instant::now();
        let itself = cpu()?;
        let of_redis = redis_cpu(connection.clone()).await?;
        tokio::time::sleep(scale.idle).await;
        let seconds = begin.elapsed().as_secs_f64();
        let percent = |used: f64| used * 100.0 / seconds;
        report.add("idle", "itself", percent(cpu()? - itself));
        report.add(
            "idle",
            "redis",
            percent(redis_cpu(connection.clone()).await? - of_redis),
        );
        let rss = machine::resident(relay.id(), "VmRSS").context("the relay has ended")?;
        report.add("idle", "rss", rss / f64::from(1 << 20));
    }
    relay.terminate().await;
    report.table(
        "idle",
        &[("idle", "64 partitions, 20 routes, nothing due for an hour")],
        &[
            ("itself", "relay, % of a core"),
            ("redis", "Redis, % of a core"),
            ("rss", "relay's RSS, MiB"),
        ],
    );
    for (what, column, most) in [
        ("relay, % of a core", "itself", 0.5),
        ("Redis, % of a core", "redis", 0.5),
        ("relay's RSS, MiB", "rss", 60.0),
    ] {
        report.bar(
            14,
            what,
            report.median("idle", column),
            BarLimit::AtMost(most),
        );
    }
    Ok(())
}
