//! Messages on their way to their route's `dead_letter_to`, before they count as dead. Pure.
//!
//! Such a message waits in the store like any other, with a flag. The last entry of its history is the reason of its
//! death.

use super::due::UnixMs;
use super::entry::{Entry, Flags};
use super::message::{Header, HeaderValue, Origin, stamped};
use super::retry::remember;
use super::verdict::DeadReason;
use super::{RouteName, Text};

/// Headers that tell a dead-letter consumer the reason, the error and the route. Their names are the same on every
/// route.
const DEAD_HEADERS: [&str; 3] = [
    "x-delay-dead-reason",
    "x-delay-dead-error",
    "x-delay-dead-route",
];

/// Sends a message on its way: due now, without a name, and with the reason in its history.
pub fn begin(entry: &mut Entry, now: UnixMs, reason: DeadReason) {
    let last = entry.history.last();
    if last.is_none_or(|last| last.reason.as_str() != reason.as_str()) {
        let error = last.map(|last| last.error.clone()).unwrap_or_default();
        remember(entry, now, reason.as_str(), error.as_str());
    }
    entry.flags = entry.flags.with(Flags::DYING).without(Flags::NAMED);
    entry.asked.get_or_insert(entry.due);
    entry.due = now;
}

/// The reason of the death.
pub fn reason(entry: &Entry) -> DeadReason {
    let word = entry
        .history
        .last()
        .map(|last| last.reason.as_str())
        .unwrap_or_default();
    DeadReason::parse(word).unwrap_or(DeadReason::Attempts)
}

/// The message as it is published: with the reason in its headers, and without the headers that are set again.
#[must_use]
pub fn outgoing(entry: &Entry, route: &RouteName) -> Entry {
    let mut entry = entry.clone();
    let error = entry
        .history
        .last()
        .map(|last| last.error.clone())
        .unwrap_or_default();
    entry.message.headers.retain(|header| !is_set_again(header));
    let values = [
        Text::from(reason(&entry).as_str()),
        error,
        Text::from(route.as_str()),
    ];
    for (name, text) in DEAD_HEADERS.into_iter().zip(values) {
        let bytes = text.bytes().clone();
        let value = match entry.message.origin {
            Origin::Kafka => HeaderValue::Bytes(bytes),
            Origin::Rabbitmq => HeaderValue::LongString(bytes),
        };
        entry.message.headers.push(Header::new(name, value));
    }
    entry
}

/// True for a header that the message gets when it is published, whatever it had under that name.
fn is_set_again(header: &Header) -> bool {
    DEAD_HEADERS
        .iter()
        .chain(&stamped::ALL)
        .any(|name| header.name.as_str().eq_ignore_ascii_case(name))
}

/// The message as a dead letter.
#[must_use]
pub fn ended(mut entry: Entry) -> Entry {
    entry.flags = entry.flags.without(Flags::DYING);
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{InvalidReason, testing};

    #[test]
    fn it_tells_why_and_is_kept_as_it_was() {
        let mut entry = testing::entry(UnixMs(5), b"body");
        let header = |name: &str| Header::new(name, HeaderValue::Bytes("x".into()));
        entry.message.headers = vec![
            header("kept"),
            header("X-Delay-Dead-Reason"),
            header("x-delay-id"),
        ];
        entry.flags = Flags(Flags::NAMED);
        remember(&mut entry, UnixMs(6), "unavailable", "no leader");
        let message = entry.message.clone();
        begin(&mut entry, UnixMs(7), DeadReason::Attempts);
        assert_eq!(
            (entry.due, entry.asked_due(), entry.history.len()),
            (UnixMs(7), UnixMs(5), 2)
        );
        assert!(entry.flags.has(Flags::DYING) && !entry.flags.has(Flags::NAMED));
        assert_eq!(reason(&entry), DeadReason::Attempts);
        let out = outgoing(&entry, &testing::route().name);
        let text = |value: &HeaderValue| match value {
            HeaderValue::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("{other:?}"),
        };
        let headers: Vec<_> = out
            .message
            .headers
            .iter()
            .map(|h| (h.name.to_string(), text(&h.value)))
            .collect();
        let expected = [
            ("kept", "x"),
            (DEAD_HEADERS[0], "attempts"),
            (DEAD_HEADERS[1], "no leader"),
            (DEAD_HEADERS[2], "orders"),
        ];
        assert_eq!(headers, expected.map(|(n, v)| (n.to_owned(), v.to_owned())));
        assert_eq!(ended(entry).message, message);
    }

    #[test]
    fn a_reason_that_is_told_already_is_not_told_twice() {
        let invalid = DeadReason::Invalid(InvalidReason::BadDelay);
        let mut entry = testing::entry(UnixMs(5), b"body");
        remember(&mut entry, UnixMs(6), invalid.as_str(), "x-delay: no");
        begin(&mut entry, UnixMs(7), invalid);
        assert_eq!((entry.history.len(), reason(&entry)), (1, invalid));
    }
}
