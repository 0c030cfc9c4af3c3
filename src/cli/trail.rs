//! The trail of a message in words.

use super::table::precise_moment;
use crate::api::{PositionView, TrailEventView, Word};
use crate::domain::{TrailWord, duration};

/// One event, in a line.
pub(super) fn told(event: &TrailEventView) -> String {
    let at = precise_moment(event.at_ms);
    let by = by(event);
    let position = position(event.position.as_ref());
    let reason = named(", reason", event.reason.as_deref());
    let dead_letter = named(", dead letter", event.dead_id.as_deref());
    let due = event.due_ms.map(precise_moment);
    let Word::Known(word) = event.event else {
        return format!("{} {at}{by}", event.event);
    };
    match word {
        TrailWord::Delivered => format!(
            "delivered {at}{}{}{}{}",
            lateness(event.late_ms),
            target(event),
            place(event.landed.as_ref()),
            attempt(event.attempt)
        ),
        TrailWord::Moved => format!("moved {at}{}{by}", named(" to", due.as_deref())),
        TrailWord::Replaced => {
            // Of a command in a message `by` has the position already.
            let cause = if by.is_empty() { position } else { by };
            format!("replaced {at} by another message of its name{cause}")
        }
        TrailWord::Deduplicated => format!("a duplicate was suppressed {at}{position}"),
        TrailWord::Dead => {
            let id = named(", id", event.dead_id.as_deref());
            format!("became a dead letter {at}{reason}{id}")
        }
        TrailWord::Dropped => format!("dropped {at}{reason}{dead_letter}{by}"),
        TrailWord::Redriven => format!("redriven {at}{dead_letter}{by}"),
        TrailWord::Cancelled => format!("cancelled {at}{}{by}", named(", due", due.as_deref())),
    }
}

/// A value behind its name; nothing if there is none.
fn named(name: &str, value: Option<&str>) -> String {
    value.map_or_else(String::new, |value| format!("{name} {value}"))
}

fn lateness(late_ms: Option<i64>) -> String {
    match late_ms {
        None => String::new(),
        Some(..=0) => ", on time".to_owned(),
        Some(late) => format!(", {} late", duration::words(late)),
    }
}

fn target(event: &TrailEventView) -> String {
    let name = event.target.as_deref().unwrap_or_default();
    let connection = event.connection.as_deref().unwrap_or_default();
    let Some((technology, connection)) = connection.split_once('.') else {
        return String::new();
    };
    let place = match (technology, name.split_once('/')) {
        ("kafka", _) | (_, None) => format!("topic {name}"),
        (_, Some(("", queue))) => format!("queue {queue}"),
        (_, Some((exchange, ""))) => format!("exchange {exchange}"),
        (_, Some((exchange, key))) => format!("exchange {exchange}, routing key {key}"),
    };
    format!(", to {technology} {connection}, {place}")
}

fn attempt(number: Option<u32>) -> String {
    match number {
        None => String::new(),
        Some(1) => ", first attempt".to_owned(),
        Some(2) => ", second attempt".to_owned(),
        Some(3) => ", third attempt".to_owned(),
        Some(n) => format!(", attempt {n}"),
    }
}

/// Name of whoever asked for it.
fn by(event: &TrailEventView) -> String {
    match (event.by.as_deref(), &event.because) {
        (None, _) => String::new(),
        (Some("header"), _) => format!(
            ", by a command in a message{}",
            position(event.position.as_ref())
        ),
        (Some(by), None) => format!(", by {by}"),
        (Some(by), Some(because)) => format!(", by {by}: {because}"),
    }
}

/// Where in the target it lies.
fn place(landed: Option<&PositionView>) -> String {
    match landed {
        Some(PositionView {
            partition, offset, ..
        }) => {
            format!(", partition {partition}, offset {offset}")
        }
        None => String::new(),
    }
}

fn position(position: Option<&PositionView>) -> String {
    match position {
        Some(PositionView {
            partition, offset, ..
        }) => {
            format!(" (Kafka partition {partition}, offset {offset})")
        }
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_event_is_a_sentence() {
        let at = precise_moment(5);
        let due = precise_moment(7000);
        let position = json!({ "partition": 3, "offset": 1881 });
        let cases = [
            (
                json!({ "event": "delivered", "late_ms": 0, "attempt": 2, "connection": "rabbitmq.main", "target": "x/k" }),
                format!(
                    "delivered {at}, on time, to rabbitmq main, exchange x, routing key k, second attempt"
                ),
            ),
            (
                json!({ "event": "delivered", "late_ms": 61_000, "attempt": 7, "connection": "rabbitmq.main", "target": "/q" }),
                format!("delivered {at}, 1 min 1 s late, to rabbitmq main, queue q, attempt 7"),
            ),
            (
                json!({ "event": "delivered", "late_ms": 3, "attempt": 1, "connection": "kafka.main", "target": "t", "landed": position }),
                format!(
                    "delivered {at}, 3 ms late, to kafka main, topic t, partition 3, offset 1881, first attempt"
                ),
            ),
            (
                json!({ "event": "cancelled", "by": "header", "position": position }),
                format!(
                    "cancelled {at}, by a command in a message (Kafka partition 3, offset 1881)"
                ),
            ),
            (
                json!({ "event": "moved", "due_ms": 7000, "by": "anybody at this machine" }),
                format!("moved {at} to {due}, by anybody at this machine"),
            ),
            (
                json!({ "event": "replaced" }),
                format!("replaced {at} by another message of its name"),
            ),
            (
                json!({ "event": "replaced", "position": position }),
                format!(
                    "replaced {at} by another message of its name (Kafka partition 3, offset 1881)"
                ),
            ),
            (
                json!({ "event": "replaced", "by": "header", "position": position }),
                format!(
                    "replaced {at} by another message of its name, by a command in a message (Kafka partition 3, offset 1881)"
                ),
            ),
            (
                json!({ "event": "replaced", "by": "ann", "because": "#4711" }),
                format!("replaced {at} by another message of its name, by ann: #4711"),
            ),
            (
                json!({ "event": "deduplicated", "position": position }),
                format!("a duplicate was suppressed {at} (Kafka partition 3, offset 1881)"),
            ),
            (
                json!({ "event": "dead", "reason": "attempts", "dead_id": "orders.attempts.0.n.1" }),
                format!("became a dead letter {at}, reason attempts, id orders.attempts.0.n.1"),
            ),
            (
                json!({ "event": "dropped", "dead_id": "orders.attempts.0.n.1", "by": "dead_letters.keep" }),
                format!("dropped {at}, dead letter orders.attempts.0.n.1, by dead_letters.keep"),
            ),
            (
                json!({ "event": "redriven", "dead_id": "orders.attempts.0.n.1", "by": "ann", "because": "#4711" }),
                format!("redriven {at}, dead letter orders.attempts.0.n.1, by ann: #4711"),
            ),
            (
                json!({ "event": "of a later version" }),
                format!("of a later version {at}"),
            ),
        ];
        for (mut event, words) in cases {
            event["at_ms"] = 5.into();
            let event = serde_json::from_value(event).expect("an event");
            assert_eq!(told(&event), words);
        }
    }
}
