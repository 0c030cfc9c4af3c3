//! A route from Kafka to Kafka in a Redis of its own, and the replay as its users run it.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::anyhow;
use futures_util::future::join_all;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Header, Headers, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use serde_json::Value;

use crate::support::process::Process;
use crate::support::run::now_ms;
use crate::support::{Config, Kafka, Redis, Relay, eventually, folders, names, relay};

/// One record to be produced.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) partition: i32,
    pub(crate) key: Option<String>,
    pub(crate) body: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Record {
    pub(crate) fn keyed(self, key: &str) -> Self {
        let key = Some(key.to_owned());
        Self { key, ..self }
    }
}

/// A record; its body stands in a header too, where the API shows it.
pub(crate) fn record(partition: i32, body: &str, headers: &[(&str, &str)]) -> Record {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Record {
        partition,
        key: None,
        body: body.to_owned(),
        headers: headers.chain([("body".into(), body.into())]).collect(),
    }
}

/// Exit code and output of a replay.
#[derive(Debug)]
pub(crate) struct ReplayOutput {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl ReplayOutput {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        let code = output.status.code().expect("no signal");
        Self {
            code,
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    /// The table's numbers: read, to store, due already, to cancel, to move, to bury; left out: there, settled,
    /// before, later, passing.
    pub(crate) fn counts(&self) -> [u64; 11] {
        let lines = self
            .out
            .lines()
            .skip_while(|line| !line.starts_with("RECORDS"))
            .skip(1);
        let counts = lines.map_while(|line| line.trim_start().split(' ').next()?.parse().ok());
        <[u64; 11]>::try_from(counts.collect::<Vec<_>>())
            .unwrap_or_else(|_| panic!("no table: {self:?}"))
    }
}

/// Bodies, and the due times that came with them; 0 where none did.
type Arrivals = Arc<Mutex<Vec<(String, i64)>>>;

pub(crate) struct ReplayFixture {
    pub(crate) kafka: &'static Kafka,
    pub(crate) redis: Redis,
    config: Config,
    relay: Option<Relay>,
    pub(crate) topic: String,
    partitions: i32,
    producer: FutureProducer,
    began_ms: i64,
    arrivals: Arrivals,
    stop: Arc<AtomicBool>,
}

impl Drop for ReplayFixture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// Before anything was produced.
pub(crate) fn ago(fixture: &ReplayFixture) -> String {
    (fixture.began_ms - 1000).to_string()
}

/// The partitions that a replay's note calls done.
pub(crate) fn finished_partitions(note: &str) -> Vec<i32> {
    let note: Value = serde_json::from_str(note).unwrap_or_default();
    let partitions = note["partitions"].as_object().into_iter().flatten();
    let done = partitions.filter(|(_, at)| at[0] == at[1]);
    done.map(|(partition, _)| partition.parse().expect("a number"))
        .collect()
}

pub(crate) async fn logs(process: &Process, part: &str) {
    eventually(&format!("it says: {part}"), async || {
        let log = process.log();
        if log.contains(part) { Ok(()) } else { Err(log) }
    })
    .await;
}

impl ReplayFixture {
    pub(crate) async fn new(partitions: i32, policy: &str) -> Self {
        let (kafka, redis) = tokio::join!(Kafka::shared(), Redis::start());
        let topic = kafka.unique_topic("again", partitions as usize).await;
        let target = kafka.unique_topic("to", 1).await;
        let from = format!("{{ kafka = \"main\", topic = \"{topic}\", group = \"{topic}\" }}");
        let to = format!("{{ kafka = \"main\", topic = \"{target}\" }}");
        let config = Config::new(&redis)
            .redis("partitions = 4")
            .kafka("main", kafka);
        let config = config.route("r", &from, &to, policy);
        let producer = kafka
            .client()
            .set("acks", "all")
            .create()
            .expect("a producer");
        let arrivals = Arc::default();
        let stop = Arc::default();
        collect(kafka, &target, &arrivals, &stop);
        let began_ms = now_ms();
        let relay = Some(Relay::start(&config).await);
        Self {
            kafka,
            redis,
            config,
            relay,
            topic,
            partitions,
            producer,
            began_ms,
            arrivals,
            stop,
        }
    }

    pub(crate) fn relay(&self) -> &Relay {
        self.relay.as_ref().expect("it runs")
    }

    /// Starts a relay.
    pub(crate) async fn begin(&mut self) {
        self.relay = Some(Relay::start(&self.config).await);
    }

    /// Ends it cleanly: all that it has read is committed.
    pub(crate) async fn end(&mut self) {
        let mut relay = self.relay.take().expect("it runs");
        assert!(relay.terminate().await.success(), "{}", relay.log());
    }

