use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::domain::route::HeaderNames;
use crate::domain::{HeaderValue, Origin, RoutePolicy, RoutingKey, Topics, testing};

mod dialects;
mod expiry;
mod retries;
mod routes;
mod times;

const ARRIVAL: UnixMs = UnixMs(1_795_255_200_000);
const MAX_DELAY: i64 = 30 * 86_400_000;

fn topic(name: &str) -> Arc<Target> {
    Arc::new(testing::kafka_target(name))
}

fn route() -> Route {
    let from = testing::kafka_source(Topics::one("in"), "postdate");
    Route {
        allow_targets: vec![topic("orders.retry")],
        policy: RoutePolicy {
            max_size: 100,
            max_headers: 1000,
            ..testing::policy()
        },
        ..testing::route_between("orders", from, testing::kafka_target("orders"))
    }
}

/// The same message from each technology.
fn both(headers: &[(&str, &str)]) -> [Message; 2] {
    let message = |origin, value: fn(Bytes) -> HeaderValue| Message {
        origin,
        key: Some(Bytes::from_static(b"key")),
        body: Some(Bytes::from_static(b"body")),
        headers: headers
            .iter()
            .map(|(n, v)| Header::new(*n, value(Bytes::copy_from_slice(v.as_bytes()))))
            .collect(),
        properties: None,
    };
    [
        message(Origin::Kafka, HeaderValue::Bytes),
        message(Origin::Rabbitmq, HeaderValue::LongString),
    ]
}

/// The request of a message that came at [`ARRIVAL`].
fn asked(time: RequestedTime) -> DelayRequest {
    DelayRequest {
        expires: None,
        given_back: 0,
        received: ARRIVAL,
        time,
    }
}

fn admit_now(message: &Message, route: &Route) -> (Admission, Message) {
    admit(message.clone(), None, None, route, ARRIVAL.into())
}

/// What is asked for by a message that came at [`ARRIVAL`].
fn asked_time(wait_ms: i64, time: RequestedTime) -> AskedTime {
    AskedTime {
        due: ARRIVAL.plus(wait_ms),
        request: asked(time),
        spread_ms: 0,
    }
}

fn without(message: &Message, names: &[&str]) -> Message {
    let mut message = message.clone();
    message
        .headers
        .retain(|h| !names.contains(&h.name.as_str()));
    message
}

#[track_caller]
fn assert_invalid(message: &Message, route: &Route, expected: InvalidReason) {
    match admit_now(message, route) {
        (Admission::Invalid { reason, error }, kept) => {
            assert_eq!(reason, expected, "{error}");
            assert_eq!(&kept, message, "kept as it came");
            assert!(!error.is_empty());
        }
        other => panic!("{other:?} is not {expected:?}"),
    }
}

#[test]
fn without_a_delay_header_it_passes_through_as_it_came() {
    let cases: [&[(&str, &str)]; 5] = [
        &[],
        &[("a", "1"), ("a", "2"), ("A", ""), ("x-delayed", "5")],
        // A consumer sends on a message that Postdate published before.
        &[
            ("x-delay-id", "~abc"),
            ("x-delay-due", "1"),
            ("x-delay-attempt", "2"),
        ],
        &[("x-delay-id", "order-7")],
        &[("x-delay-id", "")],
    ];
    for headers in cases {
        for message in both(headers) {
            let target = topic("orders");
            let expected = (Admission::PassThrough { target }, message.clone());
            assert_eq!(admit_now(&message, &route()), expected);
        }
    }
}

#[test]
fn a_target_is_honoured_without_a_delay_and_only_it_is_taken_out() {
    for message in both(&[
        ("x-delay-id", "~a"),
        ("X-Delay-Target", "orders.retry"),
        ("x-delay-due", "1"),
    ]) {
        let rest = without(&message, &["X-Delay-Target"]);
        let target = topic("orders.retry");
        let expected = (Admission::PassThrough { target }, rest);
        assert_eq!(admit_now(&message, &route()), expected);
    }
}

#[test]
fn a_delayed_message_loses_its_delay_headers_in_any_case_and_nothing_else() {
    let headers = [
        ("a", "1"),
        ("X-Delay", "2s"),
        ("x-delay-ID", "order-7"),
        ("X-DELAY-DUE", "1"),
        ("x-delay-due", "2"),
        ("x-delay-attempt", "3"),
        ("X-Delay-Target", "orders.retry"),
        ("b", ""),
        ("a", "2"),
        ("x-delay2", "x"),
    ];
    for message in both(&headers) {
        let expected = Admission::Delayed {
            asked: asked_time(2000, RequestedTime::Delay(2000)),
            id: Some("order-7".into()),
            target: topic("orders.retry"),
        };
        let mut rest = message.clone();
        rest.headers
            .retain(|h| ["a", "b", "x-delay2"].contains(&h.name.as_str()));
        assert_eq!(admit_now(&message, &route()), (expected, rest));
    }
}

