//! How fast a count grows, and what each process uses meanwhile.

use std::time::{Duration, Instant};

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use rdkafka::consumer::{BaseConsumer, Consumer};

use crate::machine;
use crate::support::{Kafka, Rabbitmq, Relay};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(25);
/// A run that takes longer has stalled.
const LIMIT: Duration = Duration::from_secs(120);

/// What is counted.
#[allow(clippy::large_enum_variant, reason = "there are three of them")]
pub enum Count<'a> {
    /// Records of a topic, from its watermarks: nobody has to read them.
    Topic(BaseConsumer, String, i32),
    /// Messages ready in a queue that nobody reads; the connection lives as long as its channel.
    Queue { _connection: Connection, channel: Channel, queue: String },
    /// What the relay says it has stored.
    Stored(&'a Relay),
}

impl<'a> Count<'a> {
    pub fn topic(kafka: &Kafka, topic: &str, partitions: usize) -> Self {
        Self::Topic(kafka.client().create().expect("a consumer"), topic.to_owned(), partitions as i32)
    }

    pub async fn queue(rabbitmq: &Rabbitmq, queue: &str) -> Self {
        let connection = rabbitmq.connect().await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        Self::Queue { _connection: connection, channel, queue: queue.to_owned() }
    }

    pub fn stored(relay: &'a Relay) -> Self {
        Self::Stored(relay)
    }

    async fn now(&self) -> u64 {
        match self {
            Self::Topic(consumer, topic, partitions) => tokio::task::block_in_place(|| {
                let end = |partition| consumer.fetch_watermarks(topic, partition, Duration::from_secs(10));
                (0..*partitions).map(|partition| end(partition).expect("kafka answers").1 as u64).sum()
            }),
            Self::Queue { channel, queue, .. } => {
                let options = QueueDeclareOptions { passive: true, ..Default::default() };
                let asked = channel.queue_declare(queue.as_str().into(), options, FieldTable::default());
                u64::from(asked.await.expect("rabbitmq answers").message_count())
            }
            // It does not listen yet: nothing stored.
            Self::Stored(relay) => {
                relay.metrics().await.map_or(0, |metrics| metrics.sum("postdate_stored_total", &[]) as u64)
            }
        }
    }
}

/// The processes whose CPU is told apart.
#[derive(Clone, Copy, Debug)]
pub struct Processes {
    /// The relay, or the mirror.
    pub moves: u32,
    /// The broker.
    pub broker: u32,
    /// Redis.
    pub redis: u32,
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
    fn cpu(&self) -> Cpu {
        let of = |pid| machine::cpu(pid).unwrap_or_default().as_secs_f64();
        Cpu {
            moves: of(self.moves),
            broker: of(self.broker),
            redis: of(self.redis),
            machine: machine::busy(),
        }
    }
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
    /// Between two looks, over so many seconds and messages.
    pub fn between(from: &Look, to: &Look, seconds: f64, messages: u64) -> Self {
        let used = to.cpu - from.cpu;
        let micros = |seconds: f64| seconds * 1e6 / messages.max(1) as f64;
        let elapsed = to.at.duration_since(from.at).as_secs_f64();
        Self {
            per_second: messages as f64 / seconds,
            cost: Cpu {
                moves: micros(used.moves),
                broker: micros(used.broker),
                redis: micros(used.redis),
                machine: micros(used.machine),
            },
            others: (used.machine - used.moves - used.broker - used.redis).max(0.0) / elapsed,
        }
    }
}

/// Looks until the count has grown to `until`; the first look comes at once.
pub async fn watch(count: &Count<'_>, until: u64, of: Processes) -> Result<Vec<Look>, String> {
    let begin = Instant::now();
    let mut looks = Vec::new();
    loop {
        let count = count.now().await;
        let look = Look { at: Instant::now(), count, cpu: of.cpu() };
        looks.push(look);
        if count >= until {
            return Ok(looks);
        }
        if begin.elapsed() > LIMIT {
            return Err(format!("only {count} of {until} after {LIMIT:?}"));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The rate between the first and the last tenth, so that neither start nor end counts.
pub fn middle(looks: &[Look], messages: u64) -> Rate {
    let reached = |share: f64| looks.iter().find(|look| look.count as f64 >= share * messages as f64);
    let ends = reached(0.1).zip(reached(0.9)).filter(|(from, to)| to.count > from.count);
    // Too fast for three looks: from the last one that saw nothing.
    let (from, to) = ends.unwrap_or_else(|| {
        let none = looks.iter().rfind(|look| look.count == 0).unwrap_or(&looks[0]);
        (none, &looks[looks.len() - 1])
    });
    let seconds = to.at.duration_since(from.at).as_secs_f64();
    Rate::between(from, to, seconds, to.count - from.count)
}

/// The one with the median rate.
pub fn median(mut rates: Vec<Rate>) -> Rate {
    rates.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    rates[rates.len() / 2]
}
