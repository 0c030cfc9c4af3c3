//! Starts a relay whose routes wait, each for one cause.

use std::time::Duration;

use anyhow::ensure;
use futures_util::future::join_all;
use lapin::ExchangeKind;
use lapin::types::{AMQPValue, FieldTable};

use crate::support::accounting::Id;
use crate::support::proxy::Mode;
use crate::support::{
    Config, Kafka, Proxy, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names,
};

/// Cause for which ingress waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Paused,
    MaxPending,
    DeadLetters,
    /// The store hangs.
    Away,
    /// The store is at `maxmemory`.
    Refusing,
    /// The exchange of messages that pass through is missing.
    Missing,
    /// The broker of messages that pass through is away.
    TargetAway,
}

impl Cause {
    pub(super) const ALL: [Self; 7] = [
        Self::Paused,
        Self::MaxPending,
        Self::DeadLetters,
        Self::Away,
        Self::Refusing,
        Self::Missing,
        Self::TargetAway,
    ];
    /// Groups of causes that can wait in one relay, each cause on a route of its own.
    pub(super) const GROUPS: [&[Self]; 5] = [
        &[Self::Paused, Self::MaxPending, Self::DeadLetters],
        &[Self::Away],
        &[Self::Refusing],
        &[Self::Missing],
        &[Self::TargetAway],
    ];

    /// Reports whether messages without a delay wait for their target.
    pub(super) fn is_of_target(self) -> bool {
        matches!(self, Self::Missing | Self::TargetAway)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Kafka,
    Classic,
    Quorum,
}

impl Source {
    pub(super) const ALL: [Self; 3] = [Self::Kafka, Self::Classic, Self::Quorum];
}

/// Partitions of each topic.
pub(super) const PARTITIONS: usize = 2;
/// The node of Kafka that leads them all at first; where there is one node only, it is that one.
pub(super) const LEADER: usize = 0;
/// Messages that wait in each source.
pub(super) const COUNT: u64 = 20;

/// A route that waits.
pub(super) struct Path {
    pub(super) cause: Cause,
    pub(super) source: Source,
    pub(super) route: String,
    pub(super) from: String,
    to: String,
    /// Where what is made to die is sent to: never there.
    missing: String,
}

impl Path {
    fn new(cause: Cause, source: Source) -> Self {
        let route = format!("{cause:?}-{source:?}").to_lowercase();
        let [from, to, missing] = ["source", "target", "missing"].map(names::unique);
        Self {
            cause,
            source,
            route,
            from,
            to,
            missing,
        }
    }

    fn label(&self) -> String {
        format!("rabbitmq:{}", self.to)
    }

    pub(super) fn kind(&self) -> QueueKind {
        if self.source == Source::Quorum {
            QueueKind::Quorum
        } else {
            QueueKind::Classic
        }
    }

    /// Makes its queue: one that drops what was delivered more than four times, where there is such a thing.
    pub(super) async fn make_queue(&self, rabbitmq: &Rabbitmq) {
        let mut arguments = FieldTable::default();
        if self.source == Source::Quorum {
            arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(3));
        }
        rabbitmq
            .declare_queue_with(&self.from, self.kind(), arguments)
            .await;
    }

    async fn make(&self, kafka: &Kafka, rabbitmq: &Rabbitmq, run: &Run) {
        let source = async {
            match self.source {
                Source::Kafka => {
                    kafka
                        .create_topic_led_by(&self.from, PARTITIONS, LEADER)
                        .await;
                }
                _ => self.make_queue(rabbitmq).await,
            }
        };
        tokio::join!(source, rabbitmq.declare_queue(&self.to, QueueKind::Classic));
        run.collect_rabbitmq(rabbitmq, &self.to);
    }

