//! `postdate replay`

use std::io::{BufRead, IsTerminal};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;

use super::api::BecauseArgs;
use super::output::SafeText;
use super::progress::{ProgressReporter, StageProgress};
use super::table::{moment, table};
use super::{ConfigArgs, USAGE_EXIT, output, refuse, times};
use crate::config::Config;
use crate::domain::{Clock, Endpoint, Route, UnixMs, nearest};
use crate::replay::{
    ReplayOutcome, ReplayOverview, ReplayRequest, ReplayTimes, ReplayWatcher, replay,
};

/// Store again what a Kafka route read and the store has lost
///
/// After the store was lost or restored from a backup: reads the route's topic again, up to where the route has
/// read it, and stores the messages that should wait and do not. Messages that the store has are left alone, messages
/// that passed through are left out, cancels and reschedules hold. Relays may run meanwhile. Messages delivered since T
/// may come again: --due-after leaves out those that surely were delivered. Killed, it goes on where it was when it is
/// started again with the same times.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postdate replay --route orders --since 2026-11-21T08:00:00Z --dry-run\n  \
    postdate replay --route orders --since 2026-11-21T08:00:00Z --due-after 2026-11-21T10:30:00Z --yes\n\n\
    A time is RFC 3339 with an offset, Unix milliseconds, or relative: `--since=-2h`. Redis and Kafka are those of the configuration, \
    which must be the relays' own.\n\nExit codes: 0 done, 1 failed, 64 usage or configuration.")]
pub(super) struct ReplayArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The route; it reads from Kafka
    #[arg(long, value_name = "R")]
    route: String,
    /// The topic, where the route reads several: each is replayed by itself
    #[arg(long, value_name = "T")]
    topic: Option<String>,
    /// From the first record of this time on: when the backup was made, or before the oldest message that waited
    #[arg(long, value_name = "T", allow_hyphen_values = true, value_parser = times::parse_now)]
    since: UnixMs,
    /// Only records up to this time; later commands for them hold
    #[arg(long, value_name = "T", allow_hyphen_values = true, value_parser = times::parse_now)]
    until: Option<UnixMs>,
    /// Leave out messages that were due before this: the time when the store was lost. Without it, nothing is left out
    #[arg(long, value_name = "T", allow_hyphen_values = true, value_parser = times::parse_now)]
    due_after: Option<UnixMs>,
    /// Print the overview, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask; needed where there is no terminal
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    reason: BecauseArgs,
}

