//! Publications of one channel without a verdict, in the order they were published.
//!
//! The client library attaches a returned message to an *arbitrary* confirm: the one that completes next. The broker
//! sends returns in the order of publishing, each before the confirm of its own message. So once all publications up to
//! one are confirmed, all returns up to it have come. By then each returned message has been recognised by its content:
//! routing key, body, headers, properties. (Delayed messages carry their unique `x-delay-id`; of equal messages it does
//! not matter which one was returned.) Therefore verdicts are given to the confirmed *prefix* only. No message of a
//! user is altered for this.

use std::collections::VecDeque;

use bytes::Bytes;
use lapin::BasicProperties;

use super::lane::{refused, unknown};
use crate::domain::verdict::Refusal;
use crate::domain::{Text, Verdict};
use crate::egress::Publication;

/// Error of a nack. A nack is no refusal: one of the queues that the message was routed to has not taken it, but others
/// may have.
const NACK_TEXT: &str = "a queue that it was routed to did not take it (nack)";

/// Answer of the broker to one publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BrokerAnswer {
    Ack,
    Nack,
}

/// Fields of a returned message by which its publication is found.
pub(super) struct ReturnedMessage<'a> {
    pub(super) routing_key: &'a str,
    pub(super) body: &'a [u8],
    pub(super) properties: &'a BasicProperties,
    pub(super) text: String,
}

#[derive(Debug)]
struct WindowSlot {
    publication: Publication,
    /// Routing key as published.
    routing_key: Text,
    body: Bytes,
    /// Moment of publishing, monotonic microseconds.
    published_us: i64,
    answer: Option<BrokerAnswer>,
    /// Reason of the return, if the message was returned.
    returned: Option<String>,
    /// True if a returned message may be this one, or another.
    doubtful: bool,
}

/// Publications of one channel without a verdict, in order. Their numbers count from 0 and are never used twice.
#[derive(Debug, Default)]
pub(super) struct ConfirmWindow {
    base: u64,
    slots: VecDeque<WindowSlot>,
}

