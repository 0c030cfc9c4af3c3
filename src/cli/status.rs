//! `postdate status`

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::api::{self, items};
use super::client::{Client, ClientError};
use super::table::table;

/// Show the replicas, the routes, and how much falls due when
#[derive(Debug, Args)]
#[command(after_help = api::WHERE)]
pub(super) struct Status {
    /// Print the API's list of routes as JSON
    #[arg(long, conflicts_with = "watch")]
    json: bool,
    /// Show it again every two seconds
    #[arg(long)]
    watch: bool,
}

pub(super) fn run(args: &Status) -> ExitCode {
    match api::connect() {
        Ok(client) => api::show(args.watch.then_some(api::WATCH), || look(&client, args.json)),
        Err(error) => api::ended(Err(error)),
    }
}

pub(super) fn look(client: &Client, json: bool) -> Result<String, ClientError> {
    let routes = client.get("/api/v1/routes")?;
    if json {
        return Ok(routes.to_string());
    }
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let replicas = items(&client.get("/api/v1/replicas")?);
    let replicas: Vec<_> = replicas
        .iter()
        .map(|r| {
            let state = match (r["alive"].as_bool(), r["draining"].as_bool(), r["ready"].as_bool()) {
                (Some(false), _, _) => "dead",
                (_, Some(true), _) => "draining",
                (_, _, Some(true)) => "ready",
                _ => "not ready",
            };
            vec![text(&r["name"]), text(&r["version"]), state.to_owned(), text(&r["partitions"])]
        })
        .collect();
    let routes: Vec<_> = items(&routes)
        .iter()
        .map(|r| {
            let paused: Vec<_> = r["paused"].as_array().into_iter().flatten().map(text).collect();
            let paused = if paused.is_empty() { "-".to_owned() } else { paused.join(", ") };
            vec![text(&r["name"]), text(&r["pending"]), text(&r["in_flight"]), text(&r["dead"]), paused]
        })
        .collect();
    let due = client.get("/api/v1/histogram")?;
    let sum = |window: &str| {
        due[window].as_array().into_iter().flatten().filter_map(Value::as_u64).sum::<u64>().to_string()
    };
    let due_row = vec![text(&due["overdue"]), sum("minute"), sum("hour"), sum("day")];
    Ok(format!(
        "{}\n\n{}\n\n{}",
        table(&["REPLICA", "VERSION", "STATE", "PARTITIONS"], &replicas),
        table(&["ROUTE", "PENDING", "IN FLIGHT", "DEAD", "PAUSED"], &routes),
        table(&["OVERDUE", "DUE IN A MINUTE", "IN AN HOUR", "IN A DAY"], &[due_row]),
    ))
}
