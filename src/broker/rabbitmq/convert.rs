//! Converts AMQP's header tables and basic properties to Postdate's types and back, without loss.
//!
//! The client library has read `L` as `l` and `U` as `s`, and has sorted each table by name. An empty header
//! table and none at all convert to the same.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable, ShortString};

use super::header_frame::{LEFT_OUT_HEADER, UNREADABLE_HEADER};
use crate::domain::{Header, HeaderValue, Properties, Text};

/// A text that is too long for AMQP: a name, a routing key or a property over 255 bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {len} bytes, AMQP takes 255")]
pub struct TooLong {
    what: &'static str,
    len: usize,
}

/// Converts headers and properties from AMQP. Of text that is not UTF-8 see [`unreadable_reason`].
pub fn from_amqp(amqp: &BasicProperties) -> (Vec<Header>, Properties) {
    let text = |t: &Option<ShortString>| t.as_ref().map(|t| Text::from(t.as_str()));
    let properties = Properties {
        content_type: text(amqp.content_type()),
        content_encoding: text(amqp.content_encoding()),
        delivery_mode: *amqp.delivery_mode(),
        priority: *amqp.priority(),
        correlation_id: text(amqp.correlation_id()),
        reply_to: text(amqp.reply_to()),
        expiration: text(amqp.expiration()),
        message_id: text(amqp.message_id()),
        timestamp: *amqp.timestamp(),
        kind: text(amqp.kind()),
        user_id: text(amqp.user_id()),
        app_id: text(amqp.app_id()),
        cluster_id: text(amqp.cluster_id()),
    };
    (
        amqp.headers().as_ref().map(headers).unwrap_or_default(),
        properties,
    )
}

/// The reason why a message's headers, or another of its texts, cannot be read. `None` if they can.
pub fn unreadable_reason(headers: &[Header]) -> Option<Text> {
    let reason = headers
        .iter()
        .find(|header| header.name.as_str() == UNREADABLE_HEADER)?;
    match &reason.value {
        HeaderValue::LongString(text) => Some(String::from_utf8_lossy(text).as_ref().into()),
        _ => None,
    }
}

/// Removes the header that names the length of a body that was left out, and returns the length. `None`: the message has
/// its body.
pub fn take_left_out(headers: &mut Vec<Header>) -> Option<u64> {
    let at = headers
        .iter()
        .position(|header| header.name.as_str() == LEFT_OUT_HEADER)?;
    match headers.remove(at).value {
        HeaderValue::I64(bytes) => u64::try_from(bytes).ok(),
        _ => None,
    }
}

fn headers(table: &FieldTable) -> Vec<Header> {
    table
        .into_iter()
        .map(|(name, value)| Header::new(name.as_str(), value_from(value)))
        .collect()
}

fn value_from(value: &AMQPValue) -> HeaderValue {
    match value {
        AMQPValue::Boolean(v) => HeaderValue::Bool(*v),
        AMQPValue::ShortShortInt(v) => HeaderValue::I8(*v),
        AMQPValue::ShortShortUInt(v) => HeaderValue::U8(*v),
        AMQPValue::ShortInt(v) => HeaderValue::I16(*v),
        AMQPValue::ShortUInt(v) => HeaderValue::U16(*v),
        AMQPValue::LongInt(v) => HeaderValue::I32(*v),
        AMQPValue::LongUInt(v) => HeaderValue::U32(*v),
        AMQPValue::LongLongInt(v) => HeaderValue::I64(*v),
        AMQPValue::Float(v) => HeaderValue::F32(*v),
        AMQPValue::Double(v) => HeaderValue::F64(*v),
        AMQPValue::DecimalValue(v) => HeaderValue::Decimal {
            scale: v.scale,
            value: v.value,
        },
        // This is never read from the wire: the library has no type letter for it.
        AMQPValue::ShortString(v) => {
            HeaderValue::LongString(Bytes::copy_from_slice(v.as_str().as_bytes()))
        }
        AMQPValue::LongString(v) => HeaderValue::LongString(Bytes::copy_from_slice(v.as_bytes())),
        AMQPValue::FieldArray(v) => {
            HeaderValue::Array(v.as_slice().iter().map(value_from).collect())
        }
        AMQPValue::Timestamp(v) => HeaderValue::Timestamp(*v),
        AMQPValue::FieldTable(v) => HeaderValue::Table(headers(v)),
        AMQPValue::ByteArray(v) => HeaderValue::Bytes(Bytes::copy_from_slice(v.as_slice())),
        AMQPValue::Void => HeaderValue::Null,
    }
}

