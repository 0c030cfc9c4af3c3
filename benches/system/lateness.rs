//! Measures lateness, and the time from production to consumption beside it. Bars 8 and 9.
//!
//! One reader measures both on one wall clock: from the due time, or from the moment of production. No sample waits for
//! the one before it, so each message of a second sees a stall in that second.
//!
//! Due times are whole milliseconds, so due messages come in clumps, unlike messages that are produced at random
//! moments. Also, the broker of a relay has every message twice. Two more runs measure the cost of both without a
//! relay.

use std::fmt::Write as _;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use hdrhistogram::Histogram;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::{Message as _, Offset, TopicPartitionList};

use crate::load::{body, headers, producer_config};
use crate::report::{BarLimit, Report};
use crate::servers::{Servers, TOPIC_PARTITIONS, kafka_config};
use crate::support::{Kafka, Redis, Relay};
use crate::{Scale, machine, plot};

/// Longest wait for the last message.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(30);
/// Highest lateness of the histogram. A later message counts as this late.
const HIGHEST_US: u64 = 3_600_000_000;
/// Messages that warm producer, relay and consumer up; they are not counted.
const WARM_UP_MESSAGES: u64 = 300;
/// Highest p99 of the plain latency. Beyond, the machine was busy with something else: the round is repeated.
const NOISY_US: u64 = 10_000;
/// Most rounds that are repeated.
const MAX_REPEATS: usize = 5;
/// Variants that are measured in turns: the names of the rows of numbers, and their headings in the table.
const VARIANT_NAMES: [(&str, &str); 4] = [
    ("plain", "plain, produced to consumed"),
    ("clumped", "plain, produced at whole milliseconds"),
    ("twice", "the same, and as many on another topic"),
    ("relay", "relay, due to consumed"),
];

/// Lateness of messages, microseconds.
#[derive(Clone, Debug)]
pub struct LatenessSamples {
    pub histogram: Histogram<u64>,
    /// Messages that came before they were due.
    pub early: u64,
    /// The moment from which each message counts, Unix microseconds, and its lateness.
    pub samples: Vec<(u64, u64)>,
}

impl LatenessSamples {
    pub fn new() -> Self {
        Self {
            histogram: Histogram::new_with_bounds(1, HIGHEST_US, 3).expect("three digits"),
            early: 0,
            samples: vec![],
        }
    }

    pub fn at(&self, quantile: f64) -> u64 {
        self.histogram.value_at_quantile(quantile)
    }

    /// Adds a message that counts from `from_us` and came at `at_us`.
    pub fn record(&mut self, from_us: u64, at_us: u64) {
        self.early += u64::from(at_us < from_us);
        let late = at_us.saturating_sub(from_us);
        self.histogram.saturating_record(late);
        self.samples.push((from_us, late));
    }
}

/// A stream of messages at random moments.
#[derive(Clone, Copy, Debug)]
pub struct MessageStream<'a> {
    pub kafka: &'a Kafka,
    pub from: &'a str,
    pub to: &'a str,
    /// Messages a second.
    pub rate: f64,
    pub seconds: f64,
    /// Variant that is measured.
    pub when: CountedFrom,
}

/// Moment from which the lateness of a message counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedFrom {
    /// Production at a random moment.
    Produced,
    /// Production at a whole millisecond, with all others of that millisecond.
    Clumped,
    /// Due time, 1 to 3 s after production.
    Due,
}

/// Bar 8: 1,000 messages a second.
pub async fn bench(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let redis = servers.redis(false).await?;
    let found = rounds(servers, &redis, scale, report, ("at 1,000/s", 1000.0)).await?;
    judge(report, 8, "1,000 a second", &found, 150, 1.5);
    plots(report, "lateness", &found);
    Ok(())
}

