//! How fast a count grows, and what each process uses meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use rdkafka::consumer::{BaseConsumer, Consumer};
use redis::aio::MultiplexedConnection;

use crate::machine;
use crate::support::{Kafka, Rabbitmq, Redis, Relay};

/// Time between two looks.
pub const LOOK: Duration = Duration::from_millis(25);
/// A count that does not grow for so long has stalled.
const STALLED: Duration = Duration::from_secs(60);

/// Counter of messages.
#[allow(clippy::large_enum_variant, reason = "there are three of them")]
pub enum Count<'a> {
    /// Records of a topic, from its watermarks: nobody has to read them.
    Topic(BaseConsumer, String, i32),
    /// Messages ready in a queue that nobody reads; the connection lives as long as its channel.
    Queue { _connection: Connection, channel: Channel, queue: String },
    /// Messages that the relay says it has stored.
    Stored(&'a Relay),
}

impl<'a> Count<'a> {
    pub fn topic(kafka: &Kafka, topic: &str, partitions: usize) -> Self {
        Self::Topic(kafka.client().create().expect("a consumer"), topic.to_owned(), partitions as i32)
    }

    pub async fn queue(rabbitmq: &Rabbitmq, queue: &str) -> anyhow::Result<Self> {
        let connection = rabbitmq.connect().await?;
        let channel = connection.create_channel().await?;
        Ok(Self::Queue { _connection: connection, channel, queue: queue.to_owned() })
    }

    pub fn stored(relay: &'a Relay) -> Self {
        Self::Stored(relay)
    }

    pub async fn now(&self) -> anyhow::Result<u64> {
        match self {
            Self::Topic(consumer, topic, partitions) => tokio::task::block_in_place(|| {
                let end = |partition| consumer.fetch_watermarks(topic, partition, Duration::from_secs(10));
                let ends = (0..*partitions).map(|partition| Ok(end(partition)?.1 as u64));
                ends.sum::<Result<u64, rdkafka::error::KafkaError>>().context("kafka does not answer")
            }),
            Self::Queue { channel, queue, .. } => {
                let options = QueueDeclareOptions { passive: true, ..Default::default() };
                let asked = channel.queue_declare(queue.as_str().into(), options, FieldTable::default());
                Ok(u64::from(asked.await.context("rabbitmq does not answer")?.message_count()))
            }
            // It does not listen yet: nothing stored.
            Self::Stored(relay) => Ok(relay
                .metrics()
                .await
                .map_or(0, |metrics| metrics.sum("postdate_stored_total", &[]) as u64)),
        }
    }
}

/// The processes whose CPU is told apart.
pub struct Processes {
    /// The relay, or the mirror.
    moves: u32,
    /// The broker.
    broker: u32,
    /// Where Redis is asked for its own account, which is finer than the kernel's.
    redis: Option<MultiplexedConnection>,
}

/// CPU seconds: of each process, and of the whole machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu {
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
        Ok(Self { moves, broker, redis })
    }

    async fn cpu(&self) -> anyhow::Result<Cpu> {
        let of = |pid| machine::cpu(pid).map(|time| time.as_secs_f64());
        let redis = match &self.redis {
            Some(redis) => redis_cpu(redis.clone()).await?,
            None => 0.0,
        };
        Ok(Cpu {
            moves: of(self.moves).context("the measured process has ended")?,
            broker: of(self.broker).context("the broker has ended")?,
            redis,
            machine: machine::busy(),
        })
    }
}

/// CPU seconds that Redis says it has used, in user and system mode.
pub async fn redis_cpu(mut redis: MultiplexedConnection) -> anyhow::Result<f64> {
    let text: String = redis::cmd("INFO").arg("cpu").query_async(&mut redis).await?;
    let seconds = text.lines().filter_map(|line| {
        let (name, value) = line.trim().split_once(':')?;
        ["used_cpu_sys", "used_cpu_user"].contains(&name).then(|| value.parse::<f64>().ok())?
    });
    Ok(seconds.sum())
}

impl std::ops::Sub for Cpu {
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

/// One look.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub at: Instant,
    pub count: u64,
    pub cpu: Cpu,
}

/// A rate, and what a message costs.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Messages a second.
    pub per_second: f64,
    /// CPU microseconds a message, by process; of the machine, all that is not idle.
    pub cost: Cpu,
    /// Cores that were busy with something else.
    pub others: f64,
}

impl Rate {
    /// Rate and cost between two samples.
    pub fn between(from: &Look, to: &Look) -> Self {
        let used = to.cpu - from.cpu;
        let messages = (to.count - from.count).max(1) as f64;
        let micros = |seconds: f64| seconds * 1e6 / messages;
        let elapsed = to.at.duration_since(from.at).as_secs_f64().max(0.001);
        Self {
            per_second: messages / elapsed,
            cost: Cpu {
                moves: micros(used.moves),
                broker: micros(used.broker),
                redis: micros(used.redis),
                machine: micros(used.machine),
            },
            others: (used.machine - used.moves - used.broker - used.redis).max(0.0) / elapsed,
        }
    }

    /// CPU microseconds a message, of all that is ours.
    pub fn cpu(&self) -> f64 {
        self.cost.moves + self.cost.broker + self.cost.redis
    }
}

/// Looks once.
pub async fn look(count: &Count<'_>, of: &Processes) -> anyhow::Result<Look> {
    let count = count.now().await?;
    Ok(Look { at: Instant::now(), count, cpu: of.cpu().await? })
}

/// Looks until the count has grown to `until`; the first look comes at once.
pub async fn watch(count: &Count<'_>, until: u64, of: &Processes) -> anyhow::Result<Vec<Look>> {
    let mut looks: Vec<Look> = Vec::new();
    let mut grown = Instant::now();
    loop {
        let look = look(count, of).await?;
        if looks.last().is_none_or(|last| last.count < look.count) {
            grown = look.at;
        }
        looks.push(look);
        if look.count >= until {
            return Ok(looks);
        }
        if grown.elapsed() > STALLED {
            bail!("it stands at {} of {until} for {STALLED:?}", look.count);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The rate between two shares of the messages, so that neither start nor end counts.
pub fn middle(looks: &[Look], messages: u64) -> Rate {
    let reached = |share: f64| looks.iter().find(|look| look.count as f64 >= share * messages as f64);
    let ends = reached(0.1).zip(reached(0.9)).filter(|(from, to)| to.count > from.count);
    // Too fast for three looks: from the last one that saw nothing.
    let (from, to) = ends.unwrap_or_else(|| {
        let none = looks.iter().rfind(|look| look.count == 0).unwrap_or(&looks[0]);
        (none, &looks[looks.len() - 1])
    });
    Rate::between(from, to)
}
