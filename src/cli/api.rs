//! What the commands that speak the API share: where it is, which route an id belongs to, how they end.

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use super::client::{Client, ClientError};
use super::output;
use crate::config;
use crate::domain::{RouteName, Secret};

/// Where the API is unless `POSTDATE_URL` says otherwise: the default of `admin.listen`.
const DEFAULT_URL: &str = "http://127.0.0.1:8025";
/// What `--watch` waits between two looks.
pub(super) const WATCH: Duration = Duration::from_secs(2);

/// The end of every such command's help.
pub(super) const WHERE: &str = "POSTDATE_URL: where the API is (default http://127.0.0.1:8025).\n\
    POSTDATE_TOKEN or POSTDATE_TOKEN_FILE: the token; of a file its first line.";

/// The API's client. The token comes from the environment or a file, for an argument would show it to every user of
/// the machine.
pub(super) fn connect() -> Result<Client, ClientError> {
    let url = config::variable("POSTDATE_URL").unwrap_or_else(|| DEFAULT_URL.to_owned());
    Client::new(&url, token()?)
}

/// The token of `POSTDATE_TOKEN`, or the first line of the file that `POSTDATE_TOKEN_FILE` names. Both set is an
/// error, as it is for every other secret that can be given in two ways.
fn token() -> Result<Option<Secret>, ClientError> {
    let text = config::variable("POSTDATE_TOKEN");
    let Some(file) = config::variable("POSTDATE_TOKEN_FILE") else { return Ok(text.map(Secret::new)) };
    if text.is_some() {
        let why = "POSTDATE_TOKEN and POSTDATE_TOKEN_FILE are both set; one of the two must go";
        return Err(ClientError::Usage(why.to_owned()));
    }
    let read = config::read_secret(Path::new(&file));
    let text = read.map_err(|why| ClientError::Usage(format!("POSTDATE_TOKEN_FILE: {why}")))?;
    Ok(Some(Secret::new(text.lines().next().unwrap_or_default())))
}

/// Says why a command was not done, if it was not.
pub(super) fn ended(done: Result<(), ClientError>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader (`head`, a pager) has what it wanted.
        Err(ClientError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            output::err(&format!("error: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Runs a command that may be done in part: exit 1 then, its own words said already.
pub(super) fn ended_all(act: impl FnOnce(&Client) -> Result<bool, ClientError>) -> ExitCode {
    match connect().and_then(|client| act(&client)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => ended(Err(error)),
    }
}

/// Shows something once, or again and again until interrupted.
pub(super) fn show(every: Option<Duration>, look: impl Fn() -> Result<String, ClientError>) -> ExitCode {
    loop {
        let shown = look().map(|text| {
            if every.is_some() && output::is_terminal() {
                output::screen(&text);
            } else {
                output::out(&text);
            }
        });
        match every {
            Some(every) if shown.is_ok() => std::thread::sleep(every),
            _ => return ended(shown),
        }
    }
}

/// The path of a message: by its route, or by the one route that has a message of this id.
pub(super) fn message_path(
    client: &Client,
    route: Option<&str>,
    id: &str,
) -> Result<(String, String), ClientError> {
    let path = |route: &str| format!("/api/v1/routes/{route}/messages/{}", segment(id));
    if let Some(route) = route {
        let Some(route) = RouteName::new(route) else {
            return Err(ClientError::Usage(format!("`{}` is not a route's name", route.escape_debug())));
        };
        return Ok((route.to_string(), path(route.as_str())));
    }
    let mut found = Vec::new();
    let mut nearest = None;
    let mut has_routes = false;
    for route in items(&client.get("/api/v1/routes")?) {
        let name = route["name"].as_str().unwrap_or_default().to_owned();
        match client.get(&path(&name)) {
            Ok(_) => found.push(name),
            Err(ClientError::Refused { status: 404, detail, .. }) => {
                let hint = detail.split_once("did you mean ").map(|(_, nearest)| nearest.to_owned());
                nearest = nearest.or(hint);
            }
            Err(error) => return Err(error),
        }
        has_routes = true;
    }
    match found.as_slice() {
        [] if has_routes => Err(ClientError::UnknownMessage { id: id.to_owned(), nearest }),
        [] => Err(ClientError::Usage("no route is configured there".to_owned())),
        [only] => Ok((only.clone(), path(only))),
        _ => Err(ClientError::Ambiguous { id: id.to_owned(), routes: found }),
    }
}

/// A list's items.
pub(super) fn items(list: &Value) -> Vec<Value> {
    list["items"].as_array().cloned().unwrap_or_default()
}

fn hex(digit: u8) -> char {
    char::from_digit(u32::from(digit), 16).unwrap_or('0').to_ascii_uppercase()
}

/// A text as one segment of a path, or as a value of a query.
pub(super) fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => out.push(char::from(byte)),
            // A point too: `.` and `..` would be taken for steps.
            _ => out.extend(['%', hex(byte >> 4), hex(byte & 15)]),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_holds_any_text() {
        assert_eq!(segment("order-7_~x"), "order-7_~x");
        assert_eq!(segment("a/b c.\u{e9}%"), "a%2Fb%20c%2E%C3%A9%25");
    }
}
