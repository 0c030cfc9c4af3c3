//! What one channel has published and not yet judged, in the order it was published.
//!
//! The client library hands a returned message to an *arbitrary* confirm: whichever completes next. The
//! broker sends returns in order of publishing, each before the confirm of its own message. So once
//! every publication up to one is confirmed, all returns up to it have been handed out, and by then a
//! returned message has been recognised by what it is: routing key, body, headers, properties (delayed
//! messages carry their unique `x-delay-id`; of equal ones it does not matter which was returned).
//! Therefore verdicts are given to the confirmed *prefix* only. Nothing of the user's is altered.

use std::collections::VecDeque;

use bytes::Bytes;
use lapin::BasicProperties;

use super::lane::{refused, unknown};
use crate::domain::{Text, Verdict};
use crate::domain::verdict::Refusal;
use crate::egress::Publication;

/// The broker's word on one publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Ack,
    Nack,
}

/// A returned message, as far as it tells which one it was.
pub(super) struct Returned<'a> {
    pub(super) routing_key: &'a str,
    pub(super) body: &'a [u8],
    pub(super) properties: &'a BasicProperties,
    pub(super) text: String,
}

#[derive(Debug)]
struct Slot {
    publication: Publication,
    /// What it was published under and with.
    routing_key: Text,
    body: Bytes,
    /// When, monotonic microseconds.
    handed_us: i64,
    word: Option<Word>,
    /// Why it came back, if it did.
    returned: Option<String>,
    /// It may be the one that came back, or another.
    doubtful: bool,
}

/// Publications of one channel, in order. Numbers count from 0 and are never used twice.
#[derive(Debug, Default)]
pub(super) struct Window {
    base: u64,
    slots: VecDeque<Slot>,
}

impl Window {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Number of the next publication.
    pub(super) fn next_number(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    /// Enters a publication that is handed to the broker now.
    pub(super) fn enter(
        &mut self,
        publication: Publication,
        routing_key: Text,
        body: Bytes,
        handed_us: i64,
    ) {
        let (word, returned, doubtful) = (None, None, false);
        self.slots.push_back(Slot { publication, routing_key, body, handed_us, word, returned, doubtful });
    }

    /// When the oldest was handed over.
    pub(super) fn oldest_us(&self) -> Option<i64> {
        self.slots.front().map(|slot| slot.handed_us)
    }

    /// Counts all waits from now: until now nobody could answer.
    pub(super) fn restart_waits(&mut self, now_us: i64) {
        self.slots.iter_mut().for_each(|slot| slot.handed_us = now_us);
    }

    /// The broker's word on a publication.
    pub(super) fn heard(&mut self, number: u64, word: Word) {
        let slot = number.checked_sub(self.base).and_then(|at| self.slots.get_mut(at as usize));
        if let Some(slot) = slot {
            slot.word = Some(word);
        }
    }

    /// Finds out which publication a returned message was; `properties` says what one was published
    /// with. Returns whether it is certain; if not, all that it may have been are in doubt.
    pub(super) fn came_back(
        &mut self,
        returned: Returned<'_>,
        properties: impl Fn(&Publication) -> Option<BasicProperties>,
    ) -> bool {
        let mut alike = Vec::new();
        for (at, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.returned.is_none()) {
            if slot.routing_key.as_str() != returned.routing_key || slot.body != returned.body {
                continue;
            }
            if properties(&slot.publication).as_ref() == Some(returned.properties) {
                self.slots[at].returned = Some(returned.text);
                return true;
            }
            alike.push(at);
        }
        match alike[..] {
            [one] => {
                self.slots[one].returned = Some(returned.text);
                true
            }
            [] => {
                self.slots.iter_mut().for_each(|slot| slot.doubtful = true);
                false
            }
            _ => {
                for at in alike {
                    self.slots[at].doubtful = true;
                }
                false
            }
        }
    }

    /// Takes out the next publication whose verdict is certain. All returns handed out so far must have
    /// been told to [`Self::came_back`] before.
    pub(super) fn judge(&mut self) -> Option<(Publication, Verdict)> {
        let word = self.slots.front()?.word?;
        let slot = self.slots.pop_front()?;
        self.base += 1;
        let verdict = match (slot.returned, word) {
            (Some(text), _) => refused(Refusal::Unroutable, &text),
            (None, Word::Nack) => refused(Refusal::Unavailable, "the broker refused to store it (nack)"),
            (None, Word::Ack) if slot.doubtful => {
                unknown("a message was returned that cannot be told from this one")
            }
            (None, Word::Ack) => Verdict::Confirmed,
        };
        Some((slot.publication, verdict))
    }

    /// Takes out everything, with what is certain of it: the channel is gone.
    pub(super) fn abandon(&mut self) -> Vec<(Publication, Option<Verdict>)> {
        let judge = |slot: Slot| {
            let verdict = match (slot.returned, slot.word) {
                (Some(text), _) => Some(refused(Refusal::Unroutable, &text)),
                (None, Some(Word::Nack)) => Some(refused(Refusal::Unavailable, "nack")),
                (None, _) => None,
            };
            (slot.publication, verdict)
        };
        self.base += self.slots.len() as u64;
        std::mem::take(&mut self.slots).into_iter().map(judge).collect()
    }
}
