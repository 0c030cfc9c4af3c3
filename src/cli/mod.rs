//! The command line: one file per command, one exit code for each kind of end.
//!
//! 0 done; 1 failed; 64 usage or configuration.

mod api;
mod bench;
mod check;
mod client;
mod command;
mod completions;
mod dead;
mod output;
mod pause;
mod pending;
mod replay;
mod run;
mod send;
mod status;
mod table;
mod times;
mod top;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};

use crate::config::{self, ConfigProblems, ConfigSources, LoadedConfig};

/// Usage or configuration.
const USAGE: u8 = 64;

/// Commands that the contract has and this version does not.
const LATER: [&str; 1] = ["import"];

#[derive(Debug, Parser)]
#[command(
    name = "postdate",
    version,
    about = "Delayed delivery for Kafka and RabbitMQ",
    long_about = "Delayed delivery for Kafka and RabbitMQ.\n\nA producer publishes an ordinary message with a header \
        such as `x-delay: 2h30m` to an ingress topic or queue; Postdate keeps it in Redis and publishes it to its \
        target at that moment: at least once, never early, milliseconds late.",
    after_help = "Start here:\n  postdate check --config postdate.toml        is the configuration right?\n  \
        postdate check --connect                     and is all of it there?\n  \
        postdate run                                 relay until SIGTERM\n  \
        postdate send --route orders --delay 2s --body hello --wait\n\n\
        Exit codes: 0 done, 1 failed, 64 usage or configuration.",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Check(check::Check),
    Send(send::Send),
    Status(status::Status),
    Pending(pending::Pending),
    Cancel(command::Cancel),
    Reschedule(command::Reschedule),
    Completions(completions::Completions),
    #[command(hide = true)]
    Man(completions::Man),
    Pause(pause::Pause),
    Resume(pause::Resume),
    Dead(dead::Dead),
    Replay(replay::Replay),
    Bench(bench::Bench),
    Top(top::Top),
}

/// Where the configuration comes from.
#[derive(Debug, Args)]
struct ConfigArgs {
    /// The configuration file, .toml or .yaml
    ///
    /// Without it: POSTDATE_CONFIG, else ./postdate.toml, else /etc/postdate/postdate.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one key, above file and environment; may be repeated
    ///
    /// For example `--set redis.url=redis://cache:6379 --set timer.claim=20s`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl ConfigArgs {
    fn load(self) -> Result<LoadedConfig, ConfigProblems> {
        config::load(ConfigSources::gather(self.config, self.set))
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let done = match cli.command {
        Command::Run(args) => run::run(args),
        Command::Check(args) => check::check(args),
        Command::Send(args) => Ok(send::run(args)),
        Command::Status(args) => Ok(status::run(&args)),
        Command::Pending(args) => Ok(pending::run(&args)),
        Command::Cancel(args) => Ok(command::cancel(&args)),
        Command::Reschedule(args) => Ok(command::reschedule(&args)),
        Command::Completions(args) => Ok(completions::completions(&args)),
        Command::Man(args) => completions::man(&args),
        Command::Pause(args) => Ok(pause::pause(args)),
        Command::Resume(args) => Ok(pause::resume(args)),
        Command::Dead(args) => Ok(dead::run(args)),
        Command::Replay(args) => replay::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Top(top::Top {}) => Ok(top::run()),
    };
    done.unwrap_or_else(|error| {
        output::err(&format!("error: {error:#}"));
        ExitCode::FAILURE
    })
}

/// Answers what clap did not take, or took as a question for help.
fn usage(error: &clap::Error) -> ExitCode {
    if let Some(ContextValue::String(command)) = error.get(ContextKind::InvalidSubcommand)
        && LATER.contains(&command.as_str())
    {
        output::err(&format!("error: `{command}` is not in this version of Postdate"));
        return ExitCode::from(USAGE);
    }
    // To stdout or stderr, as it is help or an error. Nobody is left to tell if that fails.
    error.print().unwrap_or_default();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(USAGE),
    }
}

/// Prints all that is wrong with a configuration.
fn refuse(problems: &ConfigProblems) -> ExitCode {
    for problem in &problems.0 {
        output::err(&format!("error: {problem}"));
    }
    if problems.0.len() > 1 {
        output::err(&format!("{} errors", problems.0.len()));
    }
    ExitCode::from(USAGE)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_of_later_versions_stand_in_no_help() {
        let help = Cli::command().render_long_help().to_string();
        for command in LATER {
            assert!(!help.lines().any(|line| line.trim_start().starts_with(command)), "{command}\n{help}");
        }
    }
}
