use super::*;
use crate::domain::route::Dialects;

const DUE: &str = "2026-11-21T10:00:02";

fn route() -> Route {
    let mut route = super::route();
    route.policy.dialects = Dialects {
        amqp10: true,
        celery: true,
    };
    route
}

/// The due time, the name, the expiry and the headers that are left of a delayed message.
type Read = (UnixMs, Option<Text>, Option<Expiry>, Vec<String>);

fn read(message: &Message, route: &Route) -> Read {
    match admit_now(message, route) {
        (Admission::Delayed { asked, id, .. }, message) => {
            let names = message.headers.iter().map(|h| h.name.to_string());
            (asked.due, id, asked.request.expires, names.collect())
        }
        (other, _) => panic!("{:?}: {other:?}", message.headers),
    }
}

fn read_both(headers: &[(&str, &str)]) -> Read {
    let [kafka, rabbitmq] = both(headers).map(|message| read(&message, &route()));
    assert_eq!(kafka, rabbitmq);
    kafka
}

fn amqp(headers: &[(&str, HeaderValue)]) -> Message {
    let [_, mut message] = both(&[]);
    message.headers = headers
        .iter()
        .map(|(name, value)| Header::new(*name, value.clone()))
        .collect();
    message
}

#[test]
fn a_celery_task_with_an_eta_is_delayed_under_its_own_id_and_run_at_once_when_it_arrives() {
    let due = ARRIVAL.plus(2000);
    let task = [
        ("lang", "py"),
        ("task", "shop.cancel"),
        ("id", "8f1c"),
        ("eta", "2026-11-21T10:00:02+00:00"),
        ("expires", "2026-11-21T10:01:00.000000"),
    ];
    let (at, id, expires, left) = read_both(&task);
    assert_eq!((at, id), (due, Some("8f1c".into())));
    assert_eq!(expires, Some(Expiry::at(ARRIVAL.plus(60_000))));
    assert_eq!(left, ["lang", "task", "id", "expires"]);
    // Python writes no offset where a time has no zone: Celery means UTC.
    assert_eq!(read_both(&[("eta", DUE)]).0, due);
}

#[test]
fn null_says_nothing_in_a_dialect_and_is_refused_in_the_routes_own_headers() {
    let id = || HeaderValue::LongString("8f1c".into());
    let task = [
        ("eta", HeaderValue::Null),
        ("expires", HeaderValue::Null),
        ("id", id()),
    ];
    let message = amqp(&task);
    let (Admission::PassThrough { .. }, out) = admit_now(&message, &route()) else {
        panic!("a task without an eta passes");
    };
    assert_eq!(out, message);
    let delayed = amqp(&[
        ("x-delay", HeaderValue::I32(2000)),
        ("expires", HeaderValue::Null),
        ("id", id()),
    ]);
    let (due, id, expires, _) = read(&delayed, &route());
    assert_eq!(
        (due, id, expires),
        (ARRIVAL.plus(2000), Some("8f1c".into()), None)
    );
    let own = amqp(&[("x-delay", HeaderValue::Null)]);
    assert_invalid(&own, &route(), InvalidReason::BadDelay);
}

#[test]
fn the_annotations_of_amqp_1_0_are_read_and_taken_out() {
    let due = ARRIVAL.plus(2000);
    for header in [
        ("x-opt-delivery-delay", HeaderValue::I64(2000)),
        ("X-Opt-Delivery-Time", HeaderValue::I64(due.0)),
    ] {
        let (at, .., left) = read(&amqp(std::slice::from_ref(&header)), &route());
        assert_eq!((at, left.len()), (due, 0), "{header:?}");
    }
    // RabbitMQ cuts a timestamp to its second: whatever was asked for, it is not early.
    let cut = HeaderValue::Timestamp(due.0 as u64 / 1000);
    let (at, ..) = read(&amqp(&[("x-opt-delivery-time", cut.clone())]), &route());
    assert_eq!(at, UnixMs(due.0 / 1000 * 1000 + 999));
    // A producer of AMQP 0-9-1 means the second itself.
    let (at, ..) = read(&amqp(&[("x-deliver-at", cut)]), &route());
    assert_eq!(at, UnixMs(due.0 / 1000 * 1000));
    let bad = amqp(&[("x-opt-delivery-delay", HeaderValue::I64(-1))]);
    assert_invalid(&bad, &route(), InvalidReason::BadDelay);
}

