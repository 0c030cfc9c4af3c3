//! The binary as a pod runs it: any user, nothing to write to, volumes with a kubelet's symlinks, secrets as
//! files, SIGTERM with a clock on it. What needs the chart itself is in `tests/chart`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::pod::{self, Volume, files};
use crate::support::process::Signal;
use crate::support::{
    Config, Kafka, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names, ports,
};

const RUN: [&str; 3] = ["run", "--config", "/etc/postdate/postdate.yaml"];
const CHECK: [&str; 3] = ["check", "--config", "/etc/postdate/postdate.yaml"];

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn file(name: &str, value: &Value) -> (String, String) {
    // JSON is YAML.
    (name.to_owned(), value.to_string())
}

#[tokio::test]
async fn any_user_on_a_read_only_root_with_secrets_as_files_and_no_home() {
    if !pod::available("kubernetes: any user on a read-only root") {
        return;
    }
    let (redis, kafka, rabbitmq) =
        tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let from = kafka.unique_topic("from", 3).await;
    let to = kafka.unique_topic("to", 1).await;
    let queue = names::unique("from");
    let target = names::unique("to");
    rabbitmq.declare_queue(&queue, QueueKind::Quorum).await;
    rabbitmq.declare_queue(&target, QueueKind::Quorum).await;
    let address = format!("127.0.0.1:{}", ports::free());
    let config = json!({
        "redis": { "url_file": "/run/secrets/postdate/redis/url", "prefix": names::unique("postdate") },
        "kafka": { "main": {
            "brokers": kafka.bootstrap(),
            "properties_file": "/run/secrets/postdate/kafka/main/properties",
        } },
        "rabbitmq": { "main": { "url_file": "/run/secrets/postdate/rabbitmq/main/url" } },
        "admin": { "listen": address, "write_tokens_file": "/run/secrets/postdate/admin/write-tokens" },
        "routes": {
            "orders": { "from": { "kafka": "main", "topic": from }, "to": { "kafka": "main", "topic": to } },
            "mail": {
                "from": { "rabbitmq": "main", "queue": queue },
                "to": { "rabbitmq": "main", "exchange": "", "routing_key": target },
            },
        },
    });
    let secrets = files(&[
        ("redis/url", &format!("{}\n", redis.url())),
        ("rabbitmq/main/url", &rabbitmq.url()),
        (
            "kafka/main/properties",
            "# as a Secret holds them\nsecurity.protocol=PLAINTEXT\n",
        ),
        ("admin/write-tokens", "Pa55word\nolder\n"),
    ]);
    let volumes = [
        Volume::new("/etc/postdate", &[file("postdate.yaml", &config)]),
        Volume::new("/run/secrets/postdate", &secrets),
    ];

    let checked = pod::finish(&volumes, &[], &[&CHECK[..], &["--connect"]].concat()).await;
    assert_eq!(
        checked.status.code(),
        Some(0),
        "{}{}",
        text(&checked.stdout),
        text(&checked.stderr)
    );

    let mut relay = Relay::adopt(pod::start(&volumes, &[], &RUN), &address);
    relay.ready().await;
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", relay.id())).expect("its status");
    for expected in [
        "NoNewPrivs:\t1",
        "CapEff:\t0000000000000000",
        "CapPrm:\t0000000000000000",
    ] {
        assert!(status.contains(expected), "{expected}\n{status}");
    }
    // Who is not root cannot become anybody else to test with.
    if rustix::process::geteuid().is_root() {
        assert!(status.contains("Uid:\t34567\t34567"), "{status}");
    }

    let run = Run::new();
    run.collect_kafka(kafka, &to, 1);
    run.collect_rabbitmq(rabbitmq, &target);
    let messages = |label: &str, key: &str| -> Vec<_> {
        (0..20)
            .map(|n| run.message(label, When::Delay(n * 50)).key(key))
            .collect()
    };
    let records = messages(&format!("kafka:{to}"), "k");
    let publishes = messages(&format!("rabbitmq:{target}"), &target);
    tokio::join!(
        run.send_kafka(kafka, &from, records),
        run.send_rabbitmq(rabbitmq, "", Some(&queue), publishes)
    );
    run.drain(&relay).await;
    run.report().assert_accounted(0);

    let refused = relay.get("/api/v1/routes").await.expect("an answer").0;
    let allowed = relay
        .request("GET", "/api/v1/routes", Some("older"), "")
        .await
        .expect("an answer")
        .0;
    assert_eq!(
        (refused, allowed),
        (401, 200),
        "the second line of the tokens' file"
    );
    assert_eq!(relay.terminate().await.code(), Some(0), "{}", relay.log());
}

/// Nobody is there to answer: what is refused is refused before anything is bound or asked.
#[tokio::test]
async fn a_configmap_that_changes_is_read_at_the_next_start_and_refused_there() {
    if !pod::available("kubernetes: a ConfigMap that changes") {
        return;
    }
    let config = |max_delay: &str| {
        let route = json!({
            "from": { "kafka": "main", "topic": "in" },
            "to": { "kafka": "main", "topic": "out" },
            "max_delay": max_delay,
        });
        let kafka = json!({ "main": { "brokers": "127.0.0.1:1" } });
        [file(
            "postdate.yaml",
            &json!({ "kafka": kafka, "routes": { "orders": route } }),
        )]
    };
    let volumes = [Volume::new("/etc/postdate", &config("1h"))];
    let before = pod::finish(&volumes, &[], &CHECK).await;
    assert_eq!(before.status.code(), Some(0), "{}", text(&before.stderr));

    volumes[0].update(&config("soon"));
    for command in [&CHECK, &RUN] {
        let after = pod::finish(&volumes, &[], command).await;
        let error = text(&after.stderr);
        assert_eq!(after.status.code(), Some(64), "{error}");
        assert!(
            error.contains("/etc/postdate/postdate.yaml")
                && error.contains("routes.orders.max_delay")
        );
    }
    volumes[0].update(&config("2h"));
    assert_eq!(
        pod::finish(&volumes, &[], &CHECK).await.status.code(),
        Some(0)
    );

    let mut missing = config("1h");
    missing[0].1 = missing[0].1.replace(
        "\"routes\"",
        "\"redis\": { \"url_file\": \"/run/none\" }, \"routes\"",
    );
    volumes[0].update(&missing);
    let output = pod::finish(&volumes, &[], &CHECK).await;
    assert_eq!(output.status.code(), Some(64));
    assert!(
        text(&output.stderr).contains("/run/none cannot be read"),
        "{}",
        text(&output.stderr)
    );
}

