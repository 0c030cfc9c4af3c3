//! One relay, with or without a fault, between Kafka and RabbitMQ: what the scenarios share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapin::ExchangeKind;
use lapin::types::FieldTable;

use crate::support::{
    Config, Kafka, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names,
};

/// How long a lost message is looked for.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two routes, from a topic and a queue to an exchange and a topic.
pub(crate) struct Scenario {
    pub(crate) run: Run,
    pub(crate) relay: Relay,
    faithful: bool,
    topic: String,
    queue: String,
    exchange: String,
    to_topic: String,
    to_queue: String,
}

impl Scenario {
    /// Messages of one sending to one route.
    pub(crate) const COUNT: usize = 100;

    /// Starts the relay with this fault; without one if it has no name.
    pub(crate) async fn start(
        redis: &Redis,
        kafka: &Kafka,
        rabbitmq: &Rabbitmq,
        mutant: &str,
    ) -> Self {
        let timer = "[timer]\nlookahead = \"2s\"\nclaim = \"6s\"";
        Self::start_with(redis, kafka, rabbitmq, mutant, timer, redis.port()).await
    }

    /// The same with this section for the timer, and with Redis on this port, its own or a proxy's.
    pub(crate) async fn start_with(
        redis: &Redis,
        kafka: &Kafka,
        rabbitmq: &Rabbitmq,
        mutant: &str,
        timer: &str,
        redis_port: u16,
    ) -> Self {
        let topic = kafka.unique_topic("source", 3).await;
        let to_topic = kafka.unique_topic("target", 3).await;
        let queue = names::unique("source");
        let to_queue = names::unique("target");
        let exchange = names::unique("exchange");
        rabbitmq.declare_queue(&queue, QueueKind::Quorum).await;
        rabbitmq.declare_queue(&to_queue, QueueKind::Quorum).await;
        rabbitmq
            .declare_exchange(&exchange, ExchangeKind::Direct)
            .await;
        rabbitmq.bind(&to_queue, &exchange, "key").await;
        let run = Run::new();
        run.collect_kafka(kafka, &to_topic, 3);
        run.collect_rabbitmq(rabbitmq, &to_queue);
        let config = Config::new(redis)
            .through(redis, redis_port)
            .kafka("main", kafka)
            .rabbitmq("main", rabbitmq)
            .route(
                "to-rabbitmq",
                &format!(r#"{{ kafka = "main", topic = "{topic}", group = "{topic}" }}"#),
                &format!(
                    r#"{{ rabbitmq = "main", exchange = "{exchange}", routing_key = "key" }}"#
                ),
                "",
            )
            .route(
                "to-kafka",
                &format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#),
                &format!(r#"{{ kafka = "main", topic = "{to_topic}" }}"#),
                "",
            )
            .section(timer);
        let environment: &[_] = if mutant.is_empty() {
            &[]
        } else {
            &[("POSTDATE_MUTANT", mutant)]
        };
        let relay = Relay::start_with(&config, environment).await;
        Self {
            run,
            relay,
            faithful: mutant.is_empty(),
            topic,
            queue,
            exchange,
            to_topic,
            to_queue,
        }
    }

    /// Sends to both routes, all due within half a second up to this time.
    pub(crate) async fn send(&self, kafka: &Kafka, rabbitmq: &Rabbitmq, until_ms: u64) {
        let label = format!("rabbitmq:{}", self.to_queue);
        let message = |n| self.run.message(&label, Self::when(n, until_ms)).key("key");
        let messages = (0..Self::COUNT).map(message).collect();
        tokio::join!(
            self.run.send_kafka(kafka, &self.topic, messages),
            self.send_rabbitmq(rabbitmq, until_ms)
        );
    }

    /// Sends to the route that reads from RabbitMQ.
    pub(crate) async fn send_rabbitmq(&self, rabbitmq: &Rabbitmq, until_ms: u64) {
        let label = format!("kafka:{}", self.to_topic);
        let message = |n| {
            self.run
                .message(&label, Self::when(n, until_ms))
                .key(&self.queue)
        };
        self.run
            .send_rabbitmq(rabbitmq, "", None, (0..Self::COUNT).map(message).collect())
            .await;
    }

    /// Sends to that route again and again until the work is done.
    pub(crate) async fn while_sending_rabbitmq(
        &self,
        rabbitmq: &Rabbitmq,
        until_ms: u64,
        work: impl Future<Output = ()>,
    ) {
        let is_done = AtomicBool::new(false);
        let load = async {
            while !is_done.load(Ordering::Acquire) {
                self.send_rabbitmq(rabbitmq, until_ms).await;
            }
        };
        let work = async {
            work.await;
            is_done.store(true, Ordering::Release);
        };
        tokio::join!(load, work);
    }

    fn when(n: usize, until_ms: u64) -> When {
        When::At(until_ms - n as u64 % 50 * 10)
    }

    /// Takes the way from the exchange to its queue away.
    pub(crate) async fn unbind(&self, rabbitmq: &Rabbitmq) {
        let connection = rabbitmq.connect().await.expect("connected");
        let channel = connection.create_channel().await.expect("a channel");
        let queue = self.to_queue.as_str().into();
        let exchange = self.exchange.as_str().into();
        channel
            .queue_unbind(queue, exchange, "key".into(), FieldTable::default())
            .await
            .expect("unbound");
    }

    /// Mends it.
    pub(crate) async fn bind(&self, rabbitmq: &Rabbitmq) {
        rabbitmq.bind(&self.to_queue, &self.exchange, "key").await;
    }

    /// Waits until this metric has reached this.
    pub(crate) async fn counts(&self, name: &str, expected: usize) {
        eventually(&format!("{name} is {expected}"), async || {
            let found = self.relay.metrics().await?.sum(name, &[]);
            if found >= expected as f64 {
                Ok(())
            } else {
                Err(anyhow::anyhow!("{found}"))
            }
        })
        .await;
    }

    /// How many messages were admitted so far.
    pub(crate) async fn admitted(&self) -> usize {
        self.relay.total("postdate_admitted_total", &[]).await as usize
    }

    /// Waits until all that was confirmed has arrived.
    pub(crate) async fn arrived(&self) {
        eventually("all have arrived", async || {
            match self.run.ledger().missing().len() {
                0 => Ok(()),
                missing => Err(format!("{missing} are missing")),
            }
        })
        .await;
    }

    /// Waits until so many messages have arrived.
    pub(crate) async fn publishes(&self, expected: usize) {
        eventually(&format!("{expected} have arrived"), async || {
            let found = self.run.ledger().delivered();
            if found >= expected {
                Ok(())
            } else {
                Err(format!("{found} have"))
            }
        })
        .await;
    }

    /// Drains and compares: what is not accounted for.
    pub(crate) async fn faults(&self) -> Vec<String> {
        if self.faithful {
            self.run.drain(&self.relay).await;
        } else {
            self.run.drain_within(&self.relay, PATIENCE).await;
        }
        let explained = self.relay.total("postdate_redelivered_total", &[]).await;
        let report = self.run.report();
        println!("{report}\nexplained {explained}");
        report.faults(explained as usize)
    }
}

/// The relay without a fault.
pub(crate) fn passed(faults: &[String]) {
    assert!(faults.is_empty(), "without a fault: {faults:#?}");
}
