//! What is published for a message: headers, properties, routing key and body. Pure.

use bytes::Bytes;

use crate::domain::{Header, HeaderValue, Message, Properties, RoutingKey, Text};
use crate::egress::Stamp;

/// A message as it goes out on AMQP.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outgoing {
    pub(super) routing_key: Text,
    pub(super) body: Bytes,
    pub(super) headers: Vec<Header>,
    pub(super) properties: Properties,
}

/// Maps a message that came from AMQP: all as it came, and the stamp. A stamped message loses `CC` and
/// `BCC` (they would add routes) and a `user_id` that is not our own (the broker would refuse it).
pub(super) fn to_amqp(
    message: &Message,
    stamp: Option<&Stamp>,
    routing_key: &RoutingKey,
    own_user: &str,
) -> Outgoing {
    let own_key = || {
        let key = message.key.clone().unwrap_or_default();
        Text::from_utf8(key).unwrap_or_default()
    };
    let routing_key = match routing_key {
        RoutingKey::Preserve | RoutingKey::Key => own_key(),
        RoutingKey::Fixed(key) => Text::from(key.as_str()),
    };
    let mut headers = message.headers.clone();
    let mut properties = message.properties.as_deref().cloned().unwrap_or_default();
    if let Some(stamp) = stamp {
        let replaced = ["CC", "BCC", "x-delay-id", "x-delay-due", "x-delay-attempt"];
        headers.retain(|h| !replaced.contains(&h.name.as_str()));
        headers.push(Header::new("x-delay-id", HeaderValue::LongString(stamp.id.bytes().clone())));
        headers.push(Header::new("x-delay-due", HeaderValue::I64(stamp.due.0)));
        if stamp.attempt > 1 {
            headers.push(Header::new("x-delay-attempt", HeaderValue::I64(i64::from(stamp.attempt))));
        }
        properties.user_id = properties.user_id.filter(|user| user.as_str() == own_user);
    }
    Outgoing { routing_key, body: message.body.clone().unwrap_or_default(), headers, properties }
}
