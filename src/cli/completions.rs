//! `postdate completions`, and the man pages for packagers.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::{Shell, generate};

use super::{Cli, output};

/// Print a shell's completions
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  postdate completions bash > /etc/bash_completion.d/postdate\n  \
    postdate completions zsh > ~/.zfunc/_postdate\n  \
    postdate completions fish > ~/.config/fish/completions/postdate.fish"
)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: ShellKind,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ShellKind {
    Bash,
    Zsh,
    Fish,
}

/// Write the man pages, one a command, into a folder
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// The folder; it is made if it is missing
    folder: PathBuf,
}

pub(super) fn completions(args: &CompletionsArgs) -> ExitCode {
    let shell = match args.shell {
        ShellKind::Bash => Shell::Bash,
        ShellKind::Zsh => Shell::Zsh,
        ShellKind::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "postdate", &mut script);
    output::bytes(&script);
    ExitCode::SUCCESS
}

pub(super) fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let folder = args.folder.display();
    std::fs::create_dir_all(&args.folder)
        .with_context(|| format!("cannot make the folder {folder}"))?;
    clap_mangen::generate_to(Cli::command(), &args.folder)
        .with_context(|| format!("cannot write into the folder {folder}"))?;
    Ok(ExitCode::SUCCESS)
}
