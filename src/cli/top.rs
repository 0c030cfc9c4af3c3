//! `postdate top`

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::output::SafeText;
use super::pending::{self, PendingArgs};
use super::{api, output, status};

/// Time between two refreshes.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Messages shown of those that fall due next.
const NEXT_MESSAGES: u32 = 10;

/// Show the replicas, the routes and the messages that fall due next, every second
///
/// It runs until interrupted. Where the output is no terminal, it shows them once.
#[derive(Debug, Args)]
#[command(after_help = api::ENVIRONMENT_HELP)]
pub(super) struct TopArgs {
    #[command(flatten)]
    api: api::ApiArgs,
}

pub(super) fn run(args: &TopArgs) -> ExitCode {
    let client = match api::connect(&args.api) {
        Ok(client) => client,
        Err(error) => return api::ended(Err(error)),
    };
    let next = PendingArgs::next(NEXT_MESSAGES);
    api::show(output::is_terminal().then_some(REFRESH_INTERVAL), || {
        Ok(SafeText::joined([status::render(&client, false)?, pending::render(&client, &next)?], "\n\n"))
    })
}
