//! `postdate run`

use std::process::ExitCode;

use clap::Args;

use super::{ConfigArgs, refuse};
use crate::app;

/// Relay messages until SIGTERM or SIGINT
///
/// Waits for Redis and the brokers if they are away. The first signal drains: messages in flight finish, messages
/// that wait stay in the store. A second signal ends at once.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  postdate run\n  postdate run --config /etc/postdate/postdate.yaml\n  \
    POSTDATE_REDIS__URL=redis://cache:6379 postdate run --set log.format=json"
)]
pub(super) struct RunArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs the relay, once the configuration is found right. Before that nothing is bound or connected.
pub(super) fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    match args.config.load().and_then(|loaded| loaded.check()) {
        Ok(config) => app::run(config),
        Err(problems) => Ok(refuse(&problems)),
    }
}
