//! The composition root.

use std::process::ExitCode;

use crate::config::Config;

/// Relays until a signal; the process's exit code.
pub fn run(_config: Config) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`run` is not wired yet")
}

/// Tries Redis, the brokers, and what the routes name there; prints what it found.
pub fn check_connections(_config: &Config) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`check --connect` is not wired yet")
}
