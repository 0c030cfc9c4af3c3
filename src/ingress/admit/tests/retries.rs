use super::*;
use crate::domain::ConsumerRetry;

const RETRY: &str = "x-delay-retry";

fn retry_route() -> Route {
    let mut route = route();
    route.policy.consumer_retry = Some(ConsumerRetry {
        attempts: 4,
        initial_ms: 10_000,
        factor: 3,
        max_ms: 60_000,
    });
    route
}

/// Due time, spread, what was asked for, and the count, of a message that waits.
fn waits(message: &Message, route: &Route) -> (i64, i64, RequestedTime, u32) {
    match admit_now(message, route) {
        (Admission::Delayed { asked, .. }, rest) => {
            let AskedTime {
                due,
                request,
                spread_ms,
            } = asked;
            assert!(
                rest.headers.iter().all(|h| h.name.as_str() == "kept"),
                "{rest:?}"
            );
            (
                due.since(ARRIVAL),
                spread_ms,
                request.time,
                request.given_back,
            )
        }
        (other, _) => panic!("{message:?}: {other:?}"),
    }
}

#[test]
fn each_wait_is_longer_than_the_last_up_to_the_longest() {
    let route = retry_route();
    for (before, wait, count) in [
        (None, 10_000, 1),
        (Some("0"), 10_000, 1),
        (Some("1"), 30_000, 2),
        (Some("2"), 60_000, 3),
        (Some("000000003"), 60_000, 4),
    ] {
        let mut headers = vec![
            ("kept", "yes"),
            ("x-delay-due", "7"),
            ("x-delay-attempt", "2"),
        ];
        headers.extend(before.map(|before| ("X-Delay-Retry", before)));
        for message in both(&headers) {
            let spread = wait / 5;
            let expected = (wait - spread, spread, RequestedTime::Delay(wait), count);
            assert_eq!(waits(&message, &route), expected, "{before:?}");
        }
    }
    let longest = ConsumerRetry {
        attempts: u32::MAX,
        initial_ms: i64::MAX / 2,
        factor: 1000,
        max_ms: i64::MAX,
    };
    assert_eq!(longest.wait_ms(999_999_999), i64::MAX);
}

#[test]
fn a_delay_of_its_own_holds_and_counts_all_the_same() {
    let route = retry_route();
    for message in both(&[("x-delay", "7000"), (RETRY, "3")]) {
        let expected = (7000, 0, RequestedTime::Delay(7000), 4);
        assert_eq!(waits(&message, &route), expected);
    }
}

#[test]
fn beyond_its_attempts_it_is_spent_whatever_it_asks_for() {
    let route = retry_route();
    let headers = [
        (RETRY, "4"),
        ("x-delay-id", "order-7"),
        ("x-delay", "soon"),
        ("kept", "yes"),
        ("x-delay-target", "orders.retry"),
    ];
    for message in both(&headers) {
        let (admission, rest) = admit_now(&message, &route);
        let Admission::Spent {
            id,
            request,
            target,
        } = admission
        else {
            panic!("it is not spent");
        };
        assert_eq!(
            (id.as_ref().map(Text::as_str), request.given_back),
            (Some("order-7"), 5)
        );
        assert_eq!(target, topic("orders.retry"));
        let expected = without(
            &message,
            &[RETRY, "x-delay-id", "x-delay", "x-delay-target"],
        );
        assert_eq!(rest, expected);
    }
}

#[test]
fn a_count_that_is_none_is_invalid_and_the_message_kept_as_it_came() {
    let route = retry_route();
    for wrong in ["", " 1", "+1", "-1", "1.0", "0x1", "1234567890", "one", "١"] {
        for message in both(&[(RETRY, wrong)]) {
            assert_invalid(&message, &route, InvalidReason::BadRetry);
        }
    }
    let [mut message, _] = both(&[]);
    message.origin = Origin::Rabbitmq;
    for wrong in [
        HeaderValue::Null,
        HeaderValue::Bool(true),
        HeaderValue::I64(-1),
        HeaderValue::I64(1_000_000_000),
        HeaderValue::F64(1.0),
        HeaderValue::Timestamp(1),
    ] {
        message.headers = vec![Header::new(RETRY, wrong)];
        assert_invalid(&message, &route, InvalidReason::BadRetry);
    }
    for right in [HeaderValue::I8(1), HeaderValue::U32(1), HeaderValue::I64(1)] {
        message.headers = vec![Header::new(RETRY, right)];
        assert_eq!(waits(&message, &route).3, 2);
    }
    for message in both(&[(RETRY, "1"), ("X-Delay-Retry", "1")]) {
        assert_invalid(&message, &route, InvalidReason::Ambiguous);
    }
}

/// It was wanted when it was made. Nobody has made it wrong.
#[test]
fn what_is_given_back_may_be_wanted_until_a_moment_that_is_over() {
    for last in [ARRIVAL.0 - 1, ARRIVAL.0 + 2000] {
        for message in both(&[(RETRY, "1"), ("x-delay-expires", &last.to_string())]) {
            let (Admission::Delayed { asked, .. }, _) = admit_now(&message, &retry_route()) else {
                panic!("it waits");
            };
            assert_eq!(asked.request.expires, Some(Expiry::at(UnixMs(last))));
            assert_eq!(asked.due, UnixMs(last + 1), "it expires then");
        }
    }
}

#[test]
fn on_another_route_the_count_is_a_header_like_any_other() {
    for message in both(&[(RETRY, "x")]) {
        let target = topic("orders");
        let expected = (Admission::PassThrough { target }, message.clone());
        assert_eq!(admit_now(&message, &route()), expected);
    }
    for message in both(&[("x-delay", "1"), (RETRY, "5")]) {
        let (Admission::Delayed { asked, .. }, rest) = admit_now(&message, &route()) else {
            panic!("it is delayed");
        };
        assert_eq!(
            (asked.request.given_back, rest),
            (0, without(&message, &["x-delay"]))
        );
    }
}

#[test]
fn a_command_counts_nothing() {
    let route = retry_route();
    let headers = [("x-delay-op", "cancel"), ("x-delay-id", "a"), (RETRY, "x")];
    for message in both(&headers) {
        assert_eq!(
            admit_now(&message, &route).0,
            Admission::Cancel { id: "a".into() }
        );
    }
}
