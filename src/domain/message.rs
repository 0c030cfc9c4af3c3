//! A message as its producer sent it, independent of either broker's client library.
//!
//! Kafka records and AMQP deliveries both fit without loss: null differs from empty, the order and the repeats of
//! headers are kept, and so are AMQP's nested typed values. Bytes are shared slices of the record or the bundle that
//! was read, and are never copied on their way.

use bytes::Bytes;

use super::text::Text;

/// The technology a message came from. It decides how headers and properties are read on the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A Kafka record: `key` may be null, header values are bytes or null, no properties.
    Kafka,
    /// An AMQP 0-9-1 delivery: `key` is the routing key, header values are typed.
    Rabbitmq,
}

/// The message that a producer sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The technology it came from.
    pub origin: Origin,
    /// Kafka's record key (`None` is null), or AMQP's routing key (always there, may be empty).
    pub key: Option<Bytes>,
    /// The body; `None` is Kafka's null value, which differs from an empty one.
    pub body: Option<Bytes>,
    /// Headers in the order they came, repeats included.
    pub headers: Vec<Header>,
    /// AMQP's basic properties without the header table; `None` for Kafka.
    pub properties: Option<Box<Properties>>,
}

impl Message {
    /// The key that decides the order of messages in an ordered route. AMQP has no null, so an empty routing key is
    /// none.
    pub fn order_key(&self) -> Option<&Bytes> {
        self.key
            .as_ref()
            .filter(|key| self.origin == Origin::Kafka || !key.is_empty())
    }

    /// The length of the body in bytes; 0 for a null body.
    pub fn body_len(&self) -> usize {
        self.body.as_ref().map_or(0, Bytes::len)
    }

    /// The bytes of body, headers and key.
    pub fn size(&self) -> usize {
        self.body_len() + self.headers_len() + self.key.as_ref().map_or(0, Bytes::len)
    }

    /// The bytes of all headers together: names and values, nested ones too.
    pub fn headers_len(&self) -> usize {
        self.headers
            .iter()
            .map(|h| h.name.len() + h.value.size())
            .sum()
    }
}

/// One header.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// The name, in the case it was sent.
    pub name: Text,
    /// The value.
    pub value: HeaderValue,
}

impl Header {
    /// Bytes that one header takes in memory beside its name and its value, here and in the client libraries.
    pub const OVERHEAD: usize = 96;

    /// A header of this name and value.
    pub fn new(name: impl Into<Text>, value: HeaderValue) -> Self {
        Self {
            name: name.into(),
            value,
        }
    }
}

/// The value of a header. Kafka uses `Null` and `Bytes` only, AMQP all of them.
#[derive(Clone, Debug, PartialEq)]
pub enum HeaderValue {
    /// Kafka's null value, AMQP's void (`V`).
    Null,
    /// Kafka's value, AMQP's byte array (`x`).
    Bytes(Bytes),
    /// AMQP's long string (`S`): bytes that are mostly, but not always, text.
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
    /// The size in bytes, roughly as on the wire.
    pub fn size(&self) -> usize {
        match self {
            Self::Null => 0,
            Self::Bytes(b) | Self::LongString(b) => b.len(),
            Self::Bool(_) | Self::I8(_) | Self::U8(_) => 1,
            Self::I16(_) | Self::U16(_) => 2,
            Self::I32(_) | Self::U32(_) | Self::F32(_) => 4,
            Self::Decimal { .. } => 5,
            Self::I64(_) | Self::F64(_) | Self::Timestamp(_) => 8,
            Self::Table(fields) => fields
                .iter()
                .map(|h| h.name.len() + 2 + h.value.size())
                .sum(),
            Self::Array(items) => items.iter().map(|v| 1 + v.size()).sum(),
        }
    }
}

/// AMQP's basic properties without the header table.
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

/// Headers that Postdate sets on delayed messages. Their names are the same on every route.
pub mod stamped {
    /// The producer's id, or the one that Postdate made (`~...`).
    pub const ID: &str = "x-delay-id";
    /// The due time, Unix milliseconds.
    pub const DUE: &str = "x-delay-due";
    /// The number of hand-outs, from the second one on.
    pub const ATTEMPT: &str = "x-delay-attempt";
    /// How often consumers have given the message back, on a route that counts it. On others it is a header of the message.
    pub const RETRY: &str = "x-delay-retry";
    /// The headers that every route sets.
    pub const ALL: [&str; 3] = [ID, DUE, ATTEMPT];

    /// Reports whether a header's name is one of these, in any case.
    pub fn is_one(name: &super::Text) -> bool {
        ALL.iter()
            .any(|own| name.as_str().eq_ignore_ascii_case(own))
    }
}