/// Converts headers and properties to AMQP. Of a repeated name the last one stays.
pub fn to_amqp(headers: &[Header], properties: &Properties) -> Result<BasicProperties, TooLong> {
    let mut amqp = BasicProperties::default();
    if !headers.is_empty() {
        amqp = amqp.with_headers(table(headers)?);
    }
    macro_rules! texts {
        ($($field:ident, $with:ident, $what:literal;)*) => {$(
            if let Some(text) = &properties.$field {
                amqp = amqp.$with(short($what, text.as_str())?);
            }
        )*};
    }
    texts! {
        content_type, with_content_type, "content_type";
        content_encoding, with_content_encoding, "content_encoding";
        correlation_id, with_correlation_id, "correlation_id";
        reply_to, with_reply_to, "reply_to";
        expiration, with_expiration, "expiration";
        message_id, with_message_id, "message_id";
        kind, with_type, "type";
        user_id, with_user_id, "user_id";
        app_id, with_app_id, "app_id";
        cluster_id, with_cluster_id, "cluster_id";
    }
    if let Some(mode) = properties.delivery_mode {
        amqp = amqp.with_delivery_mode(mode);
    }
    if let Some(priority) = properties.priority {
        amqp = amqp.with_priority(priority);
    }
    if let Some(seconds) = properties.timestamp {
        amqp = amqp.with_timestamp(seconds);
    }
    Ok(amqp)
}

/// Converts a text to a short string, if it fits.
fn short(what: &'static str, text: &str) -> Result<ShortString, TooLong> {
    ShortString::try_new(text).map_err(|_| TooLong {
        what,
        len: text.len(),
    })
}

fn table(headers: &[Header]) -> Result<FieldTable, TooLong> {
    let mut table = FieldTable::default();
    for header in headers {
        table.insert(
            short("a header's name", header.name.as_str())?,
            value_to(&header.value)?,
        );
    }
    Ok(table)
}

fn value_to(value: &HeaderValue) -> Result<AMQPValue, TooLong> {
    Ok(match value {
        HeaderValue::Null => AMQPValue::Void,
        HeaderValue::Bytes(v) => AMQPValue::ByteArray(v[..].into()),
        HeaderValue::LongString(v) => AMQPValue::LongString(v.to_vec().into()),
        HeaderValue::Bool(v) => AMQPValue::Boolean(*v),
        HeaderValue::I8(v) => AMQPValue::ShortShortInt(*v),
        HeaderValue::U8(v) => AMQPValue::ShortShortUInt(*v),
        HeaderValue::I16(v) => AMQPValue::ShortInt(*v),
        HeaderValue::U16(v) => AMQPValue::ShortUInt(*v),
        HeaderValue::I32(v) => AMQPValue::LongInt(*v),
        HeaderValue::U32(v) => AMQPValue::LongUInt(*v),
        HeaderValue::I64(v) => AMQPValue::LongLongInt(*v),
        HeaderValue::F32(v) => AMQPValue::Float(*v),
        HeaderValue::F64(v) => AMQPValue::Double(*v),
        HeaderValue::Decimal { scale, value } => AMQPValue::DecimalValue(DecimalValue {
            scale: *scale,
            value: *value,
        }),
        HeaderValue::Timestamp(v) => AMQPValue::Timestamp(*v),
        HeaderValue::Table(fields) => AMQPValue::FieldTable(table(fields)?),
        HeaderValue::Array(items) => {
            let items = items.iter().map(value_to).collect::<Result<Vec<_>, _>>()?;
            AMQPValue::FieldArray(FieldArray::from(items))
        }
    })
}

