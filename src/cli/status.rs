//! `postdate status`

use std::process::ExitCode;

use anstyle::Style;
use clap::Args;

use super::api;
use super::client::{ApiClient, ClientError};
use super::output::{FAILURE_STYLE, SafeText, WARNING_STYLE};
use super::table::{moment, styled_table, table};
use crate::api::{HistogramView, OverviewMoment, ReplicaStatusView, RouteView, TroubleView};
use crate::domain::moment::parse;

/// Show the replicas, the routes, and how many messages fall due when
#[derive(Debug, Args)]
#[command(after_help = api::ENVIRONMENT_HELP)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    api: api::ApiArgs,
    /// Print the API's overview as JSON
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
    if json {
        let overview = client.get_text("/api/v1/overview")?;
        return Ok(SafeText::answer(&overview));
    }
    client
        .get("/api/v1/overview")
        .map(|overview| shown(&overview))
}

fn shown(overview: &OverviewMoment) -> SafeText {
    let replicas: Vec<_> = overview
        .replicas
        .iter()
        .map(|replica| {
            vec![
                replica.name.clone(),
                replica.version.clone(),
                replica_state(replica).to_owned(),
                replica.partitions.to_string(),
            ]
        })
        .collect();
    let replica_styles: Vec<_> = replicas.iter().map(|row| replica_style(&row[2])).collect();
    let routes: Vec<_> = overview
        .routes
        .iter()
        .map(|live| route_row(&live.route))
        .collect();
    let route_styles: Vec<_> = routes.iter().map(|row| route_style(row)).collect();
    let troubles = overview
        .troubles
        .iter()
        .map(|trouble| trouble_text(trouble, overview.now_ms).styled(WARNING_STYLE));
    let unconfigured = (!overview.unconfigured_routes.is_empty()).then(|| {
        let names: Vec<&str> = overview
            .unconfigured_routes
            .iter()
            .map(String::as_str)
            .collect();
        let names = names.join(", ");
        SafeText::from(format!(
            "The store also has messages of routes that are not configured here: {names}"
        ))
        .styled(WARNING_STYLE)
    });
    let replicas = styled_table(
        &["REPLICA", "VERSION", "STATE", "PARTITIONS"],
        &replicas,
        &replica_styles,
    );
    let routes = styled_table(
        &["ROUTE", "PENDING", "IN FLIGHT", "DEAD", "OVERDUE", "PAUSED"],
        &routes,
        &route_styles,
    );
    let due = overview.histogram.as_ref().map(due_table);
    let shown = [Some(replicas), Some(routes), unconfigured]
        .into_iter()
        .chain(troubles.map(Some))
        .chain([due]);
    SafeText::joined(
        shown.flatten().filter(|part| !part.as_str().is_empty()),
        "\n\n",
    )
}

fn route_row(route: &RouteView) -> Vec<String> {
    let paused = paused_parts(route);
    let paused = if paused.is_empty() {
        "-".to_owned()
    } else {
        paused.join(", ")
    };
    let overdue = lateness(route.oldest_overdue_s);
    vec![
        route.name.clone(),
        route.pending.to_string(),
        route.in_flight.to_string(),
        route.dead.to_string(),
        overdue,
        paused,
    ]
}

/// A trouble: its cause and since when, what follows from it, and what to do.
fn trouble_text(trouble: &TroubleView, now_ms: i64) -> SafeText {
    let why = trouble.why.as_deref().unwrap_or("?");
    let mut lines = vec![format!("{}: {why}", trouble.part)];
    if let Some(since) = trouble.since.as_ref().and_then(|since| parse(since).ok()) {
        lines.push(format!("since {}", moment(since.0, now_ms)));
    }
    if !trouble.follows.is_empty() {
        let follows = trouble.follows.join(", ");
        lines.push(format!("so not well either: {follows}"));
    }
    lines.push(format!("try {}", trouble.command));
    SafeText::joined(lines.into_iter().map(SafeText::from), "\n  ")
}

/// How many messages fall due when.
fn due_table(due: &HistogramView) -> SafeText {
    let sum = |window: &[u64]| window.iter().sum::<u64>().to_string();
    let row = vec![
        due.overdue.to_string(),
        sum(&due.minute),
        sum(&due.hour),
        sum(&due.day),
    ];
    let columns = [
        "DUE AND NOT CLAIMED",
        "DUE IN A MINUTE",
        "IN AN HOUR",
        "IN A DAY",
    ];
    table(&columns, &[row])
}

/// The state of a replica, in a word.
pub(super) fn replica_state(replica: &ReplicaStatusView) -> &'static str {
    if !replica.alive {
        "dead"
    } else if replica.draining {
        "draining"
    } else if replica.ready {
        "ready"
    } else {
        "not ready"
    }
}

/// Reports whether a replica in this state needs attention.
pub(super) fn replica_needs_attention(state: &str) -> bool {
    state != "ready"
}

/// The parts of a route that are paused: its publishing, and the reasons of its ingress.
pub(super) fn paused_parts(route: &RouteView) -> Vec<&str> {
    let publishing = route.publishing_paused.then_some("publishing");
    let ingress = route.paused.iter().map(String::as_str);
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

/// Lateness of the oldest message, for a column of seven characters.
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
    use serde_json::json;

    use super::*;

    #[test]
    fn a_trouble_says_what_it_is_since_when_what_follows_and_what_to_do() {
        let trouble = serde_json::from_value(json!({
            "part": "kafka:main", "why": "connection\u{1b} refused", "since": "2026-11-27T10:00:00.000Z",
            "follows": ["source:orders", "target:main:orders"], "command": "postdate check --connect", "runbook": "postdatepartdown",
        }))
        .expect("a trouble");
        let now_ms = parse("2026-11-27T10:04:51Z").expect("a moment").0;
        let text = trouble_text(&trouble, now_ms);
        let lines: Vec<_> = text.as_str().lines().collect();
        assert_eq!(lines[0], "kafka:main: connection\\u001b refused");
        assert!(
            lines[1].starts_with("  since 2") && lines[1].ends_with("(4 min 51 s ago)"),
            "{lines:#?}"
        );
        assert_eq!(
            lines[2..],
            [
                "  so not well either: source:orders, target:main:orders",
                "  try postdate check --connect"
            ]
        );
    }

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
