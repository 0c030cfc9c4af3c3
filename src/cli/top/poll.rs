//! The thread of `postdate top` that reads the API.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use serde_json::Value;

use super::NEXT_MESSAGES;
use super::state::{DueCounts, MessageRow, ReplicaRow, RouteCounters, RouteRow, Snapshot};
use crate::cli::api::items;
use crate::cli::client::{ApiClient, ClientError};
use crate::domain::unsafe_text::escaped;
use crate::domain::{Clock, percent_encoded};

/// Time between two reads.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for one answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// Reads the API each second, and at once when another route is looked at. Ends with its channels.
pub(super) fn run(
    client: &ApiClient,
    opened: &Receiver<Option<String>>,
    outcomes: &SyncSender<Result<Snapshot, String>>,
) {
    let mut route = None;
    loop {
        let outcome = read(client, route.as_deref()).map_err(|error| escaped(&error.to_string()));
        if outcomes.send(outcome).is_err() {
            return;
        }
        match opened.recv_timeout(REFRESH_INTERVAL) {
            Ok(other) => route = other,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn read(client: &ApiClient, route: Option<&str>) -> Result<Snapshot, ClientError> {
    let get = |path: &str| client.accept(&client.call("GET", path, None, ANSWER_DEADLINE)?);
    let filter = route
        .map(|route| format!("&route={}", percent_encoded(route)))
        .unwrap_or_default();
    let routes = get("/api/v1/routes")?;
    let replicas = get("/api/v1/replicas")?;
    let due = get("/api/v1/histogram")?;
    let next = get(&format!("/api/v1/messages?limit={NEXT_MESSAGES}{filter}"))?;
    let metrics = client.call("GET", "/metrics", None, ANSWER_DEADLINE)?;
    Ok(Snapshot {
        at_ms: Clock::start().wall().0,
        replicas: items(&replicas).iter().map(replica).collect(),
        routes: items(&routes).iter().map(route_row).collect(),
        due: due_counts(&due),
        counters: (metrics.status == 200).then(|| counters(&metrics.body)),
        next_of: route.map(str::to_owned),
        next: items(&next).iter().map(message).collect(),
    })
}

/// A value as one safe line.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => escaped(text),
        other => escaped(&other.to_string()),
    }
}

fn replica(replica: &Value) -> ReplicaRow {
    ReplicaRow {
        name: text(&replica["name"]),
        version: text(&replica["version"]),
        state: crate::cli::status::replica_state(replica).to_owned(),
        partitions: replica["partitions"].as_u64().unwrap_or(0),
    }
}

fn route_row(route: &Value) -> RouteRow {
    let count = |name: &str| route[name].as_u64().unwrap_or(0);
    RouteRow {
        name: text(&route["name"]),
        from: place(&route["from"]),
        to: place(&route["to"]),
        pending: count("pending"),
        in_flight: count("in_flight"),
        dead: count("dead"),
        overdue_s: route["oldest_overdue_s"].as_f64().unwrap_or(0.0),
        paused: crate::cli::status::paused_parts(route)
            .iter()
            .map(|part| escaped(part))
            .collect::<Vec<_>>()
            .join(", "),
        troubles: route["troubles"]
            .as_array()
            .into_iter()
            .flatten()
            .map(text)
            .collect(),
    }
}

/// A source or a target in words: `kafka main, topic orders`.
fn place(place: &Value) -> String {
    let parts = place.as_object().into_iter().flatten();
    let mut parts: Vec<String> = parts
        .map(|(name, value)| format!("{} {}", escaped(name), text(value)))
        .collect();
    // The connection comes first.
    parts.sort_by_key(|part| !(part.starts_with("kafka ") || part.starts_with("rabbitmq ")));
    parts.join(", ")
}

fn due_counts(due: &Value) -> DueCounts {
    let window = |name: &str| -> Vec<u64> {
        due[name]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_u64)
            .collect()
    };
    DueCounts {
        overdue: due["overdue"].as_u64().unwrap_or(0),
        minute: window("minute"),
        in_hour: window("hour").iter().sum(),
        in_day: window("day").iter().sum(),
    }
}

fn message(message: &Value) -> MessageRow {
    let error = &message["last_error"];
    MessageRow {
        due_ms: message["due_ms"].as_i64().unwrap_or(0),
        route: text(&message["route"]),
        id: text(&message["id"]),
        attempt: text(&message["attempt"]),
        last_error: match error["reason"].as_str() {
            Some(reason) => format!("{}: {}", escaped(reason), text(&error["error"])),
            None => "-".to_owned(),
        },
    }
}

/// The counters of each route in the text of `/metrics`.
fn counters(metrics: &str) -> BTreeMap<String, RouteCounters> {
    let mut found: BTreeMap<String, RouteCounters> = BTreeMap::new();
    for line in metrics.lines() {
        let Some((name, rest)) = line.split_once('{') else {
            continue;
        };
        let Some((labels, value)) = rest.rsplit_once("} ") else {
            continue;
        };
        let route = labels
            .split(',')
            .find_map(|label| label.strip_prefix("route=\"")?.strip_suffix('"'));
        let (Some(route), Some(value)) = (
            route,
            value
                .split(' ')
                .next()
                .and_then(|value| value.parse::<f64>().ok()),
        ) else {
            continue;
        };
        let counters = match name {
            "postdate_admitted_total" => &mut found.entry(route.to_owned()).or_default().read,
            "postdate_published_total" | "postdate_passed_through_total" => {
                &mut found.entry(route.to_owned()).or_default().published
            }
            _ => continue,
        };
        *counters += value;
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counters_are_read_from_the_metrics() {
        let metrics = "# TYPE postdate_admitted counter\npostdate_admitted_total{route=\"a\"} 12\n\
            postdate_published_total{route=\"a\"} 5\npostdate_passed_through_total{route=\"a\"} 2\n\
            postdate_published_total{route=\"b\"} 1\npostdate_pending{route=\"a\"} 99\nbroken{\n";
        let found = counters(metrics);
        assert_eq!(
            found["a"],
            RouteCounters {
                read: 12.0,
                published: 7.0
            }
        );
        assert_eq!(
            found["b"],
            RouteCounters {
                read: 0.0,
                published: 1.0
            }
        );
    }

    #[test]
    fn rows_are_read_from_the_api_and_are_safe() {
        let row = route_row(&json!({
            "name": "orders", "from": { "topic": "in\u{1b}[2J", "kafka": "main" }, "pending": 3, "dead": 1,
            "oldest_overdue_s": 1.5, "paused": ["store"], "publishing_paused": true, "troubles": ["a\nb"],
        }));
        assert_eq!(row.from, "kafka main, topic in\\u001b[2J");
        assert_eq!(
            (row.pending, row.dead, row.paused.as_str()),
            (3, 1, "publishing, store")
        );
        assert_eq!(row.troubles, ["a\\u000ab"]);
        let failed = message(
            &json!({ "id": "x", "due_ms": 7, "last_error": { "reason": "r", "error": "e" } }),
        );
        assert_eq!((failed.due_ms, failed.last_error.as_str()), (7, "r: e"));
    }
}
