//! Bodies that are far above `max_size`, in a queue that anybody may write to: they cost the process no memory, each
//! is accounted for, and another queue of the process is read meanwhile.

use std::time::{Duration, Instant};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, ExchangeKind};

use crate::support::proxy::Mode;
use crate::support::run::Message;
use crate::support::{
    Config, Proxy, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names,
};

/// Bytes of a body that is kept as a dead letter.
const KEPT: usize = 10 << 20;
/// Bytes of a body over `dead_letters.max_message`.
const REJECTED: usize = 17 << 20;
/// Most that the relay may occupy, kB.
const MOST_KB: u64 = 400_000;
/// Longest time until a message without a delay has passed the other route, on a busy machine.
const SOON: Duration = Duration::from_secs(10);

/// Longest time for 1000 small messages when a round trip to the store takes 100 ms. Read one at a time, they take 100 s.
const FLOWS: Duration = Duration::from_secs(18);

/// Time in which a relay that read too much would have done so: a peak is no event.
const READS: Duration = Duration::from_secs(10);

/// The most that a relay has occupied so far, kB.
fn peak_kb(relay: &Relay) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", relay.id())).expect("its status");
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next());
    peak.and_then(|kb| kb.parse().ok()).expect("a peak")
}

/// Pauses or resumes the ingress of the first route.
async fn order(relay: &Relay, verb: &str) {
    let path = format!("/api/v1/routes/large/{verb}");
    let (status, body) = relay
        .request("POST", &path, None, r#"{"only":"ingress"}"#)
        .await
        .expect("an answer");
    assert_eq!(status, 200, "{body}");
}

/// Two routes from queues of one broker. What the first one's queue rejects goes to its graveyard.
struct LargeBodies {
    rabbitmq: &'static Rabbitmq,
    large: Way,
    beside: Way,
    graveyard: String,
    config: Config,
    random: Vec<u8>,
}

/// A route from a queue to a queue, with the accounting of what is small in it.
struct Way {
    rabbitmq: &'static Rabbitmq,
    from: String,
    to: String,
    run: Run,
}

impl Way {
    fn new(rabbitmq: &'static Rabbitmq, from: String, to: String) -> Self {
        let run = Run::new();
        run.collect_rabbitmq(rabbitmq, &to);
        Self {
            rabbitmq,
            from,
            to,
            run,
        }
    }

    /// Sends messages that pass through.
    async fn send(&self, count: usize) {
        self.send_when(count, When::Now).await;
    }

    async fn send_when(&self, count: usize, when: When) {
        let message = |_| {
            let label = format!("rabbitmq:{}", self.to);
            self.run.message(&label, when).key(&self.to)
        };
        let messages: Vec<Message> = (0..count).map(message).collect();
        self.run
            .send_rabbitmq(self.rabbitmq, "", Some(&self.from), messages)
            .await;
    }

    /// Waits until all that was sent has arrived, which must not take long.
    async fn all_flow(&self) {
        let began = Instant::now();
        self.all_arrive().await;
        let took = began.elapsed();
        println!("all arrived in {took:?}");
        assert!(took < FLOWS, "they took {took:?}");
    }

    /// Waits until all that was sent has arrived.
    async fn all_arrive(&self) {
        eventually("all arrive", async || match self.run.ledger().missing() {
            missing if missing.is_empty() => Ok(()),
            missing => Err(format!("{} are missing", missing.len())),
        })
        .await;
    }
}

impl LargeBodies {
    async fn new(redis: &Redis, kind: QueueKind, policy: &str) -> Self {
        let rabbitmq = Rabbitmq::shared().await;
        let [large, large_to, beside, beside_to, graveyard] =
            ["large", "large-to", "beside", "beside-to", "graveyard"].map(names::unique);
        for queue in [&large_to, &beside, &beside_to, &graveyard] {
            rabbitmq.declare_queue(queue, QueueKind::Classic).await;
        }
        rabbitmq
            .declare_exchange(&graveyard, ExchangeKind::Fanout)
            .await;
        rabbitmq.bind(&graveyard, &graveyard, "").await;
        let mut arguments = FieldTable::default();
        let exchange = AMQPValue::LongString(graveyard.as_str().into());
        arguments.insert("x-dead-letter-exchange".into(), exchange);
        rabbitmq.declare_queue_with(&large, kind, arguments).await;
        let from = |queue: &str| format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#);
        let to = |queue: &str| {
            format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{queue}" }}"#)
        };
        let config = Config::new(redis)
            .rabbitmq("main", rabbitmq)
            .route("large", &from(&large), &to(&large_to), policy)
            .route("beside", &from(&beside), &to(&beside_to), "");
        let mut random = vec![0; REJECTED];
        fastrand::Rng::with_seed(7).fill(&mut random);
        Self {
            rabbitmq,
            large: Way::new(rabbitmq, large, large_to),
            beside: Way::new(rabbitmq, beside, beside_to),
            graveyard,
            config,
            random,
        }
    }

    /// Publishes so many bodies of this size to the first route's queue.
    async fn send_large(&self, count: usize, size: usize) {
        let connection = self.rabbitmq.connect().await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await
            .expect("confirms");
        for _ in 0..count {
            let published = channel.basic_publish(
                "".into(),
                self.large.from.as_str().into(),
                BasicPublishOptions::default(),
                &self.random[..size],
                BasicProperties::default().with_delivery_mode(2),
            );
            published
                .await
                .expect("it is sent")
                .await
                .expect("it is confirmed");
        }
        connection
            .close(200, "done".into())
            .await
            .expect("it closes");
    }

    /// Waits until so many are dead letters and so many in the graveyard, while the other route is used.
    async fn are_dead(&self, relay: &Relay, kept: u32, rejected: u32) {
        eventually("each large body is accounted for", async || {
            let began = Instant::now();
            self.beside.send(1).await;
            self.beside.all_arrive().await;
            let took = began.elapsed();
            assert!(took < SOON, "the other route took {took:?}");
            let dead = relay
                .metrics()
                .await
                .map_err(|error| error.to_string())?
                .sum("postdate_dead", &[("route", "large")]);
            let buried = self.rabbitmq.queue_len(&self.graveyard).await;
            if (dead - f64::from(kept)).abs() < 0.5 && buried == rejected {
                Ok(())
            } else {
                Err(format!("{dead} dead letters, {buried} in the graveyard"))
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_bodies_of_ten_mebibytes_cost_no_memory_and_each_becomes_a_dead_letter() {
    let redis = Redis::start().await;
    let redis_link = Proxy::before(redis.port()).await;
    let policy = "dead_letters = { max_bytes = \"1GiB\" }";
    let mut bodies = LargeBodies::new(&redis, QueueKind::Classic, policy).await;
    bodies.config = bodies.config.through(&redis, redis_link.port());
    let mut relay = Relay::start(&bodies.config).await;
    bodies.large.send(1).await;
    bodies.large.all_arrive().await;
    // It is subscribed now; without the store it would not be.
    redis_link.set(Mode::Hole);
    bodies.send_large(60, KEPT).await;
    tokio::time::sleep(READS).await;
    redis_link.set(Mode::Pass);
    bodies.are_dead(&relay, 60, 0).await;
    let peak = peak_kb(&relay);
    println!("peak {peak} kB");
    assert!(peak <= MOST_KB, "{peak} kB");
    bodies.beside.run.report().assert_accounted(0);
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_behind_many_small_ones_cost_no_memory_and_each_is_kept_or_goes_back() {
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        let redis = Redis::start().await;
        let policy = "dead_letters = { max_bytes = \"1GiB\" }";
        let bodies = LargeBodies::new(&redis, kind, policy).await;
        let mut relay = Relay::start(&bodies.config).await;
        bodies.large.send(1000).await;
        bodies.large.all_arrive().await;
        let why = "small ones wait in the queue behind large ones";
        bodies.large.run.unobserved(why);
        bodies.send_large(20, KEPT).await;
        bodies.large.send(10).await;
        bodies.send_large(10, REJECTED).await;
        bodies.send_large(20, KEPT).await;
        bodies.large.send(10).await;
        bodies.are_dead(&relay, 40, 10).await;
        let peak = peak_kb(&relay);
        println!("peak {peak} kB");
        assert!(peak <= MOST_KB, "{peak} kB");
        bodies.large.all_arrive().await;
        bodies.large.run.report().assert_accounted(0);
        bodies.beside.run.report().assert_accounted(0);
        let log = relay.log();
        assert!(log.contains("a queue has a body over max_size"), "{log}");
        assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_that_are_dropped_or_pass_cost_no_memory() {
    for (policy, passes) in [
        ("on_invalid = \"drop\"", false),
        ("on_invalid = \"pass_through\"", true),
    ] {
        let redis = Redis::start().await;
        let bodies = LargeBodies::new(&redis, QueueKind::Classic, policy).await;
        bodies.send_large(30, REJECTED).await;
        let why = "small ones wait in the queue behind large ones";
        bodies.large.run.unobserved(why);
        bodies.large.send(10).await;
        let mut relay = Relay::start(&bodies.config).await;
        bodies.large.all_arrive().await;
        bodies.are_dead(&relay, 0, 0).await;
        let invalid = [("route", "large"), ("reason", "too_big")];
        assert_eq!(
            relay.total("postdate_invalid_total", &invalid).await as u32,
            30
        );
        let published = [("route", "large")];
        let published = relay
            .total("postdate_passed_through_total", &published)
            .await as u32;
        assert_eq!(published, if passes { 40 } else { 10 });
        let peak = peak_kb(&relay);
        println!("peak {peak} kB");
        assert!(peak <= MOST_KB, "{peak} kB");
        assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn small_bodies_are_read_fast_from_the_start_and_after_a_pause() {
    let redis = Redis::start().await;
    let redis_link = Proxy::before(redis.port()).await;
    // Only one body of this size fits into a queue's part of the memory.
    let policy = "dead_letters = { max_message = \"48MiB\", max_bytes = \"1GiB\" }";
    let mut bodies = LargeBodies::new(&redis, QueueKind::Classic, policy).await;
    bodies.config = bodies.config.through(&redis, redis_link.port());
    let slow = Mode::Delay(Duration::from_millis(50));
    redis_link.set(slow);
    let why = "messages wait in the queue";
    bodies.large.run.unobserved(why);
    bodies.large.send_when(1000, When::Delay(1)).await;
    let mut relay = Relay::start(&bodies.config).await;
    bodies.large.all_flow().await;
    order(&relay, "pause").await;
    eventually("the queue's subscription has ended", async || {
        let ended = relay.log().contains("what was delivered goes back");
        ended.then_some(()).ok_or("it goes on")
    })
    .await;
    bodies.large.send_when(1000, When::Delay(1)).await;
    order(&relay, "resume").await;
    bodies.large.all_flow().await;
    bodies.large.run.report().assert_accounted(0);
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
}
