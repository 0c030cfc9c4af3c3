//! The trail of a message in words.

use serde_json::Value;

use super::table::precise_moment;
use crate::domain::duration;

/// Reports whether an answer tells of a message that is gone.
pub(super) fn is_of_gone(message: &Value) -> bool {
    message["trail"].is_array() && message["due_ms"].is_null()
}

/// One event, in a line.
pub(super) fn told(event: &Value) -> String {
    let at = precise_moment(event["at_ms"].as_i64().unwrap_or(0));
    let text = |name: &str| event[name].as_str();
    let reason = text("reason")
        .map(|reason| format!(", reason {reason}"))
        .unwrap_or_default();
    let dead_id = |what: &str| {
        text("dead_id")
            .map(|id| format!(", {what} {id}"))
            .unwrap_or_default()
    };
    match text("event").unwrap_or("?") {
        "delivered" => format!(
            "delivered {at}{}{}{}{}",
            lateness(event),
            target(event),
            place(&event["landed"]),
            attempt(event)
        ),
        "moved" => {
            let due = event["due_ms"]
                .as_i64()
                .map(|due| format!(" to {}", precise_moment(due)));
            format!("moved {at}{}{}", due.unwrap_or_default(), by(event))
        }
        "replaced" => format!(
            "replaced {at} by another message of its name{}",
            position(event)
        ),
        "deduplicated" => format!("a duplicate was suppressed {at}{}", position(event)),
        "dead" => format!("became a dead letter {at}{reason}{}", dead_id("id")),
        "dropped" => format!(
            "dropped {at}{reason}{}{}",
            dead_id("dead letter"),
            by(event)
        ),
        "redriven" => format!("redriven {at}{}{}", dead_id("dead letter"), by(event)),
        "cancelled" => {
            let due = event["due_ms"]
                .as_i64()
                .map(|due| format!(", due {}", precise_moment(due)));
            format!("cancelled {at}{}{}", due.unwrap_or_default(), by(event))
        }
        other => format!("{other} {at}{}", by(event)),
    }
}

fn lateness(event: &Value) -> String {
    match event["late_ms"].as_i64() {
        None => String::new(),
        Some(..=0) => ", on time".to_owned(),
        Some(late) => format!(", {} late", duration::words(late)),
    }
}

fn target(event: &Value) -> String {
    let name = event["target"].as_str().unwrap_or_default();
    let Some((technology, connection)) =
        event["connection"].as_str().and_then(|c| c.split_once('.'))
    else {
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

fn attempt(event: &Value) -> String {
    match event["attempt"].as_u64() {
        None => String::new(),
        Some(1) => ", first attempt".to_owned(),
        Some(2) => ", second attempt".to_owned(),
        Some(3) => ", third attempt".to_owned(),
        Some(n) => format!(", attempt {n}"),
    }
}

/// Name of whoever asked for it.
fn by(event: &Value) -> String {
    match event["by"].as_str() {
        None => String::new(),
        Some("header") => format!(", by a command in a message{}", position(event)),
        Some(by) => match event["because"].as_str() {
            Some(because) => format!(", by {by}: {because}"),
            None => format!(", by {by}"),
        },
    }
}

/// Where in the target it lies.
fn place(landed: &Value) -> String {
    let partition_and_offset = landed
        .as_object()
        .map(|at| (&at["partition"], &at["offset"]));
    partition_and_offset.map_or_else(String::new, |(partition, offset)| {
        format!(", partition {partition}, offset {offset}")
    })
}

fn position(event: &Value) -> String {
    match place(&event["position"]).strip_prefix(", ") {
        Some(place) => format!(" (Kafka {place})"),
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
            assert_eq!(told(&event), words);
        }
    }
}
