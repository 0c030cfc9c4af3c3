//! `postdate dead`

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client::{Client, ClientError};
use super::table::{moment, table};
use super::{api, output, times};
use crate::domain::Clock;

/// Ids that the API takes at once.
const AT_ONCE: usize = 100;

/// List, show, redrive, drop and export dead letters, by the API of a running Postdate
///
/// A dead letter is a message that could not be published, or an invalid one: kept with its reason and history.
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  postdate dead list --route orders --reason unroutable\n  \
    postdate dead show orders.unroutable.1c.k3x9.4b --body\n  \
    postdate dead redrive order-7 order-8\n  \
    postdate dead redrive --route orders --reason unroutable --yes\n  \
    postdate dead export --route orders > dead.ndjson\n\n\
    An ID is a dead letter's own, or its message's.\n\n{}", api::WHERE))]
pub(super) struct Dead {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List them, oldest first
    List {
        #[command(flatten)]
        which: Which,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
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
    /// Make them due now, without their delay headers, by their route's rules
    Redrive {
        #[command(flatten)]
        act: Act,
        /// To another target of the route: its own, or one of `allow_targets`
        #[arg(long, value_name = "TARGET")]
        target: Option<String>,
    },
    /// Drop them for good
    Drop {
        #[command(flatten)]
        act: Act,
    },
    /// Print them, bodies and all, one JSON object a line
    Export {
        #[command(flatten)]
        which: Which,
    },
}

/// Which of them.
#[derive(Clone, Debug, Default, Args)]
struct Which {
    /// Of this route
    #[arg(long, value_name = "R")]
    route: Option<String>,
    /// Dead for this reason: `attempts`, `unroutable`, `bad_delay`, ...
    #[arg(long, value_name = "X")]
    reason: Option<String>,
    /// Dead since this moment: RFC 3339 with an offset, Unix milliseconds, or relative, `-2h`
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    from: Option<String>,
    /// Dead before this moment
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    to: Option<String>,
}

/// What to act on.
#[derive(Clone, Debug, Default, Args)]
struct Act {
    /// Ids of dead letters, or of their messages
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    which: Which,
    /// All of them
    #[arg(long, conflicts_with_all = ["ids", "reason", "from", "to", "route"])]
    all: bool,
    /// Yes, many at once: needed with --all or a filter
    #[arg(long)]
    yes: bool,
    /// Say how many there are, and change nothing
    #[arg(long, conflicts_with_all = ["ids", "yes", "json"])]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Which {
    /// With its moments as Unix milliseconds, as the API takes them.
    fn absolute(mut self) -> Result<Self, ClientError> {
        let now = Clock::start().wall();
        for (name, moment) in [("--from", &mut self.from), ("--to", &mut self.to)] {
            if let Some(text) = moment {
                let parsed = times::parse(text, now);
                *text = parsed.map_err(|why| ClientError::Usage(format!("{name}: {why}")))?.0.to_string();
            }
        }
        Ok(self)
    }

    fn pairs(&self) -> Vec<(&'static str, &str)> {
        let all = [("route", &self.route), ("reason", &self.reason), ("from", &self.from), ("to", &self.to)];
        all.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))).collect()
    }
}

pub(super) fn run(args: Dead) -> ExitCode {
    if let Command::List { which, limit, watch: true, .. } = &args.command {
        let ready = api::connect().and_then(|client| Ok((client, which.clone().absolute()?)));
        return match ready {
            Ok((client, which)) => api::show(Some(api::WATCH), || look(&client, &which, *limit)),
            Err(error) => api::ended(Err(error)),
        };
    }
    api::ended(api::connect().and_then(|client| dead(&client, args, &mut std::io::stdout().lock())))
}

fn dead(client: &Client, args: Dead, out: &mut dyn Write) -> Result<(), ClientError> {
    match args.command {
        Command::List { which, limit, json, .. } => list(client, &which.absolute()?, limit, json, out),
        Command::Show { id, route, body, json } => show(client, &id, route.as_deref(), body, json, out),
        Command::Redrive { act, target } => {
            act_on(client, "redrive", "redriven", act, target.as_deref(), out)
        }
        Command::Drop { act } => act_on(client, "drop", "dropped", act, None, out),
        Command::Export { which } => {
            let which = which.absolute()?;
            pages(client, &which, usize::MAX, true, |item| writeln!(out, "{item}").map_err(ClientError::from))
        }
    }
}

