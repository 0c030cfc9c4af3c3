//! Redriving and dropping: calls of the API, and what they print.

use clap::Args;
use serde_json::value::RawValue;

use super::{FilterArgs, counted};
use crate::api::{
    DeadActionEnd, DeadActionItem, DeadActionRequest, DeadLetterResults, Page, Timestamp, Word,
};
use crate::cli::client::{ApiClient, CALL_DEADLINE, ClientError, json_of};
use crate::cli::output::{self, Printer, SafeText};
use crate::cli::progress::{ProgressReporter, StageProgress};
use crate::cli::{api, times};
use crate::domain::{UnixMs, duration};

/// Most ids that the API takes at once.
pub(super) const MAX_IDS: usize = 100;

/// Dead letters to act on: by ids, or by conditions.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ActionArgs {
    /// Ids of dead letters, or of their messages
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    filter: FilterArgs,
    /// All of them
    #[arg(long, conflicts_with_all = ["ids", "reason", "from", "to", "route", "id_prefix", "key", "headers", "contains"])]
    all: bool,
    /// Confirm an action on many at once; required with --all or a filter
    #[arg(long)]
    yes: bool,
    /// Say how many there are, and change nothing
    #[arg(long, conflicts_with_all = ["ids", "yes", "json"])]
    dry_run: bool,
    #[command(flatten)]
    pub(super) reason: api::BecauseArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An action on dead letters.
pub(super) struct Action {
    /// The API's word: `redrive`.
    verb: &'static str,
    /// Its participle.
    done: &'static str,
    /// How an item ends that was acted on.
    end: DeadActionEnd,
}

pub(super) const REDRIVE: Action = Action {
    verb: "redrive",
    done: "redriven",
    end: DeadActionEnd::Redriven,
};
pub(super) const DROP: Action = Action {
    verb: "drop",
    done: "dropped",
    end: DeadActionEnd::Dropped,
};

/// Redrives or drops dead letters, and prints the result of each. The request says how, not yet which.
pub(super) fn act_on(
    client: &ApiClient,
    action: &Action,
    args: &ActionArgs,
    request: DeadActionRequest,
    out: &mut Printer<'_>,
) -> Result<(), ClientError> {
    let Action { verb, done, .. } = action;
    let has_ids = !args.ids.is_empty();
    // With ids, `--route` says which message is meant; without them it is a condition like the others.
    let has_filter = args.all
        || args
            .filter
            .pairs()
            .iter()
            .any(|(name, _)| !has_ids || *name != "route");
    match (has_ids, has_filter) {
        (false, false) => {
            let why = format!(
                "{verb} what? Give ids, or --route, --reason or another condition, or --all"
            );
            return Err(ClientError::Usage(why));
        }
        (true, true) => {
            return Err(ClientError::Usage(
                "ids and a filter cannot be given together".to_owned(),
            ));
        }
        (false, true) if args.dry_run => {
            out.print(format!(
                "{} dead letter(s) would be {done}",
                counted(client, &args.filter)?
            ))?;
            return Ok(());
        }
        (false, true) if !args.yes => {
            let count = counted(client, &args.filter)?;
            let why = format!(
                "this would {verb} {count} dead letter(s): look with `dead list`, then add --yes"
            );
            return Err(ClientError::Usage(why));
        }
        _ => {}
    }
    let expected = match (request.spread.is_some(), has_ids) {
        (false, _) => 0,
        (true, true) => args.ids.len(),
        (true, false) => counted(client, &args.filter)?,
    };
    let mut call = ActionCall {
        client,
        path: format!("/api/v1/dead/{verb}"),
        request,
        expected: expected as u64,
        done,
        items: Vec::new(),
        texts: Vec::new(),
    };
    let acted = if has_ids {
        call.act_on_ids(&args.ids, args.filter.route.as_deref())
    } else {
        call.act_on_filter(&args.filter)
    };
    if acted.is_err() && call.items.is_empty() {
        return acted;
    }
    // What is done by now is printed before the failure of a later call.
    let printed = print_results(&call, action, args.json, out);
    acted.and(printed)
}

/// The request that says where redriven messages go, and when.
pub(super) fn redrive_request(
    target: Option<String>,
    delay: Option<&str>,
    at: Option<UnixMs>,
    spread: Option<&str>,
) -> Result<DeadActionRequest, ClientError> {
    let delay_ms = span("--delay", delay)?;
    let spread_ms = span("--spread", spread)?;
    Ok(DeadActionRequest {
        target,
        at: at.map(|at| Timestamp::Ms(times::due_ms(at).unsigned_abs())),
        // From the server's clock, call by call.
        delay: at.is_none().then_some(Timestamp::Ms(delay_ms)),
        spread: (spread_ms > 0).then_some(Timestamp::Ms(spread_ms)),
        ..DeadActionRequest::default()
    })
}