/// The first half of bar 9: 20,000 messages a second.
pub async fn high(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let redis = servers.redis(false).await?;
    let rate = if scale.quick { 2000.0 } else { 20_000.0 };
    let found = rounds(servers, &redis, scale, report, ("at 20,000/s", rate)).await?;
    judge(report, 9, "20,000 a second", &found, 1000, 2.0);
    plots(report, "lateness-high", &found);
    Ok(())
}

/// Measurements without and with the relay, over all rounds.
pub struct LatenessRounds {
    /// Samples of each variant.
    kinds: [LatenessSamples; VARIANT_NAMES.len()],
    again: usize,
}

impl LatenessRounds {
    fn plain(&self) -> &LatenessSamples {
        &self.kinds[0]
    }

    fn relay(&self) -> &LatenessSamples {
        &self.kinds[VARIANT_NAMES.len() - 1]
    }
}

/// Runs all variants in turns, with a relay on this Redis.
pub async fn rounds(
    servers: &Servers,
    redis: &Redis,
    scale: &Scale,
    report: &mut Report,
    (row, rate): (&str, f64),
) -> anyhow::Result<LatenessRounds> {
    let kafka = servers.kafka().await?;
    let topics = ("plain", "source", "target");
    let plain = kafka.unique_topic(topics.0, TOPIC_PARTITIONS).await;
    let source = kafka.unique_topic(topics.1, TOPIC_PARTITIONS).await;
    let target = kafka.unique_topic(topics.2, TOPIC_PARTITIONS).await;
    let mut relay = Relay::start(&kafka_config(redis, kafka, &source, &target, "")).await;
    let found = with_relay(
        kafka,
        (&plain, &source, &target),
        scale,
        report,
        (row, rate),
    )
    .await;
    relay.terminate().await;
    found
}

/// Runs all variants in turns, between topics of a relay that runs already.
pub async fn with_relay(
    kafka: &Kafka,
    (plain, source, target): (&str, &str, &str),
    scale: &Scale,
    report: &mut Report,
    (row, rate): (&str, f64),
) -> anyhow::Result<LatenessRounds> {
    let mut rounds = LatenessRounds {
        kinds: std::array::from_fn(|_| LatenessSamples::new()),
        again: 0,
    };
    let seconds = scale.stream;
    let mut done = 0;
    while done < scale.rounds {
        machine::write_back()?;
        let clocks = machine::ClockCheck::start();
        let stream = MessageStream {
            kafka,
            from: plain,
            to: plain,
            rate,
            seconds,
            when: CountedFrom::Produced,
        };
        let clumped = MessageStream {
            when: CountedFrom::Clumped,
            ..stream
        };
        let round = [
            run(&stream)?,
            run(&clumped)?,
            beside(
                &clumped,
                &MessageStream {
                    from: target,
                    to: target,
                    ..stream
                },
            )?,
            run(&MessageStream {
                from: source,
                to: target,
                when: CountedFrom::Due,
                ..stream
            })?,
        ];
        clocks.check()?;
        let told = VARIANT_NAMES.iter().zip(&round);
        let told =
            told.map(|((kind, _), one)| format!("{kind} p50 {} p99 {}", one.at(0.5), one.at(0.99)));
        println!("  {} us", told.collect::<Vec<_>>().join(", "));
        let [plain, .., relay] = &round;
        if !scale.quick && plain.at(0.99) > NOISY_US && rounds.again < MAX_REPEATS {
            // An early message is never noise.
            rounds.kinds[VARIANT_NAMES.len() - 1].early += relay.early;
            rounds.again += 1;
            continue;
        }
        done += 1;
        for (((kind, _), one), all) in VARIANT_NAMES.iter().zip(&round).zip(&mut rounds.kinds) {
            let row = format!("{kind} {row}");
            report.add(&row, "p50", one.at(0.5) as f64);
            report.add(&row, "p99", one.at(0.99) as f64);
            all.histogram.add(&one.histogram)?;
            all.early += one.early;
        }
    }
    table(report, row, &rounds);
    Ok(rounds)
}

