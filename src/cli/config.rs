//! `postdate config`

use std::process::ExitCode;

use clap::Args;

use super::output::{self, SafeText};
use crate::config;

/// Print the reference of the configuration: every key with its default and its meaning
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  postdate config --default > postdate.toml\n\n\
    The file needs only the keys that differ from their defaults. `postdate check --print` shows the values in use.")]
pub(super) struct ConfigReferenceArgs {
    /// Print the reference as TOML, with all defaults; keys without a default stand behind a `#`
    #[arg(long, required = true)]
    default: bool,
}

pub(super) fn run(_args: &ConfigReferenceArgs) -> ExitCode {
    output::out(SafeText::lines(config::REFERENCE_FILE.trim_end()));
    ExitCode::SUCCESS
}
