//! Measures one direction at a time: storing alone, draining alone, passing through. Bars 2, 3, 4, 6 and 16.
//!
//! Messages are stored by the clock of a store that is behind (`servers::relay_behind`), and are due within the hour
//! before the run. Then the ordinary relay starts and finds all of them due.

use crate::load::Load;
use crate::measure::{CpuSeconds, MeasuredRate, MessageCount, Processes, middle, watch};
use crate::report::{BarLimit, Report};
use crate::servers::{Servers, TOPIC_PARTITIONS, config, kafka_config, kafka_route, relay_behind};
use crate::steady::mirror_run;
use crate::support::run::now_ms;
use crate::support::{Config, Kafka, Redis, Relay};
use crate::{Scale, commands, floor, machine};

/// An hour, ms.
const HOUR_MS: i64 = 3_600_000;
/// Time between the last due time and now.
const MARGIN_MS: i64 = 100_000;
/// Time between the clock of the store and the first due time: storing may take so long before a message is due.
const STORING_MS: i64 = 300_000;

/// Keys of a route with bundles of one: a bundle has no more messages than a second of the rate.
const ALONE_KEYS: &str = "rate = 1";

/// Rates of storing and of draining a backlog.
#[derive(Clone, Copy, Debug)]
pub struct PhaseRates {
    pub store: MeasuredRate,
    pub drain: MeasuredRate,
}

impl PhaseRates {
    /// The rate of messages through both, one after the other.
    pub fn both(&self) -> MeasuredRate {
        let a = &self.store;
        let b = &self.drain;
        let cost = CpuSeconds {
            moves: a.cost.moves + b.cost.moves,
            broker: a.cost.broker + b.cost.broker,
            redis: a.cost.redis + b.cost.redis,
            machine: a.cost.machine + b.cost.machine,
        };
        MeasuredRate {
            per_second: 1.0 / (1.0 / a.per_second + 1.0 / b.per_second),
            cost,
            others: a.others.max(b.others),
        }
    }
}

/// Bars 2, 3 and 4: delays at random over an hour.
pub async fn random(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let kafka = servers.kafka().await?;
    let from = now_ms() - HOUR_MS - MARGIN_MS;
    let source = servers
        .filled(scale.phase, Load::Random(from, HOUR_MS))
        .await?;
    let alone = now_ms() - 96 * HOUR_MS - MARGIN_MS;
    let lone = servers.filled(scale.alone, Load::Alone(alone)).await?;
    let few = servers
        .filled(scale.alone, Load::Random(from, HOUR_MS))
        .await?;
    for _ in 0..scale.rounds {
        report.rate("mirror", &mirror_run(kafka, &source, scale.phase).await?);
        let redis = servers.redis(false).await?;
        let phases = store_and_drain(&redis, kafka, &source, scale.phase, from).await?;
        report.rate("store", &phases.store);
        report.rate("drain", &phases.drain);
        report.rate("both", &phases.both());
        commands::add(report, &redis, scale.phase).await?;
        let redis = servers.redis(false).await?;
        let base = config(&redis).kafka("main", kafka);
        let work = (few.as_str(), scale.alone, from);
        let phases = both_phases(&base, &redis, kafka, work, "", ALONE_KEYS).await?;
        report.rate("alone", &phases.both());
        let redis = servers.redis(false).await?;
        let phases = store_and_drain(&redis, kafka, &lone, scale.alone, alone).await?;
        report.rate("scattered", &phases.both());
        report.add(
            "bare",
            "redis",
            floor::bare(&servers.redis(false).await?, scale.bare).await?,
        );
    }
    report.rates(&[
        ("mirror", "mirror"),
        ("store", "store, due at random over an hour"),
        ("drain", "drain the same"),
        ("both", "both, one after the other"),
        ("alone", "both, bundles of one"),
        ("scattered", "both, bundles of one over four days"),
    ]);
    report.table(
        "Redis alone",
        &[("bare", "bare commands, whole life")],
        &[("redis", "CPU us/message")],
    );
    commands::table(
        report,
        "Redis, both, by its own account: a script or an exec has what it calls in it",
    );
    report.ratio(
        2,
        "messages a second, to the mirror's",
        "rate",
        ("both", "mirror"),
        BarLimit::AtLeast(0.35),
    );
    report.ratio(
        3,
        "CPU a message, to the mirror's",
        "cpu",
        ("both", "mirror"),
        BarLimit::AtMost(3.0),
    );
    report.ratio(
        4,
        "Redis CPU a message, to bare commands'",
        "redis",
        ("both", "bare"),
        BarLimit::AtMost(0.5),
    );
    report.ratio(
        4,
        "the same in bundles of one",
        "redis",
        ("alone", "bare"),
        BarLimit::AtMost(1.3),
    );
    Ok(())
}

