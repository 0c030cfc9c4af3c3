//! One record of a bundle: a message with its entry, and its body apart.

use bytes::Bytes;

use super::varint::{Reader, put_bytes, put_signed, put_unsigned};
use super::{CodecError, FIRST_VERSION, MaybeText, put_history, read_history};
use crate::domain::{
    DelayRequest, Entry, Expiry, Failure, Header, HeaderValue, KafkaPosition, Message, Origin,
    Properties, RequestedTime, Text, UnixMs, limits,
};

// The bits of the shape byte: which fields are there.
const HAS_ID: u8 = 1;
const HAS_POSITION: u8 = 2;
const HAS_HISTORY: u8 = 4;
const HAS_KEY: u8 = 8;
const HAS_BODY: u8 = 16;
const IS_RABBITMQ: u8 = 32;
const HAS_PROPERTIES: u8 = 64;
const HAS_ASKED: u8 = 128;

// The kinds of a request.
const NO_REQUEST: u8 = 0;
const DELAY: u8 = 1;
const MOMENT: u8 = 2;
// Added to the kind of a request that says how long its message is wanted.
const EXPIRES_AT: u8 = 4;
const EXPIRES_AFTER: u8 = 8;
// Added to the kind of a request of a message that consumers have given back.
const GIVEN_BACK: u8 = 16;

/// Added to the partition of a position that names its topic: its name follows.
const WITH_TOPIC: i64 = 1 << 40;

pub(super) struct BundleRecord {
    pub(super) id: MaybeText,
    pub(super) position: Option<KafkaPosition>,
    pub(super) source_topic: Option<Text>,
    pub(super) asked: Option<UnixMs>,
    pub(super) request: Option<DelayRequest>,
    pub(super) history: Vec<Failure>,
    pub(super) message: Message,
}

/// Writes all of an entry but its body and the fields that the index holds.
pub(super) fn put_head(out: &mut Vec<u8>, entry: &Entry) {
    let message = &entry.message;
    let mut shape = 0;
    for (there, bit) in [
        (entry.id.is_some(), HAS_ID),
        (entry.position.is_some(), HAS_POSITION),
        (entry.asked.is_some(), HAS_ASKED),
        (!entry.history.is_empty(), HAS_HISTORY),
        (message.key.is_some(), HAS_KEY),
        (message.body.is_some(), HAS_BODY),
        (message.origin == Origin::Rabbitmq, IS_RABBITMQ),
        (message.properties.is_some(), HAS_PROPERTIES),
    ] {
        if there {
            shape |= bit;
        }
    }
    out.push(shape);
    put_request(out, entry);
    if let Some(id) = &entry.id {
        put_bytes(out, id.bytes());
    }
    if let Some(KafkaPosition { partition, offset }) = entry.position {
        match &entry.source_topic {
            None => put_signed(out, i64::from(partition)),
            Some(topic) => {
                put_signed(out, WITH_TOPIC + i64::from(partition));
                put_bytes(out, topic.bytes());
            }
        }
        put_signed(out, offset);
    }
    if let Some(asked) = entry.asked {
        put_signed(out, asked.0);
    }
    if !entry.history.is_empty() {
        put_history(out, &entry.history);
    }
    if let Some(key) = &message.key {
        put_bytes(out, key);
    }
    if let Some(properties) = &message.properties {
        put_properties(out, properties);
    }
    put_headers(out, &message.headers);
}

/// Reads the head of a message that is due at this moment, written in this version.
pub(super) fn read_record(
    version: u8,
    head: Bytes,
    body: Bytes,
    due: UnixMs,
) -> Result<BundleRecord, CodecError> {
    let mut reader = Reader::new(head);
    let shape = reader.byte()?;
    let has = |bit| shape & bit != 0;
    let request = match version {
        FIRST_VERSION => None,
        _ => read_request(&mut reader)?,
    };
    let id = reader.optional(has(HAS_ID), Reader::text)?;
    let read_at = reader.optional(has(HAS_POSITION), read_position)?;
    let (position, source_topic) = read_at.unzip();
    let asked = reader.optional(has(HAS_ASKED), Reader::signed)?.map(UnixMs);
    let request = request.map(|request| request.from(asked.unwrap_or(due)));
    let history = reader.optional(has(HAS_HISTORY), read_history)?;
    let key = reader.optional(has(HAS_KEY), Reader::bytes)?;
    let properties = reader.optional(has(HAS_PROPERTIES), read_properties)?;
    let headers = read_headers(&mut reader, 0)?;
    if !reader.is_empty() || (!has(HAS_BODY) && !body.is_empty()) {
        return Err(CodecError::Malformed(reader.position()));
    }
    let body = has(HAS_BODY).then_some(body);
    let origin = if has(IS_RABBITMQ) {
        Origin::Rabbitmq
    } else {
        Origin::Kafka
    };
    Ok(BundleRecord {
        id,
        position,
        source_topic: source_topic.flatten(),
        asked,
        request,
        history: history.unwrap_or_default(),
        message: Message {
            origin,
            key,
            body,
            headers,
            properties: properties.map(Box::new),
        },
    })
}

