//! Servers that speak TLS: Redis, RabbitMQ and Kafka that want certificates of their clients, and one of each whose own
//! certificate has expired. All certificates are for 127.0.0.1 alone.

use tokio::sync::OnceCell;

use crate::support::{Config, Kafka, QueueKind, Rabbitmq, Redis, Tls, names, ports};

/// Names of the certificates.
const NAMES: &str = "IP:127.0.0.1";

static SHARED: OnceCell<TlsFixture> = OnceCell::const_new();

pub(super) struct TlsFixture {
    tls: Tls,
    expired: Tls,
    redis: Redis,
    /// Speaks TLS on a port beside its own.
    expired_redis: Redis,
    expired_redis_port: u16,
    pub(super) rabbitmq: Rabbitmq,
    expired_rabbitmq: Rabbitmq,
    pub(super) kafka: Kafka,
    kafka_port: u16,
    expired_kafka_port: u16,
}

/// A queue and a topic of a test's own.
pub(super) struct Objects {
    pub(super) queue: String,
    pub(super) topic: String,
}

/// Addresses, and files for those of them that are reached over TLS.
#[derive(Clone, Debug)]
pub(super) struct Ends {
    pub(super) redis: String,
    pub(super) rabbitmq: String,
    /// Reached over TLS if there is a `ca`.
    pub(super) kafka: String,
    pub(super) ca: Option<String>,
    pub(super) identity: Option<(String, String)>,
}

impl TlsFixture {
    /// The servers that the tests here share.
    pub(super) async fn shared() -> &'static Self {
        SHARED.get_or_init(Self::start).await
    }

    async fn start() -> Self {
        let tls = Tls::named(NAMES);
        let expired = Tls::expired(NAMES);
        let expired_redis_port = ports::free();
        let port = expired_redis_port.to_string();
        let beside = [&expired.beside()[..], &["--tls-port".to_owned(), port]].concat();
        let options = tls.options();
        let certificates = [&tls, &expired];
        let (redis, expired_redis, rabbitmq, expired_rabbitmq, (kafka, kafka_ports)) = tokio::join!(
            start_redis(&options),
            start_redis(&beside),
            Rabbitmq::start_tls(&tls),
            Rabbitmq::start_tls(&expired),
            Kafka::start_tls(&certificates),
        );
        redis
            .command::<()>(&["CONFIG", "SET", "tls-auth-clients", "yes"])
            .await
            .expect("set");
        let [kafka_port, expired_kafka_port] = kafka_ports[..] else {
            panic!("two ports")
        };
        Self {
            tls,
            expired,
            redis,
            expired_redis,
            expired_redis_port,
            rabbitmq,
            expired_rabbitmq,
            kafka,
            kafka_port,
            expired_kafka_port,
        }
    }

    pub(super) async fn objects(&self) -> Objects {
        let queue = names::unique("mail");
        self.rabbitmq
            .declare_queue(&queue, QueueKind::Classic)
            .await;
        Objects {
            queue,
            topic: self.kafka.unique_topic("mail", 1).await,
        }
    }

    /// Everything as it should be.
    pub(super) fn good(&self) -> Ends {
        self.reached_by("127.0.0.1")
    }

    /// The same by another name of this machine.
    pub(super) fn reached_by(&self, host: &str) -> Ends {
        Ends {
            redis: format!("rediss://{host}:{}", self.redis.port()),
            rabbitmq: self.rabbitmq.tls_url(host),
            kafka: format!("{host}:{}", self.kafka_port),
            ca: Some(self.tls.authority()),
            identity: Some(self.tls.client()),
        }
    }

    /// Servers whose certificates have expired.
    pub(super) fn expired(&self) -> Ends {
        Ends {
            redis: format!("rediss://127.0.0.1:{}", self.expired_redis_port),
            rabbitmq: self.expired_rabbitmq.tls_url("127.0.0.1"),
            kafka: format!("127.0.0.1:{}", self.expired_kafka_port),
            ca: Some(self.expired.authority()),
            identity: Some(self.expired.client()),
        }
    }

    /// Ports that speak TLS, reached without.
    pub(super) fn without_tls(&self) -> Ends {
        Ends {
            redis: format!("redis://127.0.0.1:{}", self.redis.port()),
            rabbitmq: self
                .rabbitmq
                .tls_url("127.0.0.1")
                .replace("amqps://", "amqp://"),
            ca: None,
            identity: None,
            ..self.good()
        }
    }

    /// Ports that speak no TLS, reached with it.
    pub(super) fn with_tls_to_plain(&self) -> Ends {
        Ends {
            redis: format!("rediss://127.0.0.1:{}", self.expired_redis.port()),
            rabbitmq: self.rabbitmq.url().replace("amqp://", "amqps://"),
            kafka: self.kafka.bootstrap(),
            ..self.good()
        }
    }
}

async fn start_redis(options: &[String]) -> Redis {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    Redis::start_with("redis-server", &options).await
}

impl Ends {
    /// A configuration with a route from the queue to the topic.
    pub(super) fn config(&self, objects: &Objects) -> Config {
        let Self {
            redis,
            rabbitmq,
            kafka,
            ..
        } = self;
        let over_tls = |url: &str| url.starts_with("rediss://") || url.starts_with("amqps://");
        let table = |url: &str| {
            if over_tls(url) {
                self.table()
            } else {
                String::new()
            }
        };
        let Objects { queue, topic } = objects;
        Config::stored(&format!("url = \"{redis}\"\n{}", table(redis)))
            .section(&format!(
                "[rabbitmq.main]\nurl = \"{rabbitmq}\"\n{}",
                table(rabbitmq)
            ))
            .section(&format!(
                "[kafka.main]\nbrokers = \"{kafka}\"\n{}",
                self.properties()
            ))
            .route(
                "mail",
                &format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#),
                &format!(r#"{{ kafka = "main", topic = "{topic}" }}"#),
                "",
            )
    }

    /// The key `tls` of Redis and RabbitMQ.
    fn table(&self) -> String {
        let mut files: Vec<String> = self.ca.iter().map(|ca| format!("ca = \"{ca}\"")).collect();
        if let Some((certificate, key)) = &self.identity {
            files.push(format!("certificate = \"{certificate}\", key = \"{key}\""));
        }
        format!("tls = {{ {} }}", files.join(", "))
    }

    /// The key `properties` of Kafka.
    fn properties(&self) -> String {
        let Some(ca) = &self.ca else {
            return String::new();
        };
        let mut properties = vec![
            "\"security.protocol\" = \"SSL\"".to_owned(),
            format!("\"ssl.ca.location\" = \"{ca}\""),
        ];
        if let Some((certificate, key)) = &self.identity {
            properties.push(format!("\"ssl.certificate.location\" = \"{certificate}\""));
            properties.push(format!("\"ssl.key.location\" = \"{key}\""));
        }
        format!("properties = {{ {} }}", properties.join(", "))
    }
}
