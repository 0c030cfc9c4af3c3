//! Publications of one channel that have no verdict, or no answer.
//!
//! Each publication is judged by its own answer, whatever became of those before it. An answer alone does not say whether
//! its message was returned: the client library hands a waiting returned message to *whichever* confirm completes next.
//! A message is found by its content instead: routing key, body, headers, properties. (Delayed messages carry their
//! unique `x-delay-id`.) No message of a user is altered for this. So `Confirmed` needs proof that the message's own
//! return, if there is one, has been found before:
//!
//! - The broker sends the return of a message before the answer to it, on the same channel.
//! - The `FrameGuard` counts each return before the client library reads it, hence before it reads that answer. So a
//!   count that is read after the answer was seen includes the return.
//! - Each returned message that an answer brings is matched here, and counted. It is matched to its own publication, to
//!   one of equal content, or it makes all those doubtful that it may be.
//! - So while both counts are equal, the return of every answered publication has been matched. All answered ones are
//!   judged then. Otherwise they wait: the library hands out one return with each completed confirm, and every returned
//!   message has a confirm of its own, so the missing return comes with a confirm that is about to be seen.
//! - A count starts with its channel. The counts of other channels of the connection do not matter.
//!
//! Of equal messages one may be returned while another one hangs. While the return is matched to the one that has no
//! answer, it may be that of the other: an acknowledged message of equal content is `Unknown`, not `Confirmed`.
//!
//! A publication without an answer at its deadline gets the verdict `Unknown` and becomes a [`LateSlot`], without its
//! message, until its answer comes or the channel ends. A late slot counts for its routing key's share: a routing key
//! that hangs has no more publications and late slots than its share.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use lapin::BasicProperties;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::key_shares::{KeyShares, MAX_OUTSTANDING};
use super::lane::{not_confirmed, refused, unknown};
use crate::domain::verdict::Refusal;
use crate::domain::{Text, Verdict};
use crate::egress::{CONFIRM_DEADLINE, Publication};
use crate::mutants::{self, Mutant};

/// Error of a nack. A nack is no refusal: one of the queues that the message was routed to has not taken it, but others
/// may have.
const NACK_TEXT: &str = "a queue that it was routed to did not take it (nack)";
/// Error of a message that may have been returned.
const DOUBT_TEXT: &str = "a returned message may be this one or another";
/// Age from which on the broker has surely read a publication: it would have closed the channel by now if the message
/// were a reason to.
const SETTLED_US: i64 = 5_000_000;

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

/// A publication without a verdict.
#[derive(Debug)]
struct OpenSlot {
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

/// A publication that got its verdict at its deadline. It stays until it could be judged: its return may still come.
#[derive(Debug)]
struct LateSlot {
    routing_key: Text,
    fingerprint: Fingerprint,
    answered: bool,
    returned: bool,
}

/// Hashes of a message's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint {
    /// Of routing key and body.
    content: u128,
    /// Of headers and properties; `None` if they are not known.
    properties: Option<u128>,
}

/// A publication whose channel is gone.
#[derive(Debug)]
pub(super) struct AbandonedPublication {
    pub(super) publication: Publication,
    /// The verdict, if the answers of the broker suffice.
    pub(super) verdict: Option<Verdict>,
    /// True if the broker has surely read the message: it is no reason for the end of the channel.
    pub(super) was_read: bool,
}

/// The publications of one channel. Their numbers count from 0 in the order of publishing.
#[derive(Debug, Default)]
pub(super) struct ConfirmWindow {
    /// Number of the next publication.
    next: u64,
    open: BTreeMap<u64, OpenSlot>,
    /// All of them were published before those that are open.
    late: BTreeMap<u64, LateSlot>,
    /// Numbers of open and late publications with an answer.
    answered: VecDeque<u64>,
    /// Matched returns of publications that the broker has not acknowledged.
    early_returns: BTreeMap<u64, Fingerprint>,
    /// One more than the largest number that has an answer.
    read_end: u64,
    /// Number of returned messages that were matched.
    matched: u64,
    shares: KeyShares,
    /// Routing keys whose share has grown.
    released: Vec<Text>,
    /// Routing keys without a late publication, of which there was one.
    recovered: Vec<Text>,
}