#[test]
fn an_id_that_postdate_made_is_ignored_and_replaced() {
    for message in both(&[
        ("x-delay", "1"),
        ("x-delay-id", "~abc"),
        ("x-delay-due", "5"),
    ]) {
        let message_out = without(&message, &["x-delay", "x-delay-id", "x-delay-due"]);
        let expected = Admission::Delayed {
            asked: asked_time(1, RequestedTime::Delay(1)),
            id: None,
            target: topic("orders"),
        };
        assert_eq!(admit_now(&message, &route()), (expected, message_out));
    }
}

#[test]
fn spring_quotes_are_no_part_of_any_of_the_five() {
    let headers = [
        ("x-deliver-at", "\"2026-11-21T10:00:01Z\""),
        ("x-delay-id", "\"order-7\""),
        ("x-delay-target", "\"orders.retry\""),
        ("x-delay-op", "\"reschedule\""),
    ];
    let [kafka, amqp] = both(&headers);
    let expected = Admission::Change {
        replaces: false,
        id: "order-7".into(),
        asked: asked_time(1000, RequestedTime::At(ARRIVAL.plus(1000))),
        target: topic("orders.retry"),
    };
    let rest = Message {
        headers: Vec::new(),
        ..kafka.clone()
    };
    assert_eq!(admit_now(&kafka, &route()), (expected, rest));
    assert_invalid(&amqp, &route(), InvalidReason::BadOp);
}

#[test]
fn a_route_without_commands_takes_none() {
    let mut route = route();
    route.policy.commands = false;
    for op in ["cancel", "reschedule", "replace"] {
        for message in both(&[("x-delay-op", op), ("x-delay-id", "a"), ("x-delay", "1")]) {
            assert_invalid(&message, &route, InvalidReason::BadOp);
        }
    }
    for message in both(&[("x-delay", "1"), ("x-delay-id", "a")]) {
        assert!(matches!(
            admit_now(&message, &route).0,
            Admission::Delayed { .. }
        ));
    }
}

#[test]
fn each_invalid_message_has_its_reason_and_is_kept_whole() {
    use InvalidReason::{Ambiguous, BadDelay, BadId, BadOp, BadTime, ForbiddenTarget, TooFar};
    let cases: &[(&[(&str, &str)], InvalidReason)] = &[
        (&[("x-delay", "abc")], BadDelay),
        (&[("x-delay", "")], BadDelay),
        (&[("x-delay", "-1")], BadDelay),
        (&[("x-delay", "1.5")], BadDelay),
        (&[("x-delay", "9999999999999999999")], BadDelay),
        (&[("x-deliver-at", "1795255200")], BadTime),
        (&[("x-deliver-at", "tomorrow")], BadTime),
        (&[("x-deliver-at", "")], BadTime),
        (
            &[("x-delay", "1"), ("x-deliver-at", "1795255200000")],
            Ambiguous,
        ),
        (&[("x-delay", "1"), ("x-delay", "1")], Ambiguous),
        (&[("x-delay", "1"), ("X-Delay", "2")], Ambiguous),
        (
            &[
                ("x-deliver-at", "1795255200000"),
                ("X-DELIVER-AT", "1795255200000"),
            ],
            Ambiguous,
        ),
        (
            &[("x-delay", "1"), ("x-delay-id", "a"), ("X-Delay-Id", "a")],
            Ambiguous,
        ),
        (&[("x-delay-id", "a"), ("X-Delay-Id", "a")], Ambiguous),
        (
            &[
                ("x-delay-op", "cancel"),
                ("x-delay-op", "cancel"),
                ("x-delay-id", "a"),
            ],
            Ambiguous,
        ),
        (
            &[("x-delay-target", "orders"), ("X-Delay-Target", "orders")],
            Ambiguous,
        ),
        (&[("x-delay", "2592000001")], TooFar),
        (&[("x-delay", "9223372036854775807")], TooFar),
        (&[("x-deliver-at", "1797847200001")], TooFar),
        (&[("x-deliver-at", "1795255200000000")], TooFar),
        (&[("x-deliver-at", "9999-12-31T23:59:59Z")], TooFar),
        (&[("x-delay", "1"), ("x-delay-id", "")], BadId),
        (&[("x-delay-op", "cancel")], BadId),
        (&[("x-delay-op", "cancel"), ("x-delay-id", "")], BadId),
        (&[("x-delay-op", "cancel"), ("x-delay-id", "~abc")], BadId),
        (&[("x-delay-op", "reschedule"), ("x-delay", "1")], BadId),
        (
            &[
                ("x-delay-op", "reschedule"),
                ("x-delay", "1"),
                ("x-delay-id", "~abc"),
            ],
            BadId,
        ),
        (&[("x-delay-op", "replace"), ("x-delay", "1")], BadId),
        (&[("x-delay-op", "replace"), ("x-delay-id", "a")], BadDelay),
        (
            &[("x-delay-op", "reschedule"), ("x-delay-id", "a")],
            BadDelay,
        ),
        (
            &[
                ("x-delay-op", "reschedule"),
                ("x-delay-id", "a"),
                ("x-delay", "soon"),
            ],
            BadDelay,
        ),
        (
            &[
                ("x-delay-op", "reschedule"),
                ("x-delay-id", "a"),
                ("x-deliver-at", "soon"),
            ],
            BadTime,
        ),
        (&[("x-delay-op", "")], BadOp),
        (&[("x-delay-op", "Cancel"), ("x-delay-id", "a")], BadOp),
        (
            &[
                ("x-delay-op", "delete"),
                ("x-delay-id", "a"),
                ("x-delay", "1"),
            ],
            BadOp,
        ),
        (
            &[("x-delay", "1"), ("x-delay-target", "payments")],
            ForbiddenTarget,
        ),
        (&[("x-delay-target", "payments")], ForbiddenTarget),
        (&[("x-delay-target", "")], ForbiddenTarget),
        (&[("x-delay", "1"), ("x-delay-target", "")], ForbiddenTarget),
        (&[("x-delay-target", "ORDERS")], ForbiddenTarget),
        (&[("x-delay-target", "orders ")], ForbiddenTarget),
        (&[("x-delay-target", "orders.*")], ForbiddenTarget),
        (&[("x-delay-target", "../orders")], ForbiddenTarget),
        (&[("x-delay-target", "__consumer_offsets")], ForbiddenTarget),
        (&[("x-delay-target", "/orders")], ForbiddenTarget),
    ];
    for (headers, reason) in cases {
        for message in both(headers) {
            assert_invalid(&message, &route(), *reason);
        }
    }
}

