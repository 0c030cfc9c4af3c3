//! Producers in other languages, as `docs/producers.md` shows them, against the relay on real brokers.
//! `scripts/test-clients` builds them and runs this with their names: `java/kafka python/rabbitmq`. A line each.
//!
//! Add a client: a program below its language's folder, an entry in `table.rs`, and how it is built in the script.
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

mod arrivals;
mod celery;
mod judge;
mod kafka_side;
mod play;
mod rabbitmq_side;
mod record;
mod spring_retry;
mod table;

use std::process::ExitCode;

use table::{CLIENT_PROGRAMS, ClientProgram};

/// Option that writes the results to `docs/producers.json`.
const RECORD_OPTION: &str = "--record";

fn main() -> ExitCode {
    let mut chosen: Vec<ClientProgram> = Vec::new();
    let mut is_recorded = false;
    let mut plays_celery = false;
    let mut plays_spring_retry = false;
    for argument in std::env::args().skip(1) {
        if argument == RECORD_OPTION {
            is_recorded = true;
            continue;
        }
        if argument == celery::NAME {
            plays_celery = true;
            continue;
        }
        if argument == spring_retry::NAME {
            plays_spring_retry = true;
            continue;
        }
        let Some(program) = CLIENT_PROGRAMS
            .iter()
            .find(|program| program.name() == argument)
        else {
            println!("{argument} is no client: tests/clients/table.rs has their names");
            return ExitCode::from(64);
        };
        chosen.push(*program);
    }
    if chosen.is_empty() && !plays_celery && !plays_spring_retry {
        println!("no client is named: scripts/test-clients does so");
        return ExitCode::from(64);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let is_good = runtime.block_on(async {
        let is_celery_good = !plays_celery || celery::play().await;
        let is_retry_good = !plays_spring_retry || spring_retry::play().await;
        let are_clients_good = chosen.is_empty() || play::all(&chosen, is_recorded).await;
        is_celery_good && is_retry_good && are_clients_good
    });
    if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
