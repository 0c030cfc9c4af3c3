//! A principal of Kafka with the fewest rights, as `docs/security.md` lists them, and what is said where it lacks one.

use std::time::Duration;

use crate::support::kafka::{KafkaOperation, KafkaResource, KafkaRight};
use crate::support::{Config, Kafka, Redis, Relay, Run, Tls, When, eventually, folders, relay};

struct Play {
    tls: Tls,
    kafka: Kafka,
    port: u16,
    source: String,
    /// Read by the same consumer, all the time.
    other: String,
    target: String,
}

impl Play {
    async fn start() -> Self {
        let tls = Tls::new();
        let (kafka, port) = Kafka::start_with_rights(&tls).await;
        let source = kafka.unique_topic("source", 2).await;
        let other = kafka.unique_topic("other", 1).await;
        let target = kafka.unique_topic("target", 2).await;
        Self {
            tls,
            kafka,
            port,
            source,
            other,
            target,
        }
    }

    /// The rights that the documents list, each with the words of `check --connect` where it is missing.
    fn rights(&self) -> [(KafkaRight, &'static str); 3] {
        let right = |resource, name: &str, operation| KafkaRight {
            resource,
            name: name.to_owned(),
            operation,
        };
        [
            (
                right(KafkaResource::Topic, &self.source, KafkaOperation::Read),
                "DESCRIBE and READ on a source",
            ),
            (
                right(KafkaResource::Group, &self.source, KafkaOperation::Read),
                "principal READ on it",
            ),
            (
                right(KafkaResource::Topic, &self.target, KafkaOperation::Write),
                "DESCRIBE and WRITE on a target",
            ),
        ]
    }

    fn config(&self, redis: &Redis) -> Config {
        let Self {
            port,
            source,
            other,
            target,
            ..
        } = self;
        let (certificate, key) = self.tls.client();
        let authority = self.tls.authority();
        Config::new(redis)
            .section(&format!(
                "[kafka.main]\nbrokers = \"127.0.0.1:{port}\"\n[kafka.main.properties]\n\"security.protocol\" = \"SSL\"\n\
                 \"ssl.ca.location\" = \"{authority}\"\n\"ssl.certificate.location\" = \"{certificate}\"\n\
                 \"ssl.key.location\" = \"{key}\""
            ))
            .route(
                "mail",
                &format!(r#"{{ kafka = "main", topic = "{source}", group = "{source}" }}"#),
                &format!(r#"{{ kafka = "main", topic = "{target}" }}"#),
                "",
            )
            .route(
                "post",
                &format!(r#"{{ kafka = "main", topic = "{other}", group = "{source}" }}"#),
                &format!(r#"{{ kafka = "main", topic = "{target}" }}"#),
                "",
            )
    }

    /// Exit status and words of `check --connect`.
    async fn check(&self, redis: &Redis) -> (Option<i32>, String) {
        let file = folders::new("check").join("postdate.toml");
        std::fs::write(&file, self.config(redis).text("127.0.0.1:0"))
            .expect("a configuration file");
        let mut command = std::process::Command::new(relay::binary());
        command
            .args(["check", "--connect", "--config"])
            .arg(&file)
            .env_clear();
        let ran = tokio::task::spawn_blocking(move || command.output())
            .await
            .expect("not cancelled");
        let ran = ran.expect("the binary runs");
        let both = [ran.stdout, ran.stderr].concat();
        (ran.status.code(), String::from_utf8(both).expect("UTF-8"))
    }
}

/// Longer than the time between three statistics of the client library: by then it is known what a record has changed.
const STATISTICS: Duration = Duration::from_millis(3500);

/// State of a part of readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Up,
    InTrouble,
}

#[tokio::test]
async fn a_principal_of_kafka_with_the_fewest_rights_relays_and_is_told_which_one_it_lacks() {
    let (redis, play) = tokio::join!(Redis::start(), Play::start());
    let rights = play.rights().map(|(right, _)| right);
    play.kafka.allow(&rights);
    let [read, group, write] = &rights;
    let of = |topic: &str, operation| KafkaRight {
        name: topic.to_owned(),
        operation,
        ..read.clone()
    };
    play.kafka.allow(&[of(&play.other, KafkaOperation::Read)]);
    for (right, sentence) in play.rights() {
        play.kafka.forbid(std::slice::from_ref(&right));
        let (status, words) = play.check(&redis).await;
        assert_eq!(status, Some(1), "without {right:?}: {words}");
        let named = words
            .lines()
            .any(|line| line.contains(&right.name) && line.contains(sentence));
        assert!(named, "without {right:?}: {words}");
        play.kafka.allow(&[right]);
    }
    let (status, words) = play.check(&redis).await;
    assert_eq!(status, Some(0), "{words}");

    let run = Run::new();
    run.collect_kafka(&play.kafka, &play.target, 2);
    let relay = Relay::start(&play.config(&redis)).await;
    let label = format!("kafka:{}", play.target);
    let send = async |topic: &str| {
        let messages = (0..10)
            .map(|_| run.message(&label, When::Delay(100)))
            .collect();
        run.send_kafka(&play.kafka, topic, messages).await;
    };
    send(&play.source).await;
    run.drain(&relay).await;
    let shown = async |part: &str, state: Shown| {
        eventually(&format!("{part} is {state:?}"), async || {
            let (_, body) = relay.get("/readyz").await?;
            let parts: serde_json::Value = serde_json::from_str(&body)?;
            let mut named = parts["parts"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|found| {
                    found["name"]
                        .as_str()
                        .is_some_and(|name| name.starts_with(part))
                });
            let is_up = named.all(|found| found["state"] == "up");
            if is_up == (state == Shown::Up) {
                Ok(())
            } else {
                Err(anyhow::anyhow!(body))
            }
        })
        .await;
    };
    // Later, each of them in turn: somebody is told, nothing is lost, and it goes on by itself. A right to read may also go
    // while the right to describe, which it implies, is there by itself: then the answers to fetches alone tell.
    let describe = of(&play.source, KafkaOperation::Describe);
    for (right, part, kept) in [
        (read, "source:mail", None),
        (group, "source:mail", None),
        (write, "target:", None),
        (read, "source:mail", Some(&describe)),
    ] {
        play.kafka.allow(kept.cloned().as_slice());
        play.kafka.forbid(std::slice::from_ref(right));
        send(&play.source).await;
        shown(part, Shown::InTrouble).await;
        play.kafka.allow(std::slice::from_ref(right));
        run.drain(&relay).await;
        shown(part, Shown::Up).await;
    }
    // Nobody sends to the topic, so no record tells that it may be read again. Records of another one say nothing of it.
    play.kafka.forbid(std::slice::from_ref(read));
    shown("source:mail", Shown::InTrouble).await;
    send(&play.other).await;
    run.drain(&relay).await;
    let began = std::time::Instant::now();
    while began.elapsed() < STATISTICS {
        shown("source:post", Shown::Up).await;
        let (_, body) = relay.get("/readyz").await.expect("an answer");
        assert!(body.contains("Topic authorization failed"), "{body}");
    }
    play.kafka.allow(std::slice::from_ref(read));
    shown("source:mail", Shown::Up).await;
    // Without its group a consumer cannot commit what it has read, and reads it again: each repeat is counted.
    run.report()
        .assert_accounted(crate::outage::repeats(&relay).await);
}
