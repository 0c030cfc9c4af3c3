//! Apache Kafka as child processes: one KRaft node, broker and controller at once, or three of them.

mod files;
mod rights;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::OnceCell;

use files::{SecureListeners, format, jars, properties, run};
pub use rights::{KafkaOperation, KafkaResource, KafkaRight};

use super::eventually::{START_LIMIT, within};
use super::process::{Process, Signal};
use super::{Tls, eventually, folders, names, ports};

/// The version that `scripts/setup` puts into the cache.
const VERSION: &str = "4.1.0";

/// The principal of a client with the certificate of [`Tls::client`].
const CERTIFIED: &str = "User:CN=postdate";

static SHARED: OnceCell<Kafka> = OnceCell::const_new();

/// A Kafka of one node or of three; topics are not created by themselves. What is done to it is done to all of its
/// nodes, unless one is named: 0, 1, 2.
#[derive(Debug)]
pub struct Kafka {
    nodes: Vec<Node>,
    java: &'static [&'static str],
}

#[derive(Debug)]
struct Node {
    port: u16,
    folder: PathBuf,
    process: Process,
}

/// Starts fast, and is slow for good: the optimising compiler stays off.
const QUICK_TO_START: &[&str] = &["-XX:TieredStopAtLevel=1", "-Xms256m", "-Xmx512m"];
/// The same for one of three.
const SMALL: &[&str] = &["-XX:TieredStopAtLevel=1", "-Xms128m", "-Xmx256m"];
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

    /// Reports whether Kafka's jars and a Java are there.
    pub fn installed() -> Result<(), String> {
        let jars = jars();
        if !jars.join(format!("kafka_2.13-{VERSION}.jar")).exists() {
            return Err(format!(
                "no Kafka {VERSION} in {}: run scripts/setup",
                jars.display()
            ));
        }
        std::process::Command::new("java")
            .arg("-version")
            .output()
            .map(drop)
            .map_err(|error| format!("no java in the path ({error}): run scripts/setup"))
    }

    /// One of the caller's own.
    pub async fn start() -> Self {
        Self::start_with(QUICK_TO_START, None).await
    }

    /// One with a second listener, which tells its clients to come to the port `advertised`: a proxy's, that
    /// leads to the port `listens`.
    pub async fn start_behind(listens: u16, advertised: u16) -> Self {
        Self::start_with(QUICK_TO_START, Some((listens, advertised))).await
    }

    /// One that speaks TLS on further ports, by each of these certificates. Wants a certificate of its clients there.
    pub async fn start_tls(certificates: &[&Tls]) -> (Self, Vec<u16>) {
        let ports: Vec<u16> = certificates.iter().map(|_| ports::free()).collect();
        let secure = files::secure_listeners(certificates, &ports);
        (
            Self::start_nodes(QUICK_TO_START, None, 1, &secure).await,
            ports,
        )
    }

    /// One that lets clients with a certificate do only what they were given the rights for, on a further port. On the
    /// usual port everybody may do everything.
    pub async fn start_with_rights(certificate: &Tls) -> (Self, u16) {
        let port = ports::free();
        let secure = files::secure_listeners(&[certificate], &[port]).with_rights();
        (
            Self::start_nodes(QUICK_TO_START, None, 1, &secure).await,
            port,
        )
    }

    /// One with a further port on which clients log in by SASL: with a password (`SCRAM-SHA-512`), or with an unsigned
    /// token of the scope `kafka` (`OAUTHBEARER`). A session ends after `session_ms`, or with its token, unless its
    /// client logs in again by then.
    pub async fn start_with_login(session_ms: u32) -> (Self, u16) {
        let port = ports::free();
        let secure = files::login_listener(port, session_ms);
        (
            Self::start_nodes(QUICK_TO_START, None, 1, &secure).await,
            port,
        )
    }

    /// Gives a user a password, in place of any former one.
    pub async fn set_password(&self, user: &str, password: &str) {
        files::set_password(&self.bootstrap(), user, password).await;
    }

    /// Gives rights to the client certificate of [`Tls`].
    pub fn allow(&self, rights: &[KafkaRight]) {
        for right in rights {
            right.allow(self.port(), CERTIFIED);
        }
    }

    /// Takes rights away from the client certificate of [`Tls`].
    pub fn forbid(&self, rights: &[KafkaRight]) {
        for right in rights {
            right.forbid(self.port(), CERTIFIED);
        }
    }

    /// One whose speed is measured.
    pub async fn start_for_speed() -> Self {
        Self::start_with(QUICK_TO_RUN, None).await
    }

    /// Three nodes: every partition on all of them, and a write is acknowledged once two have it.
    pub async fn start_three() -> Self {
        Self::start_nodes(SMALL, None, 3, &SecureListeners::default()).await
    }

    async fn start_with(java: &'static [&'static str], behind: Option<(u16, u16)>) -> Self {
        Self::start_nodes(java, behind, 1, &SecureListeners::default()).await
    }

    async fn start_nodes(
        java: &'static [&'static str],
        behind: Option<(u16, u16)>,
        nodes: usize,
        secure: &SecureListeners,
    ) -> Self {
        if let Err(missing) = Self::installed() {
            panic!("{missing}");
        }
        let controllers: Vec<u16> = (0..nodes).map(|_| ports::free()).collect();
        let mut started = Vec::new();
        for node in 0..nodes {
            let port = ports::free();
            let folder = folders::new("kafka");
            let properties =
                secure.added_to(&properties(node, &controllers, port, behind, &folder));
            std::fs::write(folder.join("kafka.properties"), properties).expect("a file");
            format(node, &folder).await;
            let process = run(&folder, java);
            started.push(Node {
                port,
                folder,
                process,
            });
        }
        let mut kafka = Self {
            nodes: started,
            java,
        };
        kafka.ready().await;
        kafka
    }

    /// `127.0.0.1:PORT`, of each node.
    pub fn bootstrap(&self) -> String {
        let addresses: Vec<_> = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port))
            .collect();
        addresses.join(",")
    }

    /// Its port, for a proxy before it (which must then also be what the broker advertises).
    pub fn port(&self) -> u16 {
        self.nodes[0].port
    }

    /// Its process id, to read what it used of the machine.
    pub fn id(&self) -> u32 {
        self.nodes[0].process.id()
    }

    /// The file of a partition's records on the first node, while they fit into one segment.
    pub fn segment(&self, topic: &str, partition: i32) -> PathBuf {
        let folder = self.nodes[0]
            .folder
            .join("data")
            .join(format!("{topic}-{partition}"));
        folder.join("00000000000000000000.log")
    }

    /// A client's configuration with the address in it.
    pub fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", self.bootstrap())
            .set("reconnect.backoff.max.ms", "500");
        config
            .set("socket.timeout.ms", "10000")
            .set("log_level", "2");
        config
    }

    /// Creates a topic and waits until it has its leaders.
    pub async fn create_topic(&self, name: &str, partitions: usize) {
        self.create_topic_with(name, partitions, &[]).await;
    }

    /// The same with settings of the topic, such as `("cleanup.policy", "compact")`.
    pub async fn create_topic_with(
        &self,
        name: &str,
        partitions: usize,
        settings: &[(&str, &str)],
    ) {
        let mut topic = NewTopic::new(name, partitions as i32, self.replication());
        for (key, value) in settings {
            topic = topic.set(key, value);
        }
        self.create(topic).await;
    }

    async fn create(&self, topic: NewTopic<'_>) {
        let created = self
            .admin()
            .create_topics([&topic], &options())
            .await
            .expect("kafka answers");
        for result in created {
            result.unwrap_or_else(|(topic, code)| panic!("create topic {topic}: {code}"));
        }
        let name = topic.name;
        let partitions = topic.num_partitions as usize;
        eventually(&format!("topic {name} has leaders"), async || {
            self.is_led(name, partitions)
        })
        .await;
    }

    /// Creates a topic with a copy of each partition on every node, of which this node leads all.
    pub async fn create_topic_led_by(&self, name: &str, partitions: usize, leader: usize) {
        let others = (0..self.nodes.len()).filter(|&node| node != leader);
        let ids: Vec<_> = std::iter::once(leader)
            .chain(others)
            .map(|node| node as i32 + 1)
            .collect();
        let copies = vec![&ids[..]; partitions];
        self.create(NewTopic::new(
            name,
            partitions as i32,
            TopicReplication::Variable(&copies),
        ))
        .await;
    }

    /// Creates a topic whose partitions have their copies on these brokers, by id, the first of each its leader.
    pub async fn create_topic_placed(
        &self,
        name: &str,
        copies: &[&[i32]],
        settings: &[(&str, &str)],
    ) {
        let placed = TopicReplication::Variable(copies);
        let mut topic = NewTopic::new(name, copies.len() as i32, placed);
        for (key, value) in settings {
            topic = topic.set(key, value);
        }
        self.create(topic).await;
    }

    /// A topic that no other test uses.
    pub async fn unique_topic(&self, kind: &str, partitions: usize) -> String {
        let name = names::unique(kind);
        self.create_topic(&name, partitions).await;
        name
    }

    /// Deletes a topic and waits until the broker says that it does not know it.
    pub async fn delete_topic(&self, name: &str) {
        for result in self
            .admin()
            .delete_topics(&[name], &options())
            .await
            .expect("kafka answers")
        {
            result.unwrap_or_else(|(topic, code)| panic!("delete topic {topic}: {code}"));
        }
        let unknown = Some(RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
        eventually(&format!("topic {name} is gone"), async || {
            let consumer: BaseConsumer = self.client().create()?;
            let metadata = consumer.fetch_metadata(Some(name), Duration::from_secs(5))?;
            let error = metadata
                .topics()
                .first()
                .context("not in the metadata")?
                .error();
            anyhow::ensure!(error == unknown, "{error:?}");
            anyhow::Ok(())
        })
        .await;
    }

    /// Deletes a topic that holds records and makes it anew. Until the broker has carried that out, it goes on
    /// taking records into the old log and confirms them, and they go with it: this waits until the log is empty.
    pub async fn re_create_topic(&self, name: &str, partitions: usize) {
        self.delete_topic(name).await;
        self.create_topic(name, partitions).await;
        eventually(&format!("topic {name} is empty"), async || {
            let consumer: BaseConsumer = self.client().create()?;
            for partition in 0..partitions as i32 {
                let (_, end) =
                    consumer.fetch_watermarks(name, partition, Duration::from_secs(5))?;
                anyhow::ensure!(end == 0, "partition {partition} ends at {end}");
            }
            anyhow::Ok(())
        })
        .await;
    }

    /// Makes its one node answer that the cluster has no broker, as one does that was frozen for longer than its session.
    /// Lasts until it is started again.
    pub async fn forget_brokers(&self) {
        files::unregister(&self.bootstrap(), 1).await;
        eventually("no broker is named", async || {
            let consumer: BaseConsumer = self.client().create()?;
            let metadata = consumer.fetch_metadata(None, Duration::from_secs(5))?;
            let named = metadata.brokers().len();
            anyhow::ensure!(named == 0, "{named} are");
            anyhow::Ok(())
        })
        .await;
    }

    /// SIGKILL; what was written stays in its folder.
    pub async fn kill9(&mut self) {
        for node in 0..self.nodes.len() {
            self.kill9_node(node).await;
        }
    }

    /// SIGKILL of one node.
    pub async fn kill9_node(&mut self, node: usize) {
        self.nodes[node].process.kill9().await;
    }

    /// SIGTERM: a clean stop.
    pub async fn terminate(&mut self) {
        for node in &mut self.nodes {
            node.process.terminate(Duration::from_secs(60)).await;
        }
    }

    /// Starts it again on the same ports and folders; kills first what still runs.
    pub async fn restart(&mut self) {
        self.kill9().await;
        self.start_again().await;
    }

    /// Starts those nodes again that do not run, on the same ports and folders, and waits until it works.
    pub async fn start_again(&mut self) {
        for node in &mut self.nodes {
            if node.process.ended().is_some() {
                node.process = run(&node.folder, self.java);
            }
        }
        self.ready().await;
    }

    /// SIGSTOP: it hangs with its connections open.
    pub fn stop(&mut self) {
        for node in &mut self.nodes {
            node.process.signal(Signal::STOP);
        }
    }

    /// SIGCONT.
    pub fn cont(&mut self) {
        for node in &mut self.nodes {
            node.process.signal(Signal::CONT);
        }
    }

    /// The node that leads a partition now.
    pub async fn leader(&self, topic: &str, partition: usize) -> usize {
        eventually(&format!("{topic}/{partition} has a leader"), async || {
            let consumer: BaseConsumer = self.client().create()?;
            let metadata = consumer.fetch_metadata(Some(topic), Duration::from_secs(5))?;
            let partitions = metadata
                .topics()
                .first()
                .map(rdkafka::metadata::MetadataTopic::partitions)
                .unwrap_or_default();
            let leader = partitions
                .iter()
                .find(|p| p.id() == partition as i32)
                .map(rdkafka::metadata::MetadataPartition::leader);
            leader
                .filter(|&id| id > 0)
                .map(|id| id as usize - 1)
                .ok_or_else(|| anyhow!("nobody"))
        })
        .await
    }

    /// Waits until a group has so many members, and each of them has partitions of the topic to read.
    pub async fn shared_out(&self, group: &str, topic: &str, members: usize) {
        eventually(
            &format!("{members} members of group {group} read {topic}"),
            async || {
                let consumer: BaseConsumer = self.client().create()?;
                let groups = consumer.fetch_group_list(Some(group), Duration::from_secs(4))?;
                let group = groups.groups().first().context("unknown")?;
                let has_some = |assignment: &[u8]| {
                    assignment
                        .windows(topic.len())
                        .any(|w| w == topic.as_bytes())
                };
                let assigned = group
                    .members()
                    .iter()
                    .filter(|m| m.assignment().is_some_and(has_some))
                    .count();
                anyhow::ensure!(
                    group.state() == "Stable" && assigned == members,
                    "{}, {assigned}",
                    group.state()
                );
                anyhow::Ok(())
            },
        )
        .await;
    }

    /// How many members a group counts now.
    pub fn members(&self, group: &str) -> usize {
        let consumer: BaseConsumer = self.client().create().expect("a consumer");
        let groups = consumer
            .fetch_group_list(Some(group), Duration::from_secs(10))
            .expect("kafka answers");
        groups
            .groups()
            .first()
            .map_or(0, |group| group.members().len())
    }

    /// How many records of a topic a group has not committed yet.
    pub fn lag(&self, topic: &str, group: &str) -> anyhow::Result<u64> {
        let limit = Duration::from_secs(5);
        let consumer = self
            .client()
            .set("group.id", group)
            .create::<BaseConsumer>()?;
        let metadata = consumer.fetch_metadata(Some(topic), limit)?;
        let mut all = TopicPartitionList::new();
        for partition in metadata
            .topics()
            .iter()
            .flat_map(rdkafka::metadata::MetadataTopic::partitions)
        {
            all.add_partition(topic, partition.id());
        }
        let mut lag = 0;
        for element in consumer.committed_offsets(all, limit)?.elements() {
            let (low, high) = consumer.fetch_watermarks(topic, element.partition(), limit)?;
            let committed = if let Offset::Offset(offset) = element.offset() {
                offset
            } else {
                low
            };
            lag += (high - committed) as u64;
        }
        Ok(lag)
    }

    /// The admin client, for what has no helper here.
    pub fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.client().create().expect("an admin client")
    }

    /// `Err` tells that a topic does not have so many partitions whose leader answers for them. A broker that the
    /// metadata name as leader may not know it yet, and then refuses whoever reads (`NotLeaderForPartition`).
    pub fn is_led(&self, topic: &str, partitions: usize) -> anyhow::Result<()> {
        let limit = Duration::from_secs(5);
        let consumer: BaseConsumer = self.client().create()?;
        let metadata = consumer.fetch_metadata(Some(topic), limit)?;
        let described = metadata.topics().first().context("not in the metadata")?;
        let error = described.error();
        anyhow::ensure!(error.is_none(), "{error:?}");
        let found = described.partitions().len();
        anyhow::ensure!(found >= partitions, "{found} of {partitions} partitions");
        for partition in described.partitions() {
            let (id, error) = (partition.id(), partition.error());
            anyhow::ensure!(error.is_none(), "partition {id}: {error:?}");
            consumer
                .fetch_watermarks(topic, id, limit)
                .with_context(|| format!("partition {id}"))?;
        }
        Ok(())
    }

    fn replication(&self) -> TopicReplication<'static> {
        TopicReplication::Fixed(self.nodes.len() as i32)
    }

    fn assert_running(&mut self) {
        self.nodes
            .iter_mut()
            .for_each(|node| node.process.assert_running());
    }

    async fn ready(&mut self) {
        let topic = names::unique("ready");
        // Metadata alone come 2 s before the controller creates topics and the coordinator knows groups.
        let created = within(START_LIMIT, async || {
            self.assert_running();
            let topic = NewTopic::new(&topic, 1, self.replication());
            let created = self.admin().create_topics([&topic], &options()).await?;
            match created.first().context("no answer")? {
                Ok(_) | Err((_, rdkafka::types::RDKafkaErrorCode::TopicAlreadyExists)) => Ok(()),
                Err((_, code)) => Err(anyhow!("{code}")),
            }
        });
        if let Err(last) = created.await {
            panic!("kafka creates no topic within {START_LIMIT:?}; last: {last}");
        }
        let served = within(START_LIMIT, async || {
            self.assert_running();
            self.round_trip(&topic).await
        });
        if let Err(last) = served.await {
            panic!(
                "kafka takes no record, or knows no group, within {START_LIMIT:?}; last: {last}"
            );
        }
        self.delete_topic(&topic).await;
    }

    async fn round_trip(&self, topic: &str) -> anyhow::Result<()> {
        let producer: FutureProducer = self.client().set("enable.idempotence", "true").create()?;
        let record = FutureRecord::to(topic).key("ready?").payload("ready?");
        producer
            .send(record, Duration::from_secs(4))
            .await
            .map_err(|(error, _)| error)?;
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

impl Drop for Node {
    fn drop(&mut self) {
        self.process.end();
        folders::remove(&self.folder);
    }
}
