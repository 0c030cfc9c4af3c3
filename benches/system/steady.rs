//! Measures Kafka to Kafka, in and out at once, in a steady state: bars 1, 3 and 4, with an append-only file 13, and with
//! the trail 18.
//!
//! The source is full before the run. `max_pending` keeps the number of pending messages steady: the relay reads as
//! fast as it publishes. The window is cut out of that time and leaves out the ramp.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};

use crate::load::Load;
use crate::measure::{CountSample, MeasuredRate, MessageCount, Processes, middle, sample, watch};
use crate::report::{BarLimit, Report};
use crate::servers::{Servers, TOPIC_PARTITIONS, kafka_config};
use crate::support::{Kafka, Redis, Relay, folders};
use crate::{Scale, floor, machine, mirror};

/// Delay of each message from its arrival, ms.
const DELAY_MS: u64 = 2_000;
/// Interval between two samples of a steady state.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Time after the first message came out that is left out.
const SETTLING_TIME: Duration = Duration::from_secs(3);
/// Share by which the number of pending messages may change from the first to the last fifth of the window.
const MAX_DRIFT: f64 = 0.1;
/// Most tries to get a steady state.
const MAX_TRIES: usize = 6;

/// Bars 1, 3 and 4: the mirror and the relay, alternately.
pub async fn bench(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let kafka = servers.kafka().await?;
    let source = servers.filled(scale.steady, Load::Equal(DELAY_MS)).await?;
    for _ in 0..scale.rounds {
        report.rate("mirror", &mirror_run(kafka, &source, scale.steady).await?);
        let redis = servers.redis(false).await?;
        let (rate, pending) = steady(&redis, kafka, &source, "", scale).await?;
        report.rate("relay", &rate);
        report.add("relay", "pending", pending);
        drop(redis);
        report.add(
            "bare",
            "redis",
            floor::bare(&servers.redis(false).await?, scale.bare).await?,
        );
    }
    report.rates(&[("mirror", "mirror"), ("relay", "relay, in and out")]);
    report.table(
        "in the window",
        &[("relay", "relay")],
        &[("pending", "pending messages")],
    );
    report.table(
        "Redis alone",
        &[("bare", "bare commands, whole life")],
        &[("redis", "CPU us/message")],
    );
    report.ratio(
        1,
        "messages a second, to the mirror's",
        "rate",
        ("relay", "mirror"),
        BarLimit::AtLeast(0.65),
    );
    report.ratio(
        3,
        "CPU a message, to the mirror's",
        "cpu",
        ("relay", "mirror"),
        BarLimit::AtMost(2.0),
    );
    report.ratio(
        4,
        "Redis CPU a message, to bare commands'",
        "redis",
        ("relay", "bare"),
        BarLimit::AtMost(0.2),
    );
    Ok(())
}

/// Bar 13: without and with an append-only file, alternately.
pub async fn aof(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let kafka = servers.kafka().await?;
    let source = servers.filled(scale.steady, Load::Equal(DELAY_MS)).await?;
    for _ in 0..scale.rounds {
        for (row, aof) in [("none", false), ("aof", true)] {
            let redis = servers.redis(aof).await?;
            report.rate(row, &steady(&redis, kafka, &source, "", scale).await?.0);
        }
    }
    report.rates(&[("none", "no persistence"), ("aof", "AOF, everysec")]);
    report.ratio(
        13,
        "messages a second, AOF to none",
        "rate",
        ("aof", "none"),
        BarLimit::AtLeast(0.55),
    );
    Ok(())
}

/// Bar 18: without a trail and with the default one, alternately.
pub async fn trail(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let kafka = servers.kafka().await?;
    let source = servers.filled(scale.steady, Load::Equal(DELAY_MS)).await?;
    for _ in 0..scale.rounds {
        for (row, policy) in [("none", "history = \"0s\""), ("trail", "")] {
            let redis = servers.redis(false).await?;
            report.rate(row, &steady(&redis, kafka, &source, policy, scale).await?.0);
        }
    }
    report.rates(&[("none", "no trail"), ("trail", "an hour, 100,000 events")]);
    let limit = BarLimit::AtLeast(0.95);
    report.ratio(
        18,
        "messages a second, with the trail to without",
        "rate",
        ("trail", "none"),
        limit,
    );
    Ok(())
}

/// The mirror from a full topic.
pub async fn mirror_run(
    kafka: &Kafka,
    source: &str,
    messages: u64,
) -> anyhow::Result<MeasuredRate> {
    let target = kafka.unique_topic("target", TOPIC_PARTITIONS).await;
    let count = MessageCount::topic(kafka, &target, TOPIC_PARTITIONS);
    let clocks = machine::ClockCheck::start();
    let mut child = mirror::start(
        &folders::new("mirror"),
        "kafka",
        &kafka.bootstrap(),
        source,
        &target,
    );
    let of = Processes::new(child.id(), kafka.id(), None).await?;
    let samples = watch(&count, messages, &of).await?;
    child.assert_running();
    drop(child);
    kafka.delete_topic(&target).await;
    clocks.check()?;
    Ok(middle(&samples, messages))
}

