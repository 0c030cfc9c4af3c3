//! Apache Kafka as a child process: one KRaft node, broker and controller at once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::OnceCell;

use super::process::{Process, Signal};
use super::{eventually, folders, names, ports};

/// The version that `scripts/setup` puts into the cache.
const VERSION: &str = "4.1.0";
/// 16 bytes in URL-safe base64, as Kafka wants it; each node has ports of its own, so all may share it.
const CLUSTER_ID: &str = "cG9zdGRhdGUtdGVzdHMtMQ";

static SHARED: OnceCell<Kafka> = OnceCell::const_new();

/// A Kafka of one node; topics are not created by themselves.
#[derive(Debug)]
pub struct Kafka {
    port: u16,
    folder: PathBuf,
    java: &'static [&'static str],
    process: Process,
}

/// Starts fast, and is slow for good: the optimising compiler stays off.
const QUICK_TO_START: &[&str] = &["-XX:TieredStopAtLevel=1", "-Xms256m", "-Xmx512m"];
/// As an operator would run it, in little memory.
const QUICK_TO_RUN: &[&str] = &["-Xms512m", "-Xmx512m"];

impl Kafka {
    /// The one that this binary's tests share.
    pub async fn shared() -> &'static Self {
        SHARED.get_or_init(Self::start).await
    }

    /// The version that is started.
    pub fn version() -> &'static str {
        VERSION
    }

    /// Whether its jars and a Java are there.
    pub fn installed() -> Result<(), String> {
        let jars = jars();
        if !jars.join(format!("kafka_2.13-{VERSION}.jar")).exists() {
            return Err(format!("no Kafka {VERSION} in {}: run scripts/setup", jars.display()));
        }
        std::process::Command::new("java")
            .arg("-version")
            .output()
            .map(drop)
            .map_err(|error| format!("no java in the path ({error}): run scripts/setup"))
    }

    /// One of the caller's own.
    pub async fn start() -> Self {
        Self::start_with(QUICK_TO_START).await
    }

    /// One whose speed is measured.
    pub async fn start_for_speed() -> Self {
        Self::start_with(QUICK_TO_RUN).await
    }

    async fn start_with(java: &'static [&'static str]) -> Self {
        if let Err(missing) = Self::installed() {
            panic!("{missing}");
        }
        let (port, controller) = (ports::free(), ports::free());
        let folder = folders::new("kafka");
        std::fs::write(folder.join("kafka.properties"), properties(port, controller, &folder))
            .expect("a file");
        format(&folder).await;
        let process = run(&folder, java);
        let mut kafka = Self { port, folder, java, process };
        kafka.ready().await;
        kafka
    }

    /// `127.0.0.1:PORT`
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its port, for a proxy before it (which must then also be what the broker advertises).
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process id, to read what it used of the machine.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// A client's configuration with the address in it.
    pub fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.bootstrap()).set("reconnect.backoff.max.ms", "500");
        config.set("socket.timeout.ms", "10000").set("log_level", "2");
        config
    }

    /// Creates a topic and waits until it has its leaders.
    pub async fn create_topic(&self, name: &str, partitions: usize) {
        self.create_topic_with(name, partitions, &[]).await;
    }

    /// The same with settings of the topic, such as `("cleanup.policy", "compact")`.
    pub async fn create_topic_with(&self, name: &str, partitions: usize, settings: &[(&str, &str)]) {
        let mut topic = NewTopic::new(name, partitions as i32, TopicReplication::Fixed(1));
        for (key, value) in settings {
            topic = topic.set(key, value);
        }
        let created = self.admin().create_topics([&topic], &options()).await.expect("kafka answers");
        for result in created {
            result.unwrap_or_else(|(topic, code)| panic!("create topic {topic}: {code}"));
        }
        eventually(&format!("topic {name} has leaders"), async || self.has_leaders(name, partitions)).await;
    }

    /// A topic that no other test uses.
    pub async fn unique_topic(&self, kind: &str, partitions: usize) -> String {
        let name = names::unique(kind);
        self.create_topic(&name, partitions).await;
        name
    }

    /// Deletes a topic and waits until it is gone from the metadata.
    pub async fn delete_topic(&self, name: &str) {
        for result in self.admin().delete_topics(&[name], &options()).await.expect("kafka answers") {
            result.unwrap_or_else(|(topic, code)| panic!("delete topic {topic}: {code}"));
        }
        eventually(&format!("topic {name} is gone"), async || match self.has_leaders(name, 1) {
            Ok(()) => Err("it is still there"),
            Err(_) => Ok(()),
        })
        .await;
    }

    /// SIGKILL; what was written stays in its folder.
    pub async fn kill9(&mut self) {
        self.process.kill9().await;
    }

    /// SIGTERM: a clean stop.
    pub async fn terminate(&mut self) {
        self.process.terminate(Duration::from_secs(60)).await;
    }

    /// Starts it again on the same port and folder; kills it first if it still runs.
    pub async fn restart(&mut self) {
        self.process.kill9().await;
        self.process = run(&self.folder, self.java);
        self.ready().await;
    }

    /// SIGSTOP: it hangs with its connections open.
    pub fn stop(&mut self) {
        self.process.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn cont(&mut self) {
        self.process.signal(Signal::CONT);
    }

    /// The admin client, for what has no helper here.
    pub fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.client().create().expect("an admin client")
    }

    fn has_leaders(&self, topic: &str, partitions: usize) -> anyhow::Result<()> {
        let consumer: BaseConsumer = self.client().create()?;
        let metadata = consumer.fetch_metadata(Some(topic), Duration::from_secs(5))?;
        let topic = metadata.topics().first().ok_or_else(|| anyhow!("not in the metadata"))?;
        let led = topic.partitions().iter().filter(|p| p.leader() >= 0 && p.error().is_none()).count();
        if topic.error().is_some() || led < partitions {
            return Err(anyhow!("{led} of {partitions} partitions have a leader ({:?})", topic.error()));
        }
        Ok(())
    }

    async fn ready(&mut self) {
        let topic = names::unique("ready");
        // Metadata alone come 2 s before the controller creates topics and the coordinator knows groups.
        eventually("kafka creates a topic", async || {
            self.process.assert_running();
            let topic = NewTopic::new(&topic, 1, TopicReplication::Fixed(1));
            let created = self.admin().create_topics([&topic], &options()).await?;
            match created.first().context("no answer")? {
                Ok(_) | Err((_, rdkafka::types::RDKafkaErrorCode::TopicAlreadyExists)) => Ok(()),
                Err((_, code)) => Err(anyhow!("{code}")),
            }
        })
        .await;
        eventually("kafka takes a record and knows its groups", async || {
            self.process.assert_running();
            self.round_trip(&topic).await
        })
        .await;
        self.delete_topic(&topic).await;
    }

    async fn round_trip(&self, topic: &str) -> anyhow::Result<()> {
        let producer: FutureProducer = self.client().set("enable.idempotence", "true").create()?;
        let record = FutureRecord::to(topic).key("ready?").payload("ready?");
        producer.send(record, Duration::from_secs(4)).await.map_err(|(error, _)| error)?;
        let consumer: BaseConsumer = self.client().set("group.id", topic).create()?;
        let mut position = TopicPartitionList::new();
        position.add_partition_offset(topic, 0, Offset::Beginning)?;
        consumer.committed_offsets(position, Duration::from_secs(4))?;
        Ok(())
    }
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(Duration::from_secs(10)))
        .operation_timeout(Some(Duration::from_secs(10)))
}

