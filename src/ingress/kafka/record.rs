//! Copies a record of the client library into a message, once and into one allocation.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use bytes::{Bytes, BytesMut};
use rdkafka::Message as _;
use rdkafka::message::{BorrowedMessage, Headers};

use crate::domain::{Header, HeaderValue, Message, Origin, Text, UnixMs};

/// Bytes that a record costs in memory beside its content, roughly.
pub(in crate::ingress) const RECORD_OVERHEAD: usize = 256;

/// A copied record.
pub(super) struct CopiedRecord {
    pub(super) message: Message,
    pub(super) malformed: Option<Text>,
    pub(super) produced: Option<UnixMs>,
    /// The bytes that the record takes in memory, roughly.
    pub(super) size: usize,
}

/// Copies a record.
pub(super) fn copy(from: &BorrowedMessage<'_>) -> CopiedRecord {
    let headers = read_headers(from);
    let malformed = headers
        .is_none()
        .then(|| Text::from("a header's name is not UTF-8"));
    let headers = headers.unwrap_or_default();
    let size = from.key_len()
        + from.payload_len()
        + headers
            .iter()
            .map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len))
            .sum::<usize>();
    let overhead = RECORD_OVERHEAD + headers.len() * Header::OVERHEAD;
    let mut all = BytesMut::with_capacity(size);
    let mut put = |part: &[u8]| -> Bytes {
        all.extend_from_slice(part);
        all.split().freeze()
    };
    let key = from.key().map(&mut put);
    let body = from.payload().map(&mut put);
    let headers = headers
        .into_iter()
        .map(|(name, value)| Header {
            name: Text::from_utf8(put(name.as_bytes())).unwrap_or_default(),
            value: value.map_or(HeaderValue::Null, |value| HeaderValue::Bytes(put(value))),
        })
        .collect();
    CopiedRecord {
        message: Message {
            origin: Origin::Kafka,
            key,
            body,
            headers,
            properties: None,
        },
        malformed,
        produced: from.timestamp().to_millis().map(UnixMs),
        size: size + overhead,
    }
}

type RawHeaders<'a> = Vec<(&'a str, Option<&'a [u8]>)>;

/// The headers in their order. `None` if a name is not UTF-8, for which the client library panics.
fn read_headers<'a>(from: &'a BorrowedMessage<'_>) -> Option<RawHeaders<'a>> {
    let Some(headers) = from.headers() else {
        return Some(Vec::new());
    };
    let read = || {
        headers
            .iter()
            .map(|header| (header.key, header.value))
            .collect()
    };
    quietly(|| catch_unwind(AssertUnwindSafe(read)).ok())
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function whose panic is expected and caught, and keeps the panic out of the log: anybody who may
/// write to a topic could fill it.
pub(super) fn quietly<T>(run: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                usual(panic);
            }
        }));
    });
    QUIET.set(true);
    let result = run();
    QUIET.set(false);
    result
}
