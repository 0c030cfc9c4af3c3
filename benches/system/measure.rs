//! Measures how fast a count grows, and the CPU time of each process meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use rdkafka::consumer::{BaseConsumer, Consumer};
use redis::aio::MultiplexedConnection;

use crate::machine;
use crate::support::{Kafka, Rabbitmq, Redis, Relay};

/// Interval between two samples of a count.
pub const COUNT_INTERVAL: Duration = Duration::from_millis(25);
/// Time without growth after which a count has stalled.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Counter of messages.
#[allow(clippy::large_enum_variant, reason = "there are three of them")]
pub enum MessageCount<'a> {
    /// Records of a topic, from its watermarks.
    Topic(BaseConsumer, String, i32),
    /// Messages ready in a queue that nobody reads; the connection lives as long as its channel.
    Queue {
        _connection: Connection,
        channel: Channel,
        queue: String,
    },
    /// What the relay counts by a metric of its own.
    Metric(&'a Relay, String),
}

impl<'a> MessageCount<'a> {
    pub fn topic(kafka: &Kafka, topic: &str, partitions: usize) -> Self {
        Self::Topic(
            kafka.client().create().expect("a consumer"),
            topic.to_owned(),
            partitions as i32,
        )
    }

    pub async fn queue(rabbitmq: &Rabbitmq, queue: &str) -> anyhow::Result<Self> {
        let connection = rabbitmq.connect().await?;
        let channel = connection.create_channel().await?;
        Ok(Self::Queue {
            _connection: connection,
            channel,
            queue: queue.to_owned(),
        })
    }

    pub fn stored(relay: &'a Relay) -> Self {
        Self::metric(relay, "postdate_stored_total")
    }

    pub fn metric(relay: &'a Relay, name: &str) -> Self {
        Self::Metric(relay, name.to_owned())
    }

    pub async fn now(&self) -> anyhow::Result<u64> {
        match self {
            Self::Topic(consumer, topic, partitions) => tokio::task::block_in_place(|| {
                let end = |partition| {
                    consumer.fetch_watermarks(topic, partition, Duration::from_secs(10))
                };
                let ends = (0..*partitions).map(|partition| Ok(end(partition)?.1 as u64));
                ends.sum::<Result<u64, rdkafka::error::KafkaError>>()
                    .context("kafka does not answer")
            }),
            Self::Queue { channel, queue, .. } => {
                let options = QueueDeclareOptions {
                    passive: true,
                    ..Default::default()
                };
                let asked =
                    channel.queue_declare(queue.as_str().into(), options, FieldTable::default());
                Ok(u64::from(
                    asked
                        .await
                        .context("rabbitmq does not answer")?
                        .message_count(),
                ))
            }
            // The relay does not listen yet: nothing is stored.
            Self::Metric(relay, name) => Ok(relay
                .metrics()
                .await
                .map_or(0, |metrics| metrics.sum(name, &[]) as u64)),
        }
    }
}

/// Processes of which the CPU time is measured.
pub struct Processes {
    /// The relay, or the mirror.
    moves: u32,
    /// The broker.
    broker: u32,
    /// Redis, which is asked for its own count: it is finer than the kernel's.
    redis: Option<MultiplexedConnection>,
}

/// CPU seconds of each process, and of the whole machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuSeconds {
    pub moves: f64,
    pub broker: f64,
    pub redis: f64,
    pub machine: f64,
}

impl Processes {
    pub async fn new(moves: u32, broker: u32, redis: Option<&Redis>) -> anyhow::Result<Self> {
        let redis = match redis {
            Some(redis) => Some(redis.connection().await?),
            None => None,
        };
        Ok(Self {
            moves,
            broker,
            redis,
        })
    }

    async fn cpu(&self) -> anyhow::Result<CpuSeconds> {
        let of = |pid| machine::cpu(pid).map(|time| time.as_secs_f64());
        let redis = match &self.redis {
            Some(redis) => redis_cpu(redis.clone()).await?,
            None => 0.0,
        };
        Ok(CpuSeconds {
            moves: of(self.moves).context("the measured process has ended")?,
            broker: of(self.broker).context("the broker has ended")?,
            redis,
            machine: machine::busy(),
        })
    }
}

