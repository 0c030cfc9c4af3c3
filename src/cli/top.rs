//! `postdate top`

mod draw;
mod poll;
mod screen;
mod state;

use std::process::ExitCode;

use clap::Args;

use super::output::SafeText;
use super::pending::{self, PendingArgs};
use super::{api, output, status};

/// Messages shown of those that fall due next.
const NEXT_MESSAGES: u32 = 10;

/// Show replicas, routes with their rates, and the messages due next, every second
///
/// Up and down choose a route, Enter shows it, Escape goes back, q ends. Where the output is no
/// terminal, it shows all once.
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
    if output::is_terminal() {
        return screen::run(client);
    }
    let next = PendingArgs::next(NEXT_MESSAGES);
    api::show(None, || {
        Ok(SafeText::joined(
            [
                status::render(&client, false)?,
                pending::render(&client, &next)?,
            ],
            "\n\n",
        ))
    })
}
