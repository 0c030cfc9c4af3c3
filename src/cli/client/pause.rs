//! `pause` and `resume`, by the API.

use std::io::Write;

use serde_json::json;

use super::{Client, ClientError, DEADLINE};
use crate::domain::RouteName;

/// What is to be paused or resumed.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Pausing {
    /// `pause` or `resume`.
    pub(in crate::cli) verb: &'static str,
    /// The route's name.
    pub(in crate::cli) route: String,
    /// Only this part of it.
    pub(in crate::cli) only: Option<&'static str>,
}

/// Pauses or resumes a route and prints what of it is paused then; with `json` the API's body instead.
pub(in crate::cli) fn pause(
    client: &Client,
    pausing: &Pausing,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let Some(route) = RouteName::new(&pausing.route) else {
        return Err(ClientError::Usage(format!("`{}` is not a route's name", pausing.route.escape_debug())));
    };
    let only = pausing.only.map_or_else(|| json!({}), |part| json!({ "only": part }));
    let answer =
        client.call("POST", &format!("/api/v1/routes/{route}/{}", pausing.verb), Some(&only), DEADLINE)?;
    if json {
        writeln!(out, "{}", answer.body)?;
    }
    let body = client.accept(&answer)?;
    if !json {
        let paused = body["paused"].as_array().map(Vec::as_slice).unwrap_or_default();
        let word = |part: &str| if paused.iter().any(|p| p == part) { "paused" } else { "running" };
        writeln!(out, "{route}: ingress {}, publishing {}", word("ingress"), word("publishing"))?;
    }
    Ok(())
}
