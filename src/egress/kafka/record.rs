//! From a message that came from Kafka to a record: byte for byte, and the stamp.

use rdkafka::message::{Header, OwnedHeaders};

use crate::domain::{HeaderValue, Message};
use crate::egress::Stamp;

/// The headers of a record: the message's own in their order, then the stamp's in place of any of the
/// same name. `Err` names what librdkafka cannot carry.
pub(super) fn headers(message: &Message, stamp: Option<&Stamp>) -> Result<Option<OwnedHeaders>, String> {
    if message.headers.is_empty() && stamp.is_none() {
        return Ok(None);
    }
    let mut headers = OwnedHeaders::new_with_capacity(message.headers.len() + 3);
    for header in &message.headers {
        let name = header.name.as_str();
        if stamp.is_some() && STAMP.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            continue;
        }
        // The client library ends names at a NUL when it sends them.
        if name.contains('\0') {
            return Err("a header's name holds a NUL byte".to_owned());
        }
        let value = match &header.value {
            HeaderValue::Null => None,
            HeaderValue::Bytes(bytes) | HeaderValue::LongString(bytes) => Some(&bytes[..]),
            other => return Err(format!("header {name}: a Kafka record cannot hold {other:?}")),
        };
        headers = headers.insert(Header { key: name, value });
    }
    if let Some(stamp) = stamp {
        headers = headers.insert(Header { key: STAMP[0], value: Some(stamp.id.as_str()) });
        headers = headers.insert(Header { key: STAMP[1], value: Some(&stamp.due.to_string()) });
        if stamp.attempt >= 2 {
            headers = headers.insert(Header { key: STAMP[2], value: Some(&stamp.attempt.to_string()) });
        }
    }
    Ok(Some(headers))
}

const STAMP: [&str; 3] = ["x-delay-id", "x-delay-due", "x-delay-attempt"];
