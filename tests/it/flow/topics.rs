//! A route that finds its topics by a pattern: each has a target of its own, and one whose target is missing or forbidden
//! costs the others nothing.

use std::process::{Command, Output};

use serde_json::{Value, json};

use super::fixture::{FlowFixture, Path, Side, await_metric, config};
use super::wire::Wire;
use crate::support::relay::{Config, Relay, binary};
use crate::support::run::now_ms;
use crate::support::{eventually, folders, names};

const ROUTE: &str = "by-topic";

/// The topics of a route that begin with a mark of their own.
struct Topics {
    mark: String,
}

impl Topics {
    fn source(&self, kind: &str) -> String {
        format!("{}.{kind}.delayed", self.mark)
    }

    fn target(&self, kind: &str) -> String {
        format!("{}.{kind}", self.mark)
    }

    /// One of the sources as the ingress of a path.
    fn path(&self, kind: &str) -> Path {
        Path {
            ingress: self.source(kind),
            ..Path::new(ROUTE, Side::Kafka, Side::Kafka)
        }
    }

    fn config(&self, fixture: &FlowFixture) -> Config {
        let Self { mark } = self;
        let from = |topics: &str| format!("{{ kafka = \"a\", {topics}, group = \"{mark}\" }}");
        let to = |topic: &str| format!("{{ kafka = \"b\", topic = \"{topic}\" }}");
        let pattern = format!("topic_pattern = '{mark}\\.(.*)\\.delayed'");
        let looping = format!("topics = [\"{mark}.loop\"]");
        config(fixture)
            .route(
                ROUTE,
                &from(&pattern),
                &to(&format!("{mark}.{{1}}")),
                "dedupe = \"1h\"",
            )
            .route("looping", &from(&looping), &to(&self.target("eu")), "")
    }
}

fn message(kind: &str, what: &str, headers: &[(&str, &str)]) -> (Wire, i64) {
    let plain = Side::Kafka.plain(&format!("{kind} | {what}"), "k", b"v");
    let wire = headers
        .iter()
        .fold(plain, |wire, (name, value)| wire.header(name, value));
    (wire, now_ms())
}

/// Prints what a command says of this configuration.
async fn postdate(config: &Config, arguments: &[&str]) -> Output {
    let file = folders::new("topics").join("postdate.toml");
    std::fs::write(&file, config.text("127.0.0.1:0")).expect("a configuration file");
    let mut command = Command::new(binary());
    command
        .args(arguments)
        .arg("--config")
        .arg(file)
        .env_clear();
    let run = tokio::task::spawn_blocking(move || command.output());
    run.await.expect("no panic").expect("the binary runs")
}

