//! Facts of one message for people, a line each: a name, and a value beside it.

use serde_json::Value;

use super::output::SafeText;
use super::table::{moment, precise_moment};
use crate::api::{FailureView, HeaderView, PositionView, RequestView};
use crate::domain::duration;

/// Width of the names before the values.
const NAME_WIDTH: usize = 9;

/// The key of a message, if it has one: text, or base64 with a word that says so.
pub(super) fn key_text(key: Option<&str>, is_base64: bool) -> Option<String> {
    let coded = if is_base64 { " (base64)" } else { "" };
    key.map(|key| format!("{key}{coded}"))
}

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

    /// Adds a line for what an answer has, if it is there.
    pub(super) fn add_known(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }

    /// Adds a line for a moment, Unix ms, if it is there.
    pub(super) fn add_moment(&mut self, name: &str, ms: Option<i64>, now_ms: i64) {
        if let Some(ms) = ms {
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
    pub(super) fn add_size(&mut self, size: usize) {
        self.add("size", &format!("{size} bytes"));
    }

    /// Adds when a message came, and what was asked for.
    pub(super) fn add_request(&mut self, request: &RequestView, now_ms: i64) {
        let Some(received_ms) = request.received_ms else {
            return;
        };
        let received = moment(received_ms, now_ms);
        let asked = match (request.delay_ms, request.deliver_at_ms) {
            (Some(ms), _) => format!(", with a delay of {}", duration::words(ms)),
            (None, Some(at)) => format!(", to be delivered at {}", precise_moment(at)),
            (None, None) => String::new(),
        };
        self.add("received", &format!("{received}{asked}"));
        if let Some(count) = request.given_back {
            self.add("given back", &format!("{count} times by its consumers"));
        }
        if let Some(expires_ms) = request.expires_ms {
            self.add("wanted until", &precise_moment(expires_ms));
        }
    }

    /// Adds the Kafka position that a message was read at, if it was.
    pub(super) fn add_position(&mut self, position: Option<&PositionView>) {
        if let Some(PositionView {
            topic,
            partition,
            offset,
        }) = position
        {
            let topic = topic
                .as_ref()
                .map_or_else(String::new, |topic| format!(" topic {topic},"));
            self.add(
                "read at",
                &format!("Kafka{topic} partition {partition}, offset {offset}"),
            );
        }
    }

    /// Adds the headers of a message, in their order.
    pub(super) fn add_headers(&mut self, headers: &[HeaderView]) {
        let lines = headers.iter().map(|header| match &header.value {
            Value::String(text) => format!("{}: {text}", header.name),
            value => format!("{}: {value}", header.name),
        });
        self.add_each("headers", lines);
    }

    /// Adds the failures of a message, the oldest first.
    pub(super) fn add_failures(&mut self, failures: &[FailureView], now_ms: i64) {
        let lines = failures.iter().map(|failure| {
            let at = moment(failure.at_ms, now_ms);
            format!("{at} {}: {}", failure.reason, failure.error)
        });
        self.add_each("failures", lines);
    }

    /// All lines.
    pub(super) fn text(self) -> SafeText {
        SafeText::joined(self.0, "\n")
    }
}
