//! Measures very many messages that are due in one millisecond, beside another route. Bar 10.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};

use crate::lateness::{CountedFrom, LatenessSamples, MessageStream, now_us};
use crate::load::{Load, fill_topic};
use crate::measure::{MessageCount, Processes, watch};
use crate::report::{BarLimit, Report, number};
use crate::servers::{Servers, TOPIC_PARTITIONS, config, kafka_route};
use crate::support::run::now_ms;
use crate::support::{Kafka, Redis, Relay, folders};
use crate::{Scale, lateness, machine, mirror};

/// Messages a second of the other route.
const OTHER_RATE: f64 = 500.0;
/// Time before the burst for which all messages must have been stored, ms.
const CALM_TIME_MS: i64 = 1_500;
/// Time after which a stream beside a mirror flows.
const WARM_UP_TIME: Duration = Duration::from_millis(1_500);
/// Longest time without a message before a reader gives up.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(60);

pub async fn bench(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for &count in scale.burst {
        let what = number(count as f64);
        one_size(servers, scale, report, count, &what).await?;
        rows.push(what);
    }
    for what in &rows {
        let mirror = format!("mirror {what}");
        let burst = format!("burst {what}");
        report.table(
            &format!("{what} at once"),
            &[
                (&mirror, "mirror, first to last received"),
                (&burst, "relay, due to last received"),
            ],
            &[
                ("ms", "ms"),
                ("rss", "relay's RSS at most, MiB"),
                ("other", "other route's (topic's) p99, ms"),
            ],
        );
    }
    for what in &rows {
        let mirror = format!("mirror {what}");
        let burst = format!("burst {what}");
        let name = |text: &str| format!("{what} at once: {text}");
        report.ratio(
            10,
            &name("time, to the mirror's"),
            "ms",
            (&burst, &mirror),
            BarLimit::AtMost(1.5),
        );
        report.bar(
            10,
            &name("RSS, MB"),
            report.median(&burst, "rss") * 1.048_576,
            BarLimit::AtMost(300.0),
        );
        report.bar(
            10,
            &name("other route's p99, ms"),
            report.median(&burst, "other"),
            BarLimit::AtMost(20.0),
        );
    }
    Ok(())
}

async fn one_size(
    servers: &Servers,
    scale: &Scale,
    report: &mut Report,
    count: u64,
    what: &str,
) -> anyhow::Result<()> {
    let kafka = servers.kafka().await?;
    let plain = servers.filled(count, Load::Plain).await?;
    // A guess, until the first round shows how long filling and storing take here.
    let mut ahead_ms = 8_000 + count as i64 / 25;
    for _ in 0..scale.rounds {
        let floor = mirror_run(kafka, &plain, count).await?;
        report.add(&format!("mirror {what}"), "ms", floor.ms);
        report.add(
            &format!("mirror {what}"),
            "other",
            floor.other.at(0.99) as f64 / 1000.0,
        );
        let burst = relay_run(servers, kafka, count, ahead_ms).await?;
        ahead_ms = 3_000 + CALM_TIME_MS + burst.prepared_ms * 3 / 2;
        println!("  {what} at once: {:.0} ms", burst.ms);
        let row = format!("burst {what}");
        report.add(&row, "ms", burst.ms);
        report.add(&row, "rss", burst.rss / f64::from(1 << 20));
        report.add(&row, "other", burst.other.at(0.99) as f64 / 1000.0);
    }
    Ok(())
}

struct BurstResult {
    /// Time from the due time to the last message received.
    ms: f64,
    /// Most bytes that the relay ever had.
    rss: f64,
    /// Lateness of messages of the other route that were due meanwhile.
    other: LatenessSamples,
    /// Time that filling and storing took.
    prepared_ms: i64,
}

struct FloorResult {
    /// Time from the first message received to the last.
    ms: f64,
    /// Latency of messages of another topic that were produced meanwhile.
    other: LatenessSamples,
}

async fn mirror_run(kafka: &Kafka, source: &str, count: u64) -> anyhow::Result<FloorResult> {
    let target = kafka.unique_topic("target", TOPIC_PARTITIONS).await;
    let plain = kafka.unique_topic("other", TOPIC_PARTITIONS).await;
    let reader = ArrivalReader::start(kafka, &target, count)?;
    let clocks = machine::ClockCheck::start();
    let seconds = WARM_UP_TIME.as_secs_f64() + 1.0 + count as f64 / 200_000.0;
    let stream = MessageStream {
        kafka,
        from: &plain,
        to: &plain,
        rate: OTHER_RATE,
        seconds,
        when: CountedFrom::Produced,
    };
    let (other, read) = std::thread::scope(|scope| {
        let other = scope.spawn(|| lateness::run(&stream));
        std::thread::sleep(WARM_UP_TIME);
        let _child = mirror::start(
            &folders::new("mirror"),
            "kafka",
            &kafka.bootstrap(),
            source,
            &target,
        );
        let other = other.join().expect("the stream does not panic");
        (other, reader.wait())
    });
    let other = other?;
    let (first, last) = read?;
    for topic in [&target, &plain] {
        kafka.delete_topic(topic).await;
    }
    clocks.check()?;
    Ok(FloorResult {
        ms: (last - first) as f64 / 1000.0,
        other: within(&other, first..=last),
    })
}

