//! The scenario of one cycle: a Redis, replicas, four routes under load, a fault that is injected, and an end at which
//! all messages are counted.

mod accounts;
mod setup;

use std::time::Duration;

use fastrand::Rng;
use lapin::types::{AMQPValue, FieldTable};
use tokio::time::Instant;

use crate::load::{Load, Way};
use crate::outcome::Outcome;
use crate::servers;
use crate::support::redis::LEAST_USER;
use crate::support::run::now_ms;
use crate::support::{Config, Kafka, Proxy, QueueKind, Rabbitmq, Redis, Relay, Run, names};

pub(crate) use setup::{Broker, Scale, Setup};

/// How long a message is looked for that a planted fault may have lost.
const MUTANT_PATIENCE: Duration = Duration::from_secs(25);
/// `timer.lookahead`, ms: a message due this much after the fault may be claimed by a replica under fault.
const LOOKAHEAD_MS: i64 = 1000;

/// Claimed messages that a fault must meet at least: fewer show little.
pub(crate) const MIN_IN_FLIGHT: usize = 50;

/// Partitions of each topic.
const PARTITIONS: usize = 3;

/// One injection of the fault.
#[derive(Clone, Copy, Debug)]
struct Injection {
    at_ms: i64,
    /// Messages made before this one had a second to be stored by then.
    stored: u64,
    /// Unix ms at which the fault was healed.
    healed_ms: Option<i64>,
}

/// One cycle in progress; several, where a row injects its fault more than once.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) scale: Scale,
    pub(crate) setup: Setup,
    pub(crate) rng: Rng,
    pub(crate) run: Run,
    pub(crate) ways: Vec<Way>,
    pub(crate) redis: Redis,
    /// The servers that hold the store at the end.
    pub(crate) stores: Vec<String>,
    pub(crate) redis_proxy: Proxy,
    pub(crate) kafka: Broker<Kafka>,
    pub(crate) rabbitmq: Broker<Rabbitmq>,
    pub(crate) prefix: String,
    pub(crate) relays: Vec<Relay>,
    load: Option<Load>,
    injections: Vec<Injection>,
    pub(crate) outcome: Outcome,
}

/// Less than what the way to the servers remembers when it forgets quiet connections: 30 s.
const IDLE: &str = "properties = { \"connections.max.idle.ms\" = \"20000\" }";

impl Scenario {
    /// Starts everything, on the brokers that all rows share, and waits until the replicas are ready.
    pub(crate) async fn start(scale: Scale, setup: Setup) -> Self {
        let brokers = tokio::join!(servers::kafka(), servers::rabbitmq());
        Self::start_on(
            scale,
            setup,
            Broker::Shared(brokers.0),
            Broker::Shared(brokers.1),
        )
        .await
    }

    /// The same on these brokers.
    pub(crate) async fn start_on(
        scale: Scale,
        setup: Setup,
        kafka: Broker<Kafka>,
        rabbitmq: Broker<Rabbitmq>,
    ) -> Self {
        let mut setup = setup;
        if let Some(mutant) = scale.mutant {
            setup
                .environment
                .push(("POSTDATE_MUTANT".into(), mutant.into()));
            setup.patience = MUTANT_PATIENCE;
        }
        let run = Run::new();
        let ways = Way::four();
        for way in &ways {
            open(
                &run,
                way,
                &setup,
                (&kafka.get().server, &rabbitmq.get().server),
            )
            .await;
        }
        let options: Vec<_> = setup.redis.iter().map(String::as_str).collect();
        let redis = Redis::start_with(&setup.redis_program, &options).await;
        let mut scenario = Self {
            rng: Rng::with_seed(scale.seed),
            stores: vec![redis.url()],
            redis_proxy: Proxy::before(redis.port()).await,
            prefix: names::unique("chaos"),
            outcome: Outcome {
                seed: scale.seed,
                cycles: 1,
                ..Outcome::default()
            },
            relays: Vec::new(),
            load: None,
            injections: Vec::new(),
            scale,
            setup,
            run,
            ways,
            redis,
            kafka,
            rabbitmq,
        };
        for number in 0..scenario.setup.replicas {
            let relay = scenario.spawn(number);
            scenario.relays.push(relay);
        }
        for relay in &mut scenario.relays {
            relay.ready().await;
        }
        // Partitions that still move from one replica to the next would be late for no fault of the row's.
        let kafka = &scenario.kafka.get().server;
        for way in scenario.ways.iter().filter(|way| way.from_kafka) {
            kafka
                .shared_out(
                    &way.source,
                    &way.source,
                    scenario.setup.replicas.min(PARTITIONS),
                )
                .await;
        }
        scenario
    }

