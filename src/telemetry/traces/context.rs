//! The context of a trace as messages carry it: the headers `traceparent` and `tracestate` of W3C Trace Context.

use std::fmt;

use bytes::Bytes;

use crate::domain::{Header, HeaderValue, Message, Text, UnixMs};

/// Header with the ids of the trace and of the span that sent the message.
pub const TRACEPARENT: &str = "traceparent";
/// Header with what each vendor has to say about the trace.
const TRACESTATE: &str = "tracestate";
/// Our name in `tracestate`. The value is the moment at which a message was admitted, Unix ms.
const OWN_STATE: &str = "postdate";
/// Longest `tracestate` that receivers must pass on, bytes.
const MAX_STATE_BYTES: usize = 512;
/// Length of a `traceparent` of version 00.
const PARENT_BYTES: usize = 55;
/// Flag of a trace that its producer records.
const SAMPLED_FLAG: u8 = 1;

/// Ids of a span and of its trace. Neither is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// Id of the trace.
    pub trace: u128,
    /// Id of the span in it.
    pub span: u64,
}

impl SpanContext {
    /// The context of a new span in a trace.
    pub(super) fn new_in(trace: u128) -> Self {
        Self {
            trace,
            span: fastrand::u64(1..),
        }
    }

    /// The id of the trace that begins when a message with this context is delivered. Each delivery of the message,
    /// by whatever replica, begins or continues the same one.
    pub(super) fn delivery_trace(self) -> u128 {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.trace.to_be_bytes());
        bytes[16..].copy_from_slice(&self.span.to_be_bytes());
        xxhash_rust::xxh3::xxh3_128(&bytes).max(1)
    }

    /// Parses a `traceparent`. `None` if it has no valid form, or if its producer does not record the trace.
    pub(super) fn sampled(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        if !text.is_ascii() || text.len() < PARENT_BYTES {
            return None;
        }
        let (parent, rest) = text.split_at(PARENT_BYTES);
        let is_later_version = rest.starts_with('-') && !parent.starts_with("00");
        if !(rest.is_empty() || is_later_version) {
            return None;
        }
        let mut fields = parent.split('-');
        let version = hex::<2>(fields.next()?)?;
        let trace = hex::<32>(fields.next()?)?;
        let span = hex::<16>(fields.next()?)?;
        let flags = hex::<2>(fields.next()?)?;
        let is_valid = version != 0xff && trace != 0 && span != 0 && fields.next().is_none();
        let is_sampled = flags as u8 & SAMPLED_FLAG != 0;
        (is_valid && is_sampled).then_some(Self {
            trace,
            span: span as u64,
        })
    }

    /// The context that a message carries, if its trace is recorded.
    pub(super) fn of(message: &Message) -> Option<Self> {
        message
            .headers
            .iter()
            .find(|header| header.name.as_str() == TRACEPARENT)
            .and_then(|header| match &header.value {
                HeaderValue::Bytes(bytes) | HeaderValue::LongString(bytes) => Self::sampled(bytes),
                _ => None,
            })
    }

    /// Puts the context into a message, in place of the one that it has.
    pub(super) fn replace_in(self, message: &mut Message) {
        let text = Bytes::from(self.to_string());
        for header in message
            .headers
            .iter_mut()
            .filter(|header| header.name.as_str() == TRACEPARENT)
        {
            header.value = match header.value {
                HeaderValue::Bytes(_) => HeaderValue::Bytes(text.clone()),
                _ => HeaderValue::LongString(text.clone()),
            };
        }
    }
}

/// Reports whether a header is one of those that tracing changes on a message's way.
pub fn is_context_header(name: &str) -> bool {
    matches!(name, TRACEPARENT | TRACESTATE)
}

impl fmt::Display for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-01", self.trace, self.span)
    }
}

/// Parses a number of `N` lower-case hexadecimal digits.
fn hex<const N: usize>(text: &str) -> Option<u128> {
    let fits = text.len() == N
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    fits.then(|| u128::from_str_radix(text, 16).ok())?
}

/// Notes in a message's `tracestate` when it was admitted, unless that would make it longer than receivers must pass
/// on.
pub(super) fn note_admission(message: &mut Message, at: UnixMs) {
    let own = format!("{OWN_STATE}={at}");
    let Some(header) = message
        .headers
        .iter_mut()
        .find(|header| header.name.as_str() == TRACESTATE)
    else {
        let value = match message
            .headers
            .iter()
            .find(|header| header.name.as_str() == TRACEPARENT)
        {
            Some(Header {
                value: HeaderValue::Bytes(_),
                ..
            }) => HeaderValue::Bytes(own.into()),
            _ => HeaderValue::LongString(own.into()),
        };
        message
            .headers
            .push(Header::new(Text::from_static(TRACESTATE), value));
        return;
    };
    let (HeaderValue::Bytes(state) | HeaderValue::LongString(state)) = &mut header.value else {
        return;
    };
    let Ok(text) = std::str::from_utf8(state) else {
        return;
    };
    let others = text
        .split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty() && !is_own(entry));
    let all = others.fold(own, |all, entry| all + "," + entry);
    if all.len() <= MAX_STATE_BYTES {
        *state = all.into();
    }
}

