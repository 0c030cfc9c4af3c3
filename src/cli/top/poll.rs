//! The thread of `postdate top` that reads the API.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use super::NEXT_MESSAGES;
use super::state::{DueCounts, MessageRow, RateSample, ReplicaRow, RouteRow, Snapshot};
use crate::api::{
    HistogramView, LiveRoute, MessageView, OverviewMoment, Page, ReplicaStatusView, SourceView,
    TargetView,
};
use crate::cli::client::{ApiClient, ClientError};
use crate::cli::status::{paused_parts, replica_state};
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
    let get = |path: &str| client.call("GET", path, None, ANSWER_DEADLINE);
    let filter = route
        .map(|route| format!("&route={}", percent_encoded(route)))
        .unwrap_or_default();
    let path = format!("/api/v1/messages?limit={NEXT_MESSAGES}{filter}");
    let overview: OverviewMoment = client.accept(&get("/api/v1/overview")?)?;
    let next = get(&path).and_then(|answer| client.accept::<Page<MessageView>>(&answer));
    // While Redis is away there are no messages to be had, and the overview says most.
    let (next, next_failure) = match next {
        Ok(page) => (page.items.iter().map(message).collect(), None),
        Err(error) => (Vec::new(), Some(escaped(&error.to_string()))),
    };
    Ok(Snapshot {
        at_ms: Clock::start().wall().0,
        replicas: overview.replicas.iter().map(replica).collect(),
        routes: overview.routes.iter().map(route_row).collect(),
        due: overview.histogram.map(due_counts).unwrap_or_default(),
        next_of: route.map(str::to_owned),
        next,
        next_failure,
    })
}

fn replica(replica: &ReplicaStatusView) -> ReplicaRow {
    ReplicaRow {
        name: escaped(&replica.name),
        version: escaped(&replica.version),
        state: replica_state(replica).to_owned(),
        partitions: replica.partitions,
    }
}

fn route_row(LiveRoute { route, flow }: &LiveRoute) -> RouteRow {
    RouteRow {
        name: escaped(&route.name),
        from: source(&route.from),
        to: target(&route.to),
        pending: route.pending,
        in_flight: route.in_flight,
        dead: route.dead,
        overdue_s: route.oldest_overdue_s,
        rate: RateSample {
            read: flow.rate_in,
            published: flow.rate_out,
        },
        paused: escaped(&paused_parts(route).join(", ")),
        troubles: route.troubles.iter().map(|why| escaped(why)).collect(),
    }
}

/// A source in words: `kafka main, topic orders`.
fn source(from: &SourceView) -> String {
    let prefetch = from.prefetch.map(|prefetch| prefetch.to_string());
    let topics = from.topics.as_ref().map(|topics| topics.join(", "));
    words(&[
        ("kafka", &from.kafka),
        ("rabbitmq", &from.rabbitmq),
        ("topic", &from.topic),
        ("topics", &topics),
        ("topics matching", &from.topic_pattern),
        ("group", &from.group),
        ("queue", &from.queue),
        ("prefetch", &prefetch),
    ])
}

/// A target in words.
fn target(to: &TargetView) -> String {
    words(&[
        ("kafka", &to.kafka),
        ("rabbitmq", &to.rabbitmq),
        ("topic", &to.topic),
        ("exchange", &to.exchange),
        ("routing key", &to.routing_key),
    ])
}

/// The parts that are there, each with its name.
fn words(parts: &[(&str, &Option<String>)]) -> String {
    let there = parts
        .iter()
        .filter_map(|(name, value)| Some(escaped(&format!("{name} {}", value.as_ref()?))));
    there.collect::<Vec<_>>().join(", ")
}

fn due_counts(due: HistogramView) -> DueCounts {
    DueCounts {
        overdue: due.overdue,
        minute: due.minute,
        in_hour: due.hour.iter().sum(),
        in_day: due.day.iter().sum(),
    }
}

fn message(message: &MessageView) -> MessageRow {
    let last_error = match &message.last_error {
        Some(failure) => escaped(&format!("{}: {}", failure.reason, failure.error)),
        None => "-".to_owned(),
    };
    MessageRow {
        due_ms: message.due_ms,
        route: escaped(&message.route),
        id: escaped(&message.id),
        attempt: message.attempt.to_string(),
        last_error,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::admin::testing::{READ_TOKEN, TestServer};
    use crate::domain::Secret;

    #[tokio::test]
    async fn the_overview_is_there_while_redis_is_away() {
        let server = TestServer::start().await;
        let url = format!("http://{}", server.address);
        let polled = tokio::task::spawn_blocking(move || {
            let client = ApiClient::new(&url, Some(Secret::new(READ_TOKEN)), None)?;
            read(&client, Some("orders"))
        });
        let snapshot = polled.await.expect("no panic").expect("an overview");
        assert!(
            snapshot.routes.iter().any(|route| route.name == "orders"),
            "{snapshot:?}"
        );
        assert_eq!(snapshot.next_of.as_deref(), Some("orders"));
        assert!(snapshot.next.is_empty(), "{snapshot:?}");
        let why = snapshot.next_failure.unwrap_or_default();
        assert!(why.contains("Redis cannot be reached"), "{why}");
        server.end().await;
    }

    #[test]
    fn rows_are_read_from_the_api_and_are_safe() {
        let route = serde_json::from_value(json!({
            "name": "orders", "from": { "topic": "in\u{1b}[2J", "kafka": "main" }, "to": {}, "allow_targets": [], "policy": {},
            "pending": 3, "in_flight": 0, "dead": 1, "oldest_overdue_s": 1.5, "rate_in": 7.5, "rate_out": 2.0,
            "paused": ["store"], "publishing_paused": true, "pauses": [], "troubles": ["a\nb"], "of a later version": 1,
        }));
        let row = route_row(&route.expect("a route"));
        assert_eq!(row.from, "kafka main, topic in\\u001b[2J");
        assert_eq!(
            (row.pending, row.dead, row.paused.as_str()),
            (3, 1, "publishing, store")
        );
        assert_eq!((row.rate.read, row.rate.published), (7.5, 2.0));
        assert_eq!(row.troubles, ["a\\u000ab"]);
        let failed = serde_json::from_value(json!({
            "id": "x", "route": "orders", "version": "v", "due_ms": 7, "asked_ms": 7, "state": "of a later version", "attempt": 2,
            "failures": 1, "target": "t", "size": 0, "headers": [],
            "last_error": { "at_ms": 1, "reason": "r", "error": "e" },
        }));
        let failed = message(&failed.expect("a message"));
        assert_eq!((failed.due_ms, failed.last_error.as_str()), (7, "r: e"));
    }
}
