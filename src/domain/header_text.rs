//! Header values as plain bytes: what a Kafka record has of them, and what a search compares.

use std::borrow::Cow;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use super::message::HeaderValue;

impl HeaderValue {
    /// The value as a Kafka record has it: bytes as they are, numbers, bools and moments as text, tables and arrays as JSON
    /// text. `None`: null.
    pub fn plain(&self) -> Option<Cow<'_, [u8]>> {
        Some(match self {
            Self::Null => return None,
            Self::Bytes(bytes) | Self::LongString(bytes) => Cow::from(&bytes[..]),
            Self::Bool(v) => text(v),
            Self::I8(v) => text(v),
            Self::U8(v) => text(v),
            Self::I16(v) => text(v),
            Self::U16(v) => text(v),
            Self::I32(v) => text(v),
            Self::U32(v) => text(v),
            Self::I64(v) => text(v),
            Self::F32(v) => text(v),
            Self::F64(v) => text(v),
            Self::Decimal { scale, value } => text(&decimal(*scale, *value)),
            Self::Timestamp(seconds) => text(seconds),
            Self::Table(_) | Self::Array(_) => {
                // Writing JSON into memory, with text for keys, cannot fail.
                Cow::from(serde_json::to_vec(&JsonHeader(self)).unwrap_or_default())
            }
        })
    }
}

/// The text of a value, as bytes.
fn text<'a>(value: &impl ToString) -> Cow<'a, [u8]> {
    Cow::from(value.to_string().into_bytes())
}

/// The decimal `value / 10^scale` with all its digits.
fn decimal(scale: u8, value: u32) -> String {
    let scale = usize::from(scale);
    let digits = format!("{value:0width$}", width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    if fraction.is_empty() {
        whole.to_owned()
    } else {
        format!("{whole}.{fraction}")
    }
}

/// Serializes a value in a table or an array as JSON. Bytes become a string if they are UTF-8, else an array of
/// numbers. A decimal becomes a string, which loses no digit. A number that JSON does not have becomes null.
struct JsonHeader<'a>(&'a HeaderValue);

impl Serialize for JsonHeader<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            HeaderValue::Null => s.serialize_unit(),
            HeaderValue::Bytes(bytes) | HeaderValue::LongString(bytes) => {
                match std::str::from_utf8(bytes) {
                    Ok(text) => s.serialize_str(text),
                    Err(_) => s.serialize_bytes(bytes),
                }
            }
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
                    map.serialize_entry(field.name.as_str(), &JsonHeader(&field.value))?;
                }
                map.end()
            }
            HeaderValue::Array(items) => {
                let mut seq = s.serialize_seq(Some(items.len()))?;
                for item in items {
                    seq.serialize_element(&JsonHeader(item))?;
                }
                seq.end()
            }
        }
    }
}