    pub(crate) async fn produce(&self, records: &[Record]) {
        let sent = records.iter().map(|record| async {
            let headers =
                record
                    .headers
                    .iter()
                    .fold(OwnedHeaders::new(), |headers, (key, value)| {
                        headers.insert(Header {
                            key,
                            value: Some(value),
                        })
                    });
            let mut wire = FutureRecord::<String, _>::to(&self.topic)
                .partition(record.partition)
                .payload(&record.body)
                .headers(headers);
            if let Some(key) = &record.key {
                wire = wire.key(key);
            }
            self.producer
                .send(wire, Duration::from_secs(30))
                .await
                .expect("produced");
        });
        join_all(sent).await;
    }

    /// Waits until the relay has committed all that was produced: then all of it is stored.
    pub(crate) async fn committed(&self) {
        let mut client = self.kafka.client();
        let consumer: BaseConsumer = client
            .set("group.id", &self.topic)
            .create()
            .expect("a consumer");
        let at_most = Duration::from_secs(10);
        eventually("all is committed", async || {
            let mut asked = TopicPartitionList::new();
            asked.add_partition_range(&self.topic, 0, self.partitions - 1);
            for held in consumer.committed_offsets(asked, at_most)?.elements() {
                let (_, end) = consumer.fetch_watermarks(&self.topic, held.partition(), at_most)?;
                if end > 0 && held.offset() != Offset::Offset(end) {
                    return Err(anyhow!("{held:?} of {end}"));
                }
            }
            Ok(())
        })
        .await;
    }

    fn command(&self, more: &str, args: &[&str]) -> (PathBuf, Vec<String>) {
        let folder = folders::new("replay");
        let file = folder.join("postdate.toml");
        let config = self.config.clone().section(more);
        std::fs::write(&file, config.text("127.0.0.1:8025")).expect("a configuration file");
        let own = [
            "replay".to_owned(),
            "--config".to_owned(),
            file.display().to_string(),
        ];
        (
            folder,
            own.into_iter()
                .chain(args.iter().map(|arg| (*arg).to_owned()))
                .collect(),
        )
    }

    /// `postdate replay --route r ARGS`
    pub(crate) async fn replay(&self, args: &[&str]) -> ReplayOutput {
        self.run("", &[&["--route", "r"], args].concat()).await
    }

    /// `postdate replay ARGS` with a further section of configuration.
    pub(crate) async fn run(&self, more: &str, args: &[&str]) -> ReplayOutput {
        let mut command = Command::new(relay::binary());
        command.args(self.command(more, args).1).env_clear();
        let output =
            tokio::task::spawn_blocking(move || command.output().expect("the binary runs"));
        ReplayOutput::of(&output.await.expect("no panic"))
    }

    /// The same, to be killed or waited for.
    pub(crate) fn start_replay(&self, args: &[&str]) -> Process {
        let (folder, args) = self.command("", &[&["--route", "r"], args].concat());
        Process::start(
            "replay",
            &folder,
            &relay::binary().to_string_lossy(),
            |command| {
                command.args(args);
            },
        )
    }

    async fn query<T: redis::FromRedisValue>(&self, command: &mut redis::Cmd) -> T {
        let mut connection = self.redis.connection().await.expect("a connection");
        command
            .query_async(&mut connection)
            .await
            .expect("an answer")
    }

    pub(crate) async fn keys(&self) -> Vec<String> {
        self.query(redis::cmd("KEYS").arg("*")).await
    }

    /// The keys of the bundles' blobs.
    pub(crate) async fn blobs(&self) -> Vec<String> {
        self.query(redis::cmd("KEYS").arg("*:b:*")).await
    }

    pub(crate) async fn wipe(&self) {
        self.query::<()>(&mut redis::cmd("FLUSHALL")).await;
    }

    /// Deletes the messages of a running relay: everything but the store's own description.
    pub(crate) async fn wipe_messages(&self) {
        let keys = self.keys().await;
        let keys = keys
            .iter()
            .filter(|key| !key.ends_with(":meta") && !key.ends_with(":calls"));
        self.query::<()>(redis::cmd("DEL").arg(keys.collect::<Vec<_>>()))
            .await;
    }

    /// A backup: every key with its content.
    pub(crate) async fn dump(&self) -> Vec<(String, Vec<u8>)> {
        let mut dump = Vec::new();
        for key in self.keys().await {
            let content: Option<Vec<u8>> = self.query(redis::cmd("DUMP").arg(&key)).await;
            dump.extend(content.map(|content| (key, content)));
        }
        dump
    }

    pub(crate) async fn restore(&self, dump: &[(String, Vec<u8>)]) {
        for (key, content) in dump {
            self.query::<()>(redis::cmd("RESTORE").arg(key).arg(0).arg(content))
                .await;
        }
    }