    fn configure(&self, config: Config) -> Config {
        let from = match self.source {
            Source::Kafka => format!(
                r#"{{ kafka = "main", topic = "{0}", group = "{0}" }}"#,
                self.from
            ),
            _ => format!(r#"{{ rabbitmq = "main", queue = "{}" }}"#, self.from),
        };
        let exchange = if self.cause == Cause::Missing {
            &self.missing
        } else {
            ""
        };
        let connection = if self.cause == Cause::TargetAway {
            "target"
        } else {
            "main"
        };
        let to = format!(
            r#"{{ rabbitmq = "{connection}", exchange = "{exchange}", routing_key = "{}" }}"#,
            self.to
        );
        let more = match self.cause {
            Cause::MaxPending => "max_pending = 1".to_owned(),
            Cause::DeadLetters => format!(
                "allow_targets = [\"{}/key\"]\ndead_letters = {{ max = 1 }}\n\
                 retry = {{ attempts = 2, initial = \"50ms\", max = \"100ms\" }}",
                self.missing
            ),
            Cause::Missing | Cause::TargetAway => {
                "retry = { attempts = 1000, initial = \"100ms\", max = \"200ms\" }".to_owned()
            }
            _ => String::new(),
        };
        config.route(&self.route, &from, &to, &more)
    }

    /// Sends so many messages, and returns their ids.
    pub(super) async fn send(
        &self,
        kafka: &Kafka,
        rabbitmq: &Rabbitmq,
        run: &Run,
        count: u64,
    ) -> Vec<Id> {
        let when = if self.cause.is_of_target() {
            When::Now
        } else {
            When::Delay(10)
        };
        let messages: Vec<_> = (0..count)
            .map(|_| run.message(&self.label(), when))
            .collect();
        let ids = messages
            .iter()
            .map(|message| message.id().clone())
            .collect();
        match self.source {
            Source::Kafka => run.send_kafka(kafka, &self.from, messages).await,
            _ => {
                run.send_rabbitmq(rabbitmq, "", Some(&self.from), messages)
                    .await;
            }
        }
        ids
    }

    /// Reports whether a message never leaves the source before its target has it. A quorum queue may drop a message
    /// that it has delivered often, so such a one goes to the store.
    fn keeps_all(&self) -> bool {
        self.cause.is_of_target() && self.source != Source::Quorum
    }
}

/// A relay whose routes wait for causes of one group.
pub(super) struct WaitingFixture {
    pub(super) relay: Relay,
    pub(super) redis: Redis,
    pub(super) paths: Vec<Path>,
    pub(super) causes: &'static [Cause],
    pub(super) run: Run,
    /// The way to the broker of messages that pass through.
    target: Option<Proxy>,
    /// Messages that were never handed over while they waited: nothing explains a repeat of them.
    untouched: Vec<Id>,
}

impl WaitingFixture {
    pub(super) async fn open(
        causes: &'static [Cause],
        wanted: impl Fn(Cause, Source) -> bool,
        (kafka, rabbitmq): (&Kafka, &Rabbitmq),
    ) -> Self {
        let redis = Redis::start().await;
        let run = Run::new();
        let all = causes
            .iter()
            .flat_map(|cause| Source::ALL.map(|source| Path::new(*cause, source)));
        let paths: Vec<_> = all.filter(|path| wanted(path.cause, path.source)).collect();
        join_all(paths.iter().map(|path| path.make(kafka, rabbitmq, &run))).await;
        // A heartbeat that finds a session lost in seconds.
        let url = format!("[rabbitmq.main]\nurl = \"{}?heartbeat=2\"", rabbitmq.url());
        let config = Config::new(&redis).kafka("main", kafka).section(&url);
        let config = paths
            .iter()
            .fold(config, |config, path| path.configure(config));
        let (config, target) = if causes.contains(&Cause::TargetAway) {
            let proxy = Proxy::before(rabbitmq.port()).await;
            let url = format!(
                "[rabbitmq.target]\nurl = \"amqp://guest:guest@127.0.0.1:{}/%2f\"",
                proxy.port()
            );
            (config.section(&url), Some(proxy))
        } else {
            (config, None)
        };
        let relay = Relay::start(&config).await;
        Self {
            relay,
            redis,
            paths,
            causes,
            run,
            target,
            untouched: Vec::new(),
        }
    }

    async fn post(&self, path: &str, body: &str) {
        let (status, answer) = self
            .relay
            .request("POST", path, None, body)
            .await
            .expect("an answer");
        assert!(status < 300, "{path}: {status} {answer}");
    }

