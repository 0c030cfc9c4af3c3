//! Measures the memory that a pending message takes of Redis. Bars 11 and 12.

use anyhow::Context as _;

use crate::Scale;
use crate::load::{BODY_BYTES, Load, headers, order};
use crate::measure::{MessageCount, Processes, watch};
use crate::report::{BarLimit, Report};
use crate::servers::{Servers, TOPIC_PARTITIONS, kafka_config};
use crate::support::run::now_ms;
use crate::support::{Redis, Relay};

/// Delay after which nothing falls due during the bench, ms.
const AHEAD_MS: u64 = 3 * 3_600_000;

pub async fn bench(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    // The count is exact, and two rounds show that.
    for _ in 0..scale.rounds.min(2) {
        let alone = Load::Alone(now_ms() + AHEAD_MS as i64);
        for (row, load, count) in [
            ("equal", Load::Equal(AHEAD_MS), scale.phase / 2),
            ("alone", alone, scale.alone),
            ("orders", Load::Orders(AHEAD_MS), scale.phase / 2),
        ] {
            let redis = servers.redis(false).await?;
            let each = stored(servers, &redis, load, count).await? / count as f64;
            report.add(row, "each", each);
            report.add(row, "beyond", each - own(load, false));
            report.add(row, "own", own(load, true));
            report.add(row, "share", each / own(load, true));
        }
    }
    report.table(
        "bytes a message, Redis's `used_memory`",
        &[
            (
                "equal",
                "256-byte bodies that do not compress, equal delays",
            ),
            ("alone", "the same, bundles of one"),
            ("orders", "orders as JSON, equal delays"),
        ],
        &[
            ("each", "in Redis"),
            ("beyond", "beyond the body"),
            ("own", "body, key and headers"),
            ("share", "in Redis to those"),
        ],
    );
    let beyond = |row| report.median(row, "beyond");
    let equal = beyond("equal");
    let alone = beyond("alone");
    let share = report.median("orders", "share");
    report.bar(
        11,
        "bytes beyond the body, equal delays",
        equal,
        BarLimit::AtMost(40.0),
    );
    report.bar(
        11,
        "bytes beyond the body, bundles of one",
        alone,
        BarLimit::AtMost(300.0),
    );
    report.bar(
        12,
        "orders as JSON, in Redis to their own size",
        share,
        BarLimit::AtMost(0.4),
    );
    Ok(())
}

/// Bytes of a message as its producer sends it: its body, or with key and headers.
fn own(load: Load, whole: bool) -> f64 {
    let body = match load {
        Load::Orders(_) => (0..1000).map(|n| order(n).len()).sum::<usize>() as f64 / 1000.0,
        _ => BODY_BYTES as f64,
    };
    if !whole {
        return body;
    }
    let (name, value) = load.header(0);
    let headers = headers(name, &value);
    let headers: usize = rdkafka::message::Headers::iter(&headers)
        .map(|header| header.key.len() + header.value.map_or(0, <[u8]>::len))
        .sum();
    body + 8.0 + headers as f64
}

/// Bytes that so many messages add to Redis.
async fn stored(servers: &Servers, redis: &Redis, load: Load, count: u64) -> anyhow::Result<f64> {
    let kafka = servers.kafka().await?;
    let source = kafka.unique_topic("source", TOPIC_PARTITIONS).await;
    let target = kafka.unique_topic("target", TOPIC_PARTITIONS).await;
    let config = kafka_config(redis, kafka, &source, &target, "max_pending = 100_000_000");
    let mut relay = Relay::start(&config).await;
    let before = used(redis).await?;
    tokio::task::block_in_place(|| crate::load::fill_topic(kafka, &source, count, load))?;
    let of = Processes::new(relay.id(), kafka.id(), None).await?;
    watch(&MessageCount::stored(&relay), count, &of).await?;
    // Redis gives the memory of the relay's connections back when they close.
    relay.terminate().await;
    let after = used(redis).await?;
    kafka.delete_topic(&source).await;
    kafka.delete_topic(&target).await;
    Ok(after - before)
}

/// `used_memory`: bytes that Redis has got from its allocator, with rounding.
pub async fn used(redis: &Redis) -> anyhow::Result<f64> {
    let mut connection = redis.connection().await?;
    let text: String = redis::cmd("INFO")
        .arg("memory")
        .query_async(&mut connection)
        .await?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"))
        .context("no used_memory")?;
    Ok(value.trim().parse()?)
}
