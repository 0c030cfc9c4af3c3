//! Messages that go round: what a route publishes comes in on it again, by a binding or by another relay that faces
//! this one. Bounded, and pure but for the lock: moments are arguments.
//!
//! A delayed message carries `x-delay-due` once it was published. Coming in without a new delay header it passes
//! through unchanged, so the same one a second time has gone round. What was never delayed carries no mark, and
//! equal messages may be meant: the same content at a rate that people do not send it is told, and not stopped.

use std::collections::HashMap;
use std::fmt::Write;

use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

use crate::domain::message::stamped;
use crate::domain::{HeaderValue, Message};

/// A marked message that has passed this often goes no further.
const MAX_PASSES: u32 = 8;
/// How long a marked message is known after it passed, microseconds; at least this long, at most twice.
const MARKED_WINDOW_US: i64 = 60_000_000;
/// So many of one content within [`REPEATED_WINDOW_US`] are told.
const REPEATED: u32 = 1000;
const REPEATED_WINDOW_US: i64 = 10_000_000;
/// Most contents of one window; beyond it the window ends early.
const MOST_CONTENTS: usize = 8192;

/// What a passing message turns out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    /// Nothing is odd about it.
    Usual,
    /// A message that was delayed passes again: it goes round.
    Returned,
    /// It has gone round so often that it goes no further.
    Looping,
    /// The same content, never delayed, has come very often: once a window.
    Repeated,
}

/// What has passed through one route lately, over all its sources.
#[derive(Debug, Default)]
pub(super) struct LoopWatch(Mutex<Sketches>);

#[derive(Debug, Default)]
struct Sketches {
    marked: Sketch,
    contents: Sketch,
}

/// Counts by content: of this window, and of the one before it.
#[derive(Debug, Default)]
struct Sketch {
    current: HashMap<u64, u32>,
    previous: HashMap<u64, u32>,
    began_us: i64,
}

impl LoopWatch {
    /// Counts a message that passes through, and says what it is.
    pub(super) fn pass(&self, message: &Message, now_us: i64) -> Passage {
        let is_marked = message.headers.iter().any(|h| h.name.as_str().eq_ignore_ascii_case(stamped::DUE));
        let hash = content_hash(message, is_marked);
        let mut sketches = self.0.lock();
        if !is_marked {
            sketches.contents.turn(now_us, REPEATED_WINDOW_US);
            let count = sketches.contents.count(hash, 0);
            return if count == REPEATED { Passage::Repeated } else { Passage::Usual };
        }
        sketches.marked.turn(now_us, MARKED_WINDOW_US);
        let before = sketches.marked.previous.remove(&hash).unwrap_or_default();
        match sketches.marked.count(hash, before) {
            0 | 1 => Passage::Usual,
            2..=MAX_PASSES => Passage::Returned,
            _ => {
                // Redriven by a person, it may pass again.
                sketches.marked.current.remove(&hash);
                Passage::Looping
            }
        }
    }
}

impl Sketch {
    /// Begins another window once this one is over or full.
    fn turn(&mut self, now_us: i64, window_us: i64) {
        let age_us = now_us - self.began_us;
        if age_us < window_us && self.current.len() < MOST_CONTENTS {
            return;
        }
        self.previous = std::mem::take(&mut self.current);
        if age_us >= 2 * window_us {
            self.previous.clear();
        }
        self.began_us = now_us;
    }

    /// One more, and so many from before; how many that are.
    fn count(&mut self, hash: u64, before: u32) -> u32 {
        let count = self.current.entry(hash).or_default();
        *count = count.saturating_add(before).saturating_add(1);
        *count
    }
}

