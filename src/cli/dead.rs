//! `postdate dead`

mod action;
mod letter;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;

use self::action::{ActionArgs, DROP, MAX_IDS, REDRIVE, act_on, redrive_request};
use self::letter::letter_text;
use super::client::{ApiClient, ClientError, json_of, query};
use super::content::ConditionArgs;
use super::facts::key_text;
use super::output::{self, Printer, SafeText};
use super::table::{listed_moment, moment_title, table};
use super::{api, times};
use crate::api::{DeadActionRequest, DeadLetterFilter, DeadLetterView, Page};
use crate::domain::{Clock, UnixMs, path_segment};

/// The API's word for the order that loses none while others come.
const OLDEST: &str = "oldest";

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
    #[command(flatten)]
    message: ConditionArgs,
}

impl FilterArgs {
    /// The given conditions, as the API takes them.
    fn filter(&self) -> DeadLetterFilter {
        DeadLetterFilter {
            route: self.route.clone(),
            reason: self.reason.clone(),
            from: self.from.map(times::written),
            to: self.to.map(times::written),
            id_prefix: self.message.id_prefix.clone(),
            key: self.message.key.clone(),
            header: self.message.header(),
            contains: self.message.contains.clone(),
        }
    }

    /// The same as parameters of a query.
    fn pairs(&self) -> Vec<(&'static str, String)> {
        let filter = self.filter();
        let all = [
            ("route", filter.route),
            ("reason", filter.reason),
            ("from", filter.from),
            ("to", filter.to),
        ];
        all.into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .chain(self.message.pairs())
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
            let request = redrive_request(target, delay.as_deref(), at, spread.as_deref())?;
            act_on(client, &REDRIVE, &action, request, out)
        }
        DeadCommand::Drop { action } => {
            act_on(client, &DROP, &action, DeadActionRequest::default(), out)
        }
        DeadCommand::Export { filter } => {
            let print = |item: Box<RawValue>| out.print(SafeText::answer(item.get()));
            for_each_dead(client, &filter, OLDEST, usize::MAX, true, print)?;
            Ok(())
        }
    }
}

/// The API's word for an order.
fn order(oldest: bool) -> &'static str {
    if oldest { OLDEST } else { "newest" }
}

/// Reads the pages of a filter, and calls `each` with every dead letter. Returns the cursor of what is left.
fn for_each_dead<T: DeserializeOwned>(
    client: &ApiClient,
    filter: &FilterArgs,
    order: &str,
    limit: usize,
    body: bool,
    mut each: impl FnMut(T) -> std::io::Result<()>,
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
        let page: Page<T> = client.get(&format!("/api/v1/dead?{}", query(&pairs)))?;
        left = left.saturating_sub(page.items.len());
        for item in page.items {
            each(item)?;
        }
        cursor = page.next;
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
        let list: Page<Box<RawValue>> = outlines(client, filter, order, limit)?;
        SafeText::answer(&json_of(&list)?)
    } else {
        render(client, filter, order, limit)?
    };
    out.print(shown)?;
    Ok(())
}

/// The dead letters of a filter, without headers and bodies, and the cursor of what is left.
fn outlines<T: DeserializeOwned>(
    client: &ApiClient,
    filter: &FilterArgs,
    order: &str,
    limit: usize,
) -> Result<Page<T>, ClientError> {
    let mut items = Vec::new();
    let next = for_each_dead(client, filter, order, limit, false, |item| {
        items.push(item);
        Ok(())
    })?;
    Ok(Page { items, next })
}

/// The list as a table.
fn render(
    client: &ApiClient,
    filter: &FilterArgs,
    order: &str,
    limit: usize,
) -> Result<SafeText, ClientError> {
    let now = Clock::start().wall().0;
    let Page { items, next } = outlines(client, filter, order, limit)?;
    let rows: Vec<_> = items.iter().map(|dead| row(dead, now)).collect();
    let dead_at = moment_title("DEAD AT");
    let list = table(&["DEAD ID", "ID", "KEY", &dead_at, "ERROR"], &rows);
    let more = next.map(|_| "(there are more: --limit, --from, --to)".into());
    Ok(SafeText::joined([list].into_iter().chain(more), "\n"))
}