/// Measures one stream while another one runs.
fn beside(
    stream: &MessageStream<'_>,
    other: &MessageStream<'_>,
) -> anyhow::Result<LatenessSamples> {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(other));
        let late = run(stream);
        other.join().expect("the stream does not panic")?;
        late
    })
}

fn table(report: &mut Report, row: &str, rounds: &LatenessRounds) {
    let mut text = format!(
        "| {row}, us | p50 | p90 | p99 | p99.9 | max | early | messages |\n|---|---:|---:|---:|---:|---:|---:|---:|"
    );
    for ((_, what), late) in VARIANT_NAMES.iter().zip(&rounds.kinds) {
        let cells = [0.5, 0.9, 0.99, 0.999, 1.0]
            .map(|q| late.at(q).to_string())
            .join(" | ");
        let early = late.early;
        let count = late.histogram.len();
        write!(text, "\n| {what} | {cells} | {early} | {count} |").expect("a String");
    }
    report.say(&text);
    let rows = VARIANT_NAMES.map(|(kind, what)| (format!("{kind} {row}"), what));
    report.table(
        "each round, us",
        &rows.each_ref().map(|(row, what)| (row.as_str(), *what)),
        &[("p50", "p50"), ("p99", "p99")],
    );
    if rounds.again > 0 {
        report.say(&format!(
            "{} rounds were done again, their plain latency's p99 beyond {NOISY_US} us.",
            rounds.again
        ));
    }
}

/// Adds the bars on p50, p99 and early messages.
pub fn judge(
    report: &mut Report,
    bar: u8,
    what: &str,
    rounds: &LatenessRounds,
    more_us: u64,
    times: f64,
) {
    let p50 = rounds.relay().at(0.5) as f64 - rounds.plain().at(0.5) as f64;
    let p99 = rounds.relay().at(0.99) as f64 / rounds.plain().at(0.99) as f64;
    report.bar(
        bar,
        &format!("{what}: p50 beyond plain, us"),
        p50,
        BarLimit::AtMost(more_us as f64),
    );
    report.bar(
        bar,
        &format!("{what}: p99 to plain's, pooled"),
        p99,
        BarLimit::AtMost(times),
    );
    report.bar(
        bar,
        &format!("{what}: early"),
        rounds.relay().early as f64,
        BarLimit::AtMost(0.0),
    );
}

fn plots(report: &mut Report, file: &str, rounds: &LatenessRounds) {
    let lines: Vec<_> = VARIANT_NAMES
        .iter()
        .zip(&rounds.kinds)
        .map(|((_, what), late)| (*what, late))
        .collect();
    report.plot(
        "the distribution of lateness",
        file,
        plot::distribution(&lines),
    );
}

/// Sends to a topic and waits for all messages on the other.
pub fn run(stream: &MessageStream<'_>) -> anyhow::Result<LatenessSamples> {
    tokio::task::block_in_place(|| {
        let counts = Arc::new(SentCounts {
            warm: AtomicU64::new(0),
            sent: AtomicU64::new(u64::MAX),
        });
        let reader = read(stream, counts.clone())?;
        let sent = send(stream, &counts);
        // The reader must end even if sending failed.
        counts
            .sent
            .store(*sent.as_ref().unwrap_or(&0), Ordering::Release);
        let late = reader.join().expect("the reader does not panic")?;
        sent.map(|_| late)
    })
}

/// State that sender and reader share.
struct SentCounts {
    warm: AtomicU64,
    /// Number of messages sent; `u64::MAX` until all are.
    sent: AtomicU64,
}

/// The wall clock: Unix time in microseconds.
pub fn now_us() -> u64 {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970");
    now.as_micros() as u64
}

