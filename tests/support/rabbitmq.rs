//! rabbitmq-server as child processes, one node or three, with an epmd of their own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, anyhow};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use tokio::sync::OnceCell;

use super::eventually::{PATIENCE, START_LIMIT, within};
use super::process::{Process, Signal};
use super::{Tls, eventually, folders, names, ports};

static SHARED: OnceCell<Rabbitmq> = OnceCell::const_new();

/// The two kinds of queue that the tests use, both durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// `x-queue-type: classic`
    Classic,
    /// `x-queue-type: quorum`
    Quorum,
}

/// A RabbitMQ of one node or of three, user and password `guest`. Clients come to the first; what is done to it is
/// done to all of its nodes, unless one is named: 0, 1, 2.
#[derive(Debug)]
pub struct Rabbitmq {
    nodes: Vec<Node>,
    folder: PathBuf,
    epmd: Process,
    tls_port: Option<u16>,
}

#[derive(Debug)]
struct Node {
    ports: Ports,
    name: String,
    folder: PathBuf,
    process: Process,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    amqp: u16,
    dist: u16,
    epmd: u16,
}

impl Node {
    /// Prints what it complained of last: it may say why a test failed.
    fn tell(&self) {
        let file = self
            .folder
            .join("log")
            .join(format!("{}@localhost.log", self.name));
        let log = std::fs::read(&file).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let complaints: Vec<_> = log
            .lines()
            .filter(|line| !line.contains("[info]"))
            .collect();
        let tail = complaints[complaints.len().saturating_sub(40)..].join("\n");
        println!("--- what {} complained of:\n{tail}\n---", self.name);
    }
}

/// What a server has besides its AMQP port.
#[derive(Clone, Copy, Default)]
struct Extras<'a> {
    /// A port with TLS.
    tls: Option<&'a Tls>,
    /// The port of the management API.
    management: Option<u16>,
}