#[test]
fn a_null_value_is_never_as_if_the_header_were_not_there() {
    use InvalidReason::{BadDelay, BadId, BadOp, BadTime, ForbiddenTarget};
    for (name, reason) in [
        ("x-delay", BadDelay),
        ("x-deliver-at", BadTime),
        ("x-delay-op", BadOp),
        ("x-delay-target", ForbiddenTarget),
    ] {
        for mut message in both(&[]) {
            message.headers.push(Header::new(name, HeaderValue::Null));
            assert_invalid(&message, &route(), reason);
        }
    }
    for mut message in both(&[("x-delay", "1")]) {
        message
            .headers
            .push(Header::new("x-delay-id", HeaderValue::Null));
        assert_invalid(&message, &route(), BadId);
    }
}

#[test]
fn limits_are_inclusive_and_hold_with_and_without_a_delay() {
    for headers in [
        &[][..],
        &[("x-delay", "1")],
        &[("x-delay-op", "cancel"), ("x-delay-id", "a")],
    ] {
        for mut message in both(headers) {
            for (size, fits) in [
                (0, true),
                (99, true),
                (100, true),
                (101, false),
                (16 << 20, false),
            ] {
                message.body = Some(Bytes::from(vec![0; size]));
                if fits {
                    assert!(
                        !matches!(admit_now(&message, &route()).0, Admission::Invalid { .. }),
                        "{size}"
                    );
                } else {
                    assert_invalid(&message, &route(), InvalidReason::TooBig);
                }
            }
            message.body = None;
            assert!(!matches!(
                admit_now(&message, &route()).0,
                Admission::Invalid { .. }
            ));
            let room = 1000 - message.headers_len();
            message.headers.push(Header::new(
                "h",
                HeaderValue::Bytes(Bytes::from(vec![0; room - 1])),
            ));
            assert!(!matches!(
                admit_now(&message, &route()).0,
                Admission::Invalid { .. }
            ));
            message.headers.push(Header::new("i", HeaderValue::Null));
            assert_invalid(&message, &route(), InvalidReason::BadHeaders);
        }
    }
}

#[test]
fn headers_that_could_not_be_read_are_bad_headers() {
    let [message, _] = both(&[]);
    let admitted = admit(
        message.clone(),
        Some("a name that is not UTF-8".into()),
        None,
        &route(),
        ARRIVAL.into(),
    );
    let expected = Admission::Invalid {
        reason: InvalidReason::BadHeaders,
        error: "a name that is not UTF-8".into(),
    };
    assert_eq!(admitted, (expected, message));
}

