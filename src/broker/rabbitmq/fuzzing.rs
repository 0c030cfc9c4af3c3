//! Entry points for fuzzing: frames behind the guard, and content headers over the wire.

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, WriteContext, gen_frame, parse_frame};
use lapin::BasicProperties;

use super::frame_guard;
use super::header_frame::UNREADABLE_HEADER;

/// Class of content headers.
const BASIC_CLASS: u16 = 60;

/// Returns the bytes that the client library gets of these bytes of a broker, read and taken in pieces of these sizes.
///
/// # Panics
/// If a size is 0.
pub fn guarded(bytes: &[u8], read: usize, taken: usize) -> Vec<u8> {
    frame_guard::guarded(bytes, read, taken)
}

/// Decodes one frame as the client library does. Returns it with the bytes behind it; `None` if it cannot be decoded.
pub fn decode_frame(bytes: &[u8]) -> Option<(AMQPFrame, &[u8])> {
    parse_frame(bytes).ok().map(|(rest, frame)| (frame, rest))
}

/// Writes properties as the client library does, and reads them as it does behind the guard. Returns the number of bytes
/// of their frame and what was read; `None` if they have the header that marks unreadable ones.
///
/// # Panics
/// If the library cannot write them, or the guard or the library cannot read them.
pub fn over_the_wire(properties: &BasicProperties) -> Option<(usize, BasicProperties)> {
    let header = AMQPContentHeader {
        class_id: BASIC_CLASS,
        body_size: 0,
        properties: properties.clone(),
    };
    let frame = AMQPFrame::Header(1, header);
    let written = match gen_frame::<Vec<u8>>(&frame)(WriteContext::from(Vec::new())) {
        Ok(context) => context.into_inner().0,
        Err(error) => panic!("the client cannot write {properties:?}: {error:?}"),
    };
    if written
        .windows(UNREADABLE_HEADER.len())
        .any(|part| part == UNREADABLE_HEADER.as_bytes())
    {
        return None;
    }
    assert_eq!(
        guarded(&written, written.len(), written.len()),
        written,
        "the guard replaced {properties:?}"
    );
    match decode_frame(&written) {
        Some((AMQPFrame::Header(1, read), [])) => Some((written.len(), read.properties)),
        other => panic!("{properties:?} came back as {other:?}"),
    }
}
