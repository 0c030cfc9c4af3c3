//! `postdate send`

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use serde_json::{Value, json};

use super::api;
use super::client::{ApiClient, CALL_DEADLINE, ClientError};
use super::output::{self, Printer, SafeText};
use super::status::paused_parts;
use super::table::precise_moment;
use super::times;
use crate::api::RouteView;
use crate::domain::{RouteName, UnixMs};

/// Longest wait for an answer with `--wait`: the API follows for an hour and a half minute at most.
const WAIT_DEADLINE: Duration = Duration::from_secs(3720);

/// Send a test message to a route's own ingress, by the API of a running Postdate
///
/// Prints its id. With --wait it follows the message to its target and prints how late it was.
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  postdate send --route orders --delay 2s --body hello --wait\n  \
    postdate send --route orders --at 2030-01-01T00:00:00Z --id new-year --file greeting.json\n  \
    postdate send --route orders --delay 1500 --key customer-7 --header x-kind=reminder --body hi\n\n\
    {}", api::ENVIRONMENT_HELP))]
pub(super) struct SendArgs {
    #[command(flatten)]
    api: api::ActArgs,
    /// The route
    #[arg(long, value_name = "R")]
    route: String,
    /// Publish this long from now: `2s`, `2h30m`, or milliseconds
    #[arg(long, value_name = "D", conflicts_with = "at")]
    delay: Option<String>,
    /// Publish at this moment: RFC 3339 with an offset, Unix milliseconds, or relative, `+2h`
    #[arg(long, value_name = "T", allow_hyphen_values = true, value_parser = times::parse_now)]
    at: Option<UnixMs>,
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

pub(super) fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a header is written NAME=VALUE".to_owned()),
    }
}

/// A test message, as the command line gives it.
#[derive(Clone, Debug, Default)]
struct TestMessage {
    /// The route's name.
    route: String,
    /// Value of `x-delay`.
    delay: Option<String>,
    /// Value of `x-deliver-at`.
    at: Option<String>,
    /// The message's name; the API makes one if none is given.
    id: Option<String>,
    /// Kafka's record key.
    key: Option<String>,
    /// Further headers, each name once.
    headers: Vec<(String, String)>,
    /// The body; empty if none is given.
    body: Vec<u8>,
    /// True to follow it to its target.
    wait: bool,
}

impl TestMessage {
    /// Reads the message from the arguments, and its body from the file that they name.
    fn read(args: SendArgs) -> Result<Self, ClientError> {
        let body = match (args.body, args.file) {
            (Some(text), _) => text.into_bytes(),
            (None, Some(file)) => std::fs::read(&file).map_err(|error| {
                ClientError::Usage(format!("cannot read {}: {error}", file.display()))
            })?,
            (None, None) => Vec::new(),
        };
        let SendArgs {
            route,
            delay,
            at,
            id,
            key,
            headers,
            wait,
            ..
        } = args;
        Ok(Self {
            route,
            delay,
            at: at.map(|at| at.to_string()),
            id,
            key,
            headers,
            body,
            wait,
        })
    }

    /// The API's request.
    fn request(&self) -> Result<Value, ClientError> {
        let headers: BTreeMap<_, _> = self
            .headers
            .iter()
            .map(|(name, value)| (name, value))
            .collect();
        if headers.len() < self.headers.len() {
            return Err(ClientError::Usage(
                "each header can be given once".to_owned(),
            ));
        }
        let mut request = json!({ "headers": headers, "wait": self.wait });
        match std::str::from_utf8(&self.body) {
            Ok(text) => request["body"] = text.into(),
            Err(_) => request["body_base64"] = STANDARD.encode(&self.body).into(),
        }
        let texts = [
            ("delay", &self.delay),
            ("at", &self.at),
            ("id", &self.id),
            ("key", &self.key),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                request[name] = text.as_str().into();
            }
        }
        Ok(request)
    }
}

pub(super) fn run(args: SendArgs) -> ExitCode {
    let json = args.json;
    api::ended(args.api.connect().and_then(|client| {
        let message = TestMessage::read(args)?;
        output::with_stdout(|out| send(&client, &message, json, out))
    }))
}

/// Says before the wait what may make it long.
fn warn_of_obstacles(client: &ApiClient, route: &RouteName) {
    // A token that may not look, or an API that is away, is told by the call that sends.
    let Ok(route) = client.get::<RouteView>(&format!("/api/v1/routes/{route}")) else {
        return;
    };
    for part in paused_parts(&route) {
        output::err(format!("this may take long: paused: {part}"));
    }
    for trouble in &route.troubles {
        output::err(format!("this may take long: {trouble}"));
    }
}

/// Sends a message to a route's own ingress and prints its id. With `wait` a second line says when it was published and
/// how late. With `json` the API's body is printed instead, whatever it says.
fn send(
    client: &ApiClient,
    message: &TestMessage,
    json: bool,
    out: &mut Printer<'_>,
) -> Result<(), ClientError> {
    let route = api::route_name(&message.route)?;
    let deadline = if message.wait {
        WAIT_DEADLINE
    } else {
        CALL_DEADLINE
    };
    if message.wait && !json {
        warn_of_obstacles(client, &route);
    }
    let path = format!("/api/v1/routes/{route}/messages");
    let answer = client.call(
        "POST",
        &path,
        Some(message.request()?.to_string()),
        deadline,
    )?;
    if json {
        out.print(SafeText::answer(&answer.body))?;
    }
    let body: Value = client.accept(&answer)?;
    let text = |name: &str| body[name].as_str().unwrap_or("?").to_owned();
    if !json {
        out.print(text("id"))?;
    }
    if body["result"] == "dead" {
        return Err(ClientError::NotPublished {
            id: text("id"),
            reason: text("reason"),
        });
    }
    if !json && let Some(late_ms) = body["lateness_ms"].as_f64() {
        let attempt = &body["attempt"];
        let at = precise_moment(body["published_at_ms"].as_i64().unwrap_or(0));
        out.print(format!(
            "published at {at}, {late_ms:.1} ms late, attempt {attempt}"
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