/// The bytes that headers and properties take in the payload of a content header frame, as an upper bound. The
/// frame as a whole must fit into the connection's `frame_max`, or the broker closes the connection.
pub fn wire_len(headers: &[Header], properties: &Properties) -> usize {
    let p = properties;
    let texts = [
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
    ];
    // class, weight, body size and flags; delivery mode and priority; timestamp; the table's length
    let fixed = 2 + 2 + 8 + 2 + 1 + 1 + 8 + 4;
    let texts: usize = texts.into_iter().flatten().map(|t| 1 + t.len()).sum();
    fixed + texts + fields_len(headers)
}

fn fields_len(headers: &[Header]) -> usize {
    headers
        .iter()
        .map(|h| 1 + h.name.len() + value_len(&h.value))
        .sum()
}

fn value_len(value: &HeaderValue) -> usize {
    1 + match value {
        HeaderValue::Bytes(v) | HeaderValue::LongString(v) => 4 + v.len(),
        HeaderValue::Table(fields) => 4 + fields_len(fields),
        HeaderValue::Array(items) => 4 + items.iter().map(value_len).sum::<usize>(),
        other => other.size(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_type() -> Vec<Header> {
        let bytes = Bytes::from_static(&[0, 255, 7]);
        let inner = vec![
            Header::new(
                "a",
                HeaderValue::Decimal {
                    scale: 3,
                    value: 1_500,
                },
            ),
            Header::new(
                "z",
                HeaderValue::Array(vec![HeaderValue::Null, HeaderValue::Table(vec![])]),
            ),
        ];
        [
            HeaderValue::Null,
            HeaderValue::Bytes(bytes.clone()),
            HeaderValue::LongString(bytes),
            HeaderValue::Bool(true),
            HeaderValue::I8(-1),
            HeaderValue::U8(255),
            HeaderValue::I16(i16::MIN),
            HeaderValue::U16(u16::MAX),
            HeaderValue::I32(i32::MIN),
            HeaderValue::U32(u32::MAX),
            HeaderValue::I64(i64::MIN),
            HeaderValue::F32(0.25),
            HeaderValue::F64(-0.0),
            HeaderValue::Timestamp(u64::MAX),
            HeaderValue::Table(inner.clone()),
            HeaderValue::Array(vec![HeaderValue::Table(inner)]),
        ]
        .into_iter()
        .enumerate()
        .map(|(i, value)| Header::new(format!("h{i:02}"), value))
        .collect()
    }

    #[test]
    fn every_type_comes_back_as_it_went() {
        let properties = Properties {
            content_type: Some("".into()),
            delivery_mode: Some(1),
            priority: Some(0),
            timestamp: Some(0),
            kind: Some("t".into()),
            ..Properties::default()
        };
        let amqp = to_amqp(&every_type(), &properties).expect("fits");
        assert_eq!(from_amqp(&amqp), (every_type(), properties));
        let none = to_amqp(&[], &Properties::default()).expect("fits");
        assert_eq!(none, BasicProperties::default());
        assert_eq!(from_amqp(&none), (vec![], Properties::default()));
    }

    #[test]
    fn names_that_amqp_has_no_room_for_are_refused_however_deep() {
        let long = Header::new("n".repeat(256), HeaderValue::Null);
        let deep = Header::new(
            "t",
            HeaderValue::Array(vec![HeaderValue::Table(vec![long])]),
        );
        let error = to_amqp(&[deep], &Properties::default()).expect_err("too long");
        assert_eq!(
            error.to_string(),
            "a header's name is 256 bytes, AMQP takes 255"
        );
    }
}
