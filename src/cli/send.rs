//! `postdate send`

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::api;
use super::client::{self, ClientError, Sending};

/// Send a test message to a route's own ingress, by the API of a running Postdate
///
/// Prints its id. With --wait it follows the message to its target and prints how late it was.
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  postdate send --route orders --delay 2s --body hello --wait\n  \
    postdate send --route orders --at 2030-01-01T00:00:00Z --id new-year --file greeting.json\n  \
    postdate send --route orders --delay 1500 --key customer-7 --header x-kind=reminder --body hi\n\n\
    {}", api::WHERE))]
pub(super) struct Send {
    /// The route
    #[arg(long, value_name = "R")]
    route: String,
    /// Publish this long from now: `2s`, `2h30m`, or milliseconds
    #[arg(long, value_name = "D", conflicts_with = "at")]
    delay: Option<String>,
    /// Publish at this moment: RFC 3339 with an offset, or Unix milliseconds
    #[arg(long, value_name = "T")]
    at: Option<String>,
    /// The message's name within the route (`x-delay-id`)
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// The record's key; for routes from Kafka
    #[arg(long, value_name = "K")]
    key: Option<String>,
    /// A header; may be repeated
    #[arg(long = "header", value_name = "N=V", value_parser = header)]
    headers: Vec<(String, String)>,
    /// The body
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    body: Option<String>,
    /// A file that holds the body
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Follow it to its target and print its lateness
    #[arg(long)]
    wait: bool,
    /// Print the API's answer as JSON
    #[arg(long)]
    json: bool,
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a header is written NAME=VALUE".to_owned()),
    }
}

pub(super) fn run(args: Send) -> ExitCode {
    let json = args.json;
    api::ended(api::connect().and_then(|client| {
        let sending = sending(args)?;
        client::send(&client, &sending, json, &mut std::io::stdout().lock())
    }))
}

fn sending(args: Send) -> Result<Sending, ClientError> {
    let body = match (args.body, args.file) {
        (Some(text), _) => text.into_bytes(),
        (None, Some(file)) => std::fs::read(&file)
            .map_err(|error| ClientError::Usage(format!("cannot read {}: {error}", file.display())))?,
        (None, None) => Vec::new(),
    };
    let Send { route, delay, at, id, key, headers, wait, .. } = args;
    Ok(Sending { route, delay, at, id, key, headers, body, wait })
}