impl Rabbitmq {
    /// The one that this binary's tests share.
    pub async fn shared() -> &'static Self {
        SHARED.get_or_init(Self::start).await
    }

    /// Version of the installed RabbitMQ, if there is one.
    pub fn installed() -> Result<String, String> {
        let script =
            script().ok_or("no rabbitmq-server below /usr/lib/rabbitmq/lib: run scripts/setup")?;
        let folder = script
            .ancestors()
            .nth(2)
            .and_then(Path::file_name)
            .unwrap_or_default();
        Ok(folder.to_string_lossy().replace("rabbitmq_server-", ""))
    }

    /// One of the caller's own.
    pub async fn start() -> Self {
        Self::start_nodes(1, Extras::default()).await
    }

    /// One of the caller's own whose management API listens on this port.
    pub async fn start_managed(port: u16) -> Self {
        Self::start_nodes(
            1,
            Extras {
                management: Some(port),
                ..Extras::default()
            },
        )
        .await
    }

    /// One that speaks TLS on a further port, and wants a certificate of its clients there.
    pub async fn start_tls(tls: &Tls) -> Self {
        Self::start_nodes(
            1,
            Extras {
                tls: Some(tls),
                ..Extras::default()
            },
        )
        .await
    }

    /// Three nodes: a quorum queue has a copy on each.
    pub async fn start_three() -> Self {
        Self::start_nodes(3, Extras::default()).await
    }

    async fn start_nodes(nodes: usize, extras: Extras<'_>) -> Self {
        let Extras { tls, management } = extras;
        let folder = folders::new("rabbitmq");
        let epmd_port = ports::free();
        // Nodes that share a home share the secret that they know each other by.
        std::fs::create_dir(folder.join("home")).expect("home");
        // Started by hand in the foreground: the one that Erlang starts by itself would outlive us.
        let epmd = Process::start("epmd", &folder, "epmd", |command| {
            command.args(["-address", "127.0.0.1", "-port", &epmd_port.to_string()]);
        });
        let names: Vec<_> = (0..nodes).map(|_| names::unique("rabbit")).collect();
        let tls_port = tls.map(|_| ports::free());
        let mut rabbitmq = Self {
            nodes: Vec::new(),
            folder,
            epmd,
            tls_port,
        };
        for name in &names {
            let ports = Ports {
                amqp: ports::free(),
                dist: ports::free(),
                epmd: epmd_port,
            };
            let folder = rabbitmq.folder.join(name);
            std::fs::create_dir(&folder).expect("a folder");
            let mut conf = format!(
                "listeners.tcp.1 = 127.0.0.1:{}\nloopback_users = none\n",
                ports.amqp
            );
            if let (Some(tls), Some(port)) = (tls, tls_port) {
                let (certificate, key) = tls.server();
                let authority = tls.authority();
                let lines = format!(
                    "listeners.ssl.1 = 127.0.0.1:{port}\nssl_options.cacertfile = {authority}\n\
                     ssl_options.certfile = {certificate}\nssl_options.keyfile = {key}\n\
                     ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true\n"
                );
                conf += &lines;
            }
            if nodes > 1 {
                conf += "cluster_formation.peer_discovery_backend = classic_config\n";
                for (n, name) in names.iter().enumerate() {
                    let node = format!(
                        "cluster_formation.classic_config.nodes.{} = {name}@localhost\n",
                        n + 1
                    );
                    conf += &node;
                }
            }
            let mut plugins = "[].\n";
            if let Some(port) = management {
                let lines =
                    format!("management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n");
                conf += &lines;
                plugins = "[rabbitmq_management].\n";
            }
            std::fs::write(folder.join("rabbitmq.conf"), conf).expect("rabbitmq.conf");
            std::fs::write(folder.join("enabled_plugins"), plugins).expect("enabled_plugins");
            let process = run(ports, name, &rabbitmq.folder, &folder);
            rabbitmq.nodes.push(Node {
                ports,
                name: name.clone(),
                folder,
                process,
            });
            // One after the other: each joins those that are there.
            rabbitmq.ready().await;
        }
        rabbitmq
    }

    /// `amqp://guest:guest@127.0.0.1:PORT/%2f`
    pub fn url(&self) -> String {
        self.url_of(0)
    }

    /// `amqps://guest:guest@HOST:PORT/%2f`, of one that speaks TLS.
    pub fn tls_url(&self, host: &str) -> String {
        format!(
            "amqps://guest:guest@{host}:{}/%2f",
            self.tls_port.expect("started with TLS")
        )
    }

    /// Its port for TLS, of one that speaks it.
    pub fn tls_port(&self) -> u16 {
        self.tls_port.expect("started with TLS")
    }

    fn url_of(&self, node: usize) -> String {
        format!(
            "amqp://guest:guest@127.0.0.1:{}/%2f",
            self.nodes[node].ports.amqp
        )
    }

    /// Its AMQP port, for a proxy before it.
    pub fn port(&self) -> u16 {
        self.nodes[0].ports.amqp
    }

    /// Its process id, to read what it used of the machine.
    pub fn id(&self) -> u32 {
        self.nodes[0].process.id()
    }

    /// A new connection to it.
    pub async fn connect(&self) -> anyhow::Result<Connection> {
        self.connect_to(0).await
    }

    async fn connect_to(&self, node: usize) -> anyhow::Result<Connection> {
        let url = self.url_of(node);
        let connect = Connection::connect(&url, ConnectionProperties::default());
        Ok(tokio::time::timeout(PATIENCE, connect)
            .await
            .context("connect: no answer")??)
    }

    /// SIGKILL; durable queues and persistent messages stay in its folder.
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

    /// Starts those nodes again that do not run, on the same ports and folders, and waits until all work.
    pub async fn start_again(&mut self) {
        for node in &mut self.nodes {
            if node.process.ended().is_some() {
                node.process = run(node.ports, &node.name, &self.folder, &node.folder);
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

    /// Has this node lead all quorum queues.
    pub async fn lead_by(&self, node: usize) {
        let lead = format!(
            "[rabbit_quorum_queue:transfer_leadership(Q, '{}@localhost') || Q <- rabbit_amqqueue:list(), \
             amqqueue:get_type(Q) =:= rabbit_quorum_queue].",
            self.nodes[node].name
        );
        self.ctl(&["eval", &lead]).await;
    }

    /// The nodes that lead quorum queues now, each with how many.
    pub async fn leaders(&self) -> Vec<usize> {
        let queues = self
            .ctl(&["list_queues", "--silent", "name", "leader"])
            .await;
        let leads = |name: &str| {
            queues
                .lines()
                .filter(|line| line.contains(&format!("{name}@")))
                .count()
        };
        self.nodes.iter().map(|node| leads(&node.name)).collect()
    }

    /// Stops the process of a queue, on this node: what is routed to a classic one is not confirmed until
    /// [`Self::resume_queue`].
    pub async fn suspend_queue(&self, name: &str) {
        self.queue_process(name, "suspend").await;
    }

    /// Lets the process of a classic queue go on.
    pub async fn resume_queue(&self, name: &str) {
        self.queue_process(name, "resume").await;
    }

    /// Waits until each channel that there is has dealt with what its process was sent before.
    pub async fn flush_channels(&self) {
        let flush =
            "[catch gen_server2:call(Channel, flush, 10000) || Channel <- rabbit_channel:list()].";
        self.ctl(&["eval", flush]).await;
    }

    async fn queue_process(&self, name: &str, call: &str) {
        let eval = format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{name}\">>)), \
             sys:{call}(amqqueue:get_pid(Q))."
        );
        self.ctl(&["eval", &eval]).await;
    }

    /// Prints what its nodes complained of last.
    pub fn tell(&self) {
        self.nodes.iter().for_each(Node::tell);
    }

    /// Runs `rabbitmqctl` against it and returns what it printed; panics if it fails. For what no client
    /// can do: alarms, limits, a message that no client would send.
    pub async fn ctl(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(Path::new(&program()).with_file_name("rabbitmqctl"));
        command
            .arg("-n")
            .arg(format!("{}@localhost", self.nodes[0].name))
            .args(arguments);
        command
            .env("HOME", self.folder.join("home"))
            .env("ERL_EPMD_PORT", self.nodes[0].ports.epmd.to_string());
        command.env(
            "RABBITMQ_CONFIG_FILE",
            self.nodes[0].folder.join("rabbitmq.conf"),
        );
        command.env(
            "RABBITMQ_ENABLED_PLUGINS_FILE",
            self.nodes[0].folder.join("enabled_plugins"),
        );
        let output = tokio::task::spawn_blocking(move || command.output()).await;
        let output = output
            .expect("rabbitmqctl does not panic")
            .expect("rabbitmqctl starts");
        let out = String::from_utf8_lossy(&output.stdout);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "rabbitmqctl {arguments:?}: {out}{err}"
        );
        out.into_owned()
    }

    /// Declares a durable queue, without further arguments.
    pub async fn declare_queue(&self, name: &str, kind: QueueKind) {
        self.declare_queue_with(name, kind, FieldTable::default())
            .await;
    }

    /// Declares a durable queue with arguments such as `x-dead-letter-exchange`.
    pub async fn declare_queue_with(&self, name: &str, kind: QueueKind, mut arguments: FieldTable) {
        let queue_type = if kind == QueueKind::Classic {
            "classic"
        } else {
            "quorum"
        };
        arguments.insert(
            "x-queue-type".into(),
            AMQPValue::LongString(queue_type.into()),
        );
        self.admin(async |channel| {
            channel
                .queue_declare(
                    name.into(),
                    QueueDeclareOptions::durable(),
                    arguments.clone(),
                )
                .await
                .map(drop)
        })
        .await;
        self.wait_until_a_kill_spares(name, kind).await;
    }

    /// RabbitMQ says that a queue is there before its own disk says so. A transaction on its tables whose outcome is
    /// not yet in their log (up to two seconds) is undone when it starts after a kill; the name of a quorum queue
    /// (3.10) follows within half a second, and without it the queue is empty and for ever without a leader.
    async fn wait_until_a_kill_spares(&self, queue: &str, kind: QueueKind) {
        for node in &self.nodes {
            let name = format!("{}@localhost", node.name);
            let mnesia = node.folder.join("mnesia").join(&name);
            let quorum = mnesia.join("quorum").join(&name).join("names.dets");
            eventually(&format!("queue {queue} is on disk"), async || {
                let log = std::fs::read(mnesia.join("LATEST.LOG"))?;
                let decided = count(&log, "committed") >= count(&log, "presume_abort");
                let named =
                    kind == QueueKind::Classic || count(&std::fs::read(&quorum)?, queue) > 0;
                if decided && named {
                    Ok(())
                } else {
                    Err(anyhow!("not yet"))
                }
            })
            .await;
        }
    }

    /// Declares a durable exchange.
    pub async fn declare_exchange(&self, name: &str, kind: ExchangeKind) {
        self.admin(async |channel| {
            let options = ExchangeDeclareOptions {
                durable: true,
                ..Default::default()
            };
            channel
                .exchange_declare(name.into(), kind.clone(), options, FieldTable::default())
                .await
        })
        .await;
    }

    /// Binds a queue to an exchange.
    pub async fn bind(&self, queue: &str, exchange: &str, routing_key: &str) {
        self.admin(async |channel| {
            let options = QueueBindOptions::default();
            let arguments = FieldTable::default();
            channel
                .queue_bind(
                    queue.into(),
                    exchange.into(),
                    routing_key.into(),
                    options,
                    arguments,
                )
                .await
        })
        .await;
    }

    /// Takes a binding away.
    pub async fn unbind(&self, queue: &str, exchange: &str, routing_key: &str) {
        self.admin(async |channel| {
            let arguments = FieldTable::default();
            channel
                .queue_unbind(queue.into(), exchange.into(), routing_key.into(), arguments)
                .await
        })
        .await;
    }

    /// Deletes a queue with what is in it.
    pub async fn delete_queue(&self, name: &str) {
        self.admin(async |channel| {
            channel
                .queue_delete(name.into(), QueueDeleteOptions::default())
                .await
                .map(drop)
        })
        .await;
    }

    /// How many messages are ready in a queue.
    pub async fn queue_len(&self, name: &str) -> u32 {
        let options = QueueDeclareOptions {
            passive: true,
            ..Default::default()
        };
        let channel = async |channel: &Channel| {
            channel
                .queue_declare(name.into(), options, FieldTable::default())
                .await
        };
        self.admin(channel).await.message_count()
    }

    /// One administrative call on a channel of its own; panics if the broker refuses it.
    async fn admin<T>(&self, call: impl AsyncFnOnce(&Channel) -> lapin::Result<T>) -> T {
        let done = async {
            let connection = self.connect().await?;
            let channel = connection.create_channel().await?; // dropped after the connection's close
            let value = call(&channel).await?;
            connection.close(200, "done".into()).await?;
            anyhow::Ok(value)
        };
        tokio::time::timeout(Duration::from_secs(30), done)
            .await
            .expect("rabbitmq answers")
            .expect("rabbitmq agrees")
    }

    async fn ready(&mut self) {
        for node in 0..self.nodes.len() {
            let started = within(START_LIMIT, async || {
                self.epmd.assert_running();
                self.nodes[node].process.assert_running();
                confirmed_publish(&self.connect_to(node).await?).await
            });
            if let Err(last) = started.await {
                panic!("rabbitmq confirms no publish within {START_LIMIT:?}; last: {last}");
            }
        }
    }
}

