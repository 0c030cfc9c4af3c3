//! Loop detection: a message that a route publishes may come in on the same route again, by a binding or by
//! another relay that faces this one. Memory is bounded, and all but the lock is pure: times are arguments.
//!
//! A delayed message carries `x-delay-due` once it was published. If it comes in without a new delay header it
//! passes through unchanged, so the same message a second time has gone round. A message that was never delayed
//! carries no mark, and equal messages may be meant: the same content at a rate that people do not send is
//! reported, and not stopped.

use std::collections::HashMap;
use std::fmt::Write;

use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

use crate::domain::message::stamped;
use crate::domain::{HeaderValue, Message};

/// Passes after which a marked message is stopped.
const MAX_PASSES: u32 = 8;
/// Time for which a marked message is remembered after it passed, microseconds: at least this, at most twice
/// this.
const MARKED_WINDOW_US: i64 = 60_000_000;
/// Messages of one content within [`REPEATED_WINDOW_US`] that are worth a report.
const MIN_REPEATS: u32 = 1000;
const REPEATED_WINDOW_US: i64 = 10_000_000;
/// Most contents in one window. A full window ends early.
const MAX_CONTENTS: usize = 8192;
/// The same of marked ones: as many may go round at once, since a burst that a mistaken binding brings back is one of the
/// backlog's size. Some 16 bytes each.
const MAX_MARKED: usize = 1 << 18;

/// The judgement on a passing message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    /// Nothing is odd.
    Usual,
    /// The message was delayed before, and passes again.
    Returned,
    /// The message was delayed before, and has passed so often that it is stopped.
    Looping,
    /// The same content, never delayed, has passed very often. Reported once a window.
    Repeated,
}

/// Messages that passed through one route lately, over all of its sources.
#[derive(Debug, Default)]
pub(super) struct LoopWatch(Mutex<LoopCounts>);

#[derive(Debug, Default)]
struct LoopCounts {
    marked: ContentCounts,
    contents: ContentCounts,
}

/// Counts by content hash, of this window and of the one before it.
#[derive(Debug, Default)]
struct ContentCounts {
    current: HashMap<u64, u32>,
    previous: HashMap<u64, u32>,
    began_us: i64,
}

impl LoopWatch {
    /// Counts a passing message, and judges it.
    pub(super) fn pass(&self, message: &Message, now_us: i64) -> Passage {
        let is_marked = message
            .headers
            .iter()
            .any(|h| h.name.as_str().eq_ignore_ascii_case(stamped::DUE));
        let hash = content_hash(message, is_marked);
        let mut counts = self.0.lock();
        if !is_marked {
            counts
                .contents
                .rotate(now_us, REPEATED_WINDOW_US, MAX_CONTENTS);
            let count = counts.contents.count(hash, 0);
            return if count == MIN_REPEATS {
                Passage::Repeated
            } else {
                Passage::Usual
            };
        }
        counts.marked.rotate(now_us, MARKED_WINDOW_US, MAX_MARKED);
        let before = counts.marked.previous.remove(&hash).unwrap_or_default();
        match counts.marked.count(hash, before) {
            0 | 1 => Passage::Usual,
            2..=MAX_PASSES => Passage::Returned,
            _ => {
                // Forget the message: a person may redrive it, and it may pass again then.
                counts.marked.current.remove(&hash);
                Passage::Looping
            }
        }
    }
}

impl ContentCounts {
    /// Begins the next window once this one is over or full.
    fn rotate(&mut self, now_us: i64, window_us: i64, most: usize) {
        let age_us = now_us - self.began_us;
        if age_us < window_us && self.current.len() < most {
            return;
        }
        self.previous = std::mem::take(&mut self.current);
        if age_us >= 2 * window_us {
            self.previous.clear();
        }
        self.began_us = now_us;
    }

    /// Counts one more message, and `before` from the window before. Returns the sum.
    fn count(&mut self, hash: u64, before: u32) -> u32 {
        let count = self.current.entry(hash).or_default();
        *count = count.saturating_add(before).saturating_add(1);
        *count
    }
}

