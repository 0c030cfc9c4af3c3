//! Users with the fewest rights at Redis and RabbitMQ, as `docs/security.md` lists them, and what is said of those that
//! lack one. Relays of all other tests come to Redis as that user too.

use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, ExchangeKind};
use postdate::credential::Credential;
use postdate::domain::Partitions;
use postdate::store::config::{Config as StoreConfig, Durability, Overrides, Topology};
use postdate::store::{preflight, user_rules};

use crate::support::redis::LEAST_USER;
use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, eventually, names};

async fn set_user(redis: &Redis, rules: &[&str]) {
    let command = [&["ACL", "SETUSER"], rules].concat();
    redis
        .command::<()>(&command)
        .await
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
}

fn config_of(redis: &Redis, user: &str, prefix: &str) -> StoreConfig {
    let url = redis.url().replace("://", &format!("://{user}:secret@"));
    StoreConfig {
        topology: Topology::Standalone(Credential::inline(url)),
        prefix: prefix.to_owned(),
        partitions: Partitions::new(4).expect("a count"),
        durability: Durability::Async,
        growing_bundles: true,
        overrides: Overrides::default(),
        tls: postdate::tls::ClientFiles::default(),
    }
}

#[tokio::test]
async fn a_user_of_redis_who_lacks_any_one_right_is_told_which_before_the_first_message() {
    let redis = Redis::start().await;
    let rules = user_rules("post");
    let all: Vec<&str> = rules.iter().map(String::as_str).collect();
    set_user(&redis, &[&["whole", "on", ">secret"], &all[..]].concat()).await;
    assert_eq!(
        preflight(&config_of(&redis, "whole", "post"), true).await,
        Ok(())
    );
    let other = preflight(&config_of(&redis, "whole", "other"), true)
        .await
        .expect_err("other keys")
        .to_string();
    assert!(
        other.contains("may not touch the keys of the prefix"),
        "{other}"
    );
    let keys: Vec<String> = redis.command(&["KEYS", "*"]).await.expect("listed");
    assert_eq!(keys, ["post:meta"], "no try leaves anything");

    for rule in all.iter().filter(|rule| rule.starts_with('+')) {
        let rest: Vec<&str> = all.iter().copied().filter(|other| other != rule).collect();
        set_user(
            &redis,
            &[&["lacking", "reset", "on", ">secret"], &rest[..]].concat(),
        )
        .await;
        let why = preflight(&config_of(&redis, "lacking", "post"), true).await;
        let why = why.expect_err(rule).to_string().to_lowercase();
        let command = rule.trim_start_matches('+').replace('|', " ");
        assert!(
            why.replace('|', " ").contains(&command),
            "without {rule}: {why}"
        );
        assert!(
            !why.contains("damaged") && !why.contains("secret"),
            "without {rule}: {why}"
        );
    }
}

/// A relay from a queue to an exchange, and somebody who publishes to that queue.
struct Play {
    relay: Relay,
    channel: lapin::Channel,
    source: String,
    target: String,
}

impl Play {
    async fn start(redis: &Redis, rabbitmq: &Rabbitmq, amqp_url: &str, names: [&str; 3]) -> Self {
        let [source, exchange, target] = names;
        for queue in [source, target] {
            rabbitmq.declare_queue(queue, QueueKind::Classic).await;
        }
        rabbitmq
            .declare_exchange(exchange, ExchangeKind::Direct)
            .await;
        rabbitmq.bind(target, exchange, "mail").await;
        let config = Config::new(redis)
            .section(&format!("[rabbitmq.main]\nurl = \"{amqp_url}\""))
            .route(
                "mail",
                &format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#),
                &format!(
                    r#"{{ rabbitmq = "main", exchange = "{exchange}", routing_key = "mail" }}"#
                ),
                "",
            );
        let relay = Relay::start(&config).await;
        let connection = rabbitmq.connect().await.expect("connected");
        let channel = connection.create_channel().await.expect("a channel");
        Self {
            relay,
            channel,
            source: source.to_owned(),
            target: target.to_owned(),
        }
    }

    async fn send(&self) {
        let mut headers = FieldTable::default();
        headers.insert("x-delay".into(), AMQPValue::LongString("100ms".into()));
        let properties = BasicProperties::default().with_headers(headers);
        let queue = self.source.as_str().into();
        let sent = self.channel.basic_publish(
            "".into(),
            queue,
            BasicPublishOptions::default(),
            b"m",
            properties,
        );
        sent.await.expect("sent").await.expect("a confirm");
    }

    /// Waits until so many messages have arrived, besides repeats that the relay has counted: without one of its rights a
    /// relay may publish a message and not note it before its claim ends.
    async fn arrived(&self, rabbitmq: &Rabbitmq, count: u32) {
        eventually("all have arrived", async || {
            let found = rabbitmq.queue_len(&self.target).await;
            let repeats = self.relay.total("postdate_redelivered_total", &[]).await;
            if (count..=count + repeats as u32).contains(&found) {
                Ok(())
            } else {
                Err(anyhow::anyhow!("{found} of {count}, {repeats} repeats"))
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_right_that_is_taken_away_later_is_named_and_nothing_is_lost() {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let own = ["source", "exchange", "target"].map(names::unique);
    let play = Play::start(
        &redis,
        rabbitmq,
        &rabbitmq.url(),
        own.each_ref().map(String::as_str),
    )
    .await;
    play.send().await;
    play.arrived(rabbitmq, 1).await;
    for (n, command) in (2..).zip(["evalsha", "hget", "zadd", "set", "zrangebyscore"]) {
        set_user(&redis, &[LEAST_USER, &format!("-{command}")]).await;
        play.send().await;
        let sentence = format!("its user may not run {}", command.to_uppercase());
        eventually("the right is named", async || {
            let (status, body) = play.relay.get("/readyz").await?;
            anyhow::ensure!(
                status == 503 && body.contains(&sentence),
                "{status}: {body}"
            );
            let up = play
                .relay
                .metrics()
                .await?
                .sum("postdate_part_up", &[("part", "redis")]);
            anyhow::ensure!(up < 1.0, "the metric says {up}");
            Ok(())
        })
        .await;
        eventually("it is logged", async || {
            if play.relay.log().contains(&sentence) {
                Ok(())
            } else {
                Err("not yet")
            }
        })
        .await;
        set_user(&redis, &[LEAST_USER, &format!("+{command}")]).await;
        play.arrived(rabbitmq, n).await;
    }
    assert!(
        !play.relay.log().contains("damaged"),
        "a missing right is no damage"
    );
}

#[tokio::test]
async fn a_user_of_rabbitmq_with_the_fewest_rights_relays() {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let [user, source, exchange, target] =
        ["user", "source", "exchange", "target"].map(names::unique);
    rabbitmq.ctl(&["add_user", &user, "secret"]).await;
    rabbitmq
        .ctl(&[
            "set_permissions",
            &user,
            "^$",
            &format!("^{exchange}$"),
            &format!("^{source}$"),
        ])
        .await;
    let url = rabbitmq
        .url()
        .replace("guest:guest", &format!("{user}:secret"));
    let play = Play::start(&redis, rabbitmq, &url, [&source, &exchange, &target]).await;
    play.send().await;
    play.arrived(rabbitmq, 1).await;
    rabbitmq.ctl(&["delete_user", &user]).await;
}
