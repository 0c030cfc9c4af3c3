//! `postdate bench`

mod answer;

use std::io::{BufRead, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;

use super::api::BecauseArgs;
use super::output::SafeText;
use super::progress::{ProgressReporter, StageProgress};
use super::replay::{route_named, topic_of};
use super::{ConfigArgs, USAGE_EXIT, output, refuse};
use crate::bench::{self, BenchOutcome, BenchProgress, BenchRequest, BenchWatcher};
use crate::domain::duration;

/// Most messages a second.
const MAX_RATE: u64 = 1_000_000;
/// Most bytes of a body.
const MAX_BODY_SIZE: u64 = 64 << 20;
/// Longest run, ms: a day.
const MAX_RUN_MS: i64 = 86_400_000;

/// Measure a route: throughput and lateness, with your own brokers, Redis and relays
///
/// Sends marked messages to the route's ingress and looks for them at its target, beside running relays. Lateness
/// counts from the due time, which goes by a plan that waits for nobody: a stall shows in every message that it
/// delays. It reads for itself alone: on Kafka at a position of its own without a group, on RabbitMQ from an
/// exclusive queue that it binds to the target's exchange. Messages that have not arrived at the end, or at Ctrl-C, are
/// taken out of the store again. The messages are real: the target's own consumers get them too, with the header
/// `postdate-bench`, and in Kafka they stay in the topics. Set a route aside for it where that matters.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  postdate bench --route bench --yes\n  \
    postdate bench --route bench --rate 5000 --duration 1m --delay 500ms..10s --size 1024 --yes --json\n\n\
    Redis and brokers are those of the configuration, which must be the relays' own.\n\n\
    Exit codes: 0 all came back; 1 no numbers, or not all came back, or it was ended early; 64 usage or configuration.")]
pub(super) struct BenchArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The route
    #[arg(long, value_name = "R")]
    route: String,
    /// The topic to send to, where the route reads several
    #[arg(long, value_name = "T")]
    topic: Option<String>,
    /// Messages a second, at random moments
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = RangedU64ValueParser::<u32>::new().range(1..=MAX_RATE))]
    rate: u32,
    /// Length of the sending
    #[arg(long, value_name = "D", default_value = "30s", value_parser = length)]
    duration: Duration,
    /// Delay of each message: one delay, or two for all between them
    #[arg(long, value_name = "D[..D]", default_value = "1s..3s", value_parser = delay)]
    delay: (i64, i64),
    /// Bytes of each body, at random
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = RangedU64ValueParser::<u32>::new().range(0..=MAX_BODY_SIZE))]
    size: u32,
    /// Refuse a topic with fewer partitions; without it: than replicas serve the route
    #[arg(long, value_name = "N")]
    partitions: Option<usize>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Do not ask; needed where there is no terminal
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    reason: BecauseArgs,
}

fn length(text: &str) -> Result<Duration, String> {
    match duration::parse_setting(text).map_err(|error| error.to_string())? {
        ms @ 100..=MAX_RUN_MS => Ok(Duration::from_millis(ms.unsigned_abs())),
        _ => Err("between 100ms and 1d is expected".to_owned()),
    }
}

fn delay(text: &str) -> Result<(i64, i64), String> {
    let (shortest, longest) = text.split_once("..").unwrap_or((text, text));
    let ms = |text| duration::parse_setting(text).map_err(|error| format!("`{text}`: {error}"));
    let shortest = ms(shortest)?;
    let longest = ms(longest)?;
    if shortest > longest {
        return Err("the first delay is longer than the second".to_owned());
    }
    Ok((shortest, longest))
}

pub(super) fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let BenchArgs {
        config,
        route,
        topic,
        rate,
        duration,
        delay,
        size,
        partitions,
        json,
        yes,
        reason,
    } = args;
    let config = match config.load().and_then(|loaded| loaded.check()) {
        Ok(config) => config,
        Err(problems) => return Ok(refuse(&problems)),
    };
    let asks = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    let route = route_named(&config, &route).and_then(|route| topic_of(route, topic.as_deref()));
    let request = route.and_then(|route| {
        let size = size as usize;
        let request = BenchRequest {
            route,
            rate,
            duration,
            delay_ms: delay,
            size,
            partitions,
            because: reason.because,
        };
        match request.unfit() {
            Some(why) => Err(why),
            None if yes || asks => Ok(request),
            None => Err("the target's consumers will get its messages: add --yes".to_owned()),
        }
    });
    let request = match request {
        Ok(request) => request,
        Err(why) => {
            output::error(why);
            return Ok(ExitCode::from(USAGE_EXIT));
        }
    };
    if !yes && !agreed(&request) {
        output::err("nothing was sent");
        return Ok(ExitCode::FAILURE);
    }
    let reporter = BenchReporter {
        progress: ProgressReporter::bar_only(),
        json,
        duration,
    };
    match bench::bench(&config, &request, &reporter)? {
        BenchOutcome::Killed(code) => Ok(code),
        BenchOutcome::Measured(summary) => {
            reporter.progress.end_line();
            if json {
                output::out(SafeText::json(&answer::json(&request, &summary)));
            } else {
                output::out(answer::table(&request, &summary));
            }
            let troubles = answer::troubles(&summary);
            for trouble in &troubles {
                output::error(trouble.as_str());
            }
            Ok(if troubles.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
    }
}

/// Asks on the terminal whether to go on.
fn agreed(request: &BenchRequest) -> bool {
    output::prompt(format!(
        "some {} messages will go to the consumers of route {}'s target. go on? [y/N] ",
        (u128::from(request.rate) * request.duration.as_millis()).div_ceil(1000),
        request.route.name
    ));
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Reports the progress of a bench.
struct BenchReporter {
    progress: ProgressReporter,
    json: bool,
    duration: Duration,
}

impl BenchWatcher for BenchReporter {
    fn begins(&self, run: &str, from: &str, to: &str) {
        if !self.json {
            output::out(format!("run {run}: {from} -> {to}"));
        }
    }

    fn goes_on(&self, progress: &BenchProgress) {
        let seconds = self.duration.as_secs().max(1);
        let at = progress.at_ms.max(0).unsigned_abs() / 1000;
        let (stage, reached) = if at < seconds {
            ("sending", StageProgress::of(at, seconds))
        } else {
            (
                "waiting",
                StageProgress::of(progress.received, progress.sent),
            )
        };
        self.progress
            .report(stage, &reached.with_note(answer::note(progress)));
    }

    fn cleans(&self, waiting: u64) {
        self.progress
            .report("taking back", &StageProgress::of(0, waiting));
    }
}
