//! `postdate run`

use std::process::ExitCode;

use clap::Args;

use super::{ConfigArgs, refuse};
use crate::app;

/// Relay messages until SIGTERM or SIGINT
///
/// Waits for Redis and the brokers if they are away. The first signal drains: what is in flight finishes, what
/// waits stays in the store. A second signal ends at once.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  postdate run\n  postdate run --config /etc/postdate/postdate.yaml\n  \
    POSTDATE_REDIS__URL=redis://cache:6379 postdate run --set log.format=json")]
pub(super) struct Run {
    #[command(flatten)]
    config: ConfigArgs,
}

/// Nothing is bound or connected before the configuration is right.
pub(super) fn run(args: Run) -> anyhow::Result<ExitCode> {
    match args.config.load().and_then(|loaded| loaded.check()) {
        Ok(config) => app::run(config),
        Err(problems) => Ok(refuse(&problems)),
    }
}
