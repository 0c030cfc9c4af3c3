//! `postdate dead`

mod letter;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use self::letter::letter_text;
use super::client::{ApiClient, ClientError};
use super::output::{self, Printer, SafeText};
use super::progress::{ProgressReporter, StageProgress};
use super::table::{listed_moment, moment_title, table};
use super::{api, times};
use crate::domain::{Clock, UnixMs, duration, path_segment, percent_encoded};

/// The API's word for the order that loses none while others come.
const OLDEST: &str = "oldest";
/// Most ids that the API takes at once.
const MAX_IDS: usize = 100;

/// List, show, redrive, drop and export dead letters, by the API of a running Postdate
///
/// A dead letter is a message that could not be published, or an invalid one: kept with its reason and history.
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  postdate dead list --route orders --reason unroutable\n  \
    postdate dead show orders.unroutable.1c.k3x9.4b --body\n  \
    postdate dead redrive order-7 order-8\n  \
    postdate dead redrive --route orders --reason unroutable --yes\n  \
    postdate dead export --route orders > dead.ndjson\n\n\
    An ID is a dead letter's own, or its message's.\n\n{}", api::ENVIRONMENT_HELP))]
pub(super) struct DeadArgs {
    #[command(flatten)]
    api: api::ApiArgs,
    #[command(subcommand)]
    command: DeadCommand,
}