/// The moment at which a message was admitted, as its `tracestate` says.
pub(super) fn admission(message: &Message) -> Option<UnixMs> {
    let header = message
        .headers
        .iter()
        .find(|header| header.name.as_str() == TRACESTATE)?;
    let (HeaderValue::Bytes(state) | HeaderValue::LongString(state)) = &header.value else {
        return None;
    };
    let text = std::str::from_utf8(state).ok()?;
    let own = text.split(',').map(str::trim).find(|entry| is_own(entry))?;
    own.split_once('=')?.1.parse().ok().map(UnixMs)
}

fn is_own(entry: &str) -> bool {
    entry
        .split_once('=')
        .is_some_and(|(name, _)| name == OWN_STATE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::testing::entry;

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn message(headers: &[(&'static str, &'static str)]) -> Message {
        let headers = headers.iter().map(|(name, value)| {
            Header::new(
                Text::from_static(name),
                HeaderValue::LongString(Bytes::from_static(value.as_bytes())),
            )
        });
        Message {
            headers: headers.collect(),
            ..entry(UnixMs(0), b"").message
        }
    }

    #[test]
    fn a_context_is_read_as_the_standard_says_and_written_as_it_was() {
        let read = |text: &str| SpanContext::sampled(text.as_bytes());
        let context = read(SAMPLED).expect("sampled");
        assert_eq!(
            (context.trace, context.span),
            (
                0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c,
                0xb7ad_6b71_6920_3331
            )
        );
        assert_eq!(context.to_string(), SAMPLED);
        let flagged = |flags: &str| format!("{}{flags}", &SAMPLED[..53]);
        assert_eq!(read(&flagged("03")), Some(context), "other flags");
        assert_eq!(
            read(&SAMPLED.replacen("00", "cc", 1)),
            Some(context),
            "a later version"
        );
        assert_eq!(
            read(&(SAMPLED.replacen("00", "cc", 1) + "-what comes later")),
            Some(context)
        );
        for none in [
            flagged("00"),
            flagged("02"),
            flagged("0"),
            flagged("0g"),
            SAMPLED.replacen("00", "ff", 1),
            SAMPLED.to_uppercase(),
            format!("{SAMPLED}-more"),
            SAMPLED.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            SAMPLED.replace("b7ad6b7169203331", &"0".repeat(16)),
            SAMPLED.replace('-', "_"),
            String::new(),
            "é".repeat(40),
        ] {
            assert_eq!(read(&none), None, "{none}");
        }
    }

    #[test]
    fn every_delivery_of_a_message_has_the_same_trace_and_no_other_has() {
        let context = SpanContext { trace: 1, span: 2 };
        assert_eq!(
            context.delivery_trace(),
            SpanContext { trace: 1, span: 2 }.delivery_trace()
        );
        assert_ne!(
            context.delivery_trace(),
            SpanContext { trace: 1, span: 3 }.delivery_trace()
        );
        assert_ne!(
            context.delivery_trace(),
            SpanContext { trace: 2, span: 2 }.delivery_trace()
        );
    }

    #[test]
    fn the_moment_of_admission_stands_before_what_others_say_and_never_makes_it_too_long() {
        for (state, expected) in [
            (None, "postdate=7"),
            (Some("a=1,b=2"), "postdate=7,a=1,b=2"),
            (Some("a=1, postdate=5 ,,b=2"), "postdate=7,a=1,b=2"),
        ] {
            let mut message = message(&[(TRACEPARENT, SAMPLED)]);
            let header = |state: &str| {
                Header::new(
                    TRACESTATE.to_owned(),
                    HeaderValue::Bytes(state.to_owned().into()),
                )
            };
            message.headers.extend(state.map(header));
            note_admission(&mut message, UnixMs(7));
            let (HeaderValue::Bytes(state) | HeaderValue::LongString(state)) =
                &message.headers[1].value
            else {
                panic!("text");
            };
            assert_eq!(state, expected);
            assert_eq!(admission(&message), Some(UnixMs(7)));
        }
        let long: &'static str = Box::leak(format!("a={}", "x".repeat(500)).into_boxed_str());
        let mut full = message(&[(TRACESTATE, long)]);
        let before = full.clone();
        note_admission(&mut full, UnixMs(7));
        assert_eq!(full, before);
        assert_eq!(admission(&full), None);
        assert_eq!(admission(&message(&[(TRACESTATE, "postdate=soon")])), None);
    }

    #[test]
    fn a_context_takes_the_place_of_the_old_one_and_keeps_its_type() {
        let mut message = message(&[("a", "1"), (TRACEPARENT, SAMPLED), ("b", "2")]);
        message.headers.push(Header::new(
            TRACEPARENT.to_owned(),
            HeaderValue::Bytes("twice".into()),
        ));
        SpanContext { trace: 1, span: 2 }.replace_in(&mut message);
        let text = "00-00000000000000000000000000000001-0000000000000002-01";
        assert_eq!(
            message.headers[1].value,
            HeaderValue::LongString(text.into())
        );
        assert_eq!(message.headers[3].value, HeaderValue::Bytes(text.into()));
        assert_eq!(
            SpanContext::of(&message),
            Some(SpanContext { trace: 1, span: 2 })
        );
    }
}
