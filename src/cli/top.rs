//! `postdate top`

mod draw;
mod poll;
mod screen;
mod state;

use std::process::ExitCode;

use clap::Args;

use super::client::{ApiClient, ClientError};
use super::output::Printer;
use super::pending::{self, PendingArgs};
use super::{api, output, status};

/// Messages shown of those that fall due next.
const NEXT_MESSAGES: u32 = 10;

/// Show replicas, routes with their rates, and the messages due next, every second
///
/// Up and down choose a route, Enter shows it, Escape goes back, q ends. Where the output is no
/// terminal, it shows all once.
#[derive(Debug, Args)]
#[command(after_help = api::ENVIRONMENT_HELP)]
pub(super) struct TopArgs {
    #[command(flatten)]
    api: api::ApiArgs,
}

pub(super) fn run(args: &TopArgs) -> ExitCode {
    let client = match api::connect(&args.api) {
        Ok(client) => client,
        Err(error) => return api::ended(Err(error)),
    };
    if output::is_terminal() {
        return screen::run(client);
    }
    api::ended(output::with_stdout(|out| show(&client, out)))
}

/// Shows all once. The overview comes first and stays where the messages cannot be read: while Redis is away it says most.
fn show(client: &ApiClient, out: &mut Printer<'_>) -> Result<(), ClientError> {
    out.print(status::render(client, false)?)?;
    let next = pending::render(client, &PendingArgs::next(NEXT_MESSAGES))?;
    out.print("")?;
    out.print(next)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::testing::{READ_TOKEN, TestServer};
    use crate::domain::Secret;

    #[tokio::test]
    async fn the_overview_is_shown_while_redis_is_away() {
        let server = TestServer::start().await;
        let url = format!("http://{}", server.address);
        let shown = tokio::task::spawn_blocking(move || {
            let client =
                ApiClient::new(&url, Some(Secret::new(READ_TOKEN)), None).expect("a client");
            let mut out = Vec::new();
            let result = show(&client, &mut Printer(&mut out));
            (String::from_utf8(out).expect("UTF-8"), result)
        });
        let (out, result) = shown.await.expect("no panic");
        assert!(out.contains("REPLICA") && out.contains("orders"), "{out}");
        let error = result.expect_err("no messages");
        assert_eq!(error.exit_code(), 1);
        assert!(
            error.to_string().contains("Redis cannot be reached"),
            "{error}"
        );
        server.end().await;
    }
}
