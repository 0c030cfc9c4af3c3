//! Carries messages through both mappings, for fuzzing and for the tests of the mappings.

use bytes::Bytes;

use super::kafka::mapping::KafkaRecord;
use super::rabbitmq::mapping::AmqpMessage;
use crate::domain::{Header, HeaderValue, Message, Origin};

#[cfg(feature = "fuzzing")]
pub use carried::{through_kafka, through_rabbitmq};

/// The message that a consumer reads after a publish to RabbitMQ.
pub(in crate::egress) fn delivered(published: AmqpMessage) -> Message {
    Message {
        origin: Origin::Rabbitmq,
        key: Some(published.routing_key.bytes().clone()),
        body: Some(published.body),
        headers: published.headers,
        properties: Some(Box::new(published.properties)),
    }
}

/// The message that a consumer reads after a publish to Kafka.
pub(in crate::egress) fn consumed(record: &KafkaRecord<'_>) -> Message {
    let bytes = |b: &[u8]| Bytes::copy_from_slice(b);
    let value = |v: Option<&[u8]>| v.map_or(HeaderValue::Null, |v| HeaderValue::Bytes(bytes(v)));
    let headers = record
        .headers
        .iter()
        .map(|(name, v)| Header::new(&**name, value(v.as_deref())));
    Message {
        origin: Origin::Kafka,
        key: record.key.as_deref().map(bytes),
        body: record.value.map(bytes),
        headers: headers.collect(),
        properties: None,
    }
}

#[cfg(feature = "fuzzing")]
mod carried {
    use crate::broker::rabbitmq as amqp;
    use crate::domain::{Message, RoutingKey};
    use crate::egress::DelayHeaders;
    use crate::egress::kafka::mapping::to_kafka;
    use crate::egress::rabbitmq::checked;
    use crate::egress::rabbitmq::mapping::{AmqpMessage, AmqpRules, to_amqp};

    /// User of the connection that publishes.
    const OWN_USER: Option<&str> = Some("postdate");
    /// Size of a frame that connection agrees on: RabbitMQ's default.
    const FRAME_MAX: usize = 128 * 1024;
    /// Bytes of header and end of a frame around its payload.
    const FRAME_OVERHEAD: usize = 8;

    /// Publishes a message to Kafka and returns it as it is read there.
    pub fn through_kafka(message: &Message, delay_headers: Option<DelayHeaders<'_>>) -> Message {
        super::consumed(&to_kafka(message, delay_headers))
    }

    /// Publishes a message to RabbitMQ and returns it as it is read there. `None` for a message that would be refused.
    ///
    /// # Panics
    /// If it changes on its way, or takes more bytes than the check before the publish counted.
    pub fn through_rabbitmq(
        message: &Message,
        delay_headers: Option<DelayHeaders<'_>>,
        routing_key: &RoutingKey,
        copies: bool,
    ) -> Option<Message> {
        let rules = AmqpRules {
            routing_key,
            own_user: OWN_USER,
            copies,
        };
        let outgoing = to_amqp(message, delay_headers, rules).ok()?;
        let properties = checked(&outgoing, OWN_USER, FRAME_MAX).ok()?;
        let (frame_len, read) = amqp::fuzzing::over_the_wire(&properties)?;
        let counted = amqp::wire_len(&outgoing.headers, &outgoing.properties) + FRAME_OVERHEAD;
        assert!(
            frame_len <= counted,
            "{frame_len} bytes on the wire, {counted} counted: {outgoing:?}"
        );
        // The text of a float that is no number equals itself.
        assert_eq!(format!("{read:?}"), format!("{properties:?}"));
        let (headers, properties) = amqp::from_amqp(&read);
        Some(super::delivered(AmqpMessage {
            properties,
            headers,
            ..outgoing
        }))
    }
}
