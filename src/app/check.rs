//! `check --connect`: tries Redis, the brokers, and every topic, queue and exchange that a route names.

use std::process::ExitCode;

use crate::config::Config;

/// Tries all of it; prints what it found.
pub fn check_connections(_config: &Config) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not wired")
}
