//! The plain mirrors: consume, produce, wait for the confirm, acknowledge. This is the least work of any relay. Each
//! mirror runs as a process of its own, this program under another argument, so that its CPU time can be measured.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions,
};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use rdkafka::client::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, DeliveryResult};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use rdkafka::{Message as _, Offset, TopicPartitionList};

use crate::support::process::Process;

/// Interval between commits, the same as the relay's.
const COMMIT_INTERVAL: Duration = Duration::from_millis(100);
/// Most unacknowledged deliveries, the same as the relay's default.
const UNACKED_DELIVERIES: u16 = 500;
/// Factor of the partition in the tag of a delivery: tag = partition x this + offset.
const PARTITION_UNIT: usize = 1 << 40;

/// Starts a mirror of a `technology` with its address, from a topic or queue to another.
pub fn start(folder: &Path, technology: &str, address: &str, from: &str, to: &str) -> Process {
    let program = std::env::current_exe().expect("the path of this program");
    Process::start("mirror", folder, &program.to_string_lossy(), |command| {
        command.args(["mirror", technology, address, from, to]);
    })
}

/// Runs as a mirror if the arguments ask for one.
pub fn if_asked(arguments: &[String]) -> Option<ExitCode> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["mirror", "kafka", address, from, to] => kafka(address, from, to),
        ["mirror", "rabbitmq", address, from, to] => {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime
                .block_on(rabbitmq(address, from, to))
                .expect("rabbitmq");
        }
        _ => return None,
    }
    Some(ExitCode::FAILURE)
}

/// Confirmed positions of each source partition: the next to commit, and flags of those after it.
#[derive(Default)]
struct ConfirmedPositions(Mutex<BTreeMap<i32, (i64, VecDeque<bool>)>>);

impl ConfirmedPositions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, (i64, VecDeque<bool>)>> {
        self.0.lock().expect("nobody panicked")
    }

    fn read(&self, partition: i32, offset: i64) {
        self.lock()
            .entry(partition)
            .or_insert_with(|| (offset, VecDeque::new()))
            .1
            .push_back(false);
    }
}

impl ClientContext for ConfirmedPositions {}

impl ProducerContext for ConfirmedPositions {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, tag: usize) {
        result
            .as_ref()
            .map_err(|(error, _)| error)
            .expect("the broker confirms");
        let partition = (tag / PARTITION_UNIT) as i32;
        let offset = (tag % PARTITION_UNIT) as i64;
        let mut partitions = self.lock();
        let (next, done) = partitions
            .get_mut(&partition)
            .expect("read before it was produced");
        done[(offset - *next) as usize] = true;
        while done.front() == Some(&true) {
            done.pop_front();
            *next += 1;
        }
    }
}

fn kafka(brokers: &str, from: &str, to: &str) {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("log_level", "2");
    let mut reads = config.clone();
    reads
        .set("group.id", to)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false");
    reads
        .set("fetch.queue.backoff.ms", "10")
        .set("isolation.level", "read_committed");
    config
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("linger.ms", "5");
    config.set("partitioner", "murmur2_random");
    let consumer: BaseConsumer = reads.create().expect("a consumer");
    let producer: BaseProducer<ConfirmedPositions> = config
        .create_with_context(ConfirmedPositions::default())
        .expect("a producer");
    consumer.subscribe(&[from]).expect("subscribed");
    let mut committed_at = Instant::now();
    for count in 0_u64.. {
        match consumer.poll(Duration::from_millis(5)) {
            Some(message) => forward(&producer, &message.expect("kafka answers"), to),
            None => {
                producer.poll(Duration::ZERO);
            }
        }
        if count % 64 == 0 {
            producer.poll(Duration::ZERO);
            if committed_at.elapsed() >= COMMIT_INTERVAL {
                commit(&consumer, producer.context(), from);
                committed_at = Instant::now();
            }
        }
    }
}

fn forward(producer: &BaseProducer<ConfirmedPositions>, message: &BorrowedMessage<'_>, to: &str) {
    let partition = message.partition();
    let offset = message.offset();
    producer.context().read(partition, offset);
    let tag = partition as usize * PARTITION_UNIT + offset as usize;
    let mut record: BaseRecord<'_, [u8], [u8], usize> = BaseRecord::with_opaque_to(to, tag);
    record.key = message.key();
    record.payload = message.payload();
    record.headers = message
        .headers()
        .map(rdkafka::message::BorrowedHeaders::detach);
    while let Err((error, back)) = producer.send(record) {
        assert!(
            matches!(
                error,
                KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)
            ),
            "cannot produce: {error}"
        );
        producer.poll(Duration::from_millis(10));
        record = back;
    }
}

fn commit(consumer: &BaseConsumer, confirmed: &ConfirmedPositions, topic: &str) {
    let mut positions = TopicPartitionList::new();
    for (&partition, &(next, _)) in &*confirmed.lock() {
        positions
            .add_partition_offset(topic, partition, Offset::Offset(next))
            .expect("a position");
    }
    if positions.count() > 0 {
        consumer
            .commit(&positions, CommitMode::Async)
            .expect("committed");
    }
}

async fn rabbitmq(url: &str, from: &str, to: &str) -> lapin::Result<()> {
    // A connection and a channel for each direction, and acknowledgements of the confirmed prefix, as in the relay: the
    // mirror does not wait for whole batches.
    let connect = || Connection::connect(url, ConnectionProperties::default());
    let reading = connect().await?;
    let writing = connect().await?;
    let reads = reading.create_channel().await?;
    let writes = writing.create_channel().await?;
    writes
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    reads
        .basic_qos(UNACKED_DELIVERIES, BasicQosOptions::default())
        .await?;
    let options = BasicConsumeOptions::default();
    let arguments = FieldTable::default();
    let mut deliveries = reads
        .basic_consume(from.into(), "".into(), options, arguments)
        .await?;
    let mut unconfirmed = FuturesOrdered::new();
    let mut acknowledged = 0;
    let mut confirmed = 0;
    loop {
        tokio::select! {
            delivery = deliveries.next() => {
                let Some(delivery) = delivery else { return Ok(()) };
                let delivery = delivery?;
                let options = BasicPublishOptions { mandatory: true, ..Default::default() };
                let confirm =
                    writes.basic_publish("".into(), to.into(), options, &delivery.data, delivery.properties);
                let confirm = confirm.await?;
                let tag = delivery.delivery_tag;
                unconfirmed.push_back(async move { (tag, confirm.await) });
            }
            Some((tag, confirm)) = unconfirmed.next() => {
                assert!(matches!(confirm?, lapin::Confirmation::Ack(None)), "not confirmed");
                confirmed = tag;
            }
        }
        if confirmed >= acknowledged + 50 || (unconfirmed.is_empty() && confirmed > acknowledged) {
            reads
                .basic_ack(confirmed, BasicAckOptions { multiple: true })
                .await?;
            acknowledged = confirmed;
        }
    }
}