#[derive(Debug, Subcommand)]
enum DeadCommand {
    /// List them, newest first
    List {
        #[command(flatten)]
        filter: FilterArgs,
        /// The oldest first
        #[arg(long)]
        oldest: bool,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// Print JSON
        #[arg(long, conflicts_with = "watch")]
        json: bool,
        /// Show it again every two seconds
        #[arg(long)]
        watch: bool,
    },
    /// Show one, with its history and headers
    Show {
        /// Its id, or its message's
        #[arg(value_name = "ID")]
        id: String,
        /// The route, where a message's id is not unique
        #[arg(long, value_name = "R")]
        route: Option<String>,
        /// With its body
        #[arg(long)]
        body: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Publish them again, now or later, without delay headers and by their route's rules as they are now
    Redrive {
        #[command(flatten)]
        action: ActionArgs,
        /// To another target of the route: its own, or one of `allow_targets`
        #[arg(long, value_name = "TARGET")]
        target: Option<String>,
        /// Due this long from now: `10m`, `2h30m`, or milliseconds
        #[arg(long, value_name = "D", conflicts_with = "at")]
        delay: Option<String>,
        /// Due at this moment: RFC 3339 with an offset, Unix milliseconds, or relative, `+2h`
        #[arg(long, value_name = "T", allow_hyphen_values = true, value_parser = times::parse_now)]
        at: Option<UnixMs>,
        /// Due evenly over this long, in their order, so that the target does not get all at once
        #[arg(long, value_name = "D")]
        spread: Option<String>,
    },
    /// Drop them for good
    Drop {
        #[command(flatten)]
        action: ActionArgs,
    },
    /// Print them, bodies and all, one JSON object a line
    Export {
        #[command(flatten)]
        filter: FilterArgs,
    },
}

/// Conditions on dead letters.
#[derive(Clone, Debug, Default, Args)]
struct FilterArgs {
    /// Of this route
    #[arg(long, value_name = "R")]
    route: Option<String>,
    /// Dead for this reason: `attempts`, `unroutable`, `bad_delay`, ...
    #[arg(long, value_name = "X")]
    reason: Option<String>,
    /// Dead since this moment, inclusive: RFC 3339 with an offset, Unix milliseconds, or relative, `-2h`
    #[arg(long, value_name = "T", allow_hyphen_values = true, value_parser = times::parse_now)]
    from: Option<UnixMs>,
    /// Dead before this moment, exclusive
    #[arg(long, value_name = "T", allow_hyphen_values = true, value_parser = times::parse_now)]
    to: Option<UnixMs>,
}

/// Dead letters to act on: by ids, or by conditions.
#[derive(Clone, Debug, Default, Args)]
struct ActionArgs {
    /// Ids of dead letters, or of their messages
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    filter: FilterArgs,
    /// All of them
    #[arg(long, conflicts_with_all = ["ids", "reason", "from", "to", "route"])]
    all: bool,
    /// Confirm an action on many at once; required with --all or a filter
    #[arg(long)]
    yes: bool,
    /// Say how many there are, and change nothing
    #[arg(long, conflicts_with_all = ["ids", "yes", "json"])]
    dry_run: bool,
    #[command(flatten)]
    reason: api::BecauseArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl FilterArgs {
    /// The given conditions, by the names of the API.
    fn pairs(&self) -> Vec<(&'static str, String)> {
        let moment = |at: Option<UnixMs>| at.map(|at| at.to_string());
        let all = [
            ("route", self.route.clone()),
            ("reason", self.reason.clone()),
            ("from", moment(self.from)),
            ("to", moment(self.to)),
        ];
        all.into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

pub(super) fn run(args: DeadArgs) -> ExitCode {
    if let DeadCommand::List {
        filter,
        oldest,
        limit,
        watch: true,
        ..
    } = &args.command
    {
        return match api::connect(&args.api) {
            Ok(client) => api::show(Some(api::WATCH_INTERVAL), || {
                render(&client, filter, order(*oldest), *limit as usize)
            }),
            Err(error) => api::ended(Err(error)),
        };
    }
    let because = match &args.command {
        DeadCommand::Redrive { action, .. } | DeadCommand::Drop { action } => {
            action.reason.because.as_ref()
        }
        _ => None,
    };
    let client = api::connect(&args.api).map(|client| client.saying_why(because));
    api::ended(client.and_then(|client| output::with_stdout(|out| dead(&client, args, out))))
}

fn dead(client: &ApiClient, args: DeadArgs, out: &mut Printer<'_>) -> Result<(), ClientError> {
    match args.command {
        DeadCommand::List {
            filter,
            oldest,
            limit,
            json,
            ..
        } => list(client, &filter, order(oldest), limit as usize, json, out),
        DeadCommand::Show {
            id,
            route,
            body,
            json,
        } => show(client, &id, route.as_deref(), body, json, out),
        DeadCommand::Redrive {
            action,
            target,
            delay,
            at,
            spread,
        } => {
            let how = RedriveHow::of(target, delay.as_deref(), at, spread.as_deref())?;
            act_on(client, "redrive", "redriven", &action, Some(how), out)
        }
        DeadCommand::Drop { action } => act_on(client, "drop", "dropped", &action, None, out),
        DeadCommand::Export { filter } => {
            for_each_dead(client, &filter, OLDEST, usize::MAX, true, |item| {
                out.print(SafeText::json(item)).map_err(ClientError::from)
            })?;
            Ok(())
        }
    }
}

/// The API's word for an order.
fn order(oldest: bool) -> &'static str {
    if oldest { OLDEST } else { "newest" }
}

/// Reads the pages of a filter, and calls `each` with every dead letter. Returns the cursor of what is left.
fn for_each_dead(
    client: &ApiClient,
    filter: &FilterArgs,
    order: &str,
    limit: usize,
    body: bool,
    mut each: impl FnMut(&Value) -> Result<(), ClientError>,
) -> Result<Option<String>, ClientError> {
    let mut left = limit;
    let mut cursor: Option<String> = None;
    while left > 0 {
        let size = left.min(MAX_IDS).to_string();
        let mut pairs = filter.pairs();
        pairs.extend([
            ("order", order.to_owned()),
            ("limit", size),
            ("body", body.to_string()),
        ]);
        pairs.extend(cursor.map(|cursor| ("cursor", cursor)));
        let page: Value = client.get(&format!("/api/v1/dead?{}", query(&pairs)))?;
        let items = page["items"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        for item in items {
            each(item)?;
        }
        left = left.saturating_sub(items.len());
        cursor = page["next"].as_str().map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    Ok(cursor)
}

fn list(
    client: &ApiClient,
    filter: &FilterArgs,
    order: &str,
    limit: usize,
    as_json: bool,
    out: &mut Printer<'_>,
) -> Result<(), ClientError> {
    let shown = if as_json {
        let (items, next) = outlines(client, filter, order, limit)?;
        SafeText::json(&json!({ "items": items, "next": next }))
    } else {
        render(client, filter, order, limit)?
    };
    out.print(shown)?;
    Ok(())
}

/// The dead letters of a filter, without headers and bodies, and the cursor of what is left.
fn outlines(
    client: &ApiClient,
    filter: &FilterArgs,
    order: &str,
    limit: usize,
) -> Result<(Vec<Value>, Option<String>), ClientError> {
    let mut items = Vec::new();
    let next = for_each_dead(client, filter, order, limit, false, |item| {
        items.push(item.clone());
        Ok(())
    })?;
    Ok((items, next))
}

/// The list as a table. Route and reason are in the dead letter's id; an id that Postdate made says nothing to anybody.
fn render(
    client: &ApiClient,
    filter: &FilterArgs,
    order: &str,
    limit: usize,
) -> Result<SafeText, ClientError> {
    let now = Clock::start().wall().0;
    let cell = |item: &Value, name: &str| item[name].as_str().unwrap_or("-").to_owned();
    let row = |item: &Value| {
        let own = item["id"].as_str().filter(|id| !id.starts_with('~'));
        vec![
            cell(item, "dead_id"),
            own.unwrap_or("-").to_owned(),
            cell(item, "key"),
            listed_moment(item["dead_at_ms"].as_i64().unwrap_or(0), now),
            cell(item, "error"),
        ]
    };
    let (items, next) = outlines(client, filter, order, limit)?;
    let rows: Vec<_> = items.iter().map(row).collect();
    let dead_at = moment_title("DEAD AT");
    let list = table(&["DEAD ID", "ID", "KEY", &dead_at, "ERROR"], &rows);
    let more = next.map(|_| "(there are more: --limit, --from, --to)".into());
    Ok(SafeText::joined([list].into_iter().chain(more), "\n"))
}

fn show(
    client: &ApiClient,
    id: &str,
    route: Option<&str>,
    body: bool,
    as_json: bool,
    out: &mut Printer<'_>,
) -> Result<(), ClientError> {
    let mut pairs = vec![("body", body.to_string())];
    pairs.extend(route.map(|route| ("route", route.to_owned())));
    let path = format!("/api/v1/dead/{}?{}", path_segment(id), query(&pairs));
    out.print(if as_json {
        SafeText::answer(&client.get_text(&path)?)
    } else {
        letter_text(&client.get(&path)?, Clock::start().wall().0)
    })?;
    Ok(())
}

/// Counts the dead letters of a filter.
fn counted(client: &ApiClient, filter: &FilterArgs) -> Result<usize, ClientError> {
    let mut count = 0;
    for_each_dead(client, filter, OLDEST, usize::MAX, false, |_| {
        count += 1;
        Ok(())
    })?;
    Ok(count)
}

/// Redrives or drops dead letters, and prints the result of each. `verb` is the API's word, `done` its participle.
fn act_on(
    client: &ApiClient,
    verb: &str,
    done: &'static str,
    args: &ActionArgs,
    how: Option<RedriveHow>,
    out: &mut Printer<'_>,
) -> Result<(), ClientError> {
    let has_ids = !args.ids.is_empty();
    // With ids, `--route` says which message is meant; without them it is a condition like the others.
    let has_filter = args.all
        || args
            .filter
            .pairs()
            .iter()
            .any(|(name, _)| !has_ids || *name != "route");
    match (has_ids, has_filter) {
        (false, false) => {
            let why =
                format!("{verb} what? Give ids, or --route, --reason, --from, --to, or --all");
            return Err(ClientError::Usage(why));
        }
        (true, true) => {
            return Err(ClientError::Usage(
                "ids and a filter cannot be given together".to_owned(),
            ));
        }
        (false, true) if args.dry_run => {
            out.print(format!(
                "{} dead letter(s) would be {done}",
                counted(client, &args.filter)?
            ))?;
            return Ok(());
        }
        (false, true) if !args.yes => {
            let count = counted(client, &args.filter)?;
            let why = format!(
                "this would {verb} {count} dead letter(s): look with `dead list`, then add --yes"
            );
            return Err(ClientError::Usage(why));
        }
        _ => {}
    }
    let is_spread = how.as_ref().is_some_and(|how| how.spread_ms > 0);
    let expected = match (is_spread, has_ids) {
        (false, _) => 0,
        (true, true) => args.ids.len(),
        (true, false) => counted(client, &args.filter)?,
    };
    let mut call = ActionCall {
        client,
        path: format!("/api/v1/dead/{verb}"),
        how,
        expected,
        done,
        items: Vec::new(),
    };
    if has_ids {
        call.act_on_ids(&args.ids, args.filter.route.as_deref())?;
    } else {
        call.act_on_filter(&args.filter)?;
    }
    print_results(&call.items, done, args.json, out)
}

/// Where redriven messages go, and when.
struct RedriveHow {
    target: Option<String>,
    at: Option<UnixMs>,
    delay_ms: i64,
    spread_ms: i64,
}

impl RedriveHow {
    fn of(
        target: Option<String>,
        delay: Option<&str>,
        at: Option<UnixMs>,
        spread: Option<&str>,
    ) -> Result<Self, ClientError> {
        let span = |name: &str, text: &str| {
            let parsed = duration::parse_header(text);
            parsed.map_err(|why| ClientError::Usage(format!("{name} {text}: {why}")))
        };
        Ok(Self {
            target,
            at,
            delay_ms: delay.map_or(Ok(0), |delay| span("--delay", delay))?,
            spread_ms: spread.map_or(Ok(0), |spread| span("--spread", spread))?,
        })
    }

    /// Adds it to a call, before which so many of so many messages have had theirs.
    fn write(&self, body: &mut Value, before: usize, expected: usize) {
        if let Some(target) = &self.target {
            body["target"] = target.as_str().into();
        }
        match self.at {
            Some(at) => body["at"] = at.0.max(0).into(),
            // From the server's clock, call by call.
            None => body["delay"] = self.delay_ms.into(),
        }
        if self.spread_ms > 0 {
            body["spread"] = self.spread_ms.into();
            body["spread_over"] = expected.into();
            body["spread_begins"] = before.into();
        }
    }
}

/// Calls of one action, and the results so far.
struct ActionCall<'a> {
    client: &'a ApiClient,
    path: String,
    how: Option<RedriveHow>,
    /// How many there are, as far as that matters.
    expected: usize,
    /// Word for an item that was acted on: `redriven`.
    done: &'static str,
    items: Vec<Value>,
}

impl ActionCall<'_> {
    fn act_on_ids(&mut self, ids: &[String], route: Option<&str>) -> Result<(), ClientError> {
        for ids in ids.chunks(MAX_IDS) {
            let mut body = json!({ "ids": ids });
            if let Some(route) = route {
                body["route"] = route.into();
            }
            self.call(body)?;
        }
        Ok(())
    }

    fn act_on_filter(&mut self, conditions: &FilterArgs) -> Result<(), ClientError> {
        let mut filter: Value = conditions.pairs().into_iter().collect();
        if conditions.to.is_none() {
            // A message that dies again meanwhile is left alone.
            filter["to"] = Clock::start().wall().to_string().into();
        }
        let progress = ProgressReporter::bar_only();
        let mut next = self.call(json!({ "filter": filter }))?;
        while let Some(cursor) = next {
            progress.report(self.done, &StageProgress::count(self.items.len() as u64));
            next = self.call(json!({ "filter": filter, "cursor": cursor }))?;
        }
        progress.end_line();
        Ok(())
    }

    /// Makes one call and takes its results. Answers the cursor of the next call.
    fn call(&mut self, mut body: Value) -> Result<Option<String>, ClientError> {
        if let Some(how) = &self.how {
            how.write(&mut body, self.items.len(), self.expected);
        }
        let answer: Value = self.client.post(&self.path, &body)?;
        self.items
            .extend(answer["items"].as_array().cloned().unwrap_or_default());
        Ok(answer["next"].as_str().map(str::to_owned))
    }
}

/// Prints the result of each item.
fn print_results(
    items: &[Value],
    done: &'static str,
    as_json: bool,
    out: &mut Printer<'_>,
) -> Result<(), ClientError> {
    // What cannot be written changes nothing about how it ended.
    let mut written = Ok(());
    if as_json {
        written = out.print(SafeText::json(&Value::from(items.to_vec())));
    }
    let mut failed = 0;
    for item in items {
        let text = |name: &str| item[name].as_str().unwrap_or_default();
        let good = text("result") == done;
        failed += usize::from(!good);
        if !as_json && good {
            written = written.and_then(|()| out.print(format!("{} {done}", text("dead_id"))));
        } else if !as_json {
            let why = if text("error").is_empty() {
                String::new()
            } else {
                format!(": {}", text("error"))
            };
            output::err(format!("{} {}{why}", text("id"), text("result")));
        }
    }
    output::note(written);
    if failed > 0 {
        return Err(ClientError::NotAll {
            failed,
            all: items.len(),
            done,
        });
    }
    Ok(())
}

fn query(pairs: &[(&str, String)]) -> String {
    pairs
        .iter()
        .map(|(name, value)| format!("{name}={}", percent_encoded(value)))
        .collect::<Vec<_>>()
        .join("&")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::admin::testing::{TestServer, WRITE_TOKEN};
    use crate::domain::Secret;

    #[derive(Parser)]
    struct DeadCommandLine {
        #[command(flatten)]
        dead: DeadArgs,
    }

    /// Runs a command line beside the server. Answers its output and its result.
    async fn ran(server: &TestServer, line: &'static str) -> (String, Result<(), ClientError>) {
        let url = format!("http://{}", server.address);
        let run = tokio::task::spawn_blocking(move || {
            let words = std::iter::once("dead").chain(line.split(' '));
            let args = DeadCommandLine::try_parse_from(words).expect("parses");
            let client =
                ApiClient::new(&url, Some(Secret::new(WRITE_TOKEN)), None).expect("a client");
            let mut out = Vec::new();
            let result = dead(&client, args.dead, &mut Printer(&mut out));
            (String::from_utf8(out).expect("UTF-8"), result)
        });
        run.await.expect("no panic")
    }

    #[test]
    fn each_call_of_a_spread_redrive_says_which_part_of_it_is_its_own() {
        let written = |delay: Option<&str>, at: Option<UnixMs>, spread: Option<&str>| {
            let mut body = json!({});
            let how = RedriveHow::of(None, delay, at, spread).expect("right");
            how.write(&mut body, 100, 150);
            body
        };
        assert_eq!(
            written(Some("1s"), None, Some("600")),
            json!({ "delay": 1000, "spread": 600, "spread_over": 150, "spread_begins": 100 })
        );
        assert_eq!(
            written(None, Some(UnixMs(1_700_000_000_000)), None),
            json!({ "at": 1_700_000_000_000_i64 })
        );
    }

    #[tokio::test]
    async fn an_action_without_a_selection_or_with_two_is_a_wrong_command_line() {
        let server = TestServer::start().await;
        for line in [
            "drop",
            "redrive",
            "drop order-3 --reason attempts",
            "redrive order-3 --to 7",
        ] {
            let (out, result) = ran(&server, line).await;
            assert_eq!(
                (out.as_str(), result.expect_err(line).exit_code()),
                ("", 64),
                "{line}"
            );
        }
        server.end().await;
    }

    #[tokio::test]
    async fn a_store_that_is_away_is_said() {
        let server = TestServer::start().await;
        for line in [
            "list",
            "show order-3",
            "export",
            "redrive order-3",
            "drop --all --yes",
        ] {
            let (out, result) = ran(&server, line).await;
            let error = result.expect_err(line);
            assert_eq!((out.as_str(), error.exit_code()), ("", 1), "{line}");
            assert!(
                error.to_string().contains("Redis cannot be reached"),
                "{line}: {error}"
            );
        }
        server.end().await;
    }
}
