//! The command line. Each command has a file. Exit codes: 0 done, 1 failed, 64 usage or configuration.

mod api;
mod bench;
mod cancel;
mod check;
mod client;
mod completions;
mod config;
mod content;
mod dead;
mod facts;
mod graph;
mod import;
mod output;
mod pause;
mod pending;
mod plan;
mod progress;
mod purge;
mod replace;
mod replay;
mod reschedule;
mod run;
mod send;
mod show;
mod size;
mod skip;
mod status;
mod table;
mod times;
mod top;
mod trail;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};

use self::output::SafeText;
use crate::config::{ConfigProblems, ConfigSources, LoadedConfig, load};
use crate::domain::unsafe_text::escaped;

/// Exit code of a wrong command line or configuration.
const USAGE_EXIT: u8 = 64;

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
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    Run(run::RunArgs),
    Check(check::CheckArgs),
    Config(config::ConfigReferenceArgs),
    Graph(graph::GraphArgs),
    Send(send::SendArgs),
    Status(status::StatusArgs),
    Pending(pending::PendingArgs),
    Show(show::ShowArgs),
    Cancel(cancel::CancelArgs),
    Reschedule(reschedule::RescheduleArgs),
    Replace(replace::ReplaceArgs),
    Completions(completions::CompletionsArgs),
    #[command(hide = true)]
    Man(completions::ManArgs),
    Pause(pause::PauseArgs),
    Resume(pause::ResumeArgs),
    Skip(skip::SkipArgs),
    Purge(purge::PurgeArgs),
    Dead(dead::DeadArgs),
    Replay(replay::ReplayArgs),
    Import(import::ImportArgs),
    Plan(plan::PlanArgs),
    Bench(bench::BenchArgs),
    Size(size::SizeArgs),
    Top(top::TopArgs),
}

/// Sources of the configuration.
#[derive(Debug, Args)]
struct ConfigArgs {
    /// The configuration file, .toml or .yaml
    ///
    /// Without it: POSTDATE_CONFIG, else ./postdate.toml, else /etc/postdate/postdate.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one key, over file and environment; may be repeated
    ///
    /// For example `--set log.format=json --set timer.claim=20s`. An argument with a password can be seen by every user of
    /// the machine: name a file instead (`redis.url_file`), or take a variable (POSTDATE_REDIS__URL).
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl ConfigArgs {
    fn load(self) -> Result<LoadedConfig, ConfigProblems> {
        load(ConfigSources::gather(self.config, self.set))
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    output::judged(run_command())
}

fn run_command() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&with_escaped_arguments().unwrap_or(error)),
    };
    let done = match cli.command {
        CliCommand::Run(args) => run::run(args),
        CliCommand::Check(args) => check::check(args),
        CliCommand::Config(args) => Ok(config::run(&args)),
        CliCommand::Graph(args) => Ok(graph::run(args)),
        CliCommand::Send(args) => Ok(send::run(args)),
        CliCommand::Status(args) => Ok(status::run(&args)),
        CliCommand::Pending(args) => Ok(pending::run(&args)),
        CliCommand::Show(args) => Ok(show::run(&args)),
        CliCommand::Cancel(args) => Ok(cancel::run(&args)),
        CliCommand::Reschedule(args) => Ok(reschedule::run(&args)),
        CliCommand::Replace(args) => Ok(replace::run(args)),
        CliCommand::Completions(args) => Ok(completions::completions(&args)),
        CliCommand::Man(args) => completions::man(&args),
        CliCommand::Pause(args) => Ok(pause::pause(&args)),
        CliCommand::Resume(args) => Ok(pause::resume(&args)),
        CliCommand::Skip(args) => Ok(skip::run(&args)),
        CliCommand::Purge(args) => Ok(purge::run(&args)),
        CliCommand::Dead(args) => Ok(dead::run(args)),
        CliCommand::Replay(args) => replay::run(args),
        CliCommand::Import(args) => import::run(args),
        CliCommand::Plan(args) => Ok(plan::run(args)),
        CliCommand::Bench(args) => bench::run(args),
        CliCommand::Size(args) => Ok(size::run(&args)),
        CliCommand::Top(args) => Ok(top::run(&args)),
    };
    done.unwrap_or_else(|error| {
        output::error(format!("{error:#}"));
        ExitCode::FAILURE
    })
}

/// The error that clap has about this command line, in which its arguments are escaped; `None` if it has none then.
fn with_escaped_arguments() -> Option<clap::Error> {
    Cli::try_parse_from(std::env::args_os().map(|argument| escaped(&argument.to_string_lossy())))
        .err()
}

/// Ends a command line that clap refused, or took as a question for help.
fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Clap's own text, in its colours.
            output::note(error.print());
            ExitCode::SUCCESS
        }
        _ => {
            // The text repeats arguments of the user's, which may be ids of a producer's.
            output::err(SafeText::lines(error.render().to_string().trim_end()));
            ExitCode::from(USAGE_EXIT)
        }
    }
}

/// Prints all problems of a configuration.
fn refuse(problems: &ConfigProblems) -> ExitCode {
    for problem in &problems.0 {
        // A parser's message shows lines of the file; a path is one line.
        let place = [problem.place(), problem.key.clone()]
            .into_iter()
            .filter(|part| !part.is_empty());
        let whole = place
            .map(SafeText::from)
            .chain([SafeText::lines(&problem.message)]);
        output::error(SafeText::joined(whole, ": "));
    }
    if problems.0.len() > 1 {
        output::err(format!("{} errors", problems.0.len()));
    }
    ExitCode::from(USAGE_EXIT)
}

#[cfg(test)]
mod testing;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        Cli::command().debug_assert();
    }
}
