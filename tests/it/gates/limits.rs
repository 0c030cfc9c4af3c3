//! A quorum queue drops what it has delivered too often. What passes and waits for its target through more lives of the
//! relay than that is not lost: it goes to the store.

use std::time::Duration;

use anyhow::ensure;
use lapin::ExchangeKind;
use lapin::types::{AMQPValue, FieldTable};

use crate::support::{
    Config, Proxy, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names,
};

/// The queue drops what it has delivered more than four times.
const LIMIT: i32 = 3;
/// One life more than the queue delivers a message.
const LIVES: usize = LIMIT as usize + 2;
const PASSING: usize = 30;
const DELAYED: usize = 10;
/// Longer than any figure in `/metrics` is old.
const FIGURES_AGE: Duration = Duration::from_millis(2500);

/// The reason why passing messages wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    MissingExchange,
    PausedPublishing,
}

/// The end of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Terminated,
    Killed,
    ChannelLost,
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_outlives_clean_stops_beyond_the_delivery_limit() {
    outlives(End::Terminated).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_outlives_kills_beyond_the_delivery_limit() {
    outlives(End::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_outlives_lost_channels_beyond_the_delivery_limit() {
    outlives(End::ChannelLost).await;
}

async fn outlives(end: End) {
    let rabbitmq = Rabbitmq::shared().await;
    tokio::join!(
        LimitFixture::play(rabbitmq, Reason::MissingExchange, end),
        LimitFixture::play(rabbitmq, Reason::PausedPublishing, end),
    );
}

struct LimitFixture<'a> {
    rabbitmq: &'a Rabbitmq,
    proxy: Proxy,
    relay: Relay,
    run: Run,
    reason: Reason,
    queue: String,
    exchange: String,
    target: String,
    /// `postdate_admitted_total` of this life, when a channel was lost last.
    admitted: f64,
}

impl<'a> LimitFixture<'a> {
    async fn play(rabbitmq: &'a Rabbitmq, reason: Reason, end: End) {
        let redis = Redis::start().await;
        let mut fixture = Self::open(rabbitmq, &redis, reason).await;
        fixture.send().await;
        for _ in 0..LIVES {
            fixture.holds_or_has_stored().await;
            fixture.end(end).await;
        }
        fixture.relay.ready().await;
        match reason {
            Reason::MissingExchange => fixture.make_exchange().await,
            Reason::PausedPublishing => fixture.post("resume", "{}").await,
        }
        fixture.run.drain(&fixture.relay).await;
        // A clean stop answers for all that is stored, also behind what waits.
        let explained = match end {
            End::Terminated => 0.0,
            End::Killed | End::ChannelLost => {
                fixture.relay.total("postdate_redelivered_total", &[]).await
            }
        };
        let dead = fixture
            .relay
            .total("postdate_dead_letters_total", &[])
            .await;
        assert!(dead < 0.5, "{reason:?}, {end:?}: {dead} dead letters");
        fixture.run.report().assert_accounted(explained as usize);
        let code = fixture.relay.terminate().await.code();
        assert_eq!(code, Some(0), "{reason:?}, {end:?}");
    }

    async fn open(rabbitmq: &'a Rabbitmq, redis: &Redis, reason: Reason) -> Self {
        let [queue, exchange, target] = ["limited", "missing", "target"].map(names::unique);
        let mut arguments = FieldTable::default();
        arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(LIMIT));
        rabbitmq
            .declare_queue_with(&queue, QueueKind::Quorum, arguments)
            .await;
        rabbitmq.declare_queue(&target, QueueKind::Classic).await;
        let proxy = Proxy::before(rabbitmq.port()).await;
        let url = format!("amqp://guest:guest@127.0.0.1:{}/%2f", proxy.port());
        let config = Config::new(redis)
            .section(&format!("[rabbitmq.main]\nurl = \"{url}\""))
            .route(
                "limited",
                &format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#),
                &format!(
                    r#"{{ rabbitmq = "main", exchange = "{exchange}", routing_key = "{target}" }}"#
                ),
                "retry = { attempts = 1000, initial = \"100ms\", max = \"200ms\" }",
            );
        let run = Run::new();
        run.collect_rabbitmq(rabbitmq, &target);
        let relay = Relay::start(&config).await;
        let fixture = Self {
            rabbitmq,
            proxy,
            relay,
            run,
            reason,
            queue,
            exchange,
            target,
            admitted: 0.0,
        };
        if reason == Reason::PausedPublishing {
            fixture.make_exchange().await;
            fixture.post("pause", r#"{"only":"publishing"}"#).await;
        }
        fixture
    }

    async fn make_exchange(&self) {
        self.rabbitmq
            .declare_exchange(&self.exchange, ExchangeKind::Fanout)
            .await;
        self.rabbitmq.bind(&self.target, &self.exchange, "").await;
    }

    async fn post(&self, action: &str, body: &str) {
        let path = format!("/api/v1/routes/limited/{action}");
        let answer = self.relay.request("POST", &path, None, body).await;
        let (status, answer) = answer.expect("an answer");
        assert!(status < 300, "{path}: {status} {answer}");
    }

    async fn send(&self) {
        let label = format!("rabbitmq:{}", self.target);
        let messages = (0..PASSING + DELAYED).map(|n| {
            let when = if n % 4 == 3 {
                When::Delay(10)
            } else {
                When::Now
            };
            self.run.message(&label, when)
        });
        self.run
            .send_rabbitmq(self.rabbitmq, "", Some(&self.queue), messages.collect())
            .await;
    }

    /// Waits until this life has read the messages and waits for their target, or has stored what passes.
    async fn holds_or_has_stored(&self) {
        eventually("it waits, or has stored all", async || {
            if self.has_stored().await? {
                // The gauge of unresolved deliveries is a second old.
                tokio::time::sleep(FIGURES_AGE).await;
                ensure!(self.has_stored().await?, "it has read more");
                return Ok(());
            }
            let metrics = self.relay.metrics().await?;
            let admitted = metrics.sum("postdate_admitted_total", &[]);
            let unresolved = metrics.sum("postdate_ingress_unresolved", &[]);
            let waits = self.reason == Reason::PausedPublishing
                || metrics.sum("postdate_ingress_paused", &[("reason", "target")]) > 0.5;
            ensure!(
                admitted > self.admitted && unresolved > 0.5 && waits,
                "{admitted} admitted, {unresolved} unresolved"
            );
            Ok(())
        })
        .await;
        if self.reason == Reason::PausedPublishing {
            // Nothing tells that a passing message waits for the end of a pause: a worn one has gone by now.
            tokio::time::sleep(FIGURES_AGE).await;
        }
    }

    /// Reports whether the queue is empty, nothing of it is unacknowledged, and the store has what passes.
    async fn has_stored(&self) -> anyhow::Result<bool> {
        let metrics = self.relay.metrics().await?;
        let stored = metrics.sum("postdate_pending", &[]) + metrics.sum("postdate_in_flight", &[]);
        let unresolved = metrics.sum("postdate_ingress_unresolved", &[]);
        let ready = self.rabbitmq.queue_len(&self.queue).await;
        Ok(stored >= PASSING as f64 && unresolved < 0.5 && ready == 0)
    }

    async fn end(&mut self, end: End) {
        match end {
            End::Terminated => {
                self.relay.terminate().await;
                self.relay.spawn_again();
            }
            End::Killed => {
                self.relay.kill9().await;
                self.relay.spawn_again();
            }
            End::ChannelLost => {
                let metrics = self.relay.metrics().await.expect("metrics");
                self.admitted = metrics.sum("postdate_admitted_total", &[]);
                self.proxy.reset();
            }
        }
    }
}
