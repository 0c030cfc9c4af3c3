//! The amount of work of the benches, and the arguments that set it.

use std::path::PathBuf;
use std::time::Duration;

/// Benches of the group `relay`: rates and lateness, in short.
const RELAY_BENCHES: [&str; 4] = ["steady", "store-and-drain", "rabbitmq", "lateness"];

/// Amount of work of the benches.
#[derive(Clone, Debug)]
pub struct Scale {
    /// True for a run that shows only that the benches work. Its numbers mean nothing and are not kept.
    pub quick: bool,
    /// Rounds of each kind, floor and relay alternately.
    pub rounds: usize,
    /// Messages in the topic of a steady state.
    pub steady: u64,
    /// Messages that are pending in a steady state.
    pub pending: u64,
    /// Length of a steady state.
    pub window: Duration,
    /// Messages of a run in one direction at a time.
    pub phase: u64,
    /// Messages of such a run in bundles of one.
    pub alone: u64,
    /// Messages through RabbitMQ.
    pub rabbitmq: u64,
    /// Messages that are all due in one millisecond: a few, and many.
    pub burst: &'static [u64],
    /// Most pending messages of the backlog bench.
    pub backlog: u64,
    /// Bytes that Redis must at least have room for, a message.
    pub backlog_each: u64,
    /// Length of the measurement of an idle relay.
    pub idle: Duration,
    /// Messages of the floor of Redis.
    pub bare: u64,
    /// Seconds of a stream whose lateness is measured.
    pub stream: f64,
    /// Write the numbers to this file alone, not into the documents.
    pub json: Option<PathBuf>,
}

impl Scale {
    fn full() -> Self {
        Self {
            quick: false,
            rounds: 5,
            steady: 14_000_000,
            pending: 1_000_000,
            window: Duration::from_secs(20),
            phase: 1_000_000,
            alone: 200_000,
            rabbitmq: 150_000,
            burst: &[100_000, 1_000_000],
            backlog: 10_000_000,
            backlog_each: 900,
            idle: Duration::from_secs(10),
            bare: 200_000,
            stream: 10.0,
            json: None,
        }
    }

    fn quick() -> Self {
        Self {
            quick: true,
            rounds: 1,
            steady: 5_000,
            pending: 1_000,
            window: Duration::from_secs(1),
            phase: 2_000,
            alone: 1_000,
            rabbitmq: 1_000,
            burst: &[1_000],
            backlog: 2_000,
            backlog_each: 900,
            idle: Duration::from_millis(500),
            bare: 1_000,
            stream: 0.5,
            json: None,
        }
    }
}

/// Parses the arguments into a scale and the names of benches, or a sentence on what is wrong.
pub fn parse(
    arguments: &[String],
    benches: &[&'static str],
) -> Result<(Scale, Vec<&'static str>), String> {
    let there_are = || format!("there are: all, relay, {}", benches.join(", "));
    let mut scale = if arguments.iter().any(|argument| argument == "--quick") {
        Scale::quick()
    } else {
        Scale::full()
    };
    let mut names = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => {}
            "--rounds" => match arguments.next().and_then(|count| count.parse().ok()) {
                Some(rounds) if rounds > 0 => scale.rounds = rounds,
                _ => return Err("--rounds takes a number above 0".to_owned()),
            },
            "--pending" => match arguments
                .next()
                .and_then(|count| count.replace('_', "").parse().ok())
            {
                Some(pending) if pending > 0 => scale.backlog = pending,
                _ => return Err("--pending takes a number above 0".to_owned()),
            },
            "--json" => match arguments.next() {
                Some(file) => scale.json = Some(file.into()),
                None => return Err("--json takes a file".to_owned()),
            },
            "all" => names.extend(benches),
            "relay" => names.extend(RELAY_BENCHES),
            name => match benches.iter().find(|bench| **bench == name) {
                Some(bench) => names.push(*bench),
                None => return Err(format!("no bench {name}; {}", there_are())),
            },
        }
    }
    if names.is_empty() {
        return Err(format!("which bench? {}", there_are()));
    }
    Ok((scale, names))
}
