//! A dead letter, as answers show it.

use super::message::{failure_views, header_views, key_text, position_view, request_view};
use super::times::rfc3339;
use crate::api::{Base64Body, DeadLetterMessage, DeadLetterView, TextBody};
use crate::domain::{DeadReason, Entry, Flags, Text, UnixMs};
use crate::store::{DeadBody, DeadId};

/// Bytes that escapes may add to a short text of whatever content.
const SHORT_BYTES: usize = 4096;

/// Level of detail at which a dead letter is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DetailLevel {
    Outline,
    Headers,
    Body,
}

/// A dead letter, as answers show it at this level of detail.
pub(super) fn dead_letter_view(
    id: &DeadId,
    at: UnixMs,
    body: &DeadBody,
    detail: DetailLevel,
) -> DeadLetterView {
    let mut view = DeadLetterView {
        dead_id: id.to_string(),
        id: None,
        route: id.route().to_owned(),
        state: "dead".to_owned(),
        reason: id.reason().as_str().to_owned(),
        error: None,
        dead_at_ms: at.0,
        dead_at: rfc3339(at),
        stored_bytes: body.bytes,
        message: None,
    };
    match &body.bundle {
        Err(why) => {
            let holds = body
                .unopened
                .as_ref()
                .map(|unopened| format!("; it holds {} messages", unopened.count()));
            view.error = Some(format!("{why}{}", holds.unwrap_or_default()));
        }
        Ok(bundle) => match bundle.entries.first() {
            None => view.error = Some("its content was not in the store".to_owned()),
            Some(entry) => {
                view.id = entry.id.as_ref().map(ToString::to_string);
                view.error = entry
                    .history
                    .last()
                    .map(|failure| failure.error.to_string());
                let target = bundle.target.as_str();
                view.message = Some(message_of(id.reason(), entry, body.size, target, detail));
            }
        },
    }
    view
}

/// The content of a dead letter's message, at this level of detail.
fn message_of(
    reason: DeadReason,
    entry: &Entry,
    size: usize,
    target: &str,
    detail: DetailLevel,
) -> DeadLetterMessage {
    let due = match reason {
        DeadReason::Invalid(_) => None,
        _ => Some(entry.asked_due()),
    };
    let message = &entry.message;
    let wanted = message
        .body
        .as_ref()
        .filter(|_| detail == DetailLevel::Body);
    let body = wanted
        .cloned()
        .and_then(Text::from_utf8)
        .filter(is_short_in_json)
        .map(TextBody);
    let key = message.key.as_ref().map(|key| key_text(key));
    DeadLetterMessage {
        due_ms: due.map(|due| due.0),
        due: due.and_then(rfc3339),
        request: request_view(entry),
        attempt: entry.handouts,
        target: target.to_owned(),
        key_is_base64: key.as_ref().is_some_and(|(_, coded)| *coded),
        key: key.map(|(text, _)| text),
        size,
        left_out: entry.flags.has(Flags::LEFT_OUT),
        position: position_view(entry),
        history: failure_views(entry),
        headers: (detail != DetailLevel::Outline).then(|| header_views(message)),
        body_base64: wanted.filter(|_| body.is_none()).cloned().map(Base64Body),
        body,
    }
}

/// Reports whether JSON writes this text no longer than base64 would: a control character takes six bytes.
fn is_short_in_json(text: &Text) -> bool {
    let extra: usize = text
        .as_str()
        .bytes()
        .map(|byte| match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 1,
            0..0x20 => 5,
            _ => 0,
        })
        .sum();
    extra <= text.as_str().len() / 3 + SHORT_BYTES
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::domain::testing::entry;

    #[test]
    fn a_key_that_is_no_text_is_shown_as_base64() {
        for (key, shown, is_base64) in [
            (&b"order"[..], "order", false),
            ("m\u{e9}".as_bytes(), "m\u{e9}", false),
            (&[0, 0, 0, 255], "AAAA/w==", true),
        ] {
            let mut entry = entry(UnixMs(7), b"body");
            entry.message.key = Some(Bytes::copy_from_slice(key));
            let message = message_of(DeadReason::Attempts, &entry, 4, "", DetailLevel::Headers);
            assert_eq!(
                (message.key.as_deref(), message.key_is_base64),
                (Some(shown), is_base64)
            );
        }
    }
}
