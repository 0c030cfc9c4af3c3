//! `postdate skip`

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::api;
use super::client::{ApiClient, CALL_DEADLINE, ClientError};
use super::output::{self, Printer, SafeText};
use crate::domain::RouteName;

/// Skip an offset at which a Kafka partition stands
///
/// A batch that the Kafka client cannot open stops its partition; the log names topic, partition and offset. The record
/// at that offset is lost to the route: read it with Kafka's own tools first, if it may matter. Of a batch of several
/// records each is skipped by itself. Ask the replica that reads the partition.
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  postdate skip --route orders --partition 3 --offset 81723\n\n\
    {}", api::ENVIRONMENT_HELP))]
pub(super) struct SkipArgs {
    #[command(flatten)]
    api: api::ApiArgs,
    /// The route that reads the topic
    #[arg(long, value_name = "R")]
    route: String,
    /// The partition that stands
    #[arg(long, value_name = "P")]
    partition: u32,
    /// The offset at which it stands
    #[arg(long, value_name = "O")]
    offset: u64,
    /// Print the API's answer as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &SkipArgs) -> ExitCode {
    api::ended(
        api::connect(&args.api)
            .and_then(|client| output::with_stdout(|out| call(&client, args, out))),
    )
}

/// Skips the offset and prints from where reading goes on. With `--json` it prints the API's body instead.
fn call(client: &ApiClient, args: &SkipArgs, out: &mut Printer<'_>) -> Result<(), ClientError> {
    let Some(route) = RouteName::new(&args.route) else {
        let name = args.route.escape_debug();
        return Err(ClientError::Usage(format!(
            "`{name}` is not a route's name"
        )));
    };
    let request = json!({ "partition": args.partition, "offset": args.offset });
    let path = format!("/api/v1/routes/{route}/skip");
    let answer = client.call("POST", &path, Some(&request), CALL_DEADLINE)?;
    if args.json {
        out.print(SafeText::answer(&answer.body))?;
    }
    let body = client.accept(&answer)?;
    if !args.json {
        let topic = body["topic"].as_str().unwrap_or_default();
        let partition = args.partition;
        let offset = args.offset;
        let next = &body["next"];
        out.print(format!(
            "{route}: skipped offset {offset} of {topic}/{partition}; reading goes on at {next}"
        ))?;
    }
    Ok(())
}
