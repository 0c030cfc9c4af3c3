//! `postdate cancel`

use std::process::ExitCode;

use clap::Args;

use super::api;

/// Cancel messages that wait
///
/// Each answer is definite: a message that is `cancelled` will not be published. Exit 1 if any was not cancelled.
#[derive(Debug, Args)]
#[command(after_help = api::ENVIRONMENT_HELP)]
pub(super) struct CancelArgs {
    #[command(flatten)]
    api: api::ActArgs,
    /// Their ids; `--` before one that begins with `-`
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// Their route; may be left out where an id is unique
    #[arg(long, value_name = "R")]
    route: Option<String>,
    /// Print the API's answer as JSON; of several ids a list
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &CancelArgs) -> ExitCode {
    api::ended_all(&args.api, |client| {
        api::command_each(
            client,
            "DELETE",
            &args.ids,
            args.route.as_deref(),
            None,
            args.json,
        )
    })
}