impl Fingerprint {
    fn new(routing_key: &[u8], body: &[u8], properties: Option<&BasicProperties>) -> Self {
        let mut content = Xxh3::new();
        content.update(&(routing_key.len() as u64).to_be_bytes());
        content.update(routing_key);
        content.update(body);
        Self {
            content: content.digest128(),
            properties: properties.map(|all| xxh3_128(format!("{all:?}").as_bytes())),
        }
    }
}

impl ConfirmWindow {
    /// Reports whether every publication has its verdict.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Reports whether the broker still owes an answer.
    pub(super) fn owes_answers(&self) -> bool {
        self.shares.total() > 0
    }

    /// Reports whether no routing key has a share left, and only late slots are there.
    pub(super) fn is_exhausted(&self) -> bool {
        self.open.is_empty() && self.shares.total() >= MAX_OUTSTANDING
    }

    /// Reports whether one more message of this routing key may be published.
    pub(super) fn has_share(&self, routing_key: &[u8], now_us: i64) -> bool {
        self.shares.fits(routing_key, now_us)
    }

    /// Reports whether the broker has surely read all publications: one that is published now is alone.
    pub(super) fn is_settled(&self, now_us: i64) -> bool {
        self.open
            .range(self.read_end..)
            .all(|(&number, slot)| self.was_read(number, slot.published_us, now_us))
    }

    /// Reports whether the broker has surely read a publication: it has answered that one or a later one, or has had it
    /// for long.
    fn was_read(&self, number: u64, published_us: i64, now_us: i64) -> bool {
        number < self.read_end || published_us + SETTLED_US <= now_us
    }

    /// The routing keys whose share has grown. The caller empties it.
    pub(super) fn released(&mut self) -> &mut Vec<Text> {
        &mut self.released
    }

    /// The routing keys whose late publications are all answered. The caller empties it.
    pub(super) fn recovered(&mut self) -> &mut Vec<Text> {
        &mut self.recovered
    }

    /// The number of the next publication.
    pub(super) fn next_number(&self) -> u64 {
        self.next
    }

    /// Adds a publication that is published now.
    pub(super) fn enter(
        &mut self,
        publication: Publication,
        routing_key: Text,
        body: Bytes,
        published_us: i64,
    ) {
        self.shares.take(routing_key.bytes(), published_us);
        let slot = OpenSlot {
            publication,
            routing_key,
            body,
            published_us,
            answer: None,
            returned: None,
            doubtful: false,
        };
        self.open.insert(self.next, slot);
        self.next += 1;
    }

    /// The moment at which the oldest publication without a verdict was published.
    pub(super) fn oldest_us(&self) -> Option<i64> {
        self.open.values().next().map(|slot| slot.published_us)
    }

    /// Restarts all waits for confirms: until now the broker could not answer.
    pub(super) fn restart_waits(&mut self, now_us: i64) {
        self.open
            .values_mut()
            .for_each(|slot| slot.published_us = now_us);
    }

    /// Notes the answer of the broker to a publication.
    pub(super) fn record_answer(&mut self, number: u64, answer: BrokerAnswer, now_us: i64) {
        let routing_key = if let Some(slot) = self.open.get_mut(&number) {
            slot.answer = Some(answer);
            &slot.routing_key
        } else if let Some(slot) = self.late.get_mut(&number) {
            slot.answered = true;
            &slot.routing_key
        } else {
            return;
        };
        self.shares.note_answer(routing_key.bytes(), now_us);
        self.answered.push_back(number);
        // The broker acknowledges what it returns: the return of one that it nacks was that of an equal one.
        if answer == BrokerAnswer::Ack {
            self.early_returns.remove(&number);
        }
        self.read_end = self.read_end.max(number + 1);
    }

    fn release(&mut self, routing_key: Text) {
        self.shares.release(routing_key.bytes());
        if self.released.last() != Some(&routing_key) {
            self.released.push(routing_key);
        }
    }

