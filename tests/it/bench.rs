//! `postdate bench` on real servers: what it measures, what it leaves alone, what it cleans up, what it refuses.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use lapin::ExchangeKind;
use rdkafka::consumer::{BaseConsumer, Consumer};
use serde_json::Value;

use crate::support::process::{Process, Signal};
use crate::support::{
    Config, Kafka, QueueKind, Rabbitmq, Redis, Relay, eventually, folders, names, ports, relay,
};

/// How long an ended bench may take to clean up.
const END: Duration = Duration::from_secs(60);

/// Exit code and output of a bench.
#[derive(Debug)]
struct BenchOutput {
    code: i32,
    out: String,
    err: String,
}

impl BenchOutput {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        let code = output.status.code().expect("no signal");
        Self {
            code,
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// `postdate bench --config FILE --route r ARGS`
async fn bench(file: &Path, args: &[&str]) -> BenchOutput {
    let mut command = Command::new(relay::binary());
    command
        .args(["bench", "--config"])
        .arg(file)
        .args(["--route", "r"])
        .args(args)
        .env_clear();
    let output = tokio::task::spawn_blocking(move || command.output().expect("the binary runs"));
    BenchOutput::of(&output.await.expect("no panic"))
}

/// The same, to be ended or disturbed.
fn start(file: &Path, args: &[&str], environment: &[(&str, &Path)]) -> Process {
    let program = relay::binary();
    Process::start(
        "bench",
        &folders::new("bench"),
        &program.to_string_lossy(),
        |command| {
            command
                .args(["bench", "--config"])
                .arg(file)
                .args(["--route", "r"])
                .args(args);
            command.envs(environment.iter().copied());
        },
    )
}

/// A configuration file for nobody but a bench.
fn file(config: &Config) -> PathBuf {
    let file = folders::new("bench").join("postdate.toml");
    std::fs::write(&file, config.text("127.0.0.1:8025")).expect("a configuration file");
    file
}

/// How many messages wait in the store, the first thousand.
async fn pending(relay: &Relay) -> usize {
    let list = relay.read("/api/v1/messages?route=r&limit=1000").await;
    list["items"]
        .as_array()
        .unwrap_or_else(|| panic!("{list}"))
        .len()
}

/// A route `r` between two topics of four partitions.
async fn topics(kafka: &Kafka, redis: &Redis, more: &str) -> (Config, String, String) {
    let from = kafka.unique_topic("bench-in", 4).await;
    let to = kafka.unique_topic("bench-out", 4).await;
    let config = Config::new(redis).kafka("main", kafka).route(
        "r",
        &format!("{{ kafka = \"main\", topic = \"{from}\", group = \"{from}\" }}"),
        &format!("{{ kafka = \"main\", topic = \"{to}\" }}"),
        more,
    );
    (config, from, to)
}

/// A route `r` from a queue to an exchange with a queue of somebody else behind it.
async fn exchange(
    rabbitmq: &Rabbitmq,
    redis: &Redis,
    kind: ExchangeKind,
) -> (Config, String, String) {
    let from = names::unique("in");
    let to = names::unique("out");
    let theirs = names::unique("theirs");
    rabbitmq.declare_queue(&from, QueueKind::Classic).await;
    rabbitmq.declare_queue(&theirs, QueueKind::Classic).await;
    rabbitmq.declare_exchange(&to, kind).await;
    rabbitmq.bind(&theirs, &to, "mail.sent").await;
    let config = Config::new(redis).rabbitmq("main", rabbitmq).route(
        "r",
        &format!("{{ rabbitmq = \"main\", queue = \"{from}\" }}"),
        &format!("{{ rabbitmq = \"main\", exchange = \"{to}\", routing_key = \"mail.sent\" }}"),
        "",
    );
    (config, to, theirs)
}

/// Checks that every message came back, once, on time; answers how many were sent.
fn sent_all(output: &BenchOutput) -> u64 {
    let found = output.json();
    assert_eq!((output.code, output.err.as_str()), (0, ""), "{output:?}");
    let sent = found["sent"].as_u64().expect("a number");
    assert!(sent > 0, "{found}");
    for (key, expected) in [
        ("received", sent),
        ("refused", 0),
        ("again", 0),
        ("early", 0),
        ("cancelled", 0),
        ("missing", 0),
    ] {
        assert_eq!(found[key], expected, "{key}: {found}");
    }
    let rows = found["histogram"].as_array().expect("rows");
    assert_eq!(
        rows.iter()
            .filter_map(|row| row["messages"].as_u64())
            .sum::<u64>(),
        sent,
        "{found}"
    );
    sent
}

const SHORT: [&str; 9] = [
    "--rate",
    "200",
    "--duration",
    "1s",
    "--delay",
    "100ms..500ms",
    "--size",
    "100",
    "--yes",
];

#[tokio::test]
async fn a_kafka_route_is_measured_beside_others_and_nothing_stays_behind() {
    let (kafka, redis) = tokio::join!(Kafka::shared(), Redis::start());
    let (config, _, to) = topics(kafka, &redis, "").await;
    let mut relay = Relay::start(&config).await;
    let output = bench(&relay.config_file(), &[&SHORT[..], &["--json"]].concat()).await;
    sent_all(&output);
    assert_eq!(pending(&relay).await, 0);
    let groups: BaseConsumer = kafka.client().create().expect("a client");
    let groups = groups
        .fetch_group_list(None, Duration::from_secs(10))
        .expect("the groups");
    assert!(
        groups
            .groups()
            .iter()
            .all(|group| group.name() != "postdate-bench"),
        "it joins no group"
    );

    let told = bench(&relay.config_file(), &SHORT).await;
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
    for part in [
        &format!("-> topic main:{to}\n"),
        "asked: 200 a second for 1 s, due 100 ms to 500 ms later",
        "\np99.9 ",
    ] {
        assert!(told.out.contains(part), "{part}: {told:?}");
    }
    assert!(relay.terminate().await.success());
}

#[tokio::test]
async fn a_rabbitmq_route_is_measured_from_a_queue_of_its_own() {
    let (rabbitmq, redis) = tokio::join!(Rabbitmq::shared(), Redis::start());
    for kind in [ExchangeKind::Topic, ExchangeKind::Headers] {
        let (config, exchange, theirs) = exchange(rabbitmq, &redis, kind.clone()).await;
        let mut relay = Relay::start(&config).await;
        let output = bench(&relay.config_file(), &[&SHORT[..], &["--json"]].concat()).await;
        let sent = sent_all(&output);
        assert_eq!(pending(&relay).await, 0);
        // Theirs got what was tried first, too.
        let got = u64::from(rabbitmq.queue_len(&theirs).await);
        assert!(got > sent, "{got} of {sent}");
        eventually("its queue is gone", async || {
            let all = rabbitmq
                .ctl(&["list_bindings", "source_name", "destination_name"])
                .await;
            let bound = all
                .lines()
                .filter(|line| line.starts_with(&exchange))
                .count();
            if bound == 1 { Ok(()) } else { Err(all) }
        })
        .await;
        assert!(relay.terminate().await.success());
    }
}

#[tokio::test]
async fn ended_by_a_signal_it_takes_back_what_waits_and_leaves_others_alone() {
    let (kafka, redis) = tokio::join!(Kafka::shared(), Redis::start());
    let (config, ..) = topics(kafka, &redis, "").await;
    let relay = Relay::start(&config).await;
    let body = serde_json::json!({ "delay": "1h", "body": "theirs", "id": "theirs" }).to_string();
    let sent = relay
        .request("POST", "/api/v1/routes/r/messages", None, &body)
        .await
        .expect("sent");
    assert_eq!(sent.0, 202, "{sent:?}");
    let args = [
        "--rate",
        "200",
        "--duration",
        "10m",
        "--delay",
        "30m..1h",
        "--yes",
        "--json",
    ];
    let mut running = start(&relay.config_file(), &args, &[]);
    eventually("some of it waits", async || {
        let waits = pending(&relay).await;
        if waits > 100 {
            Ok(())
        } else {
            Err(format!("{waits}: {}", running.log()))
        }
    })
    .await;
    running.signal(Signal::INT);
    let ended = running.wait(END).await.expect("it ends");
    let log = running.log();
    assert_eq!(ended.code(), Some(1), "{log}");
    assert!(log.contains("error: ended by a signal after "), "{log}");
    let json = log
        .lines()
        .find(|line| line.starts_with('{'))
        .expect("JSON");
    let found: Value = serde_json::from_str(json).expect("JSON");
    assert_eq!(
        (&found["stopped"], &found["missing"]),
        (&Value::Bool(true), &Value::from(0)),
        "{found}"
    );
    assert_eq!(found["cancelled"], found["sent"], "{found}");
    assert_eq!(pending(&relay).await, 1, "theirs still waits");
}

#[tokio::test]
async fn a_clock_that_steps_gives_a_sentence_and_no_numbers() {
    let (kafka, redis) = tokio::join!(Kafka::shared(), Redis::start());
    let (config, ..) = topics(kafka, &redis, "").await;
    let relay = Relay::start(&config).await;
    let clock = folders::new("clock").join("offset");
    std::fs::write(&clock, "0").expect("written");
    let args = [
        "--rate",
        "100",
        "--duration",
        "10m",
        "--delay",
        "30m",
        "--yes",
    ];
    let mut running = start(
        &relay.config_file(),
        &args,
        &[("POSTDATE_WALL_CLOCK", &clock)],
    );
    eventually("it has begun", async || {
        let log = running.log();
        if log.contains("run ") && pending(&relay).await > 10 {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
    std::fs::write(&clock, "60000").expect("written");
    let ended = running.wait(END).await.expect("it ends");
    let log = running.log();
    assert_eq!(ended.code(), Some(1), "{log}");
    assert!(
        log.contains("error: this machine's clock was stepped by "),
        "{log}"
    );
    assert!(!log.contains("LATENESS"), "no numbers: {log}");
    assert_eq!(pending(&relay).await, 0);
}

#[tokio::test]
async fn what_cannot_be_measured_is_said_before_anything_is_sent() {
    let (kafka, rabbitmq, redis) =
        tokio::join!(Kafka::shared(), Rabbitmq::shared(), Redis::start());
    let (config, from, to) = topics(
        kafka,
        &redis,
        "rate = 50\nmax_delay = \"1m\"\nmax_size = \"1KiB\"",
    )
    .await;
    let alone = file(&config);
    let usage: &[(&[&str], &str)] = &[
        (&["--rate", "50"], "add --yes"),
        (&["--yes"], "route r lets 50 messages a second out"),
        (
            &["--rate", "50", "--delay", "2m", "--yes"],
            "route r takes no delay above 60000 ms",
        ),
        (
            &["--rate", "50", "--size", "2000", "--yes"],
            "route r takes no body above 1024 bytes",
        ),
        (
            &["--delay", "3s..1s", "--yes"],
            "the first delay is longer than the second",
        ),
        (&["--duration", "1ms", "--yes"], "between 100ms and 1d"),
    ];
    for (args, part) in usage {
        let output = bench(&alone, args).await;
        assert_eq!(
            (output.code, output.out.as_str()),
            (64, ""),
            "{args:?}: {output:?}"
        );
        assert!(output.err.contains(part), "{args:?}: {output:?}");
    }
    let queue = Config::new(&redis).rabbitmq("main", rabbitmq).route(
        "r",
        "{ rabbitmq = \"main\", queue = \"in\" }",
        "{ rabbitmq = \"main\", exchange = \"\", routing_key = \"out\" }",
        "",
    );
    let output = bench(&file(&queue), &["--yes"]).await;
    assert_eq!(output.code, 64, "{output:?}");
    assert!(
        output
            .err
            .contains("to the default exchange, so to one queue"),
        "{output:?}"
    );

    let nobody = format!("127.0.0.1:{}", ports::free());
    let (brokers, store) = (
        format!("kafka.main.brokers={nobody}"),
        format!("redis.url=redis://{nobody}"),
    );
    let missing = names::unique("gone");
    let gone = format!("routes.r.to.topic={missing}");
    let away: &[(&[&str], &str)] = &[
        (&["--set", &brokers], "kafka main: cannot be used"),
        (&["--set", &store], "the store cannot be used: "),
        (&["--set", &gone], &format!("topic {missing} is missing")),
        (&[], "no relay serves route r"),
    ];
    for (args, part) in away {
        let output = bench(&alone, &[&["--rate", "50", "--yes"], *args].concat()).await;
        assert_eq!(
            (output.code, output.out.as_str()),
            (1, ""),
            "{args:?}: {output:?}"
        );
        assert!(output.err.contains(part), "{args:?}: {output:?}");
    }

    let relay = Relay::start(&config).await;
    let output = bench(
        &relay.config_file(),
        &["--rate", "50", "--yes", "--partitions", "5"],
    )
    .await;
    assert_eq!((output.code, output.out.as_str()), (1, ""), "{output:?}");
    assert!(
        output.err.contains(&format!(
            "topic {from} has 4 partition(s), and 5 are wanted"
        )),
        "{output:?}"
    );
    let paused = relay
        .request("POST", "/api/v1/routes/r/pause", None, "{}")
        .await
        .expect("an answer");
    assert_eq!(paused.0, 200, "{paused:?}");
    let output = bench(&relay.config_file(), &["--rate", "50", "--yes"]).await;
    assert_eq!((output.code, output.out.as_str()), (1, ""), "{output:?}");
    assert!(output.err.contains("route r is paused"), "{output:?}");
    let consumer: BaseConsumer = kafka.client().create().expect("a client");
    for (topic, partition) in [&from, &to]
        .into_iter()
        .flat_map(|topic| (0..4).map(move |p| (topic, p)))
    {
        let ends = consumer
            .fetch_watermarks(topic, partition, Duration::from_secs(10))
            .expect("its ends");
        assert_eq!(ends, (0, 0), "nothing was sent: {topic} {partition}");
    }
}
