//! A consumer that is behind gets the usual sizes soon, and the careful ones again once records expand. The change costs
//! its place in the group nothing.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use parking_lot::Mutex;
use postdate::domain::{FirstStart, ReadMark, Route};
use postdate::health::Health;
use postdate::health::PartState;
use postdate::ingress::{Delivery, Feed, Receipt, Sink};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use super::fixture::{IngressFixture, Refusals};
use crate::support::eventually::{PATIENCE, within};
use crate::support::{Kafka, eventually, names};

/// Partitions of the topic. Many, so that small answers cost much flow.
const PARTITIONS: usize = 24;
/// Records of a trickle and of a backlog, and the bytes of each.
const TRICKLE: usize = 2000;
const BACKLOG: usize = 240_000;
const SIZE: usize = 1000;
/// Records that expand, and the bytes of each once it is opened. Together they are more than all of a backlog that may be
/// judged with them.
const EXPANDING: usize = 128;
const OPENED: usize = 999_000;
/// Longest time until a backlog is read, on a machine that does other things.
const READ_WITHIN: Duration = Duration::from_secs(120);

/// How often each offset of each source was taken, over all readers.
type TakenOffsets = Arc<Mutex<BTreeMap<(String, i64), u32>>>;

/// A sink that resolves all records at once, and remembers their offsets alone.
struct OffsetSink {
    /// The sources that were opened: one for each time that a partition was given.
    opened: Mutex<Vec<String>>,
    taken: TakenOffsets,
}

struct OffsetFeed {
    sink: Arc<OffsetSink>,
    name: String,
}

impl OffsetSink {
    fn new(taken: &TakenOffsets) -> Arc<Self> {
        Arc::new(Self {
            opened: Mutex::default(),
            taken: taken.clone(),
        })
    }

    fn opened(&self) -> usize {
        self.opened.lock().len()
    }

    /// A partition that was given last.
    fn partition(&self) -> i32 {
        let opened = self.opened.lock();
        let (_, partition) = opened
            .last()
            .and_then(|name| name.rsplit_once('/'))
            .expect("a partition is given");
        partition.parse().expect("a number")
    }

    async fn has_opened(&self, count: usize) {
        eventually("the partitions are given", async || {
            let opened = self.opened();
            ensure!(opened == count, "{opened} of {count} times");
            Ok(())
        })
        .await;
    }
}

impl Sink for OffsetSink {
    type Feed = OffsetFeed;

    async fn open(self: &Arc<Self>, _: &Arc<Route>, name: String) -> Option<OffsetFeed> {
        self.opened.lock().push(name.clone());
        Some(OffsetFeed {
            sink: self.clone(),
            name,
        })
    }

    async fn read_mark(&self, _: &str) -> Result<Option<ReadMark>, String> {
        Ok(None)
    }

    async fn first_start(&self, _: &str, seen: FirstStart) -> Result<FirstStart, String> {
        Ok(seen)
    }
}

impl Feed for OffsetFeed {
    async fn until_open(&self) {}

    async fn until_ready(&self) {}

    async fn until_closed(&self) {
        std::future::pending::<()>().await;
    }

    async fn take(&mut self, batch: Vec<Delivery>) -> Vec<Delivery> {
        let mut taken = self.sink.taken.lock();
        let mut receipts = Vec::new();
        for delivery in batch {
            let offset = delivery.position.expect("a position").offset;
            *taken.entry((self.name.clone(), offset)).or_default() += 1;
            receipts.push(delivery.receipt);
        }
        Receipt::resolve_all(receipts);
        Vec::new()
    }

    fn had_time(&self) -> bool {
        false
    }
}

/// Waits until so many records were taken, each of them once. Returns the time that it took.
async fn all_taken_once(taken: &TakenOffsets, count: usize) -> Duration {
    let began = Instant::now();
    let outcome = within(READ_WITHIN, async || {
        let now = taken.lock().len();
        ensure!(now == count, "{now} of {count} records");
        Ok(())
    })
    .await;
    outcome.unwrap_or_else(|last| panic!("not all are taken: {last}"));
    let repeated: Vec<_> = taken
        .lock()
        .iter()
        .filter(|(_, times)| **times > 1)
        .map(|(record, times)| (record.clone(), *times))
        .collect();
    assert_eq!(repeated, [], "they were taken again");
    began.elapsed()
}

