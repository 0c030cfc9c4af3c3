//! One cause is one trouble, however many routes hang on it, wherever it is told: `/readyz`, the first page's data, the
//! terminal, the page and an alert.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::{Value, json};

use super::alert_tells;
use crate::fixture::four_routes;
use crate::support::browser::{self, Browser, WIDE};
use crate::support::prometheus::{self, Prometheus};
use crate::support::redis::LEAST_USER;
use crate::support::relay::binary;
use crate::support::{
    Config, Kafka, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names,
};

/// How long a cause lasts once it is told: by then all that follows from it has come.
const LASTS: Duration = Duration::from_secs(8);
/// How long two places may tell different things: the time between two looks, and what a busy machine adds.
const MOMENT: Duration = Duration::from_secs(3);
/// Longest time until a cause is told.
const TOLD_WITHIN: Duration = Duration::from_secs(60);

async fn troubles(relay: &Relay) -> Vec<Value> {
    troubles_at(relay, "/readyz").await
}

/// The troubles of the first page.
async fn shown(relay: &Relay) -> Vec<Value> {
    troubles_at(relay, "/api/v1/overview").await
}

async fn troubles_at(relay: &Relay, path: &str) -> Vec<Value> {
    let (_, text) = relay.get(path).await.expect("an answer");
    let told: Value = serde_json::from_str(&text).expect("JSON");
    told["troubles"].as_array().expect("a list").clone()
}

