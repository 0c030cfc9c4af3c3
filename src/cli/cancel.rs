//! `postdate cancel`

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::api;
use super::client::{ApiClient, ClientError, json_of};
use super::output::{self, SafeText};
use crate::api::{
    CancelAnswer, CancelManyRequest, CancelResult, CancelledPage, MAX_CANCELLED, Word,
};

/// Cancel messages that wait
///
/// Each answer is definite: a message that is `cancelled` will not be published. Exit 1 if any was not cancelled.
#[derive(Debug, Args)]
#[command(after_help = api::ENVIRONMENT_HELP)]
pub(super) struct CancelArgs {
    #[command(flatten)]
    api: api::ActArgs,
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

pub(super) fn run(args: &CancelArgs) -> ExitCode {
    let route = args.route.as_deref();
    api::ended_all(&args.api, |client| match args.ids.as_slice() {
        [_] => api::command_each(client, "DELETE", &args.ids, route, None, args.json),
        ids => cancel_many(client, ids, route, args.json),
    })
}

/// What became of one of several messages.
struct Ended {
    route: Option<String>,
    result: String,
    /// Why it was not cancelled, for a person.
    why: Option<String>,
}

/// Cancels several messages, those of a route together, and prints each result in the order of the ids. Answers whether all
/// were cancelled.
fn cancel_many(
    client: &ApiClient,
    ids: &[String],
    route: Option<&str>,
    json: bool,
) -> Result<bool, ClientError> {
    let mut ended: Vec<Option<Ended>> = Vec::with_capacity(ids.len());
    let mut of_route: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, id) in ids.iter().enumerate() {
        let failed = match api::message_path(client, route, id) {
            Ok((route, _)) => {
                of_route.entry(route).or_default().push(at);
                None
            }
            Err(ClientError::Refused {
                result: Some(result),
                detail,
                ..
            }) => Some((result, detail)),
            Err(error) if error.is_of_all() => return Err(error),
            Err(error) => Some(("failed".to_owned(), error.to_string())),
        };
        ended.push(failed.map(|(result, why)| Ended {
            route: None,
            result,
            why: Some(why),
        }));
    }
    let calls = of_route.iter().flat_map(|(route, places)| {
        let chunks = places.chunks(MAX_CANCELLED);
        chunks.map(move |places| (route, places))
    });
    let mut failed = None;
    for (route, places) in calls {
        let route = api::route_name(route)?;
        let path = format!("/api/v1/routes/{route}/messages/cancel");
        let request = CancelManyRequest {
            ids: places.iter().map(|&at| ids[at].clone()).collect(),
            because: None,
        };
        let answer: CancelledPage = match client.post(&path, &request) {
            Ok(answer) => answer,
            // What is done by now is printed first.
            Err(error) => {
                failed = Some(error);
                break;
            }
        };
        for (&at, item) in places.iter().zip(answer.items) {
            ended[at] = Some(Ended {
                why: why_not(&item),
                route: Some(item.route),
                result: item.result.to_string(),
            });
        }
    }
    let ended = ids
        .iter()
        .zip(ended)
        .filter_map(|(id, ended)| Some((id, ended?)));
    let mut all_done = true;
    let mut answers = Vec::with_capacity(ids.len());
    for (id, Ended { route, result, why }) in ended {
        all_done &= why.is_none();
        match (&why, json) {
            (None, false) => output::out(format!("{id}: {result}")),
            (Some(why), false) => output::error(why.clone()),
            (None, true) => answers.push(json!({ "id": id, "route": route, "result": result })),
            (Some(why), true) => {
                answers.push(json!({ "id": id, "route": route, "result": result, "detail": why }));
            }
        }
    }
    if json {
        output::out(SafeText::answer(&json_of(&answers)?));
    }
    failed.map_or(Ok(all_done), Err)
}

/// Why a message was not cancelled. `None`: it was.
fn why_not(item: &CancelAnswer) -> Option<String> {
    let id = item.id.escape_debug();
    let route = &item.route;
    let why = match &item.result {
        Word::Known(CancelResult::Cancelled) => return None,
        Word::Known(CancelResult::InFlight) => {
            format!("the message `{id}` is being published right now")
        }
        Word::Known(CancelResult::Published) => {
            format!("the message `{id}` has been published already")
        }
        Word::Known(CancelResult::Unknown) => {
            format!(
                "no message `{id}` of the route `{route}` waits: it was never there, or is gone"
            )
        }
        Word::Other(other) => format!("the message `{id}`: {other}"),
    };
    Some(why)
}