    /// Has each route's ingress wait, then sends what waits.
    pub(super) async fn wait(&mut self, kafka: &Kafka, rabbitmq: &Rabbitmq) {
        let topics = self
            .paths
            .iter()
            .filter(|path| path.source == Source::Kafka);
        join_all(topics.map(|path| kafka.shared_out(&path.from, &path.from, 1))).await;
        // Each source is read, so that what comes next finds a consumer.
        for path in &self.paths {
            let pause = format!("/api/v1/routes/{}/pause", path.route);
            match path.cause {
                Cause::Paused => self.post(&pause, r#"{"only":"ingress"}"#).await,
                Cause::MaxPending => {
                    self.post(&pause, r#"{"only":"publishing"}"#).await;
                    path.send(kafka, rabbitmq, &self.run, 1).await;
                }
                Cause::DeadLetters => {
                    let target = format!("{}/key", path.missing);
                    let dies = self.run.message(&path.label(), When::Delay(10));
                    let dies = dies.contract("x-delay-target", &target);
                    let id = dies.id().clone();
                    match path.source {
                        Source::Kafka => self.run.send_kafka(kafka, &path.from, vec![dies]).await,
                        _ => {
                            self.run
                                .send_rabbitmq(rabbitmq, "", Some(&path.from), vec![dies])
                                .await;
                        }
                    }
                    // Nobody need deliver it.
                    self.run.ledger().park(id);
                }
                Cause::Away | Cause::Refusing | Cause::Missing | Cause::TargetAway => {}
            }
        }
        if !self.causes[0].is_of_target() {
            self.closed().await;
        }
        match self.causes {
            [Cause::Away] => self.redis.stop(),
            [Cause::Refusing] => self.maxmemory("1").await,
            _ => {}
        }
        if let Some(target) = &self.target {
            target.set(Mode::Refuse);
            target.reset();
        }
        let sending = self.paths.iter().map(async |path| {
            let ids = path.send(kafka, rabbitmq, &self.run, COUNT).await;
            if path.keeps_all() { ids } else { Vec::new() }
        });
        self.untouched = join_all(sending).await.concat();
        if self.causes[0].is_of_target() {
            self.closed().await;
        }
    }

    /// Waits until each route says that it waits, if its cause shows before a message comes or the messages are there.
    async fn closed(&self) {
        for path in &self.paths {
            let reason = match path.cause {
                Cause::Paused => "paused",
                Cause::MaxPending => "max_pending",
                Cause::DeadLetters => "dead_letters",
                Cause::Missing | Cause::TargetAway => "target",
                Cause::Away | Cause::Refusing => continue,
            };
            eventually(&format!("{} waits", path.route), async || {
                let labels = [("route", path.route.as_str()), ("reason", reason)];
                let waits = self
                    .relay
                    .metrics()
                    .await?
                    .sum("postdate_ingress_paused", &labels);
                ensure!(waits > 0.5, "it does not");
                Ok(())
            })
            .await;
        }
    }

    /// Where routes wait for their target: waits until each says so, or has stored its messages instead.
    pub(super) async fn holds_or_has_stored(&self) {
        let waiting = self.paths.iter().filter(|path| path.cause.is_of_target());
        for path in waiting {
            eventually(&format!("{} holds or has stored", path.route), async || {
                let metrics = self.relay.metrics().await?;
                let route = ("route", path.route.as_str());
                let waits = metrics.sum("postdate_ingress_paused", &[route, ("reason", "target")]);
                let stored = metrics.sum("postdate_pending", &[route])
                    + metrics.sum("postdate_in_flight", &[route]);
                ensure!(waits > 0.5 || stored >= COUNT as f64, "{stored} are stored");
                Ok(())
            })
            .await;
        }
    }

    async fn maxmemory(&self, bytes: &str) {
        self.redis
            .command::<()>(&["CONFIG", "SET", "maxmemory", bytes])
            .await
            .expect("set");
    }

    /// Ends each cause.
    pub(super) async fn go_on(&mut self, rabbitmq: &Rabbitmq) {
        match self.causes {
            [Cause::Away] => self.redis.cont(),
            [Cause::Refusing] => self.maxmemory("0").await,
            _ => {}
        }
        if let Some(target) = &self.target {
            target.set(Mode::Pass);
        }
        self.relay.ready().await;
        for path in &self.paths {
            let resume = format!("/api/v1/routes/{}/resume", path.route);
            match path.cause {
                Cause::Paused | Cause::MaxPending => self.post(&resume, "{}").await,
                Cause::DeadLetters => {
                    let drop = format!(r#"{{"filter":{{"route":"{}"}}}}"#, path.route);
                    self.post("/api/v1/dead/drop", &drop).await;
                }
                Cause::Missing => {
                    rabbitmq
                        .declare_exchange(&path.missing, ExchangeKind::Fanout)
                        .await;
                    rabbitmq.bind(&path.to, &path.missing, "").await;
                }
                Cause::Away | Cause::Refusing | Cause::TargetAway => {}
            }
        }
    }

    /// Waits until all has been delivered.
    pub(super) async fn delivered(&self) {
        eventually(
            &format!("all is delivered: {:?}", self.causes),
            async || {
                let missing = self.run.ledger().missing();
                ensure!(
                    missing.is_empty(),
                    "{} are missing: {}",
                    missing.len(),
                    missing[0]
                );
                Ok(())
            },
        )
        .await;
    }

    /// Nothing comes twice without a cause, and nothing comes twice that only waited.
    pub(super) async fn accounted(&self) {
        self.run.drain(&self.relay).await;
        let report = self.run.report();
        let twice: Vec<_> = self
            .untouched
            .iter()
            .filter(|id| report.repeated.contains_key(*id))
            .collect();
        assert!(
            twice.is_empty(),
            "{:?}: {} came twice: {twice:?}",
            self.causes,
            twice.len()
        );
        let explained = self.relay.total("postdate_redelivered_total", &[]).await;
        let duplicates = report.duplicates();
        assert!(
            duplicates as f64 <= explained,
            "{:?}: {duplicates} repeats, {explained} are explained",
            self.causes
        );
    }

    /// SIGTERM, while or after it waits: exit code 0, within seconds.
    pub(super) async fn terminate(&mut self) {
        let began = std::time::Instant::now();
        let code = self.relay.terminate().await.code();
        let took = began.elapsed();
        assert_eq!(
            code,
            Some(0),
            "{:?}: {took:?}\n{}",
            self.causes,
            self.relay.log()
        );
        assert!(took < CLEAN, "{:?}: {took:?}", self.causes);
    }
}

/// How long a clean stop may take: half of `shutdown_timeout`, after which it is none.
const CLEAN: Duration = Duration::from_secs(15);