fn count(bytes: &[u8], word: &str) -> usize {
    bytes
        .windows(word.len())
        .filter(|window| *window == word.as_bytes())
        .count()
}

async fn confirmed_publish(connection: &Connection) -> anyhow::Result<()> {
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let options = QueueDeclareOptions {
        exclusive: true,
        ..Default::default()
    };
    let queue = channel
        .queue_declare("".into(), options, FieldTable::default())
        .await?;
    let options = BasicPublishOptions::default();
    let properties = BasicProperties::default();
    let confirm = channel
        .basic_publish(
            "".into(),
            queue.name().clone(),
            options,
            b"ready?",
            properties,
        )
        .await?;
    if !confirm.await?.is_ack() {
        return Err(anyhow!("not confirmed"));
    }
    Ok(connection.close(200, "ready".into()).await?)
}

fn run(ports: Ports, node: &str, shared: &Path, folder: &Path) -> Process {
    Process::start("rabbitmq", folder, &program(), |command| {
        command.env("HOME", shared.join("home"));
        command.env("RABBITMQ_NODENAME", format!("{node}@localhost"));
        command.env("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq.conf"));
        command.env(
            "RABBITMQ_ENABLED_PLUGINS_FILE",
            folder.join("enabled_plugins"),
        );
        command.env("RABBITMQ_MNESIA_BASE", folder.join("mnesia"));
        command.env("RABBITMQ_LOG_BASE", folder.join("log"));
        command.env("RABBITMQ_PID_FILE", folder.join("pid"));
        command.env("RABBITMQ_DIST_PORT", ports.dist.to_string());
        command.env("ERL_EPMD_PORT", ports.epmd.to_string());
        command.env("ERL_EPMD_ADDRESS", "127.0.0.1");
        command.env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "+S 2:2 +sbwt none");
        // The script then becomes Erlang instead of watching over it: our signals reach the right process.
        command
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .env_remove("NOTIFY_SOCKET");
    })
}

/// The script itself: the wrapper in the path drops privileges and sets folders of its own.
/// `POSTDATE_TEST_RABBITMQ` names another one (`scripts/test-rabbitmq4`), beside which `rabbitmqctl` lies.
fn script() -> Option<PathBuf> {
    if let Some(chosen) = std::env::var_os("POSTDATE_TEST_RABBITMQ") {
        return Some(chosen.into());
    }
    let versions = std::fs::read_dir("/usr/lib/rabbitmq/lib")
        .into_iter()
        .flatten()
        .flatten();
    let mut scripts: Vec<_> = versions
        .map(|version| version.path().join("sbin/rabbitmq-server"))
        .collect();
    scripts.retain(|script| script.exists());
    scripts.sort();
    scripts.pop()
}

fn program() -> String {
    let found =
        script().expect("no rabbitmq-server below /usr/lib/rabbitmq/lib: run scripts/setup");
    found.to_string_lossy().into_owned()
}

impl Drop for Rabbitmq {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.process.end();
        }
        self.epmd.end();
        if std::thread::panicking() {
            self.tell();
        }
        folders::remove(&self.folder);
    }
}
