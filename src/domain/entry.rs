//! An entry of a bundle: a message with everything that Postdate knows of it.

use super::delay_request::DelayRequest;
use super::due::UnixMs;
use super::kafka_position::KafkaPosition;
use super::message::Message;
use super::text::Text;

/// A message with everything that Postdate knows of it: one element of a bundle.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The moment of its (next) publish.
    pub due: UnixMs,
    /// The due time that was asked for, if a retry has moved `due`. Consumers are told this one, and lateness counts
    /// from it.
    pub asked: Option<UnixMs>,
    /// Its explicit name: the producer's `x-delay-id` (flag `NAMED`), or the `~` id with which it left its first
    /// bundle. `None`: its `~` id follows from its bundle's id and its position.
    pub id: Option<Text>,
    /// The number of hand-outs before it came into this bundle.
    pub handouts: u32,
    /// The number of its publishes that failed.
    pub failures: u32,
    /// Marks a possible repeat by the next publish, and a producer's name.
    pub flags: Flags,
    /// The position of a Kafka message in its topic: partition and offset.
    pub position: Option<KafkaPosition>,
    /// The topic of the position, where the route reads several.
    pub source_topic: Option<Text>,
    /// What its producer asked for, and when it came. `None`: an earlier version stored it, or nothing was asked for.
    pub request: Option<DelayRequest>,
    /// Its last failures, oldest first, at most [`super::limits::MAX_HISTORY`].
    pub history: Vec<Failure>,
    /// The producer's message without the delay headers.
    pub message: Message,
}

impl Entry {
    /// A message of which nothing else is known yet.
    pub fn new(due: UnixMs, message: Message) -> Self {
        Self {
            due,
            asked: None,
            id: None,
            handouts: 0,
            failures: 0,
            flags: Flags::default(),
            position: None,
            source_topic: None,
            request: None,
            history: Vec::new(),
            message,
        }
    }

    /// The id by which the store finds the message: its name, or a `~` id. A message on its way to the dead letters has given
    /// up its name, and one that has an id of another has none.
    pub fn listed_id(&self) -> Option<&Text> {
        let id = self.id.as_ref()?;
        let is_own = self.flags.has(Flags::NAMED) || id.as_str().starts_with('~');
        (is_own && !self.flags.has(Flags::DYING)).then_some(id)
    }

    /// The approximate size in the store, bytes.
    pub fn stored_size(&self) -> usize {
        self.message.size() + 64
    }

    /// The due time that was asked for.
    pub fn asked_due(&self) -> UnixMs {
        self.asked.unwrap_or(self.due)
    }

    /// How often consumers have given the message back; 0: never, or its route does not count.
    pub fn given_back(&self) -> u32 {
        self.request.map_or(0, |request| request.given_back)
    }

    /// The name by which its delivery is remembered, if its producer named it. Not one that was given back: once redriven,
    /// a message comes back with the counts that it had before.
    pub fn remembered_name(&self) -> Option<Text> {
        let is_remembered = self.flags.has(Flags::NAMED) && self.given_back() == 0;
        self.id.clone().filter(|_| is_remembered)
    }

    /// The last moment at which it is wanted, if there is one.
    pub fn wanted_until(&self) -> Option<UnixMs> {
        Some(self.request?.expires?.last)
    }

    /// The due time that was asked for, if its producer is known to have asked for one: an invalid message has only the moment of its death.
    pub fn requested_due(&self) -> Option<UnixMs> {
        self.request.map(|_| self.asked_due())
    }
}

/// One failed publish of a message, or the reason of its death.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The moment of the failure.
    pub at: UnixMs,
    /// The label of the reason ([`super::DeadReason`], [`super::InvalidReason`]).
    pub reason: Text,
    /// The error text of the broker or of Postdate, cut to 200 bytes.
    pub error: Text,
}

/// The flags of an entry. They are stored in bundles, so their values are fixed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// The id is the producer's own.
    pub const NAMED: u8 = 1;
    /// The message was read again from Kafka, at or below the highest offset ever read.
    pub const SOURCE_REREAD: u8 = 2;
    /// RabbitMQ delivered the message again.
    pub const SOURCE_REDELIVERY: u8 = 4;
    /// An earlier publish may have arrived, because its confirm never came.
    pub const CONFIRM_UNKNOWN: u8 = 8;
    /// An earlier claim of the message expired.
    pub const CLAIM_EXPIRED: u8 = 16;
    /// The message was due before the store went back or changed its master.
    pub const STORE_ROLLBACK: u8 = 32;
    /// The dead letter's content was not kept: it was too large, or could not be opened.
    pub const LEFT_OUT: u8 = 64;
    /// The message is on its way to its route's `dead_letter_to`; a confirm there makes it a dead letter.
    pub const DYING: u8 = 128;

    /// Reports whether a flag is set.
    pub fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    /// The flags with one cleared.
    #[must_use]
    pub fn without(self, bit: u8) -> Self {
        Self(self.0 & !bit)
    }

    /// The flags with one set.
    #[must_use]
    pub fn with(self, bit: u8) -> Self {
        Self(self.0 | bit)
    }
}
