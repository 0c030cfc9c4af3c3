//! The trail, as answers show it: what became of a message that is gone, and what became of messages lately.

use std::sync::Arc;

use axum::Json;
use axum::extract::State as Extract;
use serde::Deserialize;
use utoipa::IntoParams;

use super::context::Admin;
use super::extract::{NamedRoute, QueryParams, RoutePath};
use super::message::place_view;
use super::page::limit;
use super::problem::{Problem, StoreAway};
use super::times::rfc3339;
use crate::api::{MessageTrail, Page, RouteEventView, TrailEventView, Word};
use crate::domain::{Actor, Route, Text, TrailWord, UnixMs};
use crate::store::{TrailCause, TrailEvent, TrailReading};

/// Query of a route's trail.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct TrailQuery {
    /// Events, 1 to 1000; 100 if not given.
    #[param(minimum = 1, maximum = 1000, value_type = Option<u32>)]
    limit: Option<String>,
}

/// What became of a route's messages lately
///
/// The newest events of its trail, newest first: what was delivered, cancelled, moved, and what became a dead letter. The
/// trail is a help and no proof: it keeps `history`, within `history_max`. Of a route without a trail the list is empty.
#[utoipa::path(
    get, path = "/api/v1/routes/{route}/trail", operation_id = "listTrail", params(RoutePath, TrailQuery),
    responses(
        (status = 200, description = "The events. There is one page: `next` is null.", body = Page<RouteEventView>),
        (status = 400, description = "A query or a limit that is none."),
        (status = 404, description = "No such route."),
        StoreAway,
    )
)]
pub(super) async fn list(
    Extract(admin): Extract<Arc<Admin>>,
    NamedRoute(route): NamedRoute,
    QueryParams(query): QueryParams<TrailQuery>,
) -> Result<Json<Page<RouteEventView>>, Problem> {
    let limit = limit(query.limit.as_deref())?;
    let events = admin
        .browse(admin.store()?.lately(&route.name, limit))
        .await?;
    let views = events.unwrap_or_default().into_iter();
    let items = views.map(|(id, event)| RouteEventView {
        id,
        event: event_view(&event),
    });
    Ok(Json(Page {
        items: items.collect(),
        next: None,
    }))
}

/// The answer for a message that is gone. `None`: the trail does not have it.
pub(super) fn message_trail(
    route: &Route,
    id: &str,
    reading: &TrailReading,
) -> Option<MessageTrail> {
    let words = || reading.events.iter().rev().map(|event| event.word);
    let state = words()
        .find(|word| word.is_end() || *word == TrailWord::Redriven)
        .or_else(|| words().next())?;
    Some(MessageTrail {
        id: id.to_owned(),
        route: route.name.to_string(),
        state: Word::Known(state),
        trail: event_views(reading),
    })
}

/// The events of a message for people, oldest first.
pub(super) fn event_views(reading: &TrailReading) -> Vec<TrailEventView> {
    reading.events.iter().map(event_view).collect()
}

fn event_view(event: &TrailEvent) -> TrailEventView {
    let target = event.target.as_ref();
    let text = |text: &Option<Text>| text.as_ref().map(ToString::to_string);
    let why = text(&event.reason);
    let (because, reason) = match event.by {
        Some(_) => (why, None),
        None => (None, why),
    };
    let position = event.position.map(|at| place_view(at, None));
    let (position, landed) = match event.word {
        TrailWord::Delivered => (None, position),
        _ => (position, None),
    };
    let due = event
        .due
        .or_else(|| event.late_ms.map(|late| event.at.plus(-late)));
    TrailEventView {
        at_ms: event.at.0,
        at: rfc3339(event.at),
        event: Word::Known(event.word),
        late_ms: event.late_ms,
        attempt: event.attempt,
        target: target.map(|target| target.name.to_string()),
        connection: target.map(|target| {
            format!(
                "{}.{}",
                if target.is_kafka { "kafka" } else { "rabbitmq" },
                target.connection
            )
        }),
        due_ms: due.map(|due| due.0),
        due: due.and_then(rfc3339),
        by: text(&event.by),
        because,
        reason,
        dead_id: text(&event.dead_id),
        position,
        landed,
    }
}