    /// Marks the publication that a returned message was. `properties` returns the properties as published. Returns
    /// false if it is not certain which publication it was; all candidates are in doubt then.
    pub(super) fn mark_returned(
        &mut self,
        returned: ReturnedMessage<'_>,
        properties: impl Fn(&Publication) -> Option<BasicProperties>,
    ) -> bool {
        self.matched += 1;
        if mutants::is(Mutant::IgnoreReturned) {
            return true;
        }
        let ReturnedMessage {
            routing_key, body, ..
        } = returned;
        let mut exact = None;
        // The return of an equal one was matched to the one whose return this is.
        let mut is_known = false;
        let mut alike = Vec::new();
        for (number, slot) in &self.open {
            if slot.routing_key.as_str() != routing_key || slot.body != body {
                continue;
            }
            let is_candidate = slot.may_be_returned();
            if properties(&slot.publication).as_ref() == Some(returned.properties) {
                if is_candidate {
                    exact = Some(*number);
                    break;
                }
                is_known |= slot.returned.is_some();
            } else if is_candidate {
                alike.push(*number);
            }
        }
        let fingerprint = Fingerprint::new(routing_key.as_bytes(), body, Some(returned.properties));
        if exact.is_none() {
            for (number, slot) in &self.late {
                if slot.fingerprint == fingerprint {
                    if !slot.returned {
                        exact = Some(*number);
                        break;
                    }
                    is_known = true;
                } else if slot.fingerprint.content == fingerprint.content && !slot.returned {
                    alike.push(*number);
                }
            }
        }
        if exact.is_none() && is_known {
            return true;
        }
        match (exact, &alike[..]) {
            (Some(number), _) | (None, &[number]) => {
                self.set_returned(number, fingerprint, returned.text);
                true
            }
            (None, candidates) => {
                for (number, slot) in &mut self.open {
                    slot.doubtful |= candidates.is_empty() || candidates.contains(number);
                }
                false
            }
        }
    }

    fn set_returned(&mut self, number: u64, fingerprint: Fingerprint, text: String) {
        let is_answered = if let Some(slot) = self.open.get_mut(&number) {
            slot.returned = Some(text);
            slot.answer.is_some()
        } else if let Some(slot) = self.late.get_mut(&number) {
            slot.returned = true;
            slot.answered
        } else {
            return;
        };
        if !is_answered {
            // Those of publications that were nacked stay. There are hardly any.
            if self.early_returns.len() >= 2 * MAX_OUTSTANDING {
                self.early_returns.pop_first();
            }
            self.early_returns.insert(number, fingerprint);
        }
    }

    /// Takes out a publication whose verdict is certain. `returned` is the number of messages that the broker has
    /// returned, read after the last answer was noted. Call [`Self::mark_returned`] with all that came with answers.
    pub(super) fn judge(
        &mut self,
        returned: u64,
        properties: impl Fn(&Publication) -> Option<BasicProperties>,
    ) -> Option<(Publication, Verdict)> {
        if self.matched != returned {
            return None;
        }
        let oldest = self.open.values().next();
        if mutants::is(Mutant::VerdictsInOrder) && oldest.is_some_and(|slot| slot.answer.is_none())
        {
            return None;
        }
        let slot = loop {
            let number = self.answered.pop_front()?;
            match self.open.remove(&number) {
                Some(slot) => break slot,
                None => self.forget_late(number),
            }
        };
        let verdict = self.verdict_of(&slot, properties);
        let verdict = verdict.unwrap_or_else(|| unknown(DOUBT_TEXT));
        self.release(slot.routing_key);
        Some((slot.publication, verdict))
    }

    /// Forgets a late publication that is answered.
    fn forget_late(&mut self, number: u64) {
        let Some(LateSlot { routing_key, .. }) = self.late.remove(&number) else {
            return;
        };
        if !self.late.values().any(|one| one.routing_key == routing_key) {
            self.recovered.push(routing_key.clone());
        }
        self.release(routing_key);
    }

