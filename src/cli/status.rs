//! `postdate status`

use std::collections::BTreeSet;
use std::process::ExitCode;

use anstyle::Style;
use clap::Args;
use serde_json::Value;

use super::api::{self, items};
use super::client::{ApiClient, ClientError};
use super::facts::plain;
use super::output::{FAILURE_STYLE, SafeText, WARNING_STYLE};
use super::table::{styled_table, table};

/// Show the replicas, the routes, and how many messages fall due when
#[derive(Debug, Args)]
#[command(after_help = api::ENVIRONMENT_HELP)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    api: api::ApiArgs,
    /// Print the API's list of routes as JSON
    #[arg(long, conflicts_with = "watch")]
    json: bool,
    /// Show it again every two seconds
    #[arg(long)]
    watch: bool,
}

pub(super) fn run(args: &StatusArgs) -> ExitCode {
    match api::connect(&args.api) {
        Ok(client) => api::show(args.watch.then_some(api::WATCH_INTERVAL), || {
            render(&client, args.json)
        }),
        Err(error) => api::ended(Err(error)),
    }
}

pub(super) fn render(client: &ApiClient, json: bool) -> Result<SafeText, ClientError> {
    let routes = client.get("/api/v1/routes")?;
    if json {
        return Ok(SafeText::json(&routes));
    }
    let replicas = items(&client.get("/api/v1/replicas")?);
    let replicas: Vec<_> = replicas
        .iter()
        .map(|r| {
            vec![
                plain(&r["name"]),
                plain(&r["version"]),
                replica_state(r).to_owned(),
                plain(&r["partitions"]),
            ]
        })
        .collect();
    let replica_styles: Vec<_> = replicas.iter().map(|row| replica_style(&row[2])).collect();
    let routes_shown: Vec<_> = items(&routes)
        .iter()
        .map(|r| {
            let paused = paused_parts(r);
            let paused = if paused.is_empty() {
                "-".to_owned()
            } else {
                paused.join(", ")
            };
            let overdue = lateness(r["oldest_overdue_s"].as_f64().unwrap_or(0.0));
            let counts = ["pending", "in_flight", "dead"].map(|count| plain(&r[count]));
            [
                vec![plain(&r["name"])],
                counts.to_vec(),
                vec![overdue, paused],
            ]
            .concat()
        })
        .collect();
    let route_styles: Vec<_> = routes_shown.iter().map(|row| route_style(row)).collect();
    // Routes share targets and the store.
    let troubles: BTreeSet<String> = items(&routes)
        .iter()
        .flat_map(|r| {
            r["troubles"]
                .as_array()
                .into_iter()
                .flatten()
                .map(plain)
                .collect::<Vec<_>>()
        })
        .collect();
    let troubles = SafeText::joined(
        troubles
            .into_iter()
            .map(|trouble| SafeText::from(trouble).styled(WARNING_STYLE)),
        "\n",
    );
    let due = client.get("/api/v1/histogram")?;
    let sum = |window: &str| {
        due[window]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_u64)
            .sum::<u64>()
            .to_string()
    };
    let due_row = vec![
        plain(&due["overdue"]),
        sum("minute"),
        sum("hour"),
        sum("day"),
    ];
    let parts = [
        styled_table(
            &["REPLICA", "VERSION", "STATE", "PARTITIONS"],
            &replicas,
            &replica_styles,
        ),
        styled_table(
            &["ROUTE", "PENDING", "IN FLIGHT", "DEAD", "OVERDUE", "PAUSED"],
            &routes_shown,
            &route_styles,
        ),
        troubles,
        table(
            &[
                "DUE AND NOT CLAIMED",
                "DUE IN A MINUTE",
                "IN AN HOUR",
                "IN A DAY",
            ],
            &[due_row],
        ),
    ];
    Ok(SafeText::joined(
        parts.into_iter().filter(|part| !part.as_str().is_empty()),
        "\n\n",
    ))
}

/// The state of a replica, in a word.
pub(super) fn replica_state(replica: &Value) -> &'static str {
    match (
        replica["alive"].as_bool(),
        replica["draining"].as_bool(),
        replica["ready"].as_bool(),
    ) {
        (Some(false), _, _) => "dead",
        (_, Some(true), _) => "draining",
        (_, _, Some(true)) => "ready",
        _ => "not ready",
    }
}

/// Reports whether a replica in this state needs attention.
pub(super) fn replica_needs_attention(state: &str) -> bool {
    state != "ready"
}

/// The parts of a route that are paused: its publishing, and the reasons of its ingress.
pub(super) fn paused_parts(route: &Value) -> Vec<String> {
    let publishing =
        (route["publishing_paused"].as_bool() == Some(true)).then(|| "publishing".to_owned());
    let ingress = route["paused"].as_array().into_iter().flatten().map(plain);
    publishing.into_iter().chain(ingress).collect()
}

/// Style of a replica's row, by its state.
fn replica_style(state: &str) -> Style {
    match state {
        "dead" => FAILURE_STYLE,
        _ if replica_needs_attention(state) => WARNING_STYLE,
        _ => Style::new(),
    }
}

/// Style of a route's row: `OVERDUE` and `PAUSED` are its last cells.
fn route_style(row: &[String]) -> Style {
    let is_well = row.iter().rev().take(2).all(|cell| cell == "-");
    if is_well { Style::new() } else { WARNING_STYLE }
}

/// Lateness of the oldest message, for people.
pub(super) fn lateness(seconds: f64) -> String {
    match seconds as u64 {
        0 => "-".to_owned(),
        s if s < 120 => format!("{s} s"),
        s if s < 7200 => format!("{} min", s / 60),
        s => format!("{} h", s / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_need_attention_have_a_style() {
        assert_eq!(
            ["ready", "draining", "dead"].map(replica_style),
            [Style::new(), WARNING_STYLE, FAILURE_STYLE]
        );
        let row = |overdue: &str, paused: &str| {
            ["orders", "3", "0", "0", overdue, paused].map(str::to_owned)
        };
        assert_eq!(route_style(&row("-", "-")), Style::new());
        assert_eq!(route_style(&row("3 s", "-")), WARNING_STYLE);
        assert_eq!(route_style(&row("-", "publishing")), WARNING_STYLE);
    }

    #[test]
    fn lateness_is_shown_in_a_unit_that_fits() {
        let shown = [0.0, 0.9, 1.0, 119.0, 120.0, 7199.0, 7200.0].map(lateness);
        assert_eq!(shown, ["-", "-", "1 s", "119 s", "2 min", "119 min", "2 h"]);
    }
}
