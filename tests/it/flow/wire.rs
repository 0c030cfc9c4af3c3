//! Messages as both technologies carry them, and what Postdate sets on them.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};

/// The header that names the case; what has none names it in its body.
pub(crate) const CASE: &str = "test-case";
/// Headers that Postdate sets on a delayed message.
const STAMPS: [&str; 3] = ["x-delay-id", "x-delay-due", "x-delay-attempt"];

/// A Kafka record, its topic and partition apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
}

/// An AMQP message, its exchange apart; the header table apart from the other properties.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Amqp {
    pub(crate) routing_key: String,
    pub(crate) properties: BasicProperties,
    pub(crate) headers: FieldTable,
    pub(crate) body: Vec<u8>,
}

/// Either.
#[allow(clippy::large_enum_variant, reason = "a few thousand of them")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wire {
    Kafka(Record),
    Amqp(Amqp),
}

/// Due time, id and attempt that Postdate set on a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) id: Option<String>,
    pub(crate) due_ms: Option<i64>,
    pub(crate) attempt: Option<i64>,
}

/// A message on a target.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// The topic or queue.
    pub(crate) at: String,
    pub(crate) received_ms: i64,
    /// Kafka's CreateTime.
    pub(crate) created_ms: Option<i64>,
    pub(crate) wire: Wire,
}

pub(crate) fn text(text: impl Into<String>) -> AMQPValue {
    AMQPValue::LongString(text.into().into())
}

pub(crate) fn table<const N: usize>(headers: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert(name.into(), value);
    }
    table
}

/// Bytes as Kafka has them: they could be null.
#[allow(clippy::unnecessary_wraps, reason = "as every caller needs it")]
pub(crate) fn bytes(text: &str) -> Option<Vec<u8>> {
    Some(text.as_bytes().to_vec())
}

impl Record {
    /// A header behind the others.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), bytes(value)));
        self
    }
}

impl Wire {
    /// A header more, as text.
    pub(crate) fn header(self, name: &str, value: &str) -> Self {
        match self {
            Self::Kafka(record) => Self::Kafka(record.header(name, value)),
            Self::Amqp(mut amqp) => {
                amqp.headers.insert(name.into(), text(value));
                Self::Amqp(amqp)
            }
        }
    }

    /// Reports whether a header of this name is there.
    pub(crate) fn has_header(&self, wanted: &str) -> bool {
        match self {
            Self::Kafka(record) => record.headers.iter().any(|(name, _)| name == wanted),
            Self::Amqp(amqp) => amqp.headers.inner().contains_key(wanted),
        }
    }

    /// Which case it belongs to.
    pub(crate) fn case(&self) -> String {
        let (named, body) = match self {
            Self::Kafka(record) => {
                let named = record.headers.iter().find(|(name, _)| name == CASE);
                (
                    named.and_then(|(_, value)| value.clone()),
                    record.value.clone(),
                )
            }
            Self::Amqp(amqp) => {
                let named = amqp.headers.inner().get(CASE).map(|value| match value {
                    AMQPValue::LongString(case) => case.as_bytes().to_vec(),
                    other => panic!("{CASE} is {other:?}"),
                });
                (named, Some(amqp.body.clone()))
            }
        };
        String::from_utf8_lossy(&named.or(body).unwrap_or_default()).into_owned()
    }

    /// Takes the stamp out. Each of its headers is there once at most, in its documented type.
    pub(crate) fn take_stamp(self) -> (Stamp, Self) {
        match self {
            Self::Kafka(mut record) => {
                let (stamps, rest) = std::mem::take(&mut record.headers)
                    .into_iter()
                    .partition::<Vec<_>, _>(|(name, _)| STAMPS.contains(&name.as_str()));
                record.headers = rest;
                let value = |wanted: &str| {
                    let mut found = stamps.iter().filter(|(name, _)| name == wanted);
                    let value = found.next()?.1.clone().expect("a stamp is not null");
                    assert!(found.next().is_none(), "{wanted} twice: {stamps:?}");
                    Some(String::from_utf8(value).expect("a stamp is text"))
                };
                let number = |wanted| value(wanted).map(|text| text.parse().expect("decimal text"));
                let [id, due, attempt] = STAMPS;
                let stamp = Stamp {
                    id: value(id),
                    due_ms: number(due),
                    attempt: number(attempt),
                };
                (stamp, Self::Kafka(record))
            }
            Self::Amqp(mut amqp) => {
                let mut stamp = Stamp::default();
                let mut rest = FieldTable::default();
                for (name, value) in amqp.headers.inner() {
                    match (name.as_str(), value) {
                        ("x-delay-id", AMQPValue::LongString(id)) => {
                            stamp.id = Some(id.to_string());
                        }
                        ("x-delay-due", AMQPValue::LongLongInt(due)) => stamp.due_ms = Some(*due),
                        ("x-delay-attempt", AMQPValue::LongLongInt(n)) => stamp.attempt = Some(*n),
                        _ => drop(rest.insert(name.clone(), value.clone())),
                    }
                }
                amqp.headers = rest;
                (stamp, Self::Amqp(amqp))
            }
        }
    }

    /// The same for comparison: no header table in the properties is an empty one. A table has no order,
    /// so nor have headers that were one.
    pub(crate) fn comparable(self, ordered: bool) -> Self {
        match self {
            Self::Kafka(mut record) => {
                if !ordered {
                    record.headers.sort();
                }
                Self::Kafka(record)
            }
            Self::Amqp(mut amqp) => {
                amqp.properties = amqp.properties.with_headers(FieldTable::default());
                Self::Amqp(amqp)
            }
        }
    }
}
