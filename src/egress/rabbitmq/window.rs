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
use crate::domain::verdict::Refusal;
use crate::domain::{Text, Verdict};
use crate::egress::Publication;

/// What a nack says. It is no refusal: of several queues that a message was routed to, one has not taken it; the others
/// may have.
const NACK: &str = "a queue that it was routed to did not take it (nack)";

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
    pub(super) fn enter(&mut self, publication: Publication, routing_key: Text, body: Bytes, handed_us: i64) {
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
            (None, Word::Nack) => unknown(NACK),
            (None, Word::Ack) if slot.doubtful => {
                unknown("a message was returned that cannot be told from this one")
            }
            (None, Word::Ack) => Verdict::Confirmed,
        };
        Some((slot.publication, verdict))
    }

    /// Takes out everything, with what the broker said of it that still holds: the channel is gone.
    pub(super) fn abandon(&mut self) -> Vec<(Publication, Option<Verdict>)> {
        let judge = |slot: Slot| {
            let verdict = match (slot.returned, slot.word) {
                (Some(text), _) => Some(refused(Refusal::Unroutable, &text)),
                (None, Some(Word::Nack)) => Some(unknown(NACK)),
                (None, _) => None,
            };
            (slot.publication, verdict)
        };
        self.base += self.slots.len() as u64;
        std::mem::take(&mut self.slots).into_iter().map(judge).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::{Entry, Message, Origin, RoutingKey, Target, UnixMs};

    fn publication(ticket: u64) -> Publication {
        let message =
            Message { origin: Origin::Rabbitmq, key: None, body: None, headers: vec![], properties: None };
        let entry = Entry::new(UnixMs(0), message);
        let (connection, exchange) = (String::new(), String::new());
        let target = Arc::new(Target::Rabbitmq { connection, exchange, routing_key: RoutingKey::Key });
        Publication::alone(entry, target, ticket, &Arc::default(), 0)
    }

    /// Enters publications of these bodies; each was published with its ticket as message id.
    fn window(bodies: &[&'static str]) -> Window {
        let mut window = Window::default();
        for (ticket, body) in bodies.iter().enumerate() {
            let body = Bytes::from_static(body.as_bytes());
            window.enter(publication(ticket as u64), "key".into(), body, 0);
        }
        window
    }

    fn properties(id: u64) -> BasicProperties {
        BasicProperties::default().with_message_id(id.to_string().into())
    }

    fn came_back(window: &mut Window, body: &str, properties: &BasicProperties) -> bool {
        let returned =
            Returned { routing_key: "key", body: body.as_bytes(), properties, text: "no route".into() };
        window.came_back(returned, |publication| Some(self::properties(publication.ticket())))
    }

    fn judged(window: &mut Window) -> String {
        std::iter::from_fn(|| window.judge())
            .map(|(publication, verdict)| {
                let letter = match verdict {
                    Verdict::Confirmed => 'c',
                    Verdict::Unknown { .. } => '?',
                    Verdict::Refused { reason: Refusal::Unroutable, .. } => 'u',
                    Verdict::Refused { .. } => 'n',
                    Verdict::NotTried => '-',
                };
                format!("{}{letter}", publication.ticket())
            })
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn only_the_confirmed_prefix_is_judged() {
        let mut window = window(&["a", "b", "c"]);
        window.heard(2, Word::Ack);
        window.heard(1, Word::Nack);
        assert_eq!(judged(&mut window), "");
        window.heard(0, Word::Ack);
        assert_eq!(judged(&mut window), "0c 1? 2c");
        assert_eq!((window.next_number(), window.is_empty()), (3, true));
    }

    #[test]
    fn a_return_is_recognised_by_its_properties_then_by_its_body() {
        let mut window = window(&["same", "same", "other"]);
        assert!(came_back(&mut window, "same", &properties(1)));
        // Not as it went out, but only one has this body.
        assert!(came_back(&mut window, "other", &properties(99)));
        (0..3).for_each(|number| window.heard(number, Word::Ack));
        assert_eq!(judged(&mut window), "0c 1u 2u");
    }

    #[test]
    fn what_cannot_be_told_apart_is_not_called_confirmed() {
        let mut window = window(&["same", "same", "other"]);
        assert!(!came_back(&mut window, "same", &properties(99)));
        (0..3).for_each(|number| window.heard(number, Word::Ack));
        assert_eq!(judged(&mut window), "0? 1? 2c");
        let mut window = self::window(&["a", "b"]);
        assert!(!came_back(&mut window, "never published", &properties(0)));
        (0..2).for_each(|number| window.heard(number, Word::Ack));
        assert_eq!(judged(&mut window), "0? 1?");
    }

    #[test]
    fn a_lost_channel_leaves_only_what_the_broker_has_answered() {
        let mut window = window(&["a", "b", "c", "d"]);
        window.heard(1, Word::Nack);
        window.heard(2, Word::Ack);
        assert!(came_back(&mut window, "d", &properties(3)));
        let certain: Vec<_> = window.abandon().into_iter().map(|(_, verdict)| verdict.is_some()).collect();
        assert_eq!(certain, [false, true, false, true], "c's return may still have been on its way");
        assert_eq!(window.next_number(), 4);
    }
}
