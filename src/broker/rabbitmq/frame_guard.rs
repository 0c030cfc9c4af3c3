//! A stream from a broker that shows the client library only frames that it can decode.
//!
//! Two kinds of frame carry bytes that a producer has chosen: the method `basic.deliver` with the routing key, and
//! the content header with the message's properties. Both are looked at here before the library sees them. A body that
//! is larger than its channel takes is left out, so that it is never in memory as a whole: the content header then
//! announces an empty body, and names the length of the true one. All other frames pass as they are. Each
//! `basic.return` is counted, also before the library sees it.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::guarded_channels::GuardedChannels;
use super::header_frame;

/// Bytes read from the broker at once.
const READ_SIZE: usize = 64 * 1024;
/// Bytes before a frame's payload: its type, its channel, and the payload's length.
const PREFIX_LEN: usize = 7;
/// Bytes of it before the payload's length.
const CHANNEL_END: usize = 3;
/// Bytes of a delivery tag. One byte of flags follows it.
const DELIVERY_TAG_LEN: usize = 8;
const METHOD_FRAME: u8 = 1;
const HEADER_FRAME: u8 = 2;
const BODY_FRAME: u8 = 3;
/// The last byte of a frame.
const FRAME_END: u8 = 0xCE;
/// Class and method of `connection.start`.
const START_METHOD: [u8; 4] = [0, 10, 0, 10];
/// Class and method of `basic.deliver`.
const DELIVER_METHOD: [u8; 4] = [0, 60, 0, 60];
/// Class and method of `basic.return`.
const RETURN_METHOD: [u8; 4] = [0, 60, 0, 50];
/// Largest payload that is looked at. A content header beyond it is replaced. The client library agrees on frames of at
/// most 1 MiB, but a broker does not split a content header.
const MAX_EXAMINED: usize = 2 * 1024 * 1024;
/// Bytes of a content header beyond [`MAX_EXAMINED`] that are kept: those before its properties.
const KEPT_OF_OVERSIZED: usize = 12;
/// Capacity that an empty buffer keeps.
const KEPT_CAPACITY: usize = 2 * READ_SIZE;

/// A stream whose incoming frames can be decoded.
pub(super) struct FrameGuard<S> {
    stream: S,
    given_up: Pin<Box<WaitForCancellationFutureOwned>>,
    read_buffer: Box<[u8]>,
    frames: GuardedFrames,
}

impl<S> FrameGuard<S> {
    /// `given_up` ends it. `channels` counts what is returned, and has the size of the largest body.
    pub(super) fn new(stream: S, given_up: CancellationToken, channels: GuardedChannels) -> Self {
        Self {
            stream,
            given_up: Box::pin(given_up.cancelled_owned()),
            read_buffer: vec![0; READ_SIZE].into(),
            frames: GuardedFrames {
                channels,
                ..GuardedFrames::default()
            },
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FrameGuard<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        loop {
            let taken = this.frames.take(buffer);
            if taken > 0 {
                return Poll::Ready(Ok(taken));
            }
            if this.given_up.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            let read = ready!(Pin::new(&mut this.stream).poll_read(cx, &mut this.read_buffer))?;
            if read == 0 {
                return Poll::Ready(Ok(0));
            }
            this.frames.push(&this.read_buffer[..read]);
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FrameGuard<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_close(cx)
    }
}

/// The frames between a broker and the client library.
#[derive(Default)]
struct GuardedFrames {
    state: FrameState,
    /// The part of a frame that has come, while more of it must come before it can be looked at.
    partial: Vec<u8>,
    /// Faults of a delivery, by channel, until its content header comes.
    faults: BTreeMap<[u8; 2], String>,
    /// Bytes of a body that are still to come and are left out, by channel.
    left_out: BTreeMap<[u8; 2], u64>,
    channels: GuardedChannels,
    /// Bytes for the client library.
    ready: Vec<u8>,
    /// How many of them it has taken.
    taken: usize,
}

/// Treatment of the bytes that come next.
#[derive(Clone, Copy, Default)]
enum FrameState {
    /// They are a frame's prefix.
    #[default]
    Prefix,
    /// They belong to a frame of this length that is looked at as a whole.
    Examining(usize),
    /// They begin an oversized content header, with a payload of this length.
    Oversized(usize),
    /// So many of them pass as they are.
    Passing(usize),
    /// So many of them are left out.
    Skipping(usize),
}

impl GuardedFrames {
    /// Moves bytes for the client library into `buffer`, as many as fit. Returns their number.
    fn take(&mut self, buffer: &mut [u8]) -> usize {
        let waiting = &self.ready[self.taken..];
        let len = waiting.len().min(buffer.len());
        buffer[..len].copy_from_slice(&waiting[..len]);
        self.taken += len;
        if self.taken == self.ready.len() {
            self.ready.clear();
            self.ready.shrink_to(KEPT_CAPACITY);
            self.taken = 0;
        }
        len
    }

    /// Takes bytes that came from the broker.
    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.state {
                FrameState::Prefix => {
                    if self.collect(&mut bytes, PREFIX_LEN) {
                        self.begin_frame();
                    }
                }
                FrameState::Examining(len) => {
                    if self.collect(&mut bytes, len) {
                        self.examine();
                    }
                }
                FrameState::Oversized(payload_len) => {
                    if self.collect(&mut bytes, PREFIX_LEN + KEPT_OF_OVERSIZED) {
                        self.replace_oversized(payload_len);
                    }
                }
                FrameState::Passing(left) => {
                    let passed = split_first(&mut bytes, left);
                    self.ready.extend(passed);
                    self.state = match left - passed.len() {
                        0 => FrameState::Prefix,
                        left => FrameState::Passing(left),
                    };
                }
                FrameState::Skipping(left) => {
                    self.state = match left - split_first(&mut bytes, left).len() {
                        0 => FrameState::Prefix,
                        left => FrameState::Skipping(left),
                    };
                }
            }
        }
    }

