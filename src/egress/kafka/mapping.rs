//! Maps any message to a Kafka record. Pure; knows nothing of the client library.
//!
//! A message from Kafka only gets the [`DelayHeaders`]. Of a message from AMQP the routing key becomes the key, typed
//! header values become bytes, and properties become headers. [`super::super::rabbitmq::mapping`] is the way back, and
//! `docs/headers.md` has the table of both.

use std::borrow::Cow;

use crate::domain::message::stamped;
use crate::domain::{Header, HeaderValue, Message, Origin, Properties, Text};
use crate::egress::{DelayHeaders, bridge_headers};
use crate::telemetry::traces::TRACEPARENT;

/// A record for a Kafka producer, without its topic. Unchanged parts are borrowed from the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::egress) struct KafkaRecord<'a> {
    /// The key; `None` is null.
    pub key: Option<Cow<'a, [u8]>>,
    /// The value; `None` is null.
    pub value: Option<&'a [u8]>,
    /// Headers in order, repeats kept; a `None` value is null.
    pub headers: Vec<KafkaHeader<'a>>,
}

/// Name and value of a header; `None` is null.
pub(in crate::egress) type KafkaHeader<'a> = (Cow<'a, str>, Option<Cow<'a, [u8]>>);

/// Maps a message to a record. `delay_headers` is `None` for a message that passes through.
pub(in crate::egress) fn to_kafka<'a>(
    message: &'a Message,
    delay_headers: Option<DelayHeaders<'a>>,
) -> KafkaRecord<'a> {
    let mut record = match message.origin {
        Origin::Kafka => from_kafka(message),
        Origin::Rabbitmq => from_amqp(message),
    };
    if let Some(delay_headers) = delay_headers {
        if let Some(traceparent) = delay_headers.traceparent {
            record.headers.retain(|(name, _)| name != TRACEPARENT);
            record.headers.push((
                TRACEPARENT.into(),
                Some(Cow::from(&traceparent.bytes()[..])),
            ));
        }
        record.headers.push((
            stamped::ID.into(),
            Some(Cow::from(&delay_headers.id.bytes()[..])),
        ));
        record
            .headers
            .push((stamped::DUE.into(), Some(text(&delay_headers.due))));
        if delay_headers.attempt >= 2 {
            record
                .headers
                .push((stamped::ATTEMPT.into(), Some(text(&delay_headers.attempt))));
        }
        if delay_headers.given_back >= 1 {
            record
                .headers
                .push((stamped::RETRY.into(), Some(text(&delay_headers.given_back))));
        }
    }
    record
}

/// The key of the message's record.
pub(super) fn key(message: &Message) -> Option<Cow<'_, [u8]>> {
    let own = message.key.as_deref().map(Cow::from);
    if message.origin == Origin::Kafka {
        return own;
    }
    let mut headers = message.headers.iter().rev();
    let bridged = headers.find(|header| header.name.as_str() == bridge_headers::KAFKA_KEY);
    bridged.map_or(own, |header| header.value.plain())
}

fn from_kafka(message: &Message) -> KafkaRecord<'_> {
    // Room for the headers of a delayed message.
    let mut headers = Vec::with_capacity(message.headers.len() + stamped::ALL.len());
    headers.extend(
        message
            .headers
            .iter()
            .map(|h| (h.name.as_str().into(), h.value.plain())),
    );
    KafkaRecord {
        key: key(message),
        value: message.body.as_deref(),
        headers,
    }
}

fn from_amqp(message: &Message) -> KafkaRecord<'_> {
    let mut value = message.body.as_deref();
    let mut headers = Vec::with_capacity(message.headers.len() + 8);
    for Header {
        name,
        value: header,
    } in &message.headers
    {
        match (name.as_str(), header) {
            (bridge_headers::KAFKA_KEY, _) => {}
            // Postdate writes this header as `true` beside an empty body. In any other form it is a header of the user:
            // a body is never thrown away, and a Kafka header of this name comes back as one.
            (bridge_headers::KAFKA_NULL_VALUE, HeaderValue::Bool(true))
                if message.body_len() == 0 =>
            {
                value = None;
            }
            _ => headers.push((name.as_str().into(), header.plain())),
        }
    }
    // Properties come behind the headers: on the way back the last of a name counts, so a property wins over a header
    // that only looks like one.
    if let Some(properties) = &message.properties {
        push_properties(&mut headers, properties);
    }
    KafkaRecord {
        key: key(message),
        value,
        headers,
    }
}

fn push_properties<'a>(headers: &mut Vec<KafkaHeader<'a>>, p: &'a Properties) {
    let mut push = |name: &str, value: Option<Cow<'a, [u8]>>| {
        if value.is_some() {
            headers.push((
                format!("{}{name}", bridge_headers::AMQP_PREFIX).into(),
                value,
            ));
        }
    };
    let own = |text: &'a Option<Text>| text.as_ref().map(|t| Cow::from(&t.bytes()[..]));
    push("content_type", own(&p.content_type));
    push("content_encoding", own(&p.content_encoding));
    push("delivery_mode", p.delivery_mode.as_ref().map(text));
    push("priority", p.priority.as_ref().map(text));
    push("correlation_id", own(&p.correlation_id));
    push("reply_to", own(&p.reply_to));
    push("expiration", own(&p.expiration));
    push("message_id", own(&p.message_id));
    push("timestamp", p.timestamp.as_ref().map(text));
    push("type", own(&p.kind));
    push("user_id", own(&p.user_id));
    push("app_id", own(&p.app_id));
    push("cluster_id", own(&p.cluster_id));
}

/// The text of a value, as bytes.
fn text<'a>(value: &impl ToString) -> Cow<'a, [u8]> {
    Cow::from(value.to_string().into_bytes())
}

#[cfg(test)]
mod tests;