/// Bar 6: equal delays.
pub async fn equal(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let kafka = servers.kafka().await?;
    // The clock is behind by more than delay and storing together, so all messages are due when the drain begins.
    let source = servers
        .filled(scale.phase, Load::Equal(HOUR_MS as u64))
        .await?;
    for _ in 0..scale.rounds {
        report.rate("mirror", &mirror_run(kafka, &source, scale.phase).await?);
        let redis = servers.redis(false).await?;
        let from = now_ms() - HOUR_MS - MARGIN_MS;
        let phases = store_and_drain(&redis, kafka, &source, scale.phase, from).await?;
        report.rate("store", &phases.store);
        report.rate("drain", &phases.drain);
    }
    report.rates(&[
        ("mirror", "mirror"),
        ("store", "store, equal delays"),
        ("drain", "drain the same"),
    ]);
    report.ratio(
        6,
        "storing alone, to the mirror's rate",
        "rate",
        ("store", "mirror"),
        BarLimit::AtLeast(0.9),
    );
    report.ratio(
        6,
        "draining alone, to the mirror's rate",
        "rate",
        ("drain", "mirror"),
        BarLimit::AtLeast(0.6),
    );
    Ok(())
}

/// Measures without and with `order = "key"`, in turns. Each message has a key of its own. One direction at a time,
/// because there is no steady state that a window of seconds would show if draining is slower than reading:
/// `max_pending` is checked each second, and a second of reading is more than some seconds of draining.
pub async fn order(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let kafka = servers.kafka().await?;
    let from = now_ms() - HOUR_MS - MARGIN_MS;
    let random = servers
        .filled(scale.phase, Load::Random(from, HOUR_MS))
        .await?;
    let equal = servers
        .filled(scale.phase, Load::Equal(HOUR_MS as u64))
        .await?;
    for _ in 0..scale.rounds {
        for (load, source) in [("random", &random), ("equal", &equal)] {
            for (order, more) in [("none", ""), ("key", "order = \"key\"")] {
                let redis = servers.redis(false).await?;
                let base = config(&redis).kafka("main", kafka);
                // Delays count from arrival, by the clock that is behind.
                let from = if load == "equal" {
                    now_ms() - HOUR_MS - MARGIN_MS
                } else {
                    from
                };
                let work = (source.as_str(), scale.phase, from);
                let phases = both_phases(&base, &redis, kafka, work, more, "").await?;
                report.rate(&format!("{load} store {order}"), &phases.store);
                report.rate(&format!("{load} drain {order}"), &phases.drain);
            }
        }
    }
    for (load, what) in [
        ("random", "due at random over an hour"),
        ("equal", "equal delays"),
    ] {
        let row = |phase: &str, order: &str| format!("{load} {phase} {order}");
        let rows = [
            ("store", "none"),
            ("store", "key"),
            ("drain", "none"),
            ("drain", "key"),
        ];
        let rows = rows.map(|(phase, order)| {
            (
                row(phase, order),
                format!("{phase}, {what}, order = {order:?}"),
            )
        });
        report.rates(
            &rows
                .each_ref()
                .map(|(row, what)| (row.as_str(), what.as_str())),
        );
        let ratio = |phase: &str, column: &str| {
            report.median(&row(phase, "key"), column) / report.median(&row(phase, "none"), column)
        };
        let text = format!(
            "With order, {what}: storing at {:.2} of the rate without and {:.2} of its CPU a message, draining at {:.2} \
             and {:.2}.",
            ratio("store", "rate"),
            ratio("store", "cpu"),
            ratio("drain", "rate"),
            ratio("drain", "cpu"),
        );
        report.say(&text);
    }
    Ok(())
}

/// Measures each durability tier, one direction at a time: a server with an append-only file, the same with a replica
/// that is waited for, and one that syncs each write. All run on this machine, so the cost of a network is missing.
pub async fn tiers(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    const TIERS: [(&str, &str); 3] = [
        ("async, AOF everysec", ""),
        ("replicated, one replica", "durability = \"replicated\""),
        (
            "fsynced, appendfsync always",
            "durability = \"fsynced\"\nwait_replicas = 0",
        ),
    ];
    let kafka = servers.kafka().await?;
    let source = servers
        .filled(scale.phase, Load::Equal(HOUR_MS as u64))
        .await?;
    for _ in 0..scale.rounds {
        for (at, (name, tier)) in TIERS.into_iter().enumerate() {
            let (redis, _replica) = match at {
                0 => (servers.redis(true).await?, None),
                1 => servers
                    .replicated()
                    .await
                    .map(|(redis, replica)| (redis, Some(replica)))?,
                _ => (
                    Redis::start_with("redis-server", &["--appendfsync", "always"]).await,
                    None,
                ),
            };
            let base = config(&redis).redis(tier).kafka("main", kafka);
            let from = now_ms() - HOUR_MS - MARGIN_MS;
            let phases =
                both_phases(&base, &redis, kafka, (&source, scale.phase, from), "", "").await?;
            report.rate(&format!("store {name}"), &phases.store);
            report.rate(&format!("drain {name}"), &phases.drain);
        }
    }
    let rows = TIERS.map(|(name, _)| ["store", "drain"].map(|phase| format!("{phase} {name}")));
    let rows: Vec<_> = rows
        .as_flattened()
        .iter()
        .map(|row| (row.as_str(), row.as_str()))
        .collect();
    report.rates(&rows);
    Ok(())
}

