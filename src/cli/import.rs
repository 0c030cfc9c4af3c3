//! `postdate import`

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::api::BecauseArgs;
use super::output::SafeText;
use super::progress::{ProgressReporter, StageProgress};
use super::replay::{route_named, topic_of};
use super::table::{moment, table};
use super::{ConfigArgs, USAGE_EXIT, content, output, refuse};
use crate::config::{Config, read_secret};
use crate::domain::{Clock, Endpoint, Route, RoutingKey, Secret, Target};
use crate::import::{
    BodyCodec, EntryForm, ForeignServer, ImportOutcome, ImportPreview, ImportQueue, ImportRequest,
    ImportTally, ImportWait, ImportWatcher, ScoreUnit, import,
};

/// Move what waits in another program's delay queue into a route
///
/// Without --yes it changes nothing and says what it would move. Each entry is stored first, under a name of its own, and
/// then removed from its queue if it is still there unchanged; cut off, it goes on where it was when it is run again.
/// Relays and the other program may run meanwhile. What cannot be moved stays where it is, and is named.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postdate import redisson --redis redis://cache:6379 --queue reminders --route reminders\n  \
    postdate import redisson --redis redis://cache:6379 --queue reminders --route reminders --codec json --yes\n  \
    postdate import zset --redis redis://cache:6379 --key delayed --score s --member body --route reminders --yes\n\n\
    The store is that of the configuration, which must be the relays' own.\n\n\
    Exit codes: 0 done, 1 failed, or something cannot be moved, 64 usage or configuration.")]
pub(super) struct ImportArgs {
    #[command(subcommand)]
    queue: ImportedQueue,
}

#[derive(Debug, Subcommand)]
enum ImportedQueue {
    Redisson(RedissonArgs),
    Zset(ZsetArgs),
}

