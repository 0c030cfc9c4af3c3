//! One route from topic to topic over any store, with the accounting on.

use crate::support::run::Message;
use crate::support::{Config, Kafka, Relay, Run, When, eventually};

/// The relay, its route, and what was sent and found.
pub(super) struct Flow {
    pub(super) run: Run,
    pub(super) relay: Relay,
    source: String,
    label: String,
}

impl Flow {
    /// With a store that these lines lead to; claims last 3 s, so that what a dead master took with it comes soon.
    pub(super) async fn start(kafka: &Kafka, lines: &str) -> Self {
        Self::start_with(kafka, lines, &[]).await
    }

    /// The same with environment variables for the relay.
    pub(super) async fn start_with(
        kafka: &Kafka,
        lines: &str,
        environment: &[(&str, &str)],
    ) -> Self {
        Self::start_as(kafka, lines, environment, "").await
    }

    /// The same with these lines in the route.
    pub(super) async fn start_as(
        kafka: &Kafka,
        lines: &str,
        environment: &[(&str, &str)],
        policy: &str,
    ) -> Self {
        let source = kafka.unique_topic("source", 3).await;
        let target = kafka.unique_topic("target", 3).await;
        let from = format!(r#"{{ kafka = "main", topic = "{source}", group = "{source}" }}"#);
        let to = format!(r#"{{ kafka = "main", topic = "{target}" }}"#);
        let config = Config::stored(lines)
            .redis("partitions = 16")
            .section("[timer]\nclaim = \"3s\"");
        let config = config.kafka("main", kafka).route("one", &from, &to, policy);
        let run = Run::new();
        run.collect_kafka(kafka, &target, 3);
        let relay = Relay::start_with(&config, environment).await;
        Self {
            run,
            relay,
            source,
            label: format!("kafka:{target}"),
        }
    }

    /// So many messages, all delayed, by 6 s (so that all are stored) to so much more.
    pub(super) async fn send(&self, kafka: &Kafka, count: u64, span_ms: u64) {
        let when = |n| When::Delay(6000 + n * span_ms / count);
        let message = |n: u64| self.message(when(n)).key(&n.to_string());
        self.send_all(kafka, (0..count).map(message).collect())
            .await;
    }

    pub(super) fn message(&self, when: When) -> Message {
        self.run.message(&self.label, when)
    }

    pub(super) async fn send_all(&self, kafka: &Kafka, messages: Vec<Message>) {
        self.run.send_kafka(kafka, &self.source, messages).await;
    }

    /// Waits until so many are in the store, or were.
    pub(super) async fn stored(&self, count: u64) {
        eventually(&format!("{count} messages are stored"), async || {
            let stored = self
                .relay
                .metrics()
                .await?
                .sum("postdate_stored_total", &[]);
            anyhow::ensure!(stored >= count as f64, "{stored}");
            anyhow::Ok(())
        })
        .await;
    }

    /// Waits until the log says this so many times.
    pub(super) async fn logged(&self, text: &str, times: usize) {
        eventually(
            &format!("the log says {text:?} {times} times"),
            async || {
                let found = self.relay.log().matches(text).count();
                if found >= times {
                    Ok(())
                } else {
                    Err(format!("{found} times"))
                }
            },
        )
        .await;
    }

    /// Reports whether any message is still to come.
    pub(super) fn is_under_way(&self) -> bool {
        !self.run.ledger().missing().is_empty()
    }

    /// Drains: nothing lost, early, changed or misrouted, and each repeat with its cause.
    pub(super) async fn accounted(&mut self) {
        self.run.drain(&self.relay).await;
        let explained = self.relay.total("postdate_redelivered_total", &[]).await as usize;
        let report = self.run.report();
        report.assert_accounted(explained);
        assert!(
            explained <= report.attempts,
            "{explained} repeats of {} messages",
            report.attempts
        );
        assert_eq!(self.relay.terminate().await.code(), Some(0), "a clean stop");
    }
}