/// Of a marked message its marks and its body: a broker on its way may add headers, and another relay that publishes
/// it twice counts that in its marks. Of any other message all of it.
fn content_hash(message: &Message, is_marked: bool) -> u64 {
    let mut hash = Xxh3::new();
    let key = message.key.as_ref().filter(|_| !is_marked);
    for part in [key, message.body.as_ref()] {
        let bytes = part.map(|part| &part[..]).unwrap_or_default();
        hash.update(&(bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    }
    for header in message.headers.iter().filter(|header| !is_marked || stamped::is_one(&header.name)) {
        hash.update(header.name.bytes());
        match &header.value {
            HeaderValue::Bytes(bytes) | HeaderValue::LongString(bytes) => hash.update(bytes),
            // Writing into a hash cannot fail.
            other => drop(write!(Hashed(&mut hash), "{other:?}")),
        }
    }
    hash.digest()
}

/// Text that goes into a hash.
struct Hashed<'a>(&'a mut Xxh3);

impl Write for Hashed<'_> {
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
            message.headers.push(Header::new("X-Delay-Due", HeaderValue::I64(due)));
        }
        message
    }

    #[test]
    fn a_marked_message_is_told_from_its_second_pass_on_and_stopped_after_the_eighth() {
        let watch = LoopWatch::default();
        let passes: Vec<_> = (0..9).map(|n| watch.pass(&message(b"m", Some(7)), n * 50_000_000)).collect();
        let mut expected = vec![Passage::Returned; 9];
        (expected[0], expected[8]) = (Passage::Usual, Passage::Looping);
        assert_eq!(passes, expected, "slowly too");
        assert_eq!(watch.pass(&message(b"m", Some(7)), 450_000_000), Passage::Usual, "it may be redriven");
        assert_eq!(watch.pass(&message(b"m", Some(8)), 450_000_000), Passage::Usual, "another one");
        assert_eq!(watch.pass(&message(b"n", Some(8)), 450_000_000), Passage::Usual, "another body");
    }

    #[test]
    fn what_a_broker_adds_on_the_way_does_not_hide_a_marked_message() {
        let watch = LoopWatch::default();
        let mut again = message(b"m", Some(7));
        assert_eq!(watch.pass(&again, 0), Passage::Usual);
        again.headers.push(Header::new("x-death", HeaderValue::I64(1)));
        assert_eq!(watch.pass(&again, 1), Passage::Returned);
        again.headers.push(Header::new(stamped::ATTEMPT, HeaderValue::I64(2)));
        assert_eq!(watch.pass(&again, 2), Passage::Usual, "another relay's second publish of it");
        again.headers.pop();
        assert_eq!(watch.pass(&again, 200_000_000), Passage::Usual, "minutes later nobody knows it");
    }

    #[test]
    fn equal_messages_without_a_mark_are_told_once_a_window_and_never_stopped() {
        let watch = LoopWatch::default();
        let mut told = 0;
        for n in 0..3 * i64::from(REPEATED) {
            let passage = watch.pass(&message(b"ping", None), n * 1000);
            assert!(matches!(passage, Passage::Usual | Passage::Repeated));
            told += u32::from(passage == Passage::Repeated);
        }
        assert_eq!(told, 1);
        let slow = (0..3000).filter(|n| watch.pass(&message(b"slow", None), n * 1_000_000) != Passage::Usual);
        assert_eq!(slow.count(), 0, "one a second is nobody's loop");
    }

    #[test]
    fn contents_differ_by_key_body_and_headers_and_are_bounded() {
        let plain = message(b"m", None);
        let keyed = Message { key: Some("k".into()), ..plain.clone() };
        let mut headed = plain.clone();
        headed.headers.push(Header::new("a", HeaderValue::Bool(true)));
        let hashes = [&plain, &keyed, &headed].map(|message| content_hash(message, false));
        assert!(hashes[0] != hashes[1] && hashes[0] != hashes[2] && hashes[1] != hashes[2]);
        let mut sketch = Sketch::default();
        for hash in 0..5 * MOST_CONTENTS as u64 {
            sketch.turn(0, REPEATED_WINDOW_US);
            sketch.count(hash, 0);
        }
        assert!(sketch.current.len() + sketch.previous.len() <= 2 * MOST_CONTENTS);
    }
}
