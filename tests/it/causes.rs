//! Causes of late messages, as whoever is on call meets them: each is named by the page, by the terminal and by an alert, and
//! none takes two minutes to be told.

mod troubles;

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use serde_json::Value;

use crate::support::eventually::within;
use crate::support::prometheus::{self, Prometheus};
use crate::support::relay::binary;
use crate::support::run::now_ms;
use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, names};

/// Time within which a cause must be told.
const TOLD_WITHIN: Duration = Duration::from_secs(120);
/// How long ago the messages were due that make a route late at once.
const LATE_MS: i64 = 120_000;

/// A cause, and how it is told.
struct Cause {
    name: &'static str,
    /// Part of `/readyz`, or route, that the first page shows on top.
    shown: &'static str,
    /// Words of its reason on the page.
    page: &'static str,
    /// Words of `postdate status`.
    terminal: &'static str,
    /// Alert whose condition holds, and a label value of it.
    alert: (&'static str, &'static str),
}

/// A relay, and all that an engineer on call looks at.
struct OnCall<'a> {
    relay: &'a Relay,
    prometheus: &'a Prometheus,
    told: String,
}

impl OnCall<'_> {
    /// Waits until the cause is told in all three places.
    async fn learns(&mut self, cause: &Cause) {
        let since = Instant::now();
        let mut times = Vec::new();
        for (place, is_told) in [("page", 0), ("terminal", 1), ("alert", 2)] {
            let asked = within(
                TOLD_WITHIN.saturating_sub(since.elapsed()),
                async || match is_told {
                    0 => self.page_tells(cause).await,
                    1 => self.terminal_tells(cause).await,
                    _ => alert_tells(self.prometheus, cause.alert).await,
                },
            );
            if let Err(why) = asked.await {
                panic!("{}: the {place} does not tell it: {why}", cause.name);
            }
            times.push(format!("{place} {:.0} s", since.elapsed().as_secs_f64()));
        }
        writeln!(self.told, "{}: {}", cause.name, times.join(", ")).expect("a String");
    }

    async fn page_tells(&self, cause: &Cause) -> anyhow::Result<()> {
        let (status, text) = self.relay.get("/api/v1/overview").await?;
        ensure!(status == 200, "{status}: {text}");
        let overview: Value = serde_json::from_str(&text)?;
        let list = |name: &str| overview[name].as_array().cloned().unwrap_or_default();
        let parts = list("parts")
            .into_iter()
            .filter(|part| part["state"] != "up");
        let routes = list("routes").into_iter().filter(|route| {
            let waits = route["paused"]
                .as_array()
                .is_some_and(|reasons| !reasons.is_empty());
            waits || route["publishing_paused"] == true
        });
        let told: Vec<Value> = parts.chain(routes).collect();
        let is_it = |told: &&Value| {
            told["name"]
                .as_str()
                .is_some_and(|name| name.contains(cause.shown))
                && told.to_string().contains(cause.page)
        };
        told.iter()
            .find(is_it)
            .map(drop)
            .ok_or_else(|| anyhow!("{told:#?}"))
    }

    async fn terminal_tells(&self, cause: &Cause) -> anyhow::Result<()> {
        let mut command = Command::new(binary());
        command.arg("status").env("POSTDATE_URL", self.relay.url());
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        ensure!(text.contains(cause.terminal), "{text}");
        Ok(())
    }
}

/// The condition of an alert holds for a label with these words: it fires as soon as it has held for as long as its rule
/// wants.
async fn alert_tells(prometheus: &Prometheus, (name, label): (&str, &str)) -> anyhow::Result<()> {
    let alerts = prometheus.get("alerts", &[]).await?;
    let of_name = alerts["alerts"].as_array().into_iter().flatten();
    let of_name: Vec<_> = of_name
        .filter(|alert| alert["labels"]["alertname"] == name)
        .collect();
    let has_label = |alert: &&&Value| {
        let labels = alert["labels"].as_object().into_iter().flatten();
        labels
            .into_iter()
            .any(|(_, value)| value.as_str().is_some_and(|value| value.contains(label)))
    };
    of_name
        .iter()
        .find(has_label)
        .map(drop)
        .ok_or_else(|| anyhow!("{of_name:#?}"))
}

