//! `postdate send`

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::config;

/// Send a test message to a route's own ingress, by the API of a running Postdate
///
/// Prints its id. With --wait it follows the message to its target and prints how late it was.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(after_help = "Examples:\n  postdate send --route orders --delay 2s --body hello --wait\n  \
    postdate send --route orders --at 2030-01-01T00:00:00Z --id new-year --file greeting.json\n  \
    postdate send --route mail --delay 1500 --key customer-7 --header x-kind=reminder --body hi\n\n\
    POSTDATE_URL and POSTDATE_TOKEN say where the API is and who asks.")]
pub struct Send {
    /// The route
    #[arg(long, value_name = "R")]
    pub route: String,
    /// Publish this long from now: `2s`, `2h30m`, or milliseconds
    #[arg(long, value_name = "D", conflicts_with = "at")]
    pub delay: Option<String>,
    /// Publish at this moment: RFC 3339 with an offset, or Unix milliseconds
    #[arg(long, value_name = "T")]
    pub at: Option<String>,
    /// The message's name within the route (`x-delay-id`)
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// Kafka: the key; RabbitMQ: the routing key
    #[arg(long, value_name = "K")]
    pub key: Option<String>,
    /// A header; may be repeated
    #[arg(long = "header", value_name = "N=V", value_parser = header)]
    pub headers: Vec<(String, String)>,
    /// The body
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    pub body: Option<String>,
    /// A file that holds the body
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Follow it to its target and print its lateness
    #[arg(long)]
    pub wait: bool,
    /// Where the API is
    #[arg(long, value_name = "URL", env = "POSTDATE_URL", default_value = "http://127.0.0.1:8025")]
    pub url: String,
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a header is written NAME=VALUE".to_owned()),
    }
}

/// Sends it. `url` is the API's, `token` a bearer token if there is one.
pub fn send(_args: &Send, _url: &str, _token: Option<&str>) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`send` is not wired yet")
}

pub(super) fn run(args: &Send) -> anyhow::Result<ExitCode> {
    // An argument would show the token to every user of the machine.
    let token = config::variable("POSTDATE_TOKEN");
    send(args, &args.url, token.as_deref())
}