    /// Adds bytes to the partial frame until it has `len`. Reports whether it has.
    fn collect(&mut self, bytes: &mut &[u8], len: usize) -> bool {
        let missing = len - self.partial.len();
        self.partial.extend(split_first(bytes, missing));
        self.partial.len() == len
    }

    /// Decides by its prefix what becomes of a frame.
    fn begin_frame(&mut self) {
        let kind = self.partial[0];
        let length = &self.partial[CHANNEL_END..];
        let payload_len = length
            .iter()
            .fold(0, |len, byte| (len << 8) | usize::from(*byte));
        self.state = match kind {
            METHOD_FRAME | HEADER_FRAME if payload_len <= MAX_EXAMINED => {
                FrameState::Examining(PREFIX_LEN + payload_len + 1)
            }
            HEADER_FRAME => FrameState::Oversized(payload_len),
            BODY_FRAME if self.is_left_out(payload_len) => {
                self.partial.clear();
                FrameState::Skipping(payload_len + 1)
            }
            _ => {
                self.ready.append(&mut self.partial);
                FrameState::Passing(payload_len + 1)
            }
        };
    }

    /// Hands on a frame that has come as a whole, made decodable if it is not.
    fn examine(&mut self) {
        self.state = FrameState::Prefix;
        let payload_end = self.partial.len() - 1;
        let channel = self.channel();
        let kind = self.partial[0];
        let left_out = match kind {
            HEADER_FRAME => self.begin_body(),
            _ => None,
        };
        let payload = &mut self.partial[PREFIX_LEN..payload_end];
        let mut replacement = None;
        if kind == HEADER_FRAME {
            let fault = self.faults.remove(&channel);
            replacement = header_frame::make_decodable(payload, fault, left_out);
        } else if payload.starts_with(&DELIVER_METHOD) {
            match make_deliver_decodable(payload) {
                Some(fault) => self.faults.insert(channel, fault),
                None => self.faults.remove(&channel),
            };
        } else if payload.starts_with(&RETURN_METHOD) {
            self.channels.count_return(u16::from_be_bytes(channel));
        } else if payload.starts_with(&START_METHOD) && is_of_rabbitmq_3(payload) {
            self.channels.note_rabbitmq_3();
        }
        match replacement {
            Some(payload) => self.replace_payload(&payload),
            None => self.ready.append(&mut self.partial),
        }
        self.partial.shrink_to(KEPT_CAPACITY);
    }

