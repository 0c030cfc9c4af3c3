//! `postdate replace`

use std::process::ExitCode;

use clap::Args;

use super::client::json_of;
use super::content::ContentArgs;
use super::{api, times};
use crate::api::{ReplaceRequest, Timestamp};
use crate::domain::UnixMs;

/// Put another message in the place of one that waits
///
/// What is given becomes the message's own: its body, its key, all of its headers, its due time. The rest stays.
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  postdate replace order-7 --file order-7.json\n  \
    postdate replace order-7 --delay 2h --header x-kind=reminder --body 'please pay'\n\n{}", api::ENVIRONMENT_HELP))]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true)
    .args(["delay", "at", "key", "headers", "body", "file"]))]
pub(super) struct ReplaceArgs {
    #[command(flatten)]
    api: api::ActArgs,
    /// Its id; `--` before one that begins with `-`
    #[arg(value_name = "ID")]
    id: String,
    /// So long from now: `2s`, `2h30m`, or milliseconds
    #[arg(long, value_name = "D", conflicts_with = "at")]
    delay: Option<String>,
    /// At this moment: RFC 3339 with an offset, Unix milliseconds, or relative, `+2h`
    #[arg(long, value_name = "T", allow_hyphen_values = true, value_parser = times::parse_now)]
    at: Option<UnixMs>,
    #[command(flatten)]
    content: ContentArgs,
    /// Its route; may be left out where the id is unique
    #[arg(long, value_name = "R")]
    route: Option<String>,
    /// Print the API's answer as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: ReplaceArgs) -> ExitCode {
    let ReplaceArgs {
        api,
        id,
        delay,
        at,
        content,
        route,
        json,
    } = args;
    api::ended_all(&api, |client| {
        let content = content.read()?;
        let request = ReplaceRequest {
            delay: delay.map(Timestamp::Text),
            at: at.map(|at| Timestamp::Text(times::written(at))),
            key: content.key,
            headers: (!content.headers.is_empty()).then_some(content.headers),
            body: content.body,
            body_base64: content.body_base64,
            because: None,
        };
        let body = json_of(&request)?;
        let ids = [id];
        api::command_each(client, "PUT", &ids, route.as_deref(), Some(&body), json)
    })
}
