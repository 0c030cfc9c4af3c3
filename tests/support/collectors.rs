//! Collectors of the accounting harness: consumers of their own that note every delivery on a target,
//! from its beginning, through restarts of its broker.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers as _};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use tokio::time::timeout;

use super::accounting::{Delivery, Headers, Id, Ledger, Stamp};
use super::run::{Run, now_ms};
use super::{Kafka, Rabbitmq};

/// How long a collector waits for an answer of its broker; then it connects anew.
const ANSWER: Duration = Duration::from_secs(5);
/// Time from an error of Kafka to a collector's question whether a broker is there again, and how long it waits for an answer.
const METADATA: Duration = Duration::from_secs(1);
/// How long it waits for a delivery; then it connects anew. A broker that is killed is noticed by its missing heartbeats at
/// the latest, but for one that the client does not hear of.
const QUIET: Duration = Duration::from_secs(15);

/// A consumer at work; it ends when this is dropped.
#[derive(Debug)]
pub enum Collector {
    /// A thread that polls.
    Kafka {
        /// Tells it to end.
        stop: Arc<AtomicBool>,
        /// Taken when it is waited for.
        thread: Option<JoinHandle<()>>,
    },
    /// A task that consumes.
    Rabbitmq(tokio::task::AbortHandle),
}

impl Drop for Collector {
    fn drop(&mut self) {
        match self {
            Self::Kafka { stop, thread } => {
                stop.store(true, Ordering::Relaxed);
                if let Some(Err(panic)) = thread.take().map(JoinHandle::join)
                    && !std::thread::panicking()
                {
                    std::panic::resume_unwind(panic);
                }
            }
            Self::Rabbitmq(task) => task.abort(),
        }
    }
}

impl Run {
    /// Notes every record of a topic under the label `kafka:TOPIC`. The topic exists already.
    pub fn collect_kafka(&self, kafka: &Kafka, topic: &str, partitions: usize) {
        let mut config = kafka.client();
        // Never joins its group nor commits: it reads its partitions from their beginning.
        config
            .set("group.id", "collector")
            .set("enable.auto.commit", "false");
        config
            .set("isolation.level", "read_committed")
            .set("fetch.wait.max.ms", "10");
        let consumer: BaseConsumer = config.create().expect("a consumer");
        let mut all = TopicPartitionList::new();
        for partition in 0..partitions {
            all.add_partition_offset(topic, partition as i32, Offset::Beginning)
                .expect("an offset");
        }
        consumer.assign(&all).expect("assigned");
        let ledger = self.shared_ledger();
        let stop = Arc::new(AtomicBool::new(false));
        let ends = stop.clone();
        let label = format!("kafka:{topic}");
        let topic = topic.to_owned();
        let thread = std::thread::spawn(move || {
            let mut said = Said::default();
            let read = |since| ledger.lock().expect("the ledger").read(&label, since);
            let mut unread_since = None;
            while !ends.load(Ordering::Relaxed) {
                match consumer.poll(Duration::from_millis(100)) {
                    Some(Ok(record)) => {
                        ledger
                            .lock()
                            .expect("the ledger")
                            .deliver(of_record(&label, &record));
                    }
                    // A broker that is away for a while; it goes on by itself, and does not say when.
                    Some(Err(error)) => {
                        said.say(&label, &error);
                        read(None);
                        unread_since.get_or_insert_with(Instant::now);
                    }
                    None => {}
                }
                if unread_since.is_some_and(|since| since.elapsed() >= METADATA) {
                    let is_read = consumer.fetch_metadata(Some(&topic), METADATA).is_ok();
                    unread_since = (!is_read).then(Instant::now);
                    if is_read {
                        read(Some(now_ms()));
                    }
                }
            }
        });
        self.keep(Collector::Kafka {
            stop,
            thread: Some(thread),
        });
    }