pub(super) fn run(args: ReplayArgs) -> anyhow::Result<ExitCode> {
    let ReplayArgs {
        config,
        route,
        topic,
        since,
        until,
        due_after,
        dry_run,
        yes,
        reason,
    } = args;
    let config = match config.load().and_then(|loaded| loaded.check()) {
        Ok(config) => config,
        Err(problems) => return Ok(refuse(&problems)),
    };
    let asks = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    let request = replayable_route(&config, &route, topic.as_deref()).and_then(|route| {
        let times = times(since, until, due_after, Clock::start().wall())?;
        if !(dry_run || yes || asks) {
            return Err(
                "this may store many messages: look with --dry-run, then add --yes".to_owned(),
            );
        }
        Ok(ReplayRequest {
            route,
            times,
            dry_run,
            because: reason.because,
        })
    });
    let request = match request {
        Ok(request) => request,
        Err(why) => {
            output::error(why);
            return Ok(ExitCode::from(USAGE_EXIT));
        }
    };
    let progress = ProgressReporter::with_lines();
    let reporter = ReplayReporter {
        request: request.clone(),
        asks: asks && !yes,
        progress,
    };
    let watcher: Arc<dyn ReplayWatcher> = Arc::new(reporter);
    match replay(&config, &request, &watcher)? {
        ReplayOutcome::Left if request.dry_run => Ok(ExitCode::SUCCESS),
        ReplayOutcome::Left => {
            output::err("nothing was done");
            Ok(ExitCode::FAILURE)
        }
        ReplayOutcome::Done {
            stored,
            duplicates,
            later,
        } => {
            output::out(format!(
                "done: {stored} message(s) stored, dead letters included"
            ));
            if duplicates > 0 {
                output::out(format!(
                    "{duplicates} were not: messages of their names came meanwhile"
                ));
            }
            if later > 0 {
                output::out(format!(
                    "the relays have read {later} offset(s) since it was begun: a cancel among them may have come before \
                     its message was stored; the same replay once more carries it out"
                ));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The route of this name as it reads one topic, if it can be replayed.
fn replayable_route(
    config: &Config,
    name: &str,
    topic: Option<&str>,
) -> Result<Arc<Route>, String> {
    let route = route_named(config, name)?;
    match route.from {
        Endpoint::Kafka { .. } => topic_of(route, topic),
        Endpoint::Rabbitmq { .. } => Err(format!(
            "route {name} reads from RabbitMQ: a queue forgets what was acknowledged, so there is nothing to \
             read again"
        )),
    }
}

/// The route as it reads one topic, as `--topic` says.
pub(super) fn topic_of(route: &Arc<Route>, topic: Option<&str>) -> Result<Arc<Route>, String> {
    let view = route.at_topic(topic);
    view.map_err(|why| {
        if topic.is_none() {
            format!("{why} by --topic")
        } else {
            why
        }
    })
}

/// The route of this name.
pub(super) fn route_named<'a>(config: &'a Config, name: &str) -> Result<&'a Arc<Route>, String> {
    config
        .routes
        .iter()
        .find(|route| route.name.as_str() == name)
        .ok_or_else(|| {
            let near = nearest(name, config.routes.iter().map(|route| route.name.as_str()));
            let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
            format!("there is no route `{}`{near}", name.escape_debug())
        })
}

fn times(
    since: UnixMs,
    until: Option<UnixMs>,
    due_after: Option<UnixMs>,
    now: UnixMs,
) -> Result<ReplayTimes, String> {
    let say = |at: UnixMs| moment(at.0, now.0);
    if since > now {
        return Err(format!("--since is in the future: {}", say(since)));
    }
    if let Some(until) = until.filter(|until| *until < since) {
        return Err(format!(
            "--until is before --since: {} and {}",
            say(until),
            say(since)
        ));
    }
    // A message that was stored since then fell due since then: by default nothing is left out.
    Ok(ReplayTimes {
        since,
        until,
        due_after: due_after.unwrap_or(since),
    })
}

/// Reports the progress of a replay, and asks whether to go on.
struct ReplayReporter {
    request: ReplayRequest,
    asks: bool,
    progress: ProgressReporter,
}

impl ReplayWatcher for ReplayReporter {
    fn scanned(&self, done: u64, of: u64) {
        self.progress
            .report("looking at Redis", &StageProgress::of(done, of));
    }

    fn read(&self, done: u64, of: u64) {
        self.progress
            .report("reading the topic", &StageProgress::of(done, of));
    }

    fn stored(&self, done: u64, of: u64, waits: bool) {
        self.progress
            .report("storing", &StageProgress::of(done, of).waiting(waits));
    }

    fn goes_on(&self, overview: &ReplayOverview) -> bool {
        self.progress.end_line();
        output::out(overview_text(
            &self.request,
            overview,
            Clock::start().wall(),
        ));
        if self.request.dry_run || !self.asks {
            return !self.request.dry_run;
        }
        output::prompt("go on? [y/N] ");
        let mut answer = String::new();
        let read = std::io::stdin().lock().read_line(&mut answer);
        read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
    }
}

/// Names the partitions that are not replayed because the group has committed no position in them.
fn unread(request: &ReplayRequest, overview: &ReplayOverview) -> Option<String> {
    let Endpoint::Kafka {
        group,
        topics: topic,
        ..
    } = &request.route.from
    else {
        return None;
    };
    let unread: Vec<String> = overview
        .windows
        .iter()
        .filter(|w| w.unread)
        .map(|w| w.partition.to_string())
        .collect();
    let of = match unread.len() {
        0 => return None,
        n if n == overview.windows.len() => format!("topic {topic}"),
        _ => format!("partition {} of topic {topic}", unread.join(", ")),
    };
    Some(format!(
        "group {group} has committed no position in {of}: the relays have not read it, or its positions have \
         expired, and will read it from its beginning; nothing of it is replayed"
    ))
}

/// The overview of a replay, for a person.
fn overview_text(request: &ReplayRequest, overview: &ReplayOverview, now: UnixMs) -> SafeText {
    let tally = &overview.tally;
    let times = request.times;
    let say = |at: UnixMs| moment(at.0, now.0);
    let until = times
        .until
        .map_or("all that the route has read".to_owned(), say);
    let mut lines = vec![
        format!(
            "route {}: records since {}, until {until}",
            request.route.name,
            say(times.since)
        ),
        format!("the store holds {} of its messages", overview.known),
    ];
    for window in &overview.windows {
        if let Some(oldest) = window.cut {
            lines.push(format!(
                "partition {}: the records before offset {oldest} are no longer there; those of them that are \
                 since then cannot be read again",
                window.partition
            ));
        }
    }
    lines.extend(unread(request, overview));
    if let Some(other) = overview.forgets {
        lines.push(format!(
            "an earlier replay, since {}, was not finished: what it left is forgotten",
            say(other.since)
        ));
    }
    if let Some(done) = overview.done {
        lines.push(format!(
            "an earlier run was not finished: it goes on behind the first {done} offsets"
        ));
    }
    let rows = [
        (tally.read, "records read"),
        (tally.stored, "messages to store"),
        (tally.overdue, "  of them due already: they leave at once"),
        (tally.cancelled, "messages to cancel in the store"),
        (tally.rescheduled, "messages to move in the store"),
        (tally.dead, "invalid messages to keep as dead letters"),
        (tally.there, "left out: the store has them, waiting or dead"),
        (
            tally.settled,
            "left out: cancelled, repeated or replaced later, or commands that are done",
        ),
        (tally.before, "left out: due before --due-after"),
        (tally.later, "left out: later than --until"),
        (tally.passing, "left out: they never were in the store"),
    ];
    let rows: Vec<_> = rows
        .iter()
        .map(|(n, what)| vec![n.to_string(), (*what).to_owned()])
        .collect();
    let lines = lines
        .into_iter()
        .map(SafeText::from)
        .chain([table(&["RECORDS", ""], &rows)]);
    SafeText::joined(lines, "\n")
}
