//! The benches behind `scripts/bench NAME...`: real servers, the relay's own binary, and a plain mirror
//! beside it in the same run, for a rate without one says more about the machine than about the relay.
//!
//! An example and not a bench target, so that the relay's binary is the one that users build, without the
//! features that the tests' dependencies add. Add a bench: a module and a line in [`BENCHES`].
#![allow(clippy::print_stdout, reason = "its output is its purpose")]
#![allow(clippy::expect_used, clippy::disallowed_methods, reason = "shares the tests' support")]
#![allow(unreachable_pub, reason = "the modules of one program see each other")]

#[path = "../../tests/support/mod.rs"]
mod support;

mod document;
mod lateness;
mod load;
mod machine;
mod measure;
mod mirror;
mod relay;
mod servers;

use std::process::ExitCode;

/// The relay's allocator, which mirrors need as much: librdkafka takes memory on one thread and gives it
/// back on another.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The names that can be asked for.
const BENCHES: [&str; 1] = ["relay"];

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Messages of a run through Kafka.
    pub kafka: u64,
    /// Messages of a run through RabbitMQ.
    pub rabbitmq: u64,
    /// Seconds of a lateness run.
    pub seconds: u64,
    /// Runs of each kind; the one with the median rate is shown.
    pub rounds: usize,
    /// Whether the result goes into the document.
    pub kept: bool,
}

impl Scale {
    const FULL: Self = Self { kafka: 400_000, rabbitmq: 30_000, seconds: 10, rounds: 3, kept: true };
    /// Shows that the bench works, no more: its numbers mean nothing.
    const QUICK: Self = Self { kafka: 2_000, rabbitmq: 500, seconds: 1, rounds: 1, kept: false };
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(ended) = mirror::if_asked(&arguments) {
        return ended;
    }
    let mut scale = Scale::FULL;
    let mut names = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => scale = Scale::QUICK,
            "--rounds" => match arguments.next().and_then(|count| count.parse().ok()) {
                Some(rounds) if rounds > 0 => scale.rounds = rounds,
                _ => {
                    println!("--rounds takes a number above 0");
                    return ExitCode::from(64);
                }
            },
            name if BENCHES.contains(&name) => names.push(name),
            other => {
                println!("no bench {other}; there are: {}", BENCHES.join(", "));
                return ExitCode::from(64);
            }
        }
    }
    if names.is_empty() {
        println!("which bench? there are: {}", BENCHES.join(", "));
        return ExitCode::from(64);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let whole = runtime.block_on(async {
        let mut whole = true;
        for name in names {
            whole &= match name {
                "relay" => relay::bench(scale).await,
                _ => unreachable!("checked above"),
            };
        }
        whole
    });
    if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