    /// The verdict that follows from the answers of the broker. `Confirmed` holds only while all returns are matched.
    fn verdict_of(
        &self,
        slot: &OpenSlot,
        properties: impl Fn(&Publication) -> Option<BasicProperties>,
    ) -> Option<Verdict> {
        match (&slot.returned, slot.answer) {
            (_, Some(BrokerAnswer::Nack)) => Some(unknown(NACK_TEXT)),
            (Some(text), _) => Some(refused(Refusal::Unroutable, text)),
            (None, Some(BrokerAnswer::Ack)) if self.is_in_doubt(slot, &properties) => {
                Some(unknown(DOUBT_TEXT))
            }
            (None, Some(BrokerAnswer::Ack)) => Some(Verdict::Confirmed(None)),
            (None, None) => None,
        }
    }

    /// Reports whether a matched return may be that of this publication.
    fn is_in_doubt(
        &self,
        slot: &OpenSlot,
        properties: impl Fn(&Publication) -> Option<BasicProperties>,
    ) -> bool {
        if self.early_returns.is_empty() {
            return slot.doubtful;
        }
        let own = slot.fingerprint(properties);
        slot.doubtful || self.early_returns.values().any(|early| *early == own)
    }

    /// Takes out the oldest publication if its deadline has passed, with its verdict. A late slot stays. If it has no
    /// answer, its routing key is returned.
    pub(super) fn take_overdue(
        &mut self,
        now_us: i64,
        properties: impl Fn(&Publication) -> Option<BasicProperties>,
    ) -> Option<(Publication, Verdict, Option<Text>)> {
        let deadline_us = CONFIRM_DEADLINE.as_micros() as i64;
        let oldest = self.open.first_entry()?;
        if oldest.get().published_us + deadline_us > now_us {
            return None;
        }
        let (number, slot) = oldest.remove_entry();
        let verdict = match self.verdict_of(&slot, &properties) {
            // A return that is not matched yet may be its own.
            Some(Verdict::Confirmed(_)) => unknown(DOUBT_TEXT),
            Some(verdict) => verdict,
            None => unknown(&not_confirmed(&slot.routing_key)),
        };
        let late = LateSlot {
            fingerprint: slot.fingerprint(properties),
            // A copy: the key may be a part of a large buffer.
            routing_key: Text::from(slot.routing_key.as_str()),
            answered: slot.answer.is_some(),
            returned: slot.returned.is_some(),
        };
        let unanswered = (!late.answered).then(|| late.routing_key.clone());
        self.late.insert(number, late);
        Some((slot.publication, verdict, unanswered))
    }

    /// Takes out all publications, because the channel is gone. `returned` as for [`Self::judge`].
    pub(super) fn abandon(
        &mut self,
        returned: u64,
        now_us: i64,
        properties: impl Fn(&Publication) -> Option<BasicProperties>,
    ) -> Vec<AbandonedPublication> {
        let open = std::mem::take(&mut self.open);
        let mut abandoned = Vec::with_capacity(open.len());
        for (number, slot) in open {
            let mut verdict = self.verdict_of(&slot, &properties);
            if verdict == Some(Verdict::Confirmed(None)) && self.matched != returned {
                verdict = None;
            }
            abandoned.push(AbandonedPublication {
                publication: slot.publication,
                verdict,
                was_read: self.was_read(number, slot.published_us, now_us),
            });
        }
        *self = Self {
            next: self.next,
            ..Self::default()
        };
        abandoned
    }
}

impl OpenSlot {
    /// Reports whether a returned message may be this one. The broker acknowledges what it returns.
    fn may_be_returned(&self) -> bool {
        self.returned.is_none() && self.answer != Some(BrokerAnswer::Nack)
    }

    fn fingerprint(
        &self,
        properties: impl Fn(&Publication) -> Option<BasicProperties>,
    ) -> Fingerprint {
        let properties = properties(&self.publication);
        Fingerprint::new(self.routing_key.bytes(), &self.body, properties.as_ref())
    }
}

#[cfg(test)]
mod tests;