#[tokio::test]
async fn each_topic_of_a_pattern_has_its_own_target_and_a_bad_one_costs_the_others_nothing() {
    let fixture = FlowFixture::new().await;
    let topics = Topics {
        mark: names::unique("d"),
    };
    for kind in ["eu", "us", "gone", "loop"] {
        fixture.make(Side::Kafka, &topics.source(kind)).await;
    }
    for kind in ["eu", "us", "loop"] {
        fixture.make(Side::Kafka, &topics.target(kind)).await;
        fixture.collect(Side::Kafka, &topics.target(kind)).await;
    }
    let config = topics.config(&fixture);
    let checked = postdate(&config, &["check", "--connect"]).await;
    let said =
        [&checked.stdout, &checked.stderr].map(|said| String::from_utf8_lossy(said).into_owned());
    let said = said.concat();
    assert_eq!(checked.status.code(), Some(1), "{said}");
    let mark = &topics.mark;
    for line in [
        format!(
            "kafka a: 4 topic(s) match \"{mark}\\\\.(.*)\\\\.delayed\": {mark}.eu.delayed, {mark}.gone.delayed, {mark}.loop.delayed, {mark}.us.delayed (source of route {ROUTE})"
        ),
        format!(
            "kafka a: its target, derived from topic {mark}.loop.delayed, is {mark}.loop, which Postdate reads itself: a loop (target of route {ROUTE})"
        ),
        format!(
            "kafka b: topic {mark}.gone is missing (target of route {ROUTE}); create it, Postdate does not"
        ),
        format!("kafka b: topic {mark}.us is there, 1 partition(s) (target of route {ROUTE})"),
    ] {
        assert!(
            said.lines().any(|said| said.ends_with(&line)),
            "{line}\n{said}"
        );
    }
    let graph = postdate(&config, &["graph"]).await;
    let graph = String::from_utf8_lossy(&graph.stdout).into_owned();
    let tree = format!(
        "kafka a: topics matching {mark}\\.(.*)\\.delayed\n└─ {ROUTE} (group {mark})\n   └─> kafka b: topic {mark}.{{1}}\n"
    );
    assert!(graph.contains(&tree), "{graph}");

    let mut relay = Relay::start(&config).await;
    relay.unobserved("one of the route's targets is missing");
    for kind in ["eu", "us", "gone", "loop"] {
        let due = (now_ms() + 4000).to_string();
        let sent = [
            message(
                kind,
                "delayed",
                &[("x-deliver-at", &due), ("x-delay-id", &format!("n-{kind}"))],
            ),
            message(
                kind,
                "cancelled",
                &[("x-delay", "1h"), ("x-delay-id", &format!("c-{kind}"))],
            ),
            message(
                kind,
                "the cancel",
                &[
                    ("x-delay-op", "cancel"),
                    ("x-delay-id", &format!("c-{kind}")),
                ],
            ),
            message(kind, "passing", &[]),
        ];
        fixture.send(&topics.path(kind), &sent).await;
    }
    // What waits is found with its topic, and survives a crash with its target.
    let waiting = format!("/api/v1/routes/{ROUTE}/messages/n-us");
    let waits = eventually("it is stored", async || {
        let (status, body) = relay.get(&waiting).await?;
        anyhow::ensure!(status == 200, "{status} {body}");
        Ok(serde_json::from_str::<Value>(&body)?)
    })
    .await;
    assert_eq!(waits["target"], topics.target("us"), "{waits}");
    assert_eq!(
        waits["position"],
        json!({ "topic": topics.source("us"), "partition": 0, "offset": 0 }),
        "{waits}"
    );
    await_metric(&relay, "dead", &[("route", ROUTE)], 3).await;
    relay.kill9().await;
    relay.restart().await;
    let expected: Vec<String> = ["eu", "us"]
        .iter()
        .flat_map(|kind| [format!("{kind} | delayed"), format!("{kind} | passing")])
        .collect();
    fixture.await_cases(&expected).await;

    // A loop is told message by message.
    let page = relay.read(&format!("/api/v1/dead?route={ROUTE}")).await;
    let dead = page["items"].as_array().expect("items");
    assert_eq!(dead.len(), 3, "{dead:?}");
    for letter in dead {
        assert_eq!(letter["reason"], "forbidden_target", "{letter}");
        assert_eq!(
            letter["position"]["topic"],
            topics.source("loop"),
            "{letter}"
        );
        let why = letter["history"][0]["error"].as_str().unwrap_or_default();
        let says = format!("is {mark}.loop, which Postdate reads itself: a loop");
        assert!(why.ends_with(&says), "{why}");
    }

    // A missing target is told once for the route's target, and is waited for.
    let part = format!("target:b:{mark}.{{1}}");
    eventually("the missing target is told", async || {
        let (_, body) = relay.get("/readyz").await?;
        let ready: Value = serde_json::from_str(&body)?;
        let parts = ready["parts"].as_array().into_iter().flatten();
        let told = parts.filter(|told| told["name"] == part).any(|told| {
            let why = told["why"].as_str().unwrap_or_default();
            why.starts_with(&format!("{mark}.gone: "))
        });
        anyhow::ensure!(told, "{body}");
        Ok(())
    })
    .await;
    let (_, metrics) = relay.get("/metrics").await.expect("metrics");
    assert!(
        !metrics.contains(&topics.source("us")),
        "no metric names a topic that was found"
    );
    assert!(
        !metrics.contains(&format!("{}\"", topics.target("us"))),
        "nor a target"
    );
    fixture.make(Side::Kafka, &topics.target("gone")).await;
    fixture.collect(Side::Kafka, &topics.target("gone")).await;
    fixture
        .await_cases(&["gone | delayed".into(), "gone | passing".into()])
        .await;

    // A message by the API goes to one topic, which has to be named.
    let path = format!("/api/v1/routes/{ROUTE}/messages");
    let send = async |body: Value| {
        relay
            .request("POST", &path, None, &body.to_string())
            .await
            .expect("an answer")
    };
    let (status, told) = send(json!({ "body": "x" })).await;
    assert_eq!(status, 400, "{told}");
    assert!(told.contains("reads several topics"), "{told}");
    let (status, told) = send(json!({ "body": "x", "topic": topics.target("us") })).await;
    assert_eq!(status, 400, "{told}");
    let sent = json!({ "topic": topics.source("us"), "wait": true, "delay": "100ms", "headers": { "case": "us | by the API" } });
    let (status, told) = send(sent).await;
    assert_eq!(status, 200, "{told}");

    for (case, arrivals) in fixture.arrived() {
        let (kind, what) = case.split_once(" | ").unwrap_or((&case, ""));
        assert_ne!(what, "cancelled", "{arrivals:?}");
        for arrival in arrivals {
            if !kind.is_empty() {
                assert_eq!(arrival.at, topics.target(kind), "{case}");
            }
        }
    }
    fixture.await_committed(&[]).await;
}
