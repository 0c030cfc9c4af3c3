//! The benches behind `scripts/bench NAME...`: real servers, the binary of the relay, and a floor beside it in the same
//! run. A rate without a floor says more about the machine than about the relay.
//!
//! This is an example and not a bench target, so that the relay is the binary that users build, without the features
//! that dependencies of tests add. To add a bench: a function, a line in [`BENCHES`] and in [`measure_one`], and marks
//! in `benches/README.md`.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]
#![allow(
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "shares the tests' support"
)]
#![allow(unreachable_pub, reason = "the modules of one program see each other")]

#[path = "../../tests/support/mod.rs"]
mod support;

mod backlog;
mod browse;
mod burst;
mod commands;
mod compare;
mod console;
mod divide;
mod floor;
mod idle;
mod lateness;
mod load;
mod machine;
mod measure;
mod memory;
mod mirror;
mod orders;
mod phases;
mod plot;
mod rabbitmq;
mod report;
mod scale;
mod servers;
mod steady;

use std::process::ExitCode;

use report::Report;
pub use scale::Scale;
use servers::Servers;

/// Allocator of the relay, here for the mirrors: librdkafka allocates memory on one thread and frees it on another.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Names of all benches, in the order in which `all` runs them.
const BENCHES: [&str; 19] = [
    "steady",
    "random",
    "store-and-drain",
    "orders",
    "pass",
    "aof",
    "trail",
    "order",
    "tiers",
    "divide",
    "rabbitmq",
    "lateness",
    "lateness-high",
    "burst",
    "memory",
    "idle",
    "backlog",
    "browse",
    "console",
];

fn main() -> ExitCode {
    if let Some(seconds) = std::env::var(servers::BEHIND_VARIABLE)
        .ok()
        .and_then(|text| text.parse().ok())
    {
        postdate::store::shift_clock(seconds);
        postdate::domain::clock::shift_wall(seconds * 1000);
        return postdate::cli::main();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(ended) = mirror::if_asked(&arguments) {
        return ended;
    }
    if let Some(ended) = compare::if_asked(&arguments) {
        return ended;
    }
    let (scale, names) = match scale::parse(&arguments, &BENCHES) {
        Ok(parsed) => parsed,
        Err(wrong) => {
            println!("{wrong}");
            return ExitCode::from(64);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let whole = runtime.block_on(async {
        let servers = Servers::default();
        let mut whole = true;
        for name in names {
            whole &= measure_one(name, &servers, &scale).await;
        }
        whole
    });
    if whole {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs one bench and keeps its findings. If it cannot be measured, keeps a sentence and no numbers.
async fn measure_one(name: &'static str, servers: &Servers, scale: &Scale) -> bool {
    println!("{name}:");
    let mut report = Report::new(name, scale);
    let report_to = &mut report;
    let measured = match name {
        "steady" => steady::bench(servers, scale, report_to).await,
        "random" => phases::random(servers, scale, report_to).await,
        "store-and-drain" => phases::equal(servers, scale, report_to).await,
        "orders" => orders::bench(servers, scale, report_to).await,
        "pass" => phases::pass(servers, scale, report_to).await,
        "aof" => steady::aof(servers, scale, report_to).await,
        "trail" => steady::trail(servers, scale, report_to).await,
        "order" => phases::order(servers, scale, report_to).await,
        "tiers" => phases::tiers(servers, scale, report_to).await,
        "divide" => divide::bench(servers, scale, report_to).await,
        "lateness" => lateness::bench(servers, scale, report_to).await,
        "lateness-high" => lateness::high(servers, scale, report_to).await,
        "rabbitmq" => rabbitmq::bench(servers, scale, report_to).await,
        "burst" => burst::bench(servers, scale, report_to).await,
        "memory" => memory::bench(servers, scale, report_to).await,
        "idle" => idle::bench(servers, scale, report_to).await,
        "backlog" => backlog::bench(servers, scale, report_to).await,
        "browse" => browse::bench(servers, scale, report_to).await,
        "console" => console::bench(servers, scale, report_to).await,
        _ => unreachable!("the names are checked"),
    };
    match &measured {
        Ok(()) => report.finish(&servers.versions()),
        Err(why) => println!("{name}: not measured: {why:#}."),
    }
    measured.is_ok()
}
