//! Measures the effect of a deep backlog on Redis's cost of a message (bar 5), on lateness (the second half of bar 9)
//! and on the start (bar 15). The backlog is loaded once, and everything is measured beside it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use crate::lateness::{judge, with_relay};
use crate::load::{Load, fill_topic};
use crate::measure::{MessageCount, Processes, watch};
use crate::phases::{drain, store_and_drain_with};
use crate::plot::{PlotAxis, PlotLine, decades, lines};
use crate::report::{BarLimit, Report, number};
use crate::servers::{Servers, TOPIC_PARTITIONS, config, kafka_route};
use crate::support::run::now_ms;
use crate::support::{Config, Kafka, Redis, Relay};
use crate::{Scale, machine};

const HOUR_MS: i64 = 3_600_000;
/// The smallest backlog, to which the others are compared.
const SMALLEST_BACKLOG: u64 = 10_000;
/// A start that takes longer has failed.
const START_TIMEOUT: Duration = Duration::from_secs(60);

pub async fn bench(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let redis = servers.redis(false).await?;
    check_room(&redis, scale).await?;
    let kafka = servers.kafka().await?;
    let count = scale.phase / 4;
    let from = now_ms() - HOUR_MS - 100_000;
    let random = servers.filled(count, Load::Random(from, HOUR_MS)).await?;
    let equal = servers.filled(count, Load::Equal(2_000)).await?;
    let waits = kafka.unique_topic("waits", TOPIC_PARTITIONS).await;
    let nowhere = kafka.unique_topic("nowhere", TOPIC_PARTITIONS).await;
    let more = "max_pending = 1_000_000_000";
    let base = config(&redis).kafka("main", kafka);
    let base = kafka_route(base, "waits", &waits, &nowhere, more);
    let mut pending = 0;
    let mut sizes = Vec::new();
    for size in sizes_up_to(scale.backlog) {
        grow(kafka, &redis, &base, &waits, (pending, size)).await?;
        pending = size;
        let what = number(size as f64);
        for _ in 0..scale.rounds {
            let target = kafka.unique_topic("target", TOPIC_PARTITIONS).await;
            let whole = kafka_route(base.clone(), "bench", &equal, &target, more);
            let rate = drain(
                &redis,
                kafka,
                Relay::spawn(&whole, &[]),
                &target,
                count,
                true,
            )
            .await?;
            report.rate(&format!("equal {what}"), &rate);
            let phases = store_and_drain_with(&base, &redis, kafka, &random, count, from).await?;
            report.rate(&format!("random {what}"), &phases.both());
        }
        sizes.push((size, what));
    }
    costs(report, &sizes);
    lateness_beside(kafka, &base, scale, report, &sizes[sizes.len() - 1].1).await?;
    starts(&base, scale, report, &sizes[sizes.len() - 1].1).await
}

/// Sizes of the backlog: ten thousand, its tenfolds, and the largest of the scale.
fn sizes_up_to(most: u64) -> Vec<u64> {
    let tenfolds = std::iter::successors(Some(SMALLEST_BACKLOG), |size| Some(size * 10));
    tenfolds
        .take_while(|&size| size < most)
        .chain([most])
        .collect()
}

/// Refuses a backlog that the machine or Redis cannot hold, before anything is filled.
pub async fn check_room(redis: &Redis, scale: &Scale) -> anyhow::Result<()> {
    let mut connection = redis.connection().await?;
    let (_, limit): (String, u64) = redis::cmd("CONFIG")
        .arg("GET")
        .arg("maxmemory")
        .query_async(&mut connection)
        .await?;
    let machine = machine::available().context("the machine does not say what memory it has")?;
    let room = if limit == 0 {
        machine
    } else {
        limit.min(machine)
    };
    let needs = scale.backlog.saturating_mul(scale.backlog_each);
    ensure!(
        needs < room / 10 * 9,
        "{} pending messages need about {} MB of Redis's memory, and there are {}",
        number(scale.backlog as f64),
        needs >> 20,
        room >> 20
    );
    Ok(())
}