    /// Spawns a replica with this scenario's configuration; it is not yet ready.
    pub(crate) fn spawn(&self, number: usize) -> Relay {
        let environment: Vec<_> = self
            .setup
            .environment
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        Relay::spawn(&self.config(number), &environment)
    }

    /// The configuration of one replica.
    pub(crate) fn config(&self, number: usize) -> Config {
        let kafka = self.kafka.get();
        let rabbitmq = self.rabbitmq.get();
        let slow_url = format!("amqp://guest:guest@127.0.0.1:{}/%2f", rabbitmq.proxy.port());
        let (redis, brokers, url) = if self.setup.proxied {
            (
                self.redis_proxy.port(),
                format!("127.0.0.1:{}", kafka.proxy.port()),
                slow_url.clone(),
            )
        } else {
            (
                self.redis.port(),
                kafka.server.bootstrap(),
                rabbitmq.server.url(),
            )
        };
        let query = self.setup.rabbitmq_query;
        let alone = format!("url = \"redis://{LEAST_USER}:{LEAST_USER}@127.0.0.1:{redis}\"");
        let mut config = Config::under(self.setup.stored.as_ref().unwrap_or(&alone), &self.prefix)
            .redis(&self.setup.redis_lines)
            .section(&format!("[kafka.main]\nbrokers = \"{brokers}\"\n{IDLE}"))
            .section(&format!(
                "[kafka.slow]\nbrokers = \"127.0.0.1:{}\"\n{IDLE}",
                kafka.proxy.port()
            ))
            .section(&format!("[rabbitmq.main]\nurl = \"{url}{query}\""))
            .section(&format!("[rabbitmq.slow]\nurl = \"{slow_url}\""))
            .section(&format!("[cluster]\nname = \"{}-{number}\"", self.prefix))
            .section(&format!(
                "[timer]\nlookahead = \"{LOOKAHEAD_MS}ms\"\nclaim = \"{}s\"",
                self.setup.claim_s
            ));
        for way in &self.ways {
            let from = if way.from_kafka {
                format!(
                    r#"{{ kafka = "main", topic = "{0}", group = "{0}" }}"#,
                    way.source
                )
            } else {
                format!(r#"{{ rabbitmq = "main", queue = "{}" }}"#, way.source)
            };
            let slow = self.setup.slow_targets.contains(&way.name);
            let connection = if slow { "slow" } else { "main" };
            let to = if way.to_kafka {
                format!(r#"{{ kafka = "{connection}", topic = "{}" }}"#, way.target)
            } else {
                format!(
                    r#"{{ rabbitmq = "{connection}", exchange = "", routing_key = "{}" }}"#,
                    way.target
                )
            };
            let allowed = if way.to_kafka {
                &self.setup.allow_topic
            } else {
                &self.setup.allow_queue
            };
            let of_source = if way.from_kafka {
                &self.setup.from_kafka
            } else {
                ""
            };
            let more = format!(
                "allow_targets = [{allowed}]\n{}\n{of_source}",
                self.setup.routes
            );
            config = config.route(way.name, &from, &to, &more);
        }
        if self.setup.sections.is_empty() {
            config
        } else {
            config.section(&self.setup.sections)
        }
    }

    /// Starts the load and lets it run for a while that the seed decides, so that every cycle injects its fault at
    /// another moment.
    pub(crate) async fn under_load(&mut self) {
        let client = self.kafka.get().server.client();
        let url = self.rabbitmq.get().server.url();
        let rate = self.scale.rate;
        let delays_ms = (self.setup.least_ms, self.setup.longest_ms);
        self.load = Some(Load::start(
            &self.run,
            &self.ways,
            (client, url),
            rate,
            delays_ms,
            self.rng.u64(..),
        ));
        self.moment(2500, 5000).await;
    }

    /// Waits for between so many ms, as the seed decides.
    pub(crate) async fn moment(&mut self, least: u64, most: u64) {
        let wait = self.rng.u64(least..=most);
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }

    /// Notes the injection of the fault; to be called just before the fault. Waits first until all messages sent so far
    /// are stored and the victims have claimed [`MIN_IN_FLIGHT`] messages, for six seconds at most.
    pub(crate) async fn inject(&mut self, victims: &[usize]) {
        let stored = self.run.made();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let end = Instant::now() + Duration::from_secs(5);
        let mut in_flight = self.claimed_by(victims).await;
        while in_flight < MIN_IN_FLIGHT && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
            in_flight = self.claimed_by(victims).await;
        }
        self.outcome.in_flight.push(in_flight);
        self.injections.push(Injection {
            at_ms: now_ms(),
            stored,
            healed_ms: None,
        });
    }

    /// Number of messages that these replicas have claimed.
    async fn claimed_by(&self, victims: &[usize]) -> usize {
        let mut in_flight = 0.0;
        for &victim in victims {
            let metrics = self.relays[victim]
                .metrics()
                .await
                .expect("a replica that is up");
            in_flight += metrics.sum("postdate_in_flight", &[]);
        }
        in_flight as usize
    }

    /// All replicas, as victims.
    pub(crate) fn all(&self) -> Vec<usize> {
        (0..self.relays.len()).collect()
    }

    /// Notes that the fault is healed from now on.
    pub(crate) fn healed(&mut self) {
        if let Some(injection) = self.injections.last_mut() {
            injection.healed_ms = Some(now_ms());
        }
    }

    /// Time of the last injection, Unix ms.
    pub(crate) fn injected_ms(&self) -> i64 {
        self.injections
            .last()
            .map_or(0, |injection| injection.at_ms)
    }

    /// Messages that the victims had claimed at the last injection.
    pub(crate) fn in_flight(&self) -> usize {
        self.outcome.in_flight.last().copied().unwrap_or(0)
    }

    /// Checks a precondition: without it the cycle is inconclusive, for this reason.
    pub(crate) fn precondition(&mut self, is_met: bool, why: impl Into<String>) {
        if !is_met {
            self.outcome.unmet.push(why.into());
        }
    }

    /// Checks the usual precondition: the victims had claimed [`MIN_IN_FLIGHT`] messages.
    pub(crate) fn precondition_claims(&mut self) {
        let in_flight = self.in_flight();
        self.precondition(
            in_flight >= MIN_IN_FLIGHT,
            format!("only {in_flight} messages were in flight at the fault"),
        );
    }

    /// Checks a limit beyond the accounts.
    pub(crate) fn limit(&mut self, held: bool, what: impl Into<String>) {
        if !held {
            self.outcome.missed.push(what.into());
        }
    }

    /// Notes a remark for the output of the run.
    pub(crate) fn note(&mut self, what: impl Into<String>) {
        self.outcome.notes.push(what.into());
    }

    /// A counter or gauge over all replicas and their lives.
    pub(crate) async fn total(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let mut total = 0.0;
        for relay in &self.relays {
            total += relay.total(name, labels).await;
        }
        total
    }

    /// Ends the watch for what is late without a reason: a row whose messages are late by their mere number has no
    /// fault that could be named.
    pub(crate) fn watch_no_more(&mut self) {
        self.run.unobserved("late by their mere number");
        for relay in &self.relays {
            relay.unobserved("late by their mere number");
        }
    }

    /// A connection to the store, past the proxy.
    pub(crate) async fn store(&self) -> redis::aio::MultiplexedConnection {
        self.redis.connection().await.expect("a Redis that is up")
    }

    /// How often a script or command failed in the store with an error of this name (`OOM`, `NOSCRIPT`).
    pub(crate) async fn store_errors(&self, name: &str) -> u64 {
        let command = redis::cmd("INFO").arg("errorstats").to_owned();
        let info: String = command
            .query_async(&mut self.store().await)
            .await
            .expect("INFO");
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(&format!("errorstat_{name}:count=")));
        line.map_or(0, |count| count.trim().parse().expect("a number"))
    }