/// Goes through the pages of a filter.
fn pages(
    client: &Client,
    which: &Which,
    limit: usize,
    body: bool,
    mut each: impl FnMut(&Value) -> Result<(), ClientError>,
) -> Result<(), ClientError> {
    let (mut left, mut cursor) = (limit, None::<String>);
    while left > 0 {
        let size = left.min(AT_ONCE).to_string();
        let body = body.to_string();
        let mut pairs = which.pairs();
        pairs.extend([("limit", size.as_str()), ("body", body.as_str())]);
        pairs.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let page = client.get(&format!("/api/v1/dead?{}", query(&pairs)))?;
        let items = page["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        for item in items {
            each(item)?;
        }
        left = left.saturating_sub(items.len());
        cursor = page["next"].as_str().map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    Ok(())
}

fn list(
    client: &Client,
    which: &Which,
    limit: usize,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let shown = if as_json {
        json!({ "items": outlines(client, which, limit)?, "next": null }).to_string()
    } else {
        look(client, which, limit)?
    };
    writeln!(out, "{shown}")?;
    Ok(())
}

fn outlines(client: &Client, which: &Which, limit: usize) -> Result<Vec<Value>, ClientError> {
    let mut items = Vec::new();
    pages(client, which, limit, false, |item| {
        items.push(item.clone());
        Ok(())
    })?;
    Ok(items)
}

/// The list, for a person.
fn look(client: &Client, which: &Which, limit: usize) -> Result<String, ClientError> {
    let now = Clock::start().wall().0;
    let cell = |item: &Value, name: &str| match &item[name] {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.chars().map(|c| if c.is_control() { '?' } else { c }).collect(),
        other => other.to_string(),
    };
    let row = |item: &Value| {
        let at = moment(item["dead_at_ms"].as_i64().unwrap_or(0), now);
        let rest = ["dead_id", "id", "attempt", "size", "error"].map(|name| cell(item, name));
        std::iter::once(at).chain(rest).collect::<Vec<_>>()
    };
    let rows: Vec<_> = outlines(client, which, limit)?.iter().map(row).collect();
    Ok(table(&["DEAD AT", "DEAD ID", "ID", "ATTEMPT", "SIZE", "ERROR"], &rows))
}

fn show(
    client: &Client,
    id: &str,
    route: Option<&str>,
    body: bool,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let body = body.to_string();
    let mut pairs = vec![("body", body.as_str())];
    pairs.extend(route.map(|route| ("route", route)));
    let letter = client.get(&format!("/api/v1/dead/{}?{}", encoded(id), query(&pairs)))?;
    if as_json {
        writeln!(out, "{letter}")?;
    } else {
        // Every member has its name: what is shown to people is the same, spread out.
        let text = serde_json::to_string_pretty(&letter).unwrap_or_else(|_| letter.to_string());
        writeln!(out, "{text}")?;
    }
    Ok(())
}

/// How many dead letters a filter finds.
fn counted(client: &Client, which: &Which) -> Result<usize, ClientError> {
    let mut count = 0;
    pages(client, which, usize::MAX, false, |_| {
        count += 1;
        Ok(())
    })?;
    Ok(count)
}

fn act_on(
    client: &Client,
    act: &str,
    done: &'static str,
    mut args: Act,
    target: Option<&str>,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    args.which = args.which.absolute()?;
    let path = format!("/api/v1/dead/{act}");
    let mut items: Vec<Value> = Vec::new();
    let mut tell = |mut body: Value| -> Result<Option<String>, ClientError> {
        if let Some(target) = target {
            body["target"] = target.into();
        }
        let answer = client.ask("POST", &path, Some(&body))?;
        items.extend(answer["items"].as_array().cloned().unwrap_or_default());
        Ok(answer["next"].as_str().map(str::to_owned))
    };
    let many = args.all || args.which.pairs().iter().any(|(name, _)| args.ids.is_empty() || *name != "route");
    match (args.ids.is_empty(), many) {
        (true, false) => {
            let why = format!("{act} what? Give ids, or --route, --reason, --from, --to, or --all");
            return Err(ClientError::Usage(why));
        }
        (false, true) => {
            return Err(ClientError::Usage("ids and a filter cannot stand together".to_owned()));
        }
        (true, true) if args.dry_run => {
            writeln!(out, "{} dead letter(s) would be {done}", counted(client, &args.which)?)?;
            return Ok(());
        }
        (true, true) if !args.yes => {
            let count = counted(client, &args.which)?;
            let why =
                format!("this would {act} {count} dead letter(s): look with `dead list`, then add --yes");
            return Err(ClientError::Usage(why));
        }
        (true, true) => {
            let mut filter: Value = args.which.pairs().into_iter().collect();
            if args.which.to.is_none() {
                // What dies again meanwhile is left alone.
                filter["to"] = Clock::start().wall().to_string().into();
            }
            let mut next = tell(json!({ "filter": filter }))?;
            while let Some(cursor) = next {
                next = tell(json!({ "filter": filter, "cursor": cursor }))?;
            }
        }
        (false, false) => {
            for ids in args.ids.chunks(AT_ONCE) {
                let mut body = json!({ "ids": ids });
                if let Some(route) = &args.which.route {
                    body["route"] = route.as_str().into();
                }
                tell(body)?;
            }
        }
    }
    told(&items, done, args.json, out)
}

/// Prints what was done and what was not.
fn told(items: &[Value], done: &'static str, as_json: bool, out: &mut dyn Write) -> Result<(), ClientError> {
    if as_json {
        writeln!(out, "{}", Value::from(items.to_vec()))?;
    }
    let mut failed = 0;
    for item in items {
        let text = |name: &str| item[name].as_str().unwrap_or_default();
        let good = text("result") == done;
        failed += usize::from(!good);
        if !as_json && good {
            writeln!(out, "{} {done}", text("dead_id"))?;
        } else if !as_json {
            let why = if text("error").is_empty() { String::new() } else { format!(": {}", text("error")) };
            output::err(&format!("{} {}{why}", text("id"), text("result")));
        }
    }
    if failed > 0 {
        return Err(ClientError::NotAll { failed, all: items.len(), done });
    }
    Ok(())
}

fn query(pairs: &[(&str, &str)]) -> String {
    pairs.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect::<Vec<_>>().join("&")
}

/// Percent-encoded, but for what RFC 3986 leaves as it is everywhere.
fn encoded(text: &str) -> String {
    let byte = |b: u8| match b {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(b).to_string(),
        _ => format!("%{b:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::admin::testing::{Server, WRITE};
    use crate::domain::Secret;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        dead: Dead,
    }

    /// Runs a command line beside the server; what it printed, and how it ended.
    async fn ran(server: &Server, line: &'static str) -> (String, Result<(), ClientError>) {
        let url = format!("http://{}", server.address);
        let run = tokio::task::spawn_blocking(move || {
            let args = Line::try_parse_from(std::iter::once("dead").chain(line.split(' '))).expect("parses");
            let client = Client::new(&url, Some(Secret::new(WRITE))).expect("a client");
            let mut out = Vec::new();
            let result = dead(&client, args.dead, &mut out);
            (String::from_utf8(out).expect("UTF-8"), result)
        });
        run.await.expect("no panic")
    }

    #[tokio::test]
    async fn lists_shows_and_exports() {
        let server = Server::start().await;
        let (table, result) = ran(&server, "list").await;
        result.expect("done");
        assert_eq!(table.lines().count(), 11, "{table}");
        assert!(table.starts_with("DEAD AT  ") && table.contains(" ago)  orders.attempts.0.n.9 "), "{table}");
        let (some, _) = ran(&server, "list --limit 3 --json").await;
        let some: Value = serde_json::from_str(&some).expect("JSON");
        assert_eq!(some["items"].as_array().map(Vec::len), Some(3));
        let (lines, result) = ran(&server, "export --route orders").await;
        result.expect("done");
        let letters: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!((letters.len(), &letters[0]["body"]), (10, &json!("body")));
        let (shown, result) = ran(&server, "show order-3 --json").await;
        result.expect("done");
        assert!(shown.contains("orders.attempts.0.n.2") && !shown.contains("\"body\""), "{shown}");
        let (_, result) = ran(&server, "show nobody/%").await;
        assert!(result.expect_err("unknown").to_string().contains("there is no dead letter `nobody/%`"));
        server.end().await;
    }

    #[tokio::test]
    async fn acts_on_ids_and_on_many_only_with_yes() {
        let server = Server::start().await;
        let (out, result) = ran(&server, "redrive order-3 orders.attempts.0.n.1").await;
        result.expect("done");
        assert_eq!(out, "orders.attempts.0.n.2 redriven\norders.attempts.0.n.1 redriven\n");
        let (out, result) = ran(&server, "drop order-3 twice nobody --json").await;
        assert_eq!(result.expect_err("not all").to_string(), "2 of 3 were not dropped");
        assert_eq!(serde_json::from_str::<Value>(&out).expect("JSON").as_array().map(Vec::len), Some(3));
        let (_, result) = ran(&server, "redrive order-3 --target elsewhere").await;
        assert_eq!(result.expect_err("refused").exit_code(), 1);
        let (out, result) = ran(&server, "redrive --route orders --dry-run").await;
        result.expect("counted");
        assert_eq!(out, "10 dead letter(s) would be redriven\n");
        let (_, result) = ran(&server, "drop --all").await;
        assert!(result.expect_err("without yes").to_string().contains("would drop 10 dead letter(s)"));
        for line in ["drop", "drop --all", "redrive --route orders", "drop order-3 --reason attempts"] {
            let (out, result) = ran(&server, line).await;
            assert_eq!((out.as_str(), result.expect_err(line).exit_code()), ("", 64), "{line}");
        }
        let (out, result) = ran(&server, "drop --all --yes").await;
        result.expect("done");
        assert_eq!(out.lines().count(), 10);
        let (out, _) = ran(&server, "redrive --route orders --reason attempts --to 1002 --yes").await;
        assert_eq!(out.lines().count(), 2);
        server.end().await;
    }
}