/// A row of the table. Route and reason are in the dead letter's id; an id that Postdate made says nothing to anybody.
fn row(dead: &DeadLetterView, now_ms: i64) -> Vec<String> {
    let own = dead.id.as_deref().filter(|id| !id.starts_with('~'));
    let message = dead.message.as_ref();
    let key = message.and_then(|message| key_text(message.key.as_deref(), message.key_is_base64));
    vec![
        dead.dead_id.clone(),
        own.unwrap_or("-").to_owned(),
        key.unwrap_or_else(|| "-".to_owned()),
        listed_moment(dead.dead_at_ms, now_ms),
        dead.error.as_deref().unwrap_or("-").to_owned(),
    ]
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
    for_each_dead(
        client,
        filter,
        OLDEST,
        usize::MAX,
        false,
        |_: IgnoredAny| {
            count += 1;
            Ok(())
        },
    )?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::{Value, json};

    use super::*;
    use crate::admin::testing::{TestServer, WRITE_TOKEN};
    use crate::cli::testing::ApiDouble;
    use crate::domain::Secret;

    #[derive(Parser)]
    struct DeadCommandLine {
        #[command(flatten)]
        dead: DeadArgs,
    }

    /// Runs a command line against the API at this address. Answers its output and its result.
    fn ran_at(url: &str, line: &str) -> (String, Result<(), ClientError>) {
        let words = std::iter::once("dead").chain(line.split(' '));
        let args = DeadCommandLine::try_parse_from(words).expect("parses");
        let client = ApiClient::new(url, Some(Secret::new(WRITE_TOKEN)), None).expect("a client");
        let mut out = Vec::new();
        let result = dead(&client, args.dead, &mut Printer(&mut out));
        (String::from_utf8(out).expect("UTF-8"), result)
    }

    /// Runs a command line beside the server. Answers its output and its result.
    async fn ran(server: &TestServer, line: &'static str) -> (String, Result<(), ClientError>) {
        let url = format!("http://{}", server.address);
        let run = tokio::task::spawn_blocking(move || ran_at(&url, line));
        run.await.expect("no panic")
    }

    #[test]
    fn a_key_that_is_no_text_is_listed_and_exported_as_base64() {
        let letter = json!({
            "dead_id": "orders.attempts.0.n.1", "route": "orders", "state": "dead", "reason": "attempts", "dead_at_ms": 1,
            "stored_bytes": 1, "attempt": 1, "target": "", "key": "/wA=", "key_is_base64": true, "size": 0,
            "left_out": false, "history": [],
        });
        let view: DeadLetterView = serde_json::from_value(letter.clone()).expect("a dead letter");
        assert_eq!(row(&view, 1)[2], "/wA= (base64)");
        let api = ApiDouble::start(vec![(200, json!({ "items": [letter], "next": null }))]);
        let (out, result) = ran_at(&api.url, "export");
        result.expect("exported");
        assert_eq!(out, format!("{letter}\n"));
    }

    #[test]
    fn what_was_done_before_a_call_failed_is_printed() {
        let item = json!({
            "id": "a", "dead_id": "orders.attempts.0.n.1", "route": "orders", "result": "dropped",
        });
        let ids: Vec<String> = (0..=MAX_IDS).map(|id| id.to_string()).collect();
        for line in [
            "drop --all --yes".to_owned(),
            "drop --all --yes --json".to_owned(),
            format!("drop {}", ids.join(" ")),
        ] {
            let api = ApiDouble::start(vec![
                (200, json!({ "items": [item], "next": "c" })),
                (503, json!({ "detail": "Redis cannot be reached" })),
            ]);
            let (out, result) = ran_at(&api.url, &line);
            let error = result.expect_err(&line);
            assert_eq!(error.to_string(), "Redis cannot be reached (503)", "{line}");
            if line.ends_with("--json") {
                let printed: Value = serde_json::from_str(&out).expect("JSON");
                assert_eq!(printed, json!([item]));
            } else {
                assert_eq!(out, "orders.attempts.0.n.1 dropped\n", "{line}");
            }
        }
    }

    #[test]
    fn a_filter_ends_where_the_store_says_and_not_at_this_machines_clock() {
        let api = ApiDouble::start(vec![
            (200, json!({ "items": [], "next": "c" })),
            (200, json!({ "items": [], "next": null })),
        ]);
        let (_, result) = ran_at(&api.url, "redrive --reason attempts --yes");
        result.expect("redriven");
        let filter = json!({ "reason": "attempts" });
        let expected = [
            json!({ "filter": filter, "delay": 0 }),
            json!({ "filter": filter, "delay": 0, "cursor": "c" }),
        ];
        assert_eq!(*api.bodies.lock(), expected);
    }

    #[tokio::test]
    async fn an_action_without_a_selection_or_with_two_is_a_wrong_command_line() {
        let server = TestServer::start().await;
        for line in [
            "drop",
            "redrive",
            "drop order-3 --reason attempts",
            "redrive order-3 --to 1700000000000",
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
