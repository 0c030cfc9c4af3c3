//! Clients that log in at Kafka: passwords that are rotated while the relay runs, in the file and at the broker.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::support::{Config, Kafka, Redis, Relay, eventually, folders, names};

/// Time after which a session at the broker ends, unless its client logs in again.
const SESSION_MS: u32 = 3000;
const USER: &str = "relay";

/// A relay from one topic to another. It logs in at Kafka, and nobody else does.
pub(super) struct LoginPlay {
    pub(super) kafka: Kafka,
    pub(super) port: u16,
    pub(super) topics: [String; 2],
    redis: Redis,
}

impl LoginPlay {
    pub(super) async fn start(session_ms: u32) -> Self {
        let (redis, (kafka, port)) =
            tokio::join!(Redis::start(), Kafka::start_with_login(session_ms));
        let topics = ["in", "out"].map(names::unique);
        for topic in &topics {
            kafka.create_topic(topic, 1).await;
        }
        Self {
            kafka,
            port,
            topics,
            redis,
        }
    }

    /// The configuration of the relay, with these lines about how it logs in.
    pub(super) fn config(&self, login: &str) -> Config {
        let [from, to] = &self.topics;
        Config::new(&self.redis)
            .section(&format!(
                "[kafka.main]\nbrokers = \"127.0.0.1:{}\"\n{login}",
                self.port
            ))
            .route(
                "mail",
                &format!(r#"{{ kafka = "main", topic = "{from}" }}"#),
                &format!(r#"{{ kafka = "main", topic = "{to}" }}"#),
                "",
            )
    }

    /// Sends a delayed message, and waits until so many have arrived.
    pub(super) async fn delivers(&self, relay: &Relay, count: i64) {
        let producer: FutureProducer = self.kafka.client().create().expect("a producer");
        let delay = Header {
            key: "x-delay",
            value: Some("100ms"),
        };
        let record = FutureRecord::<(), _>::to(&self.topics[0])
            .payload("m")
            .headers(OwnedHeaders::new().insert(delay));
        producer
            .send(record, Duration::from_secs(10))
            .await
            .expect("sent");
        eventually("the message arrives", async || {
            let arrived = self.arrived();
            if arrived >= count {
                Ok(())
            } else {
                Err(format!("{arrived} of {count}: {}", relay.log()))
            }
        })
        .await;
    }

    pub(super) fn arrived(&self) -> i64 {
        let consumer: BaseConsumer = self.kafka.client().create().expect("a consumer");
        let (_, end) = consumer
            .fetch_watermarks(&self.topics[1], 0, Duration::from_secs(10))
            .expect("an answer");
        end
    }
}

/// Waits until the log of the relay says this.
pub(super) async fn says(relay: &Relay, words: &str) {
    eventually(&format!("the relay says {words:?}"), async || {
        let log = relay.log();
        if log.contains(words) {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
}

fn properties(password: &str) -> String {
    format!(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.username={USER}\nsasl.password={password}\n"
    )
}

fn file_of(folder: &Path, password: &str) -> PathBuf {
    let file = folder.join("kafka-properties");
    std::fs::write(&file, properties(password)).expect("written");
    file
}

#[tokio::test]
async fn a_rotated_password_is_taken_without_a_restart() {
    let play = LoginPlay::start(SESSION_MS).await;
    let folder = folders::new("login");
    play.kafka.set_password(USER, "first-password").await;
    let file = file_of(&folder, "an-old-password");
    let config = play.config(&format!("properties_file = \"{}\"", file.display()));
    let relay = Relay::spawn(&config, &[]);
    says(&relay, "Authentication failed").await;

    // The relay was started with a wrong password.
    file_of(&folder, "first-password");
    play.delivers(&relay, 1).await;

    // The broker first: sessions end, and the old password is refused until the file is there.
    play.kafka.set_password(USER, "second-password").await;
    eventually("the old password is refused", async || {
        let (status, body) = relay.get("/readyz").await?;
        anyhow::ensure!(
            status == 503 || body.contains("Authentication failed"),
            "{body}"
        );
        anyhow::Ok(())
    })
    .await;
    file_of(&folder, "second-password");
    play.delivers(&relay, 2).await;

    // The file first, as Vault's agent and Kubernetes do it.
    file_of(&folder, "third-password");
    play.kafka.set_password(USER, "third-password").await;
    play.delivers(&relay, 3).await;

    let log = relay.log();
    for password in ["an-old", "first", "second", "third"] {
        assert!(!log.contains(&format!("{password}-password")), "{log}");
    }
    assert_eq!(play.arrived(), 3, "nothing arrives twice");
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_told_once_and_mended_without_a_restart() {
    let play = LoginPlay::start(SESSION_MS).await;
    let folder = folders::new("login");
    play.kafka.set_password(USER, "first-password").await;
    let file = file_of(&folder, "first-password");
    let config = play.config(&format!("properties_file = \"{}\"", file.display()));
    let relay = Relay::start(&config).await;
    play.delivers(&relay, 1).await;

    std::fs::write(
        &file,
        properties("second-password") + "enable.idempotence=false\n",
    )
    .expect("written");
    play.kafka.set_password(USER, "second-password").await;
    says(&relay, "enable.idempotence is set by Postdate").await;
    file_of(&folder, "second-password");
    play.delivers(&relay, 2).await;
    let told = relay.log();
    let told = told.matches("enable.idempotence is set by").count();
    assert!(
        told <= 3,
        "told once by the consumer and by each producer: {told}"
    );
}