    async fn of_store(&self, suffix: &str) -> String {
        let meta = self
            .keys()
            .await
            .into_iter()
            .find(|key| key.ends_with(":meta"))
            .expect("a store");
        format!("{}{suffix}", meta.trim_end_matches(":meta"))
    }

    /// How far a replay has come; nothing if none is under way.
    pub(crate) async fn note(&self) -> Option<String> {
        let keys = self.keys().await;
        let key = keys.into_iter().find(|key| key.ends_with(":replays"))?;
        self.query(redis::cmd("HGET").arg(key).arg("r")).await
    }

    pub(crate) async fn pause(&self) {
        let key = self.of_store(":paused").await;
        self.query::<()>(redis::cmd("HSET").arg(key).arg("r/ingress").arg(now_ms()))
            .await;
    }

    pub(crate) async fn resume(&self) {
        let key = self.of_store(":paused").await;
        self.query::<()>(redis::cmd("DEL").arg(key)).await;
    }

    /// The API's answer, as JSON.
    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        let (status, body) = self.relay().get(path).await.expect("an answer");
        (status, serde_json::from_str(&body).expect("JSON"))
    }

    /// Pending messages: bodies and due times, in order of the bodies.
    pub(crate) async fn pending(&self) -> Vec<(String, i64)> {
        let mut waits = Vec::new();
        let mut cursor = String::new();
        loop {
            let path = format!("/api/v1/messages?route=r&limit=1000{cursor}");
            let page = self.relay().read(&path).await;
            for item in page["items"].as_array().expect("a list") {
                let headers = item["headers"].as_array().expect("headers");
                let body = headers
                    .iter()
                    .find(|header| header["name"] == "body")
                    .expect("its body");
                let body = body["value"].as_str().expect("a text").to_owned();
                waits.push((body, item["due_ms"].as_i64().expect("a due time")));
            }
            let Some(next) = page["next"].as_str() else {
                break;
            };
            cursor = format!("&cursor={next}");
        }
        waits.sort();
        waits
    }

    /// Bodies that have arrived at the target so far.
    pub(crate) fn arrivals(&self) -> Vec<String> {
        self.arrivals_with_due()
            .into_iter()
            .map(|(body, _)| body)
            .collect()
    }

    /// The same with the due times that it came with.
    pub(crate) fn arrivals_with_due(&self) -> Vec<(String, i64)> {
        self.arrivals.lock().expect("no panic").clone()
    }

    /// Waits until just these have arrived.
    pub(crate) async fn arrived(&self, expected: &[&str]) {
        let expected = expected.iter().map(|body| (*body).to_owned()).collect();
        self.arrived_all(expected).await;
    }

    pub(crate) async fn arrived_all(&self, mut expected: Vec<String>) {
        expected.sort();
        eventually("all has arrived", async || {
            let mut arrivals = self.arrivals();
            arrivals.sort();
            if arrivals == expected {
                Ok(())
            } else {
                Err(anyhow!("{} of {}", arrivals.len(), expected.len()))
            }
        })
        .await;
    }

    /// Waits until these have arrived, each as often as it is named or more often.
    pub(crate) async fn arrived_at_least(&self, expected: &[String]) {
        eventually("all has arrived", async || {
            let mut left = expected.to_vec();
            left.sort();
            for arrival in self.arrivals() {
                if let Ok(at) = left.binary_search(&arrival) {
                    left.remove(at);
                }
            }
            if left.is_empty() {
                Ok(())
            } else {
                Err(anyhow!("{} are missing", left.len()))
            }
        })
        .await;
    }
}

/// Reads the target from its beginning until it is stopped.
fn collect(kafka: &Kafka, topic: &str, arrivals: &Arrivals, stop: &Arc<AtomicBool>) {
    let mut client = kafka.client();
    let consumer: BaseConsumer = client
        .set("group.id", names::unique("collector"))
        .create()
        .expect("a consumer");
    let mut first = TopicPartitionList::new();
    first
        .add_partition_offset(topic, 0, Offset::Beginning)
        .expect("an offset");
    consumer.assign(&first).expect("assigned");
    let arrivals = arrivals.clone();
    let stop = stop.clone();
    std::thread::spawn(move || {
        while !stop.load(Ordering::Acquire) {
            if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                let body = String::from_utf8(message.payload().unwrap_or_default().to_vec())
                    .expect("UTF-8");
                arrivals
                    .lock()
                    .expect("no panic")
                    .push((body, due_of(&message)));
            }
        }
    });
}

fn due_of(message: &BorrowedMessage<'_>) -> i64 {
    let mut headers = message.headers().into_iter().flat_map(Headers::iter);
    let due = headers
        .find(|header| header.key == "x-delay-due")
        .and_then(|header| header.value);
    due.and_then(|due| std::str::from_utf8(due).ok()?.parse().ok())
        .unwrap_or(0)
}
