//! One route floods the store with what is due far ahead: it waits by its quota, or when Redis fills up, and the
//! other route does not notice.

use crate::support::run::Message;
use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names};

/// Random bytes of a message of the flood: they do not compress.
const FLOOD_SIZE: usize = 4 << 10;
const HOUR_MS: u64 = 3_600_000;

/// Two routes through queues of one broker, each to a queue of its own.
struct TwoRoutes {
    relay: Relay,
    rabbitmq: &'static Rabbitmq,
    greedy: String,
    beside: String,
    target: String,
    run: Run,
}

impl TwoRoutes {
    async fn start(redis: &Redis, greedy_policy: &str) -> Self {
        Self::start_with(redis, greedy_policy, &[]).await
    }

    /// The same with environment variables of the relay.
    async fn start_with(redis: &Redis, greedy_policy: &str, environment: &[(&str, &str)]) -> Self {
        let rabbitmq = Rabbitmq::shared().await;
        let [greedy, beside, target] = ["greedy", "beside", "target"].map(names::unique);
        for queue in [&greedy, &beside, &target] {
            rabbitmq.declare_queue(queue, QueueKind::Classic).await;
        }
        let from = |queue: &str| format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#);
        let to = format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#);
        let config = Config::new(redis)
            .rabbitmq("main", rabbitmq)
            .route("greedy", &from(&greedy), &to, greedy_policy)
            .route("beside", &from(&beside), &to, "");
        let relay = Relay::start_with(&config, environment).await;
        let run = Run::new();
        run.collect_rabbitmq(rabbitmq, &target);
        Self {
            relay,
            rabbitmq,
            greedy,
            beside,
            target,
            run,
        }
    }

    /// Sends so many messages that are due in an hour through the greedy route.
    async fn flood(&self, run: &Run, count: usize) {
        let message = |_| {
            run.message(&self.label(), When::Delay(HOUR_MS))
                .key(&self.target)
                .size(FLOOD_SIZE)
                .random()
        };
        let messages: Vec<Message> = (0..count).map(message).collect();
        run.send_rabbitmq(self.rabbitmq, "", Some(&self.greedy), messages)
            .await;
    }

    fn label(&self) -> String {
        format!("rabbitmq:{}", self.target)
    }

    /// Waits until the greedy route waits for this reason.
    async fn waits_for(&self, reason: &str) {
        eventually(&format!("the greedy route waits: {reason}"), async || {
            let labels = [("route", "greedy"), ("reason", reason)];
            let metrics = self
                .relay
                .metrics()
                .await
                .map_err(|error| error.to_string())?;
            let waits = metrics.sum("postdate_ingress_paused", &labels) > 0.0;
            if waits {
                Ok(())
            } else {
                Err(format!(
                    "it took in {}",
                    metrics.sum("postdate_admitted_total", &[])
                ))
            }
        })
        .await;
    }

    /// Sends messages through the other route, and waits until all of them have arrived.
    async fn flows_beside(&self) {
        let delays = (0..100).map(|n| {
            if n % 4 == 0 {
                When::Now
            } else {
                When::Delay(10 * n)
            }
        });
        let messages = delays
            .map(|when| self.run.message(&self.label(), when).key(&self.target))
            .collect();
        self.run
            .send_rabbitmq(self.rabbitmq, "", Some(&self.beside), messages)
            .await;
        eventually("all of the other route arrive", async || {
            match self.run.ledger().missing() {
                missing if missing.is_empty() => Ok(()),
                missing => Err(format!("{} are missing", missing.len())),
            }
        })
        .await;
        self.run.report().assert_accounted(0);
    }
}

const QUOTA: f64 = 1_048_576.0;
/// What `prefetch` lends at most.
const BATCH: f64 = 500.0 * 4096.0;

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_that_is_not_counted_is_caught() {
    let redis = Redis::start().await;
    let environment = [("POSTDATE_MUTANT", "no_byte_quota")];
    let routes = TwoRoutes::start_with(&redis, "max_pending_bytes = \"1MiB\"", &environment).await;
    let flood = Run::new();
    routes.flood(&flood, 4000).await;
    eventually("more is stored than may be", async || {
        let metrics = routes
            .relay
            .metrics()
            .await
            .map_err(|error| error.to_string())?;
        let stored = metrics.sum("postdate_pending", &[("route", "greedy")]) * FLOOD_SIZE as f64;
        if stored > QUOTA + BATCH {
            Ok(())
        } else {
            Err(format!("{stored} bytes are stored"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_remembered_count_until_they_are_forgotten() {
    let redis = Redis::start().await;
    let policy = "max_pending_bytes = \"100KiB\"\ndedupe = \"10s\"";
    let routes = TwoRoutes::start(&redis, policy).await;
    let named = |n: u32| {
        let message = routes
            .run
            .message(&routes.label(), When::Delay(50))
            .key(&routes.target);
        message.contract("x-delay-id", &format!("name-{n}"))
    };
    let messages = (0..1200).map(named).collect();
    routes
        .run
        .send_rabbitmq(routes.rabbitmq, "", Some(&routes.greedy), messages)
        .await;
    routes.waits_for("max_pending_bytes").await;
    let published = routes
        .relay
        .total("postdate_published_total", &[("route", "greedy")])
        .await;
    assert!(
        (400.0..1200.0).contains(&published),
        "{published} of 1200 names were taken in at first"
    );
    routes.flows_beside().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_takes_in_no_more_bytes_than_its_quota() {
    let redis = Redis::start().await;
    let routes = TwoRoutes::start(&redis, "max_pending_bytes = \"1MiB\"").await;
    let flood = Run::new();
    routes.flood(&flood, 4000).await;
    routes.waits_for("max_pending_bytes").await;
    routes.flows_beside().await;
    routes.waits_for("max_pending_bytes").await;
    let stored = routes
        .relay
        .total("postdate_pending", &[("route", "greedy")])
        .await
        * FLOOD_SIZE as f64;
    assert!(stored >= QUOTA / 2.0, "{stored} bytes are stored");
    assert!(stored <= QUOTA + BATCH, "{stored} bytes are stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_greediest_route_waits_before_redis_is_full_and_the_other_flows() {
    let redis = Redis::start_with("redis-server", &["--maxmemory", "40mb"]).await;
    let routes = TwoRoutes::start(&redis, "").await;
    let flood = Run::new();
    routes.flood(&flood, 12_000).await;
    routes.waits_for("store_memory").await;
    routes.flows_beside().await;
    let metrics = routes.relay.metrics().await.expect("metrics");
    let full = metrics.sum("postdate_store_memory_bytes", &[])
        / metrics.sum("postdate_store_memory_limit_bytes", &[]);
    assert!((0.6..0.9).contains(&full), "redis is full to {full}");
    assert!(
        metrics.sum("postdate_ingress_paused", &[("route", "beside")]) < 1.0,
        "the other route does not wait"
    );
}
