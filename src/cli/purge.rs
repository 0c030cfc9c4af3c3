//! `postdate purge`

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::client::{ApiClient, ClientError, json_of};
use super::content::ConditionArgs;
use super::output::{self, Printer, SafeText};
use super::{api, times};
use crate::api::{PurgeAnswer, PurgeRequest};
use crate::domain::UnixMs;

/// Cancel a route's messages that wait, all or by state, due time and what they are
///
/// Without --yes it changes nothing and says how many there are. What is in flight stays and is counted, and so do dead
/// letters. What a producer sends meanwhile may be cancelled too: pause the route's ingress before.
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  postdate purge --route orders\n  \
    postdate pause orders --only ingress && postdate purge --route orders --yes\n  \
    postdate purge --route orders --state retrying --to -1h --yes\n  \
    postdate purge --route orders --header x-tenant=acme --yes\n\n{}", api::ENVIRONMENT_HELP))]
pub(super) struct PurgeArgs {
    #[command(flatten)]
    api: api::ActArgs,
    /// The route
    #[arg(long, value_name = "R")]
    route: String,
    /// Only those in this state
    #[arg(long, value_name = "STATE", value_enum)]
    state: Option<PurgeState>,
    /// Due at this moment or later: RFC 3339 with an offset, Unix milliseconds, or relative, `-2h`
    #[arg(long, value_name = "T", allow_hyphen_values = true, value_parser = times::parse_now)]
    from: Option<UnixMs>,
    /// Due at this moment or earlier
    #[arg(long, value_name = "T", allow_hyphen_values = true, value_parser = times::parse_now)]
    to: Option<UnixMs>,
    #[command(flatten)]
    conditions: ConditionArgs,
    /// Cancel them; without it nothing is changed
    #[arg(long)]
    yes: bool,
    /// Print the sums as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PurgeState {
    /// No publish of it has failed
    Waiting,
    /// A publish of it has failed; it waits for the next
    Retrying,
}

impl From<PurgeState> for crate::api::PurgeState {
    fn from(state: PurgeState) -> Self {
        match state {
            PurgeState::Waiting => Self::Waiting,
            PurgeState::Retrying => Self::Retrying,
        }
    }
}

pub(super) fn run(args: &PurgeArgs) -> ExitCode {
    api::ended(
        args.api
            .connect()
            .and_then(|client| output::with_stdout(|out| purge(&client, args, out))),
    )
}

fn purge(client: &ApiClient, args: &PurgeArgs, out: &mut Printer<'_>) -> Result<(), ClientError> {
    let route = api::route_name(&args.route)?;
    let mut request = PurgeRequest {
        state: args.state.map(Into::into),
        from: args.from.map(times::written),
        to: args.to.map(times::written),
        id_prefix: args.conditions.id_prefix.clone(),
        key: args.conditions.key.clone(),
        header: args.conditions.header(),
        contains: args.conditions.contains.clone(),
        dry_run: !args.yes,
        ..PurgeRequest::default()
    };
    let path = format!("/api/v1/routes/{route}/purge");
    let mut sums = PurgeAnswer {
        route: route.to_string(),
        dry_run: !args.yes,
        ..PurgeAnswer::default()
    };
    let failed = loop {
        let answer: PurgeAnswer = match client.post(&path, &request) {
            Ok(answer) => answer,
            // What is done by now is printed first.
            Err(error) => break Some(error),
        };
        sums.messages += answer.messages;
        sums.bytes += answer.bytes;
        sums.in_flight += answer.in_flight;
        sums.changed += answer.changed;
        request.cursor = answer.next;
        if request.cursor.is_none() {
            break None;
        }
    };
    sums.next = request.cursor;
    if failed.is_none() || sums.next.is_some() {
        output::note(out.print(sums_text(&sums, args.json)?));
    }
    failed.map_or(Ok(()), Err)
}

