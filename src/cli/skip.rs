//! `postdate skip`

use std::process::ExitCode;

use clap::{ArgGroup, Args};

use super::api;
use super::client::{ApiClient, CALL_DEADLINE, ClientError, json_of};
use super::output::{self, Printer, SafeText};
use super::times;
use crate::api::{SkipRequest, SkippedView};
use crate::domain::UnixMs;

/// Skip an offset at which a Kafka partition stands, or say where it begins
///
/// A batch that the Kafka client cannot open stops its partition; the log names topic, partition and offset. The record
/// at that offset is lost to the route: read it with Kafka's own tools first, if it may matter. Of a batch of several
/// records each is skipped by itself. A partition whose committed position cannot be true waits for --to or --since if
/// more than 100,000 records would be read again: records from there on are read, those before are not. Ask the replica
/// that reads the partition.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("goal").required(true))]
#[command(after_help = format!("Examples:\n  postdate skip --route orders --partition 3 --offset 81723\n  \
    postdate skip --route orders --partition 3 --since 2026-11-21T08:00:00Z\n\n\
    A time is RFC 3339 with an offset, Unix milliseconds, or relative: `--since=-2h`.\n\n\
    {}", api::ENVIRONMENT_HELP))]
pub(super) struct SkipArgs {
    #[command(flatten)]
    api: api::ActArgs,
    /// The route that reads the topic
    #[arg(long, value_name = "R")]
    route: String,
    /// The topic, where the route reads several
    #[arg(long, value_name = "T")]
    topic: Option<String>,
    /// The partition that stands
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(i32).range(0..))]
    partition: i32,
    /// The offset at which it stands
    #[arg(long, value_name = "O", group = "goal", value_parser = clap::value_parser!(i64).range(0..))]
    offset: Option<i64>,
    /// The offset at which it begins, as the log or `/readyz` names it, or another one
    #[arg(long, value_name = "O", group = "goal", value_parser = clap::value_parser!(i64).range(0..))]
    to: Option<i64>,
    /// Begin at the first record of this time on
    #[arg(long, value_name = "T", group = "goal", allow_hyphen_values = true, value_parser = times::parse_now)]
    since: Option<UnixMs>,
    /// Print the API's answer as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &SkipArgs) -> ExitCode {
    api::ended(
        args.api
            .connect()
            .and_then(|client| output::with_stdout(|out| call(&client, args, out))),
    )
}

/// Skips, and prints from where reading goes on. With `--json` it prints the API's body instead.
fn call(client: &ApiClient, args: &SkipArgs, out: &mut Printer<'_>) -> Result<(), ClientError> {
    let route = api::route_name(&args.route)?;
    let request = SkipRequest {
        topic: args.topic.clone(),
        partition: args.partition,
        offset: args.offset,
        to: args.to,
        since: args.since.map(times::written),
        because: None,
    };
    let path = format!("/api/v1/routes/{route}/skip");
    let answer = client.call("POST", &path, Some(json_of(&request)?), CALL_DEADLINE)?;
    if args.json {
        out.print(SafeText::answer(&answer.body))?;
    }
    let SkippedView {
        topic,
        partition,
        next,
        ..
    } = client.accept(&answer)?;
    if !args.json {
        let done = match args.offset {
            Some(offset) => format!("skipped offset {offset} of {topic}/{partition}"),
            None => format!("{topic}/{partition} is told where to begin"),
        };
        out.print(format!("{route}: {done}; reading goes on at {next}"))?;
    }
    Ok(())
}
