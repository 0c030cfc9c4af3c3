//! Measures the load that people have: orders with a name and a time-out, of which nine in ten are cancelled before they
//! are due. Stored, cancelled in two halves, drained; beside the bare commands that do the same.
//!
//! As in `phases`, all but the drain happens by the clock of a store that is behind.

use anyhow::{Context as _, ensure};
use redis::Cmd;
use redis::aio::MultiplexedConnection;

use crate::load::{Produced, produce};
use crate::measure::{MeasuredRate, MessageCount, Processes, middle, redis_cpu, watch};
use crate::memory::used;
use crate::phases::drain;
use crate::report::{BarLimit, Report};
use crate::servers::{Servers, TOPIC_PARTITIONS, config, kafka_route, relay_behind};
use crate::support::run::now_ms;
use crate::support::{Config, Kafka, Redis, Relay};
use crate::{Scale, machine};

/// The due times of all orders lie within this time, ms.
const SPREAD_MS: i64 = 30 * 60_000;
/// Time between the last due time and now.
const MARGIN_MS: i64 = 100_000;
/// Time between the clock of the store and the first due time: storing and cancelling may take so long.
const STORING_MS: i64 = 600_000;
/// One order in so many is not cancelled.
const KEPT: u64 = 10;
/// Messages of a pipeline of bare commands.
const CALL_MESSAGES: usize = 200;

/// Routes that are measured, with the keys of `[redis]` and their own that make them.
const ROUTES: [(&str, &str, &str); 3] = [
    ("orders", "", ""),
    ("orders-dedupe", "", "dedupe = \"1h\""),
    ("orders-apart", "growing_bundles = false", ""),
];

pub async fn bench(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let kafka = servers.kafka().await?;
    let orders = Orders {
        count: scale.phase / 2,
        from: now_ms() - SPREAD_MS - MARGIN_MS,
    };
    let (stored, cancelled) = orders.topics(kafka).await?;
    for _ in 0..scale.rounds {
        bare(&servers.redis(false).await?, orders, report).await?;
        for (name, of_redis, keys) in ROUTES {
            let redis = servers.redis(false).await?;
            // Each has a store of its own.
            let base = config(&redis).redis(of_redis).kafka("main", kafka);
            let run = Run {
                redis: &redis,
                base,
                kafka,
                orders,
                name,
                keys,
            };
            run.measure(&stored, &cancelled, report).await?;
        }
    }
    tell(report, &orders);
    Ok(())
}

/// A number of orders. Whoever asks for the order of a number gets the same one.
#[derive(Clone, Copy, Debug)]
struct Orders {
    count: u64,
    /// The first due time, Unix ms.
    from: i64,
}

impl Orders {
    /// No two are the same: the factor is odd.
    fn name(n: u64) -> String {
        format!("order-{:08x}", (n as u32).wrapping_mul(0x9e37_79b1))
    }

    fn due(&self, n: u64) -> i64 {
        let mut rng = fastrand::Rng::with_seed(n ^ 0x5eed);
        self.from + rng.i64(0..SPREAD_MS)
    }

    /// The order as JSON, some 190 bytes.
    fn body(n: u64) -> String {
        const STATE: [&str; 4] = ["placed", "reserved", "confirmed", "authorised"];
        let mut rng = fastrand::Rng::with_seed(n ^ 0xb0d1);
        format!(
            r#"{{"event":"order.timeout","order_id":"{}","customer":{},"state":"{}","total_cents":{},"items":[{{"sku":"SKU-{:06}","quantity":{}}}],"created":"2026-11-{:02}T{:02}:{:02}:{:02}Z"}}"#,
            Self::name(n),
            rng.u32(10_000_000..99_999_999),
            STATE[rng.usize(..STATE.len())],
            rng.u32(100..1_000_000),
            rng.u32(..1_000_000),
            rng.u8(1..10),
            rng.u8(1..30),
            rng.u8(..24),
            rng.u8(..60),
            rng.u8(..60),
        )
    }

    /// Bytes of an order as its producer sends it: body, key, and header.
    fn own_bytes(n: u64) -> usize {
        Self::body(n).len() + 2 * Self::name(n).len()
    }

    /// The orders that are cancelled: half of them soon, in the order in which they came, and half near their end.
    fn cancelled(&self) -> Vec<u64> {
        let cancelled = (0..self.count).filter(|n| n % KEPT != 0);
        let (soon, mut late): (Vec<u64>, Vec<u64>) = cancelled.partition(|n| n % 2 == 0);
        late.sort_by_key(|&n| self.due(n));
        [soon, late].concat()
    }

