//! The codec of bundles.

use std::sync::Arc;

use bytes::Bytes;

use super::input::Input;
use crate::domain::{
    DelayRequest, Entry, Expiry, Failure, Flags, KafkaPosition, RequestedTime, TargetRef, UnixMs,
};
use crate::store::{Bundle, BundleOutline, CodecError, decode, decode_outline, encode, fuzzing};

/// Most messages of a bundle that is made here.
const MAX_MESSAGES: usize = 20;
/// Most failures of a message that is made here.
const MAX_FAILURES: usize = 3;
/// Highest power of two of bytes that a body is repeated to.
const MAX_BODY_LOG: u8 = 14;

/// Any bytes are a bundle or an error. A bundle that was read is written and read as the same one, and its outline says the
/// same. A bundle that was written is read as it was.
///
/// The first byte decides between the bytes of a blob, whose checksum is made right, and messages for a bundle.
///
/// # Panics
/// If a promise is broken.
pub fn bundles(data: &[u8]) {
    let mut input = Input::new(data);
    if input.flag() {
        let bundle = bundle(&mut input);
        let blob = encode(&bundle);
        let read = decode(&blob);
        // The text of a float that is no number equals itself.
        assert_eq!(
            format!("{read:?}"),
            format!("{:?}", Ok::<_, CodecError>(&bundle))
        );
        judge(&blob);
    } else {
        judge(&Bytes::copy_from_slice(input.rest()));
        judge(&fuzzing::with_checksum(data.get(1..).unwrap_or_default()));
    }
}

fn judge(blob: &Bytes) {
    fuzzing::read_parts(blob);
    let outline = decode_outline(blob);
    let Ok(bundle) = decode(blob) else { return };
    if let Ok(outline) = outline {
        judge_outline(&outline, &bundle);
    }
    let written = encode(&bundle);
    match (decode(&written), decode_outline(&written)) {
        (Ok(again), Ok(outline)) => {
            assert_eq!(encode(&again), written);
            judge_outline(&outline, &bundle);
        }
        other => panic!("{bundle:?} was written and is read as {other:?}"),
    }
}

fn judge_outline(outline: &BundleOutline, bundle: &Bundle) {
    assert_eq!(outline.bundle.target, bundle.target);
    let sizes: Vec<_> = bundle
        .entries
        .iter()
        .map(|entry| entry.message.body_len())
        .collect();
    assert_eq!(outline.sizes, sizes);
}

fn bundle(input: &mut Input<'_>) -> Bundle {
    let target = TargetRef::from_text(input.short_text());
    let mut entries = Vec::new();
    while !input.is_empty() && entries.len() < MAX_MESSAGES {
        entries.push(entry(input));
    }
    Bundle {
        target,
        entries: Arc::new(entries),
    }
}

fn entry(input: &mut Input<'_>) -> Entry {
    let mut message = input.message();
    // Long bodies, and those that compress.
    let repeated = input.byte();
    if let Some(body) = message
        .body
        .as_mut()
        .filter(|body| !body.is_empty() && repeated > 200)
    {
        *body = body
            .repeat((1 << (repeated % MAX_BODY_LOG)) / body.len() + 1)
            .into();
    }
    let history = input.list(|input| Failure {
        at: UnixMs(input.signed()),
        reason: input.text(),
        error: input.text(),
    });
    Entry {
        due: UnixMs(input.signed()),
        asked: input.maybe(|input| UnixMs(input.signed())),
        id: input.maybe(Input::text),
        handouts: u32::from_le_bytes(input.array()),
        failures: u32::from_le_bytes(input.array()),
        flags: Flags(input.byte()),
        position: input.maybe(|input| KafkaPosition {
            partition: i32::from_le_bytes(input.array()),
            offset: input.signed(),
        }),
        source_topic: None,
        request: input.maybe(|input| DelayRequest {
            received: UnixMs(input.signed()),
            time: if input.byte() > 127 {
                RequestedTime::Delay(input.signed())
            } else {
                RequestedTime::At(UnixMs(input.signed()))
            },
            expires: input.maybe(|input| Expiry {
                last: UnixMs(input.signed()),
                after_ms: input.maybe(Input::signed),
            }),
            given_back: u32::from_le_bytes(input.array()),
        }),
        history: history.into_iter().take(MAX_FAILURES).collect(),
        message,
    }
}