/// Reads where a message was read, and its topic if it is written with it.
fn read_position(reader: &mut Reader) -> Result<(KafkaPosition, Option<Text>), CodecError> {
    let mut partition = reader.signed()?;
    let mut source_topic = None;
    if partition > WITH_TOPIC / 2 {
        partition -= WITH_TOPIC;
        source_topic = Some(reader.text()?);
    }
    let partition =
        i32::try_from(partition).map_err(|_| CodecError::Malformed(reader.position()))?;
    let offset = reader.signed()?;
    Ok((KafkaPosition { partition, offset }, source_topic))
}

/// What was asked for, as differences that are small or nothing as a rule: of the due time that was asked for from the
/// arrival, and of the request from what is expected of it then; of the last moment at which the message is wanted from the
/// due time, and of the span that was asked for from that.
struct StoredRequest {
    kind: u8,
    waits_ms: i64,
    more_ms: i64,
    expires: Option<StoredExpiry>,
    given_back: u32,
}

struct StoredExpiry {
    after_due_ms: i64,
    /// Of a span.
    more_ms: Option<i64>,
}

impl StoredExpiry {
    fn of(expiry: Expiry, asked_due: UnixMs) -> Self {
        let after_due_ms = expiry.last.0.wrapping_sub(asked_due.0);
        Self {
            after_due_ms,
            more_ms: expiry.after_ms.map(|ms| ms.wrapping_sub(after_due_ms)),
        }
    }

    fn from(self, asked_due: UnixMs) -> Expiry {
        Expiry {
            last: UnixMs(asked_due.0.wrapping_add(self.after_due_ms)),
            after_ms: self.more_ms.map(|ms| self.after_due_ms.wrapping_add(ms)),
        }
    }

    fn kind(&self) -> u8 {
        if self.more_ms.is_some() {
            EXPIRES_AFTER
        } else {
            EXPIRES_AT
        }
    }
}

impl StoredRequest {
    fn of(request: DelayRequest, asked_due: UnixMs) -> Self {
        let waits_ms = asked_due.0.wrapping_sub(request.received.0);
        let (kind, more_ms) = match request.time {
            RequestedTime::Delay(ms) => (DELAY, ms.wrapping_sub(waits_ms)),
            RequestedTime::At(at) => (MOMENT, at.0.wrapping_sub(asked_due.0)),
        };
        Self {
            kind,
            waits_ms,
            more_ms,
            expires: request
                .expires
                .map(|expiry| StoredExpiry::of(expiry, asked_due)),
            given_back: request.given_back,
        }
    }

    fn from(self, asked_due: UnixMs) -> DelayRequest {
        DelayRequest {
            received: UnixMs(asked_due.0.wrapping_sub(self.waits_ms)),
            time: if self.kind == MOMENT {
                RequestedTime::At(UnixMs(asked_due.0.wrapping_add(self.more_ms)))
            } else {
                RequestedTime::Delay(self.waits_ms.wrapping_add(self.more_ms))
            },
            expires: self.expires.map(|expires| expires.from(asked_due)),
            given_back: self.given_back,
        }
    }
}

fn put_request(out: &mut Vec<u8>, entry: &Entry) {
    let Some(request) = entry.request else {
        return out.push(NO_REQUEST);
    };
    let stored = StoredRequest::of(request, entry.asked_due());
    let expires = stored.expires;
    let given_back = stored.given_back;
    let kind = stored.kind + expires.as_ref().map_or(0, StoredExpiry::kind);
    out.push(kind + if given_back > 0 { GIVEN_BACK } else { 0 });
    put_signed(out, stored.waits_ms);
    put_signed(out, stored.more_ms);
    if let Some(expires) = expires {
        put_signed(out, expires.after_due_ms);
        if let Some(ms) = expires.more_ms {
            put_signed(out, ms);
        }
    }
    if given_back > 0 {
        put_unsigned(out, given_back.into());
    }
}