/// A span of an option, ms; 0 if it is not given.
fn span(option: &str, text: Option<&str>) -> Result<u64, ClientError> {
    let Some(text) = text else { return Ok(0) };
    match duration::parse_header(text) {
        Ok(ms) => Ok(ms.unsigned_abs()),
        Err(why) => Err(ClientError::Usage(format!("{option} {text}: {why}"))),
    }
}

/// Calls of one action, and the results so far.
struct ActionCall<'a> {
    client: &'a ApiClient,
    path: String,
    /// The request of the next call.
    request: DeadActionRequest,
    /// How many there are, as far as that matters.
    expected: u64,
    /// Word for an item that was acted on: `redriven`.
    done: &'static str,
    items: Vec<DeadActionItem>,
    /// The items, as they came.
    texts: Vec<Box<RawValue>>,
}

impl ActionCall<'_> {
    fn act_on_ids(&mut self, ids: &[String], route: Option<&str>) -> Result<(), ClientError> {
        self.request.route = route.map(str::to_owned);
        for ids in ids.chunks(MAX_IDS) {
            self.request.ids = Some(ids.to_vec());
            self.call()?;
        }
        Ok(())
    }

    fn act_on_filter(&mut self, conditions: &FilterArgs) -> Result<(), ClientError> {
        // Without `to` the first call takes an end by the store's clock: a message that dies again meanwhile is left alone.
        self.request.filter = Some(conditions.filter());
        let progress = ProgressReporter::bar_only();
        let acted = loop {
            match self.call() {
                Ok(Some(cursor)) => {
                    progress.report(self.done, &StageProgress::count(self.items.len() as u64));
                    self.request.cursor = Some(cursor);
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        progress.end_line();
        acted
    }

    /// Makes one call and takes its results. Answers the cursor of the next call.
    fn call(&mut self) -> Result<Option<String>, ClientError> {
        self.say_which_part();
        let request = Some(json_of(&self.request)?);
        let answer = self
            .client
            .call("POST", &self.path, request, CALL_DEADLINE)?;
        let results: DeadLetterResults = self.client.accept(&answer)?;
        let texts: Page<Box<RawValue>> = self.client.accept(&answer)?;
        self.items.extend(results.items);
        self.texts.extend(texts.items);
        Ok(results.next)
    }

    /// Says which part of a spread the next call is.
    fn say_which_part(&mut self) {
        if self.request.spread.is_some() {
            self.request.spread_over = Some(self.expected);
            self.request.spread_begins = Some(self.items.len() as u64);
        }
    }
}

/// Prints the result of each item.
fn print_results(
    call: &ActionCall<'_>,
    action: &Action,
    as_json: bool,
    out: &mut Printer<'_>,
) -> Result<(), ClientError> {
    // What cannot be written changes nothing about how it ended.
    let mut written = Ok(());
    if as_json {
        written = out.print(SafeText::answer(&json_of(&call.texts)?));
    }
    let mut failed = 0;
    for item in &call.items {
        let good = item.result == Word::Known(action.end);
        failed += usize::from(!good);
        if as_json {
            continue;
        }
        if good {
            let dead_id = item.dead_id.as_deref().unwrap_or_default();
            written = written.and_then(|()| out.print(format!("{dead_id} {}", action.done)));
        } else {
            let why = item.error.as_deref().map(|why| format!(": {why}"));
            let why = why.unwrap_or_default();
            output::err(format!("{} {}{why}", item.id, item.result));
        }
    }
    output::note(written);
    if failed > 0 {
        return Err(ClientError::NotAll {
            failed,
            all: call.items.len(),
            done: action.done,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_call_of_a_spread_redrive_says_which_part_of_it_is_its_own() {
        let written = |delay: Option<&str>, at: Option<UnixMs>, spread: Option<&str>| {
            let client = ApiClient::new("http://127.0.0.1:1", None, None).expect("a client");
            let mut call = ActionCall {
                client: &client,
                path: String::new(),
                request: redrive_request(None, delay, at, spread).expect("right"),
                expected: 150,
                done: "redriven",
                items: Vec::new(),
                texts: Vec::new(),
            };
            call.items = vec![
                serde_json::from_value(json!({ "id": "a", "result": "redriven" }))
                    .expect("an item");
                100
            ];
            call.say_which_part();
            serde_json::to_value(&call.request).expect("JSON")
        };
        assert_eq!(
            written(Some("1s"), None, Some("600")),
            json!({ "delay": 1000, "spread": 600, "spread_over": 150, "spread_begins": 100 })
        );
        assert_eq!(
            written(None, Some(UnixMs(1_700_000_000_000)), None),
            json!({ "at": 1_700_000_000_000_i64 })
        );
    }
}
