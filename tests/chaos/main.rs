//! The chaos suite: each row of the fault matrix with real servers, real replicas and real signals, and the
//! accounting over it. `scripts/chaos --help` says how it is called.
//!
//! A row is a function that plays one cycle of its fault on a [`scenario::Scenario`] and says, beside what the
//! accounting finds by itself, whether the preconditions were met and the limits kept. Add a row: a function in `rows/`
//! and an entry in `rows/table/`.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test that cannot go on panics; it prints its run"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read clocks and the environment as their users do"
)]

#[path = "../support/mod.rs"]
mod support;

mod arguments;
mod document;
mod load;
mod mutants;
mod outcome;
mod preload;
mod rows;
mod scenario;
mod schedule;
mod servers;
mod store;

use std::process::ExitCode;

use document::Document;

fn main() -> ExitCode {
    let arguments = match arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(wrong) => {
            println!("{wrong}");
            return ExitCode::from(64);
        }
    };
    if arguments.page {
        Document::read().write();
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    // Rows run on this thread, so that one that panics is caught and they need not be `Send`.
    let passed = runtime.block_on(tokio::task::LocalSet::new().run_until(async {
        println!(
            "seed {}; play it again with --seed {}",
            arguments.seed, arguments.seed
        );
        if arguments.mutants {
            mutants::all_caught(&arguments).await
        } else {
            schedule::play(&arguments).await
        }
    }));
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
