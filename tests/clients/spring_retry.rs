//! A Spring listener whose error handler gives back what failed, against the relay on a real Kafka: it sets no header and
//! counts nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::producer::{FutureProducer, FutureRecord};
use serde::Deserialize;

use super::support::eventually::within;
use super::support::process::Process;
use super::support::{Config, Kafka, Redis, Relay, folders};

/// The client's name.
pub(crate) const NAME: &str = "spring/retry";

/// Longest wait until all has been tried, from the start of the listener on.
const RUN_LIMIT: Duration = Duration::from_secs(90);
/// How long after the last try another one would have come.
const SILENCE: Duration = Duration::from_secs(4);
/// The waits of the route, ms.
const WAITS_MS: [i64; 3] = [500, 1000, 2000];
/// How late a try may come, ms.
const MAX_LATE_MS: i64 = 2000;

/// A try as the listener tells of it.
#[derive(Debug, Deserialize)]
struct Try {
    key: String,
    count: usize,
    ms: i64,
}

/// Plays the listener. Returns true if each record came as often and when it had to.
pub(crate) async fn play() -> bool {
    let (redis, kafka) = tokio::join!(Redis::start(), Kafka::start());
    let folder = folders::new("spring-retry");
    for topic in ["orders", "orders.retry"] {
        kafka.create_topic(topic, 1).await;
    }
    let config = Config::new(&redis).kafka("main", &kafka).route(
        "orders-retry",
        r#"{ kafka = "main", topic = "orders.retry" }"#,
        r#"{ kafka = "main", topic = "orders" }"#,
        "consumer_retry = { attempts = 3, initial = \"500ms\", factor = 2, max = \"1h\" }",
    );
    let mut relay = Relay::spawn(&config, &[]);
    let home = folders::cache().join("clients").join("spring");
    let mut listener = Process::start("spring-retry", &folder, "java", |command| {
        command
            .args(["-cp", "target/classes:lib/*", "Retry"])
            .current_dir(&home)
            .env("KAFKA_BROKERS", kafka.bootstrap());
    });
    let producer: FutureProducer = kafka.client().create().expect("a producer");
    for key in ["2", "never"] {
        let record = FutureRecord::to("orders").key(key).payload("{}");
        let sent = producer.send(record, Duration::from_secs(30)).await;
        sent.expect("acknowledged");
    }
    let faults = judged(&listener, &relay).await;
    listener.terminate(Duration::from_secs(30)).await;
    if faults.is_empty() {
        println!("{NAME:<16} good: what failed came again, and was dead in the end");
    } else {
        println!("{NAME:<16} WRONG: {}", faults.join("; "));
        println!("{}\n{}", listener.log_tail(), relay.log());
    }
    relay.terminate().await.success() && faults.is_empty()
}

/// What is wrong with what came.
async fn judged(listener: &Process, relay: &Relay) -> Vec<String> {
    let tries = || -> BTreeMap<String, Vec<Try>> {
        let log = listener.log();
        let lines = log
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let mut tries = BTreeMap::<_, Vec<Try>>::new();
        for one in lines {
            let one: Try = one;
            tries.entry(one.key.clone()).or_default().push(one);
        }
        tries
    };
    let came = within(RUN_LIMIT, async || {
        let dead = relay.metrics().await.map_err(|e| e.to_string())?;
        let dead = dead.sum("postdate_dead_letters_total", &[("reason", "retries")]);
        let all = tries();
        let count = |key: &str| all.get(key).map_or(0, Vec::len);
        if dead > 0.5 && count("2") >= 3 {
            Ok(())
        } else {
            Err(format!("{dead} dead, tries: {all:?}"))
        }
    });
    let mut faults: Vec<String> = came.await.err().into_iter().collect();
    tokio::time::sleep(SILENCE).await;
    let all = tries();
    for (key, expected) in [("2", 3), ("never", 4)] {
        let tries = all.get(key).map(Vec::as_slice).unwrap_or_default();
        let counts: Vec<usize> = tries.iter().map(|one| one.count).collect();
        if counts != (0..expected).collect::<Vec<_>>() {
            faults.push(format!("{key}: its counts are {counts:?}"));
        }
        for (pair, wait_ms) in tries.windows(2).zip(WAITS_MS) {
            let waited_ms = pair[1].ms - pair[0].ms;
            if !(wait_ms * 4 / 5..=wait_ms + MAX_LATE_MS).contains(&waited_ms) {
                faults.push(format!("{key} waited {waited_ms} ms of {wait_ms}"));
            }
        }
    }
    faults
}
