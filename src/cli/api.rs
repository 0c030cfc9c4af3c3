//! Shared by the commands that call the API: its address and token, the route of a message id, output and exit codes.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::client::{ApiClient, CALL_DEADLINE, ClientError};
use super::output::{self, SafeText};
use crate::api::{CommandAnswer, MessageAnswer, Page};
use crate::config;
use crate::domain::{Because, RouteName, Secret, path_segment};

/// Address of the API where `POSTDATE_URL` is not set: the default of `admin.listen`.
const DEFAULT_URL: &str = "http://127.0.0.1:8025";
/// Time between two refreshes of `--watch`.
pub(super) const WATCH_INTERVAL: Duration = Duration::from_secs(2);

/// End of the help of every command that calls the API: its environment variables.
pub(super) const ENVIRONMENT_HELP: &str = "POSTDATE_URL: where the API is (default http://127.0.0.1:8025).\n\
    POSTDATE_TOKEN or POSTDATE_TOKEN_FILE: the token; of a file its first line.\n\
    POSTDATE_CA: the file that --ca names.";

// Options of every command that calls the API. A comment of documentation would be shown as the command's own.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ApiArgs {
    /// Trust the authorities in this PEM file, not those of the system; for https://
    #[arg(long, value_name = "FILE", global = true)]
    ca: Option<PathBuf>,
}

// Of every command that changes something: why it is done.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct BecauseArgs {
    /// Why: one line, at most 500 bytes, kept beside your name in the audit log and the trail
    #[arg(long, value_name = "TEXT")]
    pub(super) because: Option<Because>,
}

// Options of every command that changes something by the API.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ActArgs {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    reason: BecauseArgs,
}

impl ActArgs {
    /// Builds the client of the API. Each of its calls says why it is made.
    pub(super) fn connect(&self) -> Result<ApiClient, ClientError> {
        let client = connect(&self.api)?;
        Ok(client.saying_why(self.reason.because.as_ref()))
    }
}

/// Builds the client of the API. The token comes from the environment or a file: an argument would show it to every user
/// of the machine.
pub(super) fn connect(args: &ApiArgs) -> Result<ApiClient, ClientError> {
    let url = config::variable("POSTDATE_URL").unwrap_or_else(|| DEFAULT_URL.to_owned());
    let ca = args
        .ca
        .clone()
        .or_else(|| config::variable("POSTDATE_CA").map(PathBuf::from));
    ApiClient::new(&url, token()?, ca)
}

/// The token of `POSTDATE_TOKEN`, or the first line of the file that `POSTDATE_TOKEN_FILE` names. If both are set it is
/// an error, as for every other secret that can be given in two ways.
fn token() -> Result<Option<Secret>, ClientError> {
    let text = config::variable("POSTDATE_TOKEN");
    let Some(file) = config::variable("POSTDATE_TOKEN_FILE") else {
        return Ok(text.as_deref().map(without_name));
    };
    if text.is_some() {
        let why = "POSTDATE_TOKEN and POSTDATE_TOKEN_FILE are both set; one of the two must go";
        return Err(ClientError::Usage(why.to_owned()));
    }
    let read = config::read_secret(Path::new(&file));
    let text = read.map_err(|why| ClientError::Usage(format!("POSTDATE_TOKEN_FILE: {why}")))?;
    Ok(text.lines().next().map(without_name))
}

/// The token of `TOKEN` or `NAME TOKEN`, as a server's own file has it.
fn without_name(line: &str) -> Secret {
    let token = line.split_once(' ').map_or(line, |(_, token)| token);
    Secret::new(token)
}

/// Ends a command: prints its failure, if it failed, and answers its exit code.
pub(super) fn ended(done: Result<(), ClientError>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader (`head`, a pager) has closed the pipe: it has all it wanted.
        Err(ClientError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            output::error(error.to_string());
            ExitCode::from(error.exit_code())
        }
    }
}

/// Runs a command that may be done in part. It answers false then, exit code 1, and has printed its failures itself.
pub(super) fn ended_all(
    args: &ActArgs,
    command: impl FnOnce(&ApiClient) -> Result<bool, ClientError>,
) -> ExitCode {
    match args.connect().and_then(|client| command(&client)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => ended(Err(error)),
    }
}