/// Adds messages that fall due in two to five days.
pub async fn grow(
    kafka: &Kafka,
    redis: &Redis,
    base: &Config,
    waits: &str,
    (from, to): (u64, u64),
) -> anyhow::Result<()> {
    println!("  from {from} to {to} pending");
    let load = Load::Random(now_ms() + 48 * HOUR_MS, 72 * HOUR_MS);
    tokio::task::block_in_place(|| fill_topic(kafka, waits, to - from, load))?;
    let mut relay = Relay::spawn(base, &[]);
    let of = Processes::new(relay.id(), kafka.id(), Some(redis)).await?;
    watch(&MessageCount::stored(&relay), to - from, &of).await?;
    relay.terminate().await;
    Ok(())
}

fn costs(report: &mut Report, sizes: &[(u64, String)]) {
    let columns = [
        ("redis", "Redis CPU us/message"),
        ("cpu", "CPU us/message, all"),
        ("rate", "messages/s"),
    ];
    let mut curves = Vec::new();
    for (kind, what) in [
        ("equal", "equal delays, in and out"),
        ("random", "random over an hour"),
    ] {
        let rows: Vec<(String, String)> = sizes
            .iter()
            .map(|(_, size)| (format!("{kind} {size}"), format!("{what}, {size} pending")))
            .collect();
        let rows: Vec<(&str, &str)> = rows.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        report.table("beside a backlog", &rows, &columns);
        let points = sizes
            .iter()
            .zip(&rows)
            .map(|((size, _), (row, _))| (*size as f64, report.median(row, "redis")));
        curves.push(PlotLine {
            what,
            points: points.collect(),
        });
        let least = rows[0].0;
        let most = rows[rows.len() - 1].0;
        let text = format!(
            "Redis CPU a message, {what}: {} pending to {}",
            sizes[sizes.len() - 1].1,
            sizes[0].1
        );
        report.ratio(5, &text, "redis", (most, least), BarLimit::AtMost(1.25));
    }
    let most = sizes[sizes.len() - 1].0 as f64;
    let y = PlotAxis {
        what: "Redis CPU, us a message",
        ticks: [0.1, 0.3, 1.0, 3.0, 10.0].map(|us| (us, number(us))).into(),
    };
    report.plot(
        "cost against backlog",
        "backlog",
        lines(
            &decades(
                "pending",
                SMALLEST_BACKLOG.min(most as u64 / 10) as f64,
                most,
            ),
            &y,
            &curves,
        ),
    );
}

async fn lateness_beside(
    kafka: &Kafka,
    base: &Config,
    scale: &Scale,
    report: &mut Report,
    pending: &str,
) -> anyhow::Result<()> {
    let mut topics = Vec::new();
    for kind in ["plain", "source", "target"] {
        topics.push(kafka.unique_topic(kind, TOPIC_PARTITIONS).await);
    }
    let config = kafka_route(base.clone(), "late", &topics[1], &topics[2], "");
    let mut relay = Relay::start(&config).await;
    let what = format!("at 1,000/s with {pending} pending");
    let found = with_relay(
        kafka,
        (&topics[0], &topics[1], &topics[2]),
        scale,
        report,
        (&what, 1000.0),
    )
    .await;
    relay.terminate().await;
    judge(report, 9, &what, &found?, 1000, 2.0);
    Ok(())
}

/// The time from the start of the process to the first 200 of `/readyz`.
async fn starts(
    base: &Config,
    scale: &Scale,
    report: &mut Report,
    pending: &str,
) -> anyhow::Result<()> {
    for _ in 0..scale.rounds {
        let begin = Instant::now();
        let mut relay = Relay::spawn(base, &[]);
        // A refused connection means that the relay does not listen yet.
        while !matches!(relay.get("/readyz").await, Ok((200, _))) {
            if begin.elapsed() > START_TIMEOUT {
                bail!("not ready after {START_TIMEOUT:?}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        report.add("start", "seconds", begin.elapsed().as_secs_f64());
        relay.terminate().await;
    }
    report.table(
        "start",
        &[("start", &format!("{pending} pending"))],
        &[("seconds", "s until ready")],
    );
    let text = format!("s until ready with {pending} pending");
    report.bar(
        15,
        &text,
        report.median("start", "seconds"),
        BarLimit::AtMost(1.0),
    );
    Ok(())
}