impl ConfirmWindow {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The number of the next publication.
    pub(super) fn next_number(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    /// Adds a publication that is published now.
    pub(super) fn enter(
        &mut self,
        publication: Publication,
        routing_key: Text,
        body: Bytes,
        published_us: i64,
    ) {
        self.slots.push_back(WindowSlot {
            publication,
            routing_key,
            body,
            published_us,
            answer: None,
            returned: None,
            doubtful: false,
        });
    }

    /// The moment at which the oldest publication was published.
    pub(super) fn oldest_us(&self) -> Option<i64> {
        self.slots.front().map(|slot| slot.published_us)
    }

    /// Restarts all waits for confirms: until now the broker could not answer.
    pub(super) fn restart_waits(&mut self, now_us: i64) {
        self.slots
            .iter_mut()
            .for_each(|slot| slot.published_us = now_us);
    }

    /// Notes the answer of the broker to a publication.
    pub(super) fn record_answer(&mut self, number: u64, answer: BrokerAnswer) {
        let slot = number
            .checked_sub(self.base)
            .and_then(|at| self.slots.get_mut(at as usize));
        if let Some(slot) = slot {
            slot.answer = Some(answer);
        }
    }

    /// Marks the publication that a returned message was. `properties` returns the properties as published. Returns
    /// false if it is not certain which publication it was; all candidates are in doubt then.
    pub(super) fn mark_returned(
        &mut self,
        returned: ReturnedMessage<'_>,
        properties: impl Fn(&Publication) -> Option<BasicProperties>,
    ) -> bool {
        let mut alike = Vec::new();
        for (at, slot) in self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.returned.is_none())
        {
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

    /// Takes out the next publication whose verdict is certain. Call [`Self::mark_returned`] with all returns that have
    /// come before this.
    pub(super) fn judge(&mut self) -> Option<(Publication, Verdict)> {
        let answer = self.slots.front()?.answer?;
        let slot = self.slots.pop_front()?;
        self.base += 1;
        let verdict = match (slot.returned, answer) {
            (Some(text), _) => refused(Refusal::Unroutable, &text),
            (None, BrokerAnswer::Nack) => unknown(NACK_TEXT),
            (None, BrokerAnswer::Ack) if slot.doubtful => {
                unknown("a returned message may be this one or another")
            }
            (None, BrokerAnswer::Ack) => Verdict::Confirmed,
        };
        Some((slot.publication, verdict))
    }

    /// Takes out all publications, because the channel is gone. Each has a verdict if the answers of the broker
    /// suffice.
    pub(super) fn abandon(&mut self) -> Vec<(Publication, Option<Verdict>)> {
        let judge = |slot: WindowSlot| {
            let verdict = match (slot.returned, slot.answer) {
                (Some(text), _) => Some(refused(Refusal::Unroutable, &text)),
                (None, Some(BrokerAnswer::Nack)) => Some(unknown(NACK_TEXT)),
                (None, _) => None,
            };
            (slot.publication, verdict)
        };
        self.base += self.slots.len() as u64;
        std::mem::take(&mut self.slots)
            .into_iter()
            .map(judge)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::{Entry, Message, Origin, RoutingKey, Target, UnixMs};

    fn publication(ticket: u64) -> Publication {
        let message = Message {
            origin: Origin::Rabbitmq,
            key: None,
            body: None,
            headers: vec![],
            properties: None,
        };
        let entry = Entry::new(UnixMs(0), message);
        let target = Arc::new(Target::Rabbitmq {
            connection: String::new(),
            exchange: String::new(),
            routing_key: RoutingKey::Key,
        });
        Publication::alone(entry, target, ticket, &Arc::default(), 0)
    }

    /// Enters publications of these bodies; each was published with its ticket as message id.
    fn window(bodies: &[&'static str]) -> ConfirmWindow {
        let mut window = ConfirmWindow::default();
        for (ticket, body) in bodies.iter().enumerate() {
            let body = Bytes::from_static(body.as_bytes());
            window.enter(publication(ticket as u64), "key".into(), body, 0);
        }
        window
    }

    fn properties(id: u64) -> BasicProperties {
        BasicProperties::default().with_message_id(id.to_string().into())
    }

    fn mark_returned(window: &mut ConfirmWindow, body: &str, properties: &BasicProperties) -> bool {
        let returned = ReturnedMessage {
            routing_key: "key",
            body: body.as_bytes(),
            properties,
            text: "no route".into(),
        };
        window.mark_returned(returned, |publication| {
            Some(self::properties(publication.ticket()))
        })
    }

    fn judged(window: &mut ConfirmWindow) -> String {
        std::iter::from_fn(|| window.judge())
            .map(|(publication, verdict)| {
                let letter = match verdict {
                    Verdict::Confirmed => 'c',
                    Verdict::Unknown { .. } | Verdict::Interrupted { .. } => '?',
                    Verdict::Refused {
                        reason: Refusal::Unroutable,
                        ..
                    } => 'u',
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
        window.record_answer(2, BrokerAnswer::Ack);
        window.record_answer(1, BrokerAnswer::Nack);
        assert_eq!(judged(&mut window), "");
        window.record_answer(0, BrokerAnswer::Ack);
        assert_eq!(judged(&mut window), "0c 1? 2c");
        assert_eq!((window.next_number(), window.is_empty()), (3, true));
    }

    #[test]
    fn a_return_is_recognised_by_its_properties_then_by_its_body() {
        let mut window = window(&["same", "same", "other"]);
        assert!(mark_returned(&mut window, "same", &properties(1)));
        // The properties differ, but only one publication has this body.
        assert!(mark_returned(&mut window, "other", &properties(99)));
        (0..3).for_each(|number| window.record_answer(number, BrokerAnswer::Ack));
        assert_eq!(judged(&mut window), "0c 1u 2u");
    }

    #[test]
    fn what_cannot_be_told_apart_is_not_called_confirmed() {
        let mut window = window(&["same", "same", "other"]);
        assert!(!mark_returned(&mut window, "same", &properties(99)));
        (0..3).for_each(|number| window.record_answer(number, BrokerAnswer::Ack));
        assert_eq!(judged(&mut window), "0? 1? 2c");
        let mut window = self::window(&["a", "b"]);
        assert!(!mark_returned(
            &mut window,
            "never published",
            &properties(0)
        ));
        (0..2).for_each(|number| window.record_answer(number, BrokerAnswer::Ack));
        assert_eq!(judged(&mut window), "0? 1?");
    }

    #[test]
    fn a_lost_channel_leaves_only_what_the_broker_has_answered() {
        let mut window = window(&["a", "b", "c", "d"]);
        window.record_answer(1, BrokerAnswer::Nack);
        window.record_answer(2, BrokerAnswer::Ack);
        assert!(mark_returned(&mut window, "d", &properties(3)));
        let certain: Vec<_> = window
            .abandon()
            .into_iter()
            .map(|(_, verdict)| verdict.is_some())
            .collect();
        assert_eq!(
            certain,
            [false, true, false, true],
            "c's return may still have been on its way"
        );
        assert_eq!(window.next_number(), 4);
    }
}
