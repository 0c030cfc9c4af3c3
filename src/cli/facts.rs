//! Facts of one message for people, a line each: a name, and a value beside it.

use serde_json::Value;

use super::output::SafeText;
use super::table::{moment, precise_moment};
use crate::domain::duration;

/// Width of the names before the values.
const NAME_WIDTH: usize = 9;

/// Lines that begin with a name.
#[derive(Default)]
pub(super) struct FactLines(Vec<SafeText>);

impl FactLines {
    /// Adds a line.
    pub(super) fn add(&mut self, name: &str, value: &str) {
        self.0.push(SafeText::from(
            format!("{name:NAME_WIDTH$} {value}").as_str(),
        ));
    }

    /// Adds a line for a member of the API's answer, if it is there.
    pub(super) fn add_member(&mut self, name: &str, member: &Value) {
        match member {
            Value::Null => {}
            Value::String(text) => self.add(name, text),
            other => self.add(name, &other.to_string()),
        }
    }

    /// Adds a line for a moment, Unix ms, if it is there.
    pub(super) fn add_moment(&mut self, name: &str, member: &Value, now_ms: i64) {
        if let Some(ms) = member.as_i64() {
            self.add(name, &moment(ms, now_ms));
        }
    }

    /// Adds lines of which the first has the name.
    pub(super) fn add_each(&mut self, name: &str, values: impl Iterator<Item = String>) {
        for (at, value) in values.enumerate() {
            self.add(if at == 0 { name } else { "" }, &value);
        }
    }

    /// Adds the length of a message's body, in bytes.
    pub(super) fn add_size(&mut self, message: &Value) {
        if let Some(size) = message["size"].as_u64() {
            self.add("size", &format!("{size} bytes"));
        }
    }

    /// Adds when a message came, and what was asked for.
    pub(super) fn add_request(&mut self, message: &Value, now_ms: i64) {
        let Some(received_ms) = message["received_ms"].as_i64() else {
            return;
        };
        let received = moment(received_ms, now_ms);
        let asked = match (&message["delay_ms"], &message["deliver_at_ms"]) {
            (Value::Number(ms), _) => {
                format!(
                    "with a delay of {}",
                    duration::words(ms.as_i64().unwrap_or(0))
                )
            }
            (_, Value::Number(at)) => {
                format!(
                    "to be delivered at {}",
                    precise_moment(at.as_i64().unwrap_or(0))
                )
            }
            _ => return self.add("received", &received),
        };
        self.add("received", &format!("{received}, {asked}"));
    }

    /// Adds the Kafka position that a message was read at, if it was.
    pub(super) fn add_position(&mut self, message: &Value) {
        if let Some(position) = message["position"].as_object() {
            let partition = &position["partition"];
            let offset = &position["offset"];
            self.add(
                "read at",
                &format!("Kafka partition {partition}, offset {offset}"),
            );
        }
    }

    /// Adds the headers of a message, in their order.
    pub(super) fn add_headers(&mut self, message: &Value) {
        let headers = message["headers"].as_array().into_iter().flatten();
        self.add_each(
            "headers",
            headers.map(|h| format!("{}: {}", plain(&h["name"]), plain(&h["value"]))),
        );
    }

    /// Adds the failures of a message, the oldest first.
    pub(super) fn add_failures(&mut self, message: &Value, now_ms: i64) {
        let failures = message["history"].as_array().into_iter().flatten();
        let told = failures.map(|failure| {
            let at = moment(failure["at_ms"].as_i64().unwrap_or(0), now_ms);
            format!(
                "{at} {}: {}",
                plain(&failure["reason"]),
                plain(&failure["error"])
            )
        });
        self.add_each("failures", told);
    }

    /// All lines.
    pub(super) fn text(self) -> SafeText {
        SafeText::joined(self.0, "\n")
    }
}

/// A JSON value as text without quotes.
pub(super) fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}
