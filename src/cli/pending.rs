//! `postdate pending`

use std::process::ExitCode;

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::api;
use super::client::{ApiClient, ClientError, json_of, query};
use super::content::ConditionArgs;
use super::output::SafeText;
use super::table::{listed_moment, moment_title, table};
use super::times;
use crate::api::{MessageView, Page};
use crate::domain::{Clock, UnixMs};

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
    #[command(flatten)]
    conditions: ConditionArgs,
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
            conditions: ConditionArgs::default(),
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

/// The first messages, as many as are wanted.
fn listed<T: DeserializeOwned>(
    client: &ApiClient,
    args: &PendingArgs,
) -> Result<Page<T>, ClientError> {
    let filters = [
        ("route", args.route.clone()),
        ("from", args.from.map(times::written)),
        ("to", args.to.map(times::written)),
    ];
    let filters = filters.into_iter().filter_map(|(n, v)| Some((n, v?)));
    let filters: Vec<_> = filters.chain(args.conditions.pairs()).collect();
    let wanted = args.limit as usize;
    let mut items = Vec::new();
    let mut cursor = None;
    loop {
        let limit = (wanted - items.len()).min(1000);
        let mut pairs = vec![("limit", limit.to_string())];
        pairs.extend(filters.clone());
        pairs.extend(cursor.map(|cursor| ("cursor", cursor)));
        let page: Page<T> = client.get(&format!("/api/v1/messages?{}", query(&pairs)))?;
        items.extend(page.items);
        match page.next {
            Some(next) if items.len() < wanted => cursor = Some(next),
            next => return Ok(Page { items, next }),
        }
    }
}

pub(super) fn render(client: &ApiClient, args: &PendingArgs) -> Result<SafeText, ClientError> {
    if args.json {
        let list: Page<Box<RawValue>> = listed(client, args)?;
        return Ok(SafeText::answer(&json_of(&list)?));
    }
    let list: Page<MessageView> = listed(client, args)?;
    let now = Clock::start().wall().0;
    let rows: Vec<_> = list.items.iter().map(|message| row(message, now)).collect();
    let due = moment_title("DUE");
    let shown = table(
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
    let more = list
        .next
        .map(|_| "(there are more: --limit, --from)".into());
    Ok(SafeText::joined([shown].into_iter().chain(more), "\n"))
}

fn row(message: &MessageView, now_ms: i64) -> Vec<String> {
    let failure = message.last_error.as_ref();
    let asked = failure.map(|_| listed_moment(message.asked_ms, now_ms));
    let why = failure.map(|failure| format!("{}: {}", failure.reason, failure.error));
    vec![
        listed_moment(message.due_ms, now_ms),
        message.route.clone(),
        message.id.clone(),
        message.target.clone(),
        message.attempt.to_string(),
        message.size.to_string(),
        asked.unwrap_or_else(|| "-".to_owned()),
        why.unwrap_or_else(|| "-".to_owned()),
    ]
}
