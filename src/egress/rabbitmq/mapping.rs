//! From any message to what AMQP publishes. Pure; knows nothing of the client library.
//!
//! From AMQP nothing changes but what [`Stamp`] sets and what a delayed message must not keep. From
//! Kafka the header `amqp.<property>` becomes the property, key and null values travel as headers, and
//! values get AMQP's types; [`super::super::kafka::mapping`] is the way back, `docs/headers.md` the
//! table of both.

use std::collections::HashSet;

use bytes::Bytes;

use crate::domain::message::stamped;
use crate::domain::verdict::{DeadReason, Refusal};
use crate::domain::{Header, HeaderValue, Message, Origin, Properties, RoutingKey, Text};
use crate::egress::{Stamp, bridge_headers};

/// Longest short string: routing keys, header names, most properties.
const SHORT: usize = 255;
/// More routes for a message, by its sender's word: RabbitMQ reads these two headers of every publish,
/// and closes the channel if they are no arrays.
const SENDER_SELECTED: [&str; 2] = ["CC", "BCC"];
/// Direct reply-to: RabbitMQ closes the channel of a publisher that names it and does not consume it.
const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to";
/// The delivery mode of what must survive a restart of its broker.
const PERSISTENT: u8 = 2;

/// What is handed to an AMQP channel; the exchange apart. Its bytes are shared with the message's.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::egress) struct AmqpMessage {
    /// At most 255 bytes.
    pub routing_key: Text,
    /// The basic properties, the header table apart.
    pub properties: Properties,
    /// The header table. Names have at most 255 bytes; none is repeated.
    pub headers: Vec<Header>,
    /// The body.
    pub body: Bytes,
}

/// A message that AMQP has no form for, whatever the broker: no publish of it can succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::egress) struct Unfit {
    /// As the broker would have refused it.
    pub reason: Refusal,
    /// What does not fit.
    pub error: Text,
}

/// The AMQP message for a message. `stamp` is `None` for what passes through, of which nothing that
/// came from AMQP is touched. `own_user` is the connection's own user, the only `user_id` that RabbitMQ
/// lets it publish.
pub(in crate::egress) fn to_amqp(
    message: &Message,
    stamp: Option<Stamp<'_>>,
    routing_key: &RoutingKey,
    own_user: Option<&str>,
) -> Result<AmqpMessage, Unfit> {
    let routing_key = route_by(message, routing_key)?;
    let (mut properties, mut headers) = match message.origin {
        Origin::Rabbitmq => {
            let properties = message.properties.as_deref().cloned().unwrap_or_default();
            (properties, message.headers.clone())
        }
        Origin::Kafka => from_kafka(message)?,
    };
    if let Some(stamp) = stamp {
        properties.user_id = properties.user_id.filter(|user| Some(user.as_str()) == own_user);
        headers.retain(|h| !SENDER_SELECTED.contains(&h.name.as_str()));
        push(&mut headers, stamped::ID, HeaderValue::LongString(stamp.id.bytes().clone()));
        push(&mut headers, stamped::DUE, HeaderValue::I64(stamp.due.0));
        if stamp.attempt >= 2 {
            push(&mut headers, stamped::ATTEMPT, HeaderValue::I64(stamp.attempt.into()));
        }
    }
    Ok(AmqpMessage { routing_key, properties, headers, body: message.body.clone().unwrap_or_default() })
}

fn push(headers: &mut Vec<Header>, name: &'static str, value: HeaderValue) {
    headers.push(Header { name: Text::from_static(name), value });
}

fn route_by(message: &Message, rule: &RoutingKey) -> Result<Text, Unfit> {
    let key = match rule {
        RoutingKey::Fixed(key) => Some(Text::from(key.as_str())),
        // A null key routes as the empty one.
        RoutingKey::Preserve | RoutingKey::Key => Text::from_utf8(message.key.clone().unwrap_or_default()),
    };
    let Some(key) = key else {
        let error = Text::from_static("the key is not UTF-8, so it cannot be a routing key");
        return Err(Unfit { reason: Refusal::Hopeless(DeadReason::Unroutable), error });
    };
    short("routing key", &key)?;
    Ok(key)
}

/// Refuses what AMQP could not write: its length has one byte.
fn short(what: &str, text: &Text) -> Result<(), Unfit> {
    if text.len() <= SHORT {
        return Ok(());
    }
    let error = format!("a {what} of {} bytes, AMQP takes {SHORT}", text.len()).into();
    Err(Unfit { reason: Refusal::TooBig, error })
}