/// A sample at both ends of the store.
pub struct BothEnds {
    pub out: CountSample,
    pub stored: u64,
}

/// Beginning and end of a window.
#[derive(Clone, Copy, Debug)]
pub struct WindowCut {
    /// Messages in the source.
    pub messages: u64,
    /// The window ends after this time, or when the source is used up.
    pub length: Duration,
    pub quick: bool,
}

impl BothEnds {
    fn pending(&self) -> f64 {
        self.stored.saturating_sub(self.out.count) as f64
    }
}

/// Measures the relay in a steady state, with the number of pending messages. A state that is not steady is reported
/// and measured again. `policy` are further keys of the route.
async fn steady(
    redis: &Redis,
    kafka: &Kafka,
    source: &str,
    policy: &str,
    scale: &Scale,
) -> anyhow::Result<(MeasuredRate, f64)> {
    let mut last = String::new();
    for _ in 0..MAX_TRIES {
        let window = relay_run(redis, kafka, source, policy, scale).await?;
        let (from, to) = drift(&window);
        let rate = MeasuredRate::between(&window[0].out, &window[window.len() - 1].out);
        if scale.quick || (to / from - 1.0).abs() <= MAX_DRIFT {
            return Ok((rate, from));
        }
        last = format!("{from:.0} messages were pending at first and {to:.0} at last");
        println!("  not steady, once more: {last}");
    }
    bail!("no steady state: {last}")
}

/// Average number of pending messages in the first and in the last fifth of a window.
fn drift(window: &[BothEnds]) -> (f64, f64) {
    let fifth = window.len().div_ceil(5);
    let mean =
        |part: &[BothEnds]| part.iter().map(BothEnds::pending).sum::<f64>() / part.len() as f64;
    (
        mean(&window[..fifth]),
        mean(&window[window.len() - fifth..]),
    )
}

async fn relay_run(
    redis: &Redis,
    kafka: &Kafka,
    source: &str,
    policy: &str,
    scale: &Scale,
) -> anyhow::Result<Vec<BothEnds>> {
    let target = kafka.unique_topic("target", TOPIC_PARTITIONS).await;
    let out = MessageCount::topic(kafka, &target, TOPIC_PARTITIONS);
    let clocks = machine::ClockCheck::start();
    let more = format!("max_pending = {}\n{policy}", scale.pending);
    let mut relay = Relay::spawn(&kafka_config(redis, kafka, source, &target, &more), &[]);
    relay.ready().await;
    let of = Processes::new(relay.id(), kafka.id(), Some(redis)).await?;
    let cut = WindowCut {
        messages: scale.steady,
        length: scale.window,
        quick: scale.quick,
    };
    let window = window(&relay, &out, &of, cut).await;
    relay.kill9().await;
    kafka.delete_topic(&target).await;
    clocks.check()?;
    let window = window?;
    let seconds = window[window.len() - 1]
        .out
        .at
        .duration_since(window[0].out.at);
    ensure!(
        scale.quick || seconds >= scale.window.mul_f64(0.95),
        "the source ran dry after {seconds:?} of {:?}: it needs more than {} messages",
        scale.window,
        scale.steady
    );
    Ok(window)
}

/// Takes samples from the moment of a steady state on, until the window is over or the source is used up.
pub async fn window(
    relay: &Relay,
    out: &MessageCount<'_>,
    of: &Processes,
    cut: WindowCut,
) -> anyhow::Result<Vec<BothEnds>> {
    let WindowCut {
        messages,
        length,
        quick,
    } = cut;
    let begin = Instant::now();
    let mut first_out = None;
    let mut window = Vec::<BothEnds>::new();
    loop {
        let both = BothEnds {
            out: sample(out, of).await?,
            stored: MessageCount::stored(relay).now().await?,
        };
        if both.out.count > 0 && first_out.is_none() {
            first_out = Some(both.out.at);
        }
        let settled =
            quick || first_out.is_some_and(|first: Instant| first.elapsed() > SETTLING_TIME);
        let dry = both.stored >= messages && !quick || both.out.count >= messages;
        if settled {
            window.push(both);
        }
        let long = window
            .first()
            .is_some_and(|first| first.out.at.elapsed() >= length);
        if window.len() > 1 && (dry || long && !quick) {
            return Ok(window);
        }
        ensure!(
            !dry || !window.is_empty(),
            "the source ran dry before anything was steady"
        );
        ensure!(
            begin.elapsed() < Duration::from_secs(180),
            "nothing steady after three minutes"
        );
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}
