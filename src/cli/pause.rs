//! `postdate pause` and `postdate resume`

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::api;
use super::client::{ApiClient, CALL_DEADLINE, ClientError, json_of};
use super::output::{self, Printer, SafeText};
use crate::api::{PauseRequest, PausedView, RoutePart, Word};

/// Pause a route on all replicas: its ingress, its publishing, or both
///
/// It stays paused, over restarts too, until `postdate resume`. Messages that were claimed already may still go out.
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  postdate pause orders\n  postdate pause orders --only publishing\n\n\
    {}", api::ENVIRONMENT_HELP))]
pub(super) struct PauseArgs {
    #[command(flatten)]
    selection: PauseSelection,
}

/// Resume a route that was paused: its ingress, its publishing, or both
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  postdate resume orders\n  postdate resume orders --only ingress\n\n\
    {}", api::ENVIRONMENT_HELP))]
pub(super) struct ResumeArgs {
    #[command(flatten)]
    selection: PauseSelection,
}

#[derive(Debug, Args)]
struct PauseSelection {
    #[command(flatten)]
    api: api::ActArgs,
    /// The route
    #[arg(value_name = "ROUTE")]
    route: String,
    /// Only this part of it
    #[arg(long, value_name = "PART", value_enum)]
    only: Option<PausePart>,
    /// Print the API's answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PausePart {
    /// Reading its topic or queue
    Ingress,
    /// Publishing its messages
    Publishing,
}

pub(super) fn pause(args: &PauseArgs) -> ExitCode {
    run("pause", &args.selection)
}

pub(super) fn resume(args: &ResumeArgs) -> ExitCode {
    run("resume", &args.selection)
}

fn run(verb: &str, selection: &PauseSelection) -> ExitCode {
    let called = selection
        .api
        .connect()
        .and_then(|client| output::with_stdout(|out| call(&client, verb, selection, out)));
    api::ended(called)
}

/// Pauses or resumes a route and prints which parts of it are paused then. With `--json` it prints the API's body instead.
fn call(
    client: &ApiClient,
    verb: &str,
    selection: &PauseSelection,
    out: &mut Printer<'_>,
) -> Result<(), ClientError> {
    let route = api::route_name(&selection.route)?;
    let only = selection.only.map(|part| match part {
        PausePart::Ingress => RoutePart::Ingress,
        PausePart::Publishing => RoutePart::Publishing,
    });
    let request = PauseRequest {
        only,
        because: None,
    };
    let path = format!("/api/v1/routes/{route}/{verb}");
    let answer = client.call("POST", &path, Some(json_of(&request)?), CALL_DEADLINE)?;
    if selection.json {
        out.print(SafeText::answer(&answer.body))?;
    }
    let body: PausedView = client.accept(&answer)?;
    if !selection.json {
        let word = |part| {
            if body.paused.contains(&Word::Known(part)) {
                "paused"
            } else {
                "running"
            }
        };
        out.print(format!(
            "{route}: ingress {}, publishing {}",
            word(RoutePart::Ingress),
            word(RoutePart::Publishing)
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::testing::{TestServer, WRITE_TOKEN};
    use crate::domain::Secret;

    #[tokio::test]
    async fn a_route_that_is_not_there_is_named() {
        let server = TestServer::start().await;
        for (route, exit, part) in [
            ("order", 1, "did you mean `orders`?"),
            ("no route", 64, "is not a route's name"),
        ] {
            let url = format!("http://{}", server.address);
            let called = tokio::task::spawn_blocking(move || {
                let api = api::ActArgs::default();
                let selection = PauseSelection {
                    api,
                    route: route.to_owned(),
                    only: None,
                    json: false,
                };
                let client = ApiClient::new(&url, Some(Secret::new(WRITE_TOKEN)), None)?;
                call(&client, "pause", &selection, &mut Printer(&mut Vec::new()))
            });
            let error = called.await.expect("no panic").expect_err("refused");
            assert_eq!(error.exit_code(), exit, "{error}");
            assert!(error.to_string().contains(part), "{error}");
        }
        server.end().await;
    }
}
