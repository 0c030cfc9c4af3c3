//! The load: messages to all four routes at a steady rate, with delays of all kinds, from producers of their
//! own that outlive what happens to their broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use lapin::options::ConfirmSelectOptions;
use lapin::{Channel, Connection, ConnectionProperties};
use rdkafka::ClientConfig;
use tokio::task::JoinSet;

use crate::support::producers::kafka_producer;
use crate::support::run::Message;
use crate::support::{Run, When, names};

/// Messages are sent this often.
const TICK: Duration = Duration::from_millis(100);
/// How long the brokers may take to answer what was sent; then it stays unknown.
const ANSWERS: Duration = Duration::from_secs(90);

/// One way through the relay.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) from_kafka: bool,
    pub(crate) to_kafka: bool,
    pub(crate) source: String,
    pub(crate) target: String,
}

impl Way {
    /// Kafka to Kafka, Kafka to RabbitMQ, RabbitMQ to Kafka, RabbitMQ to RabbitMQ.
    pub(crate) fn four() -> Vec<Self> {
        [
            ("k-k", true, true),
            ("k-r", true, false),
            ("r-k", false, true),
            ("r-r", false, false),
        ]
        .map(|(name, from_kafka, to_kafka)| Self {
            name,
            from_kafka,
            to_kafka,
            source: names::unique("source"),
            target: names::unique("target"),
        })
        .to_vec()
    }

    /// The target's label in the accounts.
    pub(crate) fn label(&self) -> String {
        format!(
            "{}:{}",
            if self.to_kafka { "kafka" } else { "rabbitmq" },
            self.target
        )
    }

    /// A message of this way. From RabbitMQ to Kafka it arrives with the routing key that it came by.
    fn message(&self, run: &Run, rng: &mut Rng, (least_ms, longest_ms): (u64, u64)) -> Message {
        let delay = rng.u64(least_ms..=longest_ms);
        let when = match rng.u8(0..20) {
            0 if least_ms == 0 => When::Now,
            1 if least_ms == 0 => When::Delay(0),
            n if n % 2 == 0 => When::Delay(delay),
            _ => When::At(delay),
        };
        let key = match (self.from_kafka, self.to_kafka) {
            (true, _) => format!("key-{}", rng.u8(0..32)),
            (false, true) => self.source.clone(),
            (false, false) => self.target.clone(),
        };
        let message = run
            .message(&self.label(), when)
            .key(&key)
            .size(rng.usize(200..600));
        if rng.u8(0..5) == 0 && when != When::Now {
            let name = message.id().to_string();
            return message.contract("x-delay-id", &name);
        }
        message
    }
}

/// A load under way.
#[derive(Debug)]
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    producers: JoinSet<()>,
}

impl Load {
    /// Starts it: so many messages a second over all ways, with delays of this range, ms. Where it begins at 0 some
    /// have no delay at all, and pass through.
    pub(crate) fn start(
        run: &Run,
        ways: &[Way],
        (kafka, rabbitmq): (ClientConfig, String),
        rate: u64,
        delays_ms: (u64, u64),
        seed: u64,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut producers = JoinSet::new();
        let each = (rate * TICK.as_millis() as u64 / 1000 / ways.len() as u64).max(1);
        for (n, way) in ways.iter().cloned().enumerate() {
            let run = run.clone();
            let stop = stop.clone();
            let mut rng = Rng::with_seed(seed.wrapping_add(n as u64));
            let batch = {
                let run = run.clone();
                let way = way.clone();
                move || {
                    (0..each)
                        .map(|_| way.message(&run, &mut rng, delays_ms))
                        .collect()
                }
            };
            if way.from_kafka {
                producers.spawn(to_kafka(run, kafka.clone(), way.source, stop, batch));
            } else {
                producers.spawn(to_rabbitmq(run, rabbitmq.clone(), way.source, stop, batch));
            }
        }
        Self { stop, producers }
    }

    /// Sends no more, and waits for the brokers' answers.
    pub(crate) async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = tokio::time::timeout(ANSWERS, self.producers.join_all()).await;
        if ended.is_err() {
            println!("some of what was produced was never answered: it stays unknown");
        }
    }
}

async fn to_kafka(
    run: Run,
    kafka: ClientConfig,
    topic: String,
    stop: Arc<AtomicBool>,
    mut batch: impl FnMut() -> Vec<Message>,
) {
    let producer = kafka_producer(kafka);
    let mut sends = JoinSet::new();
    let mut tick = tokio::time::interval(TICK);
    while !stop.load(Ordering::Relaxed) {
        tick.tick().await;
        let run = run.clone();
        let producer = producer.clone();
        let topic = topic.clone();
        let messages = batch();
        sends.spawn(async move { run.send_kafka_by(&producer, &topic, messages).await });
    }
    sends.join_all().await;
}

async fn to_rabbitmq(
    run: Run,
    url: String,
    queue: String,
    stop: Arc<AtomicBool>,
    mut batch: impl FnMut() -> Vec<Message>,
) {
    let mut open = None;
    let mut confirms = JoinSet::new();
    let mut tick = tokio::time::interval(TICK);
    while !stop.load(Ordering::Relaxed) {
        tick.tick().await;
        let (connection, channel) = match open.take() {
            Some(pair) => pair,
            None => match open_channel(&url).await {
                Ok(pair) => pair,
                // The broker is away, as it is meant to be: what is sent meanwhile is less.
                Err(_) => continue,
            },
        };
        let published = run
            .publish_rabbitmq(&channel, "", Some(&queue), batch())
            .await;
        let run = run.clone();
        confirms.spawn(async move { run.confirmed_rabbitmq(published).await });
        open = channel
            .status()
            .connected()
            .then_some((connection, channel));
    }
    confirms.join_all().await;
}

async fn open_channel(url: &str) -> anyhow::Result<(Connection, Channel)> {
    let open = async {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        anyhow::Ok((connection, channel))
    };
    tokio::time::timeout(Duration::from_secs(5), open).await?
}
