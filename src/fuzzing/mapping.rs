//! The mappings between the technologies, both ways.

use super::input::Input;
use crate::domain::{HeaderValue, Message, Origin, RoutingKey, Text, UnixMs};
use crate::egress::DelayHeaders;
use crate::egress::fuzzing::{through_kafka, through_rabbitmq};

/// A message goes to either technology as it was counted and checked, and comes back unchanged as far as `docs/headers.md`
/// promises: what goes through Kafka twice changes no more, and key and value survive Kafka to RabbitMQ to Kafka.
///
/// # Panics
/// If a promise is broken.
pub fn mapping(data: &[u8]) {
    let mut input = Input::new(data);
    let id = input.text();
    let due = UnixMs(input.signed());
    let attempt = u32::from(input.byte());
    let is_delayed = input.flag();
    let copies = input.flag();
    let routing_key = if input.flag() {
        RoutingKey::Key
    } else {
        RoutingKey::Fixed("key".to_owned())
    };
    let delay_headers = is_delayed.then_some(DelayHeaders {
        id: &id,
        due,
        attempt,
        given_back: 0,
        traceparent: None,
    });
    let message = input.message();

    let record = through_kafka(&message, delay_headers);
    assert_eq!(through_kafka(&record, None), record, "a record is a record");
    let Some(delivered) = through_rabbitmq(&message, delay_headers, &routing_key, copies) else {
        return;
    };
    let back = through_kafka(&delivered, None);
    if message.origin == Origin::Kafka {
        assert_eq!(
            (&back.key, &back.body),
            (&message.key, &message.body),
            "{message:?}"
        );
        assert!(value(&back, "kafka.key").is_none(), "{back:?}");
    }
    if let Some(again) = through_rabbitmq(&delivered, None, &routing_key, copies) {
        // The text of a float that is no number equals itself.
        assert_eq!(format!("{again:?}"), format!("{delivered:?}"));
    }
}

fn value<'a>(message: &'a Message, name: &'static str) -> Option<&'a HeaderValue> {
    let name = Text::from_static(name);
    message
        .headers
        .iter()
        .find(|header| header.name == name)
        .map(|header| &header.value)
}