/// What this command prints.
async fn terminal(relay: &Relay, arguments: &[&str]) -> String {
    let mut command = Command::new(binary());
    command.args(arguments).env("POSTDATE_URL", relay.url());
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output.expect("no panic").expect("it runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A relay, and a page of it.
struct Places<'a> {
    relay: &'a Relay,
    browser: Option<Browser>,
    prometheus: Option<Prometheus>,
}

impl<'a> Places<'a> {
    async fn open(relay: &'a Relay) -> Self {
        let mut browser = None;
        if browser::available("troubles: the page") {
            let opened = browser.insert(Browser::start(WIDE).await);
            opened.open(&format!("{}/#/", relay.url())).await;
        }
        let mut prometheus = None;
        if prometheus::available("troubles: the alerts") {
            prometheus = Some(Prometheus::start(relay).await);
        }
        Self {
            relay,
            browser,
            prometheus,
        }
    }

    /// The parts of the lines by which troubles began.
    fn begun(&self) -> Vec<String> {
        let log = self.relay.log();
        let lines = log
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        lines
            .filter(|line: &Value| line["message"] == "trouble begins")
            .map(|line| line["part"].as_str().expect("a part").to_owned())
            .collect()
    }

    /// Waits until a cause is told by the last of these parts, and lets it last. At each moment it is one trouble, in every
    /// place: of that part, or of one before it while no more is known; and the alert for the part holds. Returns what
    /// follows from it.
    async fn one(&self, cause: &str, parts: &[&str]) -> String {
        let begun_before = self.begun().len();
        let is_known = |part: &str| parts.iter().any(|known| part.starts_with(known));
        let last = parts.last().expect("a part");
        let began = Instant::now();
        let mut told: Option<(Instant, Value)> = None;
        let mut wrong_since: Option<Instant> = None;
        while told.as_ref().is_none_or(|(at, _)| at.elapsed() < LASTS) {
            assert!(
                began.elapsed() < TOLD_WITHIN,
                "{cause} is not told by {last}"
            );
            let mut is_right = true;
            let places = [troubles(self.relay).await, shown(self.relay).await];
            for troubles in &places {
                let part = troubles.first().map(|trouble| trouble["part"].to_string());
                let part = part.as_deref().unwrap_or_default().trim_matches('"');
                is_right &= match troubles.len() {
                    0 => told.is_none(),
                    1 => is_known(part),
                    _ => false,
                };
                if part.starts_with(last) {
                    let at = told.map_or_else(Instant::now, |(at, _)| at);
                    told = Some((at, troubles[0].clone()));
                }
            }
            // The overview may be a second old, and a look of the relay may fall between the two.
            if is_right {
                wrong_since = None;
            } else {
                let since = *wrong_since.get_or_insert_with(Instant::now);
                let told = places.map(|troubles| {
                    troubles
                        .iter()
                        .map(|trouble| format!("{}: {}", trouble["part"], trouble["why"]))
                        .collect::<Vec<_>>()
                });
                assert!(since.elapsed() < MOMENT, "{cause}: {told:?}");
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let (_, trouble) = told.expect("it is told");
        eventually(&format!("the terminal tells {cause} once"), async || {
            let status = terminal(self.relay, &["status"]).await;
            let told = status.lines().filter(|line| is_known(line)).count();
            ensure!(told == 1, "{status}");
            anyhow::Ok(())
        })
        .await;
        let begun = self.begun().split_off(begun_before);
        assert!(
            begun.iter().all(|part| is_known(part)),
            "{cause}: {begun:?}"
        );
        if let Some(browser) = &self.browser {
            eventually(&format!("the page tells {cause} once"), async || {
                let list = "return [...document.querySelectorAll('.troubles li')].map((li) => li.innerText)";
                let shown = browser.run(list, json!([])).await;
                ensure!(shown.as_array().is_some_and(|shown| shown.len() == 1), "{shown:#}");
                anyhow::Ok(())
            })
            .await;
        }
        if let Some(prometheus) = &self.prometheus {
            let alert = match *last {
                "redis" | "store:room" => "PostdateStoreDown",
                "route:five" => "PostdateRoutePaused",
                _ => "PostdatePartDown",
            };
            let label = last.trim_start_matches("route:");
            eventually(&format!("{alert} tells {cause}"), async || {
                alert_tells(prometheus, (alert, label)).await
            })
            .await;
        }
        trouble["follows"].to_string()
    }
}

/// Why this part is in trouble by itself; empty while it is not.
async fn why(relay: &Relay, part: &str) -> String {
    let troubles = troubles(relay).await;
    let trouble = troubles.iter().find(|trouble| trouble["part"] == part);
    trouble.map_or_else(String::new, |trouble| {
        trouble["why"].as_str().unwrap_or_default().to_owned()
    })
}

async fn no_trouble(relay: &Relay) {
    eventually("all is well", async || {
        for troubles in [troubles(relay).await, shown(relay).await] {
            ensure!(troubles.is_empty(), "{troubles:#?}");
        }
        anyhow::Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_cause_is_one_trouble_at_each_moment_and_in_each_place() {
    let (mut redis, mut kafka, mut rabbitmq) = tokio::join!(
        Redis::start_fillable(&[]),
        Kafka::start(),
        Rabbitmq::start()
    );
    let mut fixture = four_routes(&redis, &kafka, &rabbitmq).await;
    let [source, target, exchange] = ["source", "target", "exchange"].map(names::unique);
    for queue in [&source, &target] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    rabbitmq
        .declare_exchange(&exchange, lapin::ExchangeKind::Direct)
        .await;
    rabbitmq.bind(&target, &exchange, &target).await;
    fixture.run.collect_rabbitmq(&rabbitmq, &target);
    fixture.config = fixture.config.route(
        "five",
        &format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#),
        &format!(r#"{{ rabbitmq = "main", exchange = "{exchange}", routing_key = "{target}" }}"#),
        r#"on_refused = "wait""#,
    );
    let relay = Relay::start(&fixture.config).await;
    relay.reads_all_sources().await;
    no_trouble(&relay).await;
    let places = Places::open(&relay).await;
    let label = format!("rabbitmq:{target}");
    let send = async |rabbitmq: &Rabbitmq, when: When| {
        let message = fixture.run.message(&label, when).key(&target);
        let sent = fixture
            .run
            .send_rabbitmq(rabbitmq, "", Some(&source), vec![message]);
        sent.await;
    };
    let post = async |path: &str, body: &str| {
        let path = format!("/api/v1/routes/five/{path}");
        let (status, answer) = relay
            .request("POST", &path, None, body)
            .await
            .expect("asked");
        assert_eq!(status, 200, "{path}: {answer}");
    };

    // What concerns one route.
    post("pause", r#"{"only":"publishing"}"#).await;
    send(&rabbitmq, When::Delay(100)).await;
    places.one("a pause", &["route:five"]).await;
    post("resume", "{}").await;
    no_trouble(&relay).await;

    post("pause", r#"{"only":"publishing"}"#).await;
    send(&rabbitmq, When::Now).await;
    // What passes through waits in its source, for longer than a record may stand otherwise: that is told of the pause.
    let five = [("route", "five")];
    eventually("it waits", async || {
        let waits = relay.total("postdate_ingress_unresolved", &five).await;
        ensure!(waits >= 1.0, "{waits}");
        anyhow::Ok(())
    })
    .await;
    for _ in 0..25 {
        assert_eq!(why(&relay, "source:five").await, "");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    post("resume", "{}").await;
    no_trouble(&relay).await;

    rabbitmq.unbind(&target, &exchange, &target).await;
    send(&rabbitmq, When::Delay(100)).await;
    places.one("a target that refuses", &["target:main:"]).await;
    rabbitmq.bind(&target, &exchange, &target).await;
    no_trouble(&relay).await;

    rabbitmq.unbind(&target, &exchange, &target).await;
    send(&rabbitmq, When::Now).await;
    places
        .one(
            "a passing message that waits",
            &["source:five", "target:main:"],
        )
        .await;
    rabbitmq.bind(&target, &exchange, &target).await;
    no_trouble(&relay).await;

    rabbitmq.delete_queue(&source).await;
    places
        .one("a source that is missing", &["source:five"])
        .await;
    rabbitmq.declare_queue(&source, QueueKind::Classic).await;
    no_trouble(&relay).await;

    // Servers.
    fixture.send(&kafka, &rabbitmq).await;
    kafka.stop();
    places
        .one("Kafka hangs", &["target:main:", "kafka:main"])
        .await;
    kafka.cont();
    no_trouble(&relay).await;

    fixture.send(&kafka, &rabbitmq).await;
    kafka.kill9().await;
    let follows = places
        .one("Kafka is away", &["target:main:", "kafka:main"])
        .await;
    for part in ["source:k-k", "source:k-r", "target:main:"] {
        assert!(follows.contains(part), "{follows}");
    }
    kafka.restart().await;
    no_trouble(&relay).await;

    fixture.send(&kafka, &rabbitmq).await;
    rabbitmq.kill9().await;
    places.one("RabbitMQ is away", &["rabbitmq:main"]).await;
    rabbitmq.restart().await;
    no_trouble(&relay).await;

    fixture.send(&kafka, &rabbitmq).await;
    redis.stop();
    places.one("Redis hangs", &["redis"]).await;
    redis.cont();
    no_trouble(&relay).await;

    // What Redis refuses.
    for (setting, refuses) in [("min-replicas-to-write", "1"), ("maxmemory", "1")] {
        let set = async |value: &str| {
            let words = ["CONFIG", "SET", setting, value];
            redis.command::<()>(&words).await.expect("set");
        };
        set(refuses).await;
        fixture.send(&kafka, &rabbitmq).await;
        places.one(setting, &["store:room"]).await;
        set("0").await;
        no_trouble(&relay).await;
    }
    redis.fill_disk(true);
    fixture.send(&kafka, &rabbitmq).await;
    places.one("a full disk", &["store:room"]).await;
    redis.fill_disk(false);
    no_trouble(&relay).await;
    let mut stranger = redis.connection().await.expect("connected");
    let endless = tokio::spawn(async move {
        redis::cmd("EVAL")
            .arg("while true do end")
            .arg(0)
            .exec_async(&mut stranger)
            .await
    });
    fixture.send(&kafka, &rabbitmq).await;
    places.one("a script that does not end", &["redis"]).await;
    let end = redis.command::<()>(&["SCRIPT", "KILL"]).await;
    end.expect("killed");
    assert!(endless.await.expect("no panic").is_err(), "it was killed");
    no_trouble(&relay).await;
    for (rule, back) in [("-evalsha", "+evalsha"), ("-zadd", "+zadd")] {
        let set = async |rule: &str| {
            let words = ["ACL", "SETUSER", LEAST_USER, rule];
            redis.command::<()>(&words).await.expect("set");
        };
        set(rule).await;
        fixture.send(&kafka, &rabbitmq).await;
        places.one(rule, &["redis"]).await;
        set(back).await;
        no_trouble(&relay).await;
    }

    fixture.run.drain(&relay).await;
    let explained = relay.total("postdate_redelivered_total", &[]).await as usize;
    fixture.run.report().assert_accounted(explained);
}

/// While ingress is paused nobody asks for the queue, so nobody knows when it is there again.
#[tokio::test]
async fn a_pause_of_ingress_is_told_and_no_fault_of_the_broker_before_it() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let [source, target] = ["source", "target"].map(names::unique);
    for queue in [&source, &target] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let from = format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#);
    let to = format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#);
    let config = Config::new(redis)
        .rabbitmq("main", rabbitmq)
        .route("one", &from, &to, "");
    let relay = Relay::start(&config).await;
    relay.reads_all_sources().await;
    let told = async |words: &str| {
        eventually(&format!("the source says {words:?}"), async || {
            let why = why(&relay, "source:one").await;
            ensure!(why.contains(words), "{why:?}");
            anyhow::Ok(())
        })
        .await;
    };
    let post = async |path: &str, body: &str| {
        let path = format!("/api/v1/routes/one/{path}");
        let asked = relay.request("POST", &path, None, body).await;
        assert_eq!(asked.expect("asked").0, 200, "{path}");
    };

    rabbitmq.delete_queue(&source).await;
    told(source.as_str()).await;
    post("pause", r#"{"only":"ingress"}"#).await;
    told("ingress waits: paused by hand since").await;
    rabbitmq.declare_queue(&source, QueueKind::Classic).await;
    post("resume", "{}").await;
    no_trouble(&relay).await;
}

/// Asks for a message until it is told to be late for this reason, by the API and by `postdate show`.
async fn late_because(relay: &Relay, id: &str, reason: &str) {
    let path = format!("/api/v1/routes/one/messages/{id}");
    eventually(&format!("{id} says why it is late"), async || {
        let (status, text) = relay.get(&path).await?;
        ensure!(status == 200, "{status}: {text}");
        let message: Value = serde_json::from_str(&text)?;
        let why = message["why"].as_str().unwrap_or_default();
        let late_ms = message["late_by_ms"].as_i64().unwrap_or(0);
        ensure!(late_ms >= 1000 && why.contains(reason), "{message}");
        anyhow::Ok(())
    })
    .await;
    let shown = terminal(relay, &["show", id]).await;
    let line = shown.lines().find(|line| line.starts_with("late "));
    assert!(line.is_some_and(|line| line.contains(reason)), "{shown}");
}

#[tokio::test]
async fn a_late_message_says_how_late_it_is_and_why() {
    let redis = Redis::start().await;
    let rabbitmq = Rabbitmq::shared().await;
    let [source, target] = ["source", "target"].map(names::unique);
    for queue in [&source, &target] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let exchange = names::unique("exchange");
    rabbitmq
        .declare_exchange(&exchange, lapin::ExchangeKind::Direct)
        .await;
    let from = format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#);
    let to =
        format!(r#"{{ rabbitmq = "main", exchange = "{exchange}", routing_key = "{target}" }}"#);
    let config = Config::new(&redis)
        .rabbitmq("main", rabbitmq)
        .route("one", &from, &to, "");
    let relay = Relay::start(&config).await;
    relay.reads_all_sources().await;
    let post = async |path: &str, body: &str| {
        let (status, answer) = relay
            .request("POST", path, None, body)
            .await
            .expect("asked");
        assert!((200..300).contains(&status), "{path}: {status} {answer}");
    };

    post("/api/v1/routes/one/pause", r#"{"only":"publishing"}"#).await;
    let message = r#"{"id": "m", "delay": "100ms", "body": "b"}"#;
    post("/api/v1/routes/one/messages", message).await;
    late_because(&relay, "m", "publishing of the route is paused by hand").await;
    post("/api/v1/routes/one/resume", "{}").await;
    late_because(&relay, "m", "unroutable").await;
    rabbitmq.bind(&target, &exchange, &target).await;
    eventually("it is gone", async || {
        let (status, text) = relay.get("/api/v1/routes/one/messages/m").await?;
        let message: Value = serde_json::from_str(&text)?;
        ensure!(message["state"] == "delivered", "{status}: {text}");
        assert_eq!(message["why"], Value::Null, "{text}");
        anyhow::Ok(())
    })
    .await;
}

/// Whoever waits for the answer: the timer, what is due on arrival, or a message that passes through.
#[tokio::test]
async fn a_target_that_hangs_is_the_trouble_and_no_source_that_waits_for_it() {
    let (redis, mut kafka, rabbitmq) =
        tokio::join!(Redis::shared(), Kafka::start(), Rabbitmq::shared());
    let mut config = Config::new(redis)
        .kafka("main", &kafka)
        .rabbitmq("main", rabbitmq);
    let run = Run::new();
    let mut targets = Vec::new();
    let mut sends = Vec::new();
    for (route, when) in [
        ("delayed", When::Delay(1000)),
        ("arrived", When::Delay(0)),
        ("passing", When::Now),
    ] {
        let [source, topic] = [route, "topic"].map(names::unique);
        rabbitmq.declare_queue(&source, QueueKind::Classic).await;
        kafka.create_topic(&topic, 1).await;
        run.collect_kafka(&kafka, &topic, 1);
        config = config.route(
            route,
            &format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#),
            &format!(r#"{{ kafka = "main", topic = "{topic}" }}"#),
            "",
        );
        targets.push(format!("target:main:{topic}"));
        sends.push((source, format!("kafka:{topic}"), when));
    }
    let relay = Relay::start(&config).await;
    relay.reads_all_sources().await;
    // The lanes know their topics from then on.
    for round in 0..2 {
        if round == 1 {
            run.drain(&relay).await;
            kafka.stop();
        }
        for (source, label, when) in &sends {
            let message = run.message(label, *when).key(source);
            run.send_rabbitmq(rabbitmq, "", None, vec![message]).await;
        }
    }
    let first = eventually("it is told", async || {
        let troubles = troubles(&relay).await;
        ensure!(!troubles.is_empty());
        anyhow::Ok(troubles)
    })
    .await;
    let is_known = |trouble: &Value| {
        let part = trouble["part"].as_str().unwrap_or_default();
        part.starts_with("target:main:") || part == "kafka:main"
    };
    assert!(first.iter().all(is_known), "{first:#?}");
    eventually("each is named", async || {
        let troubles = troubles(&relay).await;
        assert!(troubles.iter().all(is_known), "{troubles:#?}");
        let told = serde_json::to_string(&troubles)?;
        ensure!(targets.iter().all(|target| told.contains(target)), "{told}");
        anyhow::Ok(())
    })
    .await;
    kafka.cont();
    no_trouble(&relay).await;
    run.drain(&relay).await;
}

#[tokio::test]
async fn a_target_that_does_not_exist_is_told_before_its_first_message_is_due() {
    let (redis, kafka, rabbitmq) =
        tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let [to_kafka, to_exchange, topic, exchange, queue] =
        ["source-k", "source-x", "topic", "exchange", "queue"].map(names::unique);
    for source in [&to_kafka, &to_exchange] {
        rabbitmq.declare_queue(source, QueueKind::Classic).await;
    }
    let from = |queue: &str| format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#);
    let to_topic = format!(r#"{{ kafka = "main", topic = "{topic}" }}"#);
    let to = format!(r#"{{ rabbitmq = "main", exchange = "{exchange}", routing_key = "k" }}"#);
    let config = Config::new(redis)
        .kafka("main", kafka)
        .rabbitmq("main", rabbitmq)
        .route("k", &from(&to_kafka), &to_topic, "")
        .route(
            "x",
            &from(&to_exchange),
            &to,
            &format!("allow_targets = [\"/{queue}\"]"),
        );
    let relay = Relay::start(&config).await;
    let expected = [
        (
            format!("target:main:{topic}"),
            format!("topic {topic} is missing"),
        ),
        (
            format!("target:main:{exchange}/k"),
            format!("exchange {exchange} is missing"),
        ),
        (
            format!("target:main:/{queue}"),
            format!("queue {queue} is missing"),
        ),
    ];
    eventually("each is told", async || {
        let troubles = troubles(&relay).await;
        for (part, why) in &expected {
            let is_told = |told: &Value| told["part"] == **part && told["why"] == **why;
            ensure!(troubles.iter().any(is_told), "{part}: {troubles:#?}");
        }
        anyhow::Ok(())
    })
    .await;
    kafka.create_topic(&topic, 1).await;
    rabbitmq.declare_queue(&queue, QueueKind::Classic).await;
    rabbitmq
        .declare_exchange(&exchange, lapin::ExchangeKind::Direct)
        .await;
    rabbitmq.bind(&queue, &exchange, "k").await;
    let elsewhere = format!("x-delay-target=/{queue}");
    for arguments in [
        &["--route", "k"][..],
        &["--route", "x"],
        &["--route", "x", "--header", &elsewhere],
    ] {
        let send = ["send", "--delay", "100ms", "--body", "b", "--wait"];
        let told = terminal(&relay, &[&send[..], arguments].concat()).await;
        assert!(told.contains("late"), "{arguments:?}: {told}");
    }
    no_trouble(&relay).await;
}