/// Produces records of zeros, of which each is a batch if they are compressed. In one transaction, so that all of them can
/// be read at the same moment.
fn produce(
    kafka: &Kafka,
    topic: &str,
    partitions: Range<i32>,
    codec: &str,
    count: usize,
    size: usize,
) {
    let mut config = kafka.client();
    config
        .set("compression.type", codec)
        .set("transactional.id", names::unique("t"));
    if codec != "none" {
        config.set("batch.num.messages", "1");
    }
    let producer: BaseProducer<Refusals> = config
        .create_with_context(Refusals::default())
        .expect("a producer");
    producer.init_transactions(PATIENCE).expect("transactions");
    producer.begin_transaction().expect("begun");
    let body = vec![0; size];
    for (n, partition) in partitions.cycle().take(count).enumerate() {
        let record = BaseRecord::<[u8], [u8]>::to(topic).partition(partition);
        producer.send(record.payload(&body)).expect("room");
        if n % 50_000 == 49_999 {
            producer.flush(PATIENCE).expect("flushed");
        }
    }
    producer.flush(PATIENCE).expect("flushed");
    assert_eq!(*producer.context().0.lock(), []);
    producer.commit_transaction(PATIENCE).expect("committed");
}

/// Watches over a reader's readiness: collects what it lacked.
struct ReadinessWatch {
    ends: Arc<AtomicBool>,
    watching: tokio::task::JoinHandle<Vec<String>>,
}

impl ReadinessWatch {
    fn begin(health: &Health) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (health, told) = (health.clone(), ends.clone());
        let watching = tokio::spawn(async move {
            let mut lacks = Vec::new();
            while !told.load(Ordering::SeqCst) {
                match health.parts().remove(0).1 {
                    PartState::Up => {}
                    PartState::Waiting(why) | PartState::Degraded(why) => lacks.push(why),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            lacks
        });
        Self { ends, watching }
    }

    async fn end(self) -> Vec<String> {
        self.ends.store(true, Ordering::SeqCst);
        self.watching.await.expect("no panic")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_behind_is_read_in_the_usual_mode_until_records_expand() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("behind", PARTITIONS).await;
    let group = names::unique("g");
    let taken = TakenOffsets::default();
    // The sizes of this one are its operator's, so it has one mode.
    let [other_sink, sink] = [OffsetSink::new(&taken), OffsetSink::new(&taken)];
    let sizes = [("fetch.max.bytes", "1000000")];
    let other = IngressFixture::start_with(kafka, &group, &[&topic], &other_sink, &sizes);
    other_sink.has_opened(PARTITIONS).await;
    let reader = IngressFixture::start(kafka, &group, &[&topic], &sink);
    let half = PARTITIONS / 2;
    sink.has_opened(half).await;
    let watch = ReadinessWatch::begin(&reader.health);

    let all = 0..PARTITIONS as i32;
    let mut produced = TRICKLE;
    produce(kafka, &topic, all.clone(), "none", TRICKLE, SIZE);
    all_taken_once(&taken, produced).await;
    assert_eq!(sink.opened(), half, "a trickle needs no other mode");

    // On a busy machine the other member may leave too little of a backlog for this one to be behind.
    for _ in 0..5 {
        produced += BACKLOG;
        produce(kafka, &topic, all.clone(), "none", BACKLOG, SIZE);
        let took = all_taken_once(&taken, produced).await;
        println!("{BACKLOG} records were taken in {took:?}");
        if sink.opened() > half {
            break;
        }
    }
    sink.has_opened(2 * half).await;

    produced += EXPANDING;
    let one = sink.partition();
    produce(kafka, &topic, one..one + 1, "zstd", EXPANDING, OPENED);
    sink.has_opened(3 * half).await;
    all_taken_once(&taken, produced).await;

    // It stays careful for a minute, whatever comes next.
    produced += BACKLOG / 2;
    produce(kafka, &topic, all.clone(), "none", BACKLOG / 2, SIZE);
    all_taken_once(&taken, produced).await;
    assert_eq!(sink.opened(), 3 * half, "a minute is not over");

    assert_eq!(
        other_sink.opened(),
        PARTITIONS,
        "the other member keeps its partitions"
    );
    assert_eq!(watch.end().await, [""; 0], "health");
    for reader in [&reader, &other] {
        eventually("nothing is wrong", async || {
            let waits = reader.route("r0").source_waits();
            ensure!(waits.is_none(), "{waits:?}");
            Ok(())
        })
        .await;
    }
    reader.stop().await;
    other.stop().await;
}
