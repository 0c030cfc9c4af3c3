//! A message as its producer sent it, in a form that neither broker's client library shapes.
//!
//! Kafka records and AMQP deliveries both fit without loss: null is not empty, header order and
//! repeats are kept, and AMQP's nested typed values stay what they were. Bytes are shared slices
//! of what was read (from a record, or from a bundle), never copied on their way through.

use bytes::Bytes;
use bytestring::ByteString;

use super::due::UnixMs;
use super::kafka_position::KafkaPosition;
use super::verdict::Cause;

/// UTF-8 text over shared bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Text(ByteString);

impl Text {
    /// Text of the program's own; costs nothing.
    pub const fn from_static(text: &'static str) -> Self {
        Self(ByteString::from_static(text))
    }

    /// Takes bytes that are valid UTF-8; `None` if they are not.
    pub fn from_utf8(bytes: Bytes) -> Option<Self> {
        ByteString::try_from(bytes).ok().map(Self)
    }

    /// The text itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its bytes, shared.
    pub fn bytes(&self) -> &Bytes {
        self.0.as_bytes()
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(ByteString::from(text))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(ByteString::from(text))
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The technology a message came from; it decides how headers and properties are read on the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A Kafka record: `key` may be null, header values are bytes or null, no properties.
    Kafka,
    /// An AMQP 0-9-1 delivery: `key` is the routing key, header values are typed.
    Rabbitmq,
}

/// What a producer sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Where it came from.
    pub origin: Origin,
    /// Kafka's record key (`None` = null), or AMQP's routing key (always there, maybe empty).
    pub key: Option<Bytes>,
    /// The body; `None` is Kafka's null value, which is not an empty one.
    pub body: Option<Bytes>,
    /// Headers in the order they came, repeats kept.
    pub headers: Vec<Header>,
    /// AMQP's basic properties without the header table; `None` on Kafka.
    pub properties: Option<Box<Properties>>,
}

impl Message {
    /// The key whose messages leave in order where a route keeps one: AMQP has no null, so an empty routing key
    /// is none.
    pub fn order_key(&self) -> Option<&Bytes> {
        self.key.as_ref().filter(|key| self.origin == Origin::Kafka || !key.is_empty())
    }

    /// Length of the body in bytes; a null body has none.
    pub fn body_len(&self) -> usize {
        self.body.as_ref().map_or(0, Bytes::len)
    }

    /// Bytes that all headers take together: names and values, nested ones too.
    pub fn headers_len(&self) -> usize {
        self.headers.iter().map(|h| h.name.len() + h.value.size()).sum()
    }
}

/// One header.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Its name, in the case it was sent.
    pub name: Text,
    /// Its value.
    pub value: HeaderValue,
}

impl Header {
    /// A header of this name and value.
    pub fn new(name: impl Into<Text>, value: HeaderValue) -> Self {
        Self { name: name.into(), value }
    }
}

/// A header's value: Kafka uses `Null` and `Bytes` only, AMQP all of them.
#[derive(Clone, Debug, PartialEq)]
pub enum HeaderValue {
    /// Kafka's null value, AMQP's void (`V`).
    Null,
    /// Kafka's value, AMQP's byte array (`x`).
    Bytes(Bytes),
    /// AMQP's long string (`S`): bytes that are mostly, not surely, text.
    LongString(Bytes),
    /// `t`
    Bool(bool),
    /// `b`
    I8(i8),
    /// `B`
    U8(u8),
    /// `s`
    I16(i16),
    /// `u`
    U16(u16),
    /// `I`
    I32(i32),
    /// `i`
    U32(u32),
    /// `l` (and `L`)
    I64(i64),
    /// `f`
    F32(f32),
    /// `d`
    F64(f64),
    /// `D`: `value / 10^scale`
    Decimal {
        /// Digits after the point.
        scale: u8,
        /// The unscaled value.
        value: u32,
    },
    /// `T`: Unix seconds.
    Timestamp(u64),
    /// `F`
    Table(Vec<Header>),
    /// `A`
    Array(Vec<HeaderValue>),
}

impl HeaderValue {
    /// How deep it is nested: 0 for a plain value, 1 for a table of plain values.
    pub fn depth(&self) -> usize {
        match self {
            Self::Table(fields) => 1 + fields.iter().map(|h| h.value.depth()).max().unwrap_or(0),
            Self::Array(items) => 1 + items.iter().map(Self::depth).max().unwrap_or(0),
            _ => 0,
        }
    }

    /// Bytes it takes, roughly as on the wire.
    pub fn size(&self) -> usize {
        match self {
            Self::Null => 0,
            Self::Bytes(b) | Self::LongString(b) => b.len(),
            Self::Bool(_) | Self::I8(_) | Self::U8(_) => 1,
            Self::I16(_) | Self::U16(_) => 2,
            Self::I32(_) | Self::U32(_) | Self::F32(_) => 4,
            Self::Decimal { .. } => 5,
            Self::I64(_) | Self::F64(_) | Self::Timestamp(_) => 8,
            Self::Table(fields) => fields.iter().map(|h| h.name.len() + 2 + h.value.size()).sum(),
            Self::Array(items) => items.iter().map(|v| 1 + v.size()).sum(),
        }
    }
}

