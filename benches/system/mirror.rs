//! The plain mirrors: consume, produce, wait for the broker's word, acknowledge. What any relay must do at
//! least, with nothing in between. Each runs as a process of its own, this program under another argument,
//! so that its CPU can be told from ours.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
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

/// Positions are committed this often, as the relay does.
const COMMIT: Duration = Duration::from_millis(100);
/// Unacknowledged deliveries, the relay's default.
const PREFETCH: u16 = 500;
/// Positions of a partition below this number fit beside its number into a delivery's tag.
const PARTITION: usize = 1 << 40;

/// Starts one: `technology` and its address, from a topic or queue to another.
pub fn start(folder: &Path, technology: &str, address: &str, from: &str, to: &str) -> Process {
    let program = std::env::current_exe().expect("the path of this program");
    Process::start("mirror", folder, &program.to_string_lossy(), |command| {
        command.args(["mirror", technology, address, from, to]);
    })
}

/// Runs as a mirror, if that is what the arguments say.
pub fn if_asked(arguments: &[String]) -> Option<ExitCode> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["mirror", "kafka", address, from, to] => kafka(address, from, to),
        ["mirror", "rabbitmq", address, from, to] => {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime.block_on(rabbitmq(address, from, to)).expect("rabbitmq");
        }
        _ => return None,
    }
    Some(ExitCode::FAILURE)
}

/// Of each source partition, which positions are confirmed: the next to commit, and those after it.
#[derive(Default)]
struct Confirmed(Mutex<BTreeMap<i32, (i64, VecDeque<bool>)>>);

impl Confirmed {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, (i64, VecDeque<bool>)>> {
        self.0.lock().expect("nobody panicked")
    }

    fn read(&self, partition: i32, offset: i64) {
        self.lock().entry(partition).or_insert_with(|| (offset, VecDeque::new())).1.push_back(false);
    }
}

impl ClientContext for Confirmed {}

impl ProducerContext for Confirmed {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, tag: usize) {
        result.as_ref().map_err(|(error, _)| error).expect("the broker confirms");
        let partition = (tag / PARTITION) as i32;
        let offset = (tag % PARTITION) as i64;
        let mut partitions = self.lock();
        let (next, done) = partitions.get_mut(&partition).expect("read before it was produced");
        done[(offset - *next) as usize] = true;
        while done.front() == Some(&true) {
            done.pop_front();
            *next += 1;
        }
    }
}

fn kafka(brokers: &str, from: &str, to: &str) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("log_level", "2");
    let mut reads = config.clone();
    reads.set("group.id", to).set("auto.offset.reset", "earliest").set("enable.auto.commit", "false");
    reads.set("fetch.queue.backoff.ms", "10").set("isolation.level", "read_committed");
    config.set("acks", "all").set("enable.idempotence", "true").set("linger.ms", "5");
    config.set("partitioner", "murmur2_random");
    let consumer: BaseConsumer = reads.create().expect("a consumer");
    let producer: BaseProducer<Confirmed> =
        config.create_with_context(Confirmed::default()).expect("a producer");
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
            if committed_at.elapsed() >= COMMIT {
                commit(&consumer, producer.context(), from);
                committed_at = Instant::now();
            }
        }
    }
}

fn forward(producer: &BaseProducer<Confirmed>, message: &BorrowedMessage<'_>, to: &str) {
    let partition = message.partition();
    let offset = message.offset();
    producer.context().read(partition, offset);
    let tag = partition as usize * PARTITION + offset as usize;
    let mut record: BaseRecord<'_, [u8], [u8], usize> = BaseRecord::with_opaque_to(to, tag);
    record.key = message.key();
    record.payload = message.payload();
    record.headers = message.headers().map(rdkafka::message::BorrowedHeaders::detach);
    while let Err((error, back)) = producer.send(record) {
        assert!(
            matches!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)),
            "cannot produce: {error}"
        );
        producer.poll(Duration::from_millis(10));
        record = back;
    }
}

fn commit(consumer: &BaseConsumer, confirmed: &Confirmed, topic: &str) {
    let mut positions = TopicPartitionList::new();
    for (&partition, &(next, _)) in &*confirmed.lock() {
        positions.add_partition_offset(topic, partition, Offset::Offset(next)).expect("a position");
    }
    if positions.count() > 0 {
        consumer.commit(&positions, CommitMode::Async).expect("committed");
    }
}

async fn rabbitmq(url: &str, from: &str, to: &str) -> lapin::Result<()> {
    // A connection and a channel for each direction, as the relay has them; and as there, what is confirmed is a
    // prefix, nobody waits for a batch to be whole.
    let connect = || Connection::connect(url, ConnectionProperties::default());
    let reading = connect().await?;
    let writing = connect().await?;
    let reads = reading.create_channel().await?;
    let writes = writing.create_channel().await?;
    writes.confirm_select(ConfirmSelectOptions::default()).await?;
    reads.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    let arguments = FieldTable::default();
    let mut deliveries = reads.basic_consume(from.into(), "".into(), options, arguments).await?;
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
            reads.basic_ack(confirmed, BasicAckOptions { multiple: true }).await?;
            acknowledged = confirmed;
        }
    }
}
