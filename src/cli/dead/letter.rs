//! One dead letter for people.

use crate::api::{DeadLetterMessage, DeadLetterView};
use crate::cli::facts::{FactLines, key_text};
use crate::cli::output::SafeText;

/// A dead letter, one line a fact.
pub(super) fn letter_text(dead: &DeadLetterView, now_ms: i64) -> SafeText {
    let mut lines = FactLines::default();
    lines.add("dead id", &dead.dead_id);
    lines.add_known("id", dead.id.as_deref());
    lines.add("route", &dead.route);
    lines.add_moment("dead at", Some(dead.dead_at_ms), now_ms);
    lines.add("reason", &dead.reason);
    lines.add_known("error", dead.error.as_deref());
    if let Some(message) = &dead.message {
        add_message(&mut lines, message, &dead.reason, now_ms);
    }
    lines.text()
}

fn add_message(lines: &mut FactLines, message: &DeadLetterMessage, reason: &str, now_ms: i64) {
    lines.add_request(&message.request, now_ms);
    lines.add_moment("due", message.due_ms, now_ms);
    lines.add("attempt", &message.attempt.to_string());
    let target = match message.target.as_str() {
        "" => "the route's own",
        target => target,
    };
    lines.add("target", target);
    let key = key_text(message.key.as_deref(), message.key_is_base64);
    lines.add_known("key", key.as_deref());
    lines.add_size(message.size);
    lines.add_position(message.position.as_ref());
    lines.add_headers(message.headers.as_deref().unwrap_or_default());
    lines.add_failures(&message.history, now_ms);
    if message.left_out {
        let why = if reason == "undecodable" {
            "none: its record could not be opened"
        } else {
            "too large, and not kept"
        };
        lines.add("body", why);
    }
    if let Some(body) = &message.body {
        lines.add("body", body.0.as_str());
    }
    if let Some(body) = &message.body_base64 {
        lines.add("body", &format!("{body} (base64)"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_dead_letter_is_told_line_by_line() {
        let dead = serde_json::from_value(json!({
            "dead_id": "orders.unroutable.1c.k3x9.4b", "id": "order-7", "route": "orders", "state": "dead",
            "reason": "unroutable", "dead_at_ms": 1_000_000, "error": "no queue took \u{1b}[2J it", "due_ms": 900_000,
            "attempt": 8, "target": "", "size": 3, "left_out": false, "stored_bytes": 200,
            "position": { "partition": 3, "offset": 1881 }, "headers": [{ "name": "a", "value": "1" }],
            "history": [{ "at_ms": 1_000_000, "reason": "unroutable", "error": "no queue took it" }],
            "body_base64": "/w==",
        }));
        let dead = dead.expect("a dead letter");
        let shown = letter_text(&dead, 1_000_000);
        assert!(
            !shown.as_str().contains('\u{1b}'),
            "no control character reaches the terminal"
        );
        let lines: Vec<&str> = shown.as_str().lines().collect();
        assert_eq!(
            lines[..3],
            [
                "dead id   orders.unroutable.1c.k3x9.4b",
                "id        order-7",
                "route     orders"
            ]
        );
        assert!(
            lines[3].starts_with("dead at   19") && lines[3].ends_with("(now)"),
            "{lines:#?}"
        );
        assert_eq!(lines[4], "reason    unroutable");
        assert!(
            lines[5].starts_with("error     no queue took "),
            "{lines:#?}"
        );
        let rest = [
            "attempt   8",
            "target    the route's own",
            "size      3 bytes",
            "read at   Kafka partition 3, offset 1881",
            "headers   a: 1",
        ];
        assert_eq!(lines[7..12], rest);
        assert!(
            lines[12].starts_with("failures  ") && lines[12].contains("unroutable: no queue"),
            "{lines:#?}"
        );
        assert_eq!(lines[13..], ["body      /w== (base64)"]);
        // Nothing but this is known of one whose content cannot be read.
        let bare = serde_json::from_value(json!({
            "dead_id": "x", "route": "r", "state": "dead", "dead_at_ms": 5, "reason": "corrupt", "error": "no blob", "stored_bytes": 0,
        }));
        let bare = bare.expect("a dead letter");
        assert_eq!(letter_text(&bare, 5).as_str().lines().count(), 5);
    }

    #[test]
    fn a_key_that_is_no_text_and_what_was_asked_for_are_told() {
        let dead = serde_json::from_value(json!({
            "dead_id": "orders.expired.1c.k3x9.4b", "route": "orders", "state": "dead", "reason": "expired",
            "dead_at_ms": 1_000_000, "due_ms": 400_000, "received_ms": 100_000, "delay_ms": 300_000,
            "expires_ms": 500_000, "attempt": 1, "target": "", "key": "/wA=", "key_is_base64": true, "size": 0,
            "left_out": false, "stored_bytes": 200, "history": [],
        }));
        let shown = letter_text(&dead.expect("a dead letter"), 1_000_000);
        let line = |name: &str| {
            let mut lines = shown.as_str().lines();
            lines
                .find(|line| line.starts_with(name))
                .unwrap_or_default()
        };
        assert_eq!(line("key "), "key       /wA= (base64)");
        assert!(
            line("received ").ends_with("(15 min ago), with a delay of 5 min"),
            "{shown:?}"
        );
        assert_ne!(line("wanted until "), "", "{shown:?}");
    }
}
