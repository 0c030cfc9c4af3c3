//! Maps any message to an AMQP message. Pure; knows nothing of the client library.
//!
//! A message from AMQP gets the [`DelayHeaders`] and loses fields that a delayed message must not keep. Of a record
//! from Kafka the header `amqp.<property>` becomes the property, key and null value become headers, and values get
//! types of AMQP. [`super::super::kafka::mapping`] is the way back, and `docs/headers.md` has the table of both.

use std::collections::HashSet;

use bytes::Bytes;

use crate::domain::message::stamped;
use crate::domain::verdict::Refusal;
use crate::domain::{Header, HeaderValue, Message, Origin, Properties, RoutingKey, Text};
use crate::egress::{DelayHeaders, bridge_headers};
use crate::mutants::{self, Mutant};
use crate::telemetry::traces::TRACEPARENT;

/// Longest short string of AMQP, in bytes: routing keys, header names, most properties.
const MAX_SHORT_STRING: usize = 255;
/// Headers with further routing keys that the sender chose. RabbitMQ reads both of every publish, and closes the
/// channel if they are no arrays.
const SENDER_SELECTED: [&str; 2] = ["CC", "BCC"];
/// Queue of direct reply-to. RabbitMQ closes the channel of a publisher that names it and does not consume it.
const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to";
/// Delivery mode of messages that must survive a restart of their broker.
const PERSISTENT_MODE: u8 = 2;

/// A message for an AMQP channel, without its exchange. Its bytes are shared with those of the message.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::egress) struct AmqpMessage {
    /// At most 255 bytes.
    pub routing_key: Text,
    /// The basic properties, without the header table.
    pub properties: Properties,
    /// The header table. Names have at most 255 bytes, and none is repeated.
    pub headers: Vec<Header>,
    /// The body.
    pub body: Bytes,
}

/// Error for a message that AMQP cannot carry. No publish of it can succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::egress) struct UnfitMessage {
    /// The reason that a broker would have had to refuse it.
    pub reason: Refusal,
    /// A sentence on the field that does not fit.
    pub error: Text,
}

/// Rules of a target and its connection for the messages published there.
#[derive(Clone, Copy, Debug)]
pub(in crate::egress) struct AmqpRules<'a> {
    /// The rule for the routing key.
    pub routing_key: &'a RoutingKey,
    /// The user of the connection, the only `user_id` that RabbitMQ lets it publish.
    pub own_user: Option<&'a str>,
    /// The headers `CC` and `BCC` stay: RabbitMQ publishes to their routing keys too.
    pub copies: bool,
}

/// Maps a message to an AMQP message. `delay_headers` is `None` for a message that passes through; if it came from
/// AMQP, it stays as it is, but for `CC` and `BCC`.
pub(in crate::egress) fn to_amqp(
    message: &Message,
    delay_headers: Option<DelayHeaders<'_>>,
    rules: AmqpRules<'_>,
) -> Result<AmqpMessage, UnfitMessage> {
    let routing_key = route_by(message, rules.routing_key)?;
    let (mut properties, mut headers) = match message.origin {
        Origin::Rabbitmq => {
            let properties = message.properties.as_deref().cloned().unwrap_or_default();
            (properties, message.headers.clone())
        }
        Origin::Kafka => from_kafka(message)?,
    };
    if !rules.copies && !mutants::is(Mutant::CopiesPass) {
        headers.retain(|h| !SENDER_SELECTED.contains(&h.name.as_str()));
    }
    if let Some(delay_headers) = delay_headers {
        properties.user_id = properties
            .user_id
            .filter(|user| Some(user.as_str()) == rules.own_user);
        if let Some(traceparent) = delay_headers.traceparent {
            headers.retain(|header| header.name.as_str() != TRACEPARENT);
            push(
                &mut headers,
                TRACEPARENT,
                HeaderValue::LongString(traceparent.bytes().clone()),
            );
        }
        push(
            &mut headers,
            stamped::ID,
            HeaderValue::LongString(delay_headers.id.bytes().clone()),
        );
        push(
            &mut headers,
            stamped::DUE,
            HeaderValue::I64(delay_headers.due.0),
        );
        if delay_headers.attempt >= 2 {
            push(
                &mut headers,
                stamped::ATTEMPT,
                HeaderValue::I64(delay_headers.attempt.into()),
            );
        }
        if delay_headers.given_back >= 1 {
            push(
                &mut headers,
                stamped::RETRY,
                HeaderValue::I64(delay_headers.given_back.into()),
            );
        }
    }
    Ok(AmqpMessage {
        routing_key,
        properties,
        headers,
        body: message.body.clone().unwrap_or_default(),
    })
}