/// Shows a text once, or again and again until interrupted.
pub(super) fn show(
    every: Option<Duration>,
    render: impl Fn() -> Result<SafeText, ClientError>,
) -> ExitCode {
    loop {
        let shown = render().map(|text| {
            if every.is_some() && output::is_terminal() {
                output::screen(&text);
            } else {
                output::out(text);
            }
        });
        match every {
            Some(every) if shown.is_ok() && !output::has_failed() => std::thread::sleep(every),
            _ => return ended(shown),
        }
    }
}

/// The route and the API path of a message. Without a route given, the single route that has a message of this id.
pub(super) fn message_path(
    client: &ApiClient,
    route: Option<&str>,
    id: &str,
) -> Result<(String, String), ClientError> {
    if let Some(route) = route {
        return Ok((route.to_owned(), path_on_route(route, id)?));
    }
    let found: Vec<MessageAnswer> = messages(client, id)?;
    // Where a message of the id waits, none is meant that is dead or gone.
    let waiting = found.iter().filter(|message| message.waits());
    let mut routes: Vec<String> = waiting.map(|message| message.route().to_owned()).collect();
    if routes.is_empty() {
        routes.extend(found.iter().map(|message| message.route().to_owned()));
    }
    if let [only] = routes.as_slice() {
        let path = path_on_route(only, id)?;
        return Ok((only.clone(), path));
    }
    Err(ClientError::Ambiguous {
        id: id.to_owned(),
        routes,
    })
}

/// The API path of a message of this route.
pub(super) fn path_on_route(route: &str, id: &str) -> Result<String, ClientError> {
    let route = route_name(route)?;
    Ok(format!(
        "/api/v1/routes/{route}/messages/{}",
        path_segment(id)
    ))
}

/// A route's name as the command line gives it.
pub(super) fn route_name(text: &str) -> Result<RouteName, ClientError> {
    RouteName::new(text).ok_or_else(|| {
        let why = format!("`{}` is not a route's name", text.escape_debug());
        ClientError::Usage(why)
    })
}

/// The messages of this id on all routes, dead letters and those that are gone too: at least one.
pub(super) fn messages<T: DeserializeOwned>(
    client: &ApiClient,
    id: &str,
) -> Result<Vec<T>, ClientError> {
    let page: Page<T> = client.get(&format!("/api/v1/messages/{}", path_segment(id)))?;
    Ok(page.items)
}

/// Makes the same command on each of these messages, and prints each result. Answers whether all were done.
pub(super) fn command_each(
    client: &ApiClient,
    method: &str,
    ids: &[String],
    route: Option<&str>,
    body: Option<&str>,
    json: bool,
) -> Result<bool, ClientError> {
    let mut answers = Vec::new();
    let mut all_done = true;
    for id in ids {
        let mut found_route = route.map(str::to_owned);
        let done = message_path(client, route, id).and_then(|(route, path)| {
            found_route = Some(route);
            let answer = client.call(method, &path, body.map(str::to_owned), CALL_DEADLINE)?;
            let done: CommandAnswer = client.accept(&answer)?;
            Ok((done.result, answer.body))
        });
        let (result, detail) = match done {
            Ok((result, answer)) => {
                if !json {
                    output::out(format!("{id}: {result}"));
                }
                answers.push(answer);
                continue;
            }
            Err(ClientError::Refused {
                result: Some(result),
                detail,
                ..
            }) => (result, detail),
            Err(error) if ids.len() == 1 || error.is_of_all() => return Err(error),
            Err(error) => ("failed".to_owned(), error.to_string()),
        };
        all_done = false;
        let answer = json!({ "id": id, "route": found_route, "result": result, "detail": detail });
        answers.push(answer.to_string());
        if !json {
            output::error(detail);
        }
    }
    if json {
        let text = match answers.as_slice() {
            [only] => only.clone(),
            _ => format!("[{}]", answers.join(",")),
        };
        output::out(SafeText::answer(&text));
    }
    Ok(all_done)
}