    /// Hands on a content header without the properties that are too large to be looked at.
    fn replace_oversized(&mut self, payload_len: usize) {
        self.state = FrameState::Skipping(payload_len - KEPT_OF_OVERSIZED + 1);
        self.faults.remove(&self.channel());
        let fault = format!("its properties are {payload_len} bytes, over {MAX_EXAMINED}");
        let left_out = self.begin_body();
        let start = &self.partial[PREFIX_LEN..];
        let payload = header_frame::without_properties(start, fault, left_out);
        self.replace_payload(&payload);
    }

    /// Decides by the start of a content header what becomes of its body. Returns the length of a body that is left
    /// out.
    fn begin_body(&mut self) -> Option<u64> {
        let channel = self.channel();
        let size = header_frame::body_size(&self.partial[PREFIX_LEN..]);
        let largest = self.channels.largest_body(u16::from_be_bytes(channel));
        self.left_out.remove(&channel);
        if size <= largest {
            return None;
        }
        self.left_out.insert(channel, size);
        Some(size)
    }

    /// Reports whether a body's frame belongs to one that is left out.
    fn is_left_out(&mut self, payload_len: usize) -> bool {
        let channel = self.channel();
        let Some(left) = self.left_out.get_mut(&channel) else {
            return false;
        };
        *left = left.saturating_sub(payload_len as u64);
        if *left == 0 {
            self.left_out.remove(&channel);
        }
        true
    }

    /// Hands on a content header with another payload.
    fn replace_payload(&mut self, payload: &[u8]) {
        self.ready.extend(&self.partial[..CHANNEL_END]);
        self.ready.extend((payload.len() as u32).to_be_bytes());
        self.ready.extend(payload);
        self.ready.push(FRAME_END);
        self.partial.clear();
    }

    /// The channel of the partial frame.
    fn channel(&self) -> [u8; 2] {
        [self.partial[1], self.partial[2]]
    }
}

/// Makes the payload of a `basic.deliver` decodable. Returns what was wrong with it.
fn make_deliver_decodable(payload: &mut [u8]) -> Option<String> {
    let (_consumer_tag, rest) = split_text(payload.get_mut(DELIVER_METHOD.len()..)?)?;
    let (exchange, rest) = split_text(rest.get_mut(DELIVERY_TAG_LEN + 1..)?)?;
    let (routing_key, _) = split_text(rest)?;
    let faults = [
        header_frame::replace_invalid_utf8(exchange).then_some("its exchange is not UTF-8"),
        header_frame::replace_invalid_utf8(routing_key).then_some("its routing key is not UTF-8"),
    ];
    faults
        .into_iter()
        .flatten()
        .map(str::to_owned)
        .reduce(|all, fault| format!("{all}, {fault}"))
}

/// Splits a text off that stands behind one byte of length. `None` if it is longer than the bytes.
fn split_text(bytes: &mut [u8]) -> Option<(&mut [u8], &mut [u8])> {
    let (len, rest) = bytes.split_first_mut()?;
    rest.split_at_mut_checked((*len).into())
}

/// Reports whether a broker says among its properties that it is RabbitMQ 3.
fn is_of_rabbitmq_3(start: &[u8]) -> bool {
    let value = |name: &str| {
        let name = [&[name.len() as u8], name.as_bytes(), b"S"].concat();
        let at = start.windows(name.len()).position(|bytes| bytes == name)?;
        // The length of the text comes first.
        start.get(at + name.len() + size_of::<u32>()..)
    };
    let begins = |name: &str, text: &[u8]| value(name).is_some_and(|value| value.starts_with(text));
    begins("product", b"RabbitMQ") && begins("version", b"3.")
}

/// Splits at most `len` bytes off the front.
fn split_first<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (first, rest) = bytes.split_at(len.min(bytes.len()));
    *bytes = rest;
    first
}

/// The bytes for the client library, pushed and taken in pieces of these sizes.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn guarded(bytes: &[u8], pushed: usize, taken: usize) -> Vec<u8> {
    guarded_by(GuardedFrames::default(), bytes, pushed, taken)
}

