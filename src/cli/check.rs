//! `postdate check`

use std::process::ExitCode;

use clap::Args;

use super::{ConfigArgs, output, refuse};
use crate::app;
use crate::config::Config;

/// Say whether the configuration is right, all errors at once
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  postdate check\n  postdate check --config postdate.yaml --connect\n  \
    postdate check --print\n\nExit codes: 0 all is well, 1 --connect found something, 64 the configuration is wrong.")]
pub(super) struct Check {
    #[command(flatten)]
    config: ConfigArgs,
    /// Try Redis, the brokers, and every topic, queue and exchange too
    #[arg(long)]
    connect: bool,
    /// Print the effective configuration as TOML, each value with its source, secrets redacted
    #[arg(long)]
    print: bool,
}

pub(super) fn check(args: Check) -> anyhow::Result<ExitCode> {
    let loaded = match args.config.load() {
        Ok(loaded) => loaded,
        Err(problems) => return Ok(refuse(&problems)),
    };
    let config = match loaded.check() {
        Ok(config) => config,
        Err(problems) => return Ok(refuse(&problems)),
    };
    output::out(&if args.print { loaded.print().trim_end().to_owned() } else { summary(&config) });
    if args.connect { app::check_connections(&config) } else { Ok(ExitCode::SUCCESS) }
}

fn summary(config: &Config) -> String {
    let (routes, kafka, rabbitmq) = (config.routes.len(), config.kafka.len(), config.rabbitmq.len());
    format!(
        "the configuration is right: {routes} route(s), {kafka} Kafka and {rabbitmq} RabbitMQ connection(s)"
    )
}
