//! Kafka to Kafka, in and out at once, in a steady state: bars 1, 3 and 4, and with an append-only file 13.
//!
//! The source is full before the run. The route's `max_pending` holds what is pending still: the relay reads
//! as fast as it publishes, and the window is cut out of that, never its ramp.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};

use crate::load::Load;
use crate::measure::{Count, Look, Processes, Rate, look, middle, watch};
use crate::report::{Limit, Report};
use crate::servers::{PARTITIONS, Servers, kafka_config};
use crate::support::{Kafka, Redis, Relay, folders};
use crate::{Scale, floor, machine, mirror};

/// Ms that each message waits, from its arrival.
const DELAY_MS: u64 = 2_000;
/// Between two looks at a steady state.
const BETWEEN: Duration = Duration::from_millis(100);
/// After the first message came out: not looked at.
const SETTLING: Duration = Duration::from_secs(3);
/// How far what is pending may move from the first to the last fifth of the window.
const DRIFT: f64 = 0.1;
/// A state that is not steady is tried so often in all.
const TRIES: usize = 6;

/// Bars 1, 3 and 4: the mirror and the relay, alternately.
pub async fn bench(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let kafka = servers.kafka().await?;
    let source = servers.filled(scale.steady, Load::Equal(DELAY_MS)).await?;
    for _ in 0..scale.rounds {
        report.rate("mirror", &mirror_run(kafka, &source, scale.steady).await?);
        let redis = servers.redis(false).await?;
        let (rate, pending) = steady(&redis, kafka, &source, scale).await?;
        report.rate("relay", &rate);
        report.add("relay", "pending", pending);
        drop(redis);
        report.add("bare", "redis", floor::bare(&servers.redis(false).await?, scale.bare).await?);
    }
    report.rates(&[("mirror", "mirror"), ("relay", "relay, in and out")]);
    report.table("in the window", &[("relay", "relay")], &[("pending", "pending messages")]);
    report.table("Redis alone", &[("bare", "bare commands, whole life")], &[("redis", "CPU us/message")]);
    report.ratio(1, "messages a second, to the mirror's", "rate", ("relay", "mirror"), Limit::AtLeast(0.65));
    report.ratio(3, "CPU a message, to the mirror's", "cpu", ("relay", "mirror"), Limit::AtMost(2.0));
    report.ratio(4, "Redis CPU a message, to bare commands'", "redis", ("relay", "bare"), Limit::AtMost(0.2));
    Ok(())
}

/// Bar 13: without and with an append-only file, alternately.
pub async fn aof(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let kafka = servers.kafka().await?;
    let source = servers.filled(scale.steady, Load::Equal(DELAY_MS)).await?;
    for _ in 0..scale.rounds {
        for (row, aof) in [("none", false), ("aof", true)] {
            let redis = servers.redis(aof).await?;
            report.rate(row, &steady(&redis, kafka, &source, scale).await?.0);
        }
    }
    report.rates(&[("none", "no persistence"), ("aof", "AOF, everysec")]);
    report.ratio(13, "messages a second, AOF to none", "rate", ("aof", "none"), Limit::AtLeast(0.55));
    Ok(())
}

/// The mirror from a full topic.
pub async fn mirror_run(kafka: &Kafka, source: &str, messages: u64) -> anyhow::Result<Rate> {
    let target = kafka.unique_topic("target", PARTITIONS).await;
    let count = Count::topic(kafka, &target, PARTITIONS);
    let clocks = machine::Clocks::start();
    let mut child = mirror::start(&folders::new("mirror"), "kafka", &kafka.bootstrap(), source, &target);
    let of = Processes::new(child.id(), kafka.id(), None).await?;
    let looks = watch(&count, messages, &of).await?;
    child.assert_running();
    drop(child);
    kafka.delete_topic(&target).await;
    clocks.check()?;
    Ok(middle(&looks, messages))
}

