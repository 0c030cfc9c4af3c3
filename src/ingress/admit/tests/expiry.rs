use super::*;
use crate::ingress::headers::{ExpiryHeader, MomentStyle, expires};

fn bytes(text: &str) -> HeaderValue {
    HeaderValue::Bytes(Bytes::copy_from_slice(text.as_bytes()))
}

fn expiry(headers: &[(&str, &str)], route: &Route) -> Option<Expiry> {
    let [kafka, rabbitmq] = both(headers).map(|message| match admit_now(&message, route) {
        (Admission::Delayed { asked, .. } | Admission::Change { asked, .. }, message) => {
            assert_eq!(message.headers, [], "{headers:?}");
            asked.request.expires
        }
        (other, _) => panic!("{headers:?}: {other:?}"),
    });
    assert_eq!(kafka, rabbitmq);
    kafka
}

#[test]
fn a_span_counts_from_the_due_time_and_a_moment_stands() {
    let route = route();
    let due = ARRIVAL.plus(2000);
    let asked = |value: &str| expiry(&[("x-delay", "2000"), ("X-Delay-Expires", value)], &route);
    for (value, ms) in [
        ("1", 1),
        ("500ms", 500),
        ("1h30m", 5_400_000),
        ("PT1.5S", 1500),
        ("99999999999", 99_999_999_999),
    ] {
        assert_eq!(asked(value), Some(Expiry::after(due, ms)), "{value}");
    }
    let last = ARRIVAL.plus(2001);
    let text = crate::domain::moment::render(last).expect("a moment");
    for value in [last.0.to_string(), text] {
        assert_eq!(asked(&value), Some(Expiry::at(last)), "{value}");
    }
    let rescheduled = [
        ("x-delay-op", "reschedule"),
        ("x-delay-id", "a"),
        ("x-delay", "2000"),
        ("x-delay-expires", "5s"),
    ];
    assert_eq!(expiry(&rescheduled, &route), Some(Expiry::after(due, 5000)));
}

#[test]
fn a_route_says_it_of_what_says_nothing_itself() {
    let mut route = route();
    assert_eq!(expiry(&[("x-delay", "2000")], &route), None);
    route.policy.max_lateness_ms = 7000;
    let due = ARRIVAL.plus(2000);
    assert_eq!(
        expiry(&[("x-delay", "2000")], &route),
        Some(Expiry::after(due, 7000))
    );
    assert_eq!(
        expiry(&[("x-delay", "2000"), ("x-delay-expires", "9s")], &route),
        Some(Expiry::after(due, 9000)),
        "its own word counts"
    );
}

#[test]
fn what_is_no_expiry_or_ends_by_the_due_time_is_invalid() {
    let at_due = (ARRIVAL.0 + 2000).to_string();
    for value in [
        "",
        "0",
        "0s",
        "-1",
        "+1",
        "1.5",
        " 1s",
        "soon",
        "1e9",
        "2026-11-21",
        "2026-11-21T10:00:00",
        "2020-01-01T00:00:00Z",
        "99999999999999999999",
        "9223372036854775808",
        &at_due,
    ] {
        for message in both(&[("x-delay", "2000"), ("x-delay-expires", value)]) {
            assert_invalid(&message, &route(), InvalidReason::BadExpiry);
        }
    }
    for value in [
        HeaderValue::Null,
        HeaderValue::Bool(true),
        HeaderValue::I64(-5),
    ] {
        assert!(
            expires(&value, Origin::Rabbitmq, MomentStyle::Own).is_err(),
            "{value:?}"
        );
    }
    let twice = [
        ("x-delay", "2000"),
        ("x-delay-expires", "1s"),
        ("X-Delay-Expires", "1s"),
    ];
    for message in both(&twice) {
        assert_invalid(&message, &route(), InvalidReason::Ambiguous);
    }
}

#[test]
fn numbers_and_timestamps_of_amqp_are_spans_and_moments_by_their_size() {
    let read = |value| expires(&value, Origin::Rabbitmq, MomentStyle::Own);
    let (span, moment) = (99_999_999_999, 100_000_000_000);
    assert_eq!(read(HeaderValue::I64(span)), Ok(ExpiryHeader::After(span)));
    assert_eq!(
        read(HeaderValue::I64(moment)),
        Ok(ExpiryHeader::At(UnixMs(moment)))
    );
    assert_eq!(
        read(HeaderValue::Timestamp(1_800_000_000)),
        Ok(ExpiryHeader::At(UnixMs(1_800_000_000_000)))
    );
    assert_eq!(
        expires(&bytes("\"2s\""), Origin::Kafka, MomentStyle::Own),
        Ok(ExpiryHeader::After(2000))
    );
}

#[test]
fn a_message_that_passes_keeps_the_header_whatever_it_says() {
    let mut route = route();
    route.policy.max_lateness_ms = 7000;
    for value in ["1s", "soon"] {
        for message in both(&[("x-delay-expires", value)]) {
            let (Admission::PassThrough { .. }, out) = admit_now(&message, &route) else {
                panic!("{value} passes");
            };
            assert_eq!(out, message);
        }
    }
}
