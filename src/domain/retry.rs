//! The traces of a failed publish on its message: counts, flags, history. Pure.

use super::due::UnixMs;
use super::entry::{Entry, Failure, Flags};
use super::limits::{MAX_ERROR_BYTES, MAX_HISTORY};
use super::text::Text;
use super::verdict::Verdict;

/// The label and the error text of a verdict that is not a confirm.
pub fn describe(verdict: &Verdict) -> (&'static str, Text) {
    match verdict {
        Verdict::Confirmed(_) => ("confirmed", Text::default()),
        Verdict::Refused { reason, error } => (reason.as_str(), error.clone()),
        Verdict::Unknown { error } | Verdict::Interrupted { error } => {
            ("confirm_unknown", error.clone())
        }
        Verdict::NotTried => ("not_tried", Text::default()),
        Verdict::Expired => ("expired", Text::default()),
    }
}

/// The entry after a failed publish: one hand-out more, and one failure more unless the target was away; the failure in
/// its history, and a flag if nobody knows whether it arrived.
#[must_use]
pub fn failed(entry: &Entry, verdict: &Verdict, handouts: u32, now: UnixMs) -> Entry {
    let (reason, error) = describe(verdict);
    let mut entry = entry.clone();
    entry.handouts = handouts;
    entry.failures += u32::from(verdict.spends_attempt());
    if verdict.is_unknown() {
        entry.flags = entry.flags.with(Flags::CONFIRM_UNKNOWN);
    }
    remember(&mut entry, now, reason, error.as_str());
    entry
}

/// Adds a failure to a message's history. Beyond the bound the oldest is dropped.
pub fn remember(entry: &mut Entry, at: UnixMs, reason: &str, error: &str) {
    if entry.history.len() >= MAX_HISTORY {
        entry.history.remove(0);
    }
    entry.history.push(Failure {
        at,
        reason: reason.into(),
        error: cut(error),
    });
}

/// Cuts an error text to its bound.
pub fn cut(error: &str) -> Text {
    let mut end = error.len().min(MAX_ERROR_BYTES);
    while !error.is_char_boundary(end) {
        end -= 1;
    }
    Text::from(&error[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_ends_on_a_character() {
        let text = "é".repeat(150);
        assert_eq!(cut(&text).len(), 200);
    }
}