/// Move what waits in a delayed queue of Redisson's (`RDelayedQueue`)
///
/// Messages become the bytes that the queue's codec wrote, unless --codec unwraps them.
#[derive(Debug, Args)]
struct RedissonArgs {
    /// The name that the application gives to the destination queue of `getDelayedQueue`
    #[arg(long, value_name = "NAME")]
    queue: String,
    /// Unwrap text: `string` for StringCodec, `json` for JsonJacksonCodec (a JSON string becomes its text)
    #[arg(long, value_enum, value_name = "CODEC")]
    codec: Option<RedissonCodec>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RedissonCodec {
    /// UTF-8 text
    String,
    /// JSON
    Json,
}

/// Move what waits in a sorted set whose scores are due times
#[derive(Debug, Args)]
struct ZsetArgs {
    /// The key of the sorted set
    #[arg(long, value_name = "K")]
    key: String,
    /// The unit of the scores: Unix milliseconds or seconds
    #[arg(long, value_enum, value_name = "UNIT")]
    score: ScoreName,
    /// Where the body is: `body` (the member itself), `json:FIELD` (a field of the member), or `hash:KEY` (the field of
    /// that hash which has the member's name; it is removed with the member)
    #[arg(long, value_name = "FORM", value_parser = member)]
    member: MemberForm,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ScoreName {
    /// Unix milliseconds
    Ms,
    /// Unix seconds, with or without a fraction
    S,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum MemberForm {
    Body,
    JsonField(String),
    Hash(String),
}

fn member(text: &str) -> Result<MemberForm, String> {
    match text.split_once(':') {
        None if text == "body" => Ok(MemberForm::Body),
        Some(("json", field)) if !field.is_empty() => Ok(MemberForm::JsonField(field.to_owned())),
        Some(("hash", key)) if !key.is_empty() => Ok(MemberForm::Hash(key.to_owned())),
        _ => Err("`body`, `json:FIELD` or `hash:KEY` is expected".to_owned()),
    }
}

#[derive(Debug, Args)]
struct CommonArgs {
    /// The Redis that has the queue: redis://, rediss:// or unix://
    #[arg(
        long,
        value_name = "URL",
        required_unless_present = "redis_file",
        conflicts_with = "redis_file"
    )]
    redis: Option<String>,
    /// A file that holds that URL: an argument with a password can be seen by every user of the machine
    #[arg(long, value_name = "FILE")]
    redis_file: Option<PathBuf>,
    /// Trust the authorities in this PEM file, not those of the system; for rediss://
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The route that gets the messages
    #[arg(long, value_name = "R")]
    route: String,
    /// The topic of the route from which the messages are said to come, where its target is derived from the topic
    #[arg(long, value_name = "T")]
    topic: Option<String>,
    /// Key of every message: the record's key, or the routing key
    #[arg(long, value_name = "K")]
    message_key: Option<String>,
    /// A header of every message; may be repeated
    #[arg(long = "header", value_name = "N=V", value_parser = content::header)]
    headers: Vec<(String, String)>,
    /// Say what would be moved, and change nothing; the default
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Move it
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    reason: BecauseArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

/// The part of a request that differs by kind of queue.
struct QueueRequest {
    queue: ImportQueue,
    form: EntryForm,
    score: ScoreUnit,
}

impl From<&RedissonArgs> for QueueRequest {
    fn from(args: &RedissonArgs) -> Self {
        let codec = match args.codec {
            None => BodyCodec::Bytes,
            Some(RedissonCodec::String) => BodyCodec::Text,
            Some(RedissonCodec::Json) => BodyCodec::Json,
        };
        Self {
            queue: ImportQueue::Redisson(args.queue.clone()),
            form: EntryForm::Redisson(codec),
            score: ScoreUnit::Milliseconds,
        }
    }
}

impl From<&ZsetArgs> for QueueRequest {
    fn from(args: &ZsetArgs) -> Self {
        let key = args.key.clone();
        let (hash, form) = match args.member.clone() {
            MemberForm::Body => (None, EntryForm::Member),
            MemberForm::JsonField(field) => (None, EntryForm::JsonField(field)),
            MemberForm::Hash(hash) => (Some(hash), EntryForm::Hash),
        };
        let score = match args.score {
            ScoreName::Ms => ScoreUnit::Milliseconds,
            ScoreName::S => ScoreUnit::Seconds,
        };
        Self {
            queue: ImportQueue::Zset { key, hash },
            form,
            score,
        }
    }
}

pub(super) fn run(args: ImportArgs) -> anyhow::Result<ExitCode> {
    let (queue, common) = match args.queue {
        ImportedQueue::Redisson(args) => (QueueRequest::from(&args), args.common),
        ImportedQueue::Zset(args) => (QueueRequest::from(&args), args.common),
    };
    let CommonArgs {
        redis,
        redis_file,
        ca,
        route,
        message_key,
        headers,
        topic,
        dry_run: _,
        yes,
        reason,
        config,
    } = common;
    let config = match config.load().and_then(|loaded| loaded.check()) {
        Ok(config) => config,
        Err(problems) => return Ok(refuse(&problems)),
    };
    let request = url(redis, redis_file).and_then(|url| {
        refuse_own_keys(&queue.queue, &config.redis.prefix)?;
        let route = route_of(&config, &route, message_key.as_deref(), &headers)?;
        let is_derived = route.has_derived_targets();
        let route = if topic.is_some() || is_derived {
            topic_of(route, topic.as_deref())?
        } else {
            route.clone()
        };
        Ok(ImportRequest {
            route,
            server: ForeignServer { url, ca },
            queue: queue.queue,
            form: queue.form,
            score: queue.score,
            key: message_key,
            headers,
            dry_run: !yes,
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
    let watcher: Arc<dyn ImportWatcher> = Arc::new(ImportReporter {
        progress: ProgressReporter::with_lines(),
    });
    let outcome = import(&config, &request, &watcher)?;
    output::out(outcome_text(&request, &outcome));
    let is_clean = outcome.tally.refused.is_empty();
    Ok(if is_clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn url(url: Option<String>, file: Option<PathBuf>) -> Result<Secret, String> {
    let url = match (url, file) {
        (Some(url), _) => url,
        (None, Some(file)) => read_secret(&file).map_err(|why| format!("--redis-file: {why}"))?,
        (None, None) => return Err("--redis or --redis-file is needed".to_owned()),
    };
    Ok(Secret::new(url))
}

/// Refuses keys of Postdate's own stores: what waits in them belongs to relays.
fn refuse_own_keys(queue: &ImportQueue, prefix: &str) -> Result<(), String> {
    let own = format!("{prefix}:");
    match queue.names().find(|name| name.starts_with(&own)) {
        None => Ok(()),
        Some(name) => Err(format!(
            "`{}` is a key of Postdate's own store (`redis.prefix`), whose messages are the relays' already",
            name.escape_debug()
        )),
    }
}

/// The route of this name, if it can take such messages.
fn route_of<'a>(
    config: &'a Config,
    name: &str,
    key: Option<&str>,
    headers: &[(String, String)],
) -> Result<&'a Arc<Route>, String> {
    let route = route_named(config, name)?;
    let names = &route.policy.headers;
    let own = [&names.delay, &names.deliver_at, &names.id, &names.op];
    for (name, _) in headers {
        if own.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            let name = name.escape_debug();
            return Err(format!(
                "the header `{name}` is set by the import: it follows from each entry"
            ));
        }
    }
    let needs_key = match (&route.from, &*route.to) {
        (Endpoint::Rabbitmq { .. }, Target::Rabbitmq { routing_key, .. }) => {
            matches!(routing_key, RoutingKey::Preserve | RoutingKey::Key)
        }
        _ => false,
    };
    if needs_key && key.is_none() {
        return Err(format!(
            "route {name} publishes each message with its own routing key, and an imported one has none: give \
             --message-key"
        ));
    }
    Ok(route)
}

/// Reports the progress of an import.
struct ImportReporter {
    progress: ProgressReporter,
}

impl ImportWatcher for ImportReporter {
    fn locked(&self, ends_in: Duration) {
        output::err(format!(
            "another import of this queue is running, or was cut off: waiting {} s for its lock",
            ends_in.as_secs() + 1
        ));
    }

    fn looked(&self, done: u64, of: u64) {
        self.progress
            .report("looking", &StageProgress::of(done, of));
    }

    fn moved(&self, done: u64, of: u64, wait: Option<ImportWait>) {
        let progress = StageProgress::of(done, of);
        let progress = match wait {
            None => progress,
            Some(ImportWait::Paused) => progress.waiting(true),
            Some(ImportWait::Trail { messages, takes }) => progress.with_note(format!(
                "waits {} s to hear what became of {messages} that an earlier run may have stored",
                takes.as_secs()
            )),
        };
        self.progress.report("moving", &progress);
    }
}

/// The outcome of an import, for a person.
fn outcome_text(request: &ImportRequest, outcome: &ImportOutcome) -> SafeText {
    let ImportOutcome {
        tally, remaining, ..
    } = outcome;
    let place = request.server.url.redacted_url();
    let queue = &request.queue;
    let rows = rows(request.dry_run, tally, *remaining);
    let rows: Vec<_> = rows
        .into_iter()
        .map(|(n, what)| vec![n.to_string(), what.to_owned()])
        .collect();
    let mut lines = vec![SafeText::from(format!(
        "{queue} at {place} -> route {}",
        request.route.name
    ))];
    lines.push(table(&["ENTRIES", ""], &rows));
    if let Some(preview) = &outcome.preview {
        lines.extend(preview_lines(preview).map(SafeText::from));
    }
    for (reason, refused) in &tally.refused {
        let sentence = reason.sentence();
        lines.push(SafeText::from(format!(
            "{} cannot be moved: {sentence}; the first is {}",
            refused.count, refused.example
        )));
    }
    if outcome.delivered > 0 {
        lines.push(SafeText::from(format!(
            "{} more were delivered by Redisson already and wait in its list: the import leaves them there, so keep a \
             consumer on it until it is empty",
            outcome.delivered
        )));
    }
    if *remaining == 0 && tally.moved == 0 {
        lines.push(SafeText::from(nothing_waits(&request.queue)));
    }
    if request.dry_run && tally.moved > 0 {
        lines.push(SafeText::from(
            "nothing was changed; add --yes to move them",
        ));
    }
    SafeText::joined(lines, "\n")
}

/// Between which moments all would be due, and what the first message would be.
fn preview_lines(preview: &ImportPreview) -> [String; 2] {
    let now = Clock::start().wall().0;
    let [first, last] = [preview.first_due, preview.last_due].map(|due| moment(due.0, now));
    let (size, body) = (preview.first_size, &preview.first_body);
    [
        format!("due from {first} to {last}"),
        format!("the first body, {size} bytes: {body}"),
    ]
}

/// Counts of an outcome; those that are zero are left out, but for the first and the last.
fn rows(dry_run: bool, tally: &ImportTally, remaining: u64) -> Vec<(u64, &'static str)> {
    let moved = if dry_run { "to move" } else { "moved" };
    let left = if dry_run {
        "in the queue"
    } else {
        "left in the queue"
    };
    let optional = [
        (
            tally.overdue,
            "  of them due already: they leave five seconds later",
        ),
        (tally.resumed, "  of them stored by an earlier run"),
        (
            tally.taken,
            "taken by their own program meanwhile: left to it",
        ),
        (tally.repeated, "that may arrive twice"),
        (tally.refused_count(), "that cannot be moved"),
    ];
    let optional = optional.into_iter().filter(|(count, _)| *count > 0);
    std::iter::once((tally.moved, moved))
        .chain(optional)
        .chain([(remaining, left)])
        .collect()
}

/// Says why a queue may seem empty.
fn nothing_waits(queue: &ImportQueue) -> String {
    match queue {
        ImportQueue::Redisson(name) => format!(
            "nothing waits there. Another name? `redis-cli --scan --pattern 'redisson_delay_queue_timeout:*'` lists the \
             delayed queues; a NameMapper of the application's changes the name, {name}"
        ),
        ImportQueue::Zset { key, .. } => format!(
            "nothing waits there. Another key or database? The set is {key}, and the URL ends in the database's number"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_members_form_is_one_of_three() {
        assert_eq!(member("body"), Ok(MemberForm::Body));
        assert_eq!(
            member("json:payload"),
            Ok(MemberForm::JsonField("payload".to_owned()))
        );
        assert_eq!(
            member("hash:jobs:{eu}"),
            Ok(MemberForm::Hash("jobs:{eu}".to_owned()))
        );
        for wrong in ["", "json", "json:", "hash:", "bodies", "field:x"] {
            assert!(member(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn counts_of_zero_are_left_out_but_for_the_ends() {
        let tally = ImportTally {
            moved: 7,
            taken: 1,
            ..ImportTally::default()
        };
        let counts: Vec<u64> = rows(false, &tally, 0)
            .into_iter()
            .map(|(count, _)| count)
            .collect();
        assert_eq!(counts, [7, 1, 0]);
    }
}