/// CPU seconds of Redis by its own count, in user and system mode.
pub async fn redis_cpu(mut redis: MultiplexedConnection) -> anyhow::Result<f64> {
    let text: String = redis::cmd("INFO")
        .arg("cpu")
        .query_async(&mut redis)
        .await?;
    let seconds = text.lines().filter_map(|line| {
        let (name, value) = line.trim().split_once(':')?;
        ["used_cpu_sys", "used_cpu_user"]
            .contains(&name)
            .then(|| value.parse::<f64>().ok())?
    });
    Ok(seconds.sum())
}

impl std::ops::Sub for CpuSeconds {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            moves: self.moves - other.moves,
            broker: self.broker - other.broker,
            redis: self.redis - other.redis,
            machine: self.machine - other.machine,
        }
    }
}

/// One sample of a count, with the CPU time so far.
#[derive(Clone, Copy, Debug)]
pub struct CountSample {
    pub at: Instant,
    pub count: u64,
    pub cpu: CpuSeconds,
}

/// A rate, and the cost of a message.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredRate {
    /// Messages a second.
    pub per_second: f64,
    /// CPU microseconds a message, by process; for the machine, all that are not idle.
    pub cost: CpuSeconds,
    /// Cores that were busy with something else.
    pub others: f64,
}

impl MeasuredRate {
    /// Rate and cost between two samples.
    pub fn between(from: &CountSample, to: &CountSample) -> Self {
        let used = to.cpu - from.cpu;
        let messages = (to.count - from.count).max(1) as f64;
        let micros = |seconds: f64| seconds * 1e6 / messages;
        let elapsed = to.at.duration_since(from.at).as_secs_f64().max(0.001);
        Self {
            per_second: messages / elapsed,
            cost: CpuSeconds {
                moves: micros(used.moves),
                broker: micros(used.broker),
                redis: micros(used.redis),
                machine: micros(used.machine),
            },
            others: (used.machine - used.moves - used.broker - used.redis).max(0.0) / elapsed,
        }
    }

    /// CPU microseconds a message, of all measured processes together.
    pub fn cpu(&self) -> f64 {
        self.cost.moves + self.cost.broker + self.cost.redis
    }
}

/// Takes one sample.
pub async fn sample(count: &MessageCount<'_>, of: &Processes) -> anyhow::Result<CountSample> {
    let count = count.now().await?;
    Ok(CountSample {
        at: Instant::now(),
        count,
        cpu: of.cpu().await?,
    })
}

/// Takes samples until the count has grown to `until`, the first one at once.
pub async fn watch(
    count: &MessageCount<'_>,
    until: u64,
    of: &Processes,
) -> anyhow::Result<Vec<CountSample>> {
    let mut samples: Vec<CountSample> = Vec::new();
    let mut grown = Instant::now();
    loop {
        let sample = sample(count, of).await?;
        if samples.last().is_none_or(|last| last.count < sample.count) {
            grown = sample.at;
        }
        samples.push(sample);
        if sample.count >= until {
            return Ok(samples);
        }
        if grown.elapsed() > STALL_TIMEOUT {
            bail!(
                "it stands at {} of {until} for {STALL_TIMEOUT:?}",
                sample.count
            );
        }
        tokio::time::sleep(COUNT_INTERVAL).await;
    }
}

/// The rate between two shares of the messages, so that neither start nor end counts.
pub fn middle(samples: &[CountSample], messages: u64) -> MeasuredRate {
    let reached = |share: f64| {
        samples
            .iter()
            .find(|sample| sample.count as f64 >= share * messages as f64)
    };
    let ends = reached(0.1)
        .zip(reached(0.9))
        .filter(|(from, to)| to.count > from.count);
    // The run was too fast for three samples: count from the last one that was 0.
    let (from, to) = ends.unwrap_or_else(|| {
        let none = samples
            .iter()
            .rfind(|sample| sample.count == 0)
            .unwrap_or(&samples[0]);
        (none, &samples[samples.len() - 1])
    });
    MeasuredRate::between(from, to)
}
