//! Measures RabbitMQ to RabbitMQ: classic durable queues, persistent messages, publisher confirms. Bar 7.

use std::time::Duration;

use crate::load::fill_queue;
use crate::measure::{MeasuredRate, MessageCount, Processes, middle, watch};
use crate::report::{BarLimit, Report};
use crate::servers::{Servers, config};
use crate::steady::{WindowCut, window};
use crate::support::{QueueKind, Rabbitmq, Redis, Relay, folders, names};
use crate::{Scale, machine, mirror};

/// Delay of each message from its arrival, ms.
const DELAY_MS: i64 = 1_000;
/// Most pending messages, so that both directions are busy all the time.
const PENDING_MESSAGES: u64 = 20_000;

pub async fn bench(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let rabbitmq = servers.rabbitmq().await?;
    for _ in 0..scale.rounds {
        report.rate("mirror", &mirror_run(rabbitmq, scale).await?);
        let redis = servers.redis(false).await?;
        report.rate("relay", &relay_run(rabbitmq, &redis, scale).await?);
    }
    report.rates(&[("mirror", "mirror"), ("relay", "relay, in and out")]);
    report.ratio(
        7,
        "messages a second, to the mirror's",
        "rate",
        ("relay", "mirror"),
        BarLimit::AtLeast(0.9),
    );
    Ok(())
}

/// A full queue and an empty one.
async fn queues(rabbitmq: &Rabbitmq, messages: u64) -> anyhow::Result<(String, String)> {
    let source = names::unique("source");
    let target = names::unique("target");
    rabbitmq.declare_queue(&source, QueueKind::Classic).await;
    rabbitmq.declare_queue(&target, QueueKind::Classic).await;
    fill_queue(rabbitmq, &source, messages, DELAY_MS).await?;
    Ok((source, target))
}

async fn mirror_run(rabbitmq: &Rabbitmq, scale: &Scale) -> anyhow::Result<MeasuredRate> {
    let (source, target) = queues(rabbitmq, scale.rabbitmq).await?;
    let count = MessageCount::queue(rabbitmq, &target).await?;
    let clocks = machine::ClockCheck::start();
    let mut child = mirror::start(
        &folders::new("mirror"),
        "rabbitmq",
        &rabbitmq.url(),
        &source,
        &target,
    );
    let of = Processes::new(child.id(), rabbitmq.id(), None).await?;
    let samples = watch(&count, scale.rabbitmq, &of).await?;
    child.assert_running();
    drop(child);
    rabbitmq.delete_queue(&source).await;
    rabbitmq.delete_queue(&target).await;
    clocks.check()?;
    Ok(middle(&samples, scale.rabbitmq))
}

async fn relay_run(
    rabbitmq: &Rabbitmq,
    redis: &Redis,
    scale: &Scale,
) -> anyhow::Result<MeasuredRate> {
    let (source, target) = queues(rabbitmq, scale.rabbitmq).await?;
    let count = MessageCount::queue(rabbitmq, &target).await?;
    let clocks = machine::ClockCheck::start();
    let from = format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#);
    let to = format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#);
    let more = format!(
        "max_pending = {}",
        if scale.quick {
            scale.rabbitmq
        } else {
            PENDING_MESSAGES
        }
    );
    let config = config(redis)
        .rabbitmq("main", rabbitmq)
        .route("bench", &from, &to, &more);
    let mut relay = Relay::spawn(&config, &[]);
    let of = Processes::new(relay.id(), rabbitmq.id(), Some(redis)).await?;
    let cut = WindowCut {
        messages: scale.rabbitmq,
        length: Duration::from_secs(60),
        quick: scale.quick,
    };
    let window = window(&relay, &count, &of, cut).await;
    relay.kill9().await;
    rabbitmq.delete_queue(&source).await;
    rabbitmq.delete_queue(&target).await;
    clocks.check()?;
    let window = window?;
    Ok(MeasuredRate::between(
        &window[0].out,
        &window[window.len() - 1].out,
    ))
}
