//! Which queues can be a source: each kind x each way to know it. A queue that cannot is refused aloud, and nothing of
//! it is read, lost or acknowledged.

use std::process::Command;

use anyhow::{Context, ensure};
use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection};

use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, eventually, names, ports, relay};

/// Messages before the start of the relay, and again while it runs.
const COUNT: u32 = 5;

/// The way in which Postdate knows the traits of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    /// The management API.
    Management,
    /// A refused declaration.
    Declaration,
    /// Its user may not declare queues: a refused consumer, and the first delivery.
    Delivery,
}

struct Kind {
    name: &'static str,
    durable: bool,
    auto_delete: bool,
    exclusive: bool,
    arguments: Vec<(&'static str, AMQPValue)>,
    /// A word of the reason, if it is refused.
    refused: Option<&'static str>,
    /// A word of the warning of `check`, if there is one.
    warned: Option<&'static str>,
}

impl Kind {
    fn new(name: &'static str, arguments: Vec<(&'static str, AMQPValue)>) -> Self {
        Self {
            name,
            durable: true,
            auto_delete: false,
            exclusive: false,
            arguments,
            refused: None,
            warned: None,
        }
    }

    fn all() -> Vec<Self> {
        let text = |text: &str| AMQPValue::LongString(text.into());
        let kind = |name: &str| ("x-queue-type", text(name));
        let number = AMQPValue::LongInt;
        let refused = |word, kind: Self| Self {
            refused: Some(word),
            ..kind
        };
        let warned = |word, kind: Self| Self {
            warned: Some(word),
            ..kind
        };
        let auto_delete = |name, durable| Self {
            durable,
            auto_delete: true,
            ..Self::new(name, vec![])
        };
        vec![
            Self::new("classic", vec![kind("classic")]),
            Self::new("plain", vec![]),
            Self::new("quorum", vec![kind("quorum")]),
            Self::new(
                "limited",
                vec![kind("quorum"), ("x-delivery-limit", number(3))],
            ),
            Self::new("priority", vec![("x-max-priority", number(5))]),
            Self::new("lazy", vec![("x-queue-mode", text("lazy"))]),
            Self::new(
                "single",
                vec![("x-single-active-consumer", AMQPValue::Boolean(true))],
            ),
            Self::new(
                "rejecting",
                vec![
                    ("x-max-length", number(1000)),
                    ("x-overflow", text("reject-publish")),
                ],
            ),
            warned(
                "x-expires",
                Self::new("expiring", vec![("x-expires", number(600_000))]),
            ),
            warned(
                "x-message-ttl",
                Self::new("ttl", vec![("x-message-ttl", number(600_000))]),
            ),
            warned(
                "x-max-length",
                Self::new("bounded", vec![("x-max-length", number(1000))]),
            ),
            Self {
                durable: false,
                ..warned("not durable", Self::new("transient", vec![]))
            },
            refused("stream", Self::new("stream", vec![kind("stream")])),
            refused(
                "stream",
                Self::new(
                    "bounded_stream",
                    vec![kind("stream"), ("x-max-length-bytes", number(100_000_000))],
                ),
            ),
            refused("auto-delete", auto_delete("auto_delete", true)),
            refused("auto-delete", auto_delete("transient_auto_delete", false)),
            Self {
                exclusive: true,
                ..refused("exclusive", Self::new("exclusive", vec![]))
            },
        ]
    }

    /// What can be known in this way. A stream with bounds is known by its first delivery at the latest.
    fn is_refused(&self, by: Knowledge) -> bool {
        self.refused.is_some() && (by != Knowledge::Delivery || !self.auto_delete)
    }

    fn is_known_to_check(&self, by: Knowledge) -> bool {
        match by {
            Knowledge::Management => true,
            Knowledge::Declaration => self.name != "bounded_stream",
            Knowledge::Delivery => self.exclusive,
        }
    }

    /// RabbitMQ names one difference only: the type of the queue, or what comes before it.
    fn is_warned_of(&self, by: Knowledge) -> bool {
        match by {
            Knowledge::Management => true,
            Knowledge::Declaration => ["expiring", "transient"].contains(&self.name),
            Knowledge::Delivery => false,
        }
    }
}