/// Sends at random moments after the warm-up. Returns the number of messages that count. A body begins with the
/// microsecond from which its message counts, or with 0 during the warm-up.
fn send(stream: &MessageStream<'_>, counts: &SentCounts) -> anyhow::Result<u64> {
    // The same thread settings as the relay's: a sleep that ends tens of microseconds late would count in clumped runs.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let mut config = producer_config(stream.kafka, "0");
    config.set("queue.buffering.max.messages", "1000000");
    let producer: ThreadedProducer<DefaultProducerContext> = config.create()?;
    let mut body = body();
    let mut produce = |from: u64, due_ms: u64| {
        body[..8].copy_from_slice(&from.to_be_bytes());
        let key = format!("{:08x}", fastrand::u32(..));
        let mut record = BaseRecord::to(stream.from)
            .key(key.as_bytes())
            .payload(&body[..]);
        record.headers = Some(headers("x-deliver-at", &due_ms.to_string()));
        producer
            .send(record)
            .map_err(|(error, _)| error)
            .context("cannot produce")
    };
    for _ in 0..WARM_UP_MESSAGES {
        produce(0, now_us() / 1000 + 300)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    let begin = now_us();
    while counts.warm.load(Ordering::Acquire) < WARM_UP_MESSAGES {
        if now_us() - begin > ARRIVAL_TIMEOUT.as_micros() as u64 {
            bail!(
                "only {} of {WARM_UP_MESSAGES} came while warming up",
                counts.warm.load(Ordering::Acquire)
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut count = 0;
    let mut next = now_us() as f64;
    let end = next + stream.seconds * 1e6;
    while next < end {
        next -= (1.0 - fastrand::f64()).ln() * 1e6 / stream.rate;
        let at = if stream.when == CountedFrom::Clumped {
            (next / 1000.0).ceil() * 1000.0
        } else {
            next
        };
        let wait = at - now_us() as f64;
        if wait > 0.0 {
            std::thread::sleep(Duration::from_micros(wait as u64));
        }
        let due_ms = now_us() / 1000 + fastrand::u64(1000..3000);
        let from = match stream.when {
            CountedFrom::Produced => now_us(),
            CountedFrom::Clumped => at as u64,
            CountedFrom::Due => due_ms * 1000,
        };
        produce(from, due_ms)?;
        count += 1;
    }
    producer.flush(ARRIVAL_TIMEOUT).context("not confirmed")?;
    Ok(count)
}

/// Reads from the present end of the topic until all sent messages have come.
fn read(
    stream: &MessageStream<'_>,
    counts: Arc<SentCounts>,
) -> anyhow::Result<JoinHandle<anyhow::Result<LatenessSamples>>> {
    let mut config = stream.kafka.client();
    config
        .set("group.id", "lateness")
        .set("enable.auto.commit", "false");
    config
        .set("isolation.level", "read_committed")
        .set("fetch.queue.backoff.ms", "10");
    let consumer: BaseConsumer = config.create()?;
    let mut all = TopicPartitionList::new();
    for partition in 0..TOPIC_PARTITIONS as i32 {
        let (_, end) = consumer.fetch_watermarks(stream.to, partition, ARRIVAL_TIMEOUT)?;
        all.add_partition_offset(stream.to, partition, Offset::Offset(end))?;
    }
    consumer.assign(&all)?;
    Ok(std::thread::spawn(move || {
        let mut late = LatenessSamples::new();
        let mut last_us = now_us();
        while late.histogram.len() < counts.sent.load(Ordering::Acquire) {
            if let Some(message) = consumer.poll(Duration::from_millis(100)) {
                let message = message?;
                last_us = now_us();
                let body = message.payload().unwrap_or_default();
                let from = body
                    .first_chunk()
                    .map(|from| u64::from_be_bytes(*from))
                    .context("a short body")?;
                if from == 0 {
                    counts.warm.fetch_add(1, Ordering::AcqRel);
                    continue;
                }
                late.record(from, last_us);
            } else if now_us() - last_us > ARRIVAL_TIMEOUT.as_micros() as u64 {
                bail!(
                    "only {} of {} came",
                    late.histogram.len(),
                    counts.sent.load(Ordering::Acquire)
                );
            }
        }
        Ok(late)
    }))
}
