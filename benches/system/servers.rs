//! The servers of a run, started when a bench first asks for them, and configurations of relays with them.

use std::collections::BTreeMap;

use anyhow::{anyhow, bail};
use tokio::sync::{Mutex, OnceCell};

use crate::load::{Load, fill_topic};
use crate::machine;
use crate::support::{Config, Kafka, Rabbitmq, Redis, Relay};

/// Partitions of each topic.
pub const TOPIC_PARTITIONS: usize = 4;

/// Real servers, each alone on its ports.
#[derive(Default)]
pub struct Servers {
    kafka: OnceCell<Kafka>,
    rabbitmq: OnceCell<Rabbitmq>,
    /// Topics that stay filled for the benches that follow.
    filled: Mutex<BTreeMap<String, String>>,
}

impl Servers {
    /// Kafka, or a sentence that says why there is none.
    pub async fn kafka(&self) -> anyhow::Result<&Kafka> {
        Kafka::installed().map_err(|missing| anyhow!(missing))?;
        Ok(self.kafka.get_or_init(Kafka::start_for_speed).await)
    }

    /// RabbitMQ, or a sentence that says why there is none.
    pub async fn rabbitmq(&self) -> anyhow::Result<&Rabbitmq> {
        Rabbitmq::installed().map_err(|missing| anyhow!(missing))?;
        Ok(self.rabbitmq.get_or_init(Rabbitmq::start).await)
    }

    /// Starts an empty Redis for the caller, its counts at zero, without persistence or with AOF everysec.
    pub async fn redis(&self, aof: bool) -> anyhow::Result<Redis> {
        if let Err(error) = std::process::Command::new("redis-server")
            .arg("--version")
            .output()
        {
            bail!("no redis-server here ({error}): run scripts/setup");
        }
        let options = ["--appendonly", if aof { "yes" } else { "no" }];
        Ok(Redis::start_with("redis-server", &options).await)
    }

    /// A Redis with AOF everysec, and a replica that follows it.
    pub async fn replicated(&self) -> anyhow::Result<(Redis, Redis)> {
        let master = self.redis(true).await?;
        let follow = format!("127.0.0.1 {}", master.port());
        let replica = Redis::start_with("redis-server", &["--replicaof", &follow]).await;
        Ok((master, replica))
    }

    /// A topic with so many messages of a kind, filled once.
    pub async fn filled(&self, count: u64, load: Load) -> anyhow::Result<String> {
        let kafka = self.kafka().await?;
        let key = format!("{count} {load:?}");
        let mut filled = self.filled.lock().await;
        if let Some(topic) = filled.get(&key) {
            return Ok(topic.clone());
        }
        let topic = kafka.unique_topic("source", TOPIC_PARTITIONS).await;
        println!("  filling {topic}: {key}");
        tokio::task::block_in_place(|| fill_topic(kafka, &topic, count, load))?;
        filled.insert(key, topic.clone());
        Ok(topic)
    }

    /// Versions of the servers, in one line.
    pub fn versions(&self) -> String {
        let redis = machine::version("redis-server", "--version");
        let redis = redis
            .split_whitespace()
            .find_map(|word| word.strip_prefix("v="))
            .unwrap_or("?");
        let mut parts = vec![
            format!("postdate {}", env!("CARGO_PKG_VERSION")),
            format!("Redis {redis}"),
        ];
        if self.kafka.initialized() {
            parts.push(format!(
                "Kafka {} ({})",
                Kafka::version(),
                machine::version("java", "-version")
            ));
        }
        if self.rabbitmq.initialized() {
            parts.push(format!(
                "RabbitMQ {}",
                Rabbitmq::installed().unwrap_or_default()
            ));
        }
        parts.push(machine::version("rustc", "--version"));
        parts.join(", ")
    }
}

/// A configuration with a store in that Redis, with or without persistence.
pub fn config(redis: &Redis) -> Config {
    Config::new(redis).redis("unsafe = [\"no_persistence\"]")
}

/// A configuration with one route, `bench`, between two topics.
pub fn kafka_config(
    redis: &Redis,
    kafka: &Kafka,
    source: &str,
    target: &str,
    more: &str,
) -> Config {
    kafka_route(
        config(redis).kafka("main", kafka),
        "bench",
        source,
        target,
        more,
    )
}

/// Adds a route between two topics. Delays count from arrival, as a source may have been full for long.
pub fn kafka_route(config: Config, name: &str, source: &str, target: &str, more: &str) -> Config {
    let from = format!(r#"{{ kafka = "main", topic = "{source}", group = "{name}-{target}" }}"#);
    let to = format!(r#"{{ kafka = "main", topic = "{target}" }}"#);
    config.route(
        name,
        &from,
        &to,
        &format!("delay_from = \"arrival\"\n{more}"),
    )
}

/// The environment variable that makes this program a relay whose store is behind by so many seconds.
pub const BEHIND_VARIABLE: &str = "POSTDATE_BENCH_BEHIND";

/// Starts a relay with the clock of its store this many seconds behind. It is this program itself, with
/// [`BEHIND_VARIABLE`] set: the relay has no such switch.
pub fn relay_behind(config: &Config, seconds: i64) -> Relay {
    let program = std::env::current_exe().expect("the path of this program");
    Relay::spawn_as(program, config, &[(BEHIND_VARIABLE, &seconds.to_string())])
}
