//! A message's content, as callers give it: turned into what a producer of the route's own technology would have sent.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::inject::InvalidMessage;
use super::problem::Problem;
use crate::api::Timestamp;
use crate::domain::{Endpoint, Header, HeaderNames, HeaderValue, Origin, Properties, Route};

/// The technology that the route reads.
pub(super) fn origin(route: &Route) -> Origin {
    match route.from {
        Endpoint::Kafka { .. } => Origin::Kafka,
        Endpoint::Rabbitmq { .. } => Origin::Rabbitmq,
    }
}

/// The properties of a message that nobody gave any: on RabbitMQ it is persistent, as every message that Postdate publishes.
pub(super) fn properties(origin: Origin) -> Option<Box<Properties>> {
    (origin == Origin::Rabbitmq).then(|| {
        Box::new(Properties {
            delivery_mode: Some(2),
            ..Properties::default()
        })
    })
}

/// The key that the caller gave; `None`: it gave none.
pub(super) fn key(origin: Origin, key: Option<String>) -> Result<Option<Bytes>, Problem> {
    if key.is_some() && origin == Origin::Rabbitmq {
        return Err(Problem::bad(
            "`key` is for routes from Kafka: a queue is reached by its name as routing key",
        ));
    }
    Ok(key.map(Bytes::from))
}

/// The body that the caller gave; `None`: it gave none.
pub(super) fn body(text: Option<String>, base64: Option<String>) -> Result<Option<Bytes>, Problem> {
    match (text, base64) {
        (Some(_), Some(_)) => Err(Problem::bad(
            "`body` and `body_base64` cannot stand together",
        )),
        (text, None) => Ok(text.map(Bytes::from)),
        (None, Some(coded)) => match STANDARD.decode(coded) {
            Ok(bytes) => Ok(Some(Bytes::from(bytes))),
            Err(e) => Err(Problem::bad(format!("`body_base64` is not base64: {e}"))),
        },
    }
}

/// The delay header of the time that the caller gave; `None`: it gave none.
pub(super) fn time(
    origin: Origin,
    names: &HeaderNames,
    delay: Option<Timestamp>,
    at: Option<Timestamp>,
) -> Result<Option<Header>, Problem> {
    let (name, time) = match (delay, at) {
        (Some(_), Some(_)) => {
            return Err(Problem::bad("`delay` and `at` cannot stand together"));
        }
        (Some(delay), None) => (&names.delay, delay),
        (None, Some(at)) => (&names.deliver_at, at),
        (None, None) => return Ok(None),
    };
    Ok(Some(header(origin, name.clone(), time.text())))
}

/// The headers that the caller gave. The delay headers that have a field of their own are not for it.
pub(super) fn headers(
    origin: Origin,
    names: &HeaderNames,
    given: BTreeMap<String, String>,
) -> Result<Vec<Header>, Problem> {
    let own = [&names.delay, &names.deliver_at, &names.id, &names.op];
    for name in given.keys() {
        if own.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            let name = name.escape_debug();
            return Err(Problem::bad(format!(
                "the header `{name}` is not for `headers`: use `delay`, `at` and `id`"
            )));
        }
    }
    let given = given.into_iter();
    Ok(given
        .map(|(name, value)| header(origin, name, value))
        .collect())
}

/// A header of text.
pub(super) fn header(origin: Origin, name: String, value: String) -> Header {
    let value = Bytes::from(value);
    let value = match origin {
        Origin::Kafka => HeaderValue::Bytes(value),
        Origin::Rabbitmq => HeaderValue::LongString(value),
    };
    Header::new(name, value)
}

/// The problem of a message that its route would call invalid.
pub(super) fn not_taken(unfit: &InvalidMessage) -> Problem {
    let detail = format!("the route would not take this message: {}", unfit.error);
    Problem::bad(detail).reason(unfit.reason.as_str())
}
