//! Refuses messages that are known to make the broker close a channel or a connection. Pure.

use lapin::BasicProperties;

use super::mapping::AmqpMessage;
use crate::broker::rabbitmq as amqp;
use crate::domain::HeaderValue;
use crate::domain::verdict::Refusal;

/// Bytes of header and end of a frame around its payload.
const FRAME_OVERHEAD: usize = 8;
/// Longest time to live that RabbitMQ accepts, ms.
const MAX_EXPIRATION: i64 = 0xFFFF_FFFF;

/// Checks a message. Returns its properties in types of the client library, or the reason why the broker would close
/// the channel or the connection.
pub(in crate::egress) fn checked(
    outgoing: &AmqpMessage,
    own_user: Option<&str>,
    frame_max: usize,
) -> Result<BasicProperties, (Refusal, String)> {
    let too_big = |text: String| Err((Refusal::TooBig, text));
    let wire_len = amqp::wire_len(&outgoing.headers, &outgoing.properties) + FRAME_OVERHEAD;
    // A `frame_max` of 0 means that no limit was agreed.
    if frame_max > 0 && wire_len > frame_max {
        return too_big(format!(
            "headers and properties take {wire_len} bytes, the broker's frame {frame_max}"
        ));
    }
    if let Some(user) = outgoing
        .properties
        .user_id
        .as_ref()
        .filter(|user| Some(user.as_str()) != own_user)
    {
        return unpublishable(format!(
            "its user_id {user:?} is not the connection's own user"
        ));
    }
    if let Some(expiration) = &outgoing.properties.expiration
        && !expiration
            .as_str()
            .parse()
            .is_ok_and(|ms: i64| (0..=MAX_EXPIRATION).contains(&ms))
    {
        return unpublishable(format!(
            "its expiration {expiration:?} is not a number of milliseconds"
        ));
    }
    if let Some(name) = broken_copies(outgoing) {
        return unpublishable(format!("its header {name} is not an array of long strings"));
    }
    match amqp::to_amqp(&outgoing.headers, &outgoing.properties) {
        Ok(properties) => Ok(properties),
        Err(too_long) => too_big(too_long.to_string()),
    }
}

fn unpublishable<T>(text: String) -> Result<T, (Refusal, String)> {
    Err((Refusal::Unpublishable, text))
}

/// The name of a `CC` or `BCC` header that RabbitMQ cannot read as routing keys.
fn broken_copies(outgoing: &AmqpMessage) -> Option<&str> {
    outgoing
        .headers
        .iter()
        .filter(|h| matches!(h.name.as_str(), "CC" | "BCC"))
        .find(|h| !are_routing_keys(&h.value))
        .map(|h| h.name.as_str())
}

/// Reports whether RabbitMQ can read a header's value as routing keys.
fn are_routing_keys(value: &HeaderValue) -> bool {
    let HeaderValue::Array(keys) = value else {
        return false;
    };
    keys.iter()
        .all(|key| matches!(key, HeaderValue::LongString(_)))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::domain::{Header, Properties};

    fn outgoing(headers: Vec<Header>, properties: Properties) -> AmqpMessage {
        AmqpMessage {
            routing_key: "k".into(),
            body: Bytes::new(),
            headers,
            properties,
        }
    }

    fn reason(outgoing: &AmqpMessage) -> Option<Refusal> {
        checked(outgoing, Some("me"), 4096)
            .err()
            .map(|(reason, _)| reason)
    }

    #[test]
    fn what_kills_a_channel_or_a_connection_is_refused_first() {
        let long = |n: usize| HeaderValue::LongString(Bytes::from(vec![b'x'; n]));
        let with =
            |name: &str, value| outgoing(vec![Header::new(name, value)], Properties::default());
        let user = |user: &str| Properties {
            user_id: Some(user.into()),
            ..Properties::default()
        };
        let expires = |ms: &str| Properties {
            expiration: Some(ms.into()),
            ..Properties::default()
        };
        let keys = HeaderValue::Array(vec![long(3)]);
        let unpublishable = Some(Refusal::Unpublishable);
        let cases = [
            (with("h", long(3000)), None),
            (with("h", long(5000)), Some(Refusal::TooBig)),
            (
                with(&"n".repeat(256), HeaderValue::Null),
                Some(Refusal::TooBig),
            ),
            (outgoing(vec![], user("me")), None),
            (outgoing(vec![], user("you")), unpublishable),
            (outgoing(vec![], expires("0")), None),
            (outgoing(vec![], expires("4294967295")), None),
            (outgoing(vec![], expires("4294967296")), unpublishable),
            (outgoing(vec![], expires("-1")), unpublishable),
            (outgoing(vec![], expires("1s")), unpublishable),
            (with("CC", keys), None),
            (with("CC", long(3)), unpublishable),
        ];
        for (outgoing, expected) in cases {
            assert_eq!(reason(&outgoing), expected, "{outgoing:?}");
        }
    }
}
