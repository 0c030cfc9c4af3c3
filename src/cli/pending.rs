//! `postdate pending`

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::api::{self, items};
use super::client::{ApiClient, ClientError};
use super::facts::plain;
use super::output::SafeText;
use super::table::{listed_moment, moment_title, table};
use super::times;
use crate::domain::{Clock, UnixMs, percent_encoded};

/// Show messages that wait, in due order
#[derive(Debug, Args)]
#[command(after_help = api::ENVIRONMENT_HELP)]
pub(super) struct PendingArgs {
    #[command(flatten)]
    api: api::ApiArgs,
    /// Of this route only
    #[arg(long, value_name = "R")]
    route: Option<String>,
    /// Due at this moment or later: RFC 3339 with an offset, Unix milliseconds, or relative, `-2h`
    #[arg(long, value_name = "T", allow_hyphen_values = true, value_parser = times::parse_now)]
    from: Option<UnixMs>,
    /// Due at this moment or earlier
    #[arg(long, value_name = "T", allow_hyphen_values = true, value_parser = times::parse_now)]
    to: Option<UnixMs>,
    /// Whose id begins so
    #[arg(long, value_name = "TEXT")]
    id_prefix: Option<String>,
    /// Whose key is this
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// So many at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print the API's list as JSON; `next` goes on where it ends
    #[arg(long, conflicts_with = "watch")]
    json: bool,
    /// Show it again every two seconds
    #[arg(long)]
    watch: bool,
}

impl PendingArgs {
    /// Arguments for the messages that fall due next.
    pub(super) fn next(limit: u32) -> Self {
        Self {
            api: api::ApiArgs::default(),
            route: None,
            from: None,
            to: None,
            id_prefix: None,
            key: None,
            limit,
            json: false,
            watch: false,
        }
    }
}

pub(super) fn run(args: &PendingArgs) -> ExitCode {
    match api::connect(&args.api) {
        Ok(client) => api::show(args.watch.then_some(api::WATCH_INTERVAL), || {
            render(&client, args)
        }),
        Err(error) => api::ended(Err(error)),
    }
}

pub(super) fn render(client: &ApiClient, args: &PendingArgs) -> Result<SafeText, ClientError> {
    let filters = [
        ("route", args.route.clone()),
        ("from", args.from.map(|at| at.to_string())),
        ("to", args.to.map(|at| at.to_string())),
        ("id_prefix", args.id_prefix.clone()),
        ("key", args.key.clone()),
    ];
    let filters: String = filters
        .into_iter()
        .filter_map(|(n, v)| Some(format!("&{n}={}", percent_encoded(&v?))))
        .collect();
    let mut found: Vec<Value> = Vec::new();
    let mut next = Value::Null;
    loop {
        let limit = (args.limit as usize - found.len()).min(1000);
        let cursor = next
            .as_str()
            .map(|c| format!("&cursor={c}"))
            .unwrap_or_default();
        let page: Value =
            client.get(&format!("/api/v1/messages?limit={limit}{filters}{cursor}"))?;
        found.extend(items(&page));
        next = page["next"].clone();
        if next.is_null() || found.len() >= args.limit as usize {
            break;
        }
    }
    if args.json {
        return Ok(SafeText::json(&json!({ "items": found, "next": next })));
    }
    let now = Clock::start().wall().0;
    let rows: Vec<_> = found
        .iter()
        .map(|m| {
            let due = listed_moment(m["due_ms"].as_i64().unwrap_or(0), now);
            let failed = m["last_error"]["reason"].as_str();
            let asked = m["asked_ms"]
                .as_i64()
                .filter(|_| failed.is_some())
                .map(|asked| listed_moment(asked, now));
            let why =
                failed.map(|reason| format!("{reason}: {}", plain(&m["last_error"]["error"])));
            vec![
                due,
                plain(&m["route"]),
                plain(&m["id"]),
                plain(&m["target"]),
                plain(&m["attempt"]),
                plain(&m["size"]),
                asked.unwrap_or_else(|| "-".to_owned()),
                why.unwrap_or_else(|| "-".to_owned()),
            ]
        })
        .collect();
    let due = moment_title("DUE");
    let list = table(
        &[
            &due,
            "ROUTE",
            "ID",
            "TARGET",
            "ATTEMPT",
            "BYTES",
            "ASKED",
            "LAST ERROR",
        ],
        &rows,
    );
    let more = (!next.is_null()).then(|| "(there are more: --limit, --from)".into());
    Ok(SafeText::joined([list].into_iter().chain(more), "\n"))
}