#[cfg(any(test, feature = "fuzzing"))]
fn guarded_by(mut frames: GuardedFrames, bytes: &[u8], pushed: usize, taken: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut buffer = vec![0; taken];
    for piece in bytes.chunks(pushed) {
        frames.push(piece);
        loop {
            match frames.take(&mut buffer) {
                0 => break,
                len => out.extend(&buffer[..len]),
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use amq_protocol::frame::{AMQPFrame, parse_frame};
    use amq_protocol::protocol::{AMQPClass, basic};
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
        let len = (payload.len() as u32).to_be_bytes();
        [
            &[kind][..],
            &channel.to_be_bytes(),
            &len,
            payload,
            &[FRAME_END],
        ]
        .concat()
    }

    fn deliver(routing_key: &[u8]) -> Vec<u8> {
        let tag = [0, 0, 0, 0, 0, 0, 0, 7, 0];
        [
            &DELIVER_METHOD[..],
            b"\x03tag",
            &tag,
            b"\x01x",
            &[routing_key.len() as u8],
            routing_key,
        ]
        .concat()
    }

    /// The payload of a content header with a message id.
    fn header(message_id: &[u8]) -> Vec<u8> {
        let start = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1 << 7];
        [&start[..], &[message_id.len() as u8], message_id].concat()
    }

    fn decoded(mut bytes: &[u8]) -> Vec<AMQPFrame> {
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            let (rest, frame) = parse_frame(bytes).expect("it can be decoded");
            frames.push(frame);
            bytes = rest;
        }
        frames
    }

    #[test]
    fn a_routing_key_that_is_not_utf_8_is_named_in_the_header_that_follows() {
        let bytes = [
            frame(METHOD_FRAME, 1, &deliver(b"k\xff")),
            frame(METHOD_FRAME, 2, &deliver(b"k")),
            frame(HEADER_FRAME, 1, &header(b"one")),
            frame(HEADER_FRAME, 2, &header(b"two")),
        ]
        .concat();
        let frames = decoded(&guarded(&bytes, 5, 3));
        let AMQPFrame::Method(1, AMQPClass::Basic(basic::AMQPMethod::Deliver(first))) = &frames[0]
        else {
            panic!("{:?}", frames[0]);
        };
        assert_eq!(first.routing_key.as_str(), "k?");
        let reasons: Vec<_> = frames[2..]
            .iter()
            .map(|frame| match frame {
                AMQPFrame::Header(_, header) => header.properties.headers().is_some(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(reasons, [true, false]);
    }

    #[test]
    fn a_returned_message_is_counted_on_its_channel_before_it_is_handed_on() {
        let channels = GuardedChannels::default();
        let [one, two] = [1, 2].map(|channel| channels.count_returns(channel));
        let mut frames = GuardedFrames {
            channels: channels.clone(),
            ..GuardedFrames::default()
        };
        let returned = [&RETURN_METHOD[..], &[1, 56], b"\x00\x00\x01k"].concat();
        for channel in [1, 2, 1, 3] {
            frames.push(&frame(METHOD_FRAME, channel, &returned));
        }
        frames.push(&frame(METHOD_FRAME, 2, &deliver(b"k")));
        assert_eq!((one.seen(), two.seen()), (2, 1));
        let again = channels.count_returns(1);
        frames.push(&frame(METHOD_FRAME, 1, &returned)[..PREFIX_LEN + 3]);
        assert_eq!(
            (one.seen(), again.seen()),
            (2, 0),
            "a new channel of this number"
        );
        frames.push(&frame(METHOD_FRAME, 1, &returned)[PREFIX_LEN + 3..]);
        assert_eq!((one.seen(), again.seen()), (2, 1));
    }

    #[test]
    fn a_broker_is_rabbitmq_3_by_its_own_word() {
        let table = [
            ("RabbitMQ", "3.10.8", true),
            ("RabbitMQ", "3.9", true),
            ("RabbitMQ", "4.3.5", false),
            ("RabbitMQ", "30.1", false),
            ("LavinMQ", "3.0.0", false),
        ];
        for (product, version, expected) in table {
            let text = |name: &str, value: &str| {
                let name = [&[name.len() as u8], name.as_bytes()].concat();
                let len = (value.len() as u32).to_be_bytes();
                [&name, &b"S"[..], &len, value.as_bytes()].concat()
            };
            let table = [text("product", product), text("version", version)].concat();
            let len = (table.len() as u32).to_be_bytes();
            let start = [&START_METHOD, &[0, 9][..], &len, &table, b"\0\0\0\x05PLAIN"].concat();
            let bytes = frame(METHOD_FRAME, 0, &start);
            let channels = GuardedChannels::default();
            let mut frames = GuardedFrames {
                channels: channels.clone(),
                ..GuardedFrames::default()
            };
            frames.push(&bytes);
            assert_eq!(channels.is_rabbitmq_3(), expected, "{product} {version}");
        }
    }

    #[test]
    fn an_oversized_header_is_replaced_and_skipped() {
        let mut payload = header(b"id");
        payload.resize(MAX_EXAMINED + 1, b'x');
        let body = frame(3, 1, b"body");
        let bytes = [frame(HEADER_FRAME, 1, &payload), body.clone()].concat();
        let out = guarded(&bytes, READ_SIZE, READ_SIZE);
        let frames = decoded(&out);
        let AMQPFrame::Header(1, header) = &frames[0] else {
            panic!("{:?}", frames[0])
        };
        assert_eq!(header.body_size, 4);
        assert!(header.properties.headers().is_some());
        assert!(out.ends_with(&body));
    }

    /// The body that a content header announces is of this length.
    fn announcing(mut header: Vec<u8>, body_size: u64) -> Vec<u8> {
        header[4..12].copy_from_slice(&body_size.to_be_bytes());
        header
    }

    #[test]
    fn a_body_over_the_largest_of_its_channel_is_left_out_and_its_length_is_named() {
        let channels = GuardedChannels::default();
        channels.set_largest_body(1, 8);
        let frames = GuardedFrames {
            channels,
            ..GuardedFrames::default()
        };
        let headers = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 << 5, 0];
        let headers = [&headers[..], &[0, 0, 0, 4], b"\x01at\x01"].concat();
        let bytes = [
            frame(METHOD_FRAME, 1, &deliver(b"k")),
            frame(HEADER_FRAME, 1, &announcing(headers, 9)),
            frame(BODY_FRAME, 1, b"12345"),
            frame(HEADER_FRAME, 2, &announcing(header(b"two"), 9)),
            frame(BODY_FRAME, 1, b"6789"),
            frame(BODY_FRAME, 2, b"123456789"),
            frame(METHOD_FRAME, 1, &deliver(b"k")),
            frame(HEADER_FRAME, 1, &announcing(header(b"three"), 8)),
            frame(BODY_FRAME, 1, b"12345678"),
        ]
        .concat();
        let frames = decoded(&guarded_by(frames, &bytes, 5, 3));
        let seen: Vec<_> = frames
            .iter()
            .map(|frame| match frame {
                AMQPFrame::Header(channel, header) => {
                    let headers = header.properties.headers().as_ref();
                    let left_out = headers.map(|headers| {
                        assert!(headers.inner().contains_key("a"), "the others stay");
                        headers.inner()[header_frame::LEFT_OUT_HEADER].as_long_long_int()
                    });
                    format!("header {channel} {} {left_out:?}", header.body_size)
                }
                AMQPFrame::Body(channel, body) => format!("body {channel} {}", body.len()),
                AMQPFrame::Method(channel, _) => format!("deliver {channel}"),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            seen,
            [
                "deliver 1",
                "header 1 0 Some(Some(9))",
                "header 2 9 None",
                "body 2 9",
                "deliver 1",
                "header 1 8 None",
                "body 1 8",
            ]
        );
    }

    proptest! {
        #[test]
        fn frames_that_can_be_decoded_pass_as_they_are(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..6),
            pushed in 1_usize..400,
            taken in 1_usize..400,
        ) {
            let frames = bodies.iter().flat_map(|body| {
                [
                    frame(METHOD_FRAME, 1, &deliver(b"key")),
                    frame(HEADER_FRAME, 1, &header(b"id")),
                    frame(3, 1, body),
                    frame(8, 0, b""),
                ]
            });
            let bytes = frames.collect::<Vec<_>>().concat();
            prop_assert_eq!(guarded(&bytes, pushed, taken), bytes);
        }
    }
}