/// Properties and header table of a Kafka record. Of a repeated name the last counts, as a table has
/// each name once; key and null value come behind all headers, so they win over one of their name.
fn from_kafka(message: &Message) -> Result<(Properties, Vec<Header>), Unfit> {
    let mut properties = Properties { delivery_mode: Some(PERSISTENT), ..Properties::default() };
    let mut headers = Vec::with_capacity(message.headers.len() + 2 + stamped::ALL.len());
    let mut seen = HashSet::with_capacity(message.headers.len() + 1);
    seen.insert(bridge_headers::KAFKA_KEY);
    if message.body.is_none() {
        seen.insert(bridge_headers::KAFKA_NULL_VALUE);
    }
    for header in message.headers.iter().rev() {
        let name = header.name.as_str();
        if !seen.insert(name) || SENDER_SELECTED.contains(&name) {
            continue;
        }
        let property = name.strip_prefix(bridge_headers::AMQP).zip(text(&header.value));
        if property.is_some_and(|(property, value)| set(&mut properties, property, &value)) {
            continue;
        }
        short("header name", &header.name)?;
        headers.push(Header { name: header.name.clone(), value: typed(header.value.clone()) });
    }
    headers.reverse();
    let key = message.key.clone().map_or(HeaderValue::Null, HeaderValue::Bytes);
    push(&mut headers, bridge_headers::KAFKA_KEY, typed(key));
    if message.body.is_none() {
        push(&mut headers, bridge_headers::KAFKA_NULL_VALUE, HeaderValue::Bool(true));
    }
    Ok((properties, headers))
}

/// Bytes as what an AMQP consumer expects: a long string where they are text.
fn typed(value: HeaderValue) -> HeaderValue {
    match value {
        HeaderValue::Bytes(bytes) if std::str::from_utf8(&bytes).is_ok() => HeaderValue::LongString(bytes),
        other => other,
    }
}

fn text(value: &HeaderValue) -> Option<Text> {
    match value {
        HeaderValue::Bytes(bytes) | HeaderValue::LongString(bytes) => Text::from_utf8(bytes.clone()),
        _ => None,
    }
}

/// Sets a property. False, and nothing set, if there is none of this name or the value does not fit:
/// RabbitMQ closes the channel over a wrong one. `user_id` fits never, it is not Kafka's to claim.
fn set(p: &mut Properties, name: &str, value: &Text) -> bool {
    match name {
        "delivery_mode" => set_number(&mut p.delivery_mode, value, |mode| matches!(mode, 1 | 2)),
        "priority" => set_number(&mut p.priority, value, |_| true),
        "timestamp" => set_number(&mut p.timestamp, value, |_| true),
        "expiration" => number::<u32>(value).is_some() && set_text(&mut p.expiration, value),
        "reply_to" => value.as_str() != DIRECT_REPLY_TO && set_text(&mut p.reply_to, value),
        "content_type" => set_text(&mut p.content_type, value),
        "content_encoding" => set_text(&mut p.content_encoding, value),
        "correlation_id" => set_text(&mut p.correlation_id, value),
        "message_id" => set_text(&mut p.message_id, value),
        "type" => set_text(&mut p.kind, value),
        "app_id" => set_text(&mut p.app_id, value),
        "cluster_id" => set_text(&mut p.cluster_id, value),
        _ => false,
    }
}

fn set_text(slot: &mut Option<Text>, value: &Text) -> bool {
    let fits = value.len() <= SHORT;
    if fits {
        *slot = Some(value.clone());
    }
    fits
}

fn set_number<N>(slot: &mut Option<N>, value: &Text, fits: impl FnOnce(&N) -> bool) -> bool
where
    N: Copy + std::str::FromStr + ToString,
{
    let value = number(value).filter(fits);
    if value.is_some() {
        *slot = value;
    }
    value.is_some()
}

/// A decimal number as it is written back: no sign, no leading zero, so that its text survives a way
/// through AMQP and back.
fn number<N: std::str::FromStr + ToString>(value: &Text) -> Option<N> {
    let number: N = value.as_str().parse().ok()?;
    (number.to_string() == value.as_str()).then_some(number)
}

#[cfg(test)]
mod tests;