    fn kept(&self) -> u64 {
        self.count.div_ceil(KEPT)
    }

    /// A topic of the orders, and one of their cancels.
    async fn topics(&self, kafka: &Kafka) -> anyhow::Result<(String, String)> {
        let stored = kafka.unique_topic("orders", TOPIC_PARTITIONS).await;
        let cancelled = kafka.unique_topic("cancels", TOPIC_PARTITIONS).await;
        println!("  filling {stored} and {cancelled}: {} orders", self.count);
        tokio::task::block_in_place(|| {
            let order = |n| Produced {
                key: Self::name(n),
                headers: vec![
                    ("x-delay-id", Self::name(n)),
                    ("x-deliver-at", self.due(n).to_string()),
                ],
                body: Self::body(n).into_bytes(),
            };
            produce(kafka, &stored, (0..self.count).map(order))?;
            let cancel = |n| Produced {
                key: Self::name(n),
                headers: vec![
                    ("x-delay-id", Self::name(n)),
                    ("x-delay-op", "cancel".to_owned()),
                ],
                body: Vec::new(),
            };
            produce(kafka, &cancelled, self.cancelled().into_iter().map(cancel))
        })?;
        Ok((stored, cancelled))
    }
}

/// One relay and one empty Redis.
struct Run<'a> {
    redis: &'a Redis,
    base: Config,
    kafka: &'a Kafka,
    orders: Orders,
    name: &'a str,
    keys: &'a str,
}

impl Run<'_> {
    async fn measure(
        &self,
        stored: &str,
        cancelled: &str,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let Self { redis, name, .. } = self;
        let count = self.orders.count;
        let target = self.kafka.unique_topic("target", TOPIC_PARTITIONS).await;
        let clocks = machine::ClockCheck::start();
        let empty = used(redis).await?;
        let rate = self.behind(stored, &target, "stored", count).await?;
        report.rate(&format!("{name} store"), &rate);
        let full = used(redis).await?;
        report.add(
            &format!("{name} memory"),
            "each",
            (full - empty) / count as f64,
        );
        let cancels = count - self.orders.kept();
        let rate = self.behind(cancelled, &target, "commands", cancels).await?;
        report.rate(&format!("{name} cancel"), &rate);
        let left = used(redis).await?;
        report.add(
            &format!("{name} memory"),
            "left",
            (left - empty) / self.orders.kept() as f64,
        );
        let relay = Relay::spawn(&self.config(stored, &target), &[]);
        let kept = self.orders.kept();
        let rate = drain(redis, self.kafka, relay, &target, kept, false).await?;
        report.rate(&format!("{name} drain"), &rate);
        clocks.check()?;
        Ok(())
    }

    /// Runs a relay whose store is behind until it has counted so many messages of the source.
    async fn behind(
        &self,
        source: &str,
        target: &str,
        counter: &str,
        count: u64,
    ) -> anyhow::Result<MeasuredRate> {
        let behind_s = (self.orders.from - STORING_MS - now_ms()) / 1000;
        let mut relay = relay_behind(&self.config(source, target), behind_s);
        let of = Processes::new(relay.id(), self.kafka.id(), Some(self.redis)).await?;
        let metric = format!("postdate_{counter}_total");
        let samples = watch(&MessageCount::metric(&relay, &metric), count, &of).await?;
        if counter == "commands" {
            let metrics = relay.metrics().await?;
            let answered = |result| metrics.sum(&metric, &[("result", result)]) as u64;
            ensure!(
                answered("cancelled") == count,
                "of {count} cancels {} found their order, {} none, {} one in flight",
                answered("cancelled"),
                answered("unknown"),
                answered("in_flight")
            );
        }
        relay.terminate().await;
        Ok(middle(&samples, count))
    }

    fn config(&self, source: &str, target: &str) -> Config {
        let keys = format!("max_pending = 1_000_000_000\n{}", self.keys);
        kafka_route(self.base.clone(), "orders", source, target, &keys)
    }
}