/// Lateness of the samples that begin at one of these moments, Unix microseconds.
fn within(late: &LatenessSamples, moments: RangeInclusive<u64>) -> LatenessSamples {
    let mut meanwhile = LatenessSamples::new();
    for &(from, late) in late
        .samples
        .iter()
        .filter(|(from, _)| moments.contains(from))
    {
        meanwhile.record(from, from + late);
    }
    meanwhile
}

async fn relay_run(
    servers: &Servers,
    kafka: &Kafka,
    count: u64,
    ahead_ms: i64,
) -> anyhow::Result<BurstResult> {
    let redis: Redis = servers.redis(false).await?;
    let mut topics = Vec::new();
    for kind in ["source", "target", "other-source", "other-target"] {
        topics.push(kafka.unique_topic(kind, TOPIC_PARTITIONS).await);
    }
    let config = kafka_route(
        config(&redis).kafka("main", kafka),
        "burst",
        &topics[0],
        &topics[1],
        "",
    );
    let mut relay = Relay::start(&kafka_route(config, "other", &topics[2], &topics[3], "")).await;
    let reader = ArrivalReader::start(kafka, &topics[1], count)?;
    let clocks = machine::ClockCheck::start();
    let begin_ms = now_ms();
    let due_ms = now_ms() + ahead_ms;
    tokio::task::block_in_place(|| fill_topic(kafka, &topics[0], count, Load::At(due_ms)))?;
    let of = Processes::new(relay.id(), kafka.id(), None).await?;
    watch(&MessageCount::stored(&relay), count, &of).await?;
    let prepared_ms = now_ms() - begin_ms;
    let calm_ms = due_ms - now_ms();
    ensure!(
        calm_ms >= CALM_TIME_MS / 2,
        "storing {count} took {prepared_ms} ms, beyond the moment they were due at"
    );
    // The delays of the other route are 1 to 3 s: messages that are sent from now on fall due around the burst.
    if calm_ms > 3_500 {
        tokio::time::sleep(Duration::from_millis(calm_ms as u64 - 3_500)).await;
    }
    let seconds = (due_ms - now_ms()).max(0) as f64 / 1000.0 + 1.0 + count as f64 / 300_000.0;
    let stream = MessageStream {
        kafka,
        from: &topics[2],
        to: &topics[3],
        rate: OTHER_RATE,
        seconds,
        when: CountedFrom::Due,
    };
    let other = lateness::run(&stream)?;
    let (_, last_us) = reader.wait()?;
    let rss = machine::resident(relay.id(), "VmHWM").context("the relay has ended")?;
    relay.terminate().await;
    for topic in &topics {
        kafka.delete_topic(topic).await;
    }
    clocks.check()?;
    let due_us = due_ms as u64 * 1000;
    ensure!(last_us >= due_us, "the last one came before it was due");
    let other = within(&other, due_us..=last_us);
    Ok(BurstResult {
        ms: (last_us - due_us) as f64 / 1000.0,
        rss,
        other,
        prepared_ms,
    })
}

/// Counts messages that arrive in a topic.
struct ArrivalReader {
    thread: JoinHandle<anyhow::Result<(u64, u64)>>,
    stop: Arc<AtomicBool>,
}

impl ArrivalReader {
    fn start(kafka: &Kafka, topic: &str, count: u64) -> anyhow::Result<Self> {
        let mut config = kafka.client();
        config
            .set("group.id", "burst")
            .set("enable.auto.commit", "false");
        config
            .set("fetch.queue.backoff.ms", "10")
            .set("isolation.level", "read_committed");
        let consumer: BaseConsumer = config.create()?;
        let mut all = TopicPartitionList::new();
        for partition in 0..TOPIC_PARTITIONS as i32 {
            all.add_partition_offset(topic, partition, Offset::Beginning)?;
        }
        consumer.assign(&all)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut first = 0;
            let mut last = 0;
            let mut seen = 0;
            while seen < count {
                let Some(message) = consumer.poll(Duration::from_millis(100)) else {
                    if stopped.load(Ordering::Acquire) {
                        bail!("only {seen} of {count} came");
                    }
                    continue;
                };
                message?;
                last = now_us();
                first = if seen == 0 { last } else { first };
                seen += 1;
            }
            Ok((first, last))
        });
        Ok(Self { thread, stop })
    }

    /// The moments of the first and the last arrival, Unix microseconds.
    fn wait(self) -> anyhow::Result<(u64, u64)> {
        tokio::task::block_in_place(|| {
            let begin = Instant::now();
            while !self.thread.is_finished() {
                if begin.elapsed() > ARRIVAL_TIMEOUT {
                    self.stop.store(true, Ordering::Release);
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            self.thread.join().expect("the reader does not panic")
        })
    }
}
