//! `postdate send`

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Deserialize;

use super::client::{ApiClient, CALL_DEADLINE, ClientError, json_of};
use super::content::ContentArgs;
use super::output::{self, Printer, SafeText};
use super::status::paused_parts;
use super::table::precise_moment;
use super::{api, times};
use crate::api::{AcceptedMessage, RouteView, SendAnswer, SendOutcome, SendRequest, Timestamp};
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
    /// The topic to send it to, where the route reads several
    #[arg(long, value_name = "T")]
    topic: Option<String>,
    /// Publish this long from now: `2s`, `2h30m`, or milliseconds
    #[arg(long, value_name = "D", conflicts_with = "at")]
    delay: Option<String>,
    /// Publish at this moment: RFC 3339 with an offset, Unix milliseconds, or relative, `+2h`
    #[arg(long, value_name = "T", allow_hyphen_values = true, value_parser = times::parse_now)]
    at: Option<UnixMs>,
    /// The message's name within the route (`x-delay-id`)
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    content: ContentArgs,
    /// Follow it to its target and print its lateness
    #[arg(long)]
    wait: bool,
    /// Print the API's answer as JSON
    #[arg(long)]
    json: bool,
}

/// What the API answers to a message that was sent.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Answer {
    Ended(SendAnswer),
    Accepted(AcceptedMessage),
}

pub(super) fn run(args: SendArgs) -> ExitCode {
    api::ended(args.api.connect().and_then(|client| {
        let content = args.content.read()?;
        let request = SendRequest {
            delay: args.delay.map(Timestamp::Text),
            at: args.at.map(|at| Timestamp::Text(times::written(at))),
            id: args.id,
            topic: args.topic,
            key: content.key,
            headers: content.headers,
            body: content.body,
            body_base64: content.body_base64,
            wait: args.wait,
            because: None,
        };
        output::with_stdout(|out| send(&client, &args.route, &request, args.json, out))
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
    route: &str,
    request: &SendRequest,
    json: bool,
    out: &mut Printer<'_>,
) -> Result<(), ClientError> {
    let route = api::route_name(route)?;
    let deadline = if request.wait {
        WAIT_DEADLINE
    } else {
        CALL_DEADLINE
    };
    if request.wait && !json {
        warn_of_obstacles(client, &route);
    }
    let path = format!("/api/v1/routes/{route}/messages");
    let answer = client.call("POST", &path, Some(json_of(request)?), deadline)?;
    if json {
        out.print(SafeText::answer(&answer.body))?;
    }
    let ended = match client.accept(&answer)? {
        Answer::Accepted(_) if json => return Ok(()),
        Answer::Accepted(accepted) => return Ok(out.print(accepted.id)?),
        Answer::Ended(ended) => ended,
    };
    if !json {
        out.print(ended.id.clone())?;
    }
    if ended.result == SendOutcome::Dead.into() {
        return Err(ClientError::NotPublished {
            id: ended.id,
            reason: ended.reason.unwrap_or_else(|| "?".to_owned()),
        });
    }
    if !json && let Some(late_ms) = ended.lateness_ms {
        let attempt = ended.attempt.unwrap_or(1);
        let at = precise_moment(ended.published_at_ms.unwrap_or(0));
        out.print(format!(
            "published at {at}, {late_ms:.1} ms late, attempt {attempt}"
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
