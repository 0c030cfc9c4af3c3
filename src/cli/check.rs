//! `postdate check`

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::output::SafeText;
use super::{ConfigArgs, USAGE_EXIT, output, refuse};
use crate::app::{self, CheckFinding};
use crate::config::{Config, ConfigProblem};

/// Check the configuration, and report all errors at once
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  postdate check\n  postdate check --config postdate.yaml --connect\n  \
    postdate check --print\n  postdate check --connect --json\n\nExit codes: 0 all is well, 1 --connect found something, 64 the configuration is wrong."
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
    /// Print what was found as JSON
    #[arg(long, conflicts_with = "print")]
    json: bool,
}

pub(super) fn check(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let loaded = args.config.load();
    let checked = loaded
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|loaded| Ok((loaded, loaded.check()?)));
    let (loaded, config) = match checked {
        Ok(checked) => checked,
        Err(problems) if args.json => {
            let problems = problems.0.iter().map(problem_json);
            let found = json!({ "right": false, "problems": problems.collect::<Vec<_>>() });
            output::out(SafeText::json(&found));
            return Ok(ExitCode::from(USAGE_EXIT));
        }
        Err(problems) => return Ok(refuse(&problems)),
    };
    let notes = notes(&config);
    if args.print {
        output::out(SafeText::lines(loaded.print().trim_end()));
    } else if !args.json {
        output::out(summary(&config));
        for note in &notes {
            output::out(note.as_str());
        }
    }
    let findings = if args.connect {
        app::check_connections(&config)?
    } else {
        Vec::new()
    };
    if args.json {
        let found = json!({
            "right": true,
            "routes": config.routes.len(),
            "notes": notes,
            "findings": findings.iter().map(finding_json).collect::<Vec<_>>(),
        });
        output::out(SafeText::json(&found));
    } else {
        tell(&findings, args.print);
    }
    Ok(if findings.iter().all(|finding| finding.good) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn problem_json(problem: &ConfigProblem) -> Value {
    json!({ "place": problem.place(), "key": problem.key, "message": problem.message })
}

fn finding_json(finding: &CheckFinding) -> Value {
    let result = match (finding.good, finding.warns) {
        (false, _) => "bad",
        (true, true) => "warning",
        (true, false) => "good",
    };
    json!({ "result": result, "text": finding.text })
}

/// Prints what trying the connections found: good findings to stdout, unless the configuration is printed there; bad ones
/// to stderr.
fn tell(findings: &[CheckFinding], print: bool) {
    let (good, bad): (Vec<_>, Vec<_>) = findings.iter().partition(|finding| finding.good);
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
}

fn summary(config: &Config) -> String {
    format!(
        "the configuration is right: {} route(s), {} Kafka and {} RabbitMQ connection(s)",
        config.routes.len(),
        config.kafka.len(),
        config.rabbitmq.len()
    )
}

/// What is right and worth a word.
fn notes(config: &Config) -> Vec<String> {
    let lowered = app::lowered_prefetches(&config.routes).into_iter();
    lowered
        .chain(app::many_groups(&config.routes))
        .chain(app::keys_that_name_queues(&config.routes))
        .collect()
}
