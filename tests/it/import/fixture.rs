//! A route from RabbitMQ to RabbitMQ, a Redis that has another program's queue, and the import as its users run it.

use std::process::{Command, Output};

use anyhow::anyhow;
use futures_util::{FutureExt, StreamExt};
use lapin::options::BasicConsumeOptions;
use lapin::types::FieldTable;
use lapin::{Connection, Consumer};

use crate::support::process::Process;
use crate::support::{
    Config, QueueKind, Rabbitmq, Redis, Relay, eventually, folders, names, relay,
};

/// Exit code and output of an import.
#[derive(Debug)]
pub(crate) struct ImportOutput {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl ImportOutput {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        let code = output.status.code().expect("no signal");
        Self {
            code,
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    /// The count beside this text in the table; 0 if it is not there.
    pub(crate) fn count(&self, what: &str) -> u64 {
        let row = self.out.lines().find_map(|line| {
            let (count, text) = line.trim_start().split_once(' ')?;
            text.trim_start()
                .starts_with(what)
                .then(|| count.parse().ok())?
        });
        row.unwrap_or(0)
    }
}

pub(crate) struct ImportFixture {
    /// The Redis of the other program.
    pub(crate) source: Redis,
    config: Config,
    relay: Relay,
    _connection: Connection,
    /// Receives what arrives at the target.
    consumer: Consumer,
    arrived: Vec<Vec<u8>>,
}

impl ImportFixture {
    pub(crate) async fn new(policy: &str) -> Self {
        let (rabbitmq, store, source) =
            tokio::join!(Rabbitmq::shared(), Redis::shared(), Redis::start());
        let name = names::unique("import");
        let ingress = format!("{name}-in");
        let target = format!("{name}-out");
        for queue in [&ingress, &target] {
            rabbitmq.declare_queue(queue, QueueKind::Classic).await;
        }
        let from = format!(r#"{{ rabbitmq = "main", queue = "{ingress}" }}"#);
        let to = format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#);
        let config = Config::new(store)
            .redis("partitions = 4")
            .rabbitmq("main", rabbitmq);
        let config = config.route("r", &from, &to, policy);
        let relay = Relay::start(&config).await;
        let connection = rabbitmq.connect().await.expect("connected");
        let channel = connection.create_channel().await.expect("a channel");
        let options = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let consumer = channel
            .basic_consume(target.into(), "".into(), options, FieldTable::default())
            .await
            .expect("a subscription");
        Self {
            source,
            config,
            relay,
            _connection: connection,
            consumer,
            arrived: Vec::new(),
        }
    }

    pub(crate) fn relay(&self) -> &Relay {
        &self.relay
    }

    fn arguments(&self, url: &str, args: &[&str]) -> Vec<String> {
        let folder = folders::new("import");
        let file = folder.join("postdate.toml");
        std::fs::write(&file, self.config.text("127.0.0.1:8025")).expect("a configuration file");
        let file = file.display().to_string();
        let own = ["--redis", url, "--config", &file];
        ["import"]
            .iter()
            .chain(args)
            .chain(&own)
            .map(|&arg| arg.to_owned())
            .collect()
    }

    /// `postdate import ARGS`
    pub(crate) async fn import(&self, args: &[&str]) -> ImportOutput {
        self.import_from(&self.source.url(), args).await
    }

    /// The same, by this URL of the other program's Redis.
    pub(crate) async fn import_from(&self, url: &str, args: &[&str]) -> ImportOutput {
        let mut command = Command::new(relay::binary());
        command.args(self.arguments(url, args)).env_clear();
        let output =
            tokio::task::spawn_blocking(move || command.output().expect("the binary runs"));
        ImportOutput::of(&output.await.expect("no panic"))
    }

    /// The same, to be killed or waited for.
    pub(crate) fn start_import(&self, args: &[&str]) -> Process {
        let args = self.arguments(&self.source.url(), args);
        let program = relay::binary();
        Process::start(
            "import",
            &folders::new("import"),
            &program.to_string_lossy(),
            |command| {
                command.args(args);
            },
        )
    }

    /// A command of the other program's Redis.
    pub(crate) async fn source<T: redis::FromRedisValue>(&self, parts: &[&str]) -> T {
        self.source.command(parts).await.expect("an answer")
    }

    /// A command of the relay's Redis.
    pub(crate) async fn store<T: redis::FromRedisValue>(&self, parts: &[&str]) -> T {
        Redis::shared()
            .await
            .command(parts)
            .await
            .expect("an answer")
    }

    /// The key of the relay's store that ends so, as soon as there is one.
    pub(crate) async fn store_key(&self, end: &str) -> String {
        let text = self.config.text("");
        let prefix = text
            .split("prefix = \"")
            .nth(1)
            .and_then(|rest| rest.split('"').next())
            .expect("a prefix");
        let glob = format!("{prefix}*{end}");
        eventually(&glob, async || {
            self.store::<Vec<String>>(&["KEYS", &glob])
                .await
                .pop()
                .ok_or("no such key")
        })
        .await
    }

    /// Posts to the relay's API.
    pub(crate) async fn post(&self, path: &str) {
        let (status, text) = self
            .relay()
            .request("POST", path, None, "{}")
            .await
            .expect("an answer");
        assert_eq!(status, 200, "{path}: {text}");
    }

    /// Names and due times of what waits in the route.
    pub(crate) async fn pending(&self) -> Vec<(String, i64)> {
        let mut waits = Vec::new();
        let mut cursor = String::new();
        loop {
            let path = format!("/api/v1/messages?route=r&limit=1000{cursor}");
            let page = self.relay().read(&path).await;
            for item in page["items"].as_array().expect("a list") {
                let id = item["id"].as_str().expect("an id").to_owned();
                waits.push((id, item["due_ms"].as_i64().expect("a due time")));
            }
            let Some(next) = page["next"].as_str() else {
                break;
            };
            cursor = format!("&cursor={next}");
        }
        waits.sort();
        waits
    }

    /// Takes what has arrived at the target, and returns all bodies so far, sorted.
    pub(crate) fn arrivals(&mut self) -> Vec<Vec<u8>> {
        while let Some(Some(delivery)) = self.consumer.next().now_or_never() {
            self.arrived.push(delivery.expect("a delivery").data);
        }
        self.arrived.sort();
        self.arrived.clone()
    }

    /// Waits until so many have arrived.
    pub(crate) async fn arrived(&mut self, count: usize) -> Vec<Vec<u8>> {
        eventually("all has arrived", async || {
            let arrived = self.arrivals();
            if arrived.len() >= count {
                Ok(arrived)
            } else {
                Err(anyhow!("{} of {count}", arrived.len()))
            }
        })
        .await
    }
}

/// The same values as sorted bodies.
pub(crate) fn bodies(values: impl IntoIterator<Item = String>) -> Vec<Vec<u8>> {
    let mut bodies: Vec<_> = values.into_iter().map(String::into_bytes).collect();
    bodies.sort();
    bodies
}