/// A killed broker is let in again only after its old session has timed out: 9 s unless we say less.
fn properties(port: u16, controller: u16, folder: &Path) -> String {
    format!(
        "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=500
log.segment.delete.delay.ms=1000
auto.create.topics.enable=false
",
        folder.display()
    )
}

/// Formats the data folder: by Kafka's own tool the first time, from a copy of its work later, for that
/// takes a JVM and two seconds.
async fn format(folder: &Path) {
    let (data, kept) = (folder.join("data"), folders::cache().join("kafka"));
    let copy = kept.join(format!("{VERSION}-formatted"));
    if copy.exists() {
        copy_files(&copy, &data);
    } else {
        let mut tool = java("kafka-format", folder, &["-XX:TieredStopAtLevel=1", "-Xmx128m"], |command| {
            command.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", "kafka.properties"]);
        });
        let done = tool.wait(Duration::from_secs(60)).await;
        assert!(done.is_some_and(|status| status.success()), "kafka format: {done:?}\n{}", tool.log_tail());
        let part = kept.join(names::unique("part"));
        copy_files(&data, &part);
        // Another test process may have been faster: then its copy stands, and ours goes.
        if std::fs::rename(&part, &copy).is_err() {
            std::fs::remove_dir_all(&part).expect("our own copy");
        }
    }
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for file in std::fs::read_dir(from).expect("a folder") {
        let file = file.expect("an entry");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
    }
}

fn run(folder: &Path, options: &[&str]) -> Process {
    java("kafka", folder, options, |command| {
        command.args(["kafka.Kafka", "kafka.properties"]);
    })
}

/// Java, with the options of all of them.
fn java(
    name: &str,
    folder: &Path,
    options: &[&str],
    main: impl FnOnce(&mut std::process::Command),
) -> Process {
    Process::start(name, folder, "java", |command| {
        command.args(["-XX:+UseSerialGC", "-Xshare:auto"]).args(options);
        command.arg("-cp").arg(jars().join("*"));
        main(command);
    })
}

/// Where `scripts/setup` puts the jars.
fn jars() -> PathBuf {
    folders::cache().join("kafka").join(VERSION)
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.process.signal(Signal::KILL);
        folders::remove(&self.folder);
    }
}