async fn channel(rabbitmq: &Rabbitmq) -> Channel {
    let channel = rabbitmq
        .connect()
        .await
        .expect("connected")
        .create_channel()
        .await
        .expect("a channel");
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .expect("confirms");
    channel
}

/// Publishes a message to a queue; with a header it has been due for two minutes.
async fn publish(channel: &Channel, queue: &str, is_late: bool) {
    let mut headers = FieldTable::default();
    if is_late {
        let due = (now_ms() - LATE_MS).to_string();
        headers.insert("x-deliver-at".into(), AMQPValue::LongString(due.into()));
    }
    let properties = BasicProperties::default().with_headers(headers);
    let options = BasicPublishOptions::default();
    let sent = channel
        .basic_publish("".into(), queue.into(), options, b"body", properties)
        .await;
    assert!(sent.expect("published").await.expect("confirmed").is_ack());
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::print_stdout, reason = "the table of what was told")]
async fn what_stands_in_the_way_of_one_route_is_told_by_page_terminal_and_alert() {
    if !prometheus::available("causes: what stands in the way of one route") {
        return;
    }
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let [paused, refused, blocked, sourceless, exchangeless, nowhere] = [
        "paused",
        "refused",
        "blocked",
        "sourceless",
        "exchangeless",
        "nowhere",
    ]
    .map(names::unique);
    for queue in [&paused, &refused, &blocked, &exchangeless] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let from = |queue: &str| format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#);
    let to = |exchange: &str| {
        format!(r#"{{ rabbitmq = "main", exchange = "{exchange}", routing_key = "{nowhere}" }}"#)
    };
    let config = Config::new(redis).rabbitmq("main", rabbitmq);
    let config = config
        .route("paused", &from(&paused), &to("amq.topic"), "")
        .route("refused", &from(&refused), &to("amq.direct"), "")
        .route(
            "blocked",
            &from(&blocked),
            &to("amq.fanout"),
            r#"on_refused = "wait""#,
        )
        .route("sourceless", &from(&sourceless), &to("amq.topic"), "")
        .route("exchangeless", &from(&exchangeless), &to(&nowhere), "");
    let relay = Relay::start(&config).await;
    let prometheus = Prometheus::start(&relay).await;
    let (status, answer) = relay
        .request(
            "POST",
            "/api/v1/routes/paused/pause",
            None,
            r#"{"only":"publishing"}"#,
        )
        .await
        .expect("an answer");
    assert_eq!(status, 200, "{answer}");
    let channel = channel(rabbitmq).await;
    for queue in [&paused, &refused, &exchangeless] {
        publish(&channel, queue, true).await;
    }
    publish(&channel, &blocked, false).await;

    let mut on_call = OnCall {
        relay: &relay,
        prometheus: &prometheus,
        told: String::new(),
    };
    for cause in [
        Cause {
            name: "publishing paused by a colleague",
            shown: "paused",
            page: "\"publishing_paused\":true",
            terminal: "publishing",
            alert: ("PostdateRoutePaused", "paused"),
        },
        Cause {
            name: "target refuses",
            shown: "target:",
            page: "unroutable",
            terminal: "unroutable",
            alert: ("PostdateMessagesOverdue", "refused"),
        },
        Cause {
            name: "a passing message waits for its target",
            shown: "source:blocked",
            page: "target",
            terminal: "target",
            alert: ("PostdatePartDown", "source:blocked"),
        },
        Cause {
            name: "source queue missing",
            shown: "source:sourceless",
            page: "queue",
            terminal: "source:sourceless",
            alert: ("PostdatePartDown", "source:sourceless"),
        },
        Cause {
            name: "exchange missing",
            shown: "target:",
            page: "exchange",
            terminal: "exchange",
            alert: ("PostdateMessagesOverdue", "exchangeless"),
        },
    ] {
        on_call.learns(&cause).await;
    }
    println!("{}", on_call.told);
}
