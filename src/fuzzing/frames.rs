//! Frames of a broker, through the frame guard and then the client library's decoder.

use amq_protocol::frame::AMQPFrame;

use super::input::Input;
use crate::broker::rabbitmq::fuzzing::{decode_frame, guarded};
use crate::broker::rabbitmq::{from_amqp, unreadable_reason};

const METHOD_FRAME: u8 = 1;
const HEADER_FRAME: u8 = 2;
const BODY_FRAME: u8 = 3;
const HEARTBEAT_FRAME: u8 = 8;
const FRAME_END: u8 = 0xCE;
/// Class and method of `basic.deliver`, and its consumer tag.
const DELIVER_START: &[u8] = b"\0\x3c\0\x3c\x03tag";
/// Most containers in a payload that is decoded without the guard.
const SHALLOW: usize = 100;

/// Whatever the guard lets through can be decoded, frame by frame, on the stack of a thread. What can be decoded without
/// it passes as it is.
///
/// The frames are those in which a producer chooses bytes, and those that carry none. Of a method other than
/// `basic.deliver` all bytes come from the broker or from Postdate.
///
/// # Panics
/// If the promise is broken.
pub fn amqp_frames(data: &[u8]) {
    let mut input = Input::new(data);
    let read = 1 + usize::from(input.byte()) * 16;
    let taken = 1 + usize::from(input.byte()) * 16;
    let mut frames = Vec::new();
    while !input.is_empty() {
        frames.push(frame(&mut input));
    }
    let out = guarded(&frames.concat(), read, taken);
    let mut rest = &out[..];
    // A fault of a delivery is told in the content header that follows on its channel.
    let mut delivery_is_whole = [true; 2];
    for sent in &frames {
        let channel = usize::from(sent[2]);
        let Some((frame, behind)) = decode_frame(rest) else {
            panic!("{sent:?} became {rest:?}, which cannot be decoded");
        };
        let got = &rest[..rest.len() - behind.len()];
        rest = behind;
        assert_eq!(got[..3], sent[..3], "type and channel");
        match frame {
            AMQPFrame::Method(..) => delivery_is_whole[channel] = got == sent,
            AMQPFrame::Header(_, header) => {
                let (headers, _) = from_amqp(&header.properties);
                let is_unchanged = got == sent;
                assert!(is_unchanged || unreadable_reason(&headers).is_some());
                if std::mem::replace(&mut delivery_is_whole[channel], true) && !is_unchanged {
                    assert!(
                        !is_plainly_decodable(sent),
                        "{sent:?} became {got:?} without need"
                    );
                }
            }
            _ => assert_eq!(got, sent),
        }
    }
    assert!(rest.is_empty(), "{rest:?} are left");
}

/// One frame as a broker sends it, on channel 0 or 1.
fn frame(input: &mut Input<'_>) -> Vec<u8> {
    let kind = input.byte();
    let channel = (kind >> 7) & 1;
    let (kind, payload) = match kind % 8 {
        0 | 1 => (METHOD_FRAME, deliver(input)),
        2..=4 => (
            HEADER_FRAME,
            [&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4][..], input.slice()].concat(),
        ),
        5 => (HEADER_FRAME, input.slice().to_vec()),
        6 => (BODY_FRAME, input.slice().to_vec()),
        _ => (HEARTBEAT_FRAME, Vec::new()),
    };
    let len = (payload.len() as u32).to_be_bytes();
    [&[kind, 0, channel][..], &len, &payload[..], &[FRAME_END]].concat()
}

/// The payload of a `basic.deliver` with any exchange and routing key.
fn deliver(input: &mut Input<'_>) -> Vec<u8> {
    let tag_and_flags: [u8; 9] = input.array();
    let mut payload = [DELIVER_START, &tag_and_flags].concat();
    for _ in ["exchange", "routing key"] {
        let len = input.byte();
        let text = input.take(len.into());
        payload.push(text.len() as u8);
        payload.extend(text);
    }
    payload
}

/// Reports whether a content header can be decoded as it is, and is no imitation of a replaced one. A payload that may nest
/// deep is not tried.
fn is_plainly_decodable(sent: &[u8]) -> bool {
    let containers = sent
        .iter()
        .filter(|byte| matches!(byte, b'A' | b'F'))
        .count();
    if containers > SHALLOW || sent.windows(11).any(|part| part == b"-unreadable") {
        return false;
    }
    decode_frame(sent).is_some_and(|(_, rest)| rest.is_empty())
}
