//! Opens routes with their topics and queues for a table of cases, sends, and collects the arrivals.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::anyhow;
use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ExchangeKind};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Header, Headers as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Message as _, Offset, TopicPartitionList};

use super::wire::{Amqp, Arrival, CASE, Record, Wire, bytes, table, text};
use crate::support::relay::{Config, Relay};
use crate::support::run::now_ms;
use crate::support::{Kafka, QueueKind, Rabbitmq, Redis, eventually, names};

/// Kind of broker at one end of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Kafka,
    Classic,
    Quorum,
}

impl Side {
    pub(crate) const ALL: [Self; 3] = [Self::Kafka, Self::Classic, Self::Quorum];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        }
    }

    /// A message from here: its case in a header, a key or routing key, a body.
    pub(crate) fn plain(self, case: &str, key: &str, body: &[u8]) -> Wire {
        if self == Self::Kafka {
            let headers = vec![(CASE.to_owned(), bytes(case))];
            return Wire::Kafka(Record {
                key: bytes(key),
                value: Some(body.to_vec()),
                headers,
            });
        }
        let headers = table([(CASE, text(case))]);
        Wire::Amqp(Amqp {
            routing_key: key.into(),
            headers,
            body: body.to_vec(),
            ..Amqp::default()
        })
    }

    fn queue(self) -> QueueKind {
        if self == Self::Quorum {
            QueueKind::Quorum
        } else {
            QueueKind::Classic
        }
    }
}

/// A route with its ingress, its target and one allowed target beside it. To a quorum queue it goes by
/// the default exchange, to a classic one by an exchange that keeps the routing key.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) route: String,
    pub(crate) from: Side,
    pub(crate) to: Side,
    /// Topic, or exchange with the queue of the same name bound to it.
    pub(crate) ingress: String,
    /// Topic or queue, and the exchange of the same name.
    pub(crate) target: String,
    pub(crate) other: String,
}

impl Path {
    pub(crate) fn new(route: impl Into<String>, from: Side, to: Side) -> Self {
        let [ingress, target, other] = ["in", "out", "other"].map(names::unique);
        Self {
            route: route.into(),
            from,
            to,
            ingress,
            target,
            other,
        }
    }

    /// `from`, as configured. Its group is its own: a relay that another test kills would keep one of the default name
    /// waiting until a session ends.
    pub(crate) fn source_text(&self) -> String {
        match self.from {
            Side::Kafka => format!(
                "{{ kafka = \"a\", topic = \"{0}\", group = \"{0}\" }}",
                self.ingress
            ),
            _ => format!("{{ rabbitmq = \"a\", queue = \"{}\" }}", self.ingress),
        }
    }

    /// `to`, as configured: on the second connection of its kind.
    pub(crate) fn target_text(&self) -> String {
        let target = &self.target;
        let key = if self.from == Side::Kafka {
            "key"
        } else {
            "preserve"
        };
        match self.to {
            Side::Kafka => format!("{{ kafka = \"b\", topic = \"{target}\" }}"),
            Side::Classic => {
                format!("{{ rabbitmq = \"b\", exchange = \"{target}\", routing_key = \"{key}\" }}")
            }
            Side::Quorum => {
                format!("{{ rabbitmq = \"b\", exchange = \"\", routing_key = \"{target}\" }}")
            }
        }
    }

    /// The allowed target, as `x-delay-target` names it.
    pub(crate) fn other_text(&self) -> String {
        if self.to == Side::Kafka {
            self.other.clone()
        } else {
            format!("/{}", self.other)
        }
    }

    /// The route in a configuration; it allows `other`.
    pub(crate) fn configure(&self, config: Config, more: &str) -> Config {
        let more = format!("allow_targets = [\"{}\"]\n{more}", self.other_text());
        config.route(&self.route, &self.source_text(), &self.target_text(), &more)
    }

    /// Routing key of a message on its target.
    pub(crate) fn routing_key(&self, sent: &Wire) -> String {
        match (self.to, sent) {
            (Side::Quorum, _) => self.target.clone(),
            (_, Wire::Amqp(amqp)) => amqp.routing_key.clone(),
            (_, Wire::Kafka(record)) => String::from_utf8(record.key.clone().unwrap_or_default())
                .expect("a key that can route"),
        }
    }
}

/// Partitions of the store.
pub(crate) const PARTITIONS: u16 = 8;

/// A configuration with two connections of each kind.
pub(crate) fn config(fixture: &FlowFixture) -> Config {
    let mut config = Config::new(fixture.redis).redis(&format!("partitions = {PARTITIONS}"));
    for name in ["a", "b"] {
        config = config
            .kafka(name, fixture.kafka)
            .rabbitmq(name, fixture.rabbitmq);
    }
    config
}

