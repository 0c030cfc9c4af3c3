//! `postdate config`

use std::process::ExitCode;

use clap::Args;

use super::output::{self, SafeText};
use crate::config;

/// Print the reference of the configuration: every key with its default and its meaning
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  postdate config --default > postdate.toml\n  \
    postdate config --schema > postdate.schema.json\n\n\
    The file needs only the keys that differ from their defaults. `postdate check --print` shows the values in use."
)]
pub(super) struct ConfigReferenceArgs {
    /// Print the reference as TOML, with all defaults; keys without a default stand behind a `#`
    #[arg(long, required_unless_present = "schema")]
    default: bool,
    /// Print a JSON schema of the file, for editors: keys, meanings, kinds, ranges, defaults
    #[arg(long, conflicts_with = "default")]
    schema: bool,
}

pub(super) fn run(args: &ConfigReferenceArgs) -> ExitCode {
    if args.schema {
        output::out(SafeText::lines(config::schema().trim_end()));
    } else {
        output::out(SafeText::lines(config::REFERENCE_FILE.trim_end()));
    }
    ExitCode::SUCCESS
}