fn push(headers: &mut Vec<Header>, name: &'static str, value: HeaderValue) {
    headers.push(Header {
        name: Text::from_static(name),
        value,
    });
}

fn route_by(message: &Message, rule: &RoutingKey) -> Result<Text, UnfitMessage> {
    let key = match rule {
        RoutingKey::Fixed(key) => Some(Text::from(key.as_str())),
        // A null key routes as the empty one.
        RoutingKey::Preserve | RoutingKey::Key => {
            Text::from_utf8(message.key.clone().unwrap_or_default())
        }
    };
    let Some(key) = key else {
        let error = Text::from_static("the key is not UTF-8, so it cannot be a routing key");
        return Err(UnfitMessage {
            reason: Refusal::Unpublishable,
            error,
        });
    };
    short("routing key", &key)?;
    Ok(key)
}

/// Refuses a text that is too long for a short string: AMQP writes its length in one byte.
fn short(what: &str, text: &Text) -> Result<(), UnfitMessage> {
    if text.len() <= MAX_SHORT_STRING {
        return Ok(());
    }
    let error = format!(
        "a {what} of {} bytes, AMQP takes {MAX_SHORT_STRING}",
        text.len()
    )
    .into();
    Err(UnfitMessage {
        reason: Refusal::TooBig,
        error,
    })
}

/// Properties and header table of a Kafka record. The last header of a name counts, as a table has each name once. The
/// headers for key and null value come behind all others, so they win over one of their name.
fn from_kafka(message: &Message) -> Result<(Properties, Vec<Header>), UnfitMessage> {
    let mut properties = Properties {
        delivery_mode: Some(PERSISTENT_MODE),
        ..Properties::default()
    };
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
        let property = name
            .strip_prefix(bridge_headers::AMQP_PREFIX)
            .zip(text(&header.value));
        if property.is_some_and(|(property, value)| set(&mut properties, property, &value)) {
            continue;
        }
        short("header name", &header.name)?;
        headers.push(Header {
            name: header.name.clone(),
            value: typed(header.value.clone()),
        });
    }
    headers.reverse();
    let key = message
        .key
        .clone()
        .map_or(HeaderValue::Null, HeaderValue::Bytes);
    push(&mut headers, bridge_headers::KAFKA_KEY, typed(key));
    if message.body.is_none() {
        push(
            &mut headers,
            bridge_headers::KAFKA_NULL_VALUE,
            HeaderValue::Bool(true),
        );
    }
    Ok((properties, headers))
}

/// Turns bytes that are text into a long string, which an AMQP consumer expects.
fn typed(value: HeaderValue) -> HeaderValue {
    match value {
        HeaderValue::Bytes(bytes) if std::str::from_utf8(&bytes).is_ok() => {
            HeaderValue::LongString(bytes)
        }
        other => other,
    }
}

fn text(value: &HeaderValue) -> Option<Text> {
    match value {
        HeaderValue::Bytes(bytes) | HeaderValue::LongString(bytes) => {
            Text::from_utf8(bytes.clone())
        }
        _ => None,
    }
}

/// Sets a property. Returns false and sets nothing if there is no property of this name, or if the value does not fit:
/// RabbitMQ closes the channel over a wrong one. `user_id` is never set, as a Kafka record must not claim a user.
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
    let fits = value.len() <= MAX_SHORT_STRING;
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

/// Parses a decimal number that is written back as it is: without a sign and leading zeros. Its text survives the way
/// through AMQP and back.
fn number<N: std::str::FromStr + ToString>(value: &Text) -> Option<N> {
    let number: N = value.as_str().parse().ok()?;
    (number.to_string() == value.as_str()).then_some(number)
}

#[cfg(test)]
mod tests;
