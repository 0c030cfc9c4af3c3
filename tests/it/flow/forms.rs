//! The forms in which a producer may say when: one table per technology.

use jiff::Timestamp;
use jiff::tz::offset;
use lapin::types::{AMQPValue, DecimalValue};

use super::wire::Wire;

/// Meaning of a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// So many ms after the message's base.
    Delay(i64),
    /// This Unix ms.
    At(i64),
}

/// A header and its meaning.
#[derive(Clone, Debug)]
pub(super) struct Form {
    pub(super) name: String,
    header: &'static str,
    value: Value,
    pub(super) when: When,
}

#[derive(Clone, Debug)]
enum Value {
    Text(String),
    Typed(AMQPValue),
}

/// Durations as text, for both technologies: milliseconds, Go's and Rust's, ISO 8601.
const DELAYS: [(&str, i64); 19] = [
    ("0", 0),
    ("1", 1),
    ("800", 800),
    ("0000000000000001200", 1200),
    ("0s", 0),
    ("900ms", 900),
    ("1s", 1000),
    ("1.5s", 1500),
    ("1s500ms", 1500),
    ("0h0m1s", 1000),
    ("0d1s", 1000),
    ("500us", 1),
    ("1500000µs", 1500),
    ("1ns", 1),
    ("700.0001ms", 701),
    ("PT1.25S", 1250),
    ("PT0S", 0),
    ("P0DT0H0M1S", 1000),
    ("PT0.0000001S", 1),
];

impl Form {
    fn text(header: &'static str, value: impl Into<String>, when: When) -> Self {
        let value = value.into();
        Self {
            name: format!("{header}: {value}"),
            header,
            value: Value::Text(value),
            when,
        }
    }

    fn typed(header: &'static str, value: AMQPValue, when: When) -> Self {
        Self {
            name: format!("{header}: {value:?}"),
            header,
            value: Value::Typed(value),
            when,
        }
    }

    /// The message with this header.
    pub(super) fn on(&self, message: Wire) -> Wire {
        match (&self.value, message) {
            (Value::Text(value), message) => message.header(self.header, value),
            (Value::Typed(value), Wire::Amqp(mut amqp)) => {
                amqp.headers.insert(self.header.into(), value.clone());
                Wire::Amqp(amqp)
            }
            (Value::Typed(_), Wire::Kafka(_)) => panic!("{}: Kafka has no types", self.name),
        }
    }

    /// The forms on Kafka. `soon_ms` is a whole second in the near future.
    pub(super) fn on_kafka(soon_ms: i64) -> Vec<Self> {
        let mut forms = Self::as_text(soon_ms);
        forms.push(Self::text("x-delay", "\"1100\"", When::Delay(1100)));
        forms.push(Self::text("x-delay", "\"PT1.1S\"", When::Delay(1100)));
        forms.push(Self::text(
            "x-deliver-at",
            format!("\"{soon_ms}\""),
            When::At(soon_ms),
        ));
        forms
    }

    /// The forms on AMQP.
    pub(super) fn on_amqp(soon_ms: i64) -> Vec<Self> {
        let mut forms = Self::as_text(soon_ms);
        let values = [
            (AMQPValue::ByteArray(b"1s".to_vec().into()), 1000),
            (AMQPValue::ByteArray(b"600".to_vec().into()), 600),
            (AMQPValue::ShortShortInt(100), 100),
            (AMQPValue::ShortShortUInt(200), 200),
            (AMQPValue::ShortInt(1300), 1300),
            (AMQPValue::ShortUInt(1301), 1301),
            (AMQPValue::LongInt(1302), 1302),
            (AMQPValue::LongUInt(1303), 1303),
            (AMQPValue::LongLongInt(1304), 1304),
            (AMQPValue::LongLongInt(0), 0),
            (AMQPValue::Float(1024.0), 1024),
            (AMQPValue::Double(1025.0), 1025),
            (
                AMQPValue::DecimalValue(DecimalValue {
                    scale: 1,
                    value: 10_260,
                }),
                1026,
            ),
        ];
        forms.extend(values.map(|(value, ms)| Self::typed("x-delay", value, When::Delay(ms))));
        let at = [
            AMQPValue::LongLongInt(soon_ms),
            AMQPValue::Timestamp((soon_ms / 1000) as u64),
            AMQPValue::ByteArray(soon_ms.to_string().into_bytes().into()),
        ];
        forms.extend(at.map(|value| Self::typed("x-deliver-at", value, When::At(soon_ms))));
        forms.push(Self::typed(
            "x-deliver-at",
            AMQPValue::Timestamp(5),
            When::At(5000),
        ));
        forms
    }

    fn as_text(soon_ms: i64) -> Vec<Self> {
        let moment = Timestamp::from_millisecond(soon_ms).expect("a moment");
        let whole = moment.to_string();
        let east = moment.display_with_offset(offset(1)).to_string();
        let mut forms: Vec<_> = DELAYS
            .iter()
            .map(|&(value, ms)| Self::text("x-delay", value, When::Delay(ms)))
            .collect();
        forms.push(Self::text("X-Delay", "400", When::Delay(400)));
        let at = [
            (soon_ms.to_string(), soon_ms),
            (whole.clone(), soon_ms),
            (east, soon_ms),
            (whole.replace('Z', ".25Z"), soon_ms + 250),
            (whole.replace('Z', ".0001Z"), soon_ms + 1),
            // Past, hence at once.
            ("1600000000000".to_owned(), 1_600_000_000_000),
            ("2020-02-29T12:00:00+14:00".to_owned(), 1_582_927_200_000),
        ];
        forms.extend(at.map(|(value, at)| Self::text("x-deliver-at", value, When::At(at))));
        forms.push(Self::text(
            "X-DELIVER-AT",
            soon_ms.to_string(),
            When::At(soon_ms),
        ));
        forms
    }
}