/// What bare commands cost Redis: for each order a name, a due time and a body, then all three removed.
async fn bare(redis: &Redis, orders: Orders, report: &mut Report) -> anyhow::Result<()> {
    let mut connection = redis.connection().await?;
    let empty = used(redis).await?;
    let all: Vec<u64> = (0..orders.count).collect();
    let before = redis_cpu(connection.clone()).await?;
    for call in all.chunks(CALL_MESSAGES) {
        bare_store(&mut connection, &orders, call).await?;
    }
    let stored = redis_cpu(connection.clone()).await?;
    let micros = (stored - before) * 1e6 / orders.count as f64;
    report.add("bare store", "redis", micros);
    let each = (used(redis).await? - empty) / orders.count as f64;
    report.add("bare memory", "each", each);
    let cancelled = orders.cancelled();
    for call in cancelled.chunks(CALL_MESSAGES) {
        bare_cancel(&mut connection, call).await?;
    }
    let micros = (redis_cpu(connection).await? - stored) * 1e6 / cancelled.len() as f64;
    report.add("bare cancel", "redis", micros);
    Ok(())
}

/// The key of an order's body. Names and due times have a key each.
fn body_key(n: u64) -> String {
    format!("bare:b:{}", Orders::name(n))
}

async fn bare_store(
    connection: &mut MultiplexedConnection,
    orders: &Orders,
    call: &[u64],
) -> anyhow::Result<()> {
    let mut names = redis::cmd("HSET");
    let mut due = redis::cmd("ZADD");
    names.arg("bare:names");
    due.arg("bare:due");
    let mut pipe = redis::pipe();
    for &n in call {
        names.arg(Orders::name(n)).arg(n);
        due.arg(orders.due(n)).arg(Orders::name(n));
        pipe.set(body_key(n), Orders::body(n)).ignore();
    }
    exec(pipe, [names, due], connection).await
}

async fn bare_cancel(connection: &mut MultiplexedConnection, call: &[u64]) -> anyhow::Result<()> {
    let mut names = redis::cmd("HDEL");
    let mut due = redis::cmd("ZREM");
    let mut bodies = redis::cmd("UNLINK");
    names.arg("bare:names");
    due.arg("bare:due");
    for &n in call {
        names.arg(Orders::name(n));
        due.arg(Orders::name(n));
        bodies.arg(body_key(n));
    }
    exec(redis::pipe(), [names, due, bodies], connection).await
}

async fn exec<const N: usize>(
    mut pipe: redis::Pipeline,
    commands: [Cmd; N],
    connection: &mut MultiplexedConnection,
) -> anyhow::Result<()> {
    for command in commands {
        pipe.add_command(command).ignore();
    }
    pipe.exec_async(connection).await.context("bare commands")
}

fn tell(report: &mut Report, orders: &Orders) {
    let sizes: usize = (0..1000).map(Orders::own_bytes).sum();
    let bodies: usize = (0..1000).map(|n| Orders::body(n).len()).sum();
    report.add("orders memory", "body", (bodies / 1000) as f64);
    report.say(&format!(
        "{} orders of {} bytes (JSON, key, name), due at random within half an hour; nine in ten are cancelled: half \
         of those in the order in which they came, half in the order in which they are due.",
        orders.count,
        sizes / 1000
    ));
    report.rates(&[
        ("orders store", "store"),
        ("orders cancel", "cancel nine in ten"),
        ("orders drain", "drain the others"),
        ("orders-dedupe store", "store, with `dedupe`"),
        ("orders-dedupe cancel", "cancel, with `dedupe`"),
        ("orders-dedupe drain", "drain, with `dedupe`"),
        ("orders-apart store", "store, without growing bundles"),
        ("orders-apart cancel", "cancel, without growing bundles"),
        ("orders-apart drain", "drain, without growing bundles"),
    ]);
    report.table(
        "bare commands, 200 messages a pipeline",
        &[
            ("bare store", "`HSET`, `ZADD`, `SET`"),
            ("bare cancel", "`HDEL`, `ZREM`, `UNLINK`"),
        ],
        &[("redis", "Redis CPU us/message")],
    );
    report.table(
        "Redis's `used_memory`, bytes a message",
        &[
            ("bare memory", "bare commands"),
            ("orders memory", "stored"),
            ("orders-dedupe memory", "stored, with `dedupe`"),
            ("orders-apart memory", "stored, without growing bundles"),
        ],
        &[
            ("each", "all stored"),
            ("left", "nine in ten cancelled, of those left"),
        ],
    );
    report.ratio(
        21,
        "Redis CPU a message stored, to bare commands'",
        "redis",
        ("orders store", "bare store"),
        BarLimit::AtMost(0.6),
    );
    report.ratio(
        21,
        "Redis CPU a message cancelled, to bare commands'",
        "redis",
        ("orders cancel", "bare cancel"),
        BarLimit::AtMost(1.2),
    );
    let each = report.median("orders memory", "each");
    report.bar(
        22,
        "bytes of Redis for a pending order",
        each,
        BarLimit::AtMost(270.0),
    );
}
