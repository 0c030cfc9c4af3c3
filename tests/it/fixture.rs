//! Opens the four routes of one relay, one a direction, and sends their load.

use crate::support::run::Message;
use crate::support::{Config, Kafka, QueueKind, Rabbitmq, Redis, Run, When, names};

/// Messages of one sending to one route.
pub(super) const COUNT: u64 = 100;

/// One route's two ends.
pub(super) struct Ends {
    pub(super) source: String,
    pub(super) target: String,
}

/// The four routes of one relay: between two topics and two queues of its own each.
pub(super) struct FourRoutesFixture {
    pub(super) run: Run,
    pub(super) config: Config,
    /// Kafka to Kafka, Kafka to RabbitMQ, RabbitMQ to Kafka, RabbitMQ to RabbitMQ.
    pub(super) routes: [Ends; 4],
}

pub(super) async fn four_routes(
    redis: &Redis,
    kafka: &Kafka,
    rabbitmq: &Rabbitmq,
) -> FourRoutesFixture {
    let run = Run::new();
    let mut config = Config::new(redis)
        .kafka("main", kafka)
        .rabbitmq("main", rabbitmq);
    let mut routes = Vec::new();
    for (name, from_kafka, to_kafka) in [
        ("k-k", true, true),
        ("k-r", true, false),
        ("r-k", false, true),
        ("r-r", false, false),
    ] {
        let ends = Ends {
            source: names::unique("source"),
            target: names::unique("target"),
        };
        let from = if from_kafka {
            kafka.create_topic(&ends.source, 3).await;
            format!(
                r#"{{ kafka = "main", topic = "{0}", group = "{0}" }}"#,
                ends.source
            )
        } else {
            rabbitmq
                .declare_queue(&ends.source, QueueKind::Quorum)
                .await;
            format!(r#"{{ rabbitmq = "main", queue = "{}" }}"#, ends.source)
        };
        let to = if to_kafka {
            kafka.create_topic(&ends.target, 3).await;
            run.collect_kafka(kafka, &ends.target, 3);
            format!(r#"{{ kafka = "main", topic = "{}" }}"#, ends.target)
        } else {
            rabbitmq
                .declare_queue(&ends.target, QueueKind::Classic)
                .await;
            run.collect_rabbitmq(rabbitmq, &ends.target);
            format!(
                r#"{{ rabbitmq = "main", exchange = "", routing_key = "{}" }}"#,
                ends.target
            )
        };
        config = config.route(name, &from, &to, "");
        routes.push(ends);
    }
    FourRoutesFixture {
        run,
        config,
        routes: routes.try_into().ok().expect("four routes"),
    }
}

impl FourRoutesFixture {
    /// Sends to each route: due at once, in up to two seconds, and without a delay.
    pub(super) async fn send(&self, kafka: &Kafka, rabbitmq: &Rabbitmq) {
        tokio::join!(self.send_kafka(kafka, 20), self.send_rabbitmq(rabbitmq, 20));
    }

    /// The same to the two routes that read from Kafka, the n-th due after `step_ms` times n.
    pub(super) async fn send_kafka(&self, kafka: &Kafka, step_ms: u64) {
        let [k_k, k_r, ..] = &self.routes;
        let to_topic = self.messages(&format!("kafka:{}", k_k.target), "key", step_ms);
        let to_queue = self.messages(&format!("rabbitmq:{}", k_r.target), "key", step_ms);
        let run = &self.run;
        tokio::join!(
            run.send_kafka(kafka, &k_k.source, to_topic),
            run.send_kafka(kafka, &k_r.source, to_queue)
        );
    }

    /// The same to the two routes that read from RabbitMQ.
    pub(super) async fn send_rabbitmq(&self, rabbitmq: &Rabbitmq, step_ms: u64) {
        let [.., r_k, r_r] = &self.routes;
        let to_topic = self.messages(&format!("kafka:{}", r_k.target), &r_k.source, step_ms);
        let to_queue = self.messages(&format!("rabbitmq:{}", r_r.target), &r_r.target, step_ms);
        let run = &self.run;
        tokio::join!(
            run.send_rabbitmq(rabbitmq, "", None, to_topic),
            run.send_rabbitmq(rabbitmq, "", Some(&r_r.source), to_queue),
        );
    }

    fn messages(&self, label: &str, key: &str, step_ms: u64) -> Vec<Message> {
        let message = |n: u64| {
            let when = match n % 4 {
                0 => When::Now,
                1 => When::Delay(0),
                2 => When::Delay(n * step_ms),
                _ => When::At(n * step_ms),
            };
            let message = self
                .run
                .message(label, when)
                .key(key)
                .size(200 + n as usize);
            message
                .header("test-text", Some(b"caf\xc3\xa9"))
                .header("test-bytes", Some(&[0, 0xff, 0x80]))
        };
        (0..COUNT).map(message).collect()
    }
}
