//! Secrets in files, rotated while the relay runs: the next connection takes the new one, without a restart.

use std::path::{Path, PathBuf};

use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable};

use crate::support::redis::LEAST_USER;
use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, eventually, folders, names};

/// A relay from one queue to another whose Redis and RabbitMQ are named by `url_file`.
struct RotatedRelay {
    relay: Relay,
    rabbitmq: &'static Rabbitmq,
    redis: Redis,
    user: String,
    channel: lapin::Channel,
    queues: [String; 2],
    redis_file: PathBuf,
    rabbitmq_file: PathBuf,
}

fn write(file: &Path, url: &str) {
    std::fs::write(file, format!("{url}\n")).expect("written");
}

impl RotatedRelay {
    async fn start() -> Self {
        let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
        let user = names::unique("user");
        rabbitmq.ctl(&["add_user", &user, "first"]).await;
        rabbitmq
            .ctl(&["set_permissions", &user, ".*", ".*", ".*"])
            .await;
        let queues = ["in", "out"].map(names::unique);
        for queue in &queues {
            rabbitmq.declare_queue(queue, QueueKind::Classic).await;
        }
        let folder = folders::new("credentials");
        let redis_file = folder.join("redis-url");
        let rabbitmq_file = folder.join("rabbitmq-url");
        write(&redis_file, &redis.least_url());
        write(
            &rabbitmq_file,
            &rabbitmq
                .url()
                .replace("guest:guest", &format!("{user}:first")),
        );
        let [from, to] = &queues;
        let config = Config::stored(&format!("url_file = \"{}\"", redis_file.display()))
            .section(&format!(
                "[rabbitmq.main]\nurl_file = \"{}\"",
                rabbitmq_file.display()
            ))
            .route(
                "mail",
                &format!(r#"{{ rabbitmq = "main", queue = "{from}" }}"#),
                &format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{to}" }}"#),
                "",
            );
        let relay = Relay::start(&config).await;
        let connection = rabbitmq.connect().await.expect("connected");
        let channel = connection.create_channel().await.expect("a channel");
        Self {
            relay,
            rabbitmq,
            redis,
            user,
            channel,
            queues,
            redis_file,
            rabbitmq_file,
        }
    }

    /// Sends one delayed message, and waits until so many have arrived.
    async fn delivers(&self, count: u32) {
        let mut headers = FieldTable::default();
        headers.insert("x-delay".into(), AMQPValue::LongString("100ms".into()));
        let [from, to] = &self.queues;
        self.channel
            .basic_publish(
                "".into(),
                from.as_str().into(),
                BasicPublishOptions::default(),
                b"m",
                BasicProperties::default().with_headers(headers),
            )
            .await
            .expect("sent");
        eventually("the message arrives", async || {
            let arrived = self.rabbitmq.queue_len(to).await;
            if arrived >= count {
                Ok(())
            } else {
                Err(format!("{arrived}: {}", self.relay.log()))
            }
        })
        .await;
    }

    async fn change_rabbitmq(&self, password: &str) {
        let user = self.user.as_str();
        self.rabbitmq
            .ctl(&["change_password", user, password])
            .await;
    }

    async fn close_rabbitmq(&self) {
        let user = self.user.as_str();
        self.rabbitmq
            .ctl(&["close_all_user_connections", user, "the test"])
            .await;
    }
}

#[tokio::test]
async fn a_rotated_secret_is_taken_at_the_next_connection() {
    let play = RotatedRelay::start().await;
    play.delivers(1).await;

    // The file first, as Vault's agent and Kubernetes do it.
    let url = play.rabbitmq.url();
    let login = format!("{}:second", play.user);
    write(&play.rabbitmq_file, &url.replace("guest:guest", &login));
    play.change_rabbitmq("second").await;
    play.close_rabbitmq().await;
    play.delivers(2).await;

    // The server first: the old password is refused until the file is there.
    play.change_rabbitmq("third").await;
    play.close_rabbitmq().await;
    eventually("the old password is refused", async || {
        let log = play.relay.log();
        if log.contains("ACCESS_REFUSED") {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
    let login = format!("{}:third", play.user);
    write(&play.rabbitmq_file, &url.replace("guest:guest", &login));
    play.delivers(3).await;

    let url = play.redis.url();
    let login = format!("://{LEAST_USER}:second@");
    write(&play.redis_file, &url.replace("://", &login));
    play.redis
        .command::<()>(&["ACL", "SETUSER", LEAST_USER, "resetpass", ">second"])
        .await
        .expect("changed");
    play.redis
        .command::<i64>(&["CLIENT", "KILL", "USER", LEAST_USER])
        .await
        .expect("closed");
    play.delivers(4).await;
    play.rabbitmq.ctl(&["delete_user", &play.user]).await;
}