/// The sums for a person, or as JSON. Where a later call failed, `next` says where the purge goes on.
fn sums_text(sums: &PurgeAnswer, as_json: bool) -> Result<SafeText, ClientError> {
    if as_json {
        return Ok(SafeText::answer(&json_of(sums)?));
    }
    let PurgeAnswer {
        route,
        dry_run,
        messages,
        bytes,
        in_flight,
        changed,
        next,
    } = sums;
    let verb = if *dry_run {
        "would be cancelled"
    } else {
        "cancelled"
    };
    let is_whole = next.is_none();
    let parts = [
        Some(format!(
            "{route}: {messages} message(s) of {bytes} bytes {verb}"
        )),
        (*in_flight > 0).then(|| format!("{in_flight} in flight stay")),
        (*changed > 0).then(|| format!("{changed} were moved, tried or gone meanwhile")),
        (!is_whole).then(|| "then a call failed, and there may be more".to_owned()),
        (*dry_run && is_whole && *messages > 0).then(|| "add --yes to cancel them".to_owned()),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    Ok(parts.join("; ").into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::{Value, json};

    use super::*;
    use crate::admin::testing::{TestServer, WRITE_TOKEN};
    use crate::cli::testing::ApiDouble;
    use crate::domain::Secret;

    #[derive(Debug, Parser)]
    struct PurgeCommandLine {
        #[command(flatten)]
        purge: PurgeArgs,
    }

    /// Runs a command line against the API at this address. Answers its output and its result.
    fn ran(url: &str, line: &str) -> (String, Result<(), ClientError>) {
        let words = std::iter::once("purge").chain(line.split(' '));
        let args = PurgeCommandLine::try_parse_from(words)
            .expect("parses")
            .purge;
        let client = ApiClient::new(url, Some(Secret::new(WRITE_TOKEN)), None).expect("a client");
        let mut out = Vec::new();
        let result = purge(&client, &args, &mut Printer(&mut out));
        (String::from_utf8(out).expect("UTF-8"), result)
    }

    #[test]
    fn what_was_done_before_a_call_failed_is_said() {
        let sums = |next: Option<&str>| {
            json!({
                "route": "orders", "dry_run": false, "messages": 200, "bytes": 2000, "in_flight": 3, "changed": 0,
                "next": next,
            })
        };
        let said = "orders: 200 message(s) of 2000 bytes cancelled; 3 in flight stay; then a call failed, and there may be more\n";
        for as_json in [false, true] {
            let api = ApiDouble::start(vec![
                (200, sums(Some("c"))),
                (503, json!({ "detail": "Redis cannot be reached" })),
            ]);
            let line = if as_json {
                "--route orders --yes --json"
            } else {
                "--route orders --yes"
            };
            let (out, result) = ran(&api.url, line);
            let error = result.expect_err("the second call failed");
            assert_eq!(error.to_string(), "Redis cannot be reached (503)");
            assert_eq!(api.bodies.lock()[1]["cursor"], "c");
            if as_json {
                let printed: Value = serde_json::from_str(&out).expect("JSON");
                assert_eq!(printed, sums(Some("c")));
            } else {
                assert_eq!(out, said);
            }
        }
        let api = ApiDouble::start(vec![
            (200, sums(Some("c"))),
            (503, json!({ "detail": "Redis cannot be reached" })),
        ]);
        let (out, result) = ran(&api.url, "--route orders");
        assert_eq!(result.expect_err("the second call failed").exit_code(), 1);
        assert!(
            out.contains("would be cancelled") && !out.contains("--yes"),
            "{out}"
        );
    }

    #[tokio::test]
    async fn what_cannot_be_purged_is_said() {
        let server = TestServer::start().await;
        for (line, exit, part) in [
            ("--route order", 1, "did you mean `orders`?"),
            ("--route no/route", 64, "is not a route's name"),
            ("--route orders --yes", 1, "Redis cannot be reached"),
            (
                "--route orders --from 100000000007 --to 100000000005",
                1,
                "`from` is later than `to`",
            ),
        ] {
            let url = format!("http://{}", server.address);
            let purged = tokio::task::spawn_blocking(move || ran(&url, line));
            let (out, result) = purged.await.expect("no panic");
            let error = result.expect_err(line);
            assert_eq!(
                (out.as_str(), error.exit_code()),
                ("", exit),
                "{line}: {error}"
            );
            assert!(error.to_string().contains(part), "{line}: {error}");
        }
        for (from, part) in [
            ("yesterday", "`yesterday` is no moment"),
            ("1798761600", "are these seconds?"),
        ] {
            let words = ["purge", "--route", "orders", "--from", from];
            let wrong = PurgeCommandLine::try_parse_from(words).expect_err("no moment");
            assert!(wrong.to_string().contains(part), "{wrong}");
        }
        server.end().await;
    }
}
