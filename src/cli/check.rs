//! `postdate check`

use std::process::ExitCode;

use clap::Args;

use super::output::SafeText;
use super::{ConfigArgs, output, refuse};
use crate::app;
use crate::config::Config;

/// Check the configuration, and report all errors at once
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  postdate check\n  postdate check --config postdate.yaml --connect\n  \
    postdate check --print\n\nExit codes: 0 all is well, 1 --connect found something, 64 the configuration is wrong."
)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Try Redis, the brokers, and every topic, queue and exchange too
    ///
    /// Nothing is created or changed, and no group is joined. The rights to write, and on RabbitMQ also to read, show
    /// only in use: they are not tried.
    #[arg(long)]
    connect: bool,
    /// Print the effective configuration as TOML, each value with its source, secrets redacted
    #[arg(long)]
    print: bool,
}

pub(super) fn check(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let loaded = match args.config.load() {
        Ok(loaded) => loaded,
        Err(problems) => return Ok(refuse(&problems)),
    };
    let config = match loaded.check() {
        Ok(config) => config,
        Err(problems) => return Ok(refuse(&problems)),
    };
    let text = if args.print {
        loaded.print()
    } else {
        summary(&config)
    };
    output::out(SafeText::lines(text.trim_end()));
    if args.connect {
        connect(&config, args.print)
    } else {
        Ok(ExitCode::SUCCESS)
    }
}

/// Tries the connections and prints the findings: good ones to stdout, unless the configuration is printed there; bad
/// ones to stderr.
fn connect(config: &Config, print: bool) -> anyhow::Result<ExitCode> {
    let (good, bad): (Vec<_>, Vec<_>) = app::check_connections(config)?
        .into_iter()
        .partition(|f| f.good);
    for finding in good.iter().filter(|finding| !print || finding.warns) {
        let text = if finding.warns {
            format!("warning: {}", finding.text)
        } else {
            finding.text.clone()
        };
        if print {
            output::err(text);
        } else {
            output::out(text);
        }
    }
    for finding in &bad {
        output::error(finding.text.as_str());
    }
    if bad.len() > 1 {
        output::err(format!("{} errors", bad.len()));
    }
    Ok(if bad.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn summary(config: &Config) -> String {
    let right = format!(
        "the configuration is right: {} route(s), {} Kafka and {} RabbitMQ connection(s)",
        config.routes.len(),
        config.kafka.len(),
        config.rabbitmq.len()
    );
    let lowered = app::lowered_prefetches(&config.routes);
    let groups = app::many_groups(&config.routes);
    let open = app::keys_that_name_queues(&config.routes);
    std::iter::once(right)
        .chain(lowered)
        .chain(groups)
        .chain(open)
        .collect::<Vec<_>>()
        .join("\n")
}
