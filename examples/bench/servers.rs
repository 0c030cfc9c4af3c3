//! The servers of a run, and what is missing of them.

use crate::machine;
use crate::support::{Kafka, Rabbitmq, Redis};

/// Real servers, each alone on its ports; `Err` says why one is not there.
pub struct Servers {
    pub redis: Redis,
    pub kafka: Result<Kafka, String>,
    pub rabbitmq: Result<Rabbitmq, String>,
}

impl Servers {
    /// Starts what is installed.
    pub async fn start() -> Self {
        let kafka = async {
            match Kafka::installed() {
                Ok(()) => Ok(Kafka::start().await),
                Err(missing) => Err(missing),
            }
        };
        let rabbitmq = async {
            match Rabbitmq::installed() {
                Ok(_) => Ok(Rabbitmq::start().await),
                Err(missing) => Err(missing),
            }
        };
        let (redis, kafka, rabbitmq) = tokio::join!(Redis::start(), kafka, rabbitmq);
        Self { redis, kafka, rabbitmq }
    }

    /// What they are, in one line.
    pub fn versions(&self) -> String {
        let redis = machine::version("redis-server", "--version");
        let redis =
            redis.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or("?").to_owned();
        let kafka = match &self.kafka {
            Ok(_) => format!("Kafka {} ({})", Kafka::version(), machine::version("java", "-version")),
            Err(missing) => missing.clone(),
        };
        let rabbitmq = match Rabbitmq::installed() {
            Ok(version) => format!("RabbitMQ {version}"),
            Err(missing) => missing,
        };
        format!(
            "Redis {redis} (AOF, everysec), {kafka}, {rabbitmq}, {}",
            machine::version("rustc", "--version")
        )
    }
}
