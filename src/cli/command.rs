//! `postdate cancel` and `postdate reschedule`

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::api::{self, message_path};
use super::client::{Client, ClientError};
use super::{output, times};
use crate::domain::Clock;

/// Cancel messages that wait
///
/// Each answer is definite: what is `cancelled` will not be published. Exit 1 if any was not.
#[derive(Debug, Args)]
#[command(after_help = api::WHERE)]
pub(super) struct Cancel {
    /// Their ids; `--` before one that begins with `-`
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// Their route; may be left out where an id is unique
    #[arg(long, value_name = "R")]
    route: Option<String>,
    /// Print the API's answer as JSON; of several ids a list
    #[arg(long)]
    json: bool,
}

/// Move a message to another moment
#[derive(Debug, Args)]
#[command(after_help = api::WHERE)]
#[command(group = clap::ArgGroup::new("when").required(true).args(["delay", "at"]))]
pub(super) struct Reschedule {
    /// Its id; `--` before one that begins with `-`
    #[arg(value_name = "ID")]
    id: String,
    /// So long from now: `2s`, `2h30m`, or milliseconds
    #[arg(long, value_name = "D")]
    delay: Option<String>,
    /// To this moment: RFC 3339 with an offset, or Unix milliseconds
    #[arg(long, value_name = "T")]
    at: Option<String>,
    /// Its route; may be left out where the id is unique
    #[arg(long, value_name = "R")]
    route: Option<String>,
    /// Print the API's answer as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn cancel(args: &Cancel) -> ExitCode {
    api::ended_all(|client| each(client, "DELETE", &args.ids, args.route.as_deref(), None, args.json))
}

pub(super) fn reschedule(args: &Reschedule) -> ExitCode {
    api::ended_all(|client| {
        let body = match (&args.at, &args.delay) {
            (Some(at), _) => json!({ "due_ms": when(at)? }),
            (None, delay) => json!({ "delay": delay }),
        };
        let ids = std::slice::from_ref(&args.id);
        each(client, "PATCH", ids, args.route.as_deref(), Some(&body), args.json)
    })
}

/// Does it to each; whether all was done.
fn each(
    client: &Client,
    method: &str,
    ids: &[String],
    route: Option<&str>,
    body: Option<&Value>,
    json: bool,
) -> Result<bool, ClientError> {
    let (mut answers, mut all) = (Vec::new(), true);
    for id in ids {
        let (mut of, mut why) = (route.map(str::to_owned), None);
        let done = message_path(client, route, id).and_then(|(route, path)| {
            of = Some(route);
            client.ask(method, &path, body)
        });
        let answer = match done {
            Ok(answer) => answer,
            Err(ClientError::Refused { result: Some(result), detail, .. }) => {
                why = Some(detail);
                json!({ "id": id, "route": of, "result": result })
            }
            Err(error @ ClientError::UnknownMessage { .. }) => {
                why = Some(error.to_string());
                json!({ "id": id, "route": of, "result": "unknown" })
            }
            Err(error) if ids.len() == 1 || error.is_of_all() => return Err(error),
            Err(error) => {
                why = Some(error.to_string());
                json!({ "id": id, "route": of, "result": "failed" })
            }
        };
        all &= why.is_none();
        if !json {
            match why {
                Some(why) => output::err(&format!("error: {why}")),
                None => output::out(&format!("{id}: {}", answer["result"].as_str().unwrap_or("?"))),
            }
        }
        answers.push(answer);
    }
    if json {
        let body = if answers.len() == 1 { answers.remove(0) } else { Value::Array(answers) };
        output::out(&body.to_string());
    }
    Ok(all)
}

fn when(text: &str) -> Result<i64, ClientError> {
    let moment = times::parse(text, Clock::start().wall());
    moment.map(|at| at.0).map_err(|why| ClientError::Usage(format!("--at: {why}")))
}