type Arrivals = Arc<Mutex<Vec<Arrival>>>;

/// The servers, and clients of each kind.
pub(crate) struct FlowFixture {
    pub(crate) kafka: &'static Kafka,
    pub(crate) rabbitmq: &'static Rabbitmq,
    pub(crate) redis: &'static Redis,
    producer: FutureProducer,
    /// Open as long as its channel is used.
    _connection: Connection,
    channel: Channel,
    arrivals: Arrivals,
    stop: Arc<AtomicBool>,
}

impl FlowFixture {
    /// Waits until the groups of the routes from Kafka have committed all records: what is killed then reads none again.
    pub(crate) async fn await_committed(&self, paths: impl IntoIterator<Item = &Path>) {
        for path in paths.into_iter().filter(|path| path.from == Side::Kafka) {
            eventually("all is committed", async || {
                match self.kafka.lag(&path.ingress, &path.ingress)? {
                    0 => Ok(()),
                    lag => Err(anyhow!("{lag} records are not")),
                }
            })
            .await;
        }
    }

    pub(crate) async fn new() -> Self {
        let (kafka, rabbitmq, redis) =
            tokio::join!(Kafka::shared(), Rabbitmq::shared(), Redis::shared());
        let mut client = kafka.client();
        client
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("partitioner", "murmur2_random");
        let connection = rabbitmq.connect().await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await
            .expect("confirms");
        let producer = client.create().expect("a producer");
        let (arrivals, stop) = Default::default();
        Self {
            kafka,
            rabbitmq,
            redis,
            producer,
            _connection: connection,
            channel,
            arrivals,
            stop,
        }
    }

    /// Makes what a path needs, and collects what arrives on its targets.
    pub(crate) async fn open(&self, paths: &[Path]) {
        for path in paths {
            self.make(path.from, &path.ingress).await;
            self.make(path.to, &path.target).await;
            self.make(path.to, &path.other).await;
            self.collect(path.to, &path.target).await;
            self.collect(path.to, &path.other).await;
        }
    }

    /// A topic, or a queue with an exchange of its name that brings it everything.
    pub(crate) async fn make(&self, side: Side, name: &str) {
        if side == Side::Kafka {
            self.kafka.create_topic(name, 1).await;
        } else {
            self.rabbitmq.declare_queue(name, side.queue()).await;
            self.rabbitmq
                .declare_exchange(name, ExchangeKind::Fanout)
                .await;
            self.rabbitmq.bind(name, name, "").await;
        }
    }

    /// Notes all that arrives on a topic or in a queue.
    pub(crate) async fn collect(&self, side: Side, name: &str) {
        if side == Side::Kafka {
            self.collect_topic(name);
        } else {
            self.collect_queue(name).await;
        }
    }