/// A target that hangs keeps the drain from ending: until its deadline the pod is alive and not ready, and
/// then it ends by itself, before Kubernetes would kill it.
#[tokio::test]
async fn readiness_closes_before_the_drain_and_the_deadline_ends_it() {
    let (redis, mut rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::start());
    let queue = names::unique("from");
    let target = names::unique("to");
    rabbitmq.declare_queue(&queue, QueueKind::Quorum).await;
    rabbitmq.declare_queue(&target, QueueKind::Quorum).await;
    let config = Config::new(&redis)
        .top("shutdown_timeout = \"4s\"")
        .rabbitmq("main", &rabbitmq)
        .route(
            "mail",
            &format!("{{ rabbitmq = \"main\", queue = \"{queue}\" }}"),
            &format!("{{ rabbitmq = \"main\", exchange = \"\", routing_key = \"{target}\" }}"),
            "",
        );
    let mut relay = Relay::start(&config).await;
    let run = Run::new();
    let label = format!("rabbitmq:{target}");
    let send = async |count, delay| {
        let message = |_| run.message(&label, When::Delay(delay)).key(&target);
        let messages = (0..count).map(message).collect();
        run.send_rabbitmq(&rabbitmq, "", Some(&queue), messages)
            .await;
    };
    let gauge = async |name: &str, expected: f64| {
        eventually(&format!("{name} is {expected}"), async || {
            let now = relay.metrics().await?.sum(name, &[]);
            if now < expected {
                Err(anyhow::anyhow!("{now}"))
            } else {
                Ok(())
            }
        })
        .await;
    };
    // Opens the channel. What no channel has taken yet goes back into the store, and would not keep a drain from ending.
    send(1, 100).await;
    gauge("postdate_published_total", 1.0).await;
    send(50, 3000).await;
    gauge("postdate_stored_total", 51.0).await;
    rabbitmq.stop();
    gauge("postdate_oldest_overdue_seconds", 1.0).await;

    relay.signal(Signal::HUP);
    eventually("it says that a SIGHUP does nothing", async || {
        let log = relay.log();
        if log.contains("SIGHUP: a changed configuration is read at the next start") {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
    relay.signal(Signal::TERM);
    eventually("it says that it drains", async || {
        let (status, body) = relay.get("/readyz").await?;
        let body: Value = serde_json::from_str(&body)?;
        if (status, &body["draining"]) == (503, &json!(true)) {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{body}"))
        }
    })
    .await;
    assert_eq!(
        relay.get("/livez").await.expect("an answer").0,
        200,
        "a drain is no reason to restart it"
    );
    // 4 s, and what the chart adds to it before Kubernetes kills.
    let ended = relay
        .wait(Duration::from_secs(4 + 10))
        .await
        .expect("it ended by itself");
    assert_eq!(ended.code(), Some(1), "{}", relay.log());
    assert!(relay.log().contains("time ran out"), "{}", relay.log());

    rabbitmq.cont();
    run.collect_rabbitmq(&rabbitmq, &target);
    relay.restart().await;
    run.drain(&relay).await;
    let explained = relay.total("postdate_redelivered_total", &[]).await as usize;
    run.report().assert_accounted(explained);
    let ended = relay.terminate().await;
    assert_eq!(ended.code(), Some(0), "{}", relay.log());
}

/// The default memory limit of the chart, against 275 MiB of messages due at nearly one moment: each is in the
/// consumer's buffers, in a bundle and in the producer's buffers on its way, and must not be in all at once.
#[tokio::test]
async fn what_waits_and_falls_due_at_once_stays_below_the_charts_memory_limit() {
    const LIMIT_KIB: u64 = 512 * 1024;
    let (redis, kafka) = tokio::join!(Redis::start(), Kafka::shared());
    let from = kafka.unique_topic("from", 3).await;
    let to = kafka.unique_topic("to", 3).await;
    let config = Config::new(&redis).kafka("main", kafka).route(
        "orders",
        &format!("{{ kafka = \"main\", topic = \"{from}\", group = \"{from}\" }}"),
        &format!("{{ kafka = \"main\", topic = \"{to}\" }}"),
        "",
    );
    let relay = Relay::start(&config).await;
    let run = Run::new();
    run.collect_kafka(kafka, &to, 3);
    let label = format!("kafka:{to}");
    for part in 0..2_u64 {
        let messages = (0..550).map(|n| {
            let when = When::Delay(10_000 - part * 3000);
            run.message(&label, when)
                .key(&n.to_string())
                .size(256 << 10)
        });
        run.send_kafka(kafka, &from, messages.collect()).await;
    }
    run.drain(&relay).await;
    let explained = relay.total("postdate_redelivered_total", &[]).await as usize;
    run.report().assert_accounted(explained);
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", relay.id())).expect("its status");
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("the peak");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("KiB");
    println!("peak {peak} KiB");
    assert!(peak < LIMIT_KIB, "{peak} KiB");
}