fn read_request(reader: &mut Reader) -> Result<Option<StoredRequest>, CodecError> {
    let written = reader.byte()?;
    if written == NO_REQUEST {
        return Ok(None);
    }
    let kind = written & (DELAY | MOMENT);
    let is_given_back = written & GIVEN_BACK != 0;
    let expires = written & !(DELAY | MOMENT | GIVEN_BACK);
    if !matches!(kind, DELAY | MOMENT) || !matches!(expires, 0 | EXPIRES_AT | EXPIRES_AFTER) {
        return Err(CodecError::Malformed(reader.position()));
    }
    let waits_ms = reader.signed()?;
    let more_ms = reader.signed()?;
    let expires = match expires {
        0 => None,
        kind => Some(StoredExpiry {
            after_due_ms: reader.signed()?,
            more_ms: if kind == EXPIRES_AFTER {
                Some(reader.signed()?)
            } else {
                None
            },
        }),
    };
    let given_back = if is_given_back { reader.unsigned()? } else { 0 };
    let given_back =
        u32::try_from(given_back).map_err(|_| CodecError::Malformed(reader.position()))?;
    Ok(Some(StoredRequest {
        kind,
        waits_ms,
        more_ms,
        expires,
        given_back,
    }))
}

fn put_headers(out: &mut Vec<u8>, headers: &[Header]) {
    put_unsigned(out, headers.len() as u64);
    for header in headers {
        put_bytes(out, header.name.bytes());
        put_value(out, &header.value);
    }
}

fn read_headers(reader: &mut Reader, depth: usize) -> Result<Vec<Header>, CodecError> {
    let count = reader.bounded(1 << 20)?;
    let mut headers = Vec::with_capacity(count.min(64));
    for _ in 0..count {
        headers.push(Header {
            name: reader.text()?,
            value: read_value(reader, depth)?,
        });
    }
    Ok(headers)
}

// Each value is a tag, AMQP's own letter where it has one, and its bytes.
fn put_value(out: &mut Vec<u8>, value: &HeaderValue) {
    match value {
        HeaderValue::Null => out.push(b'V'),
        HeaderValue::Bytes(b) => tagged(out, b'x', |out| put_bytes(out, b)),
        HeaderValue::LongString(b) => tagged(out, b'S', |out| put_bytes(out, b)),
        HeaderValue::Bool(b) => out.extend_from_slice(&[b't', u8::from(*b)]),
        HeaderValue::I8(n) => out.extend_from_slice(&[b'b', n.cast_unsigned()]),
        HeaderValue::U8(n) => out.extend_from_slice(&[b'B', *n]),
        HeaderValue::I16(n) => tagged(out, b's', |out| out.extend_from_slice(&n.to_le_bytes())),
        HeaderValue::U16(n) => tagged(out, b'u', |out| out.extend_from_slice(&n.to_le_bytes())),
        HeaderValue::I32(n) => tagged(out, b'I', |out| out.extend_from_slice(&n.to_le_bytes())),
        HeaderValue::U32(n) => tagged(out, b'i', |out| out.extend_from_slice(&n.to_le_bytes())),
        HeaderValue::I64(n) => tagged(out, b'l', |out| out.extend_from_slice(&n.to_le_bytes())),
        HeaderValue::F32(n) => tagged(out, b'f', |out| out.extend_from_slice(&n.to_le_bytes())),
        HeaderValue::F64(n) => tagged(out, b'd', |out| out.extend_from_slice(&n.to_le_bytes())),
        HeaderValue::Timestamp(n) => {
            tagged(out, b'T', |out| out.extend_from_slice(&n.to_le_bytes()));
        }
        HeaderValue::Decimal { scale, value } => {
            out.extend_from_slice(&[b'D', *scale]);
            out.extend_from_slice(&value.to_le_bytes());
        }
        HeaderValue::Table(fields) => tagged(out, b'F', |out| put_headers(out, fields)),
        HeaderValue::Array(items) => {
            out.push(b'A');
            put_unsigned(out, items.len() as u64);
            for item in items {
                put_value(out, item);
            }
        }
    }
}

fn tagged(out: &mut Vec<u8>, tag: u8, put: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag);
    put(out);
}

