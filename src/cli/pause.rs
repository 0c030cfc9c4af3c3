//! `postdate pause` and `postdate resume`

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::api;
use super::client::{self, Pausing};

/// Pause a route on all replicas: its ingress, its publishing, or both
///
/// It stays paused, over restarts too, until `postdate resume`. What was claimed already may still go out.
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  postdate pause orders\n  postdate pause orders --only publishing\n\n\
    {}", api::WHERE))]
pub(super) struct Pause {
    #[command(flatten)]
    what: What,
}

/// Resume a route that was paused: its ingress, its publishing, or both
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  postdate resume orders\n  postdate resume orders --only ingress\n\n\
    {}", api::WHERE))]
pub(super) struct Resume {
    #[command(flatten)]
    what: What,
}

#[derive(Debug, Args)]
struct What {
    /// The route
    #[arg(value_name = "ROUTE")]
    route: String,
    /// Only this part of it
    #[arg(long, value_name = "PART", value_enum)]
    only: Option<Part>,
    /// Print the API's answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Part {
    /// Reading its topic or queue
    Ingress,
    /// Publishing its messages
    Publishing,
}

pub(super) fn pause(args: Pause) -> ExitCode {
    run("pause", args.what)
}

pub(super) fn resume(args: Resume) -> ExitCode {
    run("resume", args.what)
}

fn run(verb: &'static str, what: What) -> ExitCode {
    let only = what.only.map(|part| match part {
        Part::Ingress => "ingress",
        Part::Publishing => "publishing",
    });
    let pausing = Pausing { verb, route: what.route, only };
    api::ended(
        api::connect()
            .and_then(|client| client::pause(&client, &pausing, what.json, &mut std::io::stdout().lock())),
    )
}
