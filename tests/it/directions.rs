//! All four directions with the accounting on: nothing lost, early, changed, misrouted or twice.

use crate::support::{Config, Kafka, QueueKind, Rabbitmq, Redis, Relay, Run, When, names};

const COUNT: u64 = 100;

/// One route's two ends.
struct Ends {
    source: String,
    target: String,
}

/// The four routes of one relay: between two topics and two queues of its own each.
struct Four {
    run: Run,
    config: Config,
    routes: [Ends; 4],
}

async fn four_routes(redis: &Redis, kafka: &Kafka, rabbitmq: &Rabbitmq) -> Four {
    let run = Run::new();
    let mut config = Config::new(redis).kafka("main", kafka).rabbitmq("main", rabbitmq);
    let mut routes = Vec::new();
    for (name, from_kafka, to_kafka) in
        [("k-k", true, true), ("k-r", true, false), ("r-k", false, true), ("r-r", false, false)]
    {
        let ends = Ends { source: names::unique("source"), target: names::unique("target") };
        let from = if from_kafka {
            kafka.create_topic(&ends.source, 3).await;
            format!(r#"{{ kafka = "main", topic = "{0}", group = "{0}" }}"#, ends.source)
        } else {
            rabbitmq.declare_queue(&ends.source, QueueKind::Quorum).await;
            format!(r#"{{ rabbitmq = "main", queue = "{}" }}"#, ends.source)
        };
        let to = if to_kafka {
            kafka.create_topic(&ends.target, 3).await;
            run.collect_kafka(kafka, &ends.target, 3);
            format!(r#"{{ kafka = "main", topic = "{}" }}"#, ends.target)
        } else {
            rabbitmq.declare_queue(&ends.target, QueueKind::Classic).await;
            run.collect_rabbitmq(rabbitmq, &ends.target);
            format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{}" }}"#, ends.target)
        };
        config = config.route(name, &from, &to, "");
        routes.push(ends);
    }
    Four { run, config, routes: routes.try_into().ok().expect("four routes") }
}

impl Four {
    /// Sends to each route: due at once, in up to two seconds, and without a delay.
    async fn send(&self, kafka: &Kafka, rabbitmq: &Rabbitmq) {
        let [k_k, k_r, r_k, r_r] = &self.routes;
        let messages = |label: String, key: &str| -> Vec<_> {
            let message = |n: u64| {
                let when = match n % 4 {
                    0 => When::Now,
                    1 => When::Delay(0),
                    2 => When::Delay(n * 20),
                    _ => When::At(n * 20),
                };
                let message = self.run.message(&label, when).key(key).size(200 + n as usize);
                message.header("test-text", Some(b"caf\xc3\xa9")).header("test-bytes", Some(&[0, 0xff, 0x80]))
            };
            (0..COUNT).map(message).collect()
        };
        let (run, topic, queue) =
            (&self.run, |name: &str| format!("kafka:{name}"), |name: &str| format!("rabbitmq:{name}"));
        tokio::join!(
            run.send_kafka(kafka, &k_k.source, messages(topic(&k_k.target), "key")),
            run.send_kafka(kafka, &k_r.source, messages(queue(&k_r.target), "key")),
            run.send_rabbitmq(rabbitmq, "", None, messages(topic(&r_k.target), &r_k.source)),
            run.send_rabbitmq(rabbitmq, "", Some(&r_r.source), messages(queue(&r_r.target), &r_r.target)),
        );
    }
}

#[tokio::test]
async fn every_message_of_all_four_directions_is_accounted_for() {
    let (redis, kafka, rabbitmq) = tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let four = four_routes(redis, kafka, rabbitmq).await;
    let mut relay = Relay::start(&four.config).await;
    four.send(kafka, rabbitmq).await;
    four.run.drain(&relay).await;
    let report = four.run.report();
    report.assert_accounted(0);
    assert_eq!((report.delivered, report.fail, report.info), (4 * COUNT as usize, 0, 0));
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
}

#[tokio::test]
async fn sigterm_in_mid_flow_and_a_restart_repeat_nothing() {
    let (redis, kafka, rabbitmq) = tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let four = four_routes(redis, kafka, rabbitmq).await;
    let mut relay = Relay::start(&four.config).await;
    four.send(kafka, rabbitmq).await;
    let before = four.run.ledger().missing().len();
    assert!(before > 0, "the stop must come in mid-flow");
    assert_eq!(relay.terminate().await.code(), Some(0), "a clean stop");
    relay.restart().await;
    four.run.drain(&relay).await;
    four.run.report().assert_accounted(0);
}

#[tokio::test]
async fn kill_9_in_mid_flow_and_a_restart_lose_nothing_and_explain_each_duplicate() {
    let (redis, kafka, rabbitmq) = tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let mut four = four_routes(redis, kafka, rabbitmq).await;
    four.config = four.config.section("[timer]\nclaim = \"2s\"");
    let mut relay = Relay::start(&four.config).await;
    four.send(kafka, rabbitmq).await;
    assert!(!four.run.ledger().missing().is_empty(), "the kill must come in mid-flow");
    relay.kill9().await;
    relay.restart().await;
    four.run.drain(&relay).await;
    let explained = relay.total("postdate_redelivered_total", &[]).await;
    four.run.report().assert_accounted(explained as usize);
}