    /// Notes every message of a queue under the label `rabbitmq:QUEUE`. The queue exists already.
    pub fn collect_rabbitmq(&self, rabbitmq: &Rabbitmq, queue: &str) {
        let ledger = self.shared_ledger();
        let url = format!("{}?heartbeat=5", rabbitmq.url());
        let queue = queue.to_owned();
        let task = tokio::spawn(async move {
            let label = format!("rabbitmq:{queue}");
            let mut noted = HashSet::new();
            let mut said = Said::default();
            loop {
                if let Err(error) = consume(&url, &queue, &ledger, &mut noted).await {
                    said.say(&label, &error);
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        self.keep(Collector::Rabbitmq(task.abort_handle()));
    }
}

/// Last error of a collector: a broker that is away for a while would have it print the same all the time.
#[derive(Default)]
struct Said(String);

impl Said {
    fn say(&mut self, label: &str, error: &dyn Display) {
        let error = error.to_string();
        if error != self.0 {
            println!("collector of {label}: {error}");
            self.0 = error;
        }
    }
}

/// Notes until the connection breaks, or nothing has come for as long as [`QUIET`]: of a broker that is killed the
/// client does not always hear, and would wait for ever. A message that was noted and whose acknowledgement the broker lost
/// comes again, flagged as redelivered: that is no second publish, so it is noted once.
async fn consume(
    url: &str,
    queue: &str,
    ledger: &Mutex<Ledger>,
    noted: &mut HashSet<String>,
) -> anyhow::Result<()> {
    // A broker that is starting may take a connection and answer nothing on it, ever.
    let connect = Connection::connect(url, ConnectionProperties::default());
    let connection = timeout(ANSWER, connect).await??;
    let noted = note_all(&connection, queue, ledger, noted).await;
    let label = format!("rabbitmq:{queue}");
    ledger.lock().expect("the ledger").read(&label, None);
    // What it was lent goes back, however late the broker hears of it: a consumer that is left behind keeps its share.
    tokio::spawn(async move { connection.close(200, "done".into()).await });
    noted
}

async fn note_all(
    connection: &Connection,
    queue: &str,
    ledger: &Mutex<Ledger>,
    noted: &mut HashSet<String>,
) -> anyhow::Result<()> {
    let begin = async {
        let channel = connection.create_channel().await?;
        channel.basic_qos(500, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let arguments = FieldTable::default();
        channel
            .basic_consume(queue.into(), "".into(), options, arguments)
            .await
    };
    let mut consumer = timeout(ANSWER, begin).await??;
    let label = format!("rabbitmq:{queue}");
    ledger
        .lock()
        .expect("the ledger")
        .read(&label, Some(now_ms()));
    while let Ok(Some(delivery)) = timeout(QUIET, consumer.next()).await {
        let delivery = delivery?;
        let arrived = of_delivery(&label, &delivery);
        let id = Stamp::read(&arrived.body).map(|stamp| stamp.id);
        let first = id
            .as_ref()
            .is_none_or(|id: &Id| noted.insert(id.to_string()));
        if first || !delivery.redelivered {
            ledger.lock().expect("the ledger").deliver(arrived);
        }
        timeout(ANSWER, delivery.ack(BasicAckOptions::default())).await??;
    }
    Ok(())
}

fn of_record(label: &str, record: &BorrowedMessage<'_>) -> Delivery {
    let headers = record
        .headers()
        .into_iter()
        .flat_map(|headers| headers.iter());
    Delivery {
        target: label.to_owned(),
        received_ms: now_ms(),
        key: record
            .key()
            .map(|key| String::from_utf8_lossy(key).into_owned()),
        body: record.payload().unwrap_or_default().to_vec(),
        headers: headers
            .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
            .collect(),
    }
}

fn of_delivery(label: &str, delivery: &lapin::message::Delivery) -> Delivery {
    let table = delivery.properties.headers().as_ref();
    let headers: Headers = table
        .into_iter()
        .flat_map(FieldTable::inner)
        .map(|(name, value)| (name.to_string(), bytes_of(value)))
        .collect();
    // What came from Kafka has its key in a header; the routing key may be the route's.
    let kafka_key = headers
        .iter()
        .find(|(name, _)| name == "kafka.key")
        .and_then(|(_, key)| key.as_deref());
    let key = kafka_key.map_or_else(
        || delivery.routing_key.to_string(),
        |key| String::from_utf8_lossy(key).into(),
    );
    Delivery {
        target: label.to_owned(),
        received_ms: now_ms(),
        key: Some(key),
        body: delivery.data.clone(),
        headers,
    }
}

/// The harness sends text, bytes and null, the relay adds integers; anything else is noted as lapin prints it.
fn bytes_of(value: &AMQPValue) -> Option<Vec<u8>> {
    match value {
        AMQPValue::Void => None,
        AMQPValue::LongString(text) => Some(text.as_bytes().to_vec()),
        AMQPValue::ByteArray(bytes) => Some(bytes.as_slice().to_vec()),
        AMQPValue::LongLongInt(number) => Some(number.to_string().into_bytes()),
        other => Some(format!("{other:?}").into_bytes()),
    }
}
