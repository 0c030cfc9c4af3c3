//! Dead letters made at ingress: the part of an invalid message that is kept, and the write that makes a dead
//! letter. Pure.

use std::sync::Arc;

use crate::domain::{
    DeadLetterLimits, DeadReason, Entry, Flags, Origin, Route, RoutePolicy, TargetRef, UnixMs,
    dying_message,
};
use crate::store::{Bundle, DeadLetter, WriteOp};

/// The write for a message that is dead: keep it as a dead letter, or store it for `dead_letter_to` first.
/// `target` is the target that it was for.
pub(super) fn to_write_op(
    route: &Route,
    reason: DeadReason,
    target: TargetRef,
    mut entry: Entry,
    now: UnixMs,
) -> WriteOp {
    if route.dead_letter_to.is_some() && !entry.flags.has(Flags::LEFT_OUT) {
        dying_message::begin(&mut entry, now, reason);
        dying_op(route, target, entry)
    } else {
        dead_op(route, reason, target, entry)
    }
}

/// The write for a message that is a dead letter once `dead_letter_to` has confirmed it.
pub(super) fn dying_op(route: &Route, target: TargetRef, entry: Entry) -> WriteOp {
    WriteOp::Store {
        route: route.name.clone(),
        on_duplicate: route.policy.on_duplicate,
        bundle: Bundle {
            target,
            entries: Arc::new(vec![entry]),
        },
    }
}

/// The write for a message that is a dead letter now.
pub(super) fn dead_op(
    route: &Route,
    reason: DeadReason,
    target: TargetRef,
    entry: Entry,
) -> WriteOp {
    WriteOp::DeadLetter(DeadLetter::of(route.name.clone(), reason, target, entry))
}

/// Reduces an invalid message to `max_message`. `None` if its queue must take it back, for its own dead-letter
/// exchange.
///
/// A Kafka record over `max_message` stays in its topic, where its position finds it, so its body is left out.
/// A RabbitMQ delivery exists nowhere else, so its queue must take it back, also if its body was left out before.
pub(super) fn fit_entry(mut entry: Entry, policy: &RoutePolicy) -> Option<Entry> {
    let DeadLetterLimits { max_message, .. } = policy.dead_letters;
    let message = &mut entry.message;
    let is_whole = !entry.flags.has(Flags::LEFT_OUT);
    if is_whole && message.size() <= max_message {
        return Some(entry);
    }
    if message.origin == Origin::Rabbitmq {
        return None;
    }
    message.body = None;
    if message.headers_len() > policy.max_headers {
        message.headers.clear();
    }
    if message.key.as_ref().map_or(0, bytes::Bytes::len) > policy.max_headers {
        message.key = None;
    }
    entry.flags = entry.flags.with(Flags::LEFT_OUT);
    Some(entry)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::domain::{Header, HeaderValue, UnixMs, testing};

    #[test]
    fn what_is_too_large_leaves_its_body_in_its_topic_and_goes_back_to_its_queue() {
        let mut policy = testing::route().policy.clone();
        policy.dead_letters.max_message = 100;
        policy.max_headers = 50;
        let entry = |body: usize, header: usize| {
            let mut entry = testing::entry(UnixMs(0), b"");
            entry.message.body = Some(Bytes::from(vec![0; body]));
            entry.message.headers =
                vec![Header::new("h", HeaderValue::Bytes(vec![0; header].into()))];
            entry.message.key = Some(Bytes::from_static(b"key"));
            entry
        };
        let fits = entry(95, 1);
        assert_eq!(fit_entry(fits.clone(), &policy), Some(fits), "inclusive");
        let Some(short) = fit_entry(entry(96, 1), &policy) else {
            panic!("from Kafka it is kept")
        };
        assert!(short.flags.has(Flags::LEFT_OUT) && short.message.body.is_none());
        assert_eq!(
            (short.message.headers.len(), short.message.key),
            (1, Some("key".into()))
        );
        let Some(short) = fit_entry(entry(1, 99), &policy) else {
            panic!("from Kafka it is kept")
        };
        assert_eq!(short.message.headers, []);
        let mut amqp = entry(96, 1);
        amqp.message.origin = Origin::Rabbitmq;
        assert_eq!(fit_entry(amqp, &policy), None);
        let mut amqp = entry(0, 1);
        amqp.message.origin = Origin::Rabbitmq;
        amqp.flags = amqp.flags.with(Flags::LEFT_OUT);
        assert_eq!(fit_entry(amqp, &policy), None, "its body never came");
    }
}