/// Bar 16: no delay header.
pub async fn pass(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let kafka = servers.kafka().await?;
    let source = servers.filled(scale.phase, Load::Plain).await?;
    for _ in 0..scale.rounds {
        report.rate("mirror", &mirror_run(kafka, &source, scale.phase).await?);
        let redis = servers.redis(false).await?;
        let target = kafka.unique_topic("target", TOPIC_PARTITIONS).await;
        let clocks = machine::ClockCheck::start();
        let relay = Relay::spawn(&kafka_config(&redis, kafka, &source, &target, ""), &[]);
        report.rate(
            "relay",
            &drain(&redis, kafka, relay, &target, scale.phase, false).await?,
        );
        clocks.check()?;
    }
    report.rates(&[("mirror", "mirror"), ("relay", "relay, passing through")]);
    report.ratio(
        16,
        "messages a second, to the mirror's",
        "rate",
        ("relay", "mirror"),
        BarLimit::AtLeast(0.85),
    );
    Ok(())
}

/// Stores a topic by a clock that is shortly before `from`, then drains it by the real clock.
pub async fn store_and_drain(
    redis: &Redis,
    kafka: &Kafka,
    source: &str,
    messages: u64,
    from: i64,
) -> anyhow::Result<PhaseRates> {
    let base = config(redis).kafka("main", kafka);
    store_and_drain_with(&base, redis, kafka, source, messages, from).await
}

/// Does the same on a store that may have messages already.
pub async fn store_and_drain_with(
    base: &Config,
    redis: &Redis,
    kafka: &Kafka,
    source: &str,
    messages: u64,
    from: i64,
) -> anyhow::Result<PhaseRates> {
    both_phases(base, redis, kafka, (source, messages, from), "", "").await
}

/// Does the same with further keys of the route: stores so many messages of a topic by a clock that is shortly before
/// the given moment. The keys `storing` apply while it stores.
async fn both_phases(
    base: &Config,
    redis: &Redis,
    kafka: &Kafka,
    (source, messages, from): (&str, u64, i64),
    more: &str,
    storing: &str,
) -> anyhow::Result<PhaseRates> {
    let target = kafka.unique_topic("target", TOPIC_PARTITIONS).await;
    let more = format!("max_pending = 1_000_000_000\n{more}");
    let route = |more: &str| kafka_route(base.clone(), "bench", source, &target, more);
    let stores = route(&format!("{more}\n{storing}"));
    let drains = route(&more);
    let clocks = machine::ClockCheck::start();
    let mut relay = relay_behind(&stores, (from - STORING_MS - now_ms()) / 1000);
    let store = {
        let of = Processes::new(relay.id(), kafka.id(), Some(redis)).await?;
        middle(
            &watch(&MessageCount::stored(&relay), messages, &of).await?,
            messages,
        )
    };
    relay.terminate().await;
    let drain = drain(
        redis,
        kafka,
        Relay::spawn(&drains, &[]),
        &target,
        messages,
        false,
    )
    .await?;
    clocks.check()?;
    Ok(PhaseRates { store, drain })
}

/// Measures the arrivals in a topic from a relay that has just been started, then ends the relay and deletes the topic.
/// Counts all messages from the first sample on, or leaves out the first and the last tenth.
pub async fn drain(
    redis: &Redis,
    kafka: &Kafka,
    mut relay: Relay,
    target: &str,
    messages: u64,
    whole: bool,
) -> anyhow::Result<MeasuredRate> {
    let of = Processes::new(relay.id(), kafka.id(), Some(redis)).await?;
    let samples = watch(
        &MessageCount::topic(kafka, target, TOPIC_PARTITIONS),
        messages,
        &of,
    )
    .await?;
    relay.terminate().await;
    kafka.delete_topic(target).await;
    let first = &samples[0];
    let last = &samples[samples.len() - 1];
    Ok(if whole {
        MeasuredRate::between(first, last)
    } else {
        middle(&samples, messages)
    })
}