/// Reads the trail of a message. `None`: its route has none.
pub(super) async fn read_trail(
    admin: &Admin,
    route: &Route,
    id: &str,
) -> Result<Option<TrailReading>, Problem> {
    admin.browse(admin.store()?.trail_of(&route.name, id)).await
}

/// Records that a caller cancelled a message that was due then, if that is known.
pub(super) fn record_cancel(
    admin: &Admin,
    route: &Route,
    id: &str,
    due: Option<UnixMs>,
    actor: &Actor,
) -> Result<(), Problem> {
    let store = admin.store()?;
    if let Some(trail) = store.trail(&route.name) {
        trail.cancelled(id, store.clock().now(), due, TrailCause::Actor(actor));
    }
    Ok(())
}

/// Records that a caller moved a message.
pub(super) fn record_move(
    admin: &Admin,
    route: &Route,
    id: &str,
    at: UnixMs,
    due: UnixMs,
    actor: &Actor,
) -> Result<(), Problem> {
    if let Some(trail) = admin.store()?.trail(&route.name) {
        trail.moved(id, at, due, TrailCause::Actor(actor));
    }
    Ok(())
}

/// Records that a caller put another message in the place of one.
pub(super) fn record_replace(
    admin: &Admin,
    route: &Route,
    id: &str,
    at: UnixMs,
    actor: &Actor,
) -> Result<(), Problem> {
    if let Some(trail) = admin.store()?.trail(&route.name) {
        trail.replaced(id, at, TrailCause::Actor(actor));
    }
    Ok(())
}

/// What became of a message last, for the sentence of a problem. `None`: the trail does not have it.
pub(super) fn last_told(reading: &TrailReading) -> Option<String> {
    let event = reading.events.last()?;
    let what = match event.word {
        TrailWord::Replaced => "another message of its name took its place",
        TrailWord::Dead => "it became a dead letter",
        TrailWord::Deduplicated => "a duplicate of it was suppressed",
        TrailWord::Delivered
        | TrailWord::Cancelled
        | TrailWord::Moved
        | TrailWord::Dropped
        | TrailWord::Redriven => event.word.as_str(),
    };
    let at = rfc3339(event.at).unwrap_or_else(|| event.at.to_string());
    let to = match (event.word, event.due.and_then(rfc3339)) {
        (TrailWord::Moved, Some(due)) => format!(" to {due}"),
        _ => String::new(),
    };
    let by = match (event.by.as_ref().map(Text::as_str), &event.reason) {
        (None, _) => String::new(),
        (Some("header"), _) => ", by a command in a message".to_owned(),
        (Some(by), None) => format!(", by {by}"),
        (Some(by), Some(because)) => format!(", by {by}: {because}"),
    };
    Some(format!("{what} at {at}{to}{by}"))
}

