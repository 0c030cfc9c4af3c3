//! Records that are read twice: they are flagged, never skipped, and recognised by their name if they have one.

use std::time::Duration;

use crate::kafka::fixture::{commit_beyond, rewind};
use crate::support::accounting::Outcome;
use crate::support::{Config, Kafka, Redis, Relay, Run, When, eventually, names};

/// One route from a topic of one partition.
struct One {
    run: Run,
    relay: Relay,
    source: String,
    label: String,
}

impl One {
    async fn start(redis: &Redis, kafka: &Kafka) -> Self {
        let source = kafka.unique_topic("source", 1).await;
        let target = kafka.unique_topic("target", 1).await;
        let from = format!(r#"{{ kafka = "main", topic = "{source}", group = "{source}" }}"#);
        let to = format!(r#"{{ kafka = "main", topic = "{target}" }}"#);
        let config = Config::new(redis)
            .kafka("main", kafka)
            .route("one", &from, &to, "");
        let run = Run::new();
        run.collect_kafka(kafka, &target, 1);
        Self {
            run,
            relay: Relay::start(&config).await,
            source,
            label: format!("kafka:{target}"),
        }
    }

    async fn send(&self, kafka: &Kafka, count: u64) {
        let when = |n| {
            if n % 5 == 0 {
                When::Now
            } else {
                When::Delay(n * 10)
            }
        };
        let messages = (0..count)
            .map(|n| self.run.message(&self.label, when(n)).key("key"))
            .collect();
        self.run.send_kafka(kafka, &self.source, messages).await;
    }

    /// Stops it, sets its position to the topic's beginning, starts it again.
    async fn read_again(&mut self, kafka: &Kafka) {
        assert_eq!(self.relay.terminate().await.code(), Some(0), "a clean stop");
        rewind(kafka, &self.source, &self.source, 0);
        self.relay.restart().await;
    }

    async fn counts(&self, name: &str, labels: &[(&str, &str)], expected: f64) {
        eventually(&format!("{name} is {expected}"), async || {
            let found = self.relay.total(name, labels).await;
            if found >= expected {
                Ok(())
            } else {
                Err(found)
            }
        })
        .await;
    }
}

const REREAD: &[(&str, &str)] = &[("cause", "source_reread")];

#[tokio::test]
async fn a_rewound_group_repeats_with_a_cause_and_recognises_pending_names() {
    let (redis, kafka) = tokio::join!(Redis::shared(), Kafka::shared());
    let mut one = One::start(redis, kafka).await;
    one.send(kafka, 50).await;
    one.run.drain(&one.relay).await;
    let before = one.relay.total("postdate_stored_total", &[]).await;
    let named = |n: u64| {
        one.run
            .message(&one.label, When::Delay(15_000))
            .contract("x-delay-id", &n.to_string())
    };
    one.run
        .send_kafka(kafka, &one.source, (0..10).map(named).collect())
        .await;
    one.counts("postdate_stored_total", &[], before + 10.0)
        .await;
    one.read_again(kafka).await;
    one.counts("postdate_duplicates_total", &[], 10.0).await;
    one.run.drain(&one.relay).await;
    let explained = one.relay.total("postdate_redelivered_total", REREAD).await;
    let report = one.run.report();
    report.assert_accounted(explained as usize);
    assert_eq!(
        (report.delivered, report.duplicates()),
        (60, 50),
        "all but the named ones came twice"
    );
    assert_eq!(explained as usize, 50);
}

/// All of them are of the last ten minutes: what is read again is flagged, and what comes later is not.
#[tokio::test]
async fn what_a_position_beyond_the_end_costs_is_counted() {
    let (redis, kafka) = tokio::join!(Redis::shared(), Kafka::shared());
    let mut one = One::start(redis, kafka).await;
    one.send(kafka, 50).await;
    one.run.drain(&one.relay).await;
    assert_eq!(one.relay.terminate().await.code(), Some(0), "a clean stop");
    commit_beyond(kafka, &one.source, &one.source, 60);
    one.relay.restart().await;
    one.counts("postdate_redelivered_total", REREAD, 50.0).await;
    one.send(kafka, 20).await;
    one.run.drain(&one.relay).await;
    let explained = one.relay.total("postdate_redelivered_total", REREAD).await;
    let report = one.run.report();
    report.assert_accounted(explained as usize);
    assert_eq!((report.delivered, report.duplicates()), (70, 50));
    assert_eq!(explained as usize, 50);
    let log = one.relay.log();
    assert!(
        log.contains("the committed position cannot be true, reading again"),
        "{log}"
    );
}

/// A consumer that was stopped for longer than its session goes on with its records: those that its successor has read
/// meanwhile come twice, and the successor does not know it.
#[tokio::test]
async fn what_another_consumer_has_read_meanwhile_is_flagged() {
    let (redis, kafka) = tokio::join!(Redis::shared(), Kafka::shared());
    let one = One::start(redis, kafka).await;
    one.send(kafka, 10).await;
    one.run.drain(&one.relay).await;
    let mut connection = redis.connection().await.expect("connected");
    let field = format!("kafka/main/{0}/{0}/0", one.source);
    let mut homes = redis::cmd("KEYS");
    let homes: Vec<String> = homes
        .arg("*:sources")
        .query_async(&mut connection)
        .await
        .expect("KEYS");
    for home in homes {
        let mut set = redis::cmd("EVAL");
        set.arg("if redis.call('HGET', KEYS[1], ARGV[1]) == '9' then redis.call('HSET', KEYS[1], ARGV[1], 14) end");
        set.arg(1)
            .arg(home)
            .arg(&field)
            .query_async::<()>(&mut connection)
            .await
            .expect("set");
    }
    one.send(kafka, 10).await;
    one.run.drain(&one.relay).await;
    one.run.report().assert_accounted(0);
    assert_eq!(
        one.relay.total("postdate_redelivered_total", REREAD).await as usize,
        5
    );
}

#[tokio::test]
async fn a_topic_made_anew_under_its_old_name_is_read_from_its_first_record() {
    let (redis, kafka) = tokio::join!(Redis::shared(), Kafka::shared());
    let one = One::start(redis, kafka).await;
    one.send(kafka, 20).await;
    one.run.drain(&one.relay).await;
    kafka.re_create_topic(&one.source, 1).await;
    // More than before: whoever went on at the old position would miss the first twenty.
    one.send(kafka, 40).await;
    one.run.drain(&one.relay).await;
    let explained = one.relay.total("postdate_redelivered_total", REREAD).await;
    let report = one.run.report();
    report.assert_accounted(explained as usize);
    assert_eq!(report.delivered, 60);
    // Who fetches before it has noticed goes on at the old position, and reads what it found there again later.
    assert!(
        report.duplicates() <= 20,
        "only what lay beyond the old position: {}",
        report.duplicates()
    );
}

#[tokio::test]
async fn a_cancelled_message_that_is_read_again_with_its_cancel_stays_cancelled() {
    let (redis, kafka) = tokio::join!(Redis::shared(), Kafka::shared());
    let mut one = One::start(redis, kafka).await;
    let id = names::unique("order");
    let due = tokio::time::Instant::now() + Duration::from_secs(15);
    let message = one
        .run
        .message(&one.label, When::Delay(15_000))
        .key("key")
        .contract("x-delay-id", &id);
    let cancel = one
        .run
        .message(&one.label, When::Now)
        .key("key")
        .contract("x-delay-id", &id);
    let messages = vec![message, cancel.contract("x-delay-op", "cancel")];
    let ids: Vec<_> = messages
        .iter()
        .map(|message| message.id().clone())
        .collect();
    one.run.send_kafka(kafka, &one.source, messages).await;
    let cancelled = [("op", "cancel"), ("result", "cancelled")];
    one.counts("postdate_commands_total", &cancelled, 1.0).await;
    one.read_again(kafka).await;
    one.counts("postdate_commands_total", &cancelled, 2.0).await;
    for id in &ids {
        one.run.ledger().resolve(id, Outcome::Fail);
    }
    one.send(kafka, 10).await;
    tokio::time::sleep_until(due).await;
    one.run.drain(&one.relay).await;
    let report = one.run.report();
    report.assert_accounted(0);
    assert_eq!((report.delivered, report.fail), (10, 2));
}