#[test]
fn the_first_of_several_reasons_is_named() {
    let [mut message, _] = both(&[
        ("x-delay", "x"),
        ("x-delay-id", ""),
        ("x-delay-op", "x"),
        ("x-delay-target", "x"),
    ]);
    assert_invalid(&message, &route(), InvalidReason::BadOp);
    message.headers.retain(|h| h.name.as_str() != "x-delay-op");
    assert_invalid(&message, &route(), InvalidReason::BadId);
    message.headers.retain(|h| h.name.as_str() != "x-delay-id");
    assert_invalid(&message, &route(), InvalidReason::ForbiddenTarget);
    message
        .headers
        .push(Header::new("X-DELAY", HeaderValue::Null));
    assert_invalid(&message, &route(), InvalidReason::Ambiguous);
    message.body = Some(Bytes::from(vec![0; 101]));
    assert_invalid(&message, &route(), InvalidReason::TooBig);
}

#[test]
fn a_cancel_needs_its_id_and_nothing_else() {
    let more: [&[(&str, &str)]; 4] = [
        &[],
        &[("x-delay", "5s")],
        &[("x-delay", "abc")],
        &[("x-deliver-at", "x"), ("x-delay-target", "payments")],
    ];
    for more in more {
        let headers = [&[("x-delay-op", "cancel"), ("x-delay-id", "order-7")], more].concat();
        for message in both(&headers) {
            let id = "order-7".into();
            let (admission, _) = admit_now(&message, &route());
            assert_eq!(admission, Admission::Cancel { id });
        }
    }
}

#[test]
fn a_change_carries_the_message_it_brings() {
    for (op, message) in ["reschedule", "replace"].into_iter().flat_map(|op| {
        let headers = [
            ("a", "1"),
            ("x-delay-op", op),
            ("x-delay-id", "order-7"),
            ("x-delay", "5s"),
        ];
        both(&headers).map(|message| (op, message))
    }) {
        let expected = Admission::Change {
            replaces: op == "replace",
            id: "order-7".into(),
            asked: asked_time(4000, RequestedTime::Delay(5000)),
            target: topic("orders"),
        };
        let rest = without(&message, &["x-delay-op", "x-delay-id", "x-delay"]);
        let admitted = admit(
            message,
            None,
            Some(ARRIVAL.plus(-1000)),
            &route(),
            ARRIVAL.into(),
        );
        assert_eq!(admitted, (expected, rest));
    }
}

fn any_value() -> impl Strategy<Value = HeaderValue> {
    prop_oneof![
        Just(HeaderValue::Null),
        any::<i64>().prop_map(HeaderValue::I64),
        any::<f64>().prop_map(HeaderValue::F64),
        any::<u64>().prop_map(HeaderValue::Timestamp),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(|b| HeaderValue::Bytes(b.into())),
        "\"?(cancel|reschedule|replace|orders|~?[a-z]{1,3}|[0-9]{1,13}|[0-9]{1,3}(ms|s|h))\"?"
            .prop_map(|t| HeaderValue::LongString(t.into())),
    ]
}

proptest! {
    #[test]
    fn whatever_comes_is_judged_and_what_is_delayed_is_clean(
        kafka in any::<bool>(),
        headers in prop::collection::vec(("(?i)x-delay(-id|-op|-target|-due)?|x-deliver-at|[a-z]{0,3}", any_value()), 0..6),
        produced in prop::option::of(any::<i64>()),
    ) {
        let headers: Vec<_> = headers.into_iter().map(|(n, v)| Header::new(n, v)).collect();
        let origin = if kafka { Origin::Kafka } else { Origin::Rabbitmq };
        let message = Message { origin, key: None, body: None, headers, properties: None };
        let route = route();
        let (admission, rest) = admit(message.clone(), None, produced.map(UnixMs), &route, ARRIVAL.into());
        match admission {
            Admission::Delayed { asked, .. } | Admission::Change { asked, .. } => {
                let due = asked.due;
                prop_assert!(due.0 >= 0 && due.since(ARRIVAL) <= MAX_DELAY);
                prop_assert!(!rest.headers.iter().any(|h| is_delay_header(h, &route)));
                let others = message.headers.iter().filter(|h| !is_delay_header(h, &route));
                prop_assert!(rest.headers.iter().map(|h| &h.name).eq(others.map(|h| &h.name)));
            }
            Admission::PassThrough { .. } => {
                let dropped = message.headers.len() - rest.headers.len();
                prop_assert!(dropped <= 1);
                prop_assert!(!message.headers.iter().any(|h| headers::has_name(h, "x-delay") || headers::has_name(h, "x-deliver-at")));
            }
            Admission::Invalid { error, .. } => prop_assert!(!error.as_str().chars().any(char::is_control)),
            Admission::Cancel { id } => prop_assert!(!id.is_empty()),
            Admission::Spent { .. } => prop_assert!(false, "it is no route of retries"),
        }
    }
}