/// A look at both ends of the store.
pub struct Both {
    pub out: Look,
    pub stored: u64,
}

/// When a window begins and ends.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// All that the source holds.
    pub messages: u64,
    /// The window ends after this time, or when the source is used up.
    pub length: Duration,
    pub quick: bool,
}

impl Both {
    fn pending(&self) -> f64 {
        self.stored.saturating_sub(self.out.count) as f64
    }
}

/// The relay in a steady state, and what was pending; one that is not steady is measured again, and said.
/// `store` are further keys of `[redis]`.
async fn steady(redis: &Redis, kafka: &Kafka, source: &str, scale: &Scale) -> anyhow::Result<(Rate, f64)> {
    let mut last = String::new();
    for _ in 0..TRIES {
        let window = relay_run(redis, kafka, source, scale).await?;
        let (from, to) = drift(&window);
        let rate = Rate::between(&window[0].out, &window[window.len() - 1].out);
        if scale.quick || (to / from - 1.0).abs() <= DRIFT {
            return Ok((rate, from));
        }
        last = format!("{from:.0} messages were pending at first and {to:.0} at last");
        println!("  not steady, once more: {last}");
    }
    bail!("no steady state: {last}")
}

/// Average number of pending messages in the first and in the last fifth of a window.
fn drift(window: &[Both]) -> (f64, f64) {
    let fifth = window.len().div_ceil(5);
    let mean = |part: &[Both]| part.iter().map(Both::pending).sum::<f64>() / part.len() as f64;
    (mean(&window[..fifth]), mean(&window[window.len() - fifth..]))
}

async fn relay_run(redis: &Redis, kafka: &Kafka, source: &str, scale: &Scale) -> anyhow::Result<Vec<Both>> {
    let target = kafka.unique_topic("target", PARTITIONS).await;
    let out = Count::topic(kafka, &target, PARTITIONS);
    let clocks = machine::Clocks::start();
    let more = format!("max_pending = {}", scale.pending);
    let mut relay = Relay::spawn(&kafka_config(redis, kafka, source, &target, &more), &[]);
    relay.ready().await;
    let of = Processes::new(relay.id(), kafka.id(), Some(redis)).await?;
    let cut = Cut { messages: scale.steady, length: scale.window, quick: scale.quick };
    let window = window(&relay, &out, &of, cut).await;
    relay.kill9().await;
    kafka.delete_topic(&target).await;
    clocks.check()?;
    let window = window?;
    let seconds = window[window.len() - 1].out.at.duration_since(window[0].out.at);
    ensure!(
        scale.quick || seconds >= scale.window.mul_f64(0.95),
        "the source ran dry after {seconds:?} of {:?}: it needs more than {} messages",
        scale.window,
        scale.steady
    );
    Ok(window)
}

/// Looks from when it has become steady, until the window is over or the source is used up.
pub async fn window(relay: &Relay, out: &Count<'_>, of: &Processes, cut: Cut) -> anyhow::Result<Vec<Both>> {
    let Cut { messages, length, quick } = cut;
    let begin = Instant::now();
    let mut first_out = None;
    let mut window = Vec::<Both>::new();
    loop {
        let both = Both { out: look(out, of).await?, stored: Count::stored(relay).now().await? };
        if both.out.count > 0 && first_out.is_none() {
            first_out = Some(both.out.at);
        }
        let settled = quick || first_out.is_some_and(|first: Instant| first.elapsed() > SETTLING);
        let dry = both.stored >= messages && !quick || both.out.count >= messages;
        if settled {
            window.push(both);
        }
        let long = window.first().is_some_and(|first| first.out.at.elapsed() >= length);
        if window.len() > 1 && (dry || long && !quick) {
            return Ok(window);
        }
        ensure!(!dry || !window.is_empty(), "the source ran dry before anything was steady");
        ensure!(begin.elapsed() < Duration::from_secs(180), "nothing steady after three minutes");
        tokio::time::sleep(BETWEEN).await;
    }
}