/// How far the trail helps where it does not have a message, for the sentence of a problem.
pub(super) fn reach(reading: Option<&TrailReading>) -> String {
    match reading.map(|reading| reading.since) {
        None => "the route has no trail of what is gone (`history`)".to_owned(),
        Some(None) => "the route's trail is empty".to_owned(),
        Some(Some(since)) => {
            let since = rfc3339(since).unwrap_or_else(|| since.to_string());
            format!("the route's trail goes back to {since} and does not have it")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::{KafkaPosition, testing};
    use crate::store::TrailTarget;

    fn event(at: i64, word: TrailWord) -> TrailEvent {
        TrailEvent {
            at: UnixMs(at),
            word,
            late_ms: None,
            attempt: None,
            target: None,
            position: None,
            by: None,
            reason: None,
            dead_id: None,
            due: None,
        }
    }

    fn state(words: &[TrailWord]) -> Option<&'static str> {
        let events = (0..)
            .zip(words)
            .map(|(at, word)| event(at, *word))
            .collect();
        let reading = TrailReading {
            events,
            since: None,
        };
        let answer = message_trail(&testing::route(), "a", &reading)?;
        let all = TrailWord::ALL.map(TrailWord::as_str);
        let shown = serde_json::to_value(&answer).expect("JSON");
        assert_eq!(shown["trail"].as_array().map(Vec::len), Some(words.len()));
        all.into_iter().find(|word| shown["state"] == *word)
    }

    #[test]
    fn the_state_is_the_end_if_there_is_one_and_else_the_last_that_is_known() {
        assert_eq!(state(&[]), None);
        for word in TrailWord::ALL {
            assert_eq!(state(&[word]), Some(word.as_str()));
        }
        assert_eq!(
            state(&[TrailWord::Delivered, TrailWord::Deduplicated]),
            Some("delivered")
        );
        assert_eq!(
            state(&[TrailWord::Dead, TrailWord::Dropped]),
            Some("dropped")
        );
        assert_eq!(
            state(&[TrailWord::Dead, TrailWord::Redriven, TrailWord::Moved]),
            Some("redriven")
        );
        assert_eq!(
            state(&[TrailWord::Moved, TrailWord::Replaced]),
            Some("replaced")
        );
    }

    #[test]
    fn an_event_shows_what_it_has_and_nothing_else() {
        let target = TrailTarget {
            is_kafka: true,
            connection: "main".into(),
            name: "orders".into(),
        };
        let delivered = TrailEvent {
            late_ms: Some(2),
            attempt: Some(1),
            target: Some(target),
            position: Some(KafkaPosition {
                partition: 1,
                offset: 7,
            }),
            ..event(1_700_000_000_123, TrailWord::Delivered)
        };
        let position = Some(KafkaPosition {
            partition: 3,
            offset: 1881,
        });
        let cancelled = TrailEvent {
            by: Some("header".into()),
            position,
            ..event(5, TrailWord::Cancelled)
        };
        let reading = TrailReading {
            events: vec![delivered, cancelled],
            since: None,
        };
        let shown = serde_json::to_value(event_views(&reading)).expect("JSON");
        let expected = json!([
            {
                "at_ms": 1_700_000_000_123_i64, "at": "2023-11-14T22:13:20.123Z", "event": "delivered",
                "late_ms": 2, "attempt": 1, "target": "orders", "connection": "kafka.main",
                "due_ms": 1_700_000_000_121_i64, "due": "2023-11-14T22:13:20.121Z",
                "landed": { "partition": 1, "offset": 7 }
            },
            {
                "at_ms": 5, "at": "1970-01-01T00:00:00.005Z", "event": "cancelled", "by": "header",
                "position": { "partition": 3, "offset": 1881 }
            }
        ]);
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_last_event_is_a_sentence() {
        let told = |event: TrailEvent| {
            last_told(&TrailReading {
                events: vec![event],
                since: None,
            })
        };
        let moved = TrailEvent {
            due: Some(UnixMs(60_000)),
            by: Some("alice".into()),
            reason: Some("#4711".into()),
            ..event(5, TrailWord::Moved)
        };
        let expected = "moved at 1970-01-01T00:00:00.005Z to 1970-01-01T00:01:00Z, by alice: #4711";
        assert_eq!(told(moved).as_deref(), Some(expected));
        let cancelled = TrailEvent {
            by: Some("header".into()),
            ..event(0, TrailWord::Cancelled)
        };
        let expected = "cancelled at 1970-01-01T00:00:00Z, by a command in a message";
        assert_eq!(told(cancelled).as_deref(), Some(expected));
        assert_eq!(last_told(&TrailReading::default()), None);
    }
}
