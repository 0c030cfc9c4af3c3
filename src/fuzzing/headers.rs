//! The grammar of the delay headers: durations, moments, and the admission of a message by all of its headers.

use super::input::Input;
use crate::domain::{
    Arrival, Header, HeaderValue, Message, Origin, Route, UnixMs, duration, moment, testing,
};
use crate::ingress::admit::{Admission, admit};

/// When each message arrives: in the year 2026.
const ARRIVAL: UnixMs = UnixMs(1_795_255_200_000);
/// Longest error, bytes: a header's name and 64 bytes of its value, each escaped as `\u{...}`.
const MAX_ERROR_BYTES: usize = 4096;

/// Any text is a duration, a moment, or neither, and what is read can be written and read back. Any message is admitted
/// with a due time within the route's limit, or refused with a sentence.
///
/// The first byte decides between one text and a message.
///
/// # Panics
/// If a promise is broken.
pub fn delay_headers(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 4 {
        0 => {
            if let Ok(text) = std::str::from_utf8(input.rest()) {
                durations(text);
                moments(text);
            }
        }
        1 => {
            // One header, whose value is all of the rest.
            let name = input.name();
            let value = HeaderValue::Bytes(bytes::Bytes::copy_from_slice(input.rest()));
            let headers = vec![Header { name, value }];
            let origin = Origin::Kafka;
            admission(
                Message {
                    origin,
                    key: None,
                    body: None,
                    headers,
                    properties: None,
                },
                None,
                true,
            );
        }
        _ => {
            let produced = input.maybe(|input| UnixMs(input.signed()));
            let commands = input.flag();
            admission(input.message(), produced, commands);
        }
    }
}

fn durations(text: &str) {
    let header = duration::parse_header(text);
    if let Ok(ms) = header {
        assert!(ms >= 0, "{text:?} is {ms} ms");
        assert_eq!(
            duration::parse_header(&duration::render(ms)),
            Ok(ms),
            "{text:?}"
        );
        assert_eq!(
            duration::parse_setting(&duration::render(ms)),
            Ok(ms),
            "{text:?}"
        );
    }
    if let Ok(ms) = duration::parse_setting(text) {
        assert_eq!(header, Ok(ms), "{text:?} as a setting and as a header");
    }
}

fn moments(text: &str) {
    let Ok(at) = moment::parse(text) else { return };
    if let Some(written) = moment::render(at) {
        assert_eq!(
            moment::parse(&written),
            Ok(at),
            "{text:?} was written as {written:?}"
        );
    }
}

fn admission(message: Message, produced: Option<UnixMs>, commands: bool) {
    let mut route = Route::clone(&testing::route());
    route.policy.commands = commands;
    let headers = message.headers.clone();
    let arrival = Arrival::from(ARRIVAL);
    let (admission, message) = admit(message, None, produced, &route, arrival);
    match admission {
        Admission::PassThrough { .. } => assert!(message.headers.len() <= headers.len()),
        Admission::Delayed { asked, .. } | Admission::Change { asked, .. } => {
            let due = asked.due;
            assert!(
                (0..=ARRIVAL.0 + route.policy.max_delay_ms).contains(&due.0),
                "{due:?}"
            );
            // Without its delay headers it passes through, were it to come again.
            let (again, _) = admit(message.clone(), None, produced, &route, arrival);
            assert!(
                matches!(again, Admission::PassThrough { .. }),
                "{message:?} became {again:?}"
            );
        }
        Admission::Cancel { id } => assert!(!id.is_empty()),
        Admission::Spent { .. } => panic!("the route counts no retries"),
        Admission::Invalid { error, .. } => {
            assert!(
                !error.is_empty() && error.len() <= MAX_ERROR_BYTES,
                "{error}"
            );
            // The text of a float that is no number equals itself.
            assert_eq!(format!("{:?}", message.headers), format!("{headers:?}"));
        }
    }
}
