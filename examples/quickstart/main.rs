//! Postdate at work between a real Redis, RabbitMQ and Kafka: the moving parts of `scripts/quickstart`.
//!
//! Starts the servers on free ports with their data in a temporary folder, writes a configuration, starts
//! the relay, sends delayed messages through both brokers and shows each arriving. Everything is a child
//! of this process and ends with it.
#![allow(
    clippy::print_stdout,
    reason = "it is a demonstration: its output is its purpose"
)]
#![allow(
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "shares the tests' support"
)]

#[path = "../../tests/support/mod.rs"]
mod support;

mod show;

use std::process::ExitCode;
use std::time::Duration;

use lapin::ExchangeKind;
use support::{Config, Kafka, QueueKind, Rabbitmq, Redis, Relay, Run, relay};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The servers. There is no Kafka without Java.
struct Servers {
    redis: Redis,
    rabbitmq: Rabbitmq,
    kafka: Option<Kafka>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let once = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--once") => true,
        Some(other) => {
            println!("unknown argument {other}: see scripts/quickstart --help");
            return ExitCode::from(64);
        }
    };
    let mut interrupt = signal(SignalKind::interrupt()).expect("a signal handler");
    let mut terminate = signal(SignalKind::terminate()).expect("a signal handler");
    tokio::select! {
        on_time = demonstrate(once) => if on_time { ExitCode::SUCCESS } else { ExitCode::FAILURE },
        () = either(&mut interrupt, &mut terminate) => {
            // The select has dropped the demonstration, which kills all servers and removes their data.
            println!("\nstopped: Postdate, its brokers and their data are gone");
            if once { ExitCode::from(130) } else { ExitCode::SUCCESS }
        }
    }
}

async fn either(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// Runs the demonstration. Returns true if every message arrived on time. Without `once` it runs until it is
/// interrupted or the relay ends.
async fn demonstrate(once: bool) -> bool {
    let servers = start_servers().await;
    let run = Run::new();
    prepare(&servers, &run).await;
    let config = configuration(&servers);
    let mut relay = Relay::spawn(&config, &[]);
    println!("The configuration, {}:\n", relay.config_file().display());
    println!(
        "{}",
        indented(&std::fs::read_to_string(relay.config_file()).expect("the file just written"))
    );
    relay.ready().await;
    println!("Postdate is ready: {}/readyz\n", relay.url());

    let messages = show::send(&servers, &run).await;
    let on_time = show::arrivals(&run, &messages).await;
    if once {
        return stop(relay).await && on_time;
    }
    what_next(&servers, &relay);
    let ended = relay.wait(Duration::MAX).await;
    println!("Postdate has ended by itself: {ended:?}\n{}", relay.log());
    false
}

async fn start_servers() -> Servers {
    let with_kafka = Kafka::installed();
    match &with_kafka {
        Ok(()) => println!("Starting Redis, RabbitMQ and Kafka on free ports (some seconds) ..."),
        Err(why) => {
            println!(
                "{why}\nGoing on without Kafka.\n\nStarting Redis and RabbitMQ (some seconds) ..."
            );
        }
    }
    let kafka = async {
        if with_kafka.is_ok() {
            Some(Kafka::start().await)
        } else {
            None
        }
    };
    let (redis, rabbitmq, kafka) = tokio::join!(Redis::start(), Rabbitmq::start(), kafka);
    println!(
        "  Redis     {}\n  RabbitMQ  {}",
        redis.url(),
        rabbitmq.url()
    );
    if let Some(kafka) = &kafka {
        println!("  Kafka     {}", kafka.bootstrap());
    }
    println!();
    Servers {
        redis,
        rabbitmq,
        kafka,
    }
}

/// Topics, queues and the consumers at the far end: Postdate creates none of them.
async fn prepare(servers: &Servers, run: &Run) {
    let rabbitmq = &servers.rabbitmq;
    rabbitmq
        .declare_queue("mail.delayed", QueueKind::Quorum)
        .await;
    rabbitmq
        .declare_queue("mail.welcome", QueueKind::Classic)
        .await;
    rabbitmq
        .declare_exchange("mail", ExchangeKind::Direct)
        .await;
    rabbitmq.bind("mail.welcome", "mail", "welcome").await;
    run.collect_rabbitmq(rabbitmq, "mail.welcome");
    if let Some(kafka) = &servers.kafka {
        kafka.create_topic("orders.delayed", 3).await;
        kafka.create_topic("orders", 3).await;
        run.collect_kafka(kafka, "orders", 3);
    }
}

fn configuration(servers: &Servers) -> Config {
    let mut config = Config::new(&servers.redis)
        .rabbitmq("main", &servers.rabbitmq)
        .section(
            "# What is published to the queue mail.delayed comes out of the exchange mail when it is due.",
        )
        .route(
            "mail",
            r#"{ rabbitmq = "main", queue = "mail.delayed" }"#,
            r#"{ rabbitmq = "main", exchange = "mail", routing_key = "welcome" }"#,
            "",
        );
    if let Some(kafka) = &servers.kafka {
        config = config
            .kafka("main", kafka)
            .section("# What is produced to orders.delayed appears in orders when it is due.")
            .route(
                "orders",
                r#"{ kafka = "main", topic = "orders.delayed", group = "postdate" }"#,
                r#"{ kafka = "main", topic = "orders" }"#,
                "",
            );
    }
    config
}

/// Stops the relay cleanly, as `kill` or Kubernetes does.
async fn stop(mut relay: Relay) -> bool {
    let status = relay.terminate().await;
    if !status.success() {
        println!("Postdate did not stop cleanly: {status}\n{}", relay.log());
    }
    status.success()
}

fn what_next(servers: &Servers, relay: &Relay) {
    let send = |route: &str, delay: &str| {
        let postdate = relay::binary();
        let url = relay.url();
        let postdate = postdate.display();
        println!(
            "  POSTDATE_URL={url} {postdate} send --route {route} --delay {delay} --body hello --wait"
        );
    };
    println!("Everything keeps running. In another terminal, try:\n");
    send("mail", "3s");
    if servers.kafka.is_some() {
        send("orders", "1500ms");
    }
    println!("  curl {0}/metrics\n  curl {0}/readyz", relay.url());
    println!(
        "\nor publish to them yourself with a header x-delay (milliseconds, or 90s, 2h30m, PT1.5S)."
    );
    println!("Ctrl-C stops Postdate, the brokers, and removes their data.");
}

fn indented(text: &str) -> String {
    format!("    {}\n", text.trim_end().replace('\n', "\n    "))
}