/// A queue of one kind with the route that reads it.
struct Source {
    kind: Kind,
    queue: String,
    target: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_outlives_its_consumer_keeps_what_waits_and_delivers_it_again() {
    let management = ports::free();
    let rabbitmq = Rabbitmq::start_managed(management).await;
    rabbitmq.ctl(&["add_user", "reader", "secret"]).await;
    rabbitmq
        .ctl(&["set_user_tags", "reader", "monitoring"])
        .await;
    let rights = ["set_permissions", "reader", "", ".*", ".*"];
    rabbitmq.ctl(&rights).await;
    for by in [
        Knowledge::Management,
        Knowledge::Declaration,
        Knowledge::Delivery,
    ] {
        play(&rabbitmq, management, by).await;
    }
}

async fn play(rabbitmq: &Rabbitmq, management: u16, by: Knowledge) {
    let redis = Redis::start().await;
    let owner = rabbitmq.connect().await.expect("connected");
    let mut sources = Vec::new();
    for kind in Kind::all() {
        sources.push(make(rabbitmq, &owner, kind).await);
    }
    join_all(sources.iter().map(|source| send(&owner, source))).await;
    let config = config(&redis, rabbitmq, management, by, &sources);
    let mut relay = Relay::start(&config).await;
    eventually("each route reads, or says why not", async || {
        for source in &sources {
            if source.kind.is_refused(by) && source.kind.is_known_to_check(by) {
                refused(&relay, source).await?;
            } else if source.kind.refused != Some("stream") {
                came(rabbitmq, source, COUNT).await?;
            }
        }
        anyhow::Ok(())
    })
    .await;
    join_all(sources.iter().map(|source| send(&owner, source))).await;
    eventually("each is read, or refused", async || {
        for source in &sources {
            let is_refused = source.kind.is_refused(by);
            if is_refused && !source.kind.is_known_to_check(by) {
                // A stream hands out what comes after the subscription only, and does not tell its consumers.
                send(&owner, source).await;
            }
            if is_refused {
                refused(&relay, source).await?;
            } else {
                came(rabbitmq, source, 2 * COUNT).await?;
            }
        }
        anyhow::Ok(())
    })
    .await;
    for source in sources.iter().filter(|source| source.kind.is_refused(by)) {
        let name = source.kind.name;
        let admitted = relay
            .total("postdate_admitted_total", &[("route", name)])
            .await;
        assert!(admitted < 0.5, "{by:?}: {admitted} of {name} were read");
        came(rabbitmq, source, 0)
            .await
            .expect("nothing is published");
        if !source.kind.exclusive {
            eventually("it keeps its messages", async || {
                let left = rabbitmq.queue_len(&source.queue).await;
                ensure!(left >= 2 * COUNT, "{by:?}, {name}: {left}");
                Ok(())
            })
            .await;
        }
    }
    let log = relay.log();
    let errors = log
        .lines()
        .filter(|line| line.contains("cannot be a source"));
    let expected = sources.iter().filter(|source| source.kind.is_refused(by));
    assert_eq!(
        errors.count(),
        expected.count(),
        "{by:?}: one line each\n{log}"
    );
    check(&relay, by, &sources).await;
    let code = relay.terminate().await.code();
    assert_eq!(code, Some(0), "{by:?}");
}

async fn make(rabbitmq: &Rabbitmq, owner: &Connection, kind: Kind) -> Source {
    let [queue, target] = [kind.name, "target"].map(names::unique);
    rabbitmq.declare_queue(&target, QueueKind::Classic).await;
    let channel = owner.create_channel().await.expect("a channel");
    let options = QueueDeclareOptions {
        durable: kind.durable,
        auto_delete: kind.auto_delete,
        exclusive: kind.exclusive,
        ..QueueDeclareOptions::default()
    };
    let mut arguments = FieldTable::default();
    for (name, value) in &kind.arguments {
        arguments.insert((*name).into(), value.clone());
    }
    let declared = channel.queue_declare(queue.as_str().into(), options, arguments);
    declared.await.expect("declared");
    Source {
        kind,
        queue,
        target,
    }
}

async fn send(owner: &Connection, source: &Source) {
    let channel = owner.create_channel().await.expect("a channel");
    // A quorum queue that was declared a moment ago may lose what nobody waits to be confirmed.
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .expect("confirm mode");
    // What a program that reads a stream and publishes again may copy. It says nothing of the queue.
    let mut headers = FieldTable::default();
    headers.insert("x-stream-offset".into(), AMQPValue::LongLongInt(7));
    for _ in 0..COUNT {
        let sent = channel.basic_publish(
            "".into(),
            source.queue.as_str().into(),
            BasicPublishOptions::default(),
            b"body",
            BasicProperties::default().with_headers(headers.clone()),
        );
        sent.await.expect("sent").await.expect("a confirm");
    }
}

fn config(
    redis: &Redis,
    rabbitmq: &Rabbitmq,
    management: u16,
    by: Knowledge,
    sources: &[Source],
) -> Config {
    let user = if by == Knowledge::Delivery {
        "reader:secret"
    } else {
        "guest:guest"
    };
    let url = format!("amqp://{user}@127.0.0.1:{}/%2f", rabbitmq.port());
    let mut section = format!("[rabbitmq.main]\nurl = \"{url}\"\n");
    if by == Knowledge::Management {
        let line = format!("management = \"http://127.0.0.1:{management}\"\n");
        section.push_str(&line);
    }
    let config = Config::new(redis).section(&section);
    sources.iter().fold(config, |config, source| {
        let Source { queue, target, .. } = source;
        config.route(
            source.kind.name,
            &format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#),
            &format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#),
            "",
        )
    })
}

/// The trouble of a route's source, empty if it is up.
async fn trouble(relay: &Relay, source: &Source) -> anyhow::Result<String> {
    let (_, body) = relay.get("/readyz").await?;
    let body: serde_json::Value = serde_json::from_str(&body)?;
    let name = format!("source:{}", source.kind.name);
    let mut parts = body["parts"].as_array().into_iter().flatten();
    let part = parts.find(|part| part["name"] == name.as_str());
    let part = part.with_context(|| body.to_string())?;
    Ok(part["why"].as_str().unwrap_or_default().to_owned())
}

async fn refused(relay: &Relay, source: &Source) -> anyhow::Result<()> {
    let word = source.kind.refused.context("is refused")?;
    let trouble = trouble(relay, source).await?;
    ensure!(
        trouble.contains(word) && trouble.contains(&source.queue),
        "{}: {trouble:?}",
        source.kind.name
    );
    Ok(())
}

async fn came(rabbitmq: &Rabbitmq, source: &Source, count: u32) -> anyhow::Result<()> {
    let len = rabbitmq.queue_len(&source.target).await;
    ensure!(len == count, "{}: {len} of {count}", source.kind.name);
    Ok(())
}

/// `check --connect` says the same, as far as it can know.
async fn check(relay: &Relay, by: Knowledge, sources: &[Source]) {
    let file = relay.config_file();
    let running = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(relay::binary());
        command.args(["check", "--connect", "--config"]).arg(file);
        command.env_clear().output()
    });
    let output = running.await.expect("no panic").expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{by:?}");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    for source in sources {
        let kind = &source.kind;
        let about: Vec<_> = text
            .lines()
            .filter(|line| line.contains(&source.queue))
            .collect();
        if kind.is_refused(by) && kind.is_known_to_check(by) {
            let word = kind.refused.expect("a word");
            assert!(about[0].contains(word), "{by:?}: {about:?}");
        } else if by != Knowledge::Delivery || !kind.auto_delete {
            assert!(about[0].contains("is there"), "{by:?}: {about:?}\n{text}");
        }
        let warnings = usize::from(kind.warned.is_some() && kind.is_warned_of(by));
        let told = kind.warned.map_or(0, |word| {
            about.iter().filter(|line| line.contains(word)).count()
        });
        assert_eq!(told, warnings, "{by:?}, {}: {about:?}", kind.name);
    }
}