    fn collect_topic(&self, topic: &str) {
        let mut client = self.kafka.client();
        client
            .set("group.id", "arrivals")
            .set("enable.auto.commit", "false")
            .set("fetch.wait.max.ms", "10");
        let consumer: BaseConsumer = client.create().expect("a consumer");
        let mut all = TopicPartitionList::new();
        all.add_partition_offset(topic, 0, Offset::Beginning)
            .expect("an offset");
        consumer.assign(&all).expect("assigned");
        let arrivals = self.arrivals.clone();
        let stop = self.stop.clone();
        let at = topic.to_owned();
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                // After an error the client goes on by itself; what does not arrive is missed.
                if let Some(Ok(record)) = consumer.poll(Duration::from_millis(100)) {
                    arrivals
                        .lock()
                        .expect("arrivals")
                        .push(of_record(&at, &record));
                }
            }
        });
    }

    async fn collect_queue(&self, queue: &str) {
        let options = BasicConsumeOptions {
            no_ack: true,
            ..Default::default()
        };
        let mut consumer = self
            .channel
            .basic_consume(queue.into(), "".into(), options, FieldTable::default())
            .await
            .expect("a consumer");
        let arrivals = self.arrivals.clone();
        let at = queue.to_owned();
        // Ends with the channel.
        tokio::spawn(async move {
            while let Some(Ok(delivery)) = consumer.next().await {
                arrivals
                    .lock()
                    .expect("arrivals")
                    .push(of_delivery(&at, delivery));
            }
        });
    }

    /// Sends in order and waits for the brokers' confirms. Kafka records get the time beside them.
    pub(crate) async fn send(&self, path: &Path, messages: &[(Wire, i64)]) {
        let mut records = Vec::new();
        let mut confirms = Vec::new();
        for (message, at) in messages {
            match message {
                Wire::Kafka(record) => {
                    let headers =
                        record
                            .headers
                            .iter()
                            .fold(OwnedHeaders::new(), |all, (key, value)| {
                                all.insert(Header {
                                    key,
                                    value: value.as_deref(),
                                })
                            });
                    let mut out = FutureRecord::<[u8], [u8]>::to(&path.ingress).timestamp(*at);
                    out.key = record.key.as_deref();
                    out.payload = record.value.as_deref();
                    let out = if record.headers.is_empty() {
                        out
                    } else {
                        out.headers(headers)
                    };
                    records.push(
                        self.producer
                            .send_result(out)
                            .map_err(|(error, _)| error)
                            .expect("queued"),
                    );
                }
                Wire::Amqp(amqp) => {
                    let properties = amqp.properties.clone().with_headers(amqp.headers.clone());
                    let exchange = path.ingress.as_str().into();
                    let key = amqp.routing_key.as_str().into();
                    let options = BasicPublishOptions {
                        mandatory: true,
                        ..Default::default()
                    };
                    let sent = self
                        .channel
                        .basic_publish(exchange, key, options, &amqp.body, properties);
                    confirms.push(sent.await.expect("published"));
                }
            }
        }
        for record in records {
            record
                .await
                .expect("an answer")
                .map_err(|(error, _)| error)
                .expect("taken");
        }
        for confirm in confirms {
            let confirm = confirm.await.expect("an answer");
            assert!(confirm.is_ack(), "{confirm:?}");
        }
    }

    /// All that has arrived, by case.
    pub(crate) fn arrived(&self) -> BTreeMap<String, Vec<Arrival>> {
        let mut by_case = BTreeMap::<_, Vec<_>>::new();
        for arrival in self.arrivals.lock().expect("arrivals").iter() {
            by_case
                .entry(arrival.wire.case())
                .or_default()
                .push(arrival.clone());
        }
        by_case
    }

    /// The cases that arrived at one topic or queue, as they came.
    pub(crate) fn order_at(&self, at: &str) -> Vec<String> {
        let arrivals = self.arrivals.lock().expect("arrivals");
        arrivals
            .iter()
            .filter(|arrival| arrival.at == at)
            .map(|arrival| arrival.wire.case())
            .collect()
    }

    /// Waits until each of these cases has arrived.
    pub(crate) async fn await_cases(&self, cases: &[String]) {
        eventually(&format!("{} cases arrive", cases.len()), async || {
            let arrived = self.arrived();
            let missing: Vec<_> = cases
                .iter()
                .filter(|case| !arrived.contains_key(*case))
                .collect();
            match missing.len() {
                0 => Ok(()),
                n => Err(anyhow!("{n} missing, such as {:?}", &missing[..n.min(20)])),
            }
        })
        .await;
    }
}

impl Drop for FlowFixture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Waits for a counter or gauge to reach a value, and checks that it is not above it.
pub(crate) async fn await_metric(relay: &Relay, name: &str, labels: &[(&str, &str)], value: u32) {
    eventually(&format!("{name}{labels:?} is {value}"), async || {
        let now = relay
            .metrics()
            .await?
            .sum(&format!("postdate_{name}"), labels);
        if (now - f64::from(value)).abs() < 0.5 {
            Ok(())
        } else {
            Err(anyhow!("it is {now}"))
        }
    })
    .await;
}

fn of_record(at: &str, record: &BorrowedMessage<'_>) -> Arrival {
    let headers = record
        .headers()
        .into_iter()
        .flat_map(|headers| headers.iter());
    let headers = headers.map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)));
    let wire = Record {
        key: record.key().map(<[u8]>::to_vec),
        value: record.payload().map(<[u8]>::to_vec),
        headers: headers.collect(),
    };
    let created_ms = record.timestamp().to_millis();
    Arrival {
        at: at.to_owned(),
        received_ms: now_ms(),
        created_ms,
        wire: Wire::Kafka(wire),
    }
}

fn of_delivery(at: &str, delivery: lapin::message::Delivery) -> Arrival {
    let headers = delivery.properties.headers().clone().unwrap_or_default();
    let wire = Amqp {
        routing_key: delivery.routing_key.to_string(),
        properties: delivery.properties.with_headers(FieldTable::default()),
        headers,
        body: delivery.data,
    };
    Arrival {
        at: at.to_owned(),
        received_ms: now_ms(),
        created_ms: None,
        wire: Wire::Amqp(wire),
    }
}