fn read_value(reader: &mut Reader, depth: usize) -> Result<HeaderValue, CodecError> {
    if depth > limits::MAX_HEADER_DEPTH {
        return Err(CodecError::Malformed(reader.position()));
    }
    Ok(match reader.byte()? {
        b'V' => HeaderValue::Null,
        b'x' => HeaderValue::Bytes(reader.bytes()?),
        b'S' => HeaderValue::LongString(reader.bytes()?),
        b't' => HeaderValue::Bool(reader.byte()? != 0),
        b'b' => HeaderValue::I8(reader.byte()?.cast_signed()),
        b'B' => HeaderValue::U8(reader.byte()?),
        b's' => HeaderValue::I16(i16::from_le_bytes(array(reader)?)),
        b'u' => HeaderValue::U16(u16::from_le_bytes(array(reader)?)),
        b'I' => HeaderValue::I32(i32::from_le_bytes(array(reader)?)),
        b'i' => HeaderValue::U32(u32::from_le_bytes(array(reader)?)),
        b'l' => HeaderValue::I64(i64::from_le_bytes(array(reader)?)),
        b'f' => HeaderValue::F32(f32::from_le_bytes(array(reader)?)),
        b'd' => HeaderValue::F64(f64::from_le_bytes(array(reader)?)),
        b'T' => HeaderValue::Timestamp(u64::from_le_bytes(array(reader)?)),
        b'D' => HeaderValue::Decimal {
            scale: reader.byte()?,
            value: u32::from_le_bytes(array(reader)?),
        },
        b'F' => HeaderValue::Table(read_headers(reader, depth + 1)?),
        b'A' => {
            let count = reader.bounded(1 << 20)?;
            HeaderValue::Array(
                (0..count)
                    .map(|_| read_value(reader, depth + 1))
                    .collect::<Result<_, _>>()?,
            )
        }
        _ => return Err(CodecError::Malformed(reader.position())),
    })
}

fn array<const N: usize>(reader: &mut Reader) -> Result<[u8; N], CodecError> {
    let at = reader.position();
    <[u8; N]>::try_from(&reader.take(N)?[..]).map_err(|_| CodecError::Malformed(at))
}

fn put_properties(out: &mut Vec<u8>, p: &Properties) {
    let texts = texts(p);
    let mut there = 0u64;
    for (bit, text) in texts.iter().enumerate() {
        there |= u64::from(text.is_some()) << bit;
    }
    there |= u64::from(p.delivery_mode.is_some()) << 10;
    there |= u64::from(p.priority.is_some()) << 11;
    there |= u64::from(p.timestamp.is_some()) << 12;
    put_unsigned(out, there);
    for text in texts.into_iter().flatten() {
        put_bytes(out, text.bytes());
    }
    out.extend(p.delivery_mode);
    out.extend(p.priority);
    if let Some(timestamp) = p.timestamp {
        put_unsigned(out, timestamp);
    }
}

fn texts(p: &Properties) -> [&Option<Text>; 10] {
    [
        &p.content_type,
        &p.content_encoding,
        &p.correlation_id,
        &p.reply_to,
        &p.expiration,
        &p.message_id,
        &p.kind,
        &p.user_id,
        &p.app_id,
        &p.cluster_id,
    ]
}

fn read_properties(reader: &mut Reader) -> Result<Properties, CodecError> {
    let there = reader.unsigned()?;
    if there >> 13 != 0 {
        return Err(CodecError::Malformed(reader.position()));
    }
    let mut bit = 0;
    let mut text = |reader: &mut Reader| {
        bit += 1;
        if there >> (bit - 1) & 1 == 1 {
            reader.text().map(Some)
        } else {
            Ok(None)
        }
    };
    let mut p = Properties {
        content_type: text(reader)?,
        content_encoding: text(reader)?,
        correlation_id: text(reader)?,
        reply_to: text(reader)?,
        expiration: text(reader)?,
        message_id: text(reader)?,
        kind: text(reader)?,
        user_id: text(reader)?,
        app_id: text(reader)?,
        cluster_id: text(reader)?,
        ..Properties::default()
    };
    if there >> 10 & 1 == 1 {
        p.delivery_mode = Some(reader.byte()?);
    }
    if there >> 11 & 1 == 1 {
        p.priority = Some(reader.byte()?);
    }
    if there >> 12 & 1 == 1 {
        p.timestamp = Some(reader.unsigned()?);
    }
    Ok(p)
}
