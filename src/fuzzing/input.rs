//! Reads messages out of any bytes. Behind the last byte everything is zero, empty or absent.

use bytes::Bytes;

use crate::domain::limits::MAX_HEADER_DEPTH;
use crate::domain::{Header, HeaderValue, Message, Origin, Properties, Text};

/// Most headers of a message, and most entries of a table or an array.
const MAX_HEADERS: usize = 16;
/// Header names that mean something to Postdate, to Kafka's mapping or to RabbitMQ.
const NAMES: [&str; 16] = [
    "x-delay",
    "X-Deliver-At",
    "x-delay-id",
    "x-delay-op",
    "x-delay-target",
    "x-delay-due",
    "x-delay-attempt",
    "kafka.key",
    "kafka.null_value",
    "amqp.priority",
    "amqp.delivery_mode",
    "amqp.expiration",
    "amqp.user_id",
    "amqp.timestamp",
    "CC",
    "BCC",
];

/// Bytes of a fuzzer that are not read yet.
#[derive(Clone, Debug)]
pub(super) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All bytes that are left.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// As many bytes as there are, at most `len`.
    pub(super) fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(super) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let taken = self.take(N);
        bytes[..taken.len()].copy_from_slice(taken);
        bytes
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(super) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub(super) fn signed(&mut self) -> i64 {
        i64::from_le_bytes(self.array())
    }

    /// A number of bytes and so many bytes. From 255 on the number has two bytes more.
    pub(super) fn slice(&mut self) -> &'a [u8] {
        let len = match self.byte() {
            255 => usize::from(u16::from_le_bytes(self.array())),
            len => len.into(),
        };
        self.take(len)
    }

    pub(super) fn bytes(&mut self) -> Bytes {
        Bytes::copy_from_slice(self.slice())
    }

    /// A text. Bytes that are not UTF-8 become U+FFFD.
    pub(super) fn text(&mut self) -> Text {
        String::from_utf8_lossy(self.slice()).as_ref().into()
    }

    /// A text of at most 255 characters, as a target's name is.
    pub(super) fn short_text(&mut self) -> Text {
        let len = self.byte();
        String::from_utf8_lossy(self.take(len.into()))
            .as_ref()
            .into()
    }

    pub(super) fn maybe<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.flag().then(|| read(self))
    }

    /// A header's name: one of those that mean something, or any.
    pub(super) fn name(&mut self) -> Text {
        let chosen = usize::from(self.byte());
        NAMES
            .get(chosen)
            .copied()
            .map_or_else(|| self.text(), Text::from_static)
    }

    /// A list of at most [`MAX_HEADERS`] items.
    pub(super) fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = usize::from(self.byte()) % (MAX_HEADERS + 1);
        let mut items = Vec::new();
        while items.len() < count && !self.is_empty() {
            items.push(read(self));
        }
        items
    }

    /// A value as AMQP has it. `depth` is the number of tables and arrays around it.
    pub(super) fn value(&mut self, depth: usize) -> HeaderValue {
        let inner = depth + 1;
        match self.byte() % 17 {
            1 => HeaderValue::Bytes(self.bytes()),
            2 => HeaderValue::LongString(self.bytes()),
            3 => HeaderValue::Bool(self.flag()),
            4 => HeaderValue::I8(self.byte().cast_signed()),
            5 => HeaderValue::U8(self.byte()),
            6 => HeaderValue::I16(i16::from_le_bytes(self.array())),
            7 => HeaderValue::U16(u16::from_le_bytes(self.array())),
            8 => HeaderValue::I32(i32::from_le_bytes(self.array())),
            9 => HeaderValue::U32(u32::from_le_bytes(self.array())),
            10 => HeaderValue::I64(self.signed()),
            11 => HeaderValue::F32(f32::from_le_bytes(self.array())),
            12 => HeaderValue::F64(f64::from_le_bytes(self.array())),
            13 => HeaderValue::Decimal {
                scale: self.byte(),
                value: u32::from_le_bytes(self.array()),
            },
            14 => HeaderValue::Timestamp(u64::from_le_bytes(self.array())),
            15 if inner <= MAX_HEADER_DEPTH => {
                HeaderValue::Table(self.list(|input| input.header(inner)))
            }
            16 if inner <= MAX_HEADER_DEPTH => {
                HeaderValue::Array(self.list(|input| input.value(inner)))
            }
            _ => HeaderValue::Null,
        }
    }

    fn header(&mut self, depth: usize) -> Header {
        Header {
            name: self.name(),
            value: self.value(depth),
        }
    }

    /// A value as Kafka has it.
    fn plain_value(&mut self) -> HeaderValue {
        self.maybe(Self::bytes)
            .map_or(HeaderValue::Null, HeaderValue::Bytes)
    }

    fn properties(&mut self) -> Properties {
        Properties {
            content_type: self.maybe(Self::text),
            content_encoding: self.maybe(Self::text),
            delivery_mode: self.maybe(Self::byte),
            priority: self.maybe(Self::byte),
            correlation_id: self.maybe(Self::text),
            reply_to: self.maybe(Self::text),
            expiration: self.maybe(Self::text),
            message_id: self.maybe(Self::text),
            timestamp: self.maybe(|input| u64::from_le_bytes(input.array())),
            kind: self.maybe(Self::text),
            user_id: self.maybe(Self::text),
            app_id: self.maybe(Self::text),
            cluster_id: self.maybe(Self::text),
        }
    }

    /// A message as a consumer of either technology reads it.
    pub(super) fn message(&mut self) -> Message {
        if self.flag() {
            return Message {
                origin: Origin::Rabbitmq,
                key: Some(self.text().bytes().clone()),
                properties: Some(Box::new(self.properties())),
                headers: self.list(|input| input.header(0)),
                body: Some(self.bytes()),
            };
        }
        Message {
            origin: Origin::Kafka,
            key: self.maybe(Self::bytes),
            properties: None,
            headers: self.list(|input| Header {
                name: input.name(),
                value: input.plain_value(),
            }),
            body: self.maybe(Self::bytes),
        }
    }
}