#[test]
fn a_delay_that_rabbitmq_did_not_translate_does_not_become_now() {
    let section = |text: &[u8]| HeaderValue::LongString(Bytes::copy_from_slice(text));
    let annotations = b"\x00Sr\xc1\x1e\x02\xa3\x14x-opt-delivery-delayp\x00\x00\x07\xd0";
    let properties = b"\x00St\xc1\x10\x02\xa1\x07x-delay\xa1\x022s";
    for (name, text) in [
        ("x-amqp-1.0-message-annotations", &annotations[..]),
        ("x-amqp-1.0-app-properties", &properties[..]),
    ] {
        let message = amqp(&[(name, section(text))]);
        assert_invalid(&message, &route(), InvalidReason::BadHeaders);
        let harmless = amqp(&[(name, section(b"\x00St\xc1\x04\x02\xa1\x01a\x40"))]);
        for (message, dialects) in [
            (&harmless, route().policy.dialects),
            (&message, Dialects::default()),
        ] {
            let mut route = route();
            route.policy.dialects = dialects;
            let (admitted, _) = admit_now(message, &route);
            assert!(
                matches!(admitted, Admission::PassThrough { .. }),
                "{admitted:?}"
            );
        }
    }
}

#[test]
fn two_headers_for_one_thing_must_say_the_same() {
    let due = ARRIVAL.plus(2000).0.to_string();
    let same = [
        ("x-deliver-at", due.as_str()),
        ("eta", DUE),
        ("x-opt-delivery-time", &due),
        ("x-delay-id", "8f1c"),
        ("id", "8f1c"),
        ("x-delay-expires", "2026-11-21T10:01:00Z"),
        ("expires", "2026-11-21T10:01:00"),
    ];
    let (at, id, _, left) = read_both(&same);
    assert_eq!((at, id), (ARRIVAL.plus(2000), Some("8f1c".into())));
    assert_eq!(left, ["id", "expires"]);
    // A task that is tried again brings along what Postdate called it before.
    let again = [("eta", DUE), ("id", "8f1c"), ("x-delay-id", "~1.2.3")];
    assert_eq!(read_both(&again).1, Some("8f1c".into()));
    for different in [
        [("eta", DUE), ("x-deliver-at", "2026-11-21T10:00:03Z")],
        [("eta", DUE), ("x-delay", "2000")],
        [("eta", DUE), ("x-opt-delivery-delay", "2000")],
        [("x-delay", "2000"), ("x-opt-delivery-delay", "2001")],
    ] {
        for message in both(&different) {
            assert_invalid(&message, &route(), InvalidReason::Ambiguous);
        }
    }
    for (own, foreign) in [("x-delay-id", "id"), ("x-delay-expires", "expires")] {
        let headers = [("x-delay", "2000"), (own, "30s"), (foreign, "31s")];
        for message in both(&headers) {
            assert_invalid(&message, &route(), InvalidReason::Ambiguous);
        }
    }
}

#[test]
fn a_dialect_that_is_not_set_says_nothing() {
    let task = [("eta", DUE), ("id", "8f1c"), ("x-opt-delivery-delay", "5")];
    for message in both(&task) {
        let (Admission::PassThrough { .. }, out) = admit_now(&message, &super::route()) else {
            panic!("it passes");
        };
        assert_eq!(out, message);
    }
}

#[test]
fn a_task_is_cancelled_by_its_id() {
    for message in both(&[("x-delay-op", "cancel"), ("id", "8f1c")]) {
        assert_eq!(
            admit_now(&message, &route()).0,
            Admission::Cancel { id: "8f1c".into() }
        );
    }
}