/// AMQP's basic properties, the header table apart.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)] // AMQP 0-9-1's own names
pub struct Properties {
    pub content_type: Option<Text>,
    pub content_encoding: Option<Text>,
    pub delivery_mode: Option<u8>,
    pub priority: Option<u8>,
    pub correlation_id: Option<Text>,
    pub reply_to: Option<Text>,
    pub expiration: Option<Text>,
    pub message_id: Option<Text>,
    /// Unix seconds.
    pub timestamp: Option<u64>,
    pub kind: Option<Text>,
    pub user_id: Option<Text>,
    pub app_id: Option<Text>,
    pub cluster_id: Option<Text>,
}

/// What is known of a message besides what its producer sent: one element of a bundle.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// When it is to be published (next).
    pub due: UnixMs,
    /// The due time that was asked for, where a retry has moved `due`: what consumers are told, and what
    /// lateness counts from.
    pub asked: Option<UnixMs>,
    /// Its explicit name: the producer's `x-delay-id` (flag `NAMED`), or the `~` id it left its first
    /// bundle with. `None`: its `~` id follows from its bundle's id and its place in it.
    pub id: Option<Text>,
    /// How often it was handed out before it came into this bundle.
    pub handouts: u32,
    /// How many of its publishes failed.
    pub failures: u32,
    /// What makes its next publish a possible repeat, and whether it has a producer's name.
    pub flags: Flags,
    /// Where a Kafka message was read: partition and offset.
    pub position: Option<KafkaPosition>,
    /// Its last failures, oldest first, at most [`super::limits::HISTORY`].
    pub history: Vec<Failure>,
    /// What the producer sent, without the delay headers.
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
            history: Vec::new(),
            message,
        }
    }

    /// Bytes that it takes in the store, about.
    pub fn stored_size(&self) -> usize {
        self.message.body_len() + self.message.headers_len() + 64
    }

    /// The due time that was asked for.
    pub fn asked_due(&self) -> UnixMs {
        self.asked.unwrap_or(self.due)
    }

    /// What makes its next publish a possible repeat of an earlier one; `expiries` counts claims on its
    /// bundle that ended without an answer.
    pub fn repeat_cause(&self, expiries: u32) -> Option<Cause> {
        let flags = self.flags;
        if flags.has(Flags::CONFIRM_UNKNOWN) {
            Some(Cause::ConfirmUnknown)
        } else if expiries > 0 || flags.has(Flags::CLAIM_EXPIRED) {
            Some(Cause::ClaimExpired)
        } else if flags.has(Flags::STORE_ROLLBACK) {
            Some(Cause::StoreRollback)
        } else if flags.has(Flags::SOURCE_REREAD) {
            Some(Cause::SourceReread)
        } else if flags.has(Flags::SOURCE_REDELIVERY) {
            Some(Cause::SourceRedelivery)
        } else {
            None
        }
    }
}

/// One failed publish of a message, or why it is dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// When.
    pub at: UnixMs,
    /// A reason's label ([`super::DeadReason`], [`super::InvalidReason`]).
    pub reason: Text,
    /// What the broker or Postdate said, cut to 200 bytes.
    pub error: Text,
}

/// Bits of an entry; written into bundles, so their values stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// The id is the producer's own.
    pub const NAMED: u8 = 1;
    /// Read again from Kafka at or below the highest offset ever read.
    pub const SOURCE_REREAD: u8 = 2;
    /// RabbitMQ delivered it again.
    pub const SOURCE_REDELIVERY: u8 = 4;
    /// An earlier publish may have arrived: its confirm never came.
    pub const CONFIRM_UNKNOWN: u8 = 8;
    /// An earlier claim of it expired.
    pub const CLAIM_EXPIRED: u8 = 16;
    /// It was due before the store went back or changed its master.
    pub const STORE_ROLLBACK: u8 = 32;
    /// What a dead letter's message held was not kept: it was too large.
    pub const LEFT_OUT: u8 = 64;
    /// It is on its way to its route's `dead_letter_to`; confirmed there, it is a dead letter.
    pub const DYING: u8 = 128;

    /// Whether a bit is set.
    pub fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    /// With a bit cleared.
    #[must_use]
    pub fn without(self, bit: u8) -> Self {
        Self(self.0 & !bit)
    }

    /// With a bit set.
    #[must_use]
    pub fn with(self, bit: u8) -> Self {
        Self(self.0 | bit)
    }
}

/// Headers that Postdate sets on delayed messages. Their names are the same on every route.
pub mod stamped {
    /// The producer's id, or the one that Postdate made (`~...`).
    pub const ID: &str = "x-delay-id";
    /// The due time, Unix milliseconds.
    pub const DUE: &str = "x-delay-due";
    /// How often it was handed out, from the second time on.
    pub const ATTEMPT: &str = "x-delay-attempt";
    /// All of them.
    pub const ALL: [&str; 3] = [ID, DUE, ATTEMPT];

    /// Whether a header's name is one of them, in whatever case.
    pub fn is_one(name: &super::Text) -> bool {
        ALL.iter().any(|own| name.as_str().eq_ignore_ascii_case(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_tables_and_arrays() {
        let nested = HeaderValue::Array(vec![
            HeaderValue::Bool(true),
            HeaderValue::Table(vec![Header::new("inner", HeaderValue::I8(1))]),
        ]);
        assert_eq!(HeaderValue::I8(1).depth(), 0);
        assert_eq!(nested.depth(), 2);
    }
}
