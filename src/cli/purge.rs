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
    let moment = |moment: Option<UnixMs>| moment.map(|UnixMs(ms)| ms.to_string());
    let mut request = PurgeRequest {
        state: args.state.map(Into::into),
        from: moment(args.from),
        to: moment(args.to),
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
    loop {
        let answer: PurgeAnswer = client.post(&path, &request)?;
        sums.messages += answer.messages;
        sums.bytes += answer.bytes;
        sums.in_flight += answer.in_flight;
        sums.changed += answer.changed;
        request.cursor = answer.next;
        if request.cursor.is_none() {
            break;
        }
    }
    if args.json {
        out.print(SafeText::answer(&json_of(&sums)?))?;
        return Ok(());
    }
    let PurgeAnswer {
        messages,
        bytes,
        in_flight,
        changed,
        ..
    } = sums;
    let verb = if args.yes {
        "cancelled"
    } else {
        "would be cancelled"
    };
    let parts = [
        Some(format!(
            "{route}: {messages} message(s) of {bytes} bytes {verb}"
        )),
        (in_flight > 0).then(|| format!("{in_flight} in flight stay")),
        (changed > 0).then(|| format!("{changed} were moved, tried or gone meanwhile")),
        (!args.yes && messages > 0).then(|| "add --yes to cancel them".to_owned()),
    ];
    out.print(parts.into_iter().flatten().collect::<Vec<_>>().join("; "))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::admin::testing::{TestServer, WRITE_TOKEN};
    use crate::domain::Secret;

    #[derive(Debug, Parser)]
    struct PurgeCommandLine {
        #[command(flatten)]
        purge: PurgeArgs,
    }

    #[tokio::test]
    async fn what_cannot_be_purged_is_said() {
        let server = TestServer::start().await;
        for (line, exit, part) in [
            ("--route order", 1, "did you mean `orders`?"),
            ("--route no/route", 64, "is not a route's name"),
            ("--route orders --yes", 1, "Redis cannot be reached"),
            (
                "--route orders --from 7 --to 5",
                1,
                "`from` is later than `to`",
            ),
        ] {
            let url = format!("http://{}", server.address);
            let ran = tokio::task::spawn_blocking(move || {
                let words = std::iter::once("purge").chain(line.split(' '));
                let args = PurgeCommandLine::try_parse_from(words)
                    .expect("parses")
                    .purge;
                let client = ApiClient::new(&url, Some(Secret::new(WRITE_TOKEN)), None)?;
                purge(&client, &args, &mut Printer(&mut Vec::new()))
            });
            let error = ran.await.expect("no panic").expect_err(line);
            assert_eq!(error.exit_code(), exit, "{line}: {error}");
            assert!(error.to_string().contains(part), "{line}: {error}");
        }
        let words = ["purge", "--route", "orders", "--from", "yesterday"];
        let wrong = PurgeCommandLine::try_parse_from(words).expect_err("no moment");
        assert!(
            wrong.to_string().contains("`yesterday` is no moment"),
            "{wrong}"
        );
        server.end().await;
    }
}