    /// Reports whether any replica's log contains the text.
    pub(crate) fn logged(&self, text: &str) -> bool {
        self.relays.iter().any(|relay| relay.log().contains(text))
    }

    /// Ends the load, without waiting for the relay.
    pub(crate) async fn quiet(&mut self) {
        if let Some(load) = self.load.take() {
            load.stop().await;
        }
    }
}

/// Makes a way's two ends, and collects what arrives.
async fn open(run: &Run, way: &Way, setup: &Setup, (kafka, rabbitmq): (&Kafka, &Rabbitmq)) {
    if way.from_kafka {
        kafka.create_topic(&way.source, PARTITIONS).await;
    } else {
        let mut arguments = FieldTable::default();
        if let Some(limit) = setup.delivery_limit {
            arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(limit));
        }
        rabbitmq
            .declare_queue_with(&way.source, QueueKind::Quorum, arguments)
            .await;
    }
    if way.to_kafka {
        if setup.scattered_targets {
            let brokers: [&[i32]; PARTITIONS] = [&[1], &[2], &[3]];
            kafka
                .create_topic_placed(&way.target, &brokers, setup.target_settings)
                .await;
        } else {
            kafka
                .create_topic_with(&way.target, PARTITIONS, setup.target_settings)
                .await;
        }
        run.collect_kafka(kafka, &way.target, PARTITIONS);
    } else {
        rabbitmq.declare_queue(&way.target, QueueKind::Quorum).await;
        run.collect_rabbitmq(rabbitmq, &way.target);
    }
}
