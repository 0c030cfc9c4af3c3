//! From any message to a Kafka record. Pure; knows nothing of the client library.
//!
//! From Kafka nothing changes but what [`Stamp`] sets. From AMQP the routing key becomes the key, typed
//! header values become bytes, and the properties become headers; [`super::super::rabbitmq::mapping`]
//! is the way back, `docs/headers.md` the table of both.

use bytes::Bytes;
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use crate::domain::message::stamped;
use crate::domain::{Header, HeaderValue, Message, Origin, Properties, Text};
use crate::egress::{Stamp, names};

/// What is handed to a Kafka producer; the topic apart. Its bytes are shared with the message's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::egress) struct KafkaRecord {
    /// The key; `None` is null.
    pub key: Option<Bytes>,
    /// The value; `None` is null.
    pub value: Option<Bytes>,
    /// Headers in order, repeats kept; a `None` value is null.
    pub headers: Vec<(Text, Option<Bytes>)>,
}

/// The record for a message. `stamp` is `None` for what passes through.
pub(in crate::egress) fn to_kafka(message: &Message, stamp: Option<&Stamp>) -> KafkaRecord {
    let mut record = match message.origin {
        Origin::Kafka => from_kafka(message),
        Origin::Rabbitmq => from_amqp(message),
    };
    if let Some(stamp) = stamp {
        record.headers.push((Text::from_static(stamped::ID), Some(stamp.id.bytes().clone())));
        record.headers.push((Text::from_static(stamped::DUE), Some(stamp.due.to_string().into())));
        if stamp.attempt >= 2 {
            record
                .headers
                .push((Text::from_static(stamped::ATTEMPT), Some(stamp.attempt.to_string().into())));
        }
    }
    record
}

fn from_kafka(message: &Message) -> KafkaRecord {
    // Room for the stamp.
    let mut headers = Vec::with_capacity(message.headers.len() + stamped::ALL.len());
    headers.extend(message.headers.iter().map(|h| (h.name.clone(), to_bytes(&h.value))));
    KafkaRecord { key: message.key.clone(), value: message.body.clone(), headers }
}

fn from_amqp(message: &Message) -> KafkaRecord {
    let mut key = message.key.clone();
    let mut value = message.body.clone();
    let mut headers = Vec::with_capacity(message.headers.len() + 8);
    for Header { name, value: header } in &message.headers {
        match (name.as_str(), header) {
            (names::KAFKA_KEY, header) => key = to_bytes(header),
            // Only as Postdate writes it: a body is never thrown away, and a Kafka header that
            // happened to have this name comes back as one.
            (names::KAFKA_NULL_VALUE, HeaderValue::Bool(true)) if message.body_len() == 0 => value = None,
            _ => headers.push((name.clone(), to_bytes(header))),
        }
    }
    // Behind the headers: on the way back the last of a name counts, so that a property wins over a
    // header that merely looks like one.
    if let Some(properties) = &message.properties {
        push_properties(&mut headers, properties);
    }
    KafkaRecord { key, value, headers }
}

fn push_properties(headers: &mut Vec<(Text, Option<Bytes>)>, p: &Properties) {
    let mut push = |name: &str, value: Option<Bytes>| {
        if let Some(value) = value {
            headers.push((Text::from(format!("{}{name}", names::AMQP)), Some(value)));
        }
    };
    let text = |text: &Option<Text>| text.as_ref().map(|t| t.bytes().clone());
    push("content_type", text(&p.content_type));
    push("content_encoding", text(&p.content_encoding));
    push("delivery_mode", p.delivery_mode.map(|v| v.to_string().into()));
    push("priority", p.priority.map(|v| v.to_string().into()));
    push("correlation_id", text(&p.correlation_id));
    push("reply_to", text(&p.reply_to));
    push("expiration", text(&p.expiration));
    push("message_id", text(&p.message_id));
    push("timestamp", p.timestamp.map(|v| v.to_string().into()));
    push("type", text(&p.kind));
    push("user_id", text(&p.user_id));
    push("app_id", text(&p.app_id));
    push("cluster_id", text(&p.cluster_id));
}

/// A header's value in bytes: numbers, bools and moments as text, tables and arrays as JSON text.
fn to_bytes(value: &HeaderValue) -> Option<Bytes> {
    Some(match value {
        HeaderValue::Null => return None,
        HeaderValue::Bytes(bytes) | HeaderValue::LongString(bytes) => bytes.clone(),
        HeaderValue::Bool(v) => v.to_string().into(),
        HeaderValue::I8(v) => v.to_string().into(),
        HeaderValue::U8(v) => v.to_string().into(),
        HeaderValue::I16(v) => v.to_string().into(),
        HeaderValue::U16(v) => v.to_string().into(),
        HeaderValue::I32(v) => v.to_string().into(),
        HeaderValue::U32(v) => v.to_string().into(),
        HeaderValue::I64(v) => v.to_string().into(),
        HeaderValue::F32(v) => v.to_string().into(),
        HeaderValue::F64(v) => v.to_string().into(),
        HeaderValue::Decimal { scale, value } => decimal(*scale, *value).into(),
        HeaderValue::Timestamp(seconds) => seconds.to_string().into(),
        HeaderValue::Table(_) | HeaderValue::Array(_) => {
            // Writing JSON into memory, with text for keys, cannot fail.
            serde_json::to_vec(&Json(value)).unwrap_or_default().into()
        }
    })
}

/// `value / 10^scale`, all its digits.
fn decimal(scale: u8, value: u32) -> String {
    let scale = usize::from(scale);
    let digits = format!("{value:0width$}", width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    if fraction.is_empty() { whole.to_owned() } else { format!("{whole}.{fraction}") }
}

/// A value within a table or an array, as JSON. Bytes are a string where they are UTF-8, else an array
/// of numbers; a decimal is a string, which loses no digit; what JSON has no number for is null.
struct Json<'a>(&'a HeaderValue);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            HeaderValue::Null => s.serialize_unit(),
            HeaderValue::Bytes(bytes) | HeaderValue::LongString(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => s.serialize_str(text),
                Err(_) => s.serialize_bytes(bytes),
            },
            HeaderValue::Bool(v) => s.serialize_bool(*v),
            HeaderValue::I8(v) => s.serialize_i8(*v),
            HeaderValue::U8(v) => s.serialize_u8(*v),
            HeaderValue::I16(v) => s.serialize_i16(*v),
            HeaderValue::U16(v) => s.serialize_u16(*v),
            HeaderValue::I32(v) => s.serialize_i32(*v),
            HeaderValue::U32(v) => s.serialize_u32(*v),
            HeaderValue::I64(v) => s.serialize_i64(*v),
            HeaderValue::F32(v) => s.serialize_f32(*v),
            HeaderValue::F64(v) => s.serialize_f64(*v),
            HeaderValue::Decimal { scale, value } => s.serialize_str(&decimal(*scale, *value)),
            HeaderValue::Timestamp(seconds) => s.serialize_u64(*seconds),
            HeaderValue::Table(fields) => {
                let mut map = s.serialize_map(Some(fields.len()))?;
                for field in fields {
                    map.serialize_entry(field.name.as_str(), &Json(&field.value))?;
                }
                map.end()
            }
            HeaderValue::Array(items) => {
                let mut seq = s.serialize_seq(Some(items.len()))?;
                for item in items {
                    seq.serialize_element(&Json(item))?;
                }
                seq.end()
            }
        }
    }
}

#[cfg(test)]
mod tests;