/// Hashes a marked message's marks and body: a broker on the way may add headers, and another relay that
/// publishes the message twice counts that in its marks. Hashes all of any other message.
fn content_hash(message: &Message, is_marked: bool) -> u64 {
    let mut hash = Xxh3::new();
    let key = message.key.as_ref().filter(|_| !is_marked);
    for part in [key, message.body.as_ref()] {
        let bytes = part.map(|part| &part[..]).unwrap_or_default();
        hash.update(&(bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    }
    for header in message
        .headers
        .iter()
        .filter(|header| !is_marked || stamped::is_one(&header.name))
    {
        hash.update(header.name.bytes());
        match &header.value {
            HeaderValue::Bytes(bytes) | HeaderValue::LongString(bytes) => hash.update(bytes),
            // Writing into a hash cannot fail.
            other => drop(write!(HashWriter(&mut hash), "{other:?}")),
        }
    }
    hash.digest()
}

/// Writes text into a hash.
struct HashWriter<'a>(&'a mut Xxh3);

impl Write for HashWriter<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Header, UnixMs, testing};

    fn message(body: &'static [u8], due: Option<i64>) -> Message {
        let mut message = testing::entry(UnixMs(0), body).message;
        if let Some(due) = due {
            message
                .headers
                .push(Header::new("X-Delay-Due", HeaderValue::I64(due)));
        }
        message
    }

    #[test]
    fn a_marked_message_is_told_from_its_second_pass_on_and_stopped_after_the_eighth() {
        let watch = LoopWatch::default();
        let passes: Vec<_> = (0..9)
            .map(|n| watch.pass(&message(b"m", Some(7)), n * 50_000_000))
            .collect();
        let mut expected = vec![Passage::Returned; 9];
        (expected[0], expected[8]) = (Passage::Usual, Passage::Looping);
        assert_eq!(passes, expected, "slowly too");
        assert_eq!(
            watch.pass(&message(b"m", Some(7)), 450_000_000),
            Passage::Usual,
            "it may be redriven"
        );
        assert_eq!(
            watch.pass(&message(b"m", Some(8)), 450_000_000),
            Passage::Usual,
            "another one"
        );
        assert_eq!(
            watch.pass(&message(b"n", Some(8)), 450_000_000),
            Passage::Usual,
            "another body"
        );
    }

    #[test]
    fn a_whole_backlog_that_goes_round_is_stopped_message_by_message() {
        let watch = LoopWatch::default();
        let messages: Vec<_> = (0..100_000).map(|due| message(b"m", Some(due))).collect();
        let mut stopped = 0;
        for round in 0..9 {
            for message in &messages {
                let passage = watch.pass(message, round * 1_000_000);
                stopped += usize::from(passage == Passage::Looping);
            }
        }
        assert_eq!(stopped, messages.len());
    }

    #[test]
    fn what_a_broker_adds_on_the_way_does_not_hide_a_marked_message() {
        let watch = LoopWatch::default();
        let mut again = message(b"m", Some(7));
        assert_eq!(watch.pass(&again, 0), Passage::Usual);
        again
            .headers
            .push(Header::new("x-death", HeaderValue::I64(1)));
        assert_eq!(watch.pass(&again, 1), Passage::Returned);
        again
            .headers
            .push(Header::new(stamped::ATTEMPT, HeaderValue::I64(2)));
        assert_eq!(
            watch.pass(&again, 2),
            Passage::Usual,
            "another relay's second publish of it"
        );
        again.headers.pop();
        assert_eq!(
            watch.pass(&again, 200_000_000),
            Passage::Usual,
            "minutes later nobody knows it"
        );
    }

    #[test]
    fn equal_messages_without_a_mark_are_told_once_a_window_and_never_stopped() {
        let watch = LoopWatch::default();
        let mut told = 0;
        for n in 0..3 * i64::from(MIN_REPEATS) {
            let passage = watch.pass(&message(b"ping", None), n * 1000);
            assert!(matches!(passage, Passage::Usual | Passage::Repeated));
            told += u32::from(passage == Passage::Repeated);
        }
        assert_eq!(told, 1);
        let slow = (0..3000)
            .filter(|n| watch.pass(&message(b"slow", None), n * 1_000_000) != Passage::Usual);
        assert_eq!(slow.count(), 0, "one a second is nobody's loop");
    }

    #[test]
    fn contents_differ_by_key_body_and_headers_and_are_bounded() {
        let plain = message(b"m", None);
        let keyed = Message {
            key: Some("k".into()),
            ..plain.clone()
        };
        let mut headed = plain.clone();
        headed
            .headers
            .push(Header::new("a", HeaderValue::Bool(true)));
        let hashes = [&plain, &keyed, &headed].map(|message| content_hash(message, false));
        assert!(hashes[0] != hashes[1] && hashes[0] != hashes[2] && hashes[1] != hashes[2]);
        let mut counts = ContentCounts::default();
        for hash in 0..5 * MAX_CONTENTS as u64 {
            counts.rotate(0, REPEATED_WINDOW_US, MAX_CONTENTS);
            counts.count(hash, 0);
        }
        assert!(counts.current.len() + counts.previous.len() <= 2 * MAX_CONTENTS);
    }
}
