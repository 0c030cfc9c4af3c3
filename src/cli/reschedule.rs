//! `postdate reschedule`

use std::process::ExitCode;

use clap::Args;

use super::client::json_of;
use super::{api, times};
use crate::api::{RescheduleRequest, Timestamp};
use crate::domain::UnixMs;

/// Move a message to another moment
#[derive(Debug, Args)]
#[command(after_help = api::ENVIRONMENT_HELP)]
#[command(group = clap::ArgGroup::new("when").required(true).args(["delay", "at"]))]
pub(super) struct RescheduleArgs {
    #[command(flatten)]
    api: api::ActArgs,
    /// Its id; `--` before one that begins with `-`
    #[arg(value_name = "ID")]
    id: String,
    /// So long from now: `2s`, `2h30m`, or milliseconds
    #[arg(long, value_name = "D")]
    delay: Option<String>,
    /// To this moment: RFC 3339 with an offset, Unix milliseconds, or relative, `+2h`
    #[arg(long, value_name = "T", allow_hyphen_values = true, value_parser = times::parse_now)]
    at: Option<UnixMs>,
    /// Its route; may be left out where the id is unique
    #[arg(long, value_name = "R")]
    route: Option<String>,
    /// Print the API's answer as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &RescheduleArgs) -> ExitCode {
    api::ended_all(&args.api, |client| {
        let request = RescheduleRequest {
            due_ms: args.at.map(times::due_ms),
            delay: args.delay.clone().map(Timestamp::Text),
            because: None,
        };
        let ids = std::slice::from_ref(&args.id);
        api::command_each(
            client,
            "PATCH",
            ids,
            args.route.as_deref(),
            Some(&json_of(&request)?),
            args.json,
        )
    })
}
