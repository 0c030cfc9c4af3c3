//! `postdate top`

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::pending::{self, Pending};
use super::{api, output, status};

/// How often it is shown again.
const EVERY: Duration = Duration::from_secs(1);
/// Messages that fall due next.
const NEXT: u32 = 10;

/// Show the replicas, the routes and what falls due next, every second
///
/// Until interrupted; once where the output is no terminal.
#[derive(Debug, Args)]
#[command(after_help = api::WHERE)]
pub(super) struct Top {}

pub(super) fn run() -> ExitCode {
    let client = match api::connect() {
        Ok(client) => client,
        Err(error) => return api::ended(Err(error)),
    };
    let next = Pending::next(NEXT);
    api::show(output::is_terminal().then_some(EVERY), || {
        Ok(format!("{}\n\n{}", status::look(&client, false)?, pending::look(&client, &next)?))
    })
}
