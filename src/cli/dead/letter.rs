//! One dead letter for people.

use serde_json::Value;

use crate::cli::facts::FactLines;
use crate::cli::output::SafeText;

/// A dead letter, one line a fact.
pub(super) fn letter_text(dead: &Value, now_ms: i64) -> SafeText {
    let mut lines = FactLines::default();
    lines.add_member("dead id", &dead["dead_id"]);
    lines.add_member("id", &dead["id"]);
    lines.add_member("route", &dead["route"]);
    lines.add_moment("dead at", &dead["dead_at_ms"], now_ms);
    lines.add_member("reason", &dead["reason"]);
    lines.add_member("error", &dead["error"]);
    lines.add_moment("due", &dead["due_ms"], now_ms);
    lines.add_member("attempt", &dead["attempt"]);
    let target = match dead["target"].as_str() {
        Some("") => "the route's own",
        other => other.unwrap_or_default(),
    };
    if !target.is_empty() {
        lines.add("target", target);
    }
    lines.add_member("key", &dead["key"]);
    lines.add_size(dead);
    lines.add_position(dead);
    lines.add_headers(dead);
    lines.add_failures(dead, now_ms);
    if dead["left_out"] == true {
        let why = if dead["reason"] == "undecodable" {
            "none: its record could not be opened"
        } else {
            "too large, and not kept"
        };
        lines.add("body", why);
    }
    lines.add_member("body", &dead["body"]);
    if let Some(body) = dead["body_base64"].as_str() {
        lines.add("body", &format!("{body} (base64)"));
    }
    lines.text()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_dead_letter_is_told_line_by_line() {
        let dead = json!({
            "dead_id": "orders.unroutable.1c.k3x9.4b", "id": "order-7", "route": "orders", "state": "dead",
            "reason": "unroutable", "dead_at_ms": 1_000_000, "error": "no queue took \u{1b}[2J it", "due_ms": 900_000,
            "attempt": 8, "target": "", "size": 3, "left_out": false, "stored_bytes": 200,
            "position": { "partition": 3, "offset": 1881 }, "headers": [{ "name": "a", "value": "1" }],
            "history": [{ "at_ms": 1_000_000, "reason": "unroutable", "error": "no queue took it" }],
            "body_base64": "/w==",
        });
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
        let bare = json!({ "dead_id": "x", "route": "r", "dead_at_ms": 5, "reason": "corrupt", "error": "no blob" });
        assert_eq!(letter_text(&bare, 5).as_str().lines().count(), 5);
    }
}
